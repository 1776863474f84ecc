"""What each surrogate sees
=========================

A surrogate stands in for the number of non-zeros. Here is what each looks like, and the share of starts that it leads
into a true column as the samples for each component grow.
"""

# %%
import os

import matplotlib.pyplot as plt
import numpy as np
import torch
from threadpoolctl import threadpool_limits

from sparsedl.datasets import make_sparse_dictionary
from sparsedl.optimizers import RiemannianAdam
from sparsedl.preconditioning import whiten
from sparsedl.starts import RowStarts
from sparsedl.surrogates import L1, Huber, LogCosh, LogSum, NegativeL4

SMALL = bool(os.environ.get("SPARSEDL_SMALL"))
SURROGATES = [LogSum(), L1(), LogCosh(mu=0.3), Huber(delta=0.3), NegativeL4()]
fig, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
t = torch.linspace(-2, 2, 401)
for surrogate in SURROGATES:
    value = surrogate.value(t) - surrogate.value(torch.zeros(1))
    left.plot(t, value / value.abs().max(), label=repr(surrogate))
left.set(title="surrogates, scaled", xlabel="t")
left.legend(fontsize=8)


# %%
# A start counts as a success when its end is within a cosine of 0.98 of a true column.
def share_of_successes(surrogate, k, per, seed):
    X, codes, _ = make_sparse_dictionary(per * k, k, sparsity=0.5, random_state=seed)
    observations = torch.from_numpy(whiten(X).whitened)
    starts = RowStarts().draw(observations, torch.zeros((0, k)).double(), 64, torch.Generator().manual_seed(seed))
    with threadpool_limits(1):
        ends = RiemannianAdam().minimize(observations, starts, surrogate).directions
    entries = (ends @ observations.T).numpy()
    cosines = np.abs(entries @ codes) / np.linalg.norm(entries, axis=1)[:, None] / np.linalg.norm(codes, axis=0)
    return np.mean(cosines.max(axis=1) > 0.98)


k, seeds = (6, range(1)) if SMALL else (30, range(3))
samples = (4, 8) if SMALL else (3, 4, 6, 8, 12, 20)
for surrogate in SURROGATES:
    shares = [np.mean([share_of_successes(surrogate, k, per, seed) for seed in seeds]) for per in samples]
    right.plot(samples, shares, marker="o", label=repr(surrogate))
right.set(title=f"share of first starts in a column, {k} components", xlabel="samples per component", ylim=(0, 1.05))
fig.savefig("surrogates.png", dpi=120)
