"""The pictures of "How it works", drawn from a real gradient by `python docs/figures.py`."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.colors import TwoSlopeNorm

from sparsedl_fl import GradientInverter, LayerGradient
from sparsedl_fl.simulation import client_gradient, fully_connected

IMAGES = Path(__file__).with_name("images")


def drawn(axis, matrix, title, rows, columns):
    """Draw a matrix, zeros white."""
    most = np.abs(matrix).max()
    axis.imshow(matrix, cmap="RdBu", norm=TwoSlopeNorm(0, -most, most), aspect="auto", interpolation="nearest")
    axis.set(xticks=[], yticks=[], title=title, ylabel=rows, xlabel=columns)


batch = torch.randn(6, 30, generator=torch.Generator().manual_seed(0))
model = fully_connected(30, width=40, random_state=0)
gradient = client_gradient(model, batch, torch.arange(6))
inverter = GradientInverter(random_state=0).fit(LayerGradient.from_model(model, gradient))
assert inverter.recovered_.all()
weight_grad = gradient["0.weight"].numpy() if "0.weight" in gradient else next(iter(gradient.values())).numpy()
columns, inputs = inverter.preactivation_gradients_, inverter.inputs_

figure, axes = plt.subplots(1, 3, figsize=(9, 3.4), width_ratios=(3, 1, 3), layout="constrained")
drawn(axes[0], weight_grad, "what the server sees: G", "40 units", "30 features")
drawn(axes[1], columns, "= D", "40 units", "6 records")
drawn(axes[2], inputs, "times X", "6 records", "30 features")
axes[1].set_xlabel("6 records")
figure.savefig(IMAGES / "sum-of-records.png", dpi=110)
plt.close(figure)

# Entries of a combination of the rank-6 factors: the right one has exact zeros, any other has none.
left = np.linalg.svd(weight_grad)[0][:, :6]
wrong = left @ np.random.default_rng(0).standard_normal(6)
figure, axis = plt.subplots(figsize=(6.5, 3.4), layout="constrained")
for values, label in ((wrong, "some combination"), (columns[:, 0], "the column of a record")):
    values = np.sort(np.abs(values) / np.abs(values).max())
    axis.semilogy(np.arange(1, 41), np.maximum(values, 1e-9), ".-", label=label)
axis.set(xlabel="units, sorted", ylabel="size of the entry (below 1e-9: drawn there)")
axis.legend()
figure.savefig(IMAGES / "zeros-beyond-chance.png", dpi=110)
