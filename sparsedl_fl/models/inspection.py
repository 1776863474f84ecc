"""Which parameters of a model an attack can look at, and why not the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from sparsedl.process import neutral_modes
from sparsedl_fl.models.layers import NO_SUM, passes_on
from sparsedl_fl.models.naming import plain_name
from sparsedl_fl.models.rest import rest_of_model
from sparsedl_fl.models.tracing import MIXING, LinearUse, Trace, trace_model
from sparsedl_fl.theory import largest_batch

__all__ = ["LayerRow", "inspect_model", "obstacle_to"]


@dataclass(frozen=True)
class LayerRow:
    """One module that has parameters of its own.

    Attributes
    ----------
    name : str
        Name of the layer.
    kind : str
        Its class.
    shape : tuple of int
        Shape of its weight, or of its first parameter.
    parameters : tuple of str
        Plain names of all its parameters.
    behind : str
        What follows it, where that could be seen.
    obstacle : str
        Why no attack of ours applies to it, or empty.
    feeds : str
        What it is fed: "the model's input", "features" or "tokens", where that could be seen.
    attack : str
        What it leaks by: "zeros" of its gradient, the "span" of the next layer's, the "rest" of the network, or as a
        "head"; empty where no attack applies.
    largest_batch : int
        The largest batch that comes back as a rule; tokens count as inputs.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    parameters: tuple[str, ...]
    behind: str
    obstacle: str
    feeds: str = ""
    attack: str = ""
    largest_batch: int = 0


@neutral_modes(gradients=True)
def inspect_model(model: nn.Module, example: torch.Tensor | None = None, trace: Trace | None = None) -> list[LayerRow]:
    """Look at every parameter of a model.

    Parameters
    ----------
    model : torch.nn.Module
        The model.
    example : torch.Tensor or None, default=None
        An input of the model; None makes one up.
    trace : Trace or None, default=None
        What a run showed, where it is there already.

    Returns
    -------
    list of LayerRow
        Linear layers first, in the order in which they run, then everything else, as declared.

    Examples
    --------
    >>> rows = inspect_model(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)))
    >>> [(row.name, row.feeds, row.behind, row.attack) for row in rows]
    [('0', "the model's input", 'relu', 'zeros'), ('2', 'features', 'nothing: it is the last layer', 'head')]
    """
    trace = trace_model(model, example) if trace is None else trace
    owners: dict[str, list[str]] = {}
    tensors = {plain_name(name): tensor for name, tensor in model.named_parameters()}
    modules = {plain_name(name + ".x").removesuffix(".x").removesuffix("x"): m for name, m in model.named_modules()}
    for name in tensors:
        owners.setdefault(name.rpartition(".")[0], []).append(name)
    rows, seen = [], set()
    for use in trace.layers:
        owner = use.weight.rpartition(".")[0]
        if use.weight in seen:
            continue
        own = tuple(name for name in (use.weight, use.bias) if name)
        seen.update(own)
        kind = type(modules.get(owner, model)).__name__
        shape = tuple(tensors[use.weight].shape)
        obstacle = obstacle_to(model, use, trace)
        use = trace.all_of(use.name) or use
        attack, most = ("", 0) if obstacle else _reach(use, trace, tensors)
        rows.append(LayerRow(use.name, kind, shape, own, use.behind, obstacle, use.feeds, attack, most))
    for owner, names in owners.items():
        left = tuple(name for name in names if name not in seen)
        if not left:
            continue
        module = modules.get(owner, model)
        is_linear = isinstance(module, nn.Linear)
        if is_linear and trace.failure:
            why = ""
        elif is_linear and not trace.failure:
            why = "not examined: it did not run" if not _is_reparametrised(module) else _REPARAMETRISED
        else:
            why = f"not examined: {_kind_of(module)}"
        rows.append(LayerRow(owner, type(module).__name__, tuple(tensors[left[0]].shape), left, "", why))
    return rows


@neutral_modes(gradients=True)
def obstacle_to(model: nn.Module, use: LinearUse, trace: Trace) -> str:
    """Say why a linear layer is out of reach of today's searches, or nothing."""
    if trace.n_uses(use.name) > 1 or use.also:
        found = trace.all_of(use.name)
        if found is None:
            return NO_SUM
        use = found
    if use.norm is not None and use.norm.training:
        return MIXING
    if use.activation is not None and (use.activation.has_flat_part or use.next_weight):
        return ""
    if rest_of_model(model, use, trace) is not None:
        return ""
    if use.activation is None:
        return f"{use.behind} follows, and what lies behind is no function of one input's outputs alone"
    return (
        f"{use.activation.name} follows, whose gradient vanishes nowhere, no linear layer behind it whose gradient "
        "would tell, and what lies behind is no function of one input's outputs alone"
    )


def _reach(use: LinearUse, trace: Trace, tensors: Mapping[str, torch.Tensor]) -> tuple[str, int]:
    """Return what a layer within reach leaks by, and the largest batch that comes back."""
    n_inputs = tensors[use.weight].numel() // use.width
    if use.is_last:
        return "head", largest_batch(use.width, n_inputs, "head")
    by_zeros = use.activation is not None and use.activation.has_flat_part
    alone = "zeros" if by_zeros else "rest"
    reach = [(alone, largest_batch(use.width, n_inputs, alone))]
    if use.next_weight:
        next_width = tensors[use.next_weight].numel() // use.width
        behind = _widths_behind(use, trace)
        reach.append(("span", largest_batch(use.width, n_inputs, "span", next_width, behind)))
    return max(reach, key=lambda pair: pair[1])


def _widths_behind(use: LinearUse, trace: Trace) -> tuple[int, ...]:
    """Return the outputs of the layers behind the next, as far as smooth activations alone lie between."""
    found: list[int] = []
    current: LinearUse | None = use
    while current is not None and passes_on(current, trace) and current.next_weight:
        if current.activation.has_flat_part or current.activation.is_piecewise_linear:
            break
        current = trace.using(current.next_weight)
        found += [] if current is None else [current.width]
    return tuple(found[1:])


_REPARAMETRISED = "not examined: its weight is computed from other parameters (weight or spectral normalisation)"


def _is_reparametrised(module: nn.Module) -> bool:
    return hasattr(module, "parametrizations") or hasattr(module, "weight_g")


def _kind_of(module: nn.Module) -> str:
    """Say what a module is, for one that no attack looks at."""
    if _is_reparametrised(module) or isinstance(module, nn.utils.parametrize.ParametrizationList):
        return "its weight is computed from other parameters (weight or spectral normalisation)"
    kinds = {
        nn.modules.conv._ConvNd: "a convolution",
        nn.RNNBase: "a recurrent layer",
        nn.Embedding: "an embedding",
        nn.EmbeddingBag: "an embedding",
        nn.MultiheadAttention: "attention",
        nn.modules.batchnorm._NormBase: "a normalisation",
        nn.LayerNorm: "a normalisation",
        nn.GroupNorm: "a normalisation",
    }
    named = next((text for kind, text in kinds.items() if isinstance(module, kind)), "no linear layer")
    return f"{named} ({type(module).__name__})"
