"""Activation functions, one file a family.

- `ReLU`, `ReLU6`, `Hardtanh`, `Threshold` have zero-slope regions: the gradient of inactive units vanishes.
- `LeakyReLU`, `PReLU` have two slopes and no zero-slope region.
- `ELU`, `SELU`, `CELU`, `GELU`, `SiLU`, `Mish`, `Hardswish`, `Softplus`, `Tanh`, `Sigmoid` are smooth, or nearly.
- `Identity` is a layer's output itself: what follows is no elementwise function, or a loss.
- `Elementwise` is a function of your own; `check_activation` checks it.

An activation says where units are inactive, what they output, and which point of its graph is nearest. A new one is a
class here and an entry in `CLASSES`; the tests of all activations then run on it.
"""

from collections.abc import Sequence
from typing import Any

from sparsedl_fl.activations.base_activation import Activation
from sparsedl_fl.activations.elementwise import Elementwise, check_activation
from sparsedl_fl.activations.exponential import CELU, ELU, SELU
from sparsedl_fl.activations.flat import FlatPart, Hardtanh, ReLU, ReLU6, Threshold
from sparsedl_fl.activations.identity import HEAD, Identity
from sparsedl_fl.activations.leaky import LeakyReLU, PReLU
from sparsedl_fl.activations.smooth import GELU, Hardswish, Mish, Sigmoid, SiLU, Smooth, Softplus, Tanh

__all__ = [
    "ASSUMED",
    "HEAD",
    "CELU",
    "ELU",
    "GELU",
    "KNOWN",
    "SELU",
    "Activation",
    "Elementwise",
    "FlatPart",
    "Hardswish",
    "Hardtanh",
    "Identity",
    "LeakyReLU",
    "Mish",
    "PReLU",
    "ReLU",
    "ReLU6",
    "SiLU",
    "Sigmoid",
    "Smooth",
    "Softplus",
    "Tanh",
    "Threshold",
    "check_activation",
    "of_call",
    "resolve",
]

CLASSES: tuple[type[Activation], ...] = (
    ReLU, ReLU6, Hardtanh, LeakyReLU, PReLU, ELU, SELU, CELU, GELU, SiLU, Mish, Hardswish, Softplus, Tanh, Sigmoid,
)  # fmt: skip

KNOWN: dict[str, Activation] = {cls.name: cls() for cls in CLASSES} | {"gelu_tanh": GELU("tanh")}
"""Activations by name, with torch's default parameters."""


ASSUMED = ReLU()
"""The activation that is assumed where none is given: a wrong guess recovers and certifies nothing."""


def resolve(activation: str | Activation | None) -> Activation | None:
    """Return an activation by its name, the one given, the one assumed for None, or None for an unknown name."""
    if activation is None:
        return ASSUMED
    return activation if isinstance(activation, Activation) else (KNOWN | {HEAD.name: HEAD}).get(activation)


def of_call(operation: str, arguments: Sequence[Any]) -> list[Activation]:
    """Return the activations that a torch operation may be by its arguments, the first of which is ``z``."""
    found = [cls.of_call(arguments) for cls in CLASSES + (Threshold,) if operation in cls.operations]
    return [activation for activation in found if activation is not None]
