"""Draws of a known batch within its expected errors: what follows from it may be off by as much as these differ."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sparsedl_fl.propagate.backward import KnownBatch

__all__ = ["drawn_inputs"]

N_DRAWS = 4
"""Of either kind."""


def drawn_inputs(known: KnownBatch) -> Iterator[np.ndarray]:
    """Yield inputs that are off by their expected errors: in any direction, or along differences of other inputs."""
    rng, inputs = np.random.default_rng(0), known.inputs
    for kind in range(2 * N_DRAWS):
        off = rng.standard_normal(inputs.shape)
        if kind % 2 and len(inputs) > 1:
            off = rng.standard_normal((len(inputs), len(inputs))) @ (inputs - inputs.mean(axis=0))
        size = np.sqrt(np.mean(off**2, axis=1, keepdims=True))
        yield inputs + known.errors[:, None] * off / np.maximum(size, np.finfo(float).tiny)
