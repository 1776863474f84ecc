"""The scale of a layer's inputs where no bias has a gradient: by what the next layer is fed.

``G = D X^T`` shows each input but for a factor, and the bias gradient ``g = D 1`` tells the factors. With any other
column ``r`` in its place, ``[G, r]`` is the gradient of the batch and of one more input: of zeros, with the column
``r - D 1``. Its activations are seen nowhere; those of the batch lie in the row space of the next layer's gradient, at
one scale alone, unless the activations are proportional to the input, as those of ReLU without a bias.
"""

from __future__ import annotations

import numpy as np
import torch

from sparsedl.process import one_thread
from sparsedl_fl.activations import Activation
from sparsedl_fl.inverter import GradientInverter
from sparsedl_fl.layers.blocks import row_norms
from sparsedl_fl.layers.layer_gradient import LayerGradient

__all__ = ["NoScale", "hides_scale", "stand_in", "sums_of_batch"]

NOTHING = 0.05
"""Size of the input of zeros, over the median of the others, up to which it is that."""

MOST_ERROR = 0.1
"""Expected error of an input, over its size, up to which its scale counts as known."""

OF_SCALE = 3.0
"""Factor on these errors as errors of the scale. (Biases a hundredth and a ten-thousandth of PyTorch's, 4 and 12 digits
at 200 units: inputs were off by 2.4 to 4.5 of their errors, nearly all of it in the scale.)"""


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


def stand_in(weight_grad: torch.Tensor) -> torch.Tensor:
    """Return a column in place of the bias gradient, (m,): of noise, as large as the rows of the gradient, (m, n)."""
    G = weight_grad.detach().cpu().double().numpy()
    drawn = row_norms(G) * np.random.default_rng(0).standard_normal(len(G))
    return torch.from_numpy(drawn * (np.linalg.norm(G.sum(axis=1)) / max(np.linalg.norm(drawn), np.finfo(float).tiny)))


@one_thread()
def sums_of_batch(fitted: GradientInverter, given: LayerGradient) -> torch.Tensor:
    """Return the gradients at a layer's outputs, summed over the batch, as a bias would have had them.

    What the scales may be off by is drawn into what is outside the column space, where attacks look for noise.

    Parameters
    ----------
    fitted : GradientInverter
        Fitted to the layer with `stand_in` in place of its bias gradient.
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
    inputs, is_found = fitted.inputs_, fitted.recovered_
    n_others = len(inputs) - 1
    sizes = np.sqrt(np.mean(inputs**2, axis=1))
    if is_found.sum() != n_others or n_others < 1 or not sizes[~is_found][0] <= NOTHING * np.median(sizes[is_found]):
        raise NoScale(
            f"no bias gradient was sent, and without it {int(is_found.sum())} inputs were found by the next layer's "
            f"gradient, of a batch that may have {n_others}: all are needed"
        )
    inputs, errors = inputs[is_found], OF_SCALE * fitted.uncertainty_[is_found] / sizes[is_found]
    if not errors.max() <= MOST_ERROR:
        raise NoScale(
            f"no bias gradient was sent, and the next layer's gradient shows the inputs to within {errors.max():.0%} "
            f"of their size, of which most is in their scale: {MOST_ERROR:.0%} are in range"
        )
    G = given.weight_grad.astype(np.float64)
    columns = np.linalg.lstsq(inputs.T, G.T, rcond=None)[0].T
    basis = np.linalg.qr(columns)[0]
    level = np.sqrt(np.mean((columns * errors) ** 2, axis=1) * n_others)
    noise = level * np.random.default_rng(0).standard_normal(len(G))
    return torch.from_numpy(columns.sum(axis=1) + noise - basis @ (basis.T @ noise))
