"""FedAvg: what several local steps hide
======================================

A client that trains for a while sends its new weights, not a gradient. Each unit that switches on or off on the way
costs a zero; how many steps does it take until the batch is safe?
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
from sparsedl_fl.metrics import psnr
from sparsedl_fl.simulation import fedavg_update, fully_connected

SMALL = bool(os.environ.get("SPARSEDL_SMALL"))
batch_size, width = (6, 100) if SMALL else (16, 200)
epochs = (1, 5) if SMALL else (1, 2, 5, 10, 20, 50)
rates = (0.01,) if SMALL else (0.001, 0.01, 0.1)


# %%
# The private data: patches of two photographs.
def patches(n, seed):
    rng, found = np.random.default_rng(seed), []
    while len(found) < n:
        photo = load_sample_images().images[rng.integers(2)] / 255.0
        top, left = rng.integers(photo.shape[0] - 32), rng.integers(photo.shape[1] - 32)
        patch = photo[top : top + 32, left : left + 32]
        if patch.std() > 0.1:
            found.append(patch.ravel())
    return np.array(found)


# %%
# The server subtracts what it sent from what came back, and divides by the learning rate. It knows both ends of the
# client's way, and takes a unit for active that was active at either.
pixels = patches(batch_size, seed=0)
inputs = torch.tensor((pixels - 0.45) / 0.25, dtype=torch.float32)
model = fully_connected(inputs.shape[1], width=width, random_state=0)
results = {}
for rate in rates:
    for n_epochs in epochs:
        before, after = fedavg_update(
            model, inputs, torch.arange(batch_size) % 10, learning_rate=rate, n_epochs=n_epochs, random_state=0
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            inverter = GradientInverter(random_state=0).fit(LayerGradient.from_update(before, after, rate))
        quality = psnr(pixels, inverter.inputs_ * 0.25 + 0.45).mean()
        results[rate, n_epochs] = quality, inverter.sparsity_matching_
        print(f"rate {rate}, {n_epochs} epochs: {quality:.1f} dB. {inverter.status_}")

# %%
# The sparsity matching falls as patterns drift apart; the batch comes back exactly while enough zeros are left.
figure, axes = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
for rate in rates:
    for axis, values in zip(axes, zip(*(results[rate, n] for n in epochs), strict=True), strict=True):
        axis.semilogx(epochs, values, marker="o", label=f"learning rate {rate}")
axes[0].set(xlabel="local epochs", ylabel="mean PSNR (dB)")
axes[1].set(xlabel="local epochs", ylabel="sparsity matching")
axes[0].legend()
figure.savefig("plot_fedavg.png", dpi=120)
