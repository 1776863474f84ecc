"""Deeper layers: every layer leaks
=================================

Each linear layer before a ReLU gives away its own inputs: the activations of the layer before, to the last digit. They
are sparse too, so that a layer narrower than twice the batch can still be read from the other side.
"""

# %%
import os

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn

from sparsedl_fl.audit import audit_model
from sparsedl_fl.metrics import match_batches
from sparsedl_fl.simulation import client_gradient

SMALL = bool(os.environ.get("SPARSEDL_SMALL"))
batch_size, widths = (6, (100, 100, 15)) if SMALL else (30, (400, 400, 400, 60))

# %%
# A network whose last hidden layer is only twice as wide as the batch.
torch.manual_seed(0)
sizes = [300, *widths]
layers = [part for size in zip(sizes[:-1], sizes[1:], strict=True) for part in (nn.Linear(*size), nn.ReLU())]
model = nn.Sequential(*layers, nn.Linear(widths[-1], 10))
batch = torch.randn(batch_size, sizes[0])
gradient = client_gradient(model, batch, torch.arange(batch_size) % 10)

# %%
# One call attacks them all.
audits = audit_model(model, gradient)
for name, audit in audits.items():
    print(f"layer {name}: {audit.reason}")

# %%
# The true inputs of each layer, to compare.
true, inputs = {}, batch
for name, module in model.named_children():
    true[name] = inputs.detach().numpy().astype(float)
    inputs = module(inputs)

attacked = [name for name, audit in audits.items() if audit.inverter is not None]
figure, axes = plt.subplots(1, len(attacked), figsize=(3 * len(attacked), 3), layout="constrained", sharey=True)
for axis, name in zip(axes, attacked, strict=True):
    inverter = audits[name].inverter
    order = match_batches(true[name], inverter.inputs_).order
    error = np.abs(true[name] - inverter.inputs_[order]).mean(axis=1)
    axis.semilogy(np.sort(np.maximum(error, 1e-16)), ".")
    axis.set(title=f"layer {name}\n{inverter.recovered_.sum()} of {batch_size} certified", xlabel="sample")
axes[0].set_ylabel("mean absolute error of the input")
figure.savefig("plot_deeper_layers.png", dpi=120)
