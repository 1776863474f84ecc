"""What a unit does with its pre-activation, and what that leaks: one file a family.

- `ReLU`, `ReLU6`, `Hardtanh`, `Threshold` have flat parts: the gradient vanishes where a unit is off.
- `LeakyReLU`, `PReLU` have two slopes and no flat part.
- `ELU`, `SELU`, `CELU`, `GELU`, `SiLU`, `Mish`, `Hardswish`, `Softplus`, `Tanh`, `Sigmoid` are smooth, or nearly.
- `Identity` is a layer's output as it is: what follows is no elementwise function, or a loss.
- `Elementwise` is a function of your own; `check_activation` says whether it will do.

Everything else in the package asks the activation: where units are off, what they output, which output is nearest.
A new one is a class in here and an entry in `KNOWN`; the tests for all of them run on it.
"""

from collections.abc import Sequence
from typing import Any

from sparsedl_fl.activations._base import Activation
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
"""What a layer is taken to have of which that is not known: a wrong guess finds nothing, and certifies nothing."""


def resolve(activation: str | Activation | None) -> Activation | None:
    """Return the activation of a name, the one given, the one assumed for None, or None for one without a class."""
    if activation is None:
        return ASSUMED
    return activation if isinstance(activation, Activation) else (KNOWN | {HEAD.name: HEAD}).get(activation)


def of_call(operation: str, arguments: Sequence[Any]) -> list[Activation]:
    """Return what a torch operation may be by its arguments, the first of which is ``z``; best guesses first."""
    found = [cls.of_call(arguments) for cls in CLASSES + (Threshold,) if operation in cls.operations]
    return [activation for activation in found if activation is not None]
