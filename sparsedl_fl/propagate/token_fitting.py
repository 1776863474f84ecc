"""A whole sample, with all its tokens, fitted to several gradients at once.

The inputs of a linear layer lie in the row space of its gradient. For a layer before an attention these are equations
for each token by itself; with the model run forward, later layers give further equations for the same few pixels. A
sample that is nearly right, such as a picture from the first attention (`sparsedl_fl.propagate.patches`), and every
token of it become as exact as all of these layers together determine it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from sparsedl.arrays import as_tensor
from sparsedl.process import neutral_modes, without_warnings_of_jit
from sparsedl_fl.layers.given_arrays import as_float_array
from sparsedl_fl.layers.running_model import in_double
from sparsedl_fl.lowrank.measured import precision_of
from sparsedl_fl.tracing.naming import named_gradients, plain_modules
from sparsedl_fl.tracing.tracing import hooked

__all__ = ["FittedSample", "fit_to_row_spaces"]

MOST_ENTRIES = 10**9
"""Largest number of entries of the matrix of all equations: 8 GB."""

LENGTHS, WORTH = (1.0, 0.25, 0.0625), 0.01
"""Step lengths that are tried, and the share by which a step has to reduce the cost for another to follow."""

RIDGE = 1e-13
"""Keeps the matrix, with a unit diagonal, regular in double precision."""


@dataclass(frozen=True, eq=False)
class FittedSample:
    """A sample that was fitted to the row spaces of several gradients.

    Attributes
    ----------
    values : ndarray
        The sample, in the shape that the model takes, with a first axis of length one.
    errors : ndarray
        Expected error of each number, in its units, from the residual of the equations. It is no certificate: a fit
        from a wrong start may have as small a residual.
    over_noise : float
        Residual of the equations, root mean square, over that of the noise: about one.
    fed : dict of str to ndarray of shape (n_tokens, n)
        Inputs of each of the layers.
    n_steps : int
        Steps that were taken.
    """

    values: np.ndarray
    errors: np.ndarray
    over_noise: float
    fed: dict[str, np.ndarray]
    n_steps: int


@neutral_modes(gradients=True)
def fit_to_row_spaces(
    model: nn.Module,
    gradients: Mapping[str, torch.Tensor],
    sample: Any,
    layers: Sequence[str],
    *,
    max_steps: int = 8,
    chunk_size: int = 64,
) -> FittedSample:
    """Fit one sample, with all its tokens, to the gradients of some linear layers.

    Gauss-Newton on ``(h - h V V^T) / noise`` for the inputs ``h`` of each layer and an orthonormal basis ``V`` of the
    row space of its gradient, over the numbers of the sample; the matrix of all equations is formed.

    Parameters
    ----------
    model : torch.nn.Module
        As the client had it, in evaluation mode.
    gradients : mapping of str to torch.Tensor
        By parameter name, of a batch of this one sample.
    sample : array-like or torch.Tensor of shape (1, ...)
        The start, as the model takes it.
    layers : sequence of str
        Names of linear layers with more inputs than the sample has tokens.
    max_steps : int, default=8
        Largest number of steps; a step that reduces the cost by less than a hundredth is the last.
    chunk_size : int, default=64
        Number of directions in which the model is differentiated at the same time.

    Raises
    ------
    ValueError
        If a layer is no linear layer of the model, has no gradient, or has no more inputs than there are tokens; if the
        model does not take the sample, or there are fewer equations than numbers.

    Notes
    -----
    Measured with a vision transformer on CIFAR-10 (3072 numbers, 65 tokens, two layers): 20 s a step on one core.
    """
    start = as_float_array("sample", sample)
    if start.ndim < 2 or len(start) != 1 or not np.isfinite(start).all():
        raise ValueError(f"sample must be finite and a batch of one, of shape (1, ...), got shape {start.shape}")
    x = as_tensor(start.astype(float))
    runner = _LayerInputs(in_double(model).requires_grad_(False), list(layers))
    given = named_gradients(model, gradients)
    spaces = {name: _RowSpace.of(name, given.get(f"{name}.weight"), rows) for name, rows in runner(x).items()}
    n_equations = sum(space.n_tokens * space.outside.shape[1] for space in spaces.values())
    if not x.numel() < n_equations < MOST_ENTRIES / x.numel():
        raise ValueError(
            f"{list(layers)} have {n_equations} equations for the {x.numel()} numbers of the sample; there must be "
            f"more of them, and less than {8 * MOST_ENTRIES / 1e9:g} GB of both"
        )
    x, deviations, cost, n_steps = _fitted(runner, spaces, x, max_steps, chunk_size)
    over_noise = (cost / (n_equations - x.numel())) ** 0.5
    found = {name: rows.numpy() for name, rows in runner(x).items()}
    return FittedSample(x.numpy(), deviations.numpy() * max(1.0, over_noise), over_noise, found, n_steps)


def _fitted(
    runner: _LayerInputs, spaces: dict[str, _RowSpace], x: torch.Tensor, max_steps: int, chunk_size: int
) -> tuple[torch.Tensor, torch.Tensor, float, int]:
    """Return the sample by Gauss-Newton, its standard deviations, the cost, and the number of steps."""
    n_steps, is_over = 0, False
    while not is_over and n_steps < max_steps:
        here = runner(x)
        weights = {name: space.weights(here[name]) for name, space in spaces.items()}

        def residuals(sample: torch.Tensor, weights: dict[str, torch.Tensor] = weights) -> torch.Tensor:
            parts = [(rows @ spaces[name].outside) * weights[name] for name, rows in runner(sample).items()]
            return torch.cat([part.flatten() for part in parts])

        cost = residuals(x).square().sum()
        step, deviations = _step(residuals, x, chunk_size)
        candidates = [x + length * step for length in LENGTHS]
        costs = torch.stack([residuals(there).square().sum() for there in candidates])
        x = candidates[int(costs.argmin())] if costs.min() < cost else x
        n_steps, is_over = n_steps + 1, not costs.min() < (1 - WORTH) * cost
    return x, deviations, float(torch.minimum(costs.min(), cost)), n_steps


class _Enough(Exception):  # noqa: N818
    """All layers have run; later modules are not needed."""


class _LayerInputs:
    """Computes the inputs of some linear layers of a model, one row a token, for a sample."""

    def __init__(self, model: nn.Module, names: list[str]) -> None:
        modules = plain_modules(model, nn.Linear)
        strange = next((name for name in names if name not in modules), None)
        if strange is not None or not names:
            raise ValueError(f"layers must name linear layers of the model, got {strange or names!r}")
        self.model, self.names = model, {modules[name]: name for name in names}

    def __call__(self, sample: torch.Tensor) -> dict[str, torch.Tensor]:
        found: dict[str, torch.Tensor] = {}

        def keep(module: nn.Module, given: tuple[torch.Tensor, ...]) -> None:
            found[self.names[module]] = given[0].flatten(0, -2)
            if len(found) == len(self.names):
                raise _Enough

        try:
            # The fast kernels of attention have no forward-mode derivatives.
            with sdpa_kernel(SDPBackend.MATH), hooked(dict.fromkeys(self.names, keep), before=True):
                self.model(sample)
        except _Enough:
            pass
        except (RuntimeError, ValueError, IndexError) as error:
            raise ValueError(f"the model does not take a sample of shape {tuple(sample.shape)}: {error}") from error
        missing = next((name for name in self.names.values() if name not in found), None)
        if missing is not None:
            raise ValueError(f"layers: the model does not use {missing!r}")
        return found


@dataclass(frozen=True, eq=False)
class _RowSpace:
    """The row space of a layer's gradient, with its errors.

    Attributes
    ----------
    inside : torch.Tensor of shape (n, r)
        Its orthonormal basis times noise over singular values.
    outside : torch.Tensor of shape (n, n - r)
        An orthonormal basis of its orthogonal complement.
    n_tokens : int
        ``r``.
    precision : float
        Of the client's numbers.
    """

    inside: torch.Tensor
    outside: torch.Tensor
    n_tokens: int
    precision: float

    @classmethod
    def of(cls, name: str, gradient: torch.Tensor | None, rows: torch.Tensor) -> _RowSpace:
        if gradient is None:
            raise ValueError(f"gradients has no weight gradient of layer {name!r}")
        G = as_float_array(f"the gradient of {name!r}", gradient).astype(float)
        (m, n), r = G.shape, len(rows)
        if min(m, n) <= r:
            raise ValueError(
                f"layer {name!r} of {m} outputs and {n} inputs is fed {r} tokens, too many for its gradient to show"
            )
        if not np.isfinite(G).all() or not G.any():
            raise ValueError(f"the gradient of {name!r} must be finite and not all zero")
        left, S, right = torch.linalg.svd(as_tensor(G), full_matrices=True)
        noise = S[r:].norm() / ((m - r) * (n - r)) ** 0.5
        axes = noise / S[:r].clamp(min=torch.finfo(S.dtype).tiny)
        return cls(right[:r].T * axes, right[r:].T.contiguous(), r, precision_of(G))

    def weights(self, rows: torch.Tensor) -> torch.Tensor:
        """Return one over the deviation of each row from the space by noise, an entry, of shape (n_tokens, 1)."""
        expected = (rows @ self.inside).norm(dim=1)
        rounding = self.precision * rows.norm(dim=1) / self.outside.shape[1] ** 0.5
        return 1 / torch.hypot(expected, rounding)[:, None]


def _step(residuals: Callable, x: torch.Tensor, chunk_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the Gauss-Newton step at a sample, and the standard deviations of its numbers."""
    residual = residuals(x)
    jacobian = torch.empty((x.numel(), len(residual)), dtype=x.dtype)

    def along(direction: torch.Tensor) -> torch.Tensor:
        return torch.func.jvp(residuals, (x,), (direction.reshape(x.shape),))[1]

    for first in range(0, x.numel(), chunk_size):
        directions = torch.eye(x.numel(), dtype=x.dtype)[first : first + chunk_size]
        with without_warnings_of_jit():
            jacobian[first : first + chunk_size] = torch.func.vmap(along)(directions)
    matrix = jacobian @ jacobian.T
    units = matrix.diagonal().clamp(min=torch.finfo(x.dtype).tiny).rsqrt()
    matrix = units[:, None] * matrix * units
    matrix.diagonal().add_(RIDGE)
    root = torch.linalg.cholesky(matrix)
    step = units * torch.cholesky_solve((units * (jacobian @ residual))[:, None], root)[:, 0]
    deviations = units * torch.cholesky_inverse(root).diagonal().sqrt()
    return -step.reshape(x.shape), deviations.reshape(x.shape)
