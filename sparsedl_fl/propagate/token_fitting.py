"""A whole sample, all of its tokens together, fitted to several gradients at once.

What a linear layer is fed lies in the row space of its gradient. A layer in front of an attention says that of each
token by itself; with the model run forward, those behind say it too, of the same few pixels. So a sample that is
nearly right, a picture from the first attention (`sparsedl_fl.propagate.patches`), and with it every token, becomes as
exact as all of these layers together know it.
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
from sparsedl.process import neutral_modes
from sparsedl_fl.layers.given_arrays import as_float_array
from sparsedl_fl.layers.running_model import in_double
from sparsedl_fl.lowrank.spectrum import precision_of
from sparsedl_fl.tracing.naming import named_gradients, plain_modules
from sparsedl_fl.tracing.tracing import hooked

__all__ = ["FittedSample", "fit_to_row_spaces"]

MOST_ENTRIES = 10**9
"""Of the matrix of all equations: 8 GB."""

LENGTHS, WORTH = (1.0, 0.25, 0.0625), 0.01
"""Shares of a step that are tried, and the share of what is left that one has to take away for another to follow."""

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
        Expected error of each number, in its units, by what is left of the equations. No certificate: a wrong start
        that leaves as little is as likely.
    over_noise : float
        What is left of the equations, root mean square, over what the noise of the gradients leaves: about one.
    fed : dict of str to ndarray of shape (n_tokens, n)
        What each of the layers is fed.
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
    """Fit one sample to what the gradients of some linear layers say of it and of its tokens.

    Gauss and Newton's method on ``(h - h V V^T) / noise`` for what each layer is fed, ``h``, and an orthonormal basis
    ``V`` of the row space of its gradient, over the numbers of the sample; all equations are formed.

    Parameters
    ----------
    model : torch.nn.Module
        As the client had it, in evaluation mode.
    gradients : mapping of str to torch.Tensor
        By parameter name, of a batch of this one sample.
    sample : array-like or torch.Tensor of shape (1, ...)
        The start, as the model takes it.
    layers : sequence of str
        Names of linear layers that are fed more numbers a token than the sample has tokens.
    max_steps : int, default=8
        Steps at most; the last one that takes away less than a hundredth is the last of all.
    chunk_size : int, default=64
        Directions in which the model is run at the same time.

    Raises
    ------
    ValueError
        If a layer is no linear one of the model, has no gradient, or is fed no more numbers a token than there are
        tokens; if the sample is none of the model's, or there are fewer equations than numbers.

    Notes
    -----
    Measured on CIFAR-10 behind a vision transformer (3072 numbers, 65 tokens, two layers): 20 s a step on one core.
    """
    start = as_float_array("sample", sample)
    if start.ndim < 2 or len(start) != 1 or not np.isfinite(start).all():
        raise ValueError(f"sample must be finite and a batch of one, of shape (1, ...), got shape {start.shape}")
    x = as_tensor(start.astype(float))
    runner = _Fed(in_double(model).requires_grad_(False), list(layers))
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
    runner: _Fed, spaces: dict[str, _RowSpace], x: torch.Tensor, max_steps: int, chunk_size: int
) -> tuple[torch.Tensor, torch.Tensor, float, int]:
    """Return where Gauss and Newton's method ends, how exact that is, what it leaves, and the steps taken."""
    n_steps, is_over = 0, False
    while not is_over and n_steps < max_steps:
        here = runner(x)
        weights = {name: space.weights(here[name]) for name, space in spaces.items()}

        def left(sample: torch.Tensor, weights: dict[str, torch.Tensor] = weights) -> torch.Tensor:
            parts = [(rows @ spaces[name].outside) * weights[name] for name, rows in runner(sample).items()]
            return torch.cat([part.flatten() for part in parts])

        cost = left(x).square().sum()
        step, deviations = _step(left, x, chunk_size)
        moved = [x + length * step for length in LENGTHS]
        costs = torch.stack([left(there).square().sum() for there in moved])
        x = moved[int(costs.argmin())] if costs.min() < cost else x
        n_steps, is_over = n_steps + 1, not costs.min() < (1 - WORTH) * cost
    return x, deviations, float(torch.minimum(costs.min(), cost)), n_steps


class _Enough(Exception):  # noqa: N818
    """All layers were fed; the rest of the model need not run."""


class _Fed:
    """What some linear layers of a model are fed, token by token, for a sample."""

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
            # The fast kernels of attention cannot be run forward with derivatives.
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
    """The row space of a layer's gradient, and how exact it is.

    Attributes
    ----------
    inside : torch.Tensor of shape (n, r)
        Its orthonormal basis, over the singular values and in units of the noise.
    outside : torch.Tensor of shape (n, n - r)
        An orthonormal basis of what is orthogonal to it.
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
                f"layer {name!r} of {m} outputs and {n} inputs is fed {r} tokens: their span is everything"
            )
        if not np.isfinite(G).all() or not G.any():
            raise ValueError(f"the gradient of {name!r} must be finite and not all zero")
        left, S, right = torch.linalg.svd(as_tensor(G), full_matrices=True)
        noise = S[r:].norm() / ((m - r) * (n - r)) ** 0.5
        axes = noise / S[:r].clamp(min=torch.finfo(S.dtype).tiny)
        return cls(right[:r].T * axes, right[r:].T.contiguous(), r, precision_of(G))

    def weights(self, rows: torch.Tensor) -> torch.Tensor:
        """Return one over what the noise moves each row out of the space, by an entry, of shape (n_tokens, 1)."""
        expected = (rows @ self.inside).norm(dim=1)
        rounding = self.precision * rows.norm(dim=1) / self.outside.shape[1] ** 0.5
        return 1 / torch.hypot(expected, rounding)[:, None]


def _step(left: Callable, x: torch.Tensor, chunk_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the step that equations ask for near a sample, and the standard deviations that they leave it."""
    residual = left(x)
    jacobian = torch.empty((x.numel(), len(residual)), dtype=x.dtype)

    def along(direction: torch.Tensor) -> torch.Tensor:
        return torch.func.jvp(left, (x,), (direction.reshape(x.shape),))[1]

    for first in range(0, x.numel(), chunk_size):
        directions = torch.eye(x.numel(), dtype=x.dtype)[first : first + chunk_size]
        jacobian[first : first + chunk_size] = torch.func.vmap(along)(directions)
    matrix = jacobian @ jacobian.T
    units = matrix.diagonal().clamp(min=torch.finfo(x.dtype).tiny).rsqrt()
    matrix = units[:, None] * matrix * units
    matrix.diagonal().add_(RIDGE)
    root = torch.linalg.cholesky(matrix)
    step = units * torch.cholesky_solve((units * (jacobian @ residual))[:, None], root)[:, 0]
    deviations = units * torch.cholesky_inverse(root).diagonal().sqrt()
    return -step.reshape(x.shape), deviations.reshape(x.shape)
