"""Small convolutional networks and pictures for the tests of this folder."""

import torch
from torch import nn
from torch.nn import functional

SIDE = 8


class Residual(nn.Module):
    """Functional calls, a residual sum, and the linear layer as a function of a parameter."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Conv2d(1, 32, 3, padding=1), nn.Conv2d(32, 32, 3, padding=1)
        self.fc = nn.Linear(32 * 16, 20)

    def forward(self, x):
        x = torch.relu(self.one(x))
        x = functional.max_pool2d(x + functional.relu(self.two(x)), 2)
        return functional.linear(x.flatten(1), self.fc.weight, self.fc.bias)


def front(*layers, features=32 * 16):
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(features, 20), nn.ReLU(), nn.Linear(20, 5))


def norm(kind):
    layer = kind(32) if kind is nn.BatchNorm2d else nn.GroupNorm(4, 32)
    if kind is nn.BatchNorm2d:
        layer.running_mean.normal_()
        layer.running_var.uniform_(0.5, 2.0)
    return layer


def conv(n_in=1, n_out=32, **more):
    return nn.Conv2d(n_in, n_out, 3, padding=1, **more)


NETWORKS = {
    "ReLU, max-pooling": lambda: (
        front(conv(1, 16), nn.ReLU(), nn.MaxPool2d(2), conv(16, 64), nn.ReLU(), features=1024),
        "6",
    ),
    "average pooling": lambda: (front(conv(), nn.ReLU(), nn.AvgPool2d(2)), "4"),
    "overlapping pooling": lambda: (front(conv(), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1)), "4"),
    "adaptive pooling": lambda: (front(conv(), nn.ReLU(), nn.AdaptiveMaxPool2d(4)), "4"),
    "batch norm": lambda: (front(conv(), norm(nn.BatchNorm2d), nn.ReLU(), nn.MaxPool2d(2)), "5"),
    "group norm": lambda: (front(conv(), norm(nn.GroupNorm), nn.ReLU(), nn.MaxPool2d(2)), "5"),
    "group norm, GELU": lambda: (
        front(conv(), norm(nn.GroupNorm), nn.GELU(), nn.AvgPool2d(2), conv(32, 32), norm(nn.GroupNorm), nn.GELU()),
        "8",
    ),
    "layer norm": lambda: (front(conv(), nn.LayerNorm([32, 8, 8]), nn.ReLU(), nn.MaxPool2d(2)), "5"),
    "stride, groups": lambda: (
        front(nn.Conv2d(1, 32, 5, stride=2, padding=2), nn.LeakyReLU(0.1), conv(32, 32, groups=4), nn.ReLU()),
        "5",
    ),
    "dilation, SiLU": lambda: (
        front(nn.Conv2d(1, 8, 3, padding=2, dilation=2), nn.SiLU(), features=8 * 64),
        "3",
    ),
    "tanh": lambda: (front(conv(), nn.Tanh(), nn.MaxPool2d(2)), "4"),
    "linear first": lambda: (
        nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 20), nn.ReLU(), nn.Linear(20, 5)),
        "3",
    ),
    "functional, residual": lambda: (Residual(), "fc"),
}


def network(name, seed=0):
    """Return a network and the layer that is fed the features."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model, layer = NETWORKS[name]()
    return model.double().eval(), layer


def pictures(b, seed=3, channels=1, side=SIDE):
    """Return smooth random pictures, as photographs are."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn((b, channels, side, side), generator=generator, dtype=torch.float64)
    return 2 * functional.avg_pool2d(drawn, 3, stride=1, padding=1) + 0.3 * drawn


def client(model, layer, x):
    """Return the features of pictures, the gradient at them, and the gradients that a client sends."""
    labels = torch.arange(len(x)) % 5
    found = {}

    def keep(_, given, output):
        found["features"] = given[0]

    module = model.get_submodule(layer)
    if isinstance(model, Residual):
        inside = torch.relu(model.one(x))
        features = functional.max_pool2d(inside + torch.relu(model.two(inside)), 2).flatten(1)
        outputs = model.fc(features)
    else:
        handle = module.register_forward_hook(keep)
        outputs = model(x)
        handle.remove()
        features = found["features"]
    loss = functional.cross_entropy(outputs, labels)
    back = torch.autograd.grad(loss, features, retain_graph=True)[0]
    gradients = dict(
        zip(dict(model.named_parameters()), torch.autograd.grad(loss, list(model.parameters())), strict=True)
    )
    return features.detach().numpy(), back.numpy(), gradients
