"""What ties a candidate to a true input, one file a fact.

- `ForwardPass`: the weights say what the pre-activations of a candidate are, and so which units it switches.
- `ActivationSubspace`: the next layer's gradient spans the activations of the batch.
- `DownstreamSubspaces`: the gradients of all layers behind do, each at its own layer.
- `BackwardSubspaces`: what the loss sends back passes all layers, at each within the column space of its gradient.
- `TailGradient`: the rest of the network says what gradient comes back for a candidate and a label.
- `KnownWeights`: the next layer's weights say what may reach the activations of a known input from behind.

`Constraint.without` leaves out what some inputs account for: each that is known leaves the others more equations, in
the spans by its `SubspaceDeflation`. `Stacked` adds up the equations of several views. The zeros of the gradient are
`sparsedl_fl.lowrank.factors.LowRankGradient`'s.
"""

from sparsedl_fl.constraints.activation_subspace import ActivationSubspace
from sparsedl_fl.constraints.backward_subspace import BackwardSubspaces
from sparsedl_fl.constraints.constraint import (
    LEAST_DISTANCE,
    LEAST_SURPLUS,
    LOG_CHANCE,
    Constraint,
    Inputs,
    Linearization,
    log_chance,
)
from sparsedl_fl.constraints.downstream_residuals import BESIDE, FAR, IN_LINE, SubspacesAt
from sparsedl_fl.constraints.downstream_subspaces import DownstreamSubspaces
from sparsedl_fl.constraints.forward_pass import ForwardPass
from sparsedl_fl.constraints.known_weights import KnownWeights
from sparsedl_fl.constraints.stacked import Stacked
from sparsedl_fl.constraints.tail_gradient import TailGradient, TailGradientAt

__all__ = [
    "BESIDE",
    "FAR",
    "IN_LINE",
    "LEAST_DISTANCE",
    "LEAST_SURPLUS",
    "LOG_CHANCE",
    "ActivationSubspace",
    "BackwardSubspaces",
    "KnownWeights",
    "ForwardPass",
    "Inputs",
    "Linearization",
    "TailGradientAt",
    "TailGradient",
    "SubspacesAt",
    "DownstreamSubspaces",
    "Stacked",
    "Constraint",
    "log_chance",
]
