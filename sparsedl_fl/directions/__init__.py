"""What proposes candidate directions, one file each.

- `DictionaryDirections` (SPEAR++) optimises on the sphere; it needs nothing but the gradient.
"""

from sparsedl_fl.directions._base import Candidates, Directions
from sparsedl_fl.directions.dictionary import DictionaryDirections

__all__ = ["Candidates", "DictionaryDirections", "Directions"]
