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
"""

from sparsedl import __version__
from sparsedl_fl.gradients import LayerGradient
from sparsedl_fl.inverter import GradientInverter

__all__ = ["GradientInverter", "LayerGradient", "__version__"]
