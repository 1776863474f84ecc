"""Behind zero-slope regions where most units are active, what the inactive ones withhold of a gradient is sparse.

Zeros of the gradient are few then, and say little. But with ``e`` the gradient at the activations of a sample and
``d`` that at its pre-activations, ``e - d`` vanishes wherever a unit is active, and both lie in known subspaces.

- `withheld_space`: these subspaces, and which candidates are columns.
- `sparsest_vectors`, `layer_reflection`: two ways to candidates, the first by the withheld gradients alone.
- `left_over`, `joint_equations`: the last few samples, at which hardly any unit is inactive, all at once.
- `withheld_state`, `withheld_stages`: what is known, and the stages of the recipe.
"""

from sparsedl_fl.search.withheld.layer_reflection import OneLayerReflection
from sparsedl_fl.search.withheld.left_over import LeftOver
from sparsedl_fl.search.withheld.sparsest_vectors import SparseStarts
from sparsedl_fl.search.withheld.withheld_state import WithheldSearch

__all__ = ["LeftOver", "OneLayerReflection", "SparseStarts", "WithheldSearch"]
