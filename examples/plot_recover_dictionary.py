"""Recover a dictionary exactly
============================

Observations are sparse mixtures of unknown components. `SparseDictionaryRecovery` gets both factors back to the last
digit, and proves each component by its zeros.
"""

# %%
# Twenty components, two hundred observations, half of the codes zero.
import os

import matplotlib.pyplot as plt
import numpy as np

from sparsedl import SparseDictionaryRecovery
from sparsedl.datasets import make_sparse_dictionary
from sparsedl.metrics import match_components

n_components = 6 if os.environ.get("SPARSEDL_SMALL") else 20
X, codes, components = make_sparse_dictionary(10 * n_components, n_components, sparsity=0.5, random_state=0)
sdr = SparseDictionaryRecovery(random_state=0).fit(X)
match = match_components(sdr.components_, components)
print(f"{sdr.status_} after {sdr.n_starts_} starts; largest error {match.errors.max():.1e}")

# %%
# Up to order and sign, the codes are the true ones, zeros included.
recovered = sdr.codes_[:, match.permutation] * match.scales
fig, axes = plt.subplots(1, 3, figsize=(9, 4), sharey=True, layout="constrained")
for axis, matrix, title in zip(
    axes, (X, codes != 0, np.abs(recovered) > 1e-9), ("observations", "true support", "recovered support"), strict=True
):
    axis.imshow(matrix[:60], aspect="auto", cmap="gray" if matrix.dtype == bool else "RdBu")
    axis.set(title=title, xlabel="component" if matrix.dtype == bool else "feature")
axes[0].set_ylabel("observation")
fig.savefig("recover_dictionary.png", dpi=120)
