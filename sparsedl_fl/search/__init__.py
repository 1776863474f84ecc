"""What the activation search is made of: the forward pass says where the gradient vanishes, while searching.

- `rounds`: one round after the other; `scheduler`: which stage runs next, with how many starts, and when to give up;
  `budget`: what all may cost.
- `alternation`, `reflection`, `projection`, `scaled_reflection`, `paired_reflection`, `class_starts`, `descent`,
  `joint_refinement`, `input_zeros`: the stages, one file each; every number is a field of its stage.
- `withheld`: what goes first behind activations that are straight around zero, where most units are active.
- `state`: what is known so far; `columns_and_forward_pass`, `natural_coordinates`, `linear_links`, `dual_estimates`,
  `deflation`, `single_fits`, `residual_systems`: what the stages work on.
"""

from sparsedl_fl.search.alternation import Alternation
from sparsedl_fl.search.class_starts import ClassStarts
from sparsedl_fl.search.columns_and_forward_pass import TwoViews
from sparsedl_fl.search.descent import Descent
from sparsedl_fl.search.input_zeros import OwnZeros
from sparsedl_fl.search.joint_refinement import LastFit
from sparsedl_fl.search.paired_reflection import PairedReflection
from sparsedl_fl.search.projection import Projection
from sparsedl_fl.search.reflection import Reflection
from sparsedl_fl.search.scaled_reflection import ScaledReflection
from sparsedl_fl.search.scheduler import Schedule

__all__ = [
    "Alternation",
    "ClassStarts",
    "Descent",
    "LastFit",
    "OwnZeros",
    "PairedReflection",
    "Projection",
    "Reflection",
    "ScaledReflection",
    "Schedule",
    "TwoViews",
]
