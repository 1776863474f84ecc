"""Convolutional networks: the pictures themselves
===============================================

The first linear layer of a convolutional network gives away its inputs, the features, exactly. Where these are more
than the numbers of a picture, the picture follows: by Gauss-Newton steps on the same network, whose kinks are smoothed
first and then sharpened. The gradients of the convolutions, to which nothing was fitted, prove it.
"""

# %%
import os

import matplotlib.pyplot as plt
import numpy as np
import torch

from sparsedl_fl.audit import audit_model, example
from sparsedl_fl.metrics import match_batches
from sparsedl_fl.models import inspect_model
from sparsedl_fl.simulation import client_gradient

batch_size = 3 if os.environ.get("SPARSEDL_SMALL") else 8

# %%
# A convolutional classifier of digits, and what can be said of it before any search.
digits, labels = example.records()
torch.manual_seed(0)
model = example.convolutional()
for row in inspect_model(model, digits[:1]):
    print(f"{row.name}: {row.behind or row.obstacle}")

# %%
# The private batch, the client's gradient, and the audit.
private = np.random.default_rng(0).choice(len(digits), batch_size, replace=False)
gradient = client_gradient(model, digits[private], labels[private])
audit = audit_model(model, gradient, example=digits[:1])
print(audit)
print(audit["0, 3"].reason)

# %%
# What was recovered, beside what was private. The expected errors are far below what an eye can see.
batch = audit["0, 3"].batch
match = match_batches(digits[private].flatten(1).numpy(), batch.inputs)
print(
    f"expected errors {batch.errors.max():.1g} and less, true ones {np.sqrt(match.squared_errors.max()):.1g} and less"
)
figure, axes = plt.subplots(2, batch_size, figsize=(1.2 * batch_size, 2.6), layout="constrained")
for column, index in enumerate(private):
    axes[0, column].imshow(digits[index, 0].numpy(), cmap="gray")
    axes[1, column].imshow(batch.inputs[match.order[column]].reshape(8, 8), cmap="gray")
for axis in axes.flat:
    axis.axis("off")
axes[0, 0].set_title("private", loc="left", fontsize=9)
axes[1, 0].set_title("recovered", loc="left", fontsize=9)
figure.savefig("plot_pictures.png", dpi=120)
