"""What proposes candidate directions, one file each.

- `ActivationDirections` (ours) uses the known weights while it searches: the largest batches, and the fastest.
- `DictionaryDirections` (SPEAR++) optimises on the sphere; it needs nothing but the gradient.
- `KernelDirections` (SPEAR) takes kernels of random rows: for small batches, and the reference for the others.
- `PriorDirections` (SPEAR with a prior) draws those rows where an approximate reconstruction says a unit is inactive.
- `KnownInputs` searches nothing: it asks whether the gradient confirms inputs that are known already.
"""

from sparsedl_fl.directions._base import Directions
from sparsedl_fl.directions.activation import ActivationDirections
from sparsedl_fl.directions.default import best_known
from sparsedl_fl.directions.dictionary import DictionaryDirections
from sparsedl_fl.directions.kernel import KernelDirections
from sparsedl_fl.directions.known import KnownInputs
from sparsedl_fl.directions.prior import PriorDirections

__all__ = [
    "ActivationDirections",
    "DictionaryDirections",
    "Directions",
    "KernelDirections",
    "KnownInputs",
    "PriorDirections",
    "best_known",
]
