"""Recover the texts of a batch, with their tokens in order, from the gradients of a model."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from sparsedl.process import neutral_modes
from sparsedl_fl.audit.sent import read_update
from sparsedl_fl.audit.text.assignment import assign
from sparsedl_fl.audit.text.contexts import Contexts
from sparsedl_fl.audit.text.finding import Sentence, Text
from sparsedl_fl.audit.text.front import Fronts, NoFront
from sparsedl_fl.audit.text.layer_space import LayerSpace, SpaceTooLarge
from sparsedl_fl.audit.text.pairs import Pairs, find_pairs
from sparsedl_fl.audit.text.reach import NO_ORDER, fronts_of
from sparsedl_fl.audit.text.replaying import replay_sentences
from sparsedl_fl.layers.running_model import in_double
from sparsedl_fl.tracing.finite import check_finite

__all__ = ["recover_text", "text_of"]


ONE_EACH = (
    "one token at each position, which are those of one text, or of several that are alike or stand beside each other: "
    "no later layer and no replay proves that it is one"
)


@neutral_modes(gradients=True)
def recover_text(
    model: nn.Module,
    gradients: Sequence[torch.Tensor] | Mapping[str, torch.Tensor],
    example: torch.Tensor,
    *,
    loss: Any = None,
) -> Text:
    """Return the texts of a batch, as far as the gradients of a model show them.

    The vector of each token at its position lies in the row space of the gradient of the layers that are fed it; each
    token at each position is run through the model's own front and tested. Layers behind an attention say which belong
    to the same text, and the client is run again with what was found.

    Parameters
    ----------
    model : torch.nn.Module
        The model that takes token ids of shape (n, length), at the parameters at which the gradient was taken.
    gradients : sequence of tensors or mapping of name to tensor
        The client's gradient, in the order of ``model.parameters()`` or by name.
    example : torch.Tensor of shape (n, length) of int
        An input of the model, any token ids.
    loss : {"cross_entropy", "binary_cross_entropy"} or callable, default=None
        Of the client; None takes cross-entropy for the replay.

    Returns
    -------
    Text
        Its ``sentences``, or what is known of tokens and positions, with the reason.

    Raises
    ------
    TypeError, ValueError
        If model and gradients are not what they should be.

    References
    ----------
    Petrov et al., "DAGER: Exact gradient inversion for large language models", NeurIPS 2024.
    """
    check_finite(model)
    if not isinstance(example, torch.Tensor) or example.ndim != 2 or example.is_floating_point():
        raise ValueError("example must be token ids of shape (n, length)")
    read = read_update(model, gradients, example)
    sent = {name: tensor for name, tensor in read.update.gradients.items() if tensor is not None}
    return text_of(read.model, in_double(read.model), sent, example, read.tables, _shown_by(sent, read.tables), loss)


def _shown_by(sent: Mapping[str, torch.Tensor], tables: Sequence[str]) -> list[int]:
    """Return rows of a table with a gradient; nothing where most have one."""
    if not tables or tables[0] not in sent:
        return []
    touched = sent[tables[0]].detach().cpu().double().any(dim=1)
    return [] if touched.double().mean() > 0.5 else touched.nonzero()[:, 0].tolist()


def text_of(
    model: nn.Module,
    exact: nn.Module,
    gradients: Mapping[str, torch.Tensor | None],
    example: torch.Tensor | None,
    tables: Sequence[str],
    shown: Collection[int],
    loss: Any,
) -> Text:
    """Return what gradients say of the texts of a batch.

    Parameters
    ----------
    model, exact : torch.nn.Module
        The model, and a copy in double precision.
    gradients : mapping of str to torch.Tensor or None
        By plain name.
    example : torch.Tensor of shape (n, length) or None
        An input of the model.
    tables : sequence of str
        Plain names of the tables whose rows its input ids pick.
    shown : collection of int
        Token ids that the embedding's gradient shows; empty for none.
    loss : str, callable or None
        Of the client.
    """
    sent = {name: tensor for name, tensor in gradients.items() if tensor is not None and tensor.ndim == 2}
    try:
        fronts = fronts_of(model, exact, sent.keys(), example, tables)
    except NoFront as error:
        return Text(reason=str(error))
    found = Text(layer=fronts.first.name, has_order=fronts.first.has_positions)
    try:
        space, pairs, in_half = _pairs(fronts, sent, shown)
    except SpaceTooLarge as error:
        return replace(found, reason=str(error))
    n_shown = max(space.n_directions, len(pairs.tokens))
    found = replace(found, limit=space.limit, n_shown=n_shown, pairs=pairs)
    if not len(pairs.tokens):
        return replace(found, reason=_why_none(pairs))
    if pairs.left_over > 1 or space.has_noise:
        return replace(found, reason=_why_not_whole(pairs, space))
    if not fronts.first.has_positions:
        return replace(found, reason=NO_ORDER)
    found = _with_sentences(found, fronts, space, sent, in_half)
    if not found.is_complete:
        return found
    given = model, exact, gradients, found.sentences, tables, loss, space.is_coarse
    done, why, sentences = replay_sentences(*given)
    found = replace(found, replay=done, replay_reason=why, sentences=tuple(sentences))
    is_proven = all(one.proof for one in sentences) or (done is not None and done.is_match)
    return found if is_proven else replace(found, sentences=(), is_complete=False, replay=None, reason=ONE_EACH)


def _pairs(fronts: Fronts, sent: Mapping[str, torch.Tensor], shown: Collection[int]) -> tuple[LayerSpace, Pairs, bool]:
    """Return the row space of the first layers, the pairs in it, and whether vectors may be in half precision."""
    rounding = fronts.rounding(fronts.first)
    space = LayerSpace.of(fronts.first, sent, rounding)
    pairs = find_pairs(fronts, space, shown)
    if pairs.is_whole or not space.is_coarse:
        return space, pairs, False
    other = LayerSpace.of(fronts.first, sent, rounding, in_half=True)
    rounded = find_pairs(fronts, other, shown)
    return (other, rounded, True) if rounded.is_whole else (space, pairs, False)


def _why_none(pairs: Pairs) -> str:
    return (
        f"none of {pairs.n_candidates} candidates (tokens at positions) lies in the row space of the gradient: dropout "
        "or a prompt before the first attention, several local steps, noise, or other weights than the client's"
    )


def _why_not_whole(pairs: Pairs, space: LayerSpace) -> str:
    if space.has_noise:
        return "the gradient has more noise than rounding, in which other tokens may hide"
    return (
        f"the gradient shows {space.n_directions} vectors or more, and those of the tokens found are not all: other "
        "tokens, longer texts or several local steps"
    )


def _with_sentences(
    found: Text, fronts: Fronts, space: LayerSpace, sent: dict[str, torch.Tensor], in_half: bool
) -> Text:
    """Return the finding with sentences: by a later layer, or where each position has one token."""
    pairs = found.pairs
    places = np.unique(pairs.positions)
    is_gapless = len(places) == places[-1] - places[0] + 1
    contexts = Contexts.of(fronts, sent, space.n_directions, in_half=in_half) if places[0] == 0 else None
    is_one = pairs.is_whole and is_gapless and len(places) == len(pairs.tokens)
    if contexts is not None and is_gapless:
        by_contexts = _by_contexts(found, contexts, space)
        # Where noise hides the later rows, one token a position says enough, if they are not more than of one sentence.
        n_rows = len(pairs.tokens) + fronts.first.n_before + fronts.first.n_after
        if by_contexts.sentences or not is_one or contexts.space.n_directions > n_rows:
            return by_contexts
    if is_one:
        tokens = tuple(pairs.tokens.tolist())
        only = Sentence(tokens, int(places[0]), float(pairs.p_values.max()), float(pairs.distances.max()))
        return replace(found, sentences=(only,), is_complete=True)
    if not pairs.is_whole:
        return replace(found, reason=_ambiguous(pairs))
    why = "no later layer shows whole sentences" if is_gapless else "a position has no token"
    return replace(found, reason=f"a set of tokens for each position, not which belong together: {why}")


def _ambiguous(pairs: Pairs) -> str:
    n_ambiguous = int(np.sum(~pairs.is_single))
    return f"{n_ambiguous} other tokens and positions lie in the span of each other, so that some may be wrong"


def _by_contexts(found: Text, contexts: Contexts, space: LayerSpace) -> Text:
    """Return the finding with the sentences that a layer behind an attention proves."""
    pairs = found.pairs
    keys = list(zip(pairs.positions.tolist(), pairs.tokens.tolist(), strict=True))
    certain = {key for key, is_single in zip(keys, pairs.is_single, strict=True) if is_single}
    constants = contexts.fronts.constants(pairs.length).numpy()

    def spans(covered: set[tuple[int, int]]) -> bool:
        kept = [i for i, key in enumerate(keys) if key in covered]
        return certain <= covered and space.left_over(np.vstack([pairs.vectors[kept], constants])) <= 1

    choices = [[token for place, token in keys if place == at] for at in range(pairs.positions[-1] + 1)]
    assigned = assign(contexts, choices, certain, spans)
    sentences = tuple(
        Sentence(ids, 0, proof.p_value, proof.distance, contexts.layers.name)
        for ids, proof in assigned.sentences.items()
    )
    proven = certain | {pair for one in sentences for pair in enumerate(one.tokens)}
    known = replace(pairs, is_single=np.array([key in proven for key in keys]))
    if assigned.is_complete:
        return replace(found, pairs=known, sentences=sentences, is_complete=True, n_shown=len(proven))
    why = "which tokens belong to the same sentence was not found" + (" for the others" if sentences else "")
    if not known.is_single.all():
        why = f"{_ambiguous(known)}; {why}"
    return replace(found, pairs=known, sentences=sentences, reason=why)
