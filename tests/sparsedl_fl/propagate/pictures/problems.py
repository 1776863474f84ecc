"""Convolutional models and clients that may mislead: a certified picture has to be one of the batch."""

from dataclasses import dataclass

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy, one_hot

N_CLASSES = 5
DATA = ("digits", "digits", "black and white", "noise", "ramps", "flat", "saturated")
NETWORKS = ("plain", "plain", "strided", "average", "maximum", "group norm", "batch norm", "residual", "depthwise")
LIES = ("half", "eight bits", "noise", "wrong weights", "wrong convolutions", "dropout", "duplicates", "dead filters")
LIES += ("another batch", "steps", "smoothed labels", "trained")


@dataclass
class Client:
    """A model as the server has it, what was sent, and the batch."""

    model: nn.Module
    gradients: dict
    pictures: torch.Tensor
    described: str


class Residual(nn.Module):
    """A convolution added to what it is fed."""

    def __init__(self, n, activation):
        super().__init__()
        self.inner = nn.Sequential(nn.Conv2d(n, n, 3, padding=1), activation())

    def forward(self, x):
        return x + self.inner(x)


def network(kind, channels, activation, width, *, dropout=0.0):
    """Return a classifier of pictures of 8 x 8 with one channel."""
    first, second = nn.Conv2d(1, channels, 3, padding=1), nn.Conv2d(channels, channels, 3, padding=1)
    layers = {
        "plain": [first, activation(), second, activation()],
        "strided": [nn.Conv2d(1, 4 * channels, 4, stride=2, padding=1), activation()],
        "average": [first, activation(), nn.AvgPool2d(2), second, activation()],
        "maximum": [first, activation(), nn.MaxPool2d(2), second, activation()],
        "group norm": [first, nn.GroupNorm(2, channels), activation(), second, activation()],
        "batch norm": [first, nn.BatchNorm2d(channels), activation(), second, activation()],
        "residual": [first, activation(), Residual(channels, activation)],
        "depthwise": [first, activation(), nn.Conv2d(channels, channels, 3, groups=channels, padding=1), activation()],
    }[kind]
    front = nn.Sequential(*layers, nn.Dropout(dropout), nn.Flatten())
    n_features = front(torch.zeros(1, 1, 8, 8)).shape[1]
    return nn.Sequential(front, nn.Linear(n_features, width), activation(), nn.Linear(width, N_CLASSES))


def pictures(kind, b, rng):
    """Return pictures of shape (b, 1, 8, 8)."""
    x, y = np.mgrid[:8, :8] / 7
    digits = load_digits().images / 16
    of = {
        "digits": lambda: digits[rng.integers(len(digits))],
        "black and white": lambda: digits[rng.integers(len(digits))] > 0.5,
        "noise": lambda: rng.standard_normal((8, 8)),
        "ramps": lambda: np.tensordot(rng.standard_normal(3), [x, y, x * y], axes=1),
        "flat": lambda: np.full((8, 8), rng.random()),
        "saturated": lambda: np.clip(1.5 * rng.standard_normal((8, 8)) + 0.5, 0, 1),
    }[kind]
    return torch.from_numpy(np.stack([of() for _ in range(b)])).float()[:, None]


def client(seed):
    """Return the client of a seed."""
    rng = np.random.default_rng(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        data, kind = str(rng.choice(DATA)), str(rng.choice(NETWORKS))
        lie = str(rng.choice(("nothing", *LIES), p=[0.28, *[0.06] * 12]))
        activation = [nn.ReLU, nn.ReLU, nn.GELU, nn.LeakyReLU, nn.Tanh][int(rng.integers(5))]
        channels, width, b = 2 * int(rng.integers(1, 5)), int(rng.choice([40, 80])), int(rng.integers(1, 6))
        model = network(kind, channels, activation, width, dropout=0.2 if lie == "dropout" else 0.0)
        batch, labels = pictures(data, b, rng), torch.from_numpy(rng.integers(N_CLASSES, size=b))
        if kind == "batch norm":  # statistics of some data
            model(pictures("digits", 64, rng))
        model.train(lie == "dropout")
        sent, size = _sent(model, batch, labels, lie, rng)
    described = (
        f"{seed}: {data}, {kind}, {channels} channels, {activation.__name__}, {width}, batch {b}, {lie} {size:.1g}"
    )
    return Client(model, sent, batch, described)


def _gradient(model, batch, labels):
    loss = cross_entropy(model(batch), labels)
    names, parameters = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))


def _sent(model, batch, labels, lie, rng):
    """Return what a client sends, and a number that says how much it lies; the model may change after."""
    size = float(10 ** rng.uniform(-6, -0.5))
    if lie == "duplicates":
        batch, labels = torch.cat([batch, batch[:1]]), torch.cat([labels, labels[:1]])
    if lie == "dead filters":
        with torch.no_grad():
            model[0][0].bias[: len(model[0][0].bias) // 2] = -100.0
    if lie in ("steps", "trained"):
        _train(model, batch, labels, int(rng.integers(5, 60)))
    if lie == "smoothed labels":
        labels = 0.9 * one_hot(labels, N_CLASSES).float() + 0.1 / N_CLASSES
    sent = _gradient(model, batch, labels)
    if lie == "half":
        sent = {
            name: part.to(torch.bfloat16 if rng.random() < 0.5 else torch.float16).float()
            for name, part in sent.items()
        }
    if lie == "eight bits":
        sent = {
            name: (part * (127 / part.abs().max())).round() * (part.abs().max() / 127) for name, part in sent.items()
        }
    if lie == "noise":
        sent = {
            name: part + size * part.square().mean().sqrt() * torch.randn(part.shape) for name, part in sent.items()
        }
    if lie == "steps":
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        _train(model, batch, labels, 3)
        after = model.state_dict()
        sent = {name: (before[name] - after[name]) / 0.05 for name in sent}
        model.load_state_dict(before)
    if lie == "another batch":
        other = _gradient(model, batch.flip(-1), labels)
        sent = {name: other[name] if name.startswith("0.") else part for name, part in sent.items()}
    if lie.startswith("wrong"):
        with torch.no_grad():
            for part in (model if lie == "wrong weights" else model[0]).parameters():
                part += size * part.square().mean().sqrt() * torch.randn(part.shape)
    return sent, size


def _train(model, batch, labels, n_steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(n_steps):
        optimizer.zero_grad()
        cross_entropy(model(batch), labels).backward()
        optimizer.step()
    optimizer.zero_grad()


def judged(one, audit):
    """Return what is certified and not in the batch, beyond three times its expected error, and the largest ratio."""
    true, wrong, worst = one.pictures.flatten(1).double(), [], 0.0
    for sample in audit.samples:
        if sample.kind == "inputs of the model":
            distance = (true - torch.from_numpy(sample.values.reshape(1, -1))).square().mean(dim=1).sqrt().min()
            ratio = float(distance) / max(sample.error, 1e-9)
            worst = max(worst, ratio)
            wrong += [f"off by {float(distance):.1e}, expected {sample.error:.1e}"] if ratio > 3 else []
    return wrong, worst
