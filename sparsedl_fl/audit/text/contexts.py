"""Whole sentences, held against layers behind an attention: what these are fed depends on every token of a sentence.

Each row that such a layer is fed for a sentence of the batch lies in the row space of its gradient, and hardly a row of
any other sentence does. That says which tokens belong together, and it can be searched: exchanging one wrong token for
the right one brings all rows of its sentence nearer. (MiniLM, sentences of 32 random tokens, four of them: each found
from some ten random starts, of 2^62 possible sentences. DAGER tries all of an encoder's up to a bound.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from sparsedl_fl.audit.text.front import Fronts, TokenLayers
from sparsedl_fl.audit.text.layer_space import WITHIN, LayerSpace, SpaceTooLarge

__all__ = ["Contexts", "Verified"]

SIGNIFICANCE = 1e-3
"""Chance that any sentence counts as one of the batch that is not."""

N_WRONG = 64
"""Sentences with one wrong token that p-values are computed from."""

N_LATER = 6
"""Layers behind the first that are looked at: those of the first block, and the second attention."""


@dataclass(frozen=True)
class Verified:
    """How near all rows of a sentence lie.

    Attributes
    ----------
    is_in_batch : bool
        Whether it is a sentence of the batch.
    p_value : float
        Chance that a sentence with a wrong token counts as one.
    distance : float
        The largest of its rows' distances, relative to them.
    rows : ndarray of shape (n_rows, n)
        What the layer is fed for it.
    """

    is_in_batch: bool
    p_value: float
    distance: float
    rows: np.ndarray


@dataclass(frozen=True, eq=False)
class Contexts:
    """A layer that is fed a function of whole sentences, and the row space of its gradient.

    Attributes
    ----------
    fronts : Fronts
        The model.
    layers : TokenLayers
        The layer, with those that are fed the same.
    space : LayerSpace
        Of their gradients.
    """

    fronts: Fronts
    layers: TokenLayers
    space: LayerSpace

    @classmethod
    def of(cls, fronts: Fronts, gradients: dict[str, torch.Tensor], n_rows: int, *, in_half: bool) -> Contexts | None:
        """Return the first layer behind an attention whose gradient shows as many rows as there are tokens.

        Parameters
        ----------
        fronts : Fronts
            The model.
        gradients : dict of str to torch.Tensor
            By plain name.
        n_rows : int
            Number of different tokens and positions of the batch.
        in_half : bool
            As of `LayerSpace.of`.
        """
        for layers in fronts.later[:N_LATER]:
            try:
                space = LayerSpace.of(layers, gradients, fronts.rounding(layers), in_half=in_half)
            except SpaceTooLarge:
                continue
            if space.n_directions >= n_rows:
                return cls(fronts, layers, space)
        return None

    def costs(self, ids: torch.Tensor) -> np.ndarray:
        """Return the mean squared distance of the rows of sentences from the row space, relative to the rows."""
        rows = self.fronts.vectors(self.layers, ids)
        flat = rows.reshape(-1, rows.shape[-1])
        basis = torch.from_numpy(self.space.space.basis)
        inside = (flat @ basis.T).square().sum(1) / flat.square().sum(1)
        return (1 - inside).reshape(len(ids), -1).mean(1).numpy()

    def verified(self, ids: list[int], others: list[list[int]]) -> Verified:
        """Test whether a sentence is one of the batch.

        Parameters
        ----------
        ids : list of int
            The sentence.
        others : list of list of int
            Tokens that the batch has elsewhere, at each position: with one of them the sentence is a wrong one.
        """
        rows = self._rows([ids])[0]
        distances, expected = self.space.distances(rows, self.fronts.rounding(self.layers, torch.tensor([ids])))
        within = WITHIN * expected.max()
        if (distances > WITHIN * expected).any():
            return Verified(False, 1.0, float(distances.max()), rows)
        wrong = self._wrong(ids, others)
        far = [self.space.distances(part)[0].max() for part in self._rows(wrong)] if wrong else []
        p_value = min(1.0, len(wrong) * float(self.space.chance(np.array(far), np.array([within]))[0])) if far else 1.0
        return Verified(p_value <= SIGNIFICANCE, p_value, float(distances.max()), rows)

    def left_over(self, rows: list[np.ndarray]) -> float:
        """Return what the gradients have outside the span of sentences' rows, over the noise."""
        return self.space.left_over(np.vstack(rows))

    def _rows(self, sentences: list[list[int]]) -> np.ndarray:
        return self.fronts.vectors(self.layers, torch.tensor(sentences), is_exact=True).numpy()

    def _wrong(self, ids: list[int], others: list[list[int]]) -> list[list[int]]:
        """Return sentences that differ from one in one token: in the batch's own, and in any."""
        rng, found = np.random.default_rng(0), []
        own = [(place, token) for place, tokens in enumerate(others) for token in tokens if token != ids[place]]
        picked = [own[i] for i in rng.permutation(len(own))[: N_WRONG // 2]]
        places = rng.integers(len(ids), size=N_WRONG - len(picked))
        drawn = rng.integers(self.fronts.vocabulary_size, size=len(places))
        for place, token in [*picked, *zip(places.tolist(), drawn.tolist(), strict=True)]:
            if token != ids[place]:
                found.append([*ids[:place], int(token), *ids[place + 1 :]])
        return found
