"""Behind activations that are straight around zero most units are on, and what those that are off withhold is sparse.

Zeros of the gradient are few then, and say little. But with ``e`` the gradient at the activations of an input and ``d``
that at its pre-activations, ``e - d`` vanishes wherever a unit is on, and both lie in spaces that gradients show.

- `space`: these spaces, and which candidates are columns.
- `sparse`, `reflection`: two ways to candidates, one by the withheld gradients alone, one by the forward view as well.
- `left_over`: the last few inputs, of which hardly any unit is off, all at once.
- `search`: one after the other, `WithheldSearch`.
"""

from sparsedl_fl.search.withheld.layer_reflection import OneLayerReflection
from sparsedl_fl.search.withheld.left_over import LeftOver
from sparsedl_fl.search.withheld.sparsest_vectors import SparseStarts
from sparsedl_fl.search.withheld.withheld_rounds import WithheldSearch

__all__ = ["LeftOver", "OneLayerReflection", "SparseStarts", "WithheldSearch"]
