"""Pictures from the gradient of a vision transformer's first attention, by linear equations.

A token is affine in the pixels of its patch, ``t = E x + e`` with a constant of its position, and layer normalisation
turns it into ``gamma * (t - mean t) / s + beta``. The row space of the gradient of the next layer, that of queries,
keys and values, contains these for all tokens of a picture. The part outside that space is linear in ``x`` and ``s``,
and a token is much longer than a patch with few colours: there are more equations than unknowns, and no search is
needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from sparsedl.arrays import as_tensor
from sparsedl.process import neutral_modes
from sparsedl_fl.activations import Identity
from sparsedl_fl.constraints import ActivationSubspace
from sparsedl_fl.layers.given_arrays import as_float_array
from sparsedl_fl.lowrank.measured import precision_of

__all__ = ["PatchEmbedding", "RecoveredPatches", "recover_patches"]

LEAST_SURPLUS = 16
"""Least number of equations of a patch beyond its unknowns, so that their residual shows its error."""

ABOVE_ROUNDING = 3.0
"""Multiple of the rounding of the largest singular value above which the next one after a picture's tokens belongs to
another picture: with one picture of CIFAR-10 it was 0.2 to 0.4, with two 8 and more (three networks, untrained and
after 200 steps)."""


@dataclass(frozen=True, eq=False)
class PatchEmbedding:
    """The patch embedding of a vision transformer, up to its first attention.

    Attributes
    ----------
    weight : ndarray of shape (d, k)
        ``E``: from the ``k`` numbers of a patch to a token.
    offsets : ndarray of shape (n_patches, d)
        ``e``: bias and position of each patch.
    norm_weight, norm_bias : ndarray of shape (d,)
        ``gamma`` and ``beta`` of the normalisation before the attention.
    n_others : int, default=1
        Tokens that are no patches: the class token.
    """

    weight: np.ndarray
    offsets: np.ndarray
    norm_weight: np.ndarray
    norm_bias: np.ndarray
    n_others: int = 1

    def __post_init__(self) -> None:
        d = self.norm_weight.shape[-1]
        shapes = self.weight.shape[:1], self.offsets.shape[1:], self.norm_weight.shape, self.norm_bias.shape
        if any(shape != (d,) for shape in shapes):
            raise ValueError(f"all parts of a patch embedding must belong to tokens of one length, got {shapes}")

    @classmethod
    def of(
        cls, convolution: nn.Conv2d, positions: torch.Tensor, norm: nn.LayerNorm, *, n_others: int = 1
    ) -> PatchEmbedding:
        """Take the parts of a model.

        Parameters
        ----------
        convolution : torch.nn.Conv2d
            From pixels to tokens, with a stride as long as its kernel.
        positions : torch.Tensor of shape (1, n_others + n_patches, d)
            Position embedding of the tokens, those that are no patches first.
        norm : torch.nn.LayerNorm
            Before the attention.
        n_others : int, default=1
            Tokens that are no patches.

        Examples
        --------
        >>> patches, positions = nn.Conv2d(3, 192, kernel_size=4, stride=4), torch.zeros(1, 65, 192)
        >>> PatchEmbedding.of(patches, positions, nn.LayerNorm(192)).offsets.shape
        (64, 192)
        """
        if convolution.kernel_size != convolution.stride or convolution.groups != 1:
            raise ValueError(
                "convolution must cut pictures into patches, with a stride as long as its kernel, got "
                f"kernel_size={convolution.kernel_size}, stride={convolution.stride}, groups={convolution.groups}"
            )
        offsets = positions.detach().double().cpu().numpy().reshape(-1, positions.shape[-1])[n_others:]
        d = offsets.shape[1]
        ones = torch.ones(d, dtype=torch.float64) if norm.weight is None else norm.weight
        parts = {"bias": convolution.bias, "norm_weight": ones, "norm_bias": norm.bias}
        found = {
            name: np.zeros(d) if part is None else part.detach().double().cpu().numpy() for name, part in parts.items()
        }
        weight = convolution.weight.detach().double().cpu().numpy().reshape(d, -1)
        return cls(weight, offsets + found["bias"], found["norm_weight"], found["norm_bias"], n_others)

    @property
    def patch_side(self) -> int:
        """Pixels along a patch of three colours."""
        return round((self.weight.shape[1] / 3) ** 0.5)

    @property
    def n_tokens(self) -> int:
        """Tokens of a picture."""
        return len(self.offsets) + self.n_others


@dataclass(frozen=True, eq=False)
class RecoveredPatches:
    """The patches of a picture.

    Attributes
    ----------
    values : ndarray of shape (n_patches, k)
        As the convolution takes them: channels, rows, columns.
    errors : ndarray of shape (n_patches,)
        Expected root-mean-square error of each, from the residual of its equations.
    residuals : ndarray of shape (n_patches,)
        Residual of the equations, over the size of the normalised token.
    """

    values: np.ndarray
    errors: np.ndarray
    residuals: np.ndarray

    def picture(self, n_channels: int = 3) -> np.ndarray:
        """Return the square picture, of shape (n_channels, side, side)."""
        n, side = round(len(self.values) ** 0.5), round((self.values.shape[1] / n_channels) ** 0.5)
        blocks = self.values.reshape(n, n, n_channels, side, side)
        return blocks.transpose(2, 0, 3, 1, 4).reshape(n_channels, n * side, n * side)


@neutral_modes(gradients=True)
def recover_patches(weight_grad: Any, embedding: PatchEmbedding) -> RecoveredPatches:
    """Return the pixels of a picture from the gradient of a batch of one.

    Parameters
    ----------
    weight_grad : array-like or torch.Tensor of shape (m, d)
        Gradient of the weights of the first linear layer after the normalisation: queries, keys and values together.
    embedding : PatchEmbedding
        The model's patch embedding.

    Raises
    ------
    ValueError
        If tokens are too short for their number, or the gradient has more tokens than one picture.

    Notes
    -----
    With two pictures each position would have a line of patches, with both pictures' where the token has the right
    length. In single precision the gradient shows some 100 of 129 tokens, so that this is not implemented.
    """
    G = np.asarray(as_float_array("weight_grad", weight_grad), dtype=float)
    d, n_tokens = len(embedding.norm_weight), embedding.n_tokens
    if G.ndim != 2 or G.shape[1] != d or not np.isfinite(G).all() or not G.any():
        raise ValueError(f"weight_grad must be of shape (m, {d}), finite and not all zero, got shape {G.shape}")
    n_unknown = embedding.weight.shape[1] + int(embedding.norm_bias.any())
    freedom = d - 1 - n_tokens - n_unknown  # the mean takes one
    if freedom < LEAST_SURPLUS or len(G) <= n_tokens:
        raise ValueError(
            f"tokens of length {d} leave {max(0, d - 1 - n_tokens)} equations for the {n_unknown} unknowns of each "
            f"patch, with {n_tokens} tokens a picture and a gradient of {len(G)} rows"
        )
    singular_values = np.linalg.svd(G, compute_uv=False)
    if singular_values[n_tokens] > ABOVE_ROUNDING * precision_of(G) * singular_values[0]:
        raise ValueError(f"the gradient has more than the {n_tokens} tokens of one picture")
    subspace = ActivationSubspace.of(G, n_tokens, Identity())
    by_pixels = _normalised(embedding.weight.T, embedding)
    by_position = _normalised(embedding.offsets, embedding)
    equations = subspace.outside(as_tensor(np.vstack([by_pixels, embedding.norm_bias]))).numpy().T
    constant = subspace.outside(as_tensor(by_position)).numpy().T
    inverse = np.linalg.pinv(equations)
    solution = -inverse @ constant
    residuals = np.linalg.norm(equations @ solution + constant, axis=0)
    values = solution[:-1].T
    sizes = np.linalg.norm(values @ by_pixels + by_position + solution[-1][:, None] * embedding.norm_bias, axis=1)
    errors = residuals / np.sqrt(freedom) * np.linalg.norm(inverse[:-1]) / np.sqrt(values.shape[1])
    return RecoveredPatches(values, errors, residuals / sizes)


def _normalised(tokens: np.ndarray, embedding: PatchEmbedding) -> np.ndarray:
    """Return tokens as rows without their mean, weighted; their length is the unknown ``s``."""
    return embedding.norm_weight * (tokens - tokens.mean(axis=1, keepdims=True))
