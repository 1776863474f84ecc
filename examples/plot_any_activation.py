"""Any activation: pictures behind GELU
====================================

GELU is never off, so that no gradient is sparse. But the gradient of the next layer spans the activations of the batch,
every hidden layer behind adds equations, and the rest of the network says what gradient a candidate and a label return.
"""

# %%
import os

import matplotlib.pyplot as plt
import torch
from torch import nn

from sparsedl_fl import GradientInverter, LayerGradient
from sparsedl_fl.demo import natural_patches
from sparsedl_fl.directions import ActivationDirections
from sparsedl_fl.metrics import match_batches
from sparsedl_fl.simulation import client_gradient

SMALL = bool(os.environ.get("SPARSEDL_SMALL"))
width = 40 if SMALL else 200
SETTINGS = {
    "the next layer's gradient": (8 if SMALL else 60, True),
    "this layer's gradient alone": (4 if SMALL else 40, False),
    "more than half the width": (22 if SMALL else 110, True),
}
"""What the server uses, how many pictures there are, and whether gradients of other layers are among it."""

# %%
# The private pictures: pieces of two photographs.
biggest = max(batch_size for batch_size, _ in SETTINGS.values())
private, mean, std = natural_patches(biggest, random_state=0)

# %%
# A network of GELUs and what one client sends for each setting.
torch.manual_seed(0)
sizes = [private[0].size, width, width, width]
layers = [part for size in zip(sizes[:-1], sizes[1:], strict=True) for part in (nn.Linear(*size), nn.GELU())]
model = nn.Sequential(*layers, nn.Linear(width, 10))

results = {}
for name, (batch_size, uses_others) in SETTINGS.items():
    pictures, labels = private[:batch_size], torch.arange(batch_size) % 10
    batch = torch.tensor((pictures - mean) / std, dtype=torch.float32).flatten(1)
    given = LayerGradient.from_model(model, client_gradient(model, batch, labels))
    inverter = GradientInverter(ActivationDirections(use_next_layer=uses_others), random_state=0).fit(given)
    match = match_batches(batch.double().numpy(), inverter.inputs_)
    are_right = inverter.labels_[match.order] == labels.numpy()
    results[name] = pictures, inverter, match.order
    print(f"{batch_size} behind {width} GELUs, {name}: {inverter.recovered_.sum()} certified, {are_right.sum()} labels")

# %%
figure, axes = plt.subplots(2 * len(SETTINGS), 10, figsize=(9, 6.2), layout="constrained", squeeze=False)
for row, (name, (pictures, inverter, order)) in enumerate(results.items()):
    recovered = inverter.inputs_[order].reshape(pictures.shape) * std + mean
    for column, axis in enumerate(axes[2 * row : 2 * row + 2].T):
        for part, shown in zip(axis, (pictures, recovered), strict=True):
            part.axis("off")
            if column < len(shown):
                part.imshow(shown[column].clip(0, 1))
    axes[2 * row, 4].set_title(f"{len(pictures)} pictures: {name}, and as they came back", fontsize=9)
figure.savefig("plot_any_activation.png", dpi=120)
