"""What ties a candidate to a true input, one file a fact.

- `ForwardView`: the weights say what the pre-activations of a candidate are, and so which units it switches.
- `ActivationSpan`: the next layer's gradient spans the activations of the batch.
- `SpansBehind`: the gradients of all layers behind do, each at its own layer.
- `ColumnView`: the next layer's weights say what may reach the activations of a known input from behind.

The zeros of the gradient are `sparsedl_fl.lowrank.LowRankGradient`'s.
"""

from sparsedl_fl.views._base import Linearization, View
from sparsedl_fl.views.behind import SpansAt, SpansBehind
from sparsedl_fl.views.column import ColumnView
from sparsedl_fl.views.forward import ForwardView
from sparsedl_fl.views.span import ActivationSpan

__all__ = ["ActivationSpan", "ColumnView", "ForwardView", "Linearization", "SpansAt", "SpansBehind", "View"]
