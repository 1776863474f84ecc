"""Which parameters of a model an attack can look at, and why not the others."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from sparsedl_fl.models.naming import plain_name
from sparsedl_fl.models.rest import rest_of_model
from sparsedl_fl.models.tracing import MIXING, LinearUse, Trace, trace_model

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
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    parameters: tuple[str, ...]
    behind: str
    obstacle: str


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
    >>> [(row.name, row.behind) for row in rows]
    [('0', 'relu'), ('2', 'nothing: it is the last layer')]
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
        rows.append(LayerRow(use.name, kind, shape, own, use.behind, obstacle_to(model, use, trace)))
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


def obstacle_to(model: nn.Module, use: LinearUse, trace: Trace) -> str:
    """Say why a linear layer is out of reach of today's searches, or nothing."""
    if trace.n_uses(use.name) > 1:
        return f"the layer runs {trace.n_uses(use.name)} times, or shares its weight: its gradient is a sum over all"
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
