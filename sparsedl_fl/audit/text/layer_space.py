"""The row space of the gradients of layers that are fed the same vectors: what lies in it, and whether that is all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from scipy.stats import chi2

from sparsedl_fl.audit.membership.row_space import CLEAR_END, RowSpace
from sparsedl_fl.audit.membership.strangers import Strangers
from sparsedl_fl.audit.text.front import TokenLayers
from sparsedl_fl.layers.blocks import in_double
from sparsedl_fl.layers.formats import UNIFORM, rounding_noise
from sparsedl_fl.lowrank.measured import precision_of

__all__ = ["LayerSpace", "SpaceTooLarge"]

WITHIN = 2.0
"""Distance from the row space over the expected one up to which a vector lies in it, as of records that are tested for
membership. (Of tokens of MiniLM 0.7 to 1.35; not varied.)"""

MOST_ENTRIES = 2**25
"""Largest matrix whose singular values are computed: half a minute on one core."""

OF_SINGLE, OF_HALF = float(np.finfo(np.float32).eps), 2.0**-7 * UNIFORM
"""Rounding of vectors in single precision at least (a client may add in another order), and in bfloat16."""

FEWEST_OPEN = 8
"""Dimensions outside the row space below which a wrong vector may lie near it by chance."""

MOST_STRANGERS = 2**14
"""Wrong vectors that p-values are computed from: more make them no better."""


class SpaceTooLarge(Exception):  # noqa: N818
    """The gradients of the layers show too many vectors, or are too large; the message says which."""


@dataclass(frozen=True, eq=False)
class LayerSpace:
    """The row space of stacked gradients, each row in units of the rounding of its entries.

    Attributes
    ----------
    matrix : ndarray of shape (m, n)
        The gradients.
    space : RowSpace
        Their row space.
    rounding : float
        Difference between the vectors that the client had and those that are tested, relative to them.
    name : str
        Of the first layer.
    is_coarse : bool
        Whether the gradients are in half precision or coarser.
    """

    matrix: np.ndarray
    space: RowSpace
    rounding: float
    name: str
    is_coarse: bool

    @classmethod
    def of(
        cls, layers: TokenLayers, gradients: Mapping[str, torch.Tensor], rounding: float, *, in_half: bool = False
    ) -> LayerSpace:
        """Return the row space of some layers.

        The gradient of the keys alone lacks a direction of each sentence, as the softmax over positions does not change
        where all keys change alike; together with those of queries and values it has all.

        Parameters
        ----------
        layers : TokenLayers
            The layers.
        gradients : mapping of str to torch.Tensor
            By plain name.
        rounding : float
            Difference of the client's vectors from those that are tested, relative to them.
        in_half : bool, default=False
            Whether the client may have computed in half precision, and fed the layers rounded vectors.

        Raises
        ------
        SpaceTooLarge
            If the gradients show no vector, have too few dimensions outside, or are too large.
        """
        parts = []
        for use in layers.uses:
            G = gradients[use.weight].detach().cpu()
            parts.append(in_double((G.T if use.is_transposed else G).double().numpy()))
        if sum(part.size for part in parts) > MOST_ENTRIES:
            raise SpaceTooLarge(f"the gradients of layer {layers.name!r} are too large: {MOST_ENTRIES} entries at most")
        matrix = np.vstack([_in_units_of_rounding(part) for part in parts])
        if not matrix.any():
            raise SpaceTooLarge(f"the gradient of layer {layers.name!r} is all zeros")
        is_coarse = any(rounding_noise(part) is not None for part in parts)
        rounding = max(rounding, OF_HALF if in_half and is_coarse else OF_SINGLE)
        found = cls(matrix, RowSpace.of(matrix), rounding, layers.name, is_coarse)
        if min(found.n_open) < FEWEST_OPEN or not found.n_directions:
            what = f"{len(found.space.sizes)} different tokens and positions or more" if len(found.space.sizes) else ""
            raise SpaceTooLarge(
                f"the batch has {what or 'more tokens'} than the gradient of layer {layers.name!r} shows: "
                f"{found.limit} at most"
            )
        return found

    @property
    def limit(self) -> int:
        """Number of vectors, different tokens or positions, up to which they show."""
        return max(0, min(self.space.shape) - FEWEST_OPEN)

    @property
    def n_open(self) -> tuple[int, int]:
        """Dimensions outside the row space."""
        return self.space.n_open

    @cached_property
    def n_directions(self) -> int:
        """Number of vectors above the noise, those that are clear."""
        return int(np.sum(self.space.sizes >= CLEAR_END * self._edge))

    @property
    def _edge(self) -> float:
        return self.space.noise * float(np.sum(np.sqrt(self.space.n_open)))

    def distances(self, vectors: np.ndarray, rounding: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
        """Return distances of vectors of shape (k, n) from the row space, and those expected in it, relative to them.

        The expected ones are of the noise of the gradients and of the vectors' own rounding, which may be larger for
        some vectors.
        """
        norms = np.maximum(np.linalg.norm(vectors, axis=1), np.finfo(float).tiny)
        expected = self.space.expected_distances(vectors) / norms
        return self.space.distances(vectors) / norms, np.hypot(expected, max(rounding, self.rounding))

    def chance(self, wrong: np.ndarray, within: np.ndarray) -> np.ndarray:
        """Return the chance that a wrong vector lies within distances from the row space.

        Parameters
        ----------
        wrong : ndarray of shape (k,)
            Distances of vectors that are wrong, relative to them.
        within : ndarray of shape (j,)
            Distances.

        Notes
        -----
        The larger of two: by the logarithms of the wrong distances, and by those of random vectors as far away on
        average, which have few small ones only where there are many dimensions outside.
        """
        if len(wrong) > MOST_STRANGERS:
            order = np.sort(wrong)
            wrong = order[np.linspace(0, len(order) - 1, MOST_STRANGERS).astype(int)]
        if not len(wrong):
            return np.ones(len(within))
        n_open = self.n_open[1]
        middle = float(np.median(wrong))
        at_random = chi2.cdf(n_open * (within / max(middle, np.finfo(float).tiny)) ** 2, n_open)
        return np.maximum(Strangers(wrong).chance_of(within), at_random)

    def left_over(self, vectors: np.ndarray) -> float:
        """Return how much the gradients have outside the span of vectors, over the largest noise that is likely.

        Up to one there is nothing that is clearly more than noise: the gradients are of these vectors alone.
        """
        m, n = self.space.shape
        _, S, basis = np.linalg.svd(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), full_matrices=False)
        basis = basis[np.finfo(float).eps * S[0] * max(vectors.shape) < S]
        left = self.matrix - (self.matrix @ basis.T) @ basis
        largest = float(np.linalg.norm(left, 2))
        of_vectors = WITHIN * self.rounding * self.space.sizes[0]
        return float(largest / (CLEAR_END * self.space.noise * (np.sqrt(m) + np.sqrt(n)) + of_vectors))

    @property
    def has_noise(self) -> bool:
        """Whether there is more noise than rounding can be, in which vectors with small gradients may hide."""
        return self.space.noise > MOST_NOISE


MOST_NOISE = 30.0
"""Noise over the rounding of one operation that products of a batch may have."""


def _in_units_of_rounding(G: np.ndarray) -> np.ndarray:
    """Return a gradient with each row over the rounding of its entries; rows of zeros are left out."""
    coarse = rounding_noise(G)
    if coarse is None:
        coarse = UNIFORM * precision_of(G) * np.sqrt(np.mean(G**2, axis=1))
    alive = coarse > 0
    return G[alive] / coarse[alive, None]
