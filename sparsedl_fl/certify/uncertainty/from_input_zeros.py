"""Expected errors from zeros of the inputs themselves."""

from __future__ import annotations

import numpy as np
from scipy.linalg import solve_triangular

from sparsedl_fl.certify.uncertainty.normal_equations import factor_of
from sparsedl_fl.lowrank.factors import LowRankGradient

__all__ = ["errors_from_inputs"]


def errors_from_inputs(transposed: LowRankGradient, inputs: np.ndarray, zeros: np.ndarray) -> np.ndarray:
    """Return the expected error of inputs that zeros of their own determine, each by itself.

    Parameters
    ----------
    transposed : LowRankGradient
        The factorised ``G^T``.
    inputs : ndarray of shape (k, n)
        Recovered inputs.
    zeros : ndarray of shape (n, k) of bool
        Where they are zero.

    Returns
    -------
    ndarray of shape (k,)
        What follows from the noise at the zeros alone, as a root mean square; infinite where they leave an input open.
    """
    V, S, noise = transposed.left, transposed.singular_values, transposed.noise_level
    errors = np.empty(len(inputs))
    for index, x in enumerate(inputs):
        direction = V.T @ x
        rows, own = V[zeros[:, index]], direction / np.linalg.norm(direction)
        solver = factor_of(rows, own)
        if solver is None:
            errors[index] = np.inf
            continue
        amplified = noise[zeros[:, index]] * np.linalg.norm(direction / S)
        step = solve_triangular(solver, rows.T * amplified, lower=True)
        step = solve_triangular(solver.T, step, lower=False)
        errors[index] = np.sqrt(np.sum(step**2) / len(x))
    return errors
