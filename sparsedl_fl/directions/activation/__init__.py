"""Our own search: the forward pass says where the gradient vanishes, while searching and not only afterwards.

- `search`: the strategy, `ActivationDirections`: runs stages until the columns found are a basis.
- `rounds`: one round after the other; `schedule`: which stage runs next, with how many starts, and when to give up.
- `alternation`, `reflection`, `projection`, `scaled`, `paired`, `by_classes`, `descent`, `last_fit`, `own_zeros`: the
  stages, one file each; every number is a field of its stage.
- `withheld`: what goes first behind activations that are straight around zero, where most units are on.
- `two_views`, `natural`, `links`, `estimates`, `knowledge`: what the stages work on, and what is known so far.
"""

from sparsedl_fl.directions.activation.alternation import Alternation
from sparsedl_fl.directions.activation.by_classes import ClassStarts
from sparsedl_fl.directions.activation.descent import Descent
from sparsedl_fl.directions.activation.last_fit import LastFit
from sparsedl_fl.directions.activation.own_zeros import OwnZeros
from sparsedl_fl.directions.activation.paired import PairedReflection
from sparsedl_fl.directions.activation.projection import Projection
from sparsedl_fl.directions.activation.reflection import Reflection
from sparsedl_fl.directions.activation.scaled import ScaledReflection
from sparsedl_fl.directions.activation.schedule import Schedule
from sparsedl_fl.directions.activation.search import ActivationDirections
from sparsedl_fl.directions.activation.two_views import TwoViews

__all__ = [
    "ActivationDirections",
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
