"""The search for activations with zero-slope regions at which most units are active, such as Hardtanh.

The gradient has few zeros then. But with ``e`` the gradient at the activations of a sample and ``d`` that at its
pre-activations, the *withheld* gradient ``e - d`` is sparse: it vanishes at active units. Both lie in known subspaces.

- `withheld_space`: these subspaces, and which candidates are columns.
- `sparsest_vectors`, `layer_reflection`: candidates by withheld gradients alone, and by the forward pass as well.
- `left_over`, `joint_equations`: the last few samples, with hardly any inactive unit, all at once.
- `withheld_state`, `withheld_stages`: the state of this search, and its stages.
"""

from sparsedl_fl.search.withheld.layer_reflection import OneLayerReflection
from sparsedl_fl.search.withheld.left_over import LeftOver
from sparsedl_fl.search.withheld.sparsest_vectors import SparseStarts
from sparsedl_fl.search.withheld.withheld_state import WithheldSearch

__all__ = ["LeftOver", "OneLayerReflection", "SparseStarts", "WithheldSearch"]
