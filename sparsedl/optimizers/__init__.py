"""Optimisers on the sphere, one file each.

Which one to use
----------------
- `Graduated` (the default) shrinks the smoothing of the surrogate as it goes: two products a step, in single precision.
  The fastest, and the one that completes the most problems when samples are few, from thousands of starts, with the
  surrogate `Cauchy`.
- `RiemannianAdam` is the one of SPEAR++ (the default where only a surrogate is given).
- `FixedPoint` takes tens of iterations rather than hundreds: the fastest where samples are plentiful.
- `RiemannianSGD` and `DiminishingSubgradient` are the cheapest a start, and as good where samples are plentiful.
- `ProjectedGradient` is the simplest, and the second optimiser of SPEAR++.
- `ReweightedLeastSquares` takes tens of iterations too, but each solves a linear system; for few components.
- `MatchingStretchProject` finds all components at once, with `NegativeL4` alone; it wants many samples.
"""

from sparsedl.optimizers.diminishing_subgradient import DiminishingSubgradient
from sparsedl.optimizers.fixed_point import FixedPoint
from sparsedl.optimizers.graduated import Graduated
from sparsedl.optimizers.matching_stretch_project import MatchingStretchProject
from sparsedl.optimizers.optimizer import (
    OptimizationResult,
    Optimizer,
    ScheduledOptimizer,
    SmoothedOptimizer,
    euclidean_gradient,
)
from sparsedl.optimizers.projected_gradient import ProjectedGradient
from sparsedl.optimizers.reweighted_least_squares import ReweightedLeastSquares
from sparsedl.optimizers.riemannian_adam import RiemannianAdam
from sparsedl.optimizers.riemannian_sgd import RiemannianSGD

__all__ = [
    "DiminishingSubgradient",
    "FixedPoint",
    "Graduated",
    "MatchingStretchProject",
    "Optimizer",
    "OptimizationResult",
    "ProjectedGradient",
    "ReweightedLeastSquares",
    "RiemannianAdam",
    "RiemannianSGD",
    "ScheduledOptimizer",
    "SmoothedOptimizer",
    "euclidean_gradient",
]
