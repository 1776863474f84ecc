"""What the activation search is made of: the forward pass says where the gradient vanishes, while searching.

- `loop`: the search; `recipes`: which stages serve which kind of layer; `scheduler`, `schedule`, `budget`: whose turn
  it is, with how many starts, and when to give up.
- `stage`, `stages`: what a stage is, and all there are; each hands over to its numerics: `alternation`, `reflection`,
  `projection`, `scaled_reflection`, `paired_reflection`, `class_starts`, `descent`, whose numbers are their fields.
- `state`: what they work on; `knowledge`: what is found, `remaining`: what that leaves of the constraints,
  `single_fits`, `joint_refinement`, `input_zeros`, `settling`: the last digits.
- `columns_and_forward_pass`, `natural_coordinates`, `linear_links`, `dual_estimates`, `residual_systems`: coordinates
  and matrices.
- `withheld`: what goes first behind activations that are straight around zero, where most units are active.
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
    "Schedule",
    "SampleCoordinates",
]
