"""A complete dictionary of natural image patches
===============================================

Real patches are not exactly sparse in any basis, so nothing is proven: ``recovered_`` says so, and a warning. What
comes back is the basis of the sparsest directions found, the edges one expects.
"""

# %%
import os
import warnings

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_sample_images
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.image import extract_patches_2d

from sparsedl import SparseDictionaryRecovery

SMALL = bool(os.environ.get("SPARSEDL_SMALL"))
photographs = [image.mean(axis=2) / 255 for image in load_sample_images().images]
n_patches = 200 if SMALL else 4000
X = np.vstack([extract_patches_2d(p, (8, 8), max_patches=n_patches // 2, random_state=0) for p in photographs])
X = X.reshape(len(X), -1)
X -= X.mean(axis=1, keepdims=True)

# %%
# Centring each patch takes one dimension away, so there are 63 components, the rank of the data.
with warnings.catch_warnings():
    warnings.simplefilter("ignore", ConvergenceWarning)
    sdr = SparseDictionaryRecovery(63, max_rounds=1 if SMALL else 4, random_state=0).fit(X)
print(f"{sdr.recovered_.sum()} of 63 components proven: {sdr.status_}")

# %%
fig, axes = plt.subplots(7, 9, figsize=(7, 5.5))
for axis, component in zip(axes.flat, sdr.components_, strict=True):
    axis.imshow(component.reshape(8, 8), cmap="gray")
    axis.axis("off")
fig.savefig("image_patches.png", dpi=120)
