"""Which pictures are certified: what is demanded of each before it is called recovered."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from sparsedl_fl.constraints import LOG_CHANCE
from sparsedl_fl.propagate.pictures.certificate import PictureStatus
from sparsedl_fl.propagate.pictures.determinacy import Determinacy
from sparsedl_fl.propagate.pictures.fitting import Fit
from sparsedl_fl.propagate.pictures.given import Given

__all__ = ["FITS", "Judged", "judge", "residuals_of"]

FITS = 3.0
"""Residual, over what the features' errors explain, up to which a picture fits. Right ones were at up to 1.7,
for features of a gradient in single precision (12 batches of 8 pictures of MNIST and gray CIFAR-10)."""

LARGEST_NOISE = 0.01
"""Deviation of features, over their size, above which nothing fits: chosen, not measured. Wrong minimisers deviate by
about 0.1 on MNIST, but by less than this for one gray picture of CIFAR-10 and some behind small networks."""

SHOWN = 3.0
"""Errors of features, over those that equations left over show: given errors count no more. An inverter's may be larger
by 1e4 where samples are hard to tell apart (32 pictures of MNIST after 100 steps of training)."""

WORTHLESS = 0.1
"""Expected error of a picture, over its spread, from which on it is not certified."""


@dataclass(frozen=True, eq=False)
class Judged:
    """What is claimed of one picture from its features alone.

    Attributes
    ----------
    status : str
        As of `PictureStatus`.
    error : float
        Expected root-mean-square error, in units of the input.
    residual : float
        Root-mean-square deviation of the features over what their errors explain.
    shown : float
        Errors of the features, over their size, that the equations left over show.
    """

    status: str
    error: float
    residual: float
    shown: float = 0.0


def residuals_of(given: Given, fit: Fit, n_held: int) -> torch.Tensor:
    """Return the deviation of the features of each picture, over what errors explain with ``n_held`` numbers fitted."""
    n_left = max(given.features.shape[1] - n_held, 1)
    return (fit.costs / n_left).sqrt() / given.errors


def judge(given: Given, fit: Fit, index: int, held: Determinacy) -> Judged:
    """Judge a picture by its features.

    They must be more than its numbers, hold all directions of it, and agree with those of the picture to their errors.
    An error may lie along those that some picture causes, as a rest of another picture of the batch does; then it
    weighs ``sqrt(n_equations / n_unknowns)`` as much as one at random, or as such a rest does, and equations left over
    show only a part of it.
    """
    error, size, picture = float(given.errors[index]), float(given.sizes[index]), fit.pictures[index]
    n_spare = held.n_equations - held.n_unknowns
    n_left = n_spare if held.is_determined else max(given.features.shape[1] - held.rank, 1)
    deviation = float((fit.costs[index] / n_left).sqrt())
    residual = deviation / error
    if not residual <= FITS or deviation > LARGEST_NOISE * size:
        return Judged(PictureStatus.NO_FIT, np.inf, residual)
    if not held.is_determined:
        return Judged(PictureStatus.NOT_DETERMINED, np.inf, residual)
    gain = max(np.sqrt(held.n_equations / held.n_unknowns) * held.gain, held.gain_of_mixing)
    shown, least = SHOWN * deviation, given.rounding * size
    behind = max(shown / held.visible, least) if held.visible else error  # towards other pictures, as far as it may be
    expected = gain * max(deviation, min(error, behind))
    shown = max(deviation, min(error, max(shown, least)))
    spread = max(float(picture.std()), 0.1 * float(fit.pictures.std()))  # a flat one has none of its own
    if expected > WORTHLESS * spread:
        return Judged(PictureStatus.TOO_NOISY, expected, residual, shown / size)
    if n_spare * np.log10(shown / size) > LOG_CHANCE:
        return Judged(PictureStatus.FEW_SPARE, expected, residual, shown / size)
    return Judged(PictureStatus.CERTIFIED, expected, residual, shown / size)
