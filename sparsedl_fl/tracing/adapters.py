"""Adapters of low rank (LoRA) beside frozen linear layers: found by what their modules compute, and merged."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import permutations, product

import torch
from torch import nn
from torch.func import functional_call

from sparsedl.process import neutral_modes
from sparsedl_fl.tracing.naming import plain_name
from sparsedl_fl.tracing.uses import transposed_if

__all__ = ["AdaptedLinear", "Adapter", "merge_adapters"]

EXACT = 1e-6
"""Relative distance up to which a module computes its layer and a multiple of the product, in double precision."""

N_TESTED = 4
"""Inputs on which that is tested."""


@dataclass(frozen=True)
class Adapter:
    """A frozen linear layer with a product of two thin matrices beside it: ``z = W x + b + scale * B A x``.

    Attributes
    ----------
    name : str
        Plain name of the module that holds all of it.
    weight, bias : str
        Plain names of ``W`` (m, n) and ``b``; ``bias`` is empty where there is none.
    first, second : str
        Plain names of ``A`` (r, n) and ``B`` (m, r).
    is_weight_transposed, is_first_transposed, is_second_transposed : bool
        Whether each is stored the other way round.
    scale : float
        The factor on the product.
    """

    name: str
    weight: str
    bias: str
    first: str
    second: str
    is_weight_transposed: bool
    is_first_transposed: bool
    is_second_transposed: bool
    scale: float

    def factors(self, tensors: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return ``A`` (r, n) and ``B`` (m, r), or their gradients, in double precision, of tensors by plain name."""
        first, second = (tensors[name].detach().cpu().double() for name in (self.first, self.second))
        return transposed_if(first, self.is_first_transposed), transposed_if(second, self.is_second_transposed)


class AdaptedLinear(nn.Linear):
    """A linear layer with its adapter merged into its weight.

    Attributes
    ----------
    rank : int
        That of the product, ``r``.
    has_second : bool
        Whether ``B`` is anything but zeros, as it is before the first step: else ``A`` has no gradient.
    """

    def __init__(self, weight: torch.Tensor, bias: nn.Parameter | None, second: torch.Tensor) -> None:
        super().__init__(weight.shape[1], weight.shape[0], bias=False, device="meta")
        self.weight, self.bias = nn.Parameter(weight), bias
        self.rank, self.has_second = second.shape[1], bool(second.any())


@neutral_modes()
def merge_adapters(model: nn.Module, sent: Collection[str] | None = None) -> tuple[nn.Module, tuple[Adapter, ...]]:
    """Return a model with each adapter merged into its layer, and the adapters; the model itself where it has none.

    A module counts as one that computes a linear layer and a multiple of a product of two thin matrices, whatever its
    class and names: PEFT's LoRA (also scaled by the root of the rank) and modules of one's own. A layer whose weight
    is trained itself stays as it is. The merged layer has the name of the module.

    Parameters
    ----------
    model : torch.nn.Module
        The model; it is not changed. All other tensors are shared with it.
    sent : collection of str or None, default=None
        Plain names of the parameters whose gradient the client sends; None for those that require one.

    Returns
    -------
    model : torch.nn.Module
        With an `AdaptedLinear` in the place of each.
    adapters : tuple of Adapter
        In the order of the modules.
    """
    tensors = {plain_name(name): tensor for name, tensor in model.named_parameters()}
    sent = {name for name, tensor in tensors.items() if tensor.requires_grad} if sent is None else sent
    found = {name: adapter for name, module in model.named_modules() if (adapter := _adapter_of(name, module))}
    # The smallest module of each: what contains nothing else computes the same.
    found = {
        name: adapter
        for name, adapter in found.items()
        if adapter.weight not in sent
        and not any(other != name and f"{other}.".startswith(f"{name}." if name else "") for other in found)
    }
    if not found:
        return model, ()
    shared = [*model.parameters(), *model.buffers()]
    merged = copy.deepcopy(model, {id(tensor): tensor for tensor in shared})
    for name, adapter in found.items():
        layer = _merged(adapter, tensors)
        layer.train(model.get_submodule(name).training)
        if not name:
            return layer, (adapter,)
        parent, _, own = name.rpartition(".")
        setattr(merged.get_submodule(parent), own, layer)
    return merged, tuple(found.values())


def _merged(adapter: Adapter, tensors: Mapping[str, nn.Parameter]) -> AdaptedLinear:
    stored = tensors[adapter.weight].detach()
    weight = transposed_if(stored.double(), adapter.is_weight_transposed)
    first, second = adapter.factors(tensors)
    weight = (weight + adapter.scale * (second @ first).to(stored.device)).to(stored.dtype)
    return AdaptedLinear(weight.contiguous(), tensors.get(adapter.bias), second)


def _adapter_of(name: str, module: nn.Module) -> Adapter | None:
    """Return the adapter that a module computes; None where it is none."""
    parameters = dict(module.named_parameters())
    matrices = {key: tensor for key, tensor in parameters.items() if tensor.ndim == 2 and tensor.numel()}
    vectors = [key for key, tensor in parameters.items() if tensor.ndim == 1]
    if len(matrices) != 3 or len(vectors) > 1 or len(parameters) != 3 + len(vectors):
        return None
    if not all(tensor.is_floating_point() for tensor in matrices.values()):
        return None
    weight = max(matrices, key=lambda key: matrices[key].numel())
    thin = [key for key in matrices if key != weight]
    generator = torch.Generator().manual_seed(0)
    drawn = {key: _drawn(tuple(matrices[key].shape), generator) for key in thin}
    values = {key: tensor.detach().cpu().double() for key, tensor in parameters.items()} | drawn
    own = f"{name}." if name else ""
    names = {key: plain_name(own + key) for key in parameters} | {"": ""}
    for (first, second), turns in product(permutations(thin), product((False, True), repeat=3)):
        W, A, B = (transposed_if(values[key], turn) for key, turn in zip((weight, first, second), turns, strict=True))
        if A.shape[1] != W.shape[1] or B.shape != (W.shape[0], A.shape[0]) or A.shape[0] >= min(W.shape):
            continue
        x = _drawn((N_TESTED, W.shape[1]), generator)
        z, beside = _moved(module, values, x), x @ A.T @ B.T
        if z is None or z.shape != beside.shape:
            continue
        left = z - x @ W.T
        scale = float((left * beside).sum() / (beside * beside).sum())
        if scale and (left - scale * beside).norm() <= EXACT * left.norm():
            bias = names[vectors[0] if vectors else ""]
            module_name = plain_name(own + "x")[:-2] if name else ""
            found = module_name, names[weight], bias, names[first], names[second]
            return Adapter(*found, turns[0], turns[1], turns[2], scale)
    return None


def _drawn(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def _moved(module: nn.Module, values: Mapping[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor | None:
    """Return by how much inputs move a module's outputs; None where it cannot be run on rows of numbers."""
    buffers = {
        key: tensor.cpu().double() if tensor.is_floating_point() else tensor.cpu()
        for key, tensor in module.named_buffers()
    }
    try:
        with _as_in_evaluation(module):
            outputs = functional_call(module, {**values, **buffers}, (torch.cat([x, torch.zeros_like(x[:1])]),))
    except Exception:  # a module may raise anything on what it was not made for
        return None
    if not isinstance(outputs, torch.Tensor) or outputs.ndim != 2 or outputs.dtype != torch.float64:
        return None
    return outputs[:-1] - outputs[-1:]


@contextmanager
def _as_in_evaluation(module: nn.Module) -> Iterator[None]:
    """Mark all parts as in evaluation, without telling them: some adapters would merge their weights."""
    modes = {part: part.training for part in module.modules()}
    for part in modes:
        part.training = False
    try:
        yield
    finally:
        for part, mode in modes.items():
            part.training = mode
