"""The sum of a client's gradients from its states before and after local training."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from sparsedl.process import neutral_modes
from sparsedl_fl.layers.decayed_start import decay_by_rank
from sparsedl_fl.layers.of_model import get_tensor, pick_layer
from sparsedl_fl.tracing.naming import plain_names
from sparsedl_fl.wording import argument, argument_with, is_option

__all__ = ["gradients_of_update", "kept_share", "layer_of_state", "obstacle_of_optimizer", "plain_optimizer"]

OPTIMIZERS = ("sgd",)
"""Optimisers whose update is a weighted sum of gradients, and so keeps their rank."""

OTHERS = (
    "adadelta", "adafactor", "adagrad", "adam", "adamax", "adamw", "asgd", "lamb", "lars", "lbfgs", "lion", "muon",
    "nadam", "radam", "rmsprop", "rprop", "shampoo", "signsgd", "sparseadam", "yogi",
)  # fmt: skip
"""Known optimisers whose updates are no such sum."""


def plain_optimizer(optimizer: str) -> str:
    """Return the name of an optimiser in lower case, without dashes."""
    return str(optimizer).lower().replace("_", "").replace("-", "")


def obstacle_of_optimizer(optimizer: str) -> str:
    """Return why the updates of an optimiser are out of range, or nothing where they are not.

    Raises
    ------
    ValueError
        If there is no optimiser of that name.

    Examples
    --------
    >>> obstacle_of_optimizer("SGD")
    ''
    """
    name = plain_optimizer(optimizer)
    if name in OPTIMIZERS:
        return ""
    if name not in OTHERS:
        raise ValueError(
            f"{argument_with('optimizer', optimizer)} is not known; there are {', '.join((*OPTIMIZERS, *OTHERS))}"
        )
    return (
        f"{argument_with('optimizer', optimizer)} is out of range: its steps are no sum of gradients (Adam divides "
        "each entry by its own size), so that the update has no low rank; weights after a single step of Adam, AdamW, "
        f"Adamax, RMSprop or Adagrad can be audited, with {argument('learning_rate')} and {argument('n_steps')}"
    )


@neutral_modes(gradients=True)
def gradients_of_update(
    before: Mapping[str, torch.Tensor],
    after: Mapping[str, torch.Tensor],
    learning_rate: float,
    *,
    n_steps: int | None = None,
    momentum: float = 0.0,
    weight_decay: float | None = 0.0,
    optimizer: str = "sgd",
) -> dict[str, torch.Tensor]:
    """Return the sum of a client's local gradients by plain name, in double precision.

    Parameters
    ----------
    before, after : mapping of name to tensor
        State of the model before and after local training; integers are left out, and prefixes of wrappers are dropped.
    learning_rate : float
        The client's learning rate.
    n_steps : int or None, default=None
        Local steps; needed where weight decay is known.
    momentum : float, default=0
        Plain or Nesterov: the sum of gradients is then a weighted one, with the same rank and the same inputs.
    weight_decay : float or None, default=0
        The client's; None estimates it from the rank, where the batch is smaller than the largest layer.
    optimizer : str, default="sgd"
        "sgd"; any other is out of range.

    Returns
    -------
    dict of str to torch.Tensor
        ``(a W0 - W_T) / learning_rate`` with the share ``a`` of the initial weights that is left after decay.

    Raises
    ------
    ValueError
        If the states do not belong together, weight decay cannot be found, or the optimiser is out of range.

    References
    ----------
    SPEAR (2024), Appendix F.
    """
    if not (np.isfinite(learning_rate) and learning_rate > 0):
        raise ValueError(f"{argument('learning_rate')} must be a positive number, got {learning_rate!r}")
    if obstacle_of_optimizer(optimizer):
        raise ValueError(obstacle_of_optimizer(optimizer))
    before, after = plain_names("before", before), plain_names("after", after)
    names = [name for name, tensor in before.items() if isinstance(tensor, torch.Tensor) and tensor.is_floating_point()]
    states = {}
    for name in names:
        initial, final = before[name], get_tensor("after", after, name)
        if initial.shape != final.shape:
            raise ValueError(
                f"{name!r} has shape {tuple(initial.shape)} before and {tuple(final.shape)} after: not the same model"
            )
        states[name] = initial.detach().cpu().double(), final.detach().cpu().double()
        if not states[name][0].isfinite().all():
            raise ValueError(
                f"before has NaN or infinity in {name!r}: the client cannot have started from these weights"
            )
    if weight_decay is None:
        kept = decay_by_rank(states)
    elif weight_decay == 0:
        kept = 1.0
    elif n_steps is None:
        raise ValueError(
            f"{argument('n_steps')} is needed to undo {argument('weight_decay')}; "
            f"{argument_with('weight_decay', 'find' if is_option('weight_decay') else None)} finds it by the rank"
        )
    else:
        kept = kept_share(learning_rate, n_steps, momentum, weight_decay)
    return {name: (kept * initial - final) / learning_rate for name, (initial, final) in states.items()}


def kept_share(learning_rate: float, n_steps: int, momentum: float, weight_decay: float) -> float:
    """Return the share of the initial weights that is left after decay alone, by the steps of `torch.optim.SGD`.

    Examples
    --------
    >>> round(kept_share(0.1, 2, 0.0, 0.5), 6)  # (1 - 0.05)^2
    0.9025
    """
    if n_steps < 1 or momentum < 0 or weight_decay < 0:
        raise ValueError(
            f"{argument('n_steps')} must be positive, {argument('momentum')} and {argument('weight_decay')} not "
            f"negative, got {n_steps!r}, {momentum!r} and {weight_decay!r}"
        )
    weight, velocity = 1.0, 0.0
    for step in range(n_steps):
        velocity = weight_decay * weight + (momentum * velocity if step else 0.0)
        weight -= learning_rate * velocity
    return weight


def layer_of_state(
    before: Mapping[str, torch.Tensor], gradients: Mapping[str, torch.Tensor], layer: int | str
) -> dict[str, torch.Tensor | None]:
    """Return weights and summed gradients of one layer, by the keywords of a `LayerGradient`.

    Parameters
    ----------
    before, layer
        As in `sparsedl_fl.LayerGradient.from_update`.
    gradients : mapping of name to tensor
        Of `gradients_of_update`.
    """
    before = plain_names("before", before)
    matrices = [key for key, value in before.items() if key.endswith("weight") and value.ndim == 2]
    names = [key.removesuffix("weight") for key in matrices]
    prefix = pick_layer("layer", layer if isinstance(layer, int) else f"{layer}.", names)
    keys = {"weight": f"{prefix}weight", "bias": f"{prefix}bias", "next_weight": _next_weight(before, prefix)}
    weights = {name: before.get(key) for name, key in keys.items()}
    return weights | {f"{name}_grad": gradients.get(key) for name, key in keys.items()}


def _next_weight(state: Mapping[str, torch.Tensor], prefix: str) -> str | None:
    """Return the key that follows a layer's tensors, if it is the weight of a linear layer with as many inputs."""
    weight = f"{prefix}weight"
    keys = [key for key in state if key != f"{prefix}bias"]
    following = keys[keys.index(weight) + 1 :][:1]
    is_linear = following and following[0].endswith("weight") and state[following[0]].ndim == 2
    return following[0] if is_linear and state[following[0]].shape[1] == len(state[weight]) else None
