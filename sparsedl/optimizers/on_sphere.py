"""What takes steps on the sphere: geoopt's, imported without the warnings of torch.jit, with which it compiles."""

from __future__ import annotations

import warnings

__all__ = ["AdamOnManifold", "ManifoldParameter", "SGDOnManifold", "Sphere"]

with warnings.catch_warnings():
    for kind in (DeprecationWarning, FutureWarning):  # the latter since torch 2.15, which shows it to everybody
        warnings.filterwarnings("ignore", "`torch.jit", kind)
    from geoopt import ManifoldParameter, Sphere
    from geoopt.optim import RiemannianAdam as AdamOnManifold
    from geoopt.optim import RiemannianSGD as SGDOnManifold
