"""What a model's updates would show of texts, before any training."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from sparsedl.process import neutral_modes
from sparsedl_fl.audit.text.front import Fronts, NoFront
from sparsedl_fl.audit.text.layer_space import FEWEST_OPEN
from sparsedl_fl.layers.running_model import in_double
from sparsedl_fl.tracing.adapters import AdaptedLinear, merge_adapters
from sparsedl_fl.tracing.embeddings import token_tables
from sparsedl_fl.tracing.naming import plain_parameters

__all__ = ["NO_ORDER", "NO_TABLE", "TextReach", "fronts_of", "reach_of_text"]

NO_ORDER = "the model adds no positions before its first attention, so that the order of tokens does not show there"

NO_TABLE = "no embedding whose rows the model's input picks was seen: a text model has to be run on token ids"


@dataclass(frozen=True)
class TextReach:
    """Whether the order of tokens shows in a model's updates.

    Attributes
    ----------
    layer : str
        First layer that is fed tokens; empty for none.
    limit : int
        Different tokens and positions up to which it shows a batch; zero where the order does not show.
    shows_sentences : bool
        Whether a layer behind an attention shows which tokens belong to the same text.
    reason : str
        Why the order does not show; empty where it does.
    """

    layer: str = ""
    limit: int = 0
    shows_sentences: bool = False
    reason: str = ""

    def __str__(self) -> str:
        if self.reason:
            return f"order of tokens: no: {self.reason}"
        texts = "" if self.shows_sentences else "; of several texts not which belong together"
        up_to = f"up to {self.limit} different tokens and positions in a batch"
        return f"order of tokens: yes, {up_to}, by layer {self.layer!r}{texts}"


def fronts_of(
    model: nn.Module, exact: nn.Module, sent: Collection[str], example: torch.Tensor | None, tables: Sequence[str]
) -> Fronts:
    """Return the layers of a model whose gradients show tokens; raises `NoFront` with the reason where none does."""
    if not tables:
        raise NoFront(NO_TABLE)
    n_ids = len(plain_parameters(model)[tables[0]])
    return Fronts.of(model, exact, sent, example, n_ids)


@neutral_modes()
def reach_of_text(model: nn.Module, example: torch.Tensor | None) -> TextReach | None:
    """Return whether the order of tokens shows in a model's updates; None where its input is no text.

    Parameters
    ----------
    model : torch.nn.Module
        The model.
    example : torch.Tensor or None
        An input of it.

    Examples
    --------
    >>> class Words(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.words, self.places = nn.Embedding(50, 32), nn.Embedding(9, 32)
    ...         self.hidden, self.head = nn.Linear(32, 64), nn.Linear(64, 2)
    ...
    ...     def forward(self, ids):
    ...         x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
    ...         return self.head(torch.tanh(self.hidden(x)).mean(dim=1))
    >>> reach = reach_of_text(Words(), torch.zeros((1, 5), dtype=torch.long))
    >>> reach.layer, reach.limit, reach.shows_sentences
    ('hidden', 24, False)
    """
    tables = token_tables(model, example) if example is not None else ()
    if not tables:
        return None
    model, _ = merge_adapters(model)
    adapted = {part.weight: part for part in model.modules() if isinstance(part, AdaptedLinear)}
    for part in adapted.values():
        part.weight.requires_grad_(part.has_second)
    parameters = plain_parameters(model)
    sent = [name for name, tensor in parameters.items() if tensor.requires_grad]
    try:
        fronts = fronts_of(model, in_double(model), sent, example, tables)
    except NoFront as why:
        return TextReach(reason=str(why))
    first = fronts.first
    if not first.has_positions:
        return TextReach(first.name, reason=NO_ORDER)
    n_outputs = sum(parameters[use.weight].numel() // first.n_features for use in first.uses)
    of_adapters = [adapted[parameters[use.weight]].rank for use in first.uses if parameters[use.weight] in adapted]
    limit = max(0, min(first.n_features, n_outputs, *of_adapters) - FEWEST_OPEN)
    if not limit:
        return TextReach(first.name, reason=f"layer {first.name!r} is too narrow")
    return TextReach(first.name, limit, bool(fronts.later))
