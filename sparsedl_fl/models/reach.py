"""Which attack reaches a linear layer, up to which batch, or why none does."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from sparsedl.process import neutral_modes
from sparsedl_fl.activations import FlatPart
from sparsedl_fl.constraints.sent_back import MOST_SHARE
from sparsedl_fl.layers.of_model import NO_SUM, passes_on
from sparsedl_fl.layers.tail_of_model import rest_of_model
from sparsedl_fl.propagate.pictures import EquationCount, Front, count_equations
from sparsedl_fl.theory import Attack, largest_batch
from sparsedl_fl.tracing.naming import unwrapped
from sparsedl_fl.tracing.tracing import LinearUse, Trace, mixing

__all__ = ["LEAKS_BY", "count_of_pictures", "obstacle_to", "reach_of"]

N_COUNTED = 2
"""Pictures of noise at which active features are counted."""

LEAKS_BY = {
    Attack.ZEROS: "its own gradient (zeros of inactive units)",
    Attack.SPAN: "its own gradient and the next layer's",
    Attack.NEXT_WEIGHTS: "its own gradient and the next layer's weights",
    Attack.REST: "its own gradient, the layers after it and the loss",
    Attack.HEAD: "its own gradient and the loss",
    Attack.ROWS: "rows of its gradient (token ids)",
    Attack.PICTURES: "features behind it, and its own gradient",
    Attack.JOINT_PICTURES: "features behind it and its own gradient together (asked for by pictures)",
}
"""What a layer leaks by, in words."""


@neutral_modes(gradients=True)
def obstacle_to(model: nn.Module, use: LinearUse, trace: Trace) -> str:
    """Say why a linear layer is out of reach, or return an empty text."""
    if trace.n_uses(use.name) > 1 or use.also:
        found = trace.all_of(use.name)
        if found is None:
            return NO_SUM
        use = found
    if use.norm is not None and use.norm.training:
        return mixing()
    if use.activation is not None and (use.activation.has_flat_part or use.next_weight):
        return ""
    if rest_of_model(model, use, trace) is not None:
        return ""
    if use.activation is None:
        follows = f"{use.behind} follows" if use.is_read else use.behind
        return (
            f"{follows}, and the network after it cannot be written as a function of one input's outputs at this layer"
        )
    return (
        f"{use.activation.name} follows, whose derivative is nowhere zero, no linear layer comes next whose gradient "
        "would help, and the network after it cannot be written as a function of one input's outputs at this layer"
    )


def reach_of(
    use: LinearUse, trace: Trace, tensors: Mapping[str, torch.Tensor], *, has_scale: bool = True
) -> tuple[Attack, int]:
    """Return what a layer within reach leaks by, and the largest batch that is recovered as a rule.

    ``has_scale`` is whether a bias gradient gives the inputs their scale; else the next layer's gradient has to.
    """
    n_inputs = tensors[use.weight].numel() // use.width
    if use.is_last:
        return Attack.HEAD, largest_batch(use.width, n_inputs, Attack.HEAD)
    by_zeros = use.activation is not None and use.activation.has_flat_part
    alone = Attack.ZEROS if by_zeros else Attack.REST
    reach = [(alone, largest_batch(use.width, n_inputs, alone))] if has_scale else []
    if use.next_weight:
        next_width = tensors[use.next_weight].numel() // use.width
        widths = _downstream_widths(use, trace)
        reach.append((Attack.SPAN, largest_batch(use.width, n_inputs, Attack.SPAN, next_width, widths)))
        if has_scale and isinstance(use.activation, FlatPart) and next_width <= MOST_SHARE * use.width:
            by_weights = largest_batch(use.width, n_inputs, Attack.NEXT_WEIGHTS, next_width)
            reach.append((Attack.NEXT_WEIGHTS, by_weights))
    return max(reach, key=lambda pair: pair[1])


def _downstream_widths(use: LinearUse, trace: Trace) -> tuple[int, ...]:
    """Return the widths of the layers after the next, as far as only smooth activations are between."""
    found: list[int] = []
    current: LinearUse | None = use
    while current is not None and passes_on(current, trace) and current.next_weight:
        if current.activation.has_flat_part or current.activation.is_piecewise_linear:
            break
        current = trace.using(current.next_weight)
        found += [] if current is None else [current.width]
    return tuple(found[1:])


def count_of_pictures(model: nn.Module, trace: Trace) -> EquationCount | None:
    """Count equations and unknowns of the pictures that a model is fed; None where they follow from no features.

    These are the inputs of the first linear layer that runs once and has one row for each picture. Batch normalisation
    in training mode mixes pictures.
    """
    example, mixed = trace.example, (nn.modules.batchnorm._BatchNorm,)
    is_mixed = any(isinstance(module, mixed) and module.training for module in model.modules())
    use = next((use for use in trace.layers if use.rows == 1 and trace.n_uses(use.name) == 1), None)
    if use is None or is_mixed or example is None or example.ndim != 4 or not example.is_floating_point():
        return None
    shape = tuple(example.shape[1:])
    drawn = torch.randn((N_COUNTED, *shape), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    try:
        return count_equations(Front(unwrapped(model), use.name, shape), drawn.numpy())
    except Exception:  # a model may raise anything on what it was not made for
        return None
