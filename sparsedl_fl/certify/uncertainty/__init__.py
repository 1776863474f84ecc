"""How far a recovered input may be off: its expected error, to first order in the noise.

To first order ``G = D X^T`` with noise ``N`` moves a recovered input in two ways. ``D^+ N`` adds noise to each of its
entries. And each column ``q_j``, estimated from the rows where it vanishes, is off by
``dq_j = -(U_Z^T U_Z)^+ U_Z^T nu_j`` with ``nu_j = N X^+_j``, which mixes some of the ``j``-th input into every other:
``dx_i = -sum_j (p_i dq_j) (x_j - x_i)``. Both are larger for an input whose own gradient is small.

What moves an input depends on what determines it: the zeros of the columns (`errors_from_zeros`), zeros of its own
(`errors_from_inputs`), or views, each input by itself (`errors_from_views`).
"""

from sparsedl_fl.certify.uncertainty.from_constraints import errors_from_constraints
from sparsedl_fl.certify.uncertainty.from_zeros import errors_from_inputs, errors_from_zeros

__all__ = ["errors_from_inputs", "errors_from_constraints", "errors_from_zeros"]
