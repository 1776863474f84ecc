"""What takes steps on the sphere: geoopt's."""

from __future__ import annotations

from sparsedl.process import without_warnings_of_jit

__all__ = ["AdamOnManifold", "ManifoldParameter", "SGDOnManifold", "Sphere"]

with without_warnings_of_jit():
    from geoopt import ManifoldParameter, Sphere
    from geoopt.optim import RiemannianAdam as AdamOnManifold
    from geoopt.optim import RiemannianSGD as SGDOnManifold
