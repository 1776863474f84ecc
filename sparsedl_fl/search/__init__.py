"""The search for samples by the activation: the forward pass predicts where the gradient vanishes.

- `loop`: the search; `recipes`: which stages serve which kind of layer; `scheduler`, `schedule`, `budget`: which stage
  is next, with how many starts, and when to give up.
- `stage`, `stages`: the base class and all stages; each calls its numerics: `alternation`, `reflection`, `projection`,
  `scaled_reflection`, `paired_reflection`, `sent_back_reflection`, `class_starts`, `descent`, whose numbers are their
  fields.
- `state`: the state of a search; `knowledge`: known samples and columns, `remaining`: the deflated constraints;
  `single_fits`, `joint_refinement`, `input_zeros`, `settling`: final fits.
- `columns_and_forward_pass`, `natural_coordinates`, `linear_links`, `dual_estimates`, `residual_systems`: coordinates
  and matrices.
- `withheld`: the search for activations that are linear around zero, where most units are active.
"""

from sparsedl_fl.search.alternation import Alternation
from sparsedl_fl.search.class_starts import ClassStarts
from sparsedl_fl.search.columns_and_forward_pass import SampleCoordinates
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

__all__ = [
    "Alternation",
    "ClassStarts",
    "Descent",
    "DictionaryDescent",
    "JointRefinement",
    "InputZeros",
    "PairedReflection",
    "Projection",
    "Reflection",
    "ScaledReflection",
    "SentBackReflection",
    "Schedule",
    "SampleCoordinates",
]
