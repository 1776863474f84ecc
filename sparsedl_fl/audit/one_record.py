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
import torch
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, svds
from scipy.special import expit, softmax

from sparsedl.arrays import CHUNK_ENTRIES
from sparsedl_fl.audit.findings import FED_THE_INPUT, LayerAudit
from sparsedl_fl.audit.subject import Subject
from sparsedl_fl.certify.assembly import Assembly
from sparsedl_fl.certify.labels import NO_LABEL
from sparsedl_fl.layers.blocks import column_blocks, row_norms, squares_beside, times
from sparsedl_fl.lowrank.spectrum import precision_of
from sparsedl_fl.propagate.backward import KnownBatch
from sparsedl_fl.tracing.naming import plain_parameters
from sparsedl_fl.wording import argument_with

__all__ = ["has_rank_one", "record_of", "single_records"]

MOST_EXCESS = 2.0
"""Largest singular value beside a record over that of white noise of the same strength, up to which it is noise."""

BY_LOSS = 1e-5
"""Distance from what the loss has for a record and a label, relative to the gradient, that rounding may leave."""

LEAST_SPREAD = 0.1
"""Root mean square of what weights make of a record, from which on two records have other gradients. Means of records
fulfil a loss to the square of it: behind a head of zeros any mean of one class does."""

RANK_ONE = 1e-5
"""Share of a gradient beyond one input that rounding of single precision may leave (1e-7 in the median)."""


def single_records(subject: Subject, found: Mapping[str, LayerAudit], batch_size: int | None) -> dict[str, LayerAudit]:
    """Return the layers whose gradient is one of one record, with the record where it is known to be one.

    It is known where the caller said so, where the last layer's gradient is what the loss has for it, or where another
    layer shows it: one whose single input is certified, or whose gradient has rank one behind more outputs than two and
    a smooth activation, which two inputs do not share.

    Parameters
    ----------
    subject : Subject
        What is audited.
    found : mapping of str to LayerAudit
        What the attacks found.
    batch_size : int or None
        Records, as the caller said.
    """
    layers: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for name, layer in found.items():
        use = subject.trace.use_of(name)
        if (
            use is None
            or use.rows != 1
            or subject.trace.n_uses(name) != 1
            or (layer.n_certified and layer.n_inputs > 1)
        ):
            continue
        if subject.learning_rate is not None and use.feeds != FED_THE_INPUT:
            continue  # what a layer behind is fed changes with the steps
        G, g = (subject.gradients.get(parameter) for parameter in (use.weight, use.bias))
        if G is None or g is None or not g.any():
            continue
        G, g = _as_sent(G.T if use.is_transposed else G), g.detach().cpu().double().numpy()
        if has_rank_one(G, g) or (batch_size == 1 and is_noise_beside(G, g)):
            layers[name] = G, g
    labels = {name: _label(subject, name, *sent) for name, sent in layers.items()}
    is_contradicted = subject.loss is not None and any(
        subject.trace.use_of(name).is_last and label == NO_LABEL for name, label in labels.items()
    )
    is_shown = (
        (batch_size == 1 and not is_contradicted)
        or any(label != NO_LABEL and _spreads(subject, name, *layers[name]) for name, label in labels.items())
        or any(_shows_one(layer) for layer in found.values())
        or any(_tells_apart(subject, name, *sent) for name, sent in layers.items())
    )
    changed = {}
    for name, sent in layers.items():
        if is_shown:
            text, source = "1 of 1 inputs: the weight gradient over the bias gradient", "a batch of one record"
            batch = replace(record_of(*sent), labels=np.array([max(labels.values())]))
            if found[name].n_certified and found[name].worst_error <= batch.errors[0]:
                continue
            changed[name] = replace(
                found[name], batch=batch, reason=text, source=source, at_least=0, likely_candidates=()
            )
        elif not found[name].n_certified:
            text = (
                "its gradient has rank one, as that of a single record has, and of any batch behind so few outputs: "
                "the weight gradient over the bias gradient is then a mean of the inputs, weighted by their "
                f"gradients; pass {argument_with('batch_size', 1)} if it is one record"
            )
            changed[name] = replace(found[name], why_open=text, reason=text)
    return changed


def _label(subject: Subject, name: str, weight_grad: np.ndarray, bias_grad: np.ndarray) -> int:
    """Return the label for which the loss of a model's last layer has this gradient for this record, or `NO_LABEL`.

    A mean of several records does not fulfil ``g = p(W x + b) - y``.
    """
    use = subject.trace.use_of(name)
    bias = plain_parameters(subject.model).get(use.bias)
    if not use.is_last or subject.loss not in (None, "cross_entropy", "binary_cross_entropy") or bias is None:
        return NO_LABEL
    z = _outputs(subject, name, _quotient(weight_grad, bias_grad)) + bias.detach().cpu().double().numpy()
    label = (expit(z) if len(z) == 1 else softmax(z)) - bias_grad
    nearest = np.array([np.round(label[0])]) if len(z) == 1 else np.eye(len(z))[np.argmax(label)]
    if np.linalg.norm(label - nearest) > BY_LOSS * np.linalg.norm(bias_grad):
        return NO_LABEL
    return int(nearest[0]) if len(z) == 1 else int(np.argmax(label))


def _shows_one(layer: LayerAudit) -> bool:
    return layer.n_certified == 1 and layer.n_samples == 1 and layer.is_size_known


def _tells_apart(subject: Subject, name: str, weight_grad: np.ndarray, bias_grad: np.ndarray) -> bool:
    """Return whether two inputs of a layer would give its gradient a rank of two."""
    use = subject.trace.use_of(name)
    # Of a gradient that was cut to its largest entries one row may be left, which has rank one whatever the batch.
    n_rows = int(weight_grad.any(axis=1).sum())
    if n_rows < 3 or (use.is_last and n_rows < len(weight_grad)) or not _spreads(subject, name, weight_grad, bias_grad):
        return False
    activation = use.activation
    is_smooth = activation is not None and not activation.is_piecewise_linear and not activation.has_flat_part
    return use.is_last or is_smooth


def _spreads(subject: Subject, name: str, weight_grad: np.ndarray, bias_grad: np.ndarray) -> bool:
    """Return whether a layer's weights make something of a record, so that others would have other gradients."""
    z = _outputs(subject, name, _quotient(weight_grad, bias_grad))
    z = z - z.mean() if subject.trace.use_of(name).is_last and len(z) > 1 else z
    return bool(np.sqrt(np.mean(z**2)) >= LEAST_SPREAD)


def _outputs(subject: Subject, name: str, record: np.ndarray) -> np.ndarray:
    """Return what a layer's weights make of a record, without the bias."""
    use = subject.trace.use_of(name)
    parameters = plain_parameters(subject.model)
    weight = _as_sent(parameters[use.weight])
    return times(weight.T if use.is_transposed else weight, record)


def _as_sent(tensor: torch.Tensor) -> np.ndarray:
    """Return a large tensor as NumPy's, without a copy but for half precision."""
    tensor = tensor.detach().cpu()
    return (tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.double()).numpy()


def _quotient(weight_grad: np.ndarray, bias_grad: np.ndarray) -> np.ndarray:
    """Return the weight gradient over the bias gradient, by least squares."""
    products = np.concatenate([block.T @ bias_grad for _, block in column_blocks(weight_grad)])
    return products / (bias_grad @ bias_grad)


def record_of(weight_grad: np.ndarray, bias_grad: np.ndarray) -> KnownBatch:
    """Return the record behind a layer's gradient, if it is one of one record; its error is by what is left over.

    Parameters
    ----------
    weight_grad, bias_grad : ndarray of shape (m, n) and (m,)
        The gradient.
    """
    square = float(bias_grad @ bias_grad)
    x = _quotient(weight_grad, bias_grad)
    noise = np.sqrt(_white_beside(weight_grad, bias_grad, x) / max(1, weight_grad.size - len(x)))
    rounding = max(np.finfo(np.float32).eps, precision_of(weight_grad)) * np.sqrt(np.mean(x**2))
    # Noise on the weights' gradient, and as much on each entry of the bias's.
    error = float(np.hypot(noise / np.sqrt(square) * np.sqrt(1 + np.mean(x**2)), rounding))
    certified = error <= Assembly.worthless * np.sqrt(np.mean(x**2))
    return KnownBatch(x[None], bias_grad[:, None], np.array([error]), np.array([bool(certified)]), np.array([NO_LABEL]))


def has_rank_one(weight_grad: np.ndarray, bias_grad: np.ndarray) -> bool:
    """Return whether a layer's gradient is one of one input, with that of its bias."""
    left = squares_beside(weight_grad, bias_grad, _quotient(weight_grad, bias_grad))
    return bool(np.sqrt(left) <= RANK_ONE * np.linalg.norm(row_norms(weight_grad)))


def is_noise_beside(weight_grad: np.ndarray, bias_grad: np.ndarray) -> bool:
    """Return whether what a layer's gradient has beside one input is no more than noise."""
    x = _quotient(weight_grad, bias_grad)
    m, n = weight_grad.shape
    level = np.sqrt(_white_beside(weight_grad, bias_grad, x) / (m * n)) * (np.sqrt(m) + np.sqrt(n))
    if weight_grad.size <= CHUNK_ENTRIES:
        left, along = weight_grad - np.outer(bias_grad, x), x / (np.linalg.norm(x) or 1.0)
        largest = np.linalg.norm(left - np.outer(left @ along, along), 2)
    else:
        largest = _largest_beside(weight_grad, bias_grad, x)
    return bool(largest <= MOST_EXCESS * level)


def _white_beside(weight_grad: np.ndarray, bias_grad: np.ndarray, x: np.ndarray) -> float:
    """Return the squares beside one input, without those along it, which noise on the bias's gradient makes."""
    along = x / (np.linalg.norm(x) or 1.0)
    of_bias = times(weight_grad, along) - bias_grad * np.linalg.norm(x)
    return max(0.0, squares_beside(weight_grad, bias_grad, x) - float(of_bias @ of_bias))


def _largest_beside(weight_grad: np.ndarray, bias_grad: np.ndarray, x: np.ndarray, *, share: float = 0.01) -> float:
    """Return the largest singular value beside one input, to a share of it, without a copy of a large gradient.

    Infinity where it is not found: then nothing is noise.
    """
    along = x / (np.linalg.norm(x) or 1.0)

    def forward(right: np.ndarray) -> np.ndarray:
        right = right.ravel() - along * (along @ right.ravel())
        return times(weight_grad, right) - bias_grad * (x @ right)

    def backward(left: np.ndarray) -> np.ndarray:
        products = np.concatenate([block.T @ left.ravel() for _, block in column_blocks(weight_grad)])
        products = products - x * (bias_grad @ left.ravel())
        return products - along * (along @ products)

    beside = LinearOperator(weight_grad.shape, matvec=forward, rmatvec=backward, dtype=np.float64)
    start = np.random.default_rng(0).standard_normal(min(weight_grad.shape))
    try:
        return float(svds(beside, k=1, tol=share, v0=start, return_singular_vectors=False)[0])
    except ArpackNoConvergence:
        return np.inf
