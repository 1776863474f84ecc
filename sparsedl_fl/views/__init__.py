"""What ties a candidate to a true input, one file a fact.

- `ForwardView`: the weights say what the pre-activations of a candidate are, and so which units it switches.
- `ActivationSpan`: the next layer's gradient spans the activations of the batch.

The zeros of the gradient are `sparsedl_fl.lowrank.LowRankGradient`'s.
"""

from sparsedl_fl.views.forward import ForwardView
from sparsedl_fl.views.span import ActivationSpan

__all__ = ["ActivationSpan", "ForwardView"]
