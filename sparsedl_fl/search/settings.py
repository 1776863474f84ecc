"""Which stages a search takes, and with which numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from sklearn.base import BaseEstimator, clone

from sparsedl_fl.search.alternation import Alternation
from sparsedl_fl.search.class_starts import ClassStarts
from sparsedl_fl.search.descent import Descent
from sparsedl_fl.search.input_zeros import OwnZeros
from sparsedl_fl.search.joint_refinement import LastFit
from sparsedl_fl.search.paired_reflection import PairedReflection
from sparsedl_fl.search.projection import Projection
from sparsedl_fl.search.reflection import Reflection
from sparsedl_fl.search.scaled_reflection import ScaledReflection
from sparsedl_fl.search.scheduler import Schedule

__all__ = ["SearchSettings", "stage"]

AStage = TypeVar("AStage", bound=BaseEstimator)


def stage(given: AStage | None, default: AStage) -> AStage:
    """Return a copy of the stage given, or the default."""
    return default if given is None else clone(given)


@dataclass(eq=False, repr=False, kw_only=True)
class SearchSettings(BaseEstimator):
    """The stages of the activation search, as `sparsedl_fl.directions.ActivationDirections` takes them."""

    use_rest: bool = True
    schedule: Schedule | None = None
    alternation: Alternation | None = None
    reflection: Reflection | None = None
    projection: Projection | None = None
    scaled: ScaledReflection | None = None
    paired: PairedReflection | None = None
    class_starts: ClassStarts | None = None
    descent: Descent | None = None
    last_fit: LastFit | None = None
    own_zeros: OwnZeros | None = None
