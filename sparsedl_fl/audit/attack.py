"""Attack a whole model: the layer with most room first, the other layers from its batch, then a replay."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from sklearn.base import clone
from torch import nn

from sparsedl.process import neutral_modes
from sparsedl_fl.audit.completed_update import CompletedUpdate
from sparsedl_fl.audit.context import describe_run
from sparsedl_fl.audit.declared import declared, mode_of, of_audit
from sparsedl_fl.audit.findings import LayerAudit, Verdict
from sparsedl_fl.audit.last_layer import signs_of, targets_of
from sparsedl_fl.audit.layer_attack import LayerAttack, caps
from sparsedl_fl.audit.one_record import single_records
from sparsedl_fl.audit.picture_attack import pictures_behind, source_of_pictures, why_no_pictures
from sparsedl_fl.audit.result import AuditResult
from sparsedl_fl.audit.sent import SentUpdate, read_update
from sparsedl_fl.audit.spreading import replay_found, spread
from sparsedl_fl.audit.subject import Subject, check_room
from sparsedl_fl.audit.text_attack import replay_of_texts, texts
from sparsedl_fl.audit.token_ids import embedded_tokens
from sparsedl_fl.certify.candidates import SearchEnd
from sparsedl_fl.inverter import GradientInverter
from sparsedl_fl.layers.losses import usable_loss
from sparsedl_fl.layers.of_model import pick_layer
from sparsedl_fl.models import LayerRow, inspect_model
from sparsedl_fl.propagate.replay import Replay
from sparsedl_fl.theory import Attack, largest_batch
from sparsedl_fl.tracing.embeddings import token_tables
from sparsedl_fl.tracing.finite import check_finite
from sparsedl_fl.tracing.tracing import trace_model

__all__ = ["audit_model", "out_of_range"]

INTERRUPTED = "interrupted before its turn"


@neutral_modes(gradients=True)
def audit_model(
    model: nn.Module,
    gradients: Sequence[torch.Tensor] | Mapping[str, torch.Tensor] | CompletedUpdate,
    inverter: GradientInverter | None = None,
    layers: Iterable[int | str] | None = None,
    example: torch.Tensor | None = None,
    loss: str | Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
    *,
    learning_rate: float | None = None,
    peel: bool = True,
    pictures: bool | None = None,
    max_effort: float | None = None,
    max_seconds: float | None = None,
    report: Callable[[str], None] | None = None,
) -> AuditResult:
    """Attack every linear layer in reach, and list what is not.

    The layer with the most room comes first; from one whose whole batch is recovered the others follow
    (`sparsedl_fl.propagate`), and pictures. Then the client is run again with what was recovered.

    Parameters
    ----------
    model : torch.nn.Module
        The model at the parameters at which the gradient was taken.
    gradients : sequence of tensors or mapping of name to tensor
        The client's gradient, in the order of ``model.parameters()`` or by name; or a `CompletedUpdate`, fitted to it.
    inverter : GradientInverter or None, default=None
        What attacks each layer, a clone each; None takes ``GradientInverter(random_state=0)``.
    layers : iterable of int or str, or None, default=None
        Linear layers by place in the order in which they run, or by name; None takes all.
    example : torch.Tensor or None, default=None
        An input of the model, any numbers of the right shape (and number of tokens); None makes one up.
    loss : {"cross_entropy", "binary_cross_entropy", "mse"} or callable, default=None
        Of the client, as of `LayerGradient.from_model`.
    learning_rate : float or None, default=None
        Given where ``gradients`` sum up several local steps (`gradients_of_update`); then nothing follows from a layer.
    peel : bool, default=True
        Whether to go from a layer whose whole batch was recovered to the others, and to replay the client.
    pictures : bool or None, default=None
        Whether to go from features to pictures. None: where they hold them alone, without a cap; True: wherever it can.
    max_effort : float or None, default=None
        Budget of all searches but those by an inverter's own directions: about seconds, but the same on any machine.
    max_seconds : float or None, default=None
        Cap on the seconds of the audit, in its place; what it cuts short depends on the machine.
    report : callable or None, default=None
        Called with a line before each step.

    Returns
    -------
    AuditResult
        Also a mapping of names to `LayerAudit`. Ctrl-C ends the search and keeps what was found.

    Raises
    ------
    TypeError, ValueError
        If model and gradients are not what they should be, or the memory of this machine does not hold the work.

    Warns
    -----
    UserWarning
        If the model could not be run on a made-up example: what follows a layer is then not known.

    Examples
    --------
    >>> from sparsedl_fl.simulation import client_gradient, fully_connected
    >>> model, batch = fully_connected(64, width=100, random_state=0), torch.randn(4, 64)
    >>> audit = audit_model(model, client_gradient(model, batch, torch.arange(4)))
    >>> str(audit.verdict), [layer.n_certified for layer in audit.layers], sorted(audit.labels.tolist())
    ('RECOVERED', [4, 4, 4, 4], [0, 1, 2, 3])
    """
    budget: dict[str, Any] = {"report": report or (lambda line: None), **caps(max_seconds, max_effort)}
    given = inverter or GradientInverter(random_state=0), layers, example, loss, learning_rate
    attack = _Attack.of(model, gradients, *given, **budget)
    attack.declared = of_audit(model, *given, peel, pictures, max_effort, max_seconds, attack.rows)
    attack.why_no_pictures = why_no_pictures(pictures, peel, max_effort, max_seconds)
    return attack.run(peel and learning_rate is None)


@dataclass
class _Attack:
    """The steps of an audit, and what they have found so far."""

    model: nn.Module
    """The model as it was given."""
    sent: SentUpdate
    subject: Subject
    rows: Mapping[str, LayerRow]
    one: LayerAttack
    why_no_pictures: Mapping[Attack, str] = field(default_factory=dict)
    """Why features are not followed to pictures, by attack; empty texts where they are."""
    declared: Sequence[Mapping[str, Any]] = ()
    """What the caller declared, as of `sparsedl_fl.audit.declared`."""
    found: dict[str, LayerAudit] = field(default_factory=dict)

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
        **budget: Any,
    ) -> _Attack:
        """Look at the model; raise before any work where model and gradients do not belong together."""
        layers = None if layers is None else list(layers)
        check_room(model, layers)
        check_finite(model)
        if not any(tensor.ndim == 2 for tensor in model.parameters()):
            raise ValueError("the model has no linear layer (torch.nn.Linear, or a product with a matrix of weights)")
        sent = read_update(model, gradients, example, inverter.batch_size, is_one_step=learning_rate is None)
        trace = sent.trace
        rows = {row.name: row for row in inspect_model(sent.model, trace=trace, sent=sent.names)}
        if layers is not None:
            running = list(dict.fromkeys(use.name for use in trace.layers)) or list(rows)
            rows = {name: rows[name] for name in (pick_layer("layers", layer, running) for layer in layers)}
        if sent.factor != 1:
            noise = inverter.noise_level
            inverter = clone(inverter).set_params(noise_level=None if noise is None else noise * sent.factor)
            learning_rate = None if learning_rate is None else learning_rate / sent.factor
        usable, of_others = usable_loss(loss, trace.n_outputs), sent.update if sent.update.is_worked_out else None
        subject = Subject(sent.model, sent.update.gradients, trace, usable, learning_rate, sent.tables, loss, of_others)
        return cls(model, sent, subject, rows, LayerAttack(subject, inverter, **budget))

    def run(self, peel: bool) -> AuditResult:
        """Attack, spread and replay."""
        start, is_interrupted, replayed = time.perf_counter(), False, None
        why_not = "it was switched off (peel=False)" if self.subject.learning_rate is None else "several local steps"
        try:
            self.found |= embedded_tokens(self.subject, self.rows)
            self.found |= texts(self.subject, self.rows, self.found, self.one)
            for row in sorted(self.rows.values(), key=_turn):
                if row.name not in self.found and not row.attack.gives_pictures:
                    self.found[row.name] = self.one(row)
                    if self.found[row.name].end is SearchEnd.INTERRUPTED:
                        raise KeyboardInterrupt
                    if peel:
                        self._spread(self.found[row.name])
            self.found |= single_records(self.subject, self.found, self.one.inverter.batch_size)
            self.found |= pictures_behind(self.subject, self.rows, self.found, self.why_no_pictures, self.one.report)
            if self.one.is_past_deadline:
                why_not = "the cap of seconds was reached before"
            elif peel:
                self.one.report("replaying the client")
                replayed, why_not, contradicted = replay_found(self.subject, self.found.values())
                self.found |= {layer.name: layer for layer in contradicted}
        except KeyboardInterrupt:
            is_interrupted, why_not = True, INTERRUPTED
        return self._result(replayed, why_not, is_interrupted, time.perf_counter() - start)

    def _result(self, replayed: Replay | None, why_not: str, is_interrupted: bool, seconds: float) -> AuditResult:
        """Return what was found, with labels and targets that follow from all of it."""
        subject, inverter, example = self.subject, self.one.inverter, self.subject.trace.example
        result = AuditResult(
            layers=tuple(self.found.get(name) or _not_reached(row) for name, row in self.rows.items()),
            replay=replayed or replay_of_texts(self.found.values()),
            replay_reason=why_not,
            input_shape=() if example is None else tuple(example.shape[1:]),
            context=describe_run(
                self.model,
                self.sent.tensors,
                seconds,
                seed=inverter.random_state,
                attack=repr(inverter),
                missing=[name for name, tensor in self.sent.tensors.items() if tensor is None] or None,
                loss=subject.loss,
                learning_rate=subject.learning_rate,
                declared=list(self.declared),
                texts=self.one.of_texts or None,
            ),
            notes=self.sent.notes,
            given_batch_size=inverter.batch_size,
            was_interrupted=is_interrupted,
        )
        size = result.batch_size if result.is_batch_size_known else None
        signs = signs_of(subject, size, replayed, is_exact=inverter.noise_level is None and self.sent.is_plain)
        best = result.best
        if best is not None and best.row is not None and best.row.attack.gives_pictures:
            best = source_of_pictures(subject, self.found)
        return replace(result, label_signs=signs, targets=targets_of(subject, best))

    def _spread(self, start: LayerAudit) -> None:
        """Go from a layer whose whole batch was recovered to the layers before and after it."""
        if start.batch is None or not start.batch.is_whole or self.subject.estimates_of(start.name) is not None:
            return
        begin = time.perf_counter()
        for name, batch, source in spread(self.subject, start.name, start.batch):
            if name == start.name:
                self.found[name] = replace(start, batch=batch)
                continue
            if self.one.is_past_deadline:
                return
            if name not in self.rows or (name in self.found and self.found[name].verdict is Verdict.RECOVERED):
                continue
            self.one.report(f"layer '{name}': {source}")
            inverter, batch = self.one.confirmed(name, batch)
            text = f"{int(batch.certified.sum())} of {len(batch.inputs)} inputs certified, {source}"
            seconds, begin = time.perf_counter() - begin, time.perf_counter()
            self.found[name] = LayerAudit(
                name, inverter, text, self.rows[name], batch, source, seconds, why_open="it follows from another layer"
            )


def _not_reached(row: LayerRow) -> LayerAudit:
    """Return the entry of a layer whose turn did not come."""
    return LayerAudit.closed(row, row.obstacle or INTERRUPTED, end=None if row.obstacle else SearchEnd.INTERRUPTED)


def out_of_range(
    model: nn.Module,
    reason: str,
    example: torch.Tensor | None = None,
    *,
    gradients: Mapping[str, torch.Tensor] | None = None,
    **facts: Any,
) -> AuditResult:
    """Return the result for an update to which no search applies, with the reason; it may still show token ids.

    Parameters
    ----------
    model : torch.nn.Module
        The model.
    reason : str
        Why no search applies.
    example : torch.Tensor or None, default=None
        As of `audit_model`.
    gradients : mapping of str to torch.Tensor or None, default=None
        What the client sent, by plain name: any optimiser leaves rows of an embedding that no token picks.
    **facts
        Further entries for the run in the report.
    """
    trace = trace_model(model, example)
    rows = {row.name: row for row in inspect_model(model, trace=trace)}
    tables = token_tables(model, trace.example if example is None else example)
    found = embedded_tokens(Subject(model, gradients or {}, trace, tables=tables), rows)
    layers = tuple(found.get(row.name) or LayerAudit.closed(row, row.obstacle or reason) for row in rows.values())
    facts = {"attack": "none", "declared": declared({"mode": mode_of(model), "example": example}), **facts}
    return AuditResult(layers, None, reason, context=describe_run(model, gradients or {}, 0.0, **facts))


def _turn(row: LayerRow) -> int:
    """Return what orders the layers: those first that leak most, and one before a head by its zeros alone.

    What is recovered nearer to the model's input needs no least squares to get there.
    """
    by_weights = row.attack == Attack.NEXT_WEIGHTS
    width, n_inputs = row.shape if by_weights else (0, 0)
    return -(largest_batch(width, n_inputs, Attack.ZEROS) if by_weights else row.largest_batch)
