"""The numerics of a search and their numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from sklearn.base import BaseEstimator, clone

from sparsedl_fl.constraints.problem import LayerProblem
from sparsedl_fl.search.alternation import Alternation
from sparsedl_fl.search.class_starts import ClassStarts
from sparsedl_fl.search.descent import Descent
from sparsedl_fl.search.dictionary_descent import DictionaryDescent
from sparsedl_fl.search.input_zeros import InputZeros
from sparsedl_fl.search.joint_refinement import JointRefinement
from sparsedl_fl.search.paired_reflection import PairedReflection
from sparsedl_fl.search.projection import Projection
from sparsedl_fl.search.reflection import Reflection
from sparsedl_fl.search.scaled_reflection import ScaledReflection
from sparsedl_fl.search.schedule import Schedule
from sparsedl_fl.search.sent_back_reflection import SentBackReflection

__all__ = ["Numerics", "SearchSettings"]

Setting = TypeVar("Setting", bound=BaseEstimator)


@dataclass(eq=False, repr=False, kw_only=True)
class SearchSettings(BaseEstimator):
    """The numerics of the activation search, as `sparsedl_fl.directions.ActivationDirections` takes them.

    None takes those that suit the layer.
    """

    use_next_layer: bool = True
    use_rest: bool = True
    schedule: Schedule | None = None
    dictionary: DictionaryDescent | None = None
    alternation: Alternation | None = None
    reflection: Reflection | None = None
    sent_back: SentBackReflection | None = None
    projection: Projection | None = None
    scaled: ScaledReflection | None = None
    paired: PairedReflection | None = None
    class_starts: ClassStarts | None = None
    descent: Descent | None = None
    joint_refinement: JointRefinement | None = None
    input_zeros: InputZeros | None = None

    def resolved(self, problem: LayerProblem, has_subspaces: bool) -> Numerics:
        """Return copies of the given numerics, and for None those that suit a layer."""
        phi = problem.activation
        return Numerics(
            use_next_layer=self.use_next_layer,
            use_tail=self.use_rest,
            schedule=_copy(self.schedule, Schedule()),
            dictionary=_copy(self.dictionary, DictionaryDescent()),
            alternation=_copy(self.alternation, Alternation()),
            reflection=_copy(self.reflection, Reflection()),
            sent_back=_copy(self.sent_back, SentBackReflection()),
            projection=_copy(self.projection, Projection() if phi.has_flat_part else Projection.for_two_slopes()),
            scaled=_copy(self.scaled, ScaledReflection() if phi.is_piecewise_linear else ScaledReflection.for_smooth()),
            paired=_copy(self.paired, PairedReflection()),
            class_starts=_copy(self.class_starts, ClassStarts()),
            descent=_copy(self.descent, Descent() if has_subspaces else Descent.for_tail()),
            joint_refinement=_copy(self.joint_refinement, JointRefinement()),
            input_zeros=_copy(self.input_zeros, InputZeros()) if problem.is_stored and phi.has_flat_part else None,
        )


@dataclass(frozen=True, kw_only=True)
class Numerics:
    """The numerics that a search runs with, and whether it uses the next layer and the network tail."""

    use_next_layer: bool
    use_tail: bool
    schedule: Schedule
    dictionary: DictionaryDescent
    alternation: Alternation
    reflection: Reflection
    sent_back: SentBackReflection
    projection: Projection
    scaled: ScaledReflection
    paired: PairedReflection
    class_starts: ClassStarts
    descent: Descent
    joint_refinement: JointRefinement
    input_zeros: InputZeros | None


def _copy(given: Setting | None, default: Setting) -> Setting:
    return default if given is None else clone(given)
