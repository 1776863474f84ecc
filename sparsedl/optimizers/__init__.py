"""Optimisers on the sphere, one file each.

Which one to use
----------------
- `RiemannianAdam` (the default) is the one of SPEAR++ and the most forgiving.
- `ProjectedGradient` is the simplest: it needs a smaller learning rate and recovers less when samples are few.
"""

from sparsedl.optimizers._base import OptimizationResult, Optimizer, ScheduledOptimizer, euclidean_gradient
from sparsedl.optimizers.projected_gradient import ProjectedGradient
from sparsedl.optimizers.riemannian_adam import RiemannianAdam

__all__ = [
    "Optimizer",
    "OptimizationResult",
    "ProjectedGradient",
    "RiemannianAdam",
    "ScheduledOptimizer",
    "euclidean_gradient",
]
