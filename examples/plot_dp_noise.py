"""DP-SGD: what noise hides
=========================

Clipping scales whole columns of the gradient and hides nothing. Noise does; here is how much it takes, and what sets
the limit: the scale of each sample comes from the bias gradient alone, which the noise hits hardest.
"""

# %%
import os
import warnings

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_sample_images
from sklearn.exceptions import ConvergenceWarning

from sparsedl_fl import GradientInverter, LayerGradient
from sparsedl_fl.metrics import match_batches, psnr
from sparsedl_fl.simulation import dp_sgd_gradient, fully_connected

SMALL = bool(os.environ.get("SPARSEDL_SMALL"))
batch_size, width = (5, 100) if SMALL else (16, 200)
levels = (1e-6, 1e-4) if SMALL else (1e-6, 5e-6, 1e-5, 5e-5, 1e-4, 2e-4)

# %%
# The private batch: patches of two photographs.
rng, found = np.random.default_rng(0), []
while len(found) < batch_size:
    photo = load_sample_images().images[rng.integers(2)] / 255.0
    top, left = rng.integers(photo.shape[0] - 32), rng.integers(photo.shape[1] - 32)
    if photo[top : top + 32, left : left + 32].std() > 0.1:
        found.append(photo[top : top + 32, left : left + 32].ravel())
pixels = np.array(found)
inputs = torch.tensor((pixels - 0.45) / 0.25, dtype=torch.float32)
model = fully_connected(inputs.shape[1], width=width, random_state=0)

# %%
# ``sparsedl_fl.simulation.opacus_gradient`` is the same client, run by Opacus.
quality, rescaled, pictures = [], [], []
for level in levels:
    gradient = dp_sgd_gradient(
        model, inputs, torch.arange(batch_size) % 10, clipping=2.0, noise_std=level, random_state=0
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        inverter = GradientInverter(batch_size=batch_size, random_state=0)
        found = inverter.fit_transform(LayerGradient.from_model(model, gradient))
    found = found[match_batches(inputs, found).order]
    scale = (found * inputs.numpy()).sum(axis=1) / (found**2).sum(axis=1)
    quality.append(psnr(pixels, found * 0.25 + 0.45).mean())
    rescaled.append(psnr(pixels, found * scale[:, None] * 0.25 + 0.45).mean())
    pictures.append(np.clip(found[0] * 0.25 + 0.45, 0, 1).reshape(32, 32, 3))
    median = np.median(np.abs(gradient["0.weight"].numpy()))
    print(f"noise {level:.0e} ({level / median:.2f} of the median entry): {quality[-1]:.1f} dB. {inverter.status_}")

# %%
figure, axes = plt.subplot_mosaic([["curve"] * len(levels), list(levels)], layout="constrained", figsize=(8, 6))
axes["curve"].semilogx(levels, quality, marker="o", label="recovered")
axes["curve"].semilogx(levels, rescaled, marker="o", label="with the true scale of each sample")
axes["curve"].set(xlabel="noise on each entry of the gradient", ylabel="mean PSNR (dB)")
axes["curve"].legend()
for level, picture in zip(levels, pictures, strict=True):
    axes[level].imshow(picture)
    axes[level].set_title(f"{level:.0e}")
    axes[level].axis("off")
figure.savefig("plot_dp_noise.png", dpi=120)
