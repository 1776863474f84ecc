"""A batch of one record: the weight gradient over the bias gradient of any linear layer is what the layer was fed.

With ``G = d x^T`` and ``g = d`` no activation, no weight and no search matters. Of a larger batch the same quotient is
a mean of its inputs, weighted by their gradients.

References
----------
Phong et al., "Privacy-preserving deep learning via additively homomorphic encryption", 2018, Sec. 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from sparsedl_fl.activations import resolve
from sparsedl_fl.assembly import Assembly
from sparsedl_fl.audit.findings import FED_THE_INPUT, LayerAudit
from sparsedl_fl.audit.subject import Subject
from sparsedl_fl.gradients import LayerGradient
from sparsedl_fl.labels import NO_LABEL
from sparsedl_fl.models import LinearUse
from sparsedl_fl.peeling import KnownBatch
from sparsedl_fl.spectrum import precision_of

__all__ = ["has_rank_one", "record_of", "single_records"]

MOST_EXCESS = 2.0
"""Largest singular value beside a record over that of white noise of the same strength, up to which it is noise."""

RANK_ONE = 1e-5
"""Share of a gradient beyond one input that rounding of single precision may leave (1e-7 in the median)."""


def single_records(subject: Subject, found: Mapping[str, LayerAudit], batch_size: int | None) -> dict[str, LayerAudit]:
    """Return the layers whose gradient is one of one record, with the record where it is known to be one.

    It is known where the caller said so, or where another layer shows it: one whose single input is certified, or
    whose gradient has rank one behind more outputs than two and a smooth activation, which two inputs do not share.

    Parameters
    ----------
    subject : Subject
        What is audited.
    found : mapping of str to LayerAudit
        What the attacks found.
    batch_size : int or None
        Records, as the caller said.
    """
    layers: dict[str, LayerGradient] = {}
    for name, layer in found.items():
        use = subject.trace.use_of(name)
        if use is None or use.rows != 1 or subject.trace.n_uses(name) != 1 or layer.n_certified:
            continue
        if subject.learning_rate is not None and use.feeds != FED_THE_INPUT:
            continue  # what a layer behind is fed changes with the steps
        try:
            given = subject.layer_gradient(name)
        except ValueError:
            continue
        if has_rank_one(given) or (batch_size == 1 and is_noise_beside(given)):
            layers[name] = given
    is_shown = batch_size == 1 or any(_shows_one(layer) for layer in found.values()) or any(
        _tells_apart(subject.trace.use_of(name), given) for name, given in layers.items()
    )  # fmt: skip
    changed = {}
    for name, given in layers.items():
        if is_shown:
            text, source = "1 of 1 inputs: the weight gradient over the bias gradient", "a batch of one record"
            changed[name] = replace(
                found[name], batch=record_of(given), reason=text, source=source, at_least=0, likely_candidates=()
            )
        else:
            text = (
                "its gradient has rank one, as that of a single record has, and of any batch behind so few outputs: "
                "the weight gradient over the bias gradient is then a mean of the inputs, weighted by their "
                "gradients; pass batch_size=1 if it is one record"
            )
            changed[name] = replace(found[name], why_open=text, reason=text)
    return changed


def _shows_one(layer: LayerAudit) -> bool:
    return layer.n_certified == 1 and layer.n_samples == 1 and layer.is_size_known


def _tells_apart(use: LinearUse, given: LayerGradient) -> bool:
    """Return whether two inputs of a layer would give its gradient a rank of two."""
    if given.shape[0] < 3:
        return False
    activation = resolve(given.activation)
    is_smooth = activation is not None and not activation.is_piecewise_linear and not activation.has_flat_part
    return use.is_last or (use.activation is not None and is_smooth)


def record_of(given: LayerGradient) -> KnownBatch:
    """Return the record behind a layer's gradient, if it is one of one record; its error is by what is left over."""
    G, g = given.weight_grad.astype(np.float64), given.bias_grad.astype(np.float64)
    square = float(g @ g)
    if square == 0:
        raise ValueError("bias_grad is all zeros: the scale of the record is not known")
    x = G.T @ g / square
    left = G - np.outer(g, x)
    noise = np.sqrt(np.sum(left**2) / max(1, (len(g) - 1) * len(x))) if len(g) > 1 else 0.0
    rounding = max(np.finfo(np.float32).eps, precision_of(G)) * np.sqrt(np.mean(x**2))
    # Noise on the weights' gradient, and as much on each entry of the bias's.
    error = float(np.hypot(noise / np.sqrt(square) * np.sqrt(1 + np.mean(x**2)), rounding))
    certified = error <= Assembly.worthless * np.sqrt(np.mean(x**2))
    return KnownBatch(x[None], g[:, None], np.array([error]), np.array([bool(certified)]), np.array([NO_LABEL]))


def has_rank_one(given: LayerGradient) -> bool:
    """Return whether a layer's gradient is one of one input, with that of its bias."""
    together = np.column_stack([given.weight_grad, given.bias_grad]).astype(np.float64)
    largest = together[np.argmax(np.linalg.norm(together, axis=1))]
    factors = together @ largest / (largest @ largest)
    return bool(np.linalg.norm(together - np.outer(factors, largest)) <= RANK_ONE * np.linalg.norm(together))


def is_noise_beside(given: LayerGradient) -> bool:
    """Return whether what a layer's gradient has beside one input is no more than noise."""
    G, g = given.weight_grad.astype(np.float64), given.bias_grad.astype(np.float64)
    if not g.any():
        return False
    left = G - np.outer(g, G.T @ g) / (g @ g)
    level = np.sqrt(np.mean(left**2))
    return bool(np.linalg.norm(left, 2) <= MOST_EXCESS * level * (np.sqrt(len(G)) + np.sqrt(G.shape[1])))
