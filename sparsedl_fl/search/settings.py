"""Which numerics a search takes, and with which numbers."""

from __future__ import annotations

from dataclasses import dataclass, fields

from sklearn.base import BaseEstimator, clone

from sparsedl_fl.constraints.problem import LayerProblem
from sparsedl_fl.search.alternation import Alternation
from sparsedl_fl.search.class_starts import ClassStarts
from sparsedl_fl.search.descent import Descent
from sparsedl_fl.search.input_zeros import OwnZeros
from sparsedl_fl.search.joint_refinement import LastFit
from sparsedl_fl.search.paired_reflection import PairedReflection
from sparsedl_fl.search.projection import Projection
from sparsedl_fl.search.reflection import Reflection
from sparsedl_fl.search.scaled_reflection import ScaledReflection
from sparsedl_fl.search.schedule import Schedule

__all__ = ["SearchSettings"]


@dataclass(eq=False, repr=False, kw_only=True)
class SearchSettings(BaseEstimator):
    """The numerics of the activation search, as `sparsedl_fl.directions.ActivationDirections` takes them.

    None takes what suits the layer.
    """

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

    def resolved(self, problem: LayerProblem, has_subspaces: bool) -> SearchSettings:
        """Return copies of what is given, and what suits a layer for what is not."""
        phi = problem.activation
        suiting = {
            "schedule": Schedule(),
            "alternation": Alternation(),
            "reflection": Reflection(),
            "projection": Projection() if phi.has_flat_part else Projection.for_two_slopes(),
            "scaled": ScaledReflection() if phi.is_piecewise_linear else ScaledReflection.for_smooth(),
            "paired": PairedReflection(),
            "class_starts": ClassStarts(),
            "descent": Descent() if has_subspaces else Descent.for_rest(),
            "last_fit": LastFit(),
            "own_zeros": OwnZeros() if problem.is_stored and phi.has_flat_part else None,
        }
        given = {field.name: getattr(self, field.name) for field in fields(SearchSettings)}
        if suiting["own_zeros"] is None:
            given["own_zeros"] = None
        return SearchSettings(
            **{name: suiting.get(name) if value is None else clone(value, safe=False) for name, value in given.items()}
        )
