"""The expected error of a recovered input, to first order in the noise.

To first order ``G = D X^T`` with noise ``N`` moves a recovered input in two ways. ``D^+ N`` adds noise to each of its
entries. And each column ``q_j``, estimated from the rows where it vanishes, is off by
``dq_j = -(U_Z^T U_Z)^+ U_Z^T nu_j`` with ``nu_j = N X^+_j``, which mixes some of the ``j``-th input into every other:
``dx_i = -sum_j (p_i dq_j) (x_j - x_i)``. Both are larger for an input whose own gradient is small.

The error depends on what determines the input: the zeros of the columns (`errors_from_zeros`), zeros of its own
(`errors_from_inputs`), or constraints, each input by itself (`errors_from_constraints`).
"""

from sparsedl_fl.certify.uncertainty.from_constraints import errors_from_constraints
from sparsedl_fl.certify.uncertainty.from_zeros import errors_from_inputs, errors_from_zeros

__all__ = ["errors_from_inputs", "errors_from_constraints", "errors_from_zeros"]
