"""What a unit does with its pre-activation, and what that leaks: one file a family.

- `ReLU`, `ReLU6`, `Hardtanh`, `Threshold` have flat parts: the gradient vanishes where a unit is off, which is what
  the searches for directions look for.

Everything else in the package asks the activation: where units are off, what they output, which output is nearest.
A new one is a class in here and an entry in `KNOWN`; the tests for all of them run on it.
"""

from sparsedl_fl.activations._base import Activation
from sparsedl_fl.activations.flat import FlatPart, Hardtanh, ReLU, ReLU6, Threshold

__all__ = ["ASSUMED", "KNOWN", "Activation", "FlatPart", "Hardtanh", "ReLU", "ReLU6", "Threshold", "resolve"]

KNOWN: dict[str, Activation] = {activation.name: activation for activation in (ReLU(), ReLU6(), Hardtanh())}
"""Activations without parameters of their own, by name."""


ASSUMED = ReLU()
"""What a layer is taken to have of which that is not known: a wrong guess finds nothing, and certifies nothing."""


def resolve(activation: str | Activation | None) -> Activation | None:
    """Return the activation of a name, the one given, the one assumed for None, or None for one without a class."""
    if activation is None:
        return ASSUMED
    return activation if isinstance(activation, Activation) else KNOWN.get(activation)
