"""Where recovery begins
======================

How many samples does it take? Each cell is the share of problems whose every component comes back exactly.
"""

# %%
import os
import warnings

import matplotlib.pyplot as plt
import numpy as np
from sklearn.exceptions import ConvergenceWarning

from sparsedl import SparseDictionaryRecovery
from sparsedl.datasets import make_sparse_dictionary

SMALL = bool(os.environ.get("SPARSEDL_SMALL"))
k, n_trials = (5, 1) if SMALL else (20, 4)
samples = (4, 12) if SMALL else (3, 4, 5, 6, 8, 12)
zeros = (0.5, 0.8) if SMALL else (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


def recovered(per, sparsity, seed):
    X, _, _ = make_sparse_dictionary(per * k, k, sparsity=sparsity, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return SparseDictionaryRecovery(k, max_rounds=2 if SMALL else 6, random_state=seed).fit(X).recovered_.all()


share = [[np.mean([recovered(per, z, seed) for seed in range(n_trials)]) for z in zeros] for per in samples]

# %%
fig, axis = plt.subplots(figsize=(6, 4), layout="constrained")
image = axis.imshow(share, origin="lower", vmin=0, vmax=1, aspect="auto")
axis.set(xticks=range(len(zeros)), xticklabels=zeros, yticks=range(len(samples)), yticklabels=samples)
axis.set(xlabel="share of zeros", ylabel="samples per component", title=f"exact recovery, {k} components")
fig.colorbar(image)
fig.savefig("phase_transition.png", dpi=120)
