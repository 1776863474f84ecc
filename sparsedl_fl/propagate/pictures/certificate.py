"""What is claimed of pictures that were found, and why."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from sparsedl_fl.propagate.pictures.replaying import FrontReplay

__all__ = ["PictureStatus", "RecoveredPictures"]


class PictureStatus(StrEnum):
    """Why a picture is certified or not, as a sentence without a full stop."""

    CERTIFIED = "certified"
    WITH_GRADIENTS = "certified by features and the gradients of the front together, of which a tenth was held out"
    NO_FIT = "no picture was found whose features are those given, from any start; others may exist"
    NOT_DETERMINED = "its features do not determine it: it may move in some directions without a change of them"
    TOO_NOISY = "the features' errors leave it too uncertain"
    FEW_SPARE = "too few equations are left over to prove it, and the gradients of the front were not compared"
    AMBIGUOUS = "other pictures have the same features: the network has a symmetry"
    FOUND_ONCE = "no picture of the batch was found again from another start: others may have the same features"
    CONTRADICTED = "the gradients of the front's parameters contradict it"


@dataclass(frozen=True, eq=False)
class RecoveredPictures:
    """Pictures in front of a layer whose inputs are known, with what is certain of each.

    Attributes
    ----------
    pictures : ndarray of shape (b, ...)
        As the model takes them. One that is not certified is the best fit, and no more than an estimate.
    errors : ndarray of shape (b,)
        Expected root-mean-square error of each, in units of the model's input; infinite where it is not determined.
    certified : ndarray of shape (b,) of bool
        Which are certified.
    status : ndarray of shape (b,) of str
        Why, or why not (see `PictureStatus`).
    n_equations : ndarray of shape (b,) of int
        Features of each that change with it, at the picture found.
    n_unknowns : int
        Numbers of a picture.
    rank : ndarray of shape (b,) of int
        Directions of each picture that its features hold.
    residuals : ndarray of shape (b,)
        Root-mean-square deviation of its features over what their errors explain: about one.
    open_directions : tuple of ndarray of shape (n_unknowns - rank, ...)
        Orthonormal directions, of the shape of a picture, in which each may move without a change of its features.
    replay : FrontReplay or None
        The gradients of the front's parameters beside those sent; None where they could not be compared.
    n_shared : int
        Numbers of those gradients that were equations too, for all pictures together.
    """

    pictures: np.ndarray
    errors: np.ndarray
    certified: np.ndarray
    status: np.ndarray
    n_equations: np.ndarray
    n_unknowns: int
    rank: np.ndarray
    residuals: np.ndarray
    open_directions: tuple[np.ndarray, ...]
    replay: FrontReplay | None
    n_shared: int = 0

    @property
    def n_open(self) -> np.ndarray:
        """Number of open directions of each picture, of shape (b,)."""
        return self.n_unknowns - self.rank

    def __str__(self) -> str:
        b, n = len(self.pictures), int(self.certified.sum())
        reasons = [f"{sum(self.status == reason)} {reason}" for reason in dict.fromkeys(self.status[~self.certified])]
        replayed = "" if self.replay is None else f"; {self.replay}"
        return f"{n} of {b} pictures certified" + "".join(f"; {reason}" for reason in reasons) + replayed
