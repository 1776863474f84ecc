"""Audit how much of a client's batch leaks from a federated-learning gradient. For models and gradients you own.

=============================  ==============================  ==================
here                           in the papers                   shape
=============================  ==============================  ==================
``LayerGradient.weight``       ``W``                           (m, n)
``LayerGradient.weight_grad``  ``G = dL/dW = D X^T``           (m, n)
``LayerGradient.bias_grad``    ``g = dL/db = D 1``             (m,)
``inputs_``                    ``X^T``                         (batch_size, n)
``preactivation_gradients_``   ``D = dL/dZ``                   (m, batch_size)
``disaggregation_``            ``Q``                           (batch_size, batch_size)
``sparsity_matching_``         ``lambda``                      scalar
=============================  ==============================  ==================

Inside, inputs are columns as in the papers; ``inputs_`` has them as rows, as scikit-learn does.

Names are imported when they are asked for: torch takes seconds, and the command line answers before.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparsedl import __version__
    from sparsedl_fl.inverter import GradientInverter
    from sparsedl_fl.layers.layer_gradient import LayerGradient

__all__ = ["GradientInverter", "LayerGradient", "__version__"]

_PLACES = {
    "GradientInverter": "sparsedl_fl.inverter",
    "LayerGradient": "sparsedl_fl.layers.layer_gradient",
    "__version__": "sparsedl",
}


def __getattr__(name: str) -> Any:
    """Import a public name, or a module of the package."""
    if name in _PLACES:
        return getattr(import_module(_PLACES[name]), name)
    try:
        return import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"{__name__}.{name}":
            raise
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
