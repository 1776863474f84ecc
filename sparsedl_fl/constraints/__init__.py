"""What ties a candidate to a true input, one file a fact.

- `ForwardView`: the weights say what the pre-activations of a candidate are, and so which units it switches.
- `ActivationSpan`: the next layer's gradient spans the activations of the batch.
- `SpansBehind`: the gradients of all layers behind do, each at its own layer.
- `BackwardChain`: what the loss sends back passes all layers, and at each it lies in the column space of its gradient.
- `RestView`: the rest of the network says what gradient comes back for a candidate and a label.
- `ColumnView`: the next layer's weights say what may reach the activations of a known input from behind.

`View.besides` leaves out what some inputs account for: each that is known leaves the others more equations, in the
spans by its `WayBack`. `Together` adds up the equations of several views. The zeros of the gradient are
`sparsedl_fl.lowrank.factors.LowRankGradient`'s.
"""

from sparsedl_fl.constraints._base import (
    LEAST_DISTANCE,
    LEAST_SURPLUS,
    LOG_CHANCE,
    Inputs,
    Linearization,
    View,
    log_chance,
)
from sparsedl_fl.constraints.activation_subspace import ActivationSpan
from sparsedl_fl.constraints.backward_subspace import BackwardChain
from sparsedl_fl.constraints.downstream_residuals import BESIDE, FAR, IN_LINE, SpansAt
from sparsedl_fl.constraints.downstream_subspaces import SpansBehind
from sparsedl_fl.constraints.forward_pass import ForwardView
from sparsedl_fl.constraints.known_weights import ColumnView
from sparsedl_fl.constraints.stacked import Together
from sparsedl_fl.constraints.tail_gradient import RestAt, RestView

__all__ = [
    "BESIDE",
    "FAR",
    "IN_LINE",
    "LEAST_DISTANCE",
    "LEAST_SURPLUS",
    "LOG_CHANCE",
    "ActivationSpan",
    "BackwardChain",
    "ColumnView",
    "ForwardView",
    "Inputs",
    "Linearization",
    "RestAt",
    "RestView",
    "SpansAt",
    "SpansBehind",
    "Together",
    "View",
    "log_chance",
]
