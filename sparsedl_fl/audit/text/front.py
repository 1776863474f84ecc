"""A text model up to the layers whose gradients show its tokens: the model itself runs on each candidate.

The first linear layers that are fed one row a token, such as queries, keys and values of the first attention, are fed a
function of the token and its position alone: embedding, position and type, added and normalised as the model does it.
Those that come after an attention are fed a function of the whole sentence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn

from sparsedl_fl.tracing.fed_inputs import fed_layers
from sparsedl_fl.tracing.uses import LinearUse

__all__ = ["Fronts", "NoFront", "TokenLayers"]

SAME = 1e-9
"""Difference of rows, relative to them, that is rounding of double precision."""

N_PROBED = 8
"""Positions at which a model is asked whether its rows depend on other tokens."""

MOST_ENTRIES = 2**23
"""Numbers that a run of the model returns at most."""


class NoFront(Exception):  # noqa: N818
    """No layer shows tokens; the message says why."""


@dataclass(frozen=True)
class TokenLayers:
    """Linear layers that are fed the same vectors, one a token.

    Attributes
    ----------
    uses : tuple of LinearUse
        The layers.
    n_features : int
        Length of a vector.
    n_before, n_after : int
        Rows of each sentence that are no token of the text: before its first token, and after its last.
    is_batch_first : bool
        Whether rows are those of one sentence after the other, or of one position after the other.
    is_local : bool
        Whether a vector depends on its token and position alone.
    has_positions : bool
        Whether it depends on the position.
    """

    uses: tuple[LinearUse, ...]
    n_features: int
    n_before: int
    n_after: int
    is_batch_first: bool
    is_local: bool
    has_positions: bool

    @property
    def name(self) -> str:
        """Name of the first of these layers."""
        return self.uses[0].name

    def places(self, length: int) -> slice:
        """Return which rows of a sentence belong to its tokens."""
        return slice(self.n_before, self.n_before + length)

    def by_sentence(self, rows: torch.Tensor, n: int) -> torch.Tensor:
        """Return rows of a batch of n sentences as an array of shape (n, n_rows, n_features)."""
        return _by_sentence(rows, n, self.is_batch_first)


@dataclass(frozen=True, eq=False)
class Fronts:
    """The model with its layers of tokens.

    Attributes
    ----------
    model : torch.nn.Module
        In the client's precision.
    exact : torch.nn.Module
        A copy in double precision.
    first : TokenLayers
        The first layers that are fed tokens by themselves.
    later : tuple of TokenLayers
        Those after them that are fed a function of the whole sentence.
    vocabulary_size : int
        Number of token ids.
    length : int
        Tokens of a sentence, as the example has them.
    """

    model: nn.Module
    exact: nn.Module
    first: TokenLayers
    later: tuple[TokenLayers, ...]
    vocabulary_size: int
    length: int
    _taken: dict[tuple[str, int], bool] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of(
        cls, model: nn.Module, exact: nn.Module, sent: Collection[str], example: torch.Tensor | None, n_ids: int
    ) -> Fronts:
        """Look for the layers.

        Parameters
        ----------
        model, exact : torch.nn.Module
            The model, and a copy in double precision.
        sent : collection of str
            Plain names of the weights whose gradients the client sent.
        example : torch.Tensor or None
            An input of the model.
        n_ids : int
            Number of token ids.

        Raises
        ------
        NoFront
            If no layer shows tokens.
        """
        if example is None or example.ndim != 2 or example.is_floating_point():
            raise NoFront("the model is not run on rows of token ids")
        length = example.shape[1]
        generator = torch.Generator().manual_seed(0)
        probe = torch.randint(n_ids, (2, length), generator=generator).to(example.dtype)
        found = list(_layers_of(exact, probe, sent))
        first = next((one for one in found if one.is_local), None)
        if first is None:
            raise NoFront(
                "no linear layer whose gradient was sent is fed a function of a token and its position alone"
                + (": the vectors depend on the other tokens" if found else "")
            )
        later = tuple(one for one in found[found.index(first) + 1 :] if not one.is_local)
        fronts = cls(model, exact, first, later, n_ids, length)
        if model.training and fronts._drops(probe):
            raise NoFront(f"dropout in front of layer {first.name!r}, in training mode, hides what it is fed")
        return fronts

    def rounding(self, layers: TokenLayers, ids: torch.Tensor | None = None) -> float:
        """Return how far vectors in the client's precision are from those in double, relative to them, at most.

        Parameters
        ----------
        layers : TokenLayers
            The layers that are fed them.
        ids : torch.Tensor of shape (n, length) or None, default=None
            Sentences; None draws some.
        """
        if ids is None:
            generator = torch.Generator().manual_seed(1)
            ids = torch.randint(self.vocabulary_size, (4, self.length), generator=generator)
        here, there = (self.vectors(layers, ids, is_exact=is_exact) for is_exact in (False, True))
        return float(((here - there).norm(dim=-1) / there.norm(dim=-1).clamp(min=1e-300)).max())

    def vectors(self, layers: TokenLayers, ids: torch.Tensor, *, is_exact: bool = False) -> torch.Tensor:
        """Return the vectors that layers are fed for sentences, of shape (n, n_rows, n_features), in double precision.

        Parameters
        ----------
        layers : TokenLayers
            The layers.
        ids : torch.Tensor of shape (n, length)
            The sentences.
        is_exact : bool, default=False
            Whether the model runs in double precision.
        """
        model, parts = self.exact if is_exact else self.model, []
        for some in ids.split(max(1, MOST_ENTRIES // (layers.n_features * ids.shape[1]))):
            rows = fed_layers(model, some.to(_device(model)), [layers.uses[0].weight])[0].rows
            parts.append(layers.by_sentence(rows, len(some)).cpu().double())
        return torch.cat(parts)

    def grid(self, tokens: torch.Tensor, length: int) -> torch.Tensor:
        """Return the vector of each token at each position, of shape (n_tokens, length, n_features)."""
        rows = tokens[:, None].expand(-1, length).contiguous()
        return self.vectors(self.first, rows)[:, self.first.places(length)]

    def constants(self, length: int) -> torch.Tensor:
        """Return the vectors that are no token's, such as that of a class token, of shape (k, n_features)."""
        vectors = self.vectors(self.first, torch.zeros((1, length), dtype=torch.long))[0]
        return torch.cat([vectors[: self.first.n_before], vectors[self.first.n_before + length :]])

    def takes(self, length: int, layers: TokenLayers | None = None) -> bool:
        """Return whether the model runs on sentences of so many tokens, up to some layers (by default the first)."""
        layers = self.first if layers is None else layers
        if (layers.name, length) not in self._taken:
            try:
                vectors = self.vectors(layers, torch.zeros((1, length), dtype=torch.long))
                is_taken = vectors.shape[1] == layers.n_before + length + layers.n_after
            except Exception:  # a model may raise anything on a text of another length than its own
                is_taken = False
            self._taken[layers.name, length] = is_taken
        return self._taken[layers.name, length]

    def _drops(self, probe: torch.Tensor) -> bool:
        until = [self.first.uses[0].weight]
        probe = probe.to(_device(self.model))
        runs = [fed_layers(self.model, probe, until, as_is=True) for _ in range(2)]
        if not all(runs):  # a recurrent layer runs as one product in training mode
            raise NoFront(f"what layer {self.first.name!r} is fed in training mode does not show")
        return not torch.equal(runs[0][0].rows, runs[1][0].rows)


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


def _by_sentence(rows: torch.Tensor, n: int, is_batch_first: bool) -> torch.Tensor:
    k = len(rows) // n
    if is_batch_first:
        return rows.reshape(n, k, -1)
    return rows.reshape(k, n, -1).transpose(0, 1)


def _layers_of(exact: nn.Module, probe: torch.Tensor, sent: Collection[str]) -> Iterator[TokenLayers]:
    """Yield the linear layers of a model that are fed tokens, in the order in which they run."""
    length = probe.shape[1]
    picked = np.linspace(0, length - 1, min(length, N_PROBED)).astype(int)
    alike = probe[0, picked][:, None].expand(-1, length).contiguous()
    try:
        runs = [fed_layers(exact, ids) for ids in (probe, probe[:1], alike)]
    except Exception as error:  # a model may raise anything on ids that it was not made for
        raise NoFront(f"the model does not run on other token ids than the example's: {error}") from error
    n_uses = Counter(use.weight for group in runs[0] for use in group.uses)
    for groups in zip(*runs, strict=False):
        uses = tuple(use for use in groups[0].uses if use.weight in sent and n_uses[use.weight] == 1)
        found = _token_layers(uses, length, picked, *(group.rows for group in groups)) if uses else None
        if found is not None:
            yield found


def _token_layers(
    uses: tuple[LinearUse, ...],
    length: int,
    picked: np.ndarray,
    both: torch.Tensor,
    alone: torch.Tensor,
    alike: torch.Tensor,
) -> TokenLayers | None:
    """Return layers with the order of what they are fed; None where that is not one row a token.

    Parameters
    ----------
    uses : tuple of LinearUse
        The layers.
    length : int
        Tokens of a sentence.
    picked : ndarray of int
        Positions of the tokens that are repeated.
    both, alone, alike : torch.Tensor of shape (n_rows, n_features)
        What they are fed for two sentences, for the first of them, and for sentences of one of its tokens each.
    """
    k = len(alone)
    if both.shape[1:] != alone.shape[1:] or len(both) != 2 * k or k < length or len(alike) != len(picked) * k:
        return None
    orders = [order for order in (True, False) if _is_near(_by_sentence(both, 2, order)[0], alone)]
    if not orders:
        return None
    one, other = _by_sentence(both, 2, orders[0])
    differs = ((one - other).norm(dim=1) > SAME * one.norm(dim=1)).numpy()
    repeated = _by_sentence(alike, len(picked), orders[0])
    common = {"uses": uses, "n_features": one.shape[1], "is_batch_first": orders[0]}
    for n_before in (0, k - length):
        vectors = repeated[:, n_before : n_before + length]
        is_local = _is_near(vectors[range(len(picked)), picked], one[n_before + picked])
        outside = np.delete(differs, slice(n_before, n_before + length))
        if is_local and not outside.any():
            has_positions = not _is_near(vectors, vectors[:, :1].expand_as(vectors))
            n_after = k - length - n_before
            return TokenLayers(n_before=n_before, n_after=n_after, is_local=True, has_positions=has_positions, **common)
    return TokenLayers(n_before=0, n_after=k - length, is_local=False, has_positions=True, **common)


def _is_near(rows: torch.Tensor, others: torch.Tensor) -> bool:
    return bool((rows - others).norm() <= SAME * rows.norm())
