"""Numerical kernels, once each; they know nothing of the problems that they solve."""

from sparsedl_fl.solvers.conjugate_gradient import conjugate_gradient
from sparsedl_fl.solvers.douglas_rachford import douglas_rachford
from sparsedl_fl.solvers.gauss_newton import gauss_newton
from sparsedl_fl.solvers.random_starts import log_uniform

__all__ = ["conjugate_gradient", "douglas_rachford", "gauss_newton", "log_uniform"]
