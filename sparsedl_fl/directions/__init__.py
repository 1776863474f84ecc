"""Strategies that propose candidate directions, one file each.

- `ActivationDirections` (ours) uses the known weights while it searches: the fastest, with the largest batches.
- `DictionaryDirections` (SPEAR++) optimises on the sphere; it needs nothing but the gradient.
- `KernelDirections` (SPEAR) takes kernels of random rows: for small batches, and as the reference.
- `PriorDirections` (SPEAR with a prior) draws those rows where an approximate reconstruction makes a unit inactive.
- `KnownInputs` searches nothing: it checks whether the gradient confirms given inputs.
"""

from sparsedl_fl.directions.activation import ActivationDirections
from sparsedl_fl.directions.default import best_known
from sparsedl_fl.directions.dictionary import DictionaryDirections
from sparsedl_fl.directions.kernel import KernelDirections
from sparsedl_fl.directions.known import KnownInputs
from sparsedl_fl.directions.prior import PriorDirections
from sparsedl_fl.directions.strategy import Directions

__all__ = [
    "ActivationDirections",
    "DictionaryDirections",
    "Directions",
    "KernelDirections",
    "KnownInputs",
    "PriorDirections",
    "best_known",
]
