"""The head and the widest layer: what they give away of all others
================================================================

Whatever a classifier looks like inside, it ends in a linear layer and a loss: from that layer's gradient come the
features and *all labels*, up to half as many as there are classes. And from one layer whose whole batch is known every
layer before it is peeled, down to the pixels, even where it is too narrow to be attacked.
"""

# %%
import os

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn

from paper.models.vision import resnet
from sparsedl_fl import GradientInverter, LayerGradient
from sparsedl_fl.audit import audit_model
from sparsedl_fl.demo import natural_patches
from sparsedl_fl.metrics import match_batches
from sparsedl_fl.simulation import client_gradient

SMALL = bool(os.environ.get("SPARSEDL_SMALL"))
n_pictures, n_classes = (4, 20) if SMALL else (24, 100)
rng = np.random.default_rng(0)


def draw(n, seed):
    """Return pieces of two photographs as the networks take them, (n, 32, 32, 3), labels, and their mean and spread."""
    pieces, mean, std = natural_patches(n, random_state=seed)
    labels = torch.from_numpy(rng.integers(n_classes, size=n))
    return torch.tensor((pieces - mean) / std, dtype=torch.float32), labels, mean, std


# %%
# The last layer of a ResNet: features and labels.
model = resnet(n_features=128, n_classes=n_classes, random_state=0)
pictures, labels, *_ = draw(n_pictures, seed=0)
inputs = pictures.permute(0, 3, 1, 2)
head = LayerGradient.from_model(model, client_gradient(model, inputs, labels), "head", example=inputs[:1])
inverter = GradientInverter(random_state=0).fit(head)
true = model.extract(inputs).detach().double().numpy()
order = match_batches(true, inverter.inputs_).order
print(f"head: {inverter.status_}; {np.mean(inverter.labels_[order] == labels.numpy()):.0%} of the labels")

# %%
# A network whose first layer is hardly wider than the batch: the widest is attacked, and the first peeled.
widths, n_more = ((30, 120, 30), 24) if SMALL else ((100, 600, 100), 90)
more, classes, mean, std = draw(n_more, seed=1)
flat = more.flatten(1)
sizes = [flat.shape[1], *widths]
torch.manual_seed(0)
layers = [part for size in zip(sizes[:-1], sizes[1:], strict=True) for part in (nn.Linear(*size), nn.ReLU())]
deep = nn.Sequential(*layers, nn.Linear(widths[-1], n_classes))
audit = audit_model(deep, client_gradient(deep, flat, classes), max_seconds=120)
print("\n".join(f"layer {name}: {layer.n_certified} of {n_more}, {layer.source}" for name, layer in audit.items()))

# %%
figure, (above, middle, below) = plt.subplots(3, 1, figsize=(9, 5), layout="constrained")
recovered = inverter.inputs_[order]
above.plot(true.ravel(), recovered.ravel(), ".", markersize=2)
above.set(title=f"{n_pictures} inputs of a ResNet's head: features against the true ones", xlabel="true")
back = audit["0"].batch.inputs[match_batches(flat.double().numpy(), audit["0"].batch.inputs).order]
for axis, shown in ((middle, more.numpy()), (below, back.reshape(more.shape))):
    axis.imshow(np.concatenate(shown[:12] * std + mean, axis=1).clip(0, 1))
    axis.axis("off")
middle.set_title(f"{n_more} pictures behind {widths[0]} units, and as they came back by way of {widths[1]}")
figure.savefig("plot_head_and_peeling.png", dpi=120)
