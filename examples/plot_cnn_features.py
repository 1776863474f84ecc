"""Convolutional networks: features, then images
==============================================

The first fully connected layer of a VGG gives away its inputs, the features of the convolutions, exactly. From them an
optimisation over the pixels finds images with the same features. For VGG16 itself, ``vgg()`` with torchvision's weights
loaded, the first step takes ten seconds; here the network is small and its weights are random.
"""

# %%
import os

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_sample_images
from torch.nn.functional import cosine_similarity

from paper.models.vision import vgg
from sparsedl_fl import GradientInverter, LayerGradient
from sparsedl_fl.metrics import match_batches
from sparsedl_fl.reconstruction import invert_features
from sparsedl_fl.simulation import client_gradient

SMALL = bool(os.environ.get("SPARSEDL_SMALL"))
batch_size, size, n_iterations = (3, 32, 10) if SMALL else (8, 64, 400)
channels = ((8,), (8,)) if SMALL else ((32, 32), (64, 64))

# %%
# The private batch: patches of two photographs, and the client's gradient.
rng = np.random.default_rng(1)
found = []
while len(found) < batch_size:
    photo = load_sample_images().images[len(found) % 2] / 255.0
    top, left = rng.integers(photo.shape[0] - size), rng.integers(photo.shape[1] - size)
    if photo[top : top + size, left : left + size].std() > 0.15:
        found.append(photo[top : top + size, left : left + size])
images = torch.tensor((np.array(found) - 0.45) / 0.25, dtype=torch.float32).permute(0, 3, 1, 2)
model = vgg(channels, width=400 if SMALL else 2000, n_classes=10, random_state=0)
gradient = client_gradient(model, images, torch.arange(batch_size) % 10)

# %%
# Features, exactly.
inverter = GradientInverter(random_state=0).fit(LayerGradient.from_model(model, gradient, "classifier.0"))
true = model.extract(images).detach()
features = torch.tensor(inverter.inputs_[match_batches(true, inverter.inputs_).order], dtype=torch.float32)
print(inverter.status_)
print(f"cosine similarity of the features: {cosine_similarity(features, true).min():.6f} and more")

# %%
# Images with these features.
guesses = invert_features(
    model.extract, features, tuple(images.shape[1:]), n_iterations=n_iterations, variation_weight=0.5, random_state=0
)

# %%
figure, axes = plt.subplots(2, batch_size, figsize=(1.3 * batch_size, 2.8), layout="constrained")
for row, pictures in zip(axes, (images, guesses), strict=True):
    for axis, picture in zip(row, pictures, strict=True):
        axis.imshow((picture.permute(1, 2, 0) * 0.25 + 0.45).clamp(0, 1).numpy())
        axis.axis("off")
figure.suptitle("originals above, images from the recovered features below")
figure.savefig("plot_cnn_features.png", dpi=120)
