"""Attack a whole model: where there is most room first, then the other layers from there, then a replay."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from sklearn.base import clone
from torch import nn

from sparsedl.process import neutral_modes
from sparsedl_fl.activations import resolve
from sparsedl_fl.audit.context import describe_run
from sparsedl_fl.audit.replaying import replay_found
from sparsedl_fl.audit.result import NOT_REACHED, AuditResult, LayerAudit
from sparsedl_fl.audit.spreading import Spreading
from sparsedl_fl.audit.subject import Subject
from sparsedl_fl.audit.verdicts import Verdict
from sparsedl_fl.diagnosis import is_sparsified, visible_reason
from sparsedl_fl.directions import KnownInputs, best_known
from sparsedl_fl.directions.activation.budget import effort
from sparsedl_fl.doubts import caught_warnings
from sparsedl_fl.gradients import LayerGradient
from sparsedl_fl.inverter import GradientInverter
from sparsedl_fl.labels import NO_LABEL
from sparsedl_fl.losses import usable_loss
from sparsedl_fl.metrics import match_batches
from sparsedl_fl.models import LayerRow, inspect_model, named_gradients, trace_model
from sparsedl_fl.models.finite import check_finite, in_range, without_non_finite
from sparsedl_fl.models.layers import pick_layer
from sparsedl_fl.peeling import KnownBatch

__all__ = ["audit_model"]

INTERRUPTED = "interrupted before its turn"


@neutral_modes(gradients=True)
def audit_model(
    model: nn.Module,
    gradients: Sequence[torch.Tensor] | Mapping[str, torch.Tensor],
    inverter: GradientInverter | None = None,
    layers: Iterable[int | str] | None = None,
    example: torch.Tensor | None = None,
    loss: str | Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
    *,
    learning_rate: float | None = None,
    peel: bool = True,
    max_effort: float | None = None,
    max_seconds: float | None = None,
    report: Callable[[str], None] | None = None,
) -> AuditResult:
    """Attack every linear layer in reach, and list what is not.

    The layer with the most room is attacked first; the others follow from it where its whole batch comes back
    (`sparsedl_fl.peeling`), and the client is run again with what was recovered (`sparsedl_fl.replay`).

    Parameters
    ----------
    model : torch.nn.Module
        The model at the parameters at which the gradient was taken.
    gradients : sequence of tensors or mapping of name to tensor
        The client's gradient, in the order of ``model.parameters()`` or by name.
    inverter : GradientInverter or None, default=None
        What attacks each layer, a clone each; None takes ``GradientInverter(random_state=0)``.
    layers : iterable of int or str, or None, default=None
        Linear layers by place in the order in which they run, or by name; None takes all, and lists all else.
    example : torch.Tensor or None, default=None
        An input of the model, any numbers of the right shape (with as many tokens as the client's samples have); None
        makes one up.
    loss : {"cross_entropy", "binary_cross_entropy", "mse"} or callable, default=None
        Of the client, as of `LayerGradient.from_model`.
    learning_rate : float or None, default=None
        Given where ``gradients`` sum up several local steps (`sparsedl_fl.models.gradients_of_update`): units may then
        have switched on the way, and neither peeling nor replay applies.
    peel : bool, default=True
        Whether layers follow from one whose whole batch came back.
    max_effort : float or None, default=None
        Budget of the searches of all layers together, for an inverter without directions of its own: about seconds on
        one core, but counted from starts and sizes, so that the same update has the same result on any machine.
    max_seconds : float or None, default=None
        Cap on their seconds, in place of that; what it cuts short depends on the machine, and the reason says so.
    report : callable or None, default=None
        Called with a line before each step.

    Returns
    -------
    AuditResult
        Also a mapping of names to `LayerAudit`. An interrupt (Ctrl-C) ends the search and keeps what was found.

    Raises
    ------
    TypeError, ValueError
        If model and gradients are not what they should be, or not of one kind.

    Warns
    -----
    UserWarning
        If the model could not be run on a made-up example: what follows a layer is then not known.

    Examples
    --------
    >>> from sparsedl_fl.simulation import client_gradient, fully_connected
    >>> model = fully_connected(64, width=100, random_state=0)
    >>> batch = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))
    >>> audit = audit_model(model, client_gradient(model, batch, torch.arange(4)))
    >>> str(audit.verdict), [layer.n_certified for layer in audit.layers], sorted(audit.labels.tolist())
    ('RECOVERED', [4, 4, 4, 4], [0, 1, 2, 3])
    """
    given = GradientInverter(random_state=0) if inverter is None else inverter
    attack = _Attack.of(model, gradients, given, layers, example, loss, learning_rate, report)
    attack.max_seconds, attack.max_effort = max_seconds, max_effort if max_seconds is None else None
    return attack.run(peel and learning_rate is None)


@dataclass
class _Attack:
    """The steps of an audit, and what they have found so far."""

    subject: Subject
    rows: Mapping[str, LayerRow]
    inverter: GradientInverter
    report: Callable[[str], None]
    sent: Mapping[str, torch.Tensor]
    """What the client sent, in its own units."""
    max_seconds: float | None = None
    max_effort: float | None = None
    found: dict[str, LayerAudit] = field(default_factory=dict)
    searched: float = 0.0
    effort: float = 0.0
    """Seconds and effort spent on searches, those of layers that follow from others by now as well."""

    @classmethod
    def of(
        cls,
        model: nn.Module,
        gradients: Any,
        inverter: GradientInverter,
        layers: Iterable[int | str] | None,
        example: torch.Tensor | None,
        loss: Any,
        learning_rate: float | None,
        report: Callable[[str], None] | None,
    ) -> _Attack:
        """Look at the model; raise before any work where model and gradients do not belong together."""
        check_finite(model)
        trace = trace_model(model, example)
        if not any(tensor.ndim == 2 for tensor in model.parameters()):
            raise ValueError("the model has no linear layer (torch.nn.Linear, or a product with a matrix of weights)")
        named = without_non_finite(named_gradients(model, gradients), stacklevel=5)
        sent = [name for name, tensor in named.items() if tensor is not None]
        rows = {row.name: row for row in inspect_model(model, trace=trace, sent=sent)}
        if layers is not None:
            running = list(dict.fromkeys(use.name for use in trace.layers)) or list(rows)
            rows = {name: rows[name] for name in (pick_layer("layers", layer, running) for layer in layers)}
        scaled, factor = in_range(named)
        if factor != 1:
            noise = inverter.noise_level
            inverter = clone(inverter).set_params(noise_level=None if noise is None else noise * factor)
            learning_rate = None if learning_rate is None else learning_rate / factor
        subject = Subject(model, scaled, trace, usable_loss(loss, trace.n_outputs), learning_rate)
        return cls(subject, rows, inverter, report or (lambda line: None), named)

    def run(self, peel: bool) -> AuditResult:
        """Attack, spread and replay."""
        start = time.perf_counter()
        is_one_step = self.subject.learning_rate is None
        is_interrupted = False
        replayed, why_not = None, "peeling is switched off" if is_one_step else "several local steps"
        try:
            for row in sorted(self.rows.values(), key=lambda row: -row.largest_batch):
                if row.name not in self.found:
                    self.found[row.name] = self._attacked(row)
                    self._stop_if_interrupted(row.name)
                    if peel:
                        self._spread(self.found[row.name])
            if peel:
                self.report("replaying the client")
                replayed, why_not, contradicted = replay_found(self.subject, self.found.values())
                self.found.update({layer.name: layer for layer in contradicted})
        except KeyboardInterrupt:
            why_not, is_interrupted = INTERRUPTED, True
        layers = tuple(
            self.found.get(name)
            or LayerAudit(name, None, row.obstacle or INTERRUPTED, row, source="" if row.obstacle else NOT_REACHED)
            for name, row in self.rows.items()
        )
        example = self.subject.trace.example
        shape = () if example is None else tuple(example.shape[1:])
        context = describe_run(
            self.subject.model,
            self.sent,
            time.perf_counter() - start,
            seed=self.inverter.random_state,
            attack=repr(self.inverter),
            missing=[name for name, tensor in self.subject.gradients.items() if tensor is None] or None,
            loss=self.subject.loss,
            learning_rate=self.subject.learning_rate,
        )
        return AuditResult(layers, replayed, why_not, shape, context, is_interrupted)

    def _attacked(self, row: LayerRow) -> LayerAudit:
        """Attack one layer by itself."""
        if row.obstacle:
            return LayerAudit(row.name, None, row.obstacle, row)
        self.report(f"attacking layer '{row.name}'")
        start = time.perf_counter()
        inverter = clone(self.inverter)
        if inverter.directions is None:
            if self._spent:
                return LayerAudit(row.name, None, self._spent, row, source=NOT_REACHED)
            seconds = None if self.max_seconds is None else self.max_seconds - self.searched
            budget = None if self.max_effort is None else self.max_effort - self.effort
            inverter.set_params(directions=best_known(seconds, budget))
        try:
            given = self.subject.layer_gradient(row.name)
            if is_sparsified(given):
                raise ValueError(visible_reason(given))
            inverter, reason, seconds = self._fitted(inverter, given)
        except (ValueError, RuntimeError) as error:
            return LayerAudit(row.name, None, str(error), row, seconds=time.perf_counter() - start)
        self.searched += seconds
        self.effort += effort(inverter.n_starts_, inverter.batch_size_, given.shape[0], resolve(given.activation))
        return LayerAudit(row.name, inverter, reason, row, KnownBatch.of(inverter), "attacked", seconds)

    @property
    def _spent(self) -> str:
        """What was spent before all layers had their turn, in words, or nothing."""
        if self.max_seconds is not None and self.searched >= self.max_seconds:
            return f"the budget of {self.max_seconds:g} seconds was spent before"
        if self.max_effort is not None and self.effort >= self.max_effort:
            return f"the effort of {self.max_effort:g} was spent before"
        return ""

    @staticmethod
    def _fitted(inverter: GradientInverter, given: LayerGradient) -> tuple[GradientInverter, str, float]:
        """Fit an inverter to a layer; say what came of it, and the seconds without those of waiting for a thread."""
        with caught_warnings() as doubts:
            start = time.perf_counter()
            inverter.fit(given)
            seconds = time.perf_counter() - start
        # The warning that not all is certified begins with the status and adds advice.
        messages = [inverter.status_, *(str(doubt.message) for doubt in doubts)]
        messages = [text for text in messages if not any(text != other and text in other for other in messages)]
        return inverter, "; ".join(dict.fromkeys(messages)), seconds

    def _stop_if_interrupted(self, name: str) -> None:
        if "interrupted" in self.found[name].reason:
            raise KeyboardInterrupt

    def _spread(self, start: LayerAudit) -> None:
        """Go from a layer whose whole batch came back to all that follow from it."""
        if start.batch is None or not start.batch.is_whole:
            return
        spreading = Spreading(self.subject)
        begin, known = time.perf_counter(), spreading.labelled(start.name, start.batch)
        self.found[start.name] = replace(start, batch=known)
        for name, batch, source in spreading.from_layer(start.name, known):
            if name not in self.rows or (name in self.found and self.found[name].verdict is Verdict.RECOVERED):
                continue
            self.report(f"layer '{name}': {source}")
            inverter, batch = self._confirmed(name, batch)
            text = f"{int(batch.certified.sum())} of {len(batch.inputs)} inputs certified, {source}"
            seconds, begin = time.perf_counter() - begin, time.perf_counter()
            self.found[name] = LayerAudit(name, inverter, text, self.rows[name], batch, source, seconds)

    def _confirmed(self, name: str, batch: KnownBatch) -> tuple[GradientInverter | None, KnownBatch]:
        """Ask the layer's own gradient about inputs that come from another layer; it may know more labels."""
        asking = clone(self.inverter).set_params(directions=KnownInputs(inputs=batch.inputs), batch_size=None)
        try:
            inverter, _, _ = self._fitted(asking, self.subject.layer_gradient(name))
        except ValueError:  # a batch too large for the layer, of which the others tell
            return None, batch
        order = match_batches(batch.inputs, inverter.inputs_).order
        own = np.where(order >= 0, inverter.labels_[order], NO_LABEL)
        labels = np.where(batch.labels == NO_LABEL, own, batch.labels)
        return inverter, replace(batch, labels=labels)
