"""Which parameters of a model an attack can use, and why not the others."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import nn

from sparsedl.process import neutral_modes
from sparsedl_fl.lowrank.adapters import ONLY_FIRST
from sparsedl_fl.models.reach import count_of_pictures, obstacle_to, reach_of
from sparsedl_fl.propagate.scales import hides_scale
from sparsedl_fl.theory import Attack
from sparsedl_fl.tracing.adapters import AdaptedLinear, Adapter, merge_adapters
from sparsedl_fl.tracing.embeddings import token_tables
from sparsedl_fl.tracing.naming import plain_modules, plain_parameters
from sparsedl_fl.tracing.tracing import Trace, trace_model
from sparsedl_fl.tracing.uses import LinearUse

__all__ = ["LayerRow", "inspect_model"]

MOST_NAMED = 4
"""Number of convolutions that a row names; it counts the others."""

IDS = "no linear layer; what it leaks are token ids, the rows of its gradient that are not zero"
"""Obstacle of a table whose rows the model's input ids pick."""


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
        What follows it, where the trace shows it.
    obstacle : str
        Why no attack applies to it, or empty.
    feeds : str
        What it is fed: "the model's input", "features" or "tokens", where the trace shows it.
    attack : Attack
        What it leaks by: "zeros" of its gradient, the activation subspace ("span") of the next layer's, the network
        tail ("rest"), or as a "head"; the "rows" of an embedding, which show token ids; empty where no attack applies.
    largest_batch : int
        The largest batch that is recovered as a rule; tokens count as inputs. Zero for an embedding, which shows token
        ids of any batch.
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
    attack: Attack = Attack.NONE
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
        The trace of the model, where there is one already.
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
    model, adapters = merge_adapters(model, sent)
    if adapters:
        example, trace = trace.example if trace is not None and example is None else example, None
        sent = None if sent is None else _of_merged(adapters, sent)
    trace = trace_model(model, example) if trace is None else trace
    tensors = plain_parameters(model)
    sent = {name for name, tensor in tensors.items() if tensor.requires_grad} if sent is None else set(sent)
    tables = [name for name in token_tables(model, trace.example) if name in sent]
    inspection = _Inspection(model, trace.of_sent(sent), tensors, plain_modules(model), sent, tables)
    uses = {use.weight: use for use in reversed(inspection.trace.layers)}
    rows = [inspection.linear_row(uses[name]) for name in dict.fromkeys(use.weight for use in inspection.trace.layers)]
    return [*rows, *inspection.other_rows({name for row in rows for name in row.parameters})]


def _of_merged(adapters: Iterable[Adapter], sent: Collection[str]) -> set[str]:
    """Return the names of what is sent as those of a model with merged adapters."""
    found = set(sent)
    for adapter in adapters:
        own = f"{adapter.name}.".removeprefix(".")
        found |= {own + "weight"} if {adapter.first, adapter.second} <= found else set()
        found |= {own + "bias"} if adapter.bias in found else set()
    return found


_MISSING = "the update has no gradient of {!r}: it was not sent, or is spoilt by NaN or infinity"
_NO_SCALE = "the scale of each input is not known, unless it follows from another layer whose whole batch is recovered"

_NORMALISED = "its weight is computed from other parameters (weight or spectral normalisation)"


@dataclass(frozen=True, eq=False)
class _Inspection:
    """The model under inspection."""

    model: nn.Module
    trace: Trace
    tensors: Mapping[str, torch.Tensor]
    modules: Mapping[str, nn.Module]
    sent: set[str]
    tables: list[str]

    def linear_row(self, use: LinearUse) -> LayerRow:
        """Return the row of a linear layer."""
        own = tuple(name for name in (use.weight, use.bias) if name)
        use = replace(use, behind=self._adapter(use) or use.behind)
        why_no_scale = self._bias_not_sent(use)
        obstacle = self._not_sent(use.weight) or (why_no_scale and self._hides_scale(use) and why_no_scale)
        obstacle = obstacle or obstacle_to(self.model, use, self.trace)
        use = use if self.trace.n_uses(use.name) == 1 else self.trace.all_of(use.name) or use
        given = {"has_scale": not why_no_scale}
        attack, most = (Attack.NONE, 0) if obstacle else reach_of(use, self.trace, self.tensors, **given)
        module = self.modules.get(use.weight.rpartition(".")[0], self.model)
        if isinstance(module, AdaptedLinear):
            obstacle = obstacle or ("" if module.has_second else ONLY_FIRST.format(module.rank))
            attack, most = (Attack.NONE, 0) if obstacle else (attack, min(most, module.rank))
            use = replace(use, behind=f"{use.behind}; by its adapters (LoRA) of rank {module.rank}")
        attack = Attack.ROWS if use.weight in self.tables else attack
        kind = type(module).__name__
        follows = use.behind + (f", dropout of {use.dropout:g}" if use.dropout else "")
        shape = tuple(self.tensors[use.weight].shape)
        return LayerRow(use.name, kind, shape, own, follows, obstacle, use.feeds, attack, most, use.dropout)

    def _not_sent(self, name: str) -> str:
        """Return why the gradient of a parameter is missing, or an empty text where it is there."""
        if name in self.sent:
            return ""
        return _MISSING.format(name) if self.tensors[name].requires_grad else "never sent: it is frozen"

    def _bias_not_sent(self, use: LinearUse) -> str:
        if use.bias in self.sent or use.norm is not None:
            return ""
        return f"{_MISSING.format(use.bias)}, or frozen: {_NO_SCALE}" if use.bias else f"it has no bias: {_NO_SCALE}"

    def _hides_scale(self, use: LinearUse) -> bool:
        """Return whether the next layer's gradient does not show the scale of a layer's inputs either."""
        is_alone = use.next_weight and use.activation is not None and self.trace.n_uses(use.name) == 1
        return not is_alone or hides_scale(use.activation, self.tensors.get(use.bias))

    def _adapter(self, use: LinearUse) -> str:
        """Describe a layer that is the first factor of a product of low rank, as adapters are; else return ""."""
        other = self.trace.using(use.factor)
        if other is None:
            return ""
        shape = (other.width, self.tensors[use.weight].numel() // use.width)
        unsent = (base.weight for base in self.trace.layers if base.weight not in self.sent)
        is_beside = any(tuple(self.tensors[name].shape) == shape for name in unsent)
        what = "a low-rank adapter (LoRA)" if is_beside else "a product of low rank"
        return f"'{other.name}', the second factor of {what}, rank {use.width}"

    def other_rows(self, seen: set[str]) -> Iterator[LayerRow]:
        """Yield a row for everything that is no linear layer, and for those that did not run."""
        owners: dict[str, list[str]] = {}
        for name in self.tensors:
            if name not in seen:
                owner = name.rpartition(".")[0]
                # A table that is no module of its own has a row of its own.
                is_table = name in self.tables and not isinstance(self.modules.get(owner), nn.Embedding)
                owners.setdefault(name if is_table else owner, []).append(name)
        convolutions = [owner for owner in owners if isinstance(self.modules.get(owner), nn.modules.conv._ConvNd)]
        for owner, names in owners.items():
            if owner in convolutions[1:]:
                continue
            if owner in convolutions:
                names = [name for each in convolutions for name in owners[each]]
            module, shape = self.modules.get(owner, self.model), tuple(self.tensors[names[0]].shape)
            frozen = "" if self.sent.intersection(names) else self._not_sent(names[0])
            ids = not frozen and any(name in self.tables for name in names)
            why = frozen or (IDS if ids else self._why_not(module))
            name = _joined(convolutions) if owner in convolutions else owner
            feeds, attack = ("token ids", Attack.ROWS) if ids else ("", Attack.NONE)
            row = LayerRow(name, type(module).__name__, shape, tuple(names), "", why, feeds, attack)
            yield self._with_pictures(row) if owner in convolutions and not frozen else row

    def _with_pictures(self, row: LayerRow) -> LayerRow:
        """Return the row of the convolutions with the count of what determines the pictures in front of them."""
        count = count_of_pictures(self.model, self.trace)
        if count is None:
            return row
        if count.largest_batch < 1:
            return replace(row, obstacle=f"{row.obstacle}; {count}")
        if not count.is_enough:
            most = int(count.largest_batch)
            return replace(row, behind=str(count), obstacle="", attack=Attack.JOINT_PICTURES, largest_batch=most)
        most = max((reach_of(use, self.trace, self.tensors)[1] for use in self.trace.layers), default=0)
        return replace(row, behind=str(count), obstacle="", attack=Attack.PICTURES, largest_batch=most)

    def _why_not(self, module: nn.Module) -> str:
        """Say why no attack uses a module; an empty text for a linear layer of a model that could not be run."""
        if isinstance(module, nn.Linear) and self.trace.failure:
            return ""
        return f"not examined: {_kind_of(module)}"


def _joined(names: list[str]) -> str:
    few = ", ".join(names[:MOST_NAMED])
    return few if len(names) <= MOST_NAMED else f"{few} and {len(names) - MOST_NAMED} more"


def _kind_of(module: nn.Module) -> str:
    """Return the kind of a module that no attack uses, in words."""
    is_normalised = hasattr(module, "parametrizations") or hasattr(module, "weight_g")
    if is_normalised or isinstance(module, nn.utils.parametrize.ParametrizationList):
        return _NORMALISED
    if isinstance(module, nn.Linear):
        return "it did not run"
    kinds: dict[str, type | tuple[type, ...]] = {
        "a convolution": nn.modules.conv._ConvNd,
        "a recurrent layer": nn.RNNBase,
        "an embedding": (nn.Embedding, nn.EmbeddingBag),
        "attention": nn.MultiheadAttention,
        "a normalisation": (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm),
    }
    named = next((text for text, kind in kinds.items() if isinstance(module, kind)), "no linear layer")
    return f"{named} ({type(module).__name__})"
