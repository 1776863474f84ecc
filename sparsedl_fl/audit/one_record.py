"""A batch of one record: the weight gradient over the bias gradient of any linear layer is the layer's input.

With ``G = d x^T`` and ``g = d`` no activation, weight or search is needed. Of a larger batch the same quotient is a
mean of the inputs, weighted by their gradients.

References
----------
Phong et al., "Privacy-preserving deep learning via additively homomorphic encryption", 2018, Sec. 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, svds
from scipy.special import expit, softmax

from sparsedl.arrays import CHUNK_ENTRIES
from sparsedl_fl.audit.findings import FED_THE_INPUT, LayerAudit
from sparsedl_fl.audit.subject import Subject
from sparsedl_fl.certify.assembly import Assembly
from sparsedl_fl.certify.labels import NO_LABEL
from sparsedl_fl.layers.blocks import column_blocks, residual_squares, row_norms, times
from sparsedl_fl.lowrank.measured import precision_of
from sparsedl_fl.propagate.backward import KnownBatch
from sparsedl_fl.tracing.naming import plain_parameters
from sparsedl_fl.tracing.tracing import LinearUse
from sparsedl_fl.wording import argument_with

__all__ = ["single_records"]

MOST_EXCESS = 2.0
"""Largest singular value without the record, over that of white noise as strong, up to which it is noise."""

BY_LOSS = 1e-5
"""Distance between the bias gradient and that of the loss, relative to it, that may be rounding."""

LEAST_SPREAD = 0.1
"""Root mean square of a layer's outputs without bias, from which on two records have different gradients. A mean of
several records fulfils the loss to the square of it: with a head of zeros any mean of one class does."""

RANK_ONE = 1e-5
"""Share of a gradient beyond one input that may be rounding of single precision (median 1e-7)."""


def single_records(subject: Subject, found: Mapping[str, LayerAudit], batch_size: int | None) -> dict[str, LayerAudit]:
    """Return the layers whose gradient is that of one record, with the record where the batch is known to be one.

    It is known where the caller said so, where the last layer's gradient is that of the loss for this record, or where
    another layer shows it: its single input is certified, or its gradient has rank one although it has more outputs
    than two and a smooth activation, so that two inputs would give it rank two.

    Parameters
    ----------
    subject : Subject
        What is audited.
    found : mapping of str to LayerAudit
        What the attacks found.
    batch_size : int or None
        Number of records, where the caller gave it.
    """
    layers = {}
    for name, layer in found.items():
        quotient = _Quotient.of(subject, layer)
        if quotient is not None and (quotient.has_rank_one or (batch_size == 1 and quotient.is_noise_beside)):
            layers[name] = quotient
    is_contradicted = subject.loss is not None and any(q.use.is_last and q.label == NO_LABEL for q in layers.values())
    is_shown = bool(layers) and (
        (batch_size == 1 and not is_contradicted)
        or any(quotient.label != NO_LABEL and quotient.spreads for quotient in layers.values())
        or any(layer.n_certified == 1 and layer.n_samples == 1 and layer.is_size_known for layer in found.values())
        or any(quotient.shows_two for quotient in layers.values())
    )
    if is_shown:
        label = np.array([max(quotient.label for quotient in layers.values())])
        records = {name: replace(quotient.batch, labels=label) for name, quotient in layers.items()}
        text, source = "1 of 1 inputs: the weight gradient over the bias gradient", "a batch of one record"
        return {
            name: replace(found[name], batch=batch, reason=text, source=source, at_least=0, likely_candidates=())
            for name, batch in records.items()
            if not found[name].n_certified or found[name].worst_error > batch.errors[0]
        }
    text = (
        "its gradient has rank one: so has that of a single record, and of any batch at a layer with so few outputs. "
        "Of such a batch only a mean of the inputs, weighted by their gradients, can be read; pass "
        f"{argument_with('batch_size', 1)} if it is one record"
    )
    return {name: replace(found[name], why_open=text, reason=text) for name in layers if not found[name].n_certified}


@dataclass(frozen=True, eq=False)
class _Quotient:
    """A layer's gradient, taken for that of one record."""

    subject: Subject
    use: LinearUse
    weight_grad: np.ndarray
    bias_grad: np.ndarray

    @classmethod
    def of(cls, subject: Subject, layer: LayerAudit) -> _Quotient | None:
        """Return the gradient of a layer, where it may be that of one record."""
        use = subject.trace.use_of(layer.name)
        is_one = use is not None and use.rows == 1 and subject.trace.n_uses(use.name) == 1
        if not is_one or (layer.n_certified and layer.n_inputs > 1):
            return None
        if subject.learning_rate is not None and use.feeds != FED_THE_INPUT:
            return None  # a later layer's input changes from step to step
        G, g = (subject.gradients.get(parameter) for parameter in (use.weight, use.bias))
        if G is None or g is None or not g.any():
            return None
        return cls(subject, use, _as_sent(G.T if use.is_transposed else G), g.detach().cpu().double().numpy())

    @cached_property
    def record(self) -> np.ndarray:
        """The weight gradient over the bias gradient, by least squares."""
        return _times_rows(self.weight_grad, self.bias_grad) / (self.bias_grad @ self.bias_grad)

    @cached_property
    def outputs(self) -> np.ndarray:
        """The layer's outputs for the record, without the bias."""
        weight = _as_sent(plain_parameters(self.subject.model)[self.use.weight])
        return times(weight.T if self.use.is_transposed else weight, self.record)

    @cached_property
    def label(self) -> int:
        """The label for which the loss of a model's last layer has this gradient for this record, or `NO_LABEL`.

        A mean of several records does not fulfil ``g = p(W x + b) - y``.
        """
        bias = plain_parameters(self.subject.model).get(self.use.bias)
        by_loss = self.subject.loss in (None, "cross_entropy", "binary_cross_entropy")
        if not self.use.is_last or not by_loss or bias is None:
            return NO_LABEL
        z = self.outputs + bias.detach().cpu().double().numpy()
        label = (expit(z) if len(z) == 1 else softmax(z)) - self.bias_grad
        number = int(np.round(label[0])) if len(z) == 1 else int(np.argmax(label))
        nearest = np.array([float(number)]) if len(z) == 1 else np.eye(len(z))[number]
        is_near = np.linalg.norm(label - nearest) <= BY_LOSS * np.linalg.norm(self.bias_grad)
        return number if is_near else NO_LABEL

    @property
    def spreads(self) -> bool:
        """Whether the layer's outputs are large enough for other records to have different gradients."""
        z = self.outputs - self.outputs.mean() if self.use.is_last and len(self.outputs) > 1 else self.outputs
        return bool(np.sqrt(np.mean(z**2)) >= LEAST_SPREAD)

    @property
    def shows_two(self) -> bool:
        """Whether two inputs of the layer would give its gradient a rank of two."""
        # A gradient cut to its largest entries may keep one row only, which has rank one whatever the batch.
        n_rows = int(self.weight_grad.any(axis=1).sum())
        if n_rows < 3 or (self.use.is_last and n_rows < len(self.weight_grad)) or not self.spreads:
            return False
        activation = self.use.activation
        is_smooth = activation is not None and not activation.is_piecewise_linear and not activation.has_flat_part
        return self.use.is_last or is_smooth

    @property
    def batch(self) -> KnownBatch:
        """The record, if it is one; its error is estimated from what it leaves of the gradient."""
        x, square = self.record, float(self.bias_grad @ self.bias_grad)
        noise = np.sqrt(self._squares_besides_record / max(1, self.weight_grad.size - len(x)))
        rounding = max(np.finfo(np.float32).eps, precision_of(self.weight_grad)) * np.sqrt(np.mean(x**2))
        # Noise on the weight gradient, and as much on each entry of the bias gradient.
        error = float(np.hypot(noise / np.sqrt(square) * np.sqrt(1 + np.mean(x**2)), rounding))
        certified = np.array([bool(error <= Assembly.worthless * np.sqrt(np.mean(x**2)))])
        return KnownBatch(x[None], self.bias_grad[:, None], np.array([error]), certified, np.array([NO_LABEL]))

    @property
    def has_rank_one(self) -> bool:
        """Whether weight and bias gradient are those of one input."""
        left = residual_squares(self.weight_grad, self.bias_grad, self.record)
        return bool(np.sqrt(left) <= RANK_ONE * np.linalg.norm(row_norms(self.weight_grad)))

    @property
    def is_noise_beside(self) -> bool:
        """Whether the gradient is that of one input but for noise."""
        m, n = self.weight_grad.shape
        level = np.sqrt(self._squares_besides_record / (m * n)) * (np.sqrt(m) + np.sqrt(n))
        return bool(self._largest_besides_record() <= MOST_EXCESS * level)

    @cached_property
    def _direction(self) -> np.ndarray:
        return self.record / (np.linalg.norm(self.record) or 1.0)

    @cached_property
    def _squares_besides_record(self) -> float:
        """Sum of squares without one input and what is parallel to it, which noise on the bias gradient makes."""
        of_bias = times(self.weight_grad, self._direction) - self.bias_grad * np.linalg.norm(self.record)
        return max(0.0, residual_squares(self.weight_grad, self.bias_grad, self.record) - float(of_bias @ of_bias))

    def _largest_besides_record(self, *, share: float = 0.01) -> float:
        """Return the largest singular value without one input; for a large gradient to within a share, without a copy.

        Infinity where it is not found: then nothing counts as noise.
        """
        G, g, x, along = self.weight_grad, self.bias_grad, self.record, self._direction
        if G.size <= CHUNK_ENTRIES:
            left = G - np.outer(g, x)
            return float(np.linalg.norm(left - np.outer(left @ along, along), 2))

        def forward(right: np.ndarray) -> np.ndarray:
            right = right.ravel() - along * (along @ right.ravel())
            return times(G, right) - g * (x @ right)

        def backward(left: np.ndarray) -> np.ndarray:
            products = _times_rows(G, left.ravel()) - x * (g @ left.ravel())
            return products - along * (along @ products)

        left_over = LinearOperator(G.shape, matvec=forward, rmatvec=backward, dtype=np.float64)
        start = np.random.default_rng(0).standard_normal(min(G.shape))
        try:
            return float(svds(left_over, k=1, tol=share, v0=start, return_singular_vectors=False)[0])
        except ArpackNoConvergence:
            return np.inf


def _as_sent(tensor: torch.Tensor) -> np.ndarray:
    """Return a large tensor as NumPy's, copied only from half precision."""
    tensor = tensor.detach().cpu()
    return (tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.double()).numpy()


def _times_rows(matrix: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return a sum of the rows of a large matrix, without a copy of it."""
    return np.concatenate([block.T @ weights for _, block in column_blocks(matrix)])
