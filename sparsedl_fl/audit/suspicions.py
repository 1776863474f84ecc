"""Facts of a client that the update itself shows: weights sent for an update, rounding of weights, penalties."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import nn

from sparsedl_fl.layers.stored_weights import step_of_stored_weights
from sparsedl_fl.tracing.naming import plain_name, plain_parameters

__all__ = ["check_is_update", "rounding_noted", "without_penalties"]

BLOCKS = (96, 512)
"""Rows of the block of a matrix that is examined, with twice as many columns: any block contains the same multiple of
the weights. For most gradients a small block shows that the rank is low, and that there is no such multiple."""

FULL_RANK = 1e-5
"""Smallest singular value of a block over its largest, below which its rank is not full: rounding has 1e-7."""

LEAST_WEIGHTS = 256
"""Entries of a matrix below which its rounding is not looked for."""

LEAST_ROWS = 8
"""Rows and columns below which the eigenvalues are so few that they may agree by chance."""

AGREE = 0.02
"""Spread of the middle quarter of the eigenvalues, relative to them, up to which they are one."""

LEAST = 1e-5
"""Share of a gradient above which a multiple of the weights in it is more than rounding."""


def check_is_update(model: nn.Module, gradients: Mapping[str, torch.Tensor | None]) -> None:
    """Raise ``ValueError`` where the gradients are the model's own weights."""
    parameters = plain_parameters(model)
    pairs = [
        (parameters[name], tensor)
        for name, tensor in gradients.items()
        if name in parameters and tensor is not None and tensor.shape == parameters[name].shape
    ]
    if pairs and all(torch.equal(own.detach().cpu().float(), sent.detach().cpu().float()) for own, sent in pairs):
        raise ValueError(
            "the update equals the model's weights: nothing was trained in between, or the file of weights was given "
            "twice; pass the weights before training as the model's, and those after it (or the gradient) as the update"
        )


def rounding_noted(model: nn.Module, gradients: Mapping[str, torch.Tensor | None]) -> tuple[str, ...]:
    """Return a note, or none, that an update is the difference of stored weights, whose rounding is its noise."""
    for name, weight in model.named_parameters():
        sent = gradients.get(plain_name(name))
        if sent is None or weight.ndim != 2 or weight.numel() < LEAST_WEIGHTS or not sent.any():
            continue
        own = (tensor.detach().cpu() for tensor in (weight, sent))
        held, moved = (t.float().numpy() if t.dtype is torch.bfloat16 else t.numpy() for t in own)  # no NumPy type
        step = step_of_stored_weights(held, moved)
        if step is not None:
            digits = np.spacing(np.abs(held).astype(np.float32)).astype(np.float64)
            share = step * np.sqrt(np.mean(digits**2) / 12) / np.sqrt(np.mean(moved.astype(np.float64) ** 2))
            return (
                f"the update is the difference of stored weights, at a learning rate of {1 / step:.3g}: rounding is "
                f"noise of {share:.1g} of its size, and hides inputs whose gradients are smaller",
            )
    return ()


def without_penalties(
    model: nn.Module, gradients: Mapping[str, torch.Tensor | None]
) -> tuple[dict[str, torch.Tensor | None], tuple[str, ...]]:
    """Subtract multiples of the weights, or of their signs, from gradients: weight decay, or a penalty in the loss.

    ``u = G + c W`` with ``G`` of rank ``b``: all eigenvalues of the pencil ``(u, W)`` but ``b`` are ``c``.

    Parameters
    ----------
    model : torch.nn.Module
        At the weights that the client was given.
    gradients : mapping of str to torch.Tensor
        What it sent, by plain name.

    Returns
    -------
    cleaned : dict of str to torch.Tensor
        The gradients without them, by plain name.
    notes : tuple of str
        What was subtracted, a sentence each.
    """
    parameters = plain_parameters(model)
    cleaned, notes = dict(gradients), []
    for name, tensor in gradients.items():
        weight: torch.Tensor = parameters.get(name)
        if tensor is None or weight is None or weight.ndim != 2 or min(weight.shape) < LEAST_ROWS:
            continue
        tensor, weight = tensor.detach().cpu(), weight.detach().cpu()
        for what, penalty in (("the weights", weight), ("the signs of the weights", weight.sign())):
            factor = _factor(tensor, penalty)
            if factor is None:
                continue
            cleaned[name] = tensor.double() - factor * penalty.double()
            notes.append(
                f"the update of {name!r} has {factor:.3g} times {what} in it, from weight decay or a penalty in the "
                "loss and not from the batch; this was subtracted"
            )
            bias = name.removesuffix("weight") + "bias"
            if bias != name and bias in parameters and gradients.get(bias) is not None:
                own = parameters[bias].detach().cpu().double()
                own = own if penalty is weight else own.sign()
                cleaned[bias] = _bias_without(cleaned[name], gradients[bias].detach().cpu().double(), factor * own)
            break
    return cleaned, tuple(notes)


def _factor(gradient: torch.Tensor, penalty: torch.Tensor) -> float | None:
    """Return the factor of a penalty in a gradient, or None where there is none."""
    if gradient.shape[0] > gradient.shape[1]:
        gradient, penalty = gradient.T, penalty.T
    rng, found = np.random.default_rng(0), None
    alive = [np.flatnonzero(gradient.any(dim=axis).numpy()) for axis in (1, 0)]
    for n_rows in BLOCKS:
        rows, columns = rng.permutation(alive[0])[:n_rows], rng.permutation(alive[1])[: 2 * n_rows]
        if min(len(rows), len(columns)) < LEAST_ROWS:
            return None
        u, W = (tensor[rows][:, columns].double().numpy() for tensor in (gradient, penalty))
        values = np.linalg.svd(u, compute_uv=False)
        if values[-1] <= FULL_RANK * values[0]:
            return None
        found = _factor_of_block(u, W)
        if found is not None:
            break
    return found


def _factor_of_block(u: np.ndarray, W: np.ndarray) -> float | None:
    if len(u) > u.shape[1]:
        u, W = u.T, W.T
    values = np.sort(np.linalg.eigvals(u @ np.linalg.pinv(W)).real)
    factor = float(np.median(values))
    low, high = np.quantile(values, [0.375, 0.625])
    if abs(factor) * np.linalg.norm(W) <= LEAST * np.linalg.norm(u) or high - low > AGREE * abs(factor):
        return None
    # Orthogonal to the gradient's column space the update is the penalty alone.
    left, _, _ = np.linalg.svd(u - factor * W, full_matrices=False)
    quiet = left[:, len(left) // 2 :].T
    return float(np.sum((quiet @ u) * (quiet @ W)) / np.sum((quiet @ W) ** 2))


def _bias_without(weight_grad: torch.Tensor, bias_grad: torch.Tensor, penalty: torch.Tensor) -> torch.Tensor:
    """Return a bias gradient without the penalty, or with it: whichever is nearer to the column space."""
    left, values, _ = torch.linalg.svd(weight_grad, full_matrices=False)
    basis = left[:, values > 1e-5 * values[0]]

    def outside(vector: torch.Tensor) -> float:
        return float((vector - basis @ (basis.T @ vector)).norm())

    without = bias_grad - penalty
    return without if outside(without) < outside(bias_grad) else bias_grad
