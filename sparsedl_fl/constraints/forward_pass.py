"""The forward pass: the weights give the pre-activations of a candidate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparsedl_fl.layers.blocks import times
from sparsedl_fl.layers.layer_gradient import LayerGradient
from sparsedl_fl.lowrank.factors import LowRankGradient

__all__ = ["ForwardPass"]


@dataclass(frozen=True)
class ForwardPass:
    """The forward pass of a layer, at its initial weights and, of a FedAvg client, at its final ones as well.

    Attributes
    ----------
    passes : tuple of (matrix, bias)
        ``W V S`` of shape (m, b) and the bias of shape (m,): at the initial weights, then, for FedAvg, at the final.
    scale : ndarray of shape (b,)
        ``h = U^T g``.
    """

    passes: tuple[tuple[np.ndarray, np.ndarray], ...]
    scale: np.ndarray

    @classmethod
    def of(cls, layer_gradient: LayerGradient, factors: LowRankGradient) -> ForwardPass:
        """Return the forward pass for the factors of a layer's gradient."""
        U, S, bias = factors.left, factors.singular_values, layer_gradient.bias
        matrix = times(layer_gradient.weight, (S[:, None] * factors.right).T)
        passes = [(matrix, bias)]
        if layer_gradient.is_update:
            rate, moved = layer_gradient.learning_rate, U * S**2
            if layer_gradient.constant_input is not None:  # the bias moves by itself
                moved -= np.outer((U * S) @ factors.right[:, -1], factors.right[:, -1] * S)
            passes.append((matrix - rate * moved, bias - rate * layer_gradient.bias_grad))
        return cls(tuple(passes), U.T @ layer_gradient.bias_grad)

    @property
    def moves(self) -> bool:
        """Whether initial and final weights differ: those of a FedAvg client."""
        return len(self.passes) > 1

    def regressors(self, kink: float = 0.0) -> np.ndarray:
        """Return the matrix ``F`` of shape (m, b) with ``z - kink = F p`` for the row ``p`` of ``Q^-1`` of every input.

        Bias and kink enter as ``(bias - kink) h^T``, since ``h^T p = 1``. For FedAvg it is the mean over both passes.
        """
        return np.mean([matrix + np.outer(bias - kink, self.scale) for matrix, bias in self.passes], axis=0)

    def half_way(self) -> np.ndarray | None:
        """Return the matrix of shape (m, b) from ``p`` to half the change of pre-activations; None without a change."""
        if not self.moves:
            return None
        (first, bias), *_, (last, moved) = self.passes
        return (last - first + np.outer(moved - bias, self.scale)) / 2

    def preactivations(self, inverse: np.ndarray) -> list[np.ndarray]:
        """Return ``Z`` of shape (m, b) of each pass for ``P`` of shape (b, b); an input without scale gets NaN."""
        return self.at_weights(self.project(inverse), inverse @ self.scale)

    def typical(self, sizes: np.ndarray, n: int) -> np.ndarray:
        """Draw pre-activations of shape (n, m) from the prior.

        With ``sizes`` the singular values ``S``, ``sqrt(S) p`` is isotropic around the mean of the samples.
        """
        prior = sizes**-0.5
        common = self.scale * prior / np.sum((self.scale * prior) ** 2)
        drawn = np.random.default_rng(0).standard_normal((n, len(sizes)))
        drawn -= np.outer(drawn @ common, common) / np.sum(common**2)
        return (prior * (common + np.linalg.norm(common) * drawn)) @ self.regressors().T

    def project(self, inverse: np.ndarray) -> list[np.ndarray]:
        """Return ``W V S P^T`` of each pass."""
        return [matrix @ inverse.T for matrix, _ in self.passes]

    def at_weights(self, projected: list[np.ndarray], scale: np.ndarray) -> list[np.ndarray]:
        """Return ``Z`` of shape (..., m, b) of each pass, from `project` and the scale of shape (..., b)."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return [
                part / scale[..., None, :] + bias[:, None]
                for part, (_, bias) in zip(projected, self.passes, strict=True)
            ]
