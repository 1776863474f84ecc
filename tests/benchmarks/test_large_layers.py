"""Time and memory at the largest layers of the papers: VGG16's features, and photographs of 720 x 720."""

import io
import resource
import time
import zipfile

import numpy as np
import pytest
import torch
from torch.nn.functional import cosine_similarity, cross_entropy

from sparsedl_fl import GradientInverter, LayerGradient
from sparsedl_fl.factorization import factorize
from sparsedl_fl.metrics import match_batches, psnr
from sparsedl_fl.simulation import client_gradient, fully_connected
from sparsedl_fl.vision import vgg

pytestmark = pytest.mark.benchmark
MEAN, STD = np.array([0.485, 0.456, 0.406], dtype=np.float32), np.array([0.229, 0.224, 0.225], dtype=np.float32)


def peak_gigabytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def test_features_of_vgg16(shared_data):
    with np.load(shared_data("imagenet_224.npz"), allow_pickle=False) as data:
        index = np.random.default_rng(0).choice(len(data["x"]), 16, replace=False)
        images = torch.tensor((data["x"][index] / 255 - MEAN) / STD, dtype=torch.float32).permute(0, 3, 1, 2)
        labels = torch.tensor(data["y"][index])
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


def test_photographs_of_720_by_720(shared_data):
    pillow = pytest.importorskip("PIL.Image")
    rng, crops = np.random.default_rng(0), []
    with zipfile.ZipFile(shared_data("imagenet_hires_jpegs.zip")) as archive:
        names = [name for name in archive.namelist() if name.lower().endswith((".jpg", ".jpeg"))]
        for name in [*names, *names]:
            photo = np.asarray(pillow.open(io.BytesIO(archive.read(name))).convert("RGB"))
            top, left = rng.integers(photo.shape[0] - 719), rng.integers(photo.shape[1] - 719)
            crops.append(photo[top : top + 720, left : left + 720] / np.float32(255))
    pixels = np.stack(crops)
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
