"""From a layer whose whole batch is known to the others: back to the input, and forward to the loss."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from sparsedl_fl.audit.subject import Subject
from sparsedl_fl.certify.labels import NO_LABEL, labels_of_columns
from sparsedl_fl.propagate.backward import KnownBatch, peel_back
from sparsedl_fl.propagate.forward import fed_by, fed_columns
from sparsedl_fl.tracing.tracing import LinearUse

__all__ = ["Spreading"]

N_DRAWS = 4
"""Draws of the inputs' errors of either kind that are run forward."""


@dataclass(frozen=True)
class Spreading:
    """The way from layer to layer of a model.

    Attributes
    ----------
    subject : Subject
        What is audited.
    """

    subject: Subject

    def labelled(self, name: str, known: KnownBatch) -> KnownBatch:
        """Return the batch of a layer with the labels that the last layer's gradient shows.

        What that is fed is known, so that the gradient at its outputs is a least-squares solution: no search, and up
        to as many inputs as it is wide.
        """
        last = self.subject.trace.last
        if last is None or (known.labels != NO_LABEL).all():
            return known
        try:
            layer = self.subject.layer_gradient(last.name)
            run = self.subject.run_from(name)
            fed, drawn = run.fed(known.inputs)[last.name], [run.fed(inputs)[last.name] for inputs in _draws(known)]
            if layer.tail.rest is None or len(fed) >= fed.shape[1]:
                return known
            labels = labels_of_columns(layer.tail.rest, layer.preactivations(fed), *fed_columns(layer, fed, drawn))
        except Exception:  # a model may raise anything; then no labels follow
            return known
        return replace(known, labels=np.where(known.labels == NO_LABEL, labels, known.labels))

    def from_layer(self, name: str, known: KnownBatch) -> Iterator[tuple[str, KnownBatch, str]]:
        """Yield the name, the batch and the way to it, of every layer that follows and whose gradient confirms it."""
        use = self.subject.trace.use_of(name)
        if self.subject.trace.n_uses(name) > 1:  # which run an input belongs to is not known
            return
        yield from self._forward(use, known)
        while use is not None:
            before = self._fed_from(use)
            if before is None:
                return
            try:
                layer = self.subject.layer_gradient(before.name)
                known = peel_back(known, self.subject.layer_gradient(use.name).weight, layer)
            except ValueError:
                return
            if not known.is_whole:
                return
            yield before.name, known, f"peeled back from layer '{use.name}'"
            use = before

    def _fed_from(self, use: LinearUse) -> LinearUse | None:
        """Return the layer whose activation a layer is fed, where that was seen."""
        found = (other for other in self.subject.trace.layers if other.next_weight and other.next_weight == use.weight)
        before = next(found, None)
        is_alone = before is not None and self.subject.trace.n_uses(before.name) == 1 and before.rows == use.rows == 1
        return before if is_alone else None

    def _forward(self, use: LinearUse, known: KnownBatch) -> Iterator[tuple[str, KnownBatch, str]]:
        """Run the model on the inputs, and on draws of their errors."""
        try:
            run = self.subject.run_from(use.name)
            fed = run.fed(known.inputs)
            drawn = [run.fed(inputs) for inputs in _draws(known)]
        except Exception:  # a model may raise anything; then nothing follows
            return
        for name, rows in fed.items():
            found = self.subject.trace.use_of(name)
            if name == use.name or found is None or found.rows != 1 or self.subject.trace.n_uses(name) != 1:
                continue
            try:
                layer = self.subject.layer_gradient(name)
            except ValueError:
                continue
            batch = fed_by(known, rows, np.stack([one[name] for one in drawn]), layer)
            if batch.is_whole:
                yield name, batch, f"run forward from layer '{use.name}'"


def _draws(known: KnownBatch) -> Iterator[np.ndarray]:
    """Yield inputs that are off by their expected errors: any way, and along the differences of other inputs."""
    rng, inputs = np.random.default_rng(0), known.inputs
    for kind in range(2 * N_DRAWS):
        off = rng.standard_normal(inputs.shape)
        if kind % 2 and len(inputs) > 1:
            off = rng.standard_normal((len(inputs), len(inputs))) @ (inputs - inputs.mean(axis=0))
        size = np.sqrt(np.mean(off**2, axis=1, keepdims=True))
        yield inputs + known.errors[:, None] * off / np.maximum(size, np.finfo(float).tiny)
