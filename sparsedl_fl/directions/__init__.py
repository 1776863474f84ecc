"""What proposes candidate directions, one file each.

- `DictionaryDirections` (SPEAR++) optimises on the sphere; it needs nothing but the gradient.
- `KernelDirections` (SPEAR) takes kernels of random rows: for small batches, and the reference for the others.
"""

from sparsedl_fl.directions._base import Candidates, Directions
from sparsedl_fl.directions.dictionary import DictionaryDirections
from sparsedl_fl.directions.kernel import KernelDirections

__all__ = ["Candidates", "DictionaryDirections", "Directions", "KernelDirections"]
