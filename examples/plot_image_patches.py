"""A complete dictionary of natural image patches
===============================================

Patches of photographs are not exactly sparse in any basis. So nothing is proven, ``recovered_`` says so, and what comes
back are the sparsest directions found, no more. FastICA is the better tool here: of 20,000 patches it shows the cleaner
edges, and its codes are the sparser ones by their mean modulus, in each of ten draws (seeds 0 to 9).
"""

# %%
# 20,000 patches of 8 x 8 pixels of two photographs, as they are, and each without its mean (its offset, "DC").
import os
import time
import warnings

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_sample_images
from sklearn.decomposition import FastICA
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.image import extract_patches_2d
from threadpoolctl import threadpool_limits

from sparsedl import SparseDictionaryRecovery
from sparsedl.plotting import plot_components

n_patches = 400 if os.environ.get("SPARSEDL_SMALL") else 20_000
photographs = [image.sum(axis=2) / 765 for image in load_sample_images().images]  # 765 = 3 x 255: grey from 0 to 1
X = np.vstack([extract_patches_2d(p, (8, 8), max_patches=n_patches // 2, random_state=0) for p in photographs])
X = X.reshape(n_patches, -1)
without_mean = X - X.mean(axis=1, keepdims=True)  # has one dimension less: 63 components

# %%
# Ours takes one round, which refines all directions at once. More rounds take longer, and prove nothing here either.
fits = []
for data, k, name in ((X, 64, "as they are"), (without_mean, 63, "without the mean")):
    ours = SparseDictionaryRecovery(k, max_rounds=1, random_state=0)
    for model in (ours, FastICA(k, whiten="unit-variance", random_state=0)):
        with warnings.catch_warnings(), threadpool_limits(limits=1):
            warnings.simplefilter("ignore", ConvergenceWarning)
            start = time.perf_counter()
            codes = model.fit(data).transform(data)
            seconds = time.perf_counter() - start
        codes /= np.sqrt(np.mean(codes**2, axis=0))
        n_zeros = np.sum(np.abs(codes) < 1e-9, axis=0)
        title = f"{'FastICA' if isinstance(model, FastICA) else 'sparsedl'}, patches {name}: {seconds:.1f} s"
        print(f"{title}; mean modulus {np.abs(codes).mean():.3f}; exact zeros a component {np.median(n_zeros):.0f}")
        fits.append((model if model is ours else model.mixing_.T, title))
    print(f"{ours.recovered_.sum()} of {k} components proven: {ours.status_}")

# %%
# What is exactly zero, then? A flat patch without its mean is zero, and so are all its codes. And pixels hold whole
# numbers: two neighbours are equal in every fifth patch, so that their difference is a code with thousands of zeros.
# That is no sparsity: whole numbers cancel in mixtures as well. The estimator knows codes that take few values, and
# takes their zeros for no proof. Noise below one step of grey leaves none of them.
difference = np.round(765 * (X[:, 27] - X[:, 28]))
noise = np.random.default_rng(0).uniform(-0.5, 0.5, size=(2, n_patches))
print(f"{np.sum(np.ptp(X, axis=1) == 0)} of {n_patches} patches are flat")
print(f"two neighbours are equal in {np.mean(difference == 0):.0%}; they differ by {len(np.unique(difference))} values")
print(f"with noise below a step of grey they are equal in {np.mean(difference + noise[0] - noise[1] == 0):.0%}")

# %%
# Those that are not recovered have a frame.
figure = plt.figure(figsize=(9, 9.6), layout="constrained")
for part, (components, title) in zip(figure.subfigures(2, 2).flat, fits, strict=True):
    plot_components(components, (8, 8), n_columns=8, figure=part)
    part.suptitle(title, fontsize="medium")
figure.savefig("image_patches.png", dpi=120)
