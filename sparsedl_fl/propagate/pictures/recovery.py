"""From the inputs of the first linear layer to the pictures that a convolutional model was fed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from sparsedl.arrays import check_device
from sparsedl.process import full_precision, neutral_modes
from sparsedl_fl.propagate.pictures.certificate import PictureStatus, RecoveredPictures
from sparsedl_fl.propagate.pictures.determinacy import Determinacy, determinacy_at
from sparsedl_fl.propagate.pictures.draws import normal_like
from sparsedl_fl.propagate.pictures.finishing import finished
from sparsedl_fl.propagate.pictures.fitting import Fit, Schedule, fit_to_features
from sparsedl_fl.propagate.pictures.front import Front
from sparsedl_fl.propagate.pictures.given import ROUNDING, Given
from sparsedl_fl.propagate.pictures.joint import HELD_OUT, JointResult, held_out_entries, joint_result
from sparsedl_fl.propagate.pictures.judging import FITS, Judged, judge, residuals_of
from sparsedl_fl.propagate.pictures.layerwise import pictures_by_layers
from sparsedl_fl.propagate.pictures.replaying import replay_front

__all__ = ["recover_pictures"]

AGAIN = Schedule(first=8.0, n_stages=14, enough=0.8, max_steps=6)
"""The schedule after the first attempt, from the best picture so far with noise added. Behind four small networks with
2.6 equations for an unknown, 7 of 32 pictures of noise came back at once and 25 with seven more attempts; 18 from a
sharpness of 2, 15 from random starts."""

NOISE_OF_START = 0.3
"""Standard deviation of that noise, over the picture's."""

IN_VAIN = 24
"""Attempts at pictures of a batch, not one of which fits, after which nothing is tried any more. Of those pictures of
noise 22 % came back at the first attempt: by chance, 24 fail in one batch of 400."""

APART = 10.0
"""Distance of two pictures with the same features, over the expected error, that shows that they are not one."""

LED_ROUNDS, LED_KINKS = 8, 1e-3
"""Rounds of a fit to features and gradients together, at most, of pictures that were led back layer by layer, and how
far from kinks their slopes are open."""

N_CHECKED, MOST_ATTEMPTS = 4, 4
"""Pictures of a batch that are looked for again, from noise, and how often at most. Dilated convolutions before
pooling, for one, do not tell which part of a picture is where: many pictures have the same features."""


@neutral_modes(gradients=True)
def recover_pictures(
    model: nn.Module,
    layer: str,
    features: np.ndarray,
    errors: np.ndarray,
    shape: tuple[int, ...],
    *,
    sent_back: np.ndarray | None = None,
    gradients: Mapping[str, torch.Tensor] | None = None,
    start: np.ndarray | None = None,
    n_attempts: int = 8,
    max_rounds: int = 60,
    noise: float = 1e-6,
    rounding: float = ROUNDING,
    device: str | None = None,
) -> RecoveredPictures:
    """Recover the pictures whose features are known, by Gauss-Newton on a network that sharpens.

    Parameters
    ----------
    model : torch.nn.Module
        As the client had it.
    layer : str
        Name of the linear layer that is fed the features.
    features : array of shape (b, n_features)
        Inputs of that layer, as recovered.
    errors : array of shape (b,)
        Expected root-mean-square error of each, in units of features.
    shape : tuple of int
        Shape of one picture, as the model takes it: (3, 32, 32).
    sent_back : array of shape (b, n_features) or None, default=None
        Gradient of the loss at the features, ``D^T W`` for the layer's weight ``W`` and the gradient ``D`` at its
        outputs: with it and the gradients the pictures are proved by what they were not fitted to.
    gradients : mapping of str to torch.Tensor or None, default=None
        What the client sent, by parameter name.
    start : array of a picture's shape or None, default=None
        First guess, in units of the input: the mean picture of such data, if it is known. None is a picture of zeros.
    n_attempts : int, default=8
        How often a picture is tried at most.
    max_rounds : int, default=60
        Rounds of a fit to features and gradients together at most, where features leave pictures open; zero for none.
    noise : float, default=1e-6
        Share of the gradients that is noise.
    rounding : float, default=4e-7
        Error of the features by the client's own arithmetic, over their root mean square; 1e-3 for TF32 or training in
        half precision.
    device : str or None, default=None
        Where it is computed, ``"cpu"`` or ``"cuda"``; None is a GPU if torch sees one. Random numbers are drawn on the
        CPU, so that devices agree.

    Returns
    -------
    RecoveredPictures

    Raises
    ------
    ValueError
        If the model has no such layer or does not take such pictures, or an array has a wrong shape or is not finite.
    """
    front = Front(model, layer, shape, _device(device))
    with full_precision(front.device):
        given = Given.of(front, features, errors, start, sent_back, gradients, noise, rounding)
        return _recovered(front, given, n_attempts, max_rounds)


def _device(name: str | None) -> torch.device:
    return check_device("recover_pictures", name or ("cuda" if torch.cuda.is_available() else "cpu"))


def _recovered(front: Front, given: Given, n_attempts: int, max_rounds: int) -> RecoveredPictures:
    led = _led_back(front, given)
    fit = _fitted(front, given, given.start.expand(len(given.features), -1), n_attempts) if led is None else led
    low = front.to(torch.float32)
    held = [determinacy_at(low, picture, given.features, index) for index, picture in enumerate(fit.pictures)]
    judged = [judge(given, fit, index, found) for index, found in enumerate(held)]
    doubt = _doubt(front, given, fit, judged, min(n_attempts, MOST_ATTEMPTS if led is None else 1))
    if led is not None and (doubt or any(one.status != PictureStatus.CERTIFIED for one in judged)):
        joint = joint_result(front, given, led.pictures, LED_ROUNDS, LED_KINKS)
        if joint.is_proved:
            return _with_gradients(front, _certified(front, given, fit, held, judged), joint)
    if doubt:
        judged = [
            replace(one, status=doubt, error=np.inf) if one.status == PictureStatus.CERTIFIED else one for one in judged
        ]
    found = _certified(front, given, fit, held, judged)
    n_missing = sum(max(front.n_pixels - one.rank, 0) for one in held)
    is_open = any(one.status in (PictureStatus.NOT_DETERMINED, PictureStatus.NO_FIT) for one in judged)
    if is_open and n_missing < (1 - HELD_OUT) * given.n_gradients and max_rounds > 0:
        return _with_gradients(front, found, joint_result(front, given, fit.pictures, max_rounds))
    return found


def _led_back(front: Front, given: Given) -> Fit | None:
    """Return pictures that were led back layer by layer, where they have the features; None where they have not."""
    pictures = pictures_by_layers(front, given, held_out_entries(front, given))
    if pictures is None or not pictures.isfinite().all():
        return None
    costs = (front(pictures) - given.features).square().sum(dim=1)
    found = Fit(pictures, costs, torch.zeros(len(pictures), dtype=torch.long, device=front.device))
    found = finished(front, given.features, found, given.errors.square() * front.n_features)
    return found if (residuals_of(given, found, front.n_pixels) <= FITS).all() else None


def _fitted(front: Front, given: Given, first: torch.Tensor, n_attempts: int) -> Fit:
    """Return the best fit of each picture, from first starts (b, n_pixels); those that do not fit are tried again."""
    b, generator = len(given.features), torch.Generator().manual_seed(0)
    pictures = first.clone()
    costs, n_steps = torch.full_like(given.errors, torch.inf), torch.zeros_like(given.errors, dtype=torch.long)
    best, floors = Fit(pictures, costs, n_steps), given.errors.square() * front.n_features
    left = torch.arange(b, device=front.device)
    for attempt in range(n_attempts):
        starts = pictures[left]
        if attempt:
            starts = starts + NOISE_OF_START * starts.std(dim=1, keepdim=True) * normal_like(starts, generator)
        schedule = AGAIN if attempt else Schedule()
        found = fit_to_features(front, given.features[left], starts, schedule, floors=floors[left])
        found = finished(front, given.features[left], found, floors[left])
        helps = found.costs < costs[left]
        pictures[left[helps]], costs[left[helps]] = found.pictures[helps], found.costs[helps]
        n_steps[left] += found.n_steps
        left = (residuals_of(given, best, front.n_pixels) > FITS).nonzero()[:, 0]
        if not len(left) or (len(left) == b and b * (attempt + 1) >= IN_VAIN):
            break
    return best


def _doubt(front: Front, given: Given, fit: Fit, judged: list[Judged], n_attempts: int) -> str:
    """Return why certified pictures may not be the only ones with their features, or an empty text.

    Some of them are looked for again, from noise: at least one has to be found, and none at another place.
    """
    sure = [index for index, one in enumerate(judged) if one.status == PictureStatus.CERTIFIED][:N_CHECKED]
    if not sure:
        return ""
    index, generator = torch.tensor(sure, device=front.device), torch.Generator().manual_seed(2)
    here = fit.pictures[index]
    starts = here.std() * normal_like(here, generator)
    part = replace(given, features=given.features[index], errors=given.errors[index], sizes=given.sizes[index])
    found = _fitted(front, part, starts, n_attempts)
    fits = residuals_of(part, found, front.n_pixels) <= FITS
    apart = (found.pictures - here).square().mean(dim=1).sqrt()
    allowed = APART * torch.tensor([judged[number].error for number in sure], device=front.device)
    if (fits & (apart > allowed)).any():
        return PictureStatus.AMBIGUOUS
    return "" if fits.any() else PictureStatus.FOUND_ONCE


def _certified(
    front: Front, given: Given, fit: Fit, held: list[Determinacy], judged: list[Judged]
) -> RecoveredPictures:
    """Return what is claimed of all pictures; gradients of the front that contradict them take it all back."""
    status = np.array([one.status for one in judged], dtype=object)
    errors = np.array([one.error for one in judged])
    replay = None
    if given.gradients and (status == PictureStatus.CERTIFIED).all():
        noise = given.noise + float(np.max([one.shown for one in judged]))
        off = torch.tensor(errors, device=front.device)
        replay = replay_front(front, fit.pictures, off, given.sent_back, given.gradients, noise=noise)
        if replay.deviations and not replay.is_match:
            status[:] = PictureStatus.CONTRADICTED
    return RecoveredPictures(
        pictures=fit.pictures.reshape(-1, *front.shape).cpu().numpy(),
        errors=errors,
        certified=status == PictureStatus.CERTIFIED,
        status=status,
        n_equations=np.array([one.n_equations for one in held]),
        n_unknowns=front.n_pixels,
        rank=np.array([one.rank for one in held]),
        residuals=np.array([one.residual for one in judged]),
        open_directions=tuple(one.open.reshape(-1, *front.shape) for one in held),
        replay=replay,
    )


def _with_gradients(front: Front, found: RecoveredPictures, joint: JointResult) -> RecoveredPictures:
    """Return pictures from features and gradients together: all are certified, or no more than before."""
    if not joint.is_proved:
        return replace(found, replay=joint.replay if joint.residual <= FITS else found.replay)
    b = len(found.pictures)
    return replace(
        found,
        pictures=joint.fit.pictures.reshape(-1, *front.shape).cpu().numpy(),
        errors=joint.errors.cpu().numpy(),
        certified=np.full(b, True),
        status=np.full(b, PictureStatus.WITH_GRADIENTS, dtype=object),
        n_shared=joint.n_equations,
        rank=np.full(b, front.n_pixels),
        residuals=np.full(b, joint.residual),
        open_directions=tuple(np.zeros((0, *front.shape)) for _ in range(b)),
        replay=joint.replay,
    )
