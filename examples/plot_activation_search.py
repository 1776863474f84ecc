"""Activation search: two views of one sample
===========================================

For each sample the gradient ``U q`` vanishes exactly where the known weights say that its ReLU is off, ``F p <= 0``.
Searching for ``q`` and ``p`` together finds what sparsity alone does not. The next layer's gradient is a third view.
"""

# %%
import os
import warnings

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning

from sparsedl import SparseDictionaryRecovery
from sparsedl.surrogates import L1
from sparsedl_fl import GradientInverter, LayerGradient
from sparsedl_fl.constraints.problem import LayerProblem
from sparsedl_fl.directions import ActivationDirections, DictionaryDirections
from sparsedl_fl.search import Alternation, SampleCoordinates
from sparsedl_fl.simulation import client_gradient, fully_connected

warnings.simplefilter("ignore", ConvergenceWarning)
SMALL = bool(os.environ.get("SPARSEDL_SMALL"))
width, sizes, n_batches = (60, (4, 8), 1) if SMALL else (200, (10, 20, 30, 40, 50, 60, 80), 2)
METHODS = {
    "l1 on the sphere (SPEAR++)": DictionaryDirections(
        SparseDictionaryRecovery(surrogate=L1(), deflation=None, max_rounds=5)
    ),
    "activation search": ActivationDirections(use_next_layer=False, patience=10),
    "with the next layer's gradient": ActivationDirections(patience=10),
}


def problem(batch_size, seed):
    """Inputs whose spectrum falls off as that of photographs does."""
    spectrum = torch.arange(1, 401) ** -0.5
    batch = torch.randn(batch_size, 400, generator=torch.Generator().manual_seed(seed)) * spectrum * 10
    model = fully_connected(400, width=width, random_state=seed)
    return LayerGradient.from_model(model, client_gradient(model, batch, torch.arange(batch_size) % 10))


# %%
# The path of one start: the share of rows at which the two views agree, and the zeros of ``U q``.
views = SampleCoordinates.of_problem(LayerProblem.of(problem(sizes[-1] // 2, 0)))
path = []
Alternation().run(views, 16, 0.02, torch.Generator().manual_seed(0), observe=lambda q, z: path.append((q, z)))
moduli = torch.stack([(q @ views.left.T.float()).abs() for q, _ in path])
agreement = torch.stack([((m > 0.3) == (z > 0)).float().mean(dim=1) for m, (_, z) in zip(moduli, path, strict=True)])
zeros = (moduli < 0.02).sum(dim=2)

# %%
# The share of starts that end in a true column, and the share of batches that come back, against the batch's size.
shares = {name: [] for name in METHODS}
recovered = {name: [] for name in METHODS}
for batch_size in sizes:
    for name, directions in METHODS.items():
        fits = [GradientInverter(directions, random_state=0).fit(problem(batch_size, s)) for s in range(n_batches)]
        shares[name].append(np.mean([fit.n_successes_ / fit.n_starts_ for fit in fits]))
        recovered[name].append(np.mean([fit.recovered_.all() for fit in fits]))
        print(f"b = {batch_size}, {name}: {shares[name][-1]:.0%} of starts, {recovered[name][-1]:.0%} of batches")

# %%
figure, axes = plt.subplots(1, 4, figsize=(14, 3.2), layout="constrained")
axes[0].plot(agreement)
axes[0].set(xlabel="iteration", ylabel="agreement of the two views")
axes[1].plot(zeros)
axes[1].set(xlabel="iteration", ylabel="zeros of U q")
for axis, values, label in ((axes[2], shares, "starts in a true column"), (axes[3], recovered, "batches recovered")):
    for name in METHODS:
        axis.plot(np.array(sizes) / width, values[name], marker="o", label=name)
    axis.set(xlabel="batch size / width", ylabel=f"share of {label}")
axes[2].legend(fontsize="x-small")
figure.savefig("plot_activation_search.png", dpi=120)
