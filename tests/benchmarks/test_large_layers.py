"""Time and memory at the largest layers of the papers: VGG16's features, and photographs enlarged to 720 x 720."""

import resource
import time

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_images
from torch.nn.functional import cosine_similarity, cross_entropy

from paper.models.vision import vgg
from sparsedl_fl import GradientInverter, LayerGradient
from sparsedl_fl.lowrank.factorization import factorize
from sparsedl_fl.metrics import match_batches, psnr
from sparsedl_fl.simulation import client_gradient, fully_connected

pytestmark = pytest.mark.benchmark
MEAN, STD = np.array([0.485, 0.456, 0.406], dtype=np.float32), np.array([0.229, 0.224, 0.225], dtype=np.float32)


def peak_gigabytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def crops(n, side):
    """Return crops of the photographs that ship with scikit-learn, enlarged to twice their size, in [0, 1]."""
    rng, made = np.random.default_rng(0), []
    photographs = [Image.fromarray(photograph) for photograph in load_sample_images().images]
    for _ in range(n):
        photograph = photographs[rng.integers(len(photographs))]
        size = side // 2
        left, top = (int(rng.integers(length - size)) for length in photograph.size)
        piece = photograph.crop((left, top, left + size, top + size)).resize((side, side), Image.Resampling.LANCZOS)
        made.append(np.asarray(piece, dtype=np.float32) / 255)
    return np.stack(made)


def test_features_of_vgg16():
    images = torch.tensor((crops(16, 224) - MEAN) / STD, dtype=torch.float32).permute(0, 3, 1, 2)
    labels = torch.from_numpy(np.random.default_rng(0).integers(1000, size=16))
    model = vgg(random_state=0)
    with torch.no_grad():
        features = torch.cat([model.extract(part) for part in images.split(4)])
    parameters = dict(model.classifier.named_parameters())
    loss = cross_entropy(model.classifier(features), labels)
    gradient = dict(zip(parameters, torch.autograd.grad(loss, list(parameters.values())), strict=True))
    given = LayerGradient.from_model(model.classifier, gradient, 0)
    del gradient
    start = time.perf_counter()
    factors = factorize(given)
    factorised = time.perf_counter() - start
    inverter = GradientInverter(random_state=0).fit(given)
    total = time.perf_counter() - start - factorised
    recovered = torch.from_numpy(inverter.inputs_[match_batches(features, inverter.inputs_).order])
    similarity = cosine_similarity(recovered, features.double())
    print(
        f"\nVGG16 25088 x 4096, b = 16: factorisation {factorised:.1f} s, all {total:.1f} s, process at most "
        f"{peak_gigabytes():.1f} GB; cosine similarity {similarity.min():.6f} and more, "
        f"{inverter.recovered_.sum()} certified"
    )
    assert factors.batch_size == 16
    assert similarity.min() > 0.99


def test_photographs_of_720_by_720():
    pixels = crops(20, 720)
    inputs = torch.tensor((pixels - MEAN) / STD).flatten(1)
    model = fully_connected(inputs.shape[1], width=200, random_state=0)
    gradient = client_gradient(model, inputs, torch.arange(len(inputs)) % 10)
    given = LayerGradient.from_model(model, gradient)
    start = time.perf_counter()
    inverter = GradientInverter(random_state=0).fit(given)
    seconds = time.perf_counter() - start
    recovered = (inverter.inputs_.reshape(pixels.shape) * STD + MEAN).reshape(len(pixels), -1)
    quality = psnr(pixels.reshape(len(pixels), -1), recovered)
    print(
        f"\n720 x 720 x 3, b = {len(pixels)}, m = 200: {seconds:.1f} s, worst {quality.min():.0f} dB, "
        f"{inverter.recovered_.sum()} certified; process at most {peak_gigabytes():.1f} GB with model and images, "
        f"the client's gradient is {given.weight_grad.nbytes / 1e9:.1f} GB"
    )
    assert quality.min() > 90
