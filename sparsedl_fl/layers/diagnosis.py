"""Why nothing, or not all, can be recovered from a gradient, as seen before or after a search.

Each check looks at the gradient or at the outcome, and returns a sentence that says what it means and what to do.
"""

from __future__ import annotations

import numpy as np

from sparsedl_fl.activations import KNOWN, resolve
from sparsedl_fl.layers.blocks import alive, column_blocks
from sparsedl_fl.layers.layer_gradient import LayerGradient
from sparsedl_fl.wording import argument

__all__ = [
    "advice",
    "advice_for_more_samples",
    "is_clipped",
    "is_of_one_size",
    "is_sparsified",
    "obstacle",
    "too_large",
    "uncertain_size",
    "visible_reason",
    "without_next_layer",
]


def obstacle(layer_gradient: LayerGradient) -> str:
    """Say why no search applies to a layer, from what is known of it; return an empty text where one does."""
    given = layer_gradient.activation
    found = resolve(given)
    is_seen = layer_gradient.next_layer.weight_grad is not None or layer_gradient.tail.rest is not None
    if found is not None and (found.has_flat_part or is_seen):
        return ""
    names = ", ".join(name for name, activation in KNOWN.items() if activation.has_flat_part)
    return (
        f"{given} follows the layer, whose derivative is nowhere zero: an attack by the layer's own gradient needs an "
        f"activation with zero slope for inactive units ({names} or a threshold); for others pass the gradient of the "
        "next linear layer (next_weight_grad) or the downstream network (rest)"
    )


def without_next_layer(layer_gradient: LayerGradient, batch_size: int) -> str:
    """Say why the next layer's gradient does not help a layer with an activation without zero-slope regions."""
    following = layer_gradient.next_layer.weight_grad
    if following is None:
        return (
            f"{layer_gradient.activation} follows the layer, whose derivative is nowhere zero, and no linear layer "
            "comes next; what the downstream network says holds only for the gradient of a single step"
        )
    return (
        f"{layer_gradient.activation} follows the layer, whose derivative is nowhere zero, and the gradient of the "
        f"next layer, of shape {following.shape}, does not show the activations of {batch_size} inputs: it needs more "
        "rows and columns than inputs, and noise below their gradients"
    )


def visible_reason(
    layer_gradient: LayerGradient,
    batch_size: int | None = None,
    is_open: bool = False,
) -> str:
    """Say what hides the low rank of a gradient, or return an empty text.

    Parameters
    ----------
    layer_gradient : LayerGradient
        The gradient.
    batch_size : int or None, default=None
        Its numerical rank, where it is known.
    is_open : bool, default=False
        Whether the singular values do not show how large the batch is.
    """
    m, n = layer_gradient.shape
    if layer_gradient.constant_input is not None:
        return (
            "the bias gradient lies outside the column space of the weight gradient: the batch has an input of zeros "
            "or one that is a sum of others, or the two are not of one layer and batch, or only the bias has noise"
        )
    moduli = _moduli(layer_gradient)
    if moduli.size == 0:
        return ""
    if min(alive(layer_gradient.weight_grad)) > 1 and is_of_one_size(moduli):
        return (
            "nearly all entries have one size: was the optimiser Adam (one step of it), or were signs alone sent "
            f"(signSGD)? Either hides the low rank; of one step of Adam pass {argument('optimizer')}, "
            f"{argument('n_steps')} and {argument('learning_rate')} with the weights after it"
        )
    if is_sparsified(layer_gradient):
        share = _share_of_zeros(layer_gradient)
        return f"{share:.0%} of the entries are exactly zero, all over: the update was sparsified, which hides its rank"
    if batch_size is not None and batch_size == m - 1 and m <= 1000:
        return (
            f"the rank is {m - 1}, one less than the {m} outputs: this looks like a classifier's head, whose gradients "
            f"sum to zero over the classes, with at least {m - 1} inputs"
        )
    if is_open:
        return (
            f"the singular values do not show the batch size: it is that of the layer, {min(m, n)}, or larger "
            f"(tokens and patches count as inputs each), or the gradient is noisy: pass {argument('batch_size')}"
        )
    return ""


def is_of_one_size(moduli: np.ndarray, *, equal: float = 0.02, most: float = 1.5, share: float = 0.7) -> bool:
    """Return whether nearly all entries have one size, as Adam's first step has but for entries near its epsilon.

    Parameters
    ----------
    moduli : ndarray
        Of the entries that are not zero.
    equal : float, default=0.02
        Distance from the median, relative to it, up to which sizes are equal: a gradient has 2 % of its entries there.
    most : float, default=1.5
        Largest size over the median: quantisation to a few bits, which rounds most entries to one step, exceeds it.
    share : float, default=0.7
        Least share of such entries.
    """
    if moduli.size < 16:
        return moduli.size > 1 and bool(np.ptp(moduli) <= 1e-3 * moduli.max())
    middle = np.median(moduli)
    return bool(moduli.max() <= most * middle and np.mean(np.abs(moduli - middle) <= equal * middle) >= share)


def is_clipped(layer_gradient: LayerGradient, *, share: float = 5e-3, near: float = 0.98, fewest: int = 8) -> bool:
    """Return whether entries were cut to a largest size, one by one.

    Parameters
    ----------
    layer_gradient : LayerGradient
        The gradient.
    share : float, default=5e-3
        Least share of entries that have exactly the largest size.
    near : float, default=0.98
        Least size of the next entries, relative to the largest: numbers of a few bits are a quantisation step away.
    fewest : int, default=8
        Least number of entries at that size.
    """
    moduli = _moduli(layer_gradient)
    if moduli.size == 0:
        return False
    largest = moduli.max()
    at_most = moduli >= (1 - 1e-6) * largest
    below = moduli[~at_most]
    return bool(at_most.sum() >= max(fewest, share * moduli.size) and below.size and below.max() >= near * largest)


def too_large(layer_gradient: LayerGradient, batch_size: int, limit: int) -> str:
    """Say that the batch is at least as large as the number of rows or columns with a gradient."""
    (m, n), reason = layer_gradient.shape, visible_reason(layer_gradient)
    return (
        f"the batch (size {batch_size}) is as large as the layer or larger: its inputs cannot be separated (of {m} "
        f"outputs and {n} inputs {limit} have a gradient); {reason or 'tokens, patches and time steps count as inputs'}"
    )


def uncertain_size(layer_gradient: LayerGradient, batch_size: int, gap: float) -> str:
    """Say that the singular values do not show well how large the batch is."""
    reason = visible_reason(layer_gradient)
    return (
        f"{reason}{'; ' if reason else ''}the batch size is uncertain: the gap after singular value {batch_size} of "
        f"weight_grad is only {gap:.2g}; the gradient may be noisy or the batch as large as the layer: pass "
        f"{argument('batch_size')}"
    )


def is_sparsified(
    layer_gradient: LayerGradient, *, scattered: float = 0.05, lowest_kept: float = 0.1, step: float = 1.5
) -> bool:
    """Return whether small entries were set to zero: the noise is then as large as they were, and not random.

    Parameters
    ----------
    layer_gradient : LayerGradient
        The gradient.
    scattered : float, default=0.05
        Share of exact zeros, outside rows and columns of zeros, above which the update cannot be dense.
    lowest_kept : float, default=0.1
        Least remaining modulus, relative to the median: without a threshold there are far smaller ones.
    step : float, default=1.5
        Ratio of the two smallest moduli from which on they are quantisation steps: quantised numbers round to zero,
        too.
    """
    if _share_of_zeros(layer_gradient) <= scattered:
        return False
    moduli = _moduli(layer_gradient)
    lowest = float(moduli.min())
    above = moduli[moduli > (1 + 1e-6) * lowest]
    is_grid = above.size > 0 and above.min() >= step * lowest
    return not is_grid and lowest > lowest_kept * np.median(moduli)


def _share_of_zeros(layer_gradient: LayerGradient) -> float:
    """Return the share of exact zeros in rows and columns that are not all zero; of a large gradient, in a part."""
    _, block = next(column_blocks(layer_gradient.weight_grad))
    is_there = block != 0
    n_alive = int(is_there.any(axis=1).sum()) * int(is_there.any(axis=0).sum())
    return 1 - np.count_nonzero(is_there) / n_alive if n_alive else 0.0


def _moduli(layer_gradient: LayerGradient) -> np.ndarray:
    """Return the moduli of the entries that are not zero; of a large gradient, in a part."""
    _, block = next(column_blocks(layer_gradient.weight_grad))
    return np.abs(block[block != 0])


def advice(
    proposed: np.ndarray,
    certified: np.ndarray,
    residual_floor: float,
    verdict: str,
    reason: str,
    has_zeros: bool = True,
    *,
    matching: float = 1.0,
    noisy: float = 1e-4,
    unrelated: float = 0.7,
) -> str:
    """Say what a batch that is not wholly certified lacks, and what would help.

    Parameters
    ----------
    proposed, certified : ndarray of shape (b,) of bool
        Candidates that were found, and inputs that are certified.
    residual_floor : float
        Share of noise in the gradient.
    verdict : str
        Of `sparsedl_fl.theory.expect`.
    reason : str
        Of `visible_reason`.
    has_zeros : bool, default=True
        Whether the activation has a zero-slope region, so that columns have zeros.
    matching : float, default=1
        Sparsity matching coefficient.
    noisy : float, default=1e-4
        Share of noise in the gradient above which noise hides the missing inputs.
    unrelated : float, default=0.7
        Coefficient below which the columns found have nothing to do with the weights: by chance it is one half.
    """
    if reason:
        return reason[0].upper() + reason[1:]
    if not has_zeros and proposed.any():
        return (
            f"{int(proposed.sum())} inputs were found, but there are too few equations to certify all of them, or too "
            "much noise: a batch near half of the outputs, or of the classes of a head, is out of reach"
        )
    if not has_zeros:
        return (
            "No input was found that fits: a batch too large for the layer (half of its outputs, or of the classes of "
            "a head), another activation or loss, smoothed labels, normalisation over the batch, an adaptive optimiser "
            f"(Adam), or noise; under noise pass {argument('batch_size')}"
        )
    if 2 * proposed.sum() > len(proposed) > 2 and matching < unrelated and residual_floor <= noisy:
        return (
            f"{int(proposed.sum())} inputs were found, and the weights contradict them: these are not the weights at "
            "which the gradient was taken, or another activation follows"
        )
    if proposed.all() and residual_floor > noisy:
        return "Noise hides too many zeros of the gradient to certify the other inputs"
    if proposed.all():
        return (
            "All inputs were found, but they fit too few zeros of the gradient to be certified, or contradict the "
            "weights: check that these are the weights at which the gradient was taken, and the activation"
        )
    if not proposed.any():
        return (
            f"No input was found ({verdict}): another activation than the one given, normalisation over the batch, an "
            f"adaptive optimiser (Adam), or noise; under noise pass {argument('batch_size')}"
        )
    return (
        f"Raise the search's budget ({verdict}); a batch near half the layer's width or beyond cannot be recovered, "
        f"and under noise pass {argument('batch_size')}"
    )


def advice_for_more_samples(n_found: int, n_certified: int, batch_size: int) -> str:
    """Say what a batch with more inputs than features lacks."""
    if n_found < batch_size:
        return (
            "The batch has more inputs than features, so that each is searched by itself: raise the search's budget; "
            "an input with a small gradient, or with the same active units as another, may never be found"
        )
    return (
        f"All {batch_size} inputs were found, and the gradients of this and the next layer do not certify "
        f"{batch_size - n_certified} of them: check that the weights of both are those at which they were taken"
    )
