"""The scale of a layer's inputs where no bias has a gradient: by what the next layer is fed.

``G = D X^T`` shows each input but for a factor, and the bias gradient ``g = D 1`` tells the factors. With any other
column ``r`` in its place, ``[G, r]`` is the gradient of the batch and of one more input: of zeros, with the column
``r - D 1``. Its activations are seen nowhere; those of the batch lie in the row space of the next layer's gradient, at
one scale alone, unless the activations are proportional to the input, as those of ReLU without a bias.
"""

from __future__ import annotations

import numpy as np
import torch

from sparsedl.arrays import as_tensor
from sparsedl.process import one_thread
from sparsedl_fl.activations import Activation, resolve
from sparsedl_fl.inverter import GradientInverter
from sparsedl_fl.layers.blocks import row_norms
from sparsedl_fl.layers.layer_gradient import LayerGradient

__all__ = ["NoScale", "hides_scale", "next_gradient", "stand_in", "sums_of_batch"]

SHARES = (1e-3, 1e-4, 1e-2)
"""Sizes of what stands in for the bias gradient, over the sum of the gradient's columns, in the order in which they are
tried. (Seventeen batches behind smooth activations, digits at 120 units, CIFAR-10 at 200, adapters: the first showed
all inputs of 13, the second those of three more; with the noise of one adapter only the third did. Of 0.1, nothing.)"""

NOTHING = 0.05
"""Size of the input of zeros, over the median of the others, up to which it is that."""

OF_SCALE = 3.0
"""Factor on the errors of scales: rounding is not white. (1, 8 and 20 digits behind five activations, biases as PyTorch
draws them to a 300th of that: the true error over the expected one had a median of 0.8 and was 4.0 at most, of 104.)"""

MOST_NOISE = 5e-4
"""Errors of the sums, relative to them, up to which they are used: from 1e-3 on they would belong to no batch."""

SMALL = 1e-6
"""Relative change of a scale by which activations are differentiated."""


class NoScale(ValueError):
    """The scale of a layer's inputs does not follow; says why."""


def hides_scale(phi: Activation, bias: np.ndarray | torch.Tensor | None) -> bool:
    """Return whether a layer's activations at any multiple of an input are the same multiple, as with ReLU and no bias.

    Examples
    --------
    >>> from sparsedl_fl.activations import GELU, ReLU
    >>> hides_scale(ReLU(), None), hides_scale(GELU(), None), hides_scale(ReLU(), np.ones(3))
    (True, False, False)
    """
    if bias is not None and bool((bias != 0).any()):
        return False
    z = torch.linspace(-8.0, 8.0, 101, dtype=torch.float64)
    return bool(torch.allclose(phi.value(2 * z), 2 * phi.value(z), rtol=1e-9, atol=0.0))


def stand_in(weight_grad: torch.Tensor, share: float) -> torch.Tensor:
    """Return a column in place of the bias gradient, (m,): noise in proportion to the rows of the gradient, (m, n)."""
    G = weight_grad.detach().cpu().double().numpy()
    drawn = row_norms(G) * np.random.default_rng(0).standard_normal(len(G))
    size = share * np.linalg.norm(G.sum(axis=1)) / max(np.linalg.norm(drawn), np.finfo(float).tiny)
    return torch.from_numpy(size * drawn)


@one_thread()
def sums_of_batch(fitted: GradientInverter, given: LayerGradient) -> torch.Tensor:
    """Return the gradients at a layer's outputs, summed over the batch, as a bias would have had them.

    What the scales may be off by is drawn into what is outside the column space, where attacks look for noise.

    Parameters
    ----------
    fitted : GradientInverter
        Fitted to the layer with `stand_in` in place of its bias gradient, and the bias as one more input.
    given : LayerGradient
        That layer.

    Returns
    -------
    torch.Tensor of shape (m,)

    Raises
    ------
    NoScale
        Where not all inputs are known.
    """
    inputs = fitted.inputs_
    sizes = np.sqrt(np.mean(inputs**2, axis=1))
    order = np.argsort(sizes)
    if len(inputs) < 2 or not sizes[order[0]] <= NOTHING * np.median(sizes) or not np.isfinite(inputs).all():
        raise NoScale(
            f"no bias gradient was sent, and without it not all of {max(1, len(inputs) - 1)} inputs were found by the "
            "next layer's gradient: all are needed"
        )
    inputs = inputs[np.sort(order[1:])]
    columns = np.linalg.lstsq(inputs.T, given.weight_grad.astype(np.float64).T, rcond=None)[0].T
    found = with_errors(columns, errors_of_scales(given, inputs))
    share = float(np.linalg.norm(found - columns.sum(axis=1)) / np.linalg.norm(columns.sum(axis=1)))
    if not share <= MOST_NOISE:
        raise NoScale(
            f"no bias gradient was sent, and the next layer's gradient shows the scales of {len(inputs)} inputs to "
            f"within {share:.1g}, {MOST_NOISE:.1g} are in range: the biases are small, or not all inputs were found"
        )
    return torch.from_numpy(found)


def next_gradient(given: LayerGradient) -> np.ndarray:
    """Return the next layer's weight gradient, which tells the scales of a layer's inputs; `NoScale` without one."""
    if not given.layers or given.layers[0].weight_grad is None:
        raise NoScale("neither a bias gradient was sent nor the next layer's gradient, which would tell the scale")
    return given.layers[0].weight_grad


def errors_of_scales(given: LayerGradient, inputs: np.ndarray) -> np.ndarray:
    """Return by how much the scale of each input may be off, relative to it, of shape (b,).

    What activations have outside the next layer's row space is their error, and so is the part of it that a change of
    scale would have made.

    Parameters
    ----------
    given : LayerGradient
        The layer.
    inputs : ndarray of shape (b, n)
        Its inputs.

    Raises
    ------
    NoScale
        Where that row space is not known.
    """
    b, m = len(inputs), given.shape[0]
    following = next_gradient(given)
    if min(following.shape) <= b:
        raise NoScale(f"no bias gradient was sent, and the next layer has too few outputs to show {b} inputs")
    basis = np.linalg.svd(following.astype(np.float64), full_matrices=False)[2][:b]
    phi, z = resolve(given.activation), inputs @ given.weight.T.astype(np.float64)
    here, moved = (phi.value(as_tensor(factor * z + given.bias)).numpy() for factor in (1.0, 1.0 + SMALL))
    outside, derivative = (part - part @ basis.T @ basis for part in (here, (moved - here) / SMALL))
    sizes = np.linalg.norm(derivative, axis=1).clip(np.finfo(float).tiny)
    return OF_SCALE * np.linalg.norm(outside, axis=1) / np.sqrt(m - b) / sizes


def with_errors(columns: np.ndarray, errors: np.ndarray) -> np.ndarray:
    """Return the sum of columns, (m,), with their errors drawn into what is outside their span.

    Parameters
    ----------
    columns : ndarray of shape (m, b)
        Gradients at a layer's outputs.
    errors : ndarray of shape (b,)
        Relative errors of their scales.
    """
    basis = np.linalg.qr(columns)[0]
    rows = np.sqrt(np.sum((columns * errors) ** 2, axis=1))
    # White noise on the sum moves the scale of a column by as much as the column's own dual is long.
    level = np.max(errors / np.linalg.norm(np.linalg.pinv(columns), axis=1))
    noise = level * rows / max(np.sqrt(np.mean(rows**2)), np.finfo(float).tiny)
    noise = noise * np.random.default_rng(0).standard_normal(len(columns))
    return columns.sum(axis=1) + noise - basis @ (basis.T @ noise)
