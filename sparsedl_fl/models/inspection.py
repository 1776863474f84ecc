"""Which parameters of a model an attack can look at, and why not the others."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import nn

from sparsedl.process import neutral_modes
from sparsedl_fl.models.reach import obstacle_to, reach_of
from sparsedl_fl.tracing.embeddings import token_tables
from sparsedl_fl.tracing.naming import plain_modules, plain_parameters
from sparsedl_fl.tracing.tracing import Trace, trace_model
from sparsedl_fl.tracing.uses import LinearUse

__all__ = ["LayerRow", "inspect_model"]

MOST_NAMED = 4
"""Convolutions that a row names; of more it gives the number."""

IDS = "no linear layer; what it leaks are token ids, the rows of its gradient that are not zero"
"""What is said of a table of which the model's input picks rows."""


@dataclass(frozen=True)
class LayerRow:
    """One module that has parameters of its own, or all convolutions of a model.

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
        "head"; the "rows" of an embedding, which show token ids; empty where no attack applies.
    largest_batch : int
        The largest batch that comes back as a rule; tokens count as inputs. Zero for an embedding, which shows the ids
        of any.
    dropout : float
        Share of its outputs that the client drops before the next layer.
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
    dropout: float = 0.0


@neutral_modes(gradients=True)
def inspect_model(
    model: nn.Module,
    example: torch.Tensor | None = None,
    trace: Trace | None = None,
    sent: Collection[str] | None = None,
) -> list[LayerRow]:
    """Look at every parameter of a model.

    Parameters
    ----------
    model : torch.nn.Module
        The model.
    example : torch.Tensor or None, default=None
        An input of the model; None makes one up.
    trace : Trace or None, default=None
        What a run showed, where it is there already.
    sent : collection of str or None, default=None
        Plain names of the parameters whose gradient the client sends; None for those that require one.

    Returns
    -------
    list of LayerRow
        Linear layers first, in the order in which they run, then everything else, as declared; one row for all
        convolutions.

    Examples
    --------
    >>> rows = inspect_model(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)))
    >>> [(row.name, row.feeds, row.behind, row.attack) for row in rows]
    [('0', "the model's input", 'relu', 'zeros'), ('2', 'features', 'nothing: it is the last layer', 'head')]
    """
    trace = trace_model(model, example) if trace is None else trace
    tensors = plain_parameters(model)
    sent = {name for name, tensor in tensors.items() if tensor.requires_grad} if sent is None else set(sent)
    tables = [name for name in token_tables(model, trace.example) if name in sent]
    trace = trace.of_sent(sent)
    modules = plain_modules(model)
    rows = [_linear_row(model, use, trace, tensors, modules, sent, tables) for use in _first_uses(trace)]
    seen = {name for row in rows for name in row.parameters}
    return [*rows, *_other_rows(model, trace, tensors, modules, sent, tables, seen)]


def _first_uses(trace: Trace) -> list[LinearUse]:
    found: dict[str, LinearUse] = {}
    for use in trace.layers:
        found.setdefault(use.weight, use)
    return list(found.values())


def _linear_row(
    model: nn.Module,
    use: LinearUse,
    trace: Trace,
    tensors: Mapping[str, torch.Tensor],
    modules: Mapping[str, nn.Module],
    sent: set[str],
    tables: list[str],
) -> LayerRow:
    """Return the row of a linear layer."""
    owner = modules.get(use.weight.rpartition(".")[0], model)
    own = tuple(name for name in (use.weight, use.bias) if name)
    use = replace(use, behind=_adapter(use, trace, tensors, sent) or use.behind)
    obstacle = _not_sent(use.weight, tensors, sent) or _bias_not_sent(use, sent) or obstacle_to(model, use, trace)
    use = use if trace.n_uses(use.name) == 1 else trace.all_of(use.name) or use
    attack, most = ("", 0) if obstacle else reach_of(use, trace, tensors)
    attack = "rows" if use.weight in tables else attack
    behind = use.behind + (f", dropout of {use.dropout:g}" if use.dropout else "")
    shape = tuple(tensors[use.weight].shape)
    return LayerRow(use.name, type(owner).__name__, shape, own, behind, obstacle, use.feeds, attack, most, use.dropout)


_MISSING = "the update has no gradient of {!r}: it was not sent, or is spoilt by NaN or infinity"


def _not_sent(name: str, tensors: Mapping[str, torch.Tensor], sent: set[str]) -> str:
    """Return why the gradient of a parameter is not there, or nothing where it is."""
    if name in sent:
        return ""
    return _MISSING.format(name) if tensors[name].requires_grad else "never sent: it is frozen"


def _bias_not_sent(use: LinearUse, sent: set[str]) -> str:
    if not use.bias or use.bias in sent or use.norm is not None:
        return ""
    return f"{_MISSING.format(use.bias)}, or frozen: without it the scale of each input is not known"


def _adapter(use: LinearUse, trace: Trace, tensors: Mapping[str, torch.Tensor], sent: set[str]) -> str:
    """Say that a layer is the first factor of a product of low rank, as adapters are; or nothing."""
    other = trace.using(use.factor)
    if other is None:
        return ""
    shape = (other.width, tensors[use.weight].numel() // use.width)
    is_beside = any(base.weight not in sent and tuple(tensors[base.weight].shape) == shape for base in trace.layers)
    what = "a low-rank adapter (LoRA)" if is_beside else "a product of low rank"
    return f"'{other.name}', the second factor of {what}, rank {use.width}"


def _other_rows(
    model: nn.Module,
    trace: Trace,
    tensors: Mapping[str, torch.Tensor],
    modules: Mapping[str, nn.Module],
    sent: set[str],
    tables: list[str],
    seen: set[str],
) -> Iterator[LayerRow]:
    """Yield a row for everything that is no linear layer, and for those that did not run."""
    owners: dict[str, list[str]] = {}
    for name in tensors:
        if name not in seen:
            # A table that is no module of its own has a row of its own.
            is_table = name in tables and not isinstance(modules.get(name.rpartition(".")[0]), nn.Embedding)
            owners.setdefault(name if is_table else name.rpartition(".")[0], []).append(name)
    convolutions = [owner for owner in owners if isinstance(modules.get(owner), nn.modules.conv._ConvNd)]
    for owner, names in owners.items():
        if owner in convolutions[1:]:
            continue
        if owner in convolutions:
            names = [name for each in convolutions for name in owners[each]]
        module, shape = modules.get(owner, model), tuple(tensors[names[0]].shape)
        frozen = all(name not in sent for name in names) and _not_sent(names[0], tensors, sent)
        ids = not frozen and any(name in tables for name in names)
        why = frozen or (IDS if ids else _why_not(module, trace))
        name = _joined(convolutions) if owner in convolutions else owner
        feeds, attack = ("token ids", "rows") if ids else ("", "")
        yield LayerRow(name, type(module).__name__, shape, tuple(names), "", why, feeds, attack)


def _joined(names: list[str]) -> str:
    few = ", ".join(names[:MOST_NAMED])
    return few if len(names) <= MOST_NAMED else f"{few} and {len(names) - MOST_NAMED} more"


def _why_not(module: nn.Module, trace: Trace) -> str:
    """Say why no attack looks at a module; nothing for a linear layer of a model that could not be run."""
    if not isinstance(module, nn.Linear):
        return f"not examined: {_kind_of(module)}"
    if trace.failure:
        return ""
    return _REPARAMETRISED if _is_reparametrised(module) else "not examined: it did not run"


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
