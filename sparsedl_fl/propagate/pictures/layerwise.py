"""A first guess of pictures, layer by layer back through convolutions without pooling, for a whole batch at once.

Behind a layer whose outputs ``y`` and their gradients ``K`` are known, activation and slopes give its pre-activations
``Z = W * x`` and theirs; then ``x`` is the solution of linear equations: ``Z`` where units are active, and the gradient
of the layer's weights, which is linear in all ``x`` of the batch. Features are known, and so are the gradients at them.

References
----------
Zhu and Blaschko, "R-GAP: Recursive gradient attack on privacy", ICLR 2021, for one record; the batch is ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, lsmr
from torch.nn import functional
from torch.nn.grad import conv2d_input, conv2d_weight
from torch.overrides import TorchFunctionMode

from sparsedl_fl.propagate.pictures.front import Front
from sparsedl_fl.propagate.pictures.given import Given

__all__ = ["pictures_by_layers"]

ACCURACY, MOST_PRODUCTS = 1e-13, 4000
"""Of the linear equations of a layer: two digits more than a gradient in single precision has."""

MOST_UNKNOWNS = 2**18
"""Numbers that a layer is fed, of the whole batch, up to which its equations are solved. (Chosen: 9,216, of 4 digits
behind R-GAP's network, took 2 ms a product; more were not tried.)"""

OFF = 1e-4
"""Activation over the root mean square of all, up to which a unit of ReLU counts as inactive: solutions have errors.
Chosen, not varied."""

RESHAPES = ("flatten", "reshape", "view", "contiguous")
"""Calls that hand numbers on in another shape."""


@dataclass(frozen=True, eq=False)
class _Layer:
    """A convolution of a front, and the slope of its activation below zero: 0 for ReLU, 1 for none."""

    weight: torch.Tensor
    bias: torch.Tensor | None
    given: Mapping[str, Any]
    n_in: tuple[int, ...]
    n_out: tuple[int, ...]
    slope: float


class _Recorder(TorchFunctionMode):
    """Records convolutions and activations of a run that is a chain of them; ``is_chain`` is false for any other."""

    def __init__(self, start: torch.Tensor) -> None:
        super().__init__()
        self.at, self.is_chain = start, True
        self.layers: list[_Layer] = []

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        found = function(*args, **kwargs)
        if isinstance(found, torch.Tensor) and any(value is self.at for value in args[:1]):
            self._take(getattr(function, "__name__", ""), args, kwargs, found)
        elif isinstance(found, torch.Tensor) and found.is_floating_point() and found.shape[:1] == self.at.shape[:1]:
            self.is_chain = False  # something else is computed from the batch
        return found

    def _take(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], found: torch.Tensor) -> None:
        if name == "conv2d":
            names = ("weight", "bias", "stride", "padding", "dilation", "groups")
            said = dict(zip(names, args[1:], strict=False)) | kwargs
            shapes = tuple(self.at.shape[1:]), tuple(found.shape[1:])
            given = {key: said[key] for key in names[2:] if key in said}
            self.is_chain &= not isinstance(said.get("padding"), str)
            self.layers.append(_Layer(said["weight"], said.get("bias"), given, *shapes, 1.0))
        elif name in ("relu", "leaky_relu") and self.layers and self.layers[-1].slope == 1:
            said = kwargs.get("negative_slope", args[1] if len(args) > 1 else 0.01)
            slope = 0.0 if name == "relu" else float(said)
            self.layers[-1] = _Layer(**{**vars(self.layers[-1]), "slope": slope})
        elif name not in (*RESHAPES, "dropout", "__get__"):
            self.is_chain = False
        if name != "__get__":
            self.at = found


def pictures_by_layers(front: Front, given: Given, held_out: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
    """Return pictures (b, n_pixels) by one linear system a layer; None where the front is no chain of convolutions.

    Parameters
    ----------
    front : Front
    given : Given
        With the gradients at the features, and those of the front.
    held_out : mapping of str to torch.Tensor of bool
        Entries of the gradients that are no equations, by parameter.
    """
    if given.sent_back is None or not given.gradients:
        return None
    layers = _chain_of(front, len(given.features))
    names = {id(tensor): name for name, tensor in front.parameters.items()}
    sent = [given.gradients.get(names.get(id(layer.weight), "")) for layer in layers]
    b = len(given.features)
    most = b * max((int(np.prod(layer.n_in)) for layer in layers), default=0)
    if not layers or any(tensor is None for tensor in sent) or most > MOST_UNKNOWNS:
        return None
    y, K = (part.reshape(b, *layers[-1].n_out) for part in (given.features, given.sent_back))
    for layer, gradient in zip(reversed(layers), reversed(sent), strict=True):
        used = ~held_out[names[id(layer.weight)]]
        least = OFF * float(y.square().mean().sqrt()) if layer.slope == 0 else 0.0
        is_active = y > least if layer.slope != 1 else torch.ones_like(y, dtype=torch.bool)
        K = torch.where(is_active, K, layer.slope * K)
        n_known = int(used.sum()) + (int(is_active.sum()) if layer.slope == 0 else y.numel())
        if n_known < b * int(np.prod(layer.n_in)):
            return None
        y = _fed(layer, y, is_active, K, gradient, used)
        K = conv2d_input(_shape_fed(layer, b), layer.weight, K, **layer.given)
    return y.reshape(b, -1)


def _fed(
    layer: _Layer,
    y: torch.Tensor,
    is_active: torch.Tensor,
    K: torch.Tensor,
    gradient: torch.Tensor,
    used: torch.Tensor,
) -> torch.Tensor:
    """Return what a layer was fed, (b, ...), by its outputs ``y``, the gradients ``K`` before its activation, its own.

    Each kind of equations has the weight of its size.
    """
    shape, weight = _shape_fed(layer, len(y)), layer.weight
    z = torch.where(is_active, y, y / layer.slope if layer.slope else torch.zeros_like(y))
    is_known = is_active if layer.slope == 0 else torch.ones_like(is_active)
    shift = 0.0 if layer.bias is None else layer.bias[:, None, None]
    goal = torch.where(is_known, z - shift, 0.0), torch.where(used, gradient, 0.0)
    scales = [1 / max(float(part.norm()), np.finfo(float).tiny) for part in goal]
    n_first = y.numel()

    def along(vector: np.ndarray) -> np.ndarray:
        x = torch.from_numpy(np.ascontiguousarray(vector)).to(y.device).reshape(shape)
        outputs = torch.where(is_known, functional.conv2d(x, weight, **layer.given), 0.0)
        own = torch.where(used, conv2d_weight(x, weight.shape, K, **layer.given), 0.0)
        return torch.cat([scales[0] * outputs.flatten(), scales[1] * own.flatten()]).cpu().numpy()

    def back(vector: np.ndarray) -> np.ndarray:
        both = torch.from_numpy(np.ascontiguousarray(vector)).to(y.device)
        outputs = torch.where(is_known, scales[0] * both[:n_first].reshape(y.shape), 0.0)
        own = torch.where(used, scales[1] * both[n_first:].reshape(weight.shape), 0.0)
        found = conv2d_input(shape, weight, outputs, **layer.given) + conv2d_input(shape, own, K, **layer.given)
        return found.flatten().cpu().numpy()

    n = int(np.prod(shape))
    system = LinearOperator((n_first + weight.numel(), n), matvec=along, rmatvec=back, dtype=np.float64)
    wanted = torch.cat([scale * part.flatten() for scale, part in zip(scales, goal, strict=True)]).cpu().numpy()
    found = lsmr(system, wanted, atol=ACCURACY, btol=ACCURACY, conlim=0, maxiter=MOST_PRODUCTS)[0]
    return torch.from_numpy(found).to(y.device).reshape(shape)


def _shape_fed(layer: _Layer, b: int) -> tuple[int, ...]:
    """Return the shape of a layer's inputs of a batch."""
    return (b, *layer.n_in)


def _chain_of(front: Front, b: int) -> list[_Layer]:
    """Return the layers of a front that is a chain of convolutions with ReLU, LeakyReLU or none; else an empty list."""
    seen = _Recorder(torch.zeros((b, front.n_pixels), dtype=torch.float64, device=front.device))
    with torch.no_grad():
        features = front(seen.at, seen)
    is_whole = bool(seen.layers) and features.numel() == b * int(np.prod(seen.layers[-1].n_out))
    return seen.layers if seen.is_chain and is_whole else []
