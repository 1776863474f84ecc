"""Constraints: what a true sample fulfils, one file a fact.

- `ForwardPass`: the weights give the pre-activations of a candidate, and so which units are active.
- `ActivationSubspace`: the activations of every sample lie in the row space of the next layer's gradient.
- `DownstreamSubspaces`: the same for the gradients of all downstream layers, each at its own layer.
- `BackwardSubspaces`: backpropagated gradients lie in the column space of each layer's gradient.
- `TailGradient`: the network tail gives the gradient for a candidate and a label.
- `SentBackGradients`: where a unit is active, a column equals what the next layer's weights send back.
- `KnownWeights`: the weights of downstream layers restrict the gradient at the activations of a known sample.

`Constraint.without` deflates: each known sample leaves the others more equations, in the activation subspaces by its
`SubspaceDeflation`. `Stacked` joins the equations of several constraints. The zeros of the gradient are in
`sparsedl_fl.lowrank.factors.LowRankGradient`.
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
from sparsedl_fl.constraints.sent_back import SentBack, SentBackGradients
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
    "SentBack",
    "SentBackGradients",
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
