"""Attack one layer by itself, within the budget of the audit."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from sklearn.base import clone

from sparsedl.arrays import CHUNK_ENTRIES
from sparsedl_fl.activations import resolve
from sparsedl_fl.audit.conclusion import why_open
from sparsedl_fl.audit.findings import ATTACKED, LayerAudit
from sparsedl_fl.audit.likely import likely_candidates
from sparsedl_fl.audit.subject import Subject
from sparsedl_fl.caught_warnings import caught_warnings
from sparsedl_fl.certify.candidates import SearchEnd
from sparsedl_fl.certify.labels import NO_LABEL
from sparsedl_fl.directions import KnownInputs, best_known
from sparsedl_fl.inverter import GradientInverter
from sparsedl_fl.layers.bias_as_input import with_bias_as_input
from sparsedl_fl.layers.blocks import OutOfTime, cut_at
from sparsedl_fl.layers.diagnosis import visible_reason
from sparsedl_fl.layers.layer_gradient import LayerGradient
from sparsedl_fl.lowrank.factors import LowRankGradient
from sparsedl_fl.metrics import match_batches
from sparsedl_fl.models import LayerRow
from sparsedl_fl.propagate.backward import KnownBatch
from sparsedl_fl.propagate.scales import SHARES, NoScale, next_gradient, stand_in, sums_of_batch
from sparsedl_fl.search.budget import effort
from sparsedl_fl.theory import Attack
from sparsedl_fl.wording import argument_with

__all__ = ["LayerAttack", "caps"]

SEARCHED = "no bias gradient was sent, and errors of the scales that were found for the inputs may hide them"


@dataclass(eq=False)
class LayerAttack:
    """Attacks layers one after the other.

    Attributes
    ----------
    subject : Subject
        What is audited.
    inverter : GradientInverter
        What attacks each layer, a clone each.
    report : callable
        Called with a line before each step.
    deadline, max_effort, max_seconds : float or None
        Time by `time.perf_counter` until which layers are attacked; effort of the searches of all layers together; the
        cap in seconds.
    spent : float
        Effort spent on them so far.
    of_texts : str
        What came of the search for texts; empty for a model that is fed no tokens.
    """

    subject: Subject
    inverter: GradientInverter
    report: Callable[[str], None]
    deadline: float | None = None
    max_effort: float | None = None
    max_seconds: float | None = None
    spent: float = 0.0
    of_texts: str = ""

    def __call__(self, row: LayerRow) -> LayerAudit:
        """Attack one layer."""
        if row.obstacle:
            return LayerAudit.closed(row, row.obstacle)
        self.report(f"attacking layer '{row.name}'")
        start = time.perf_counter()
        if self.inverter.directions is None and self.is_spent:
            return LayerAudit.closed(row, self.is_spent, end=SearchEnd.CUT)
        try:
            given = self._layer(row.name)
            if visible_reason(given):
                raise ValueError(visible_reason(given))
            inverter = clone(self.inverter)
            if inverter.batch_size is not None:
                inverter.set_params(batch_size=inverter.batch_size * given.rows_per_sample)
            with cut_at(self.latest):
                inverter, reason = self._with_either_size(inverter, given)
        except OutOfTime:
            why, seconds = self._too_large(given), time.perf_counter() - start
            return LayerAudit.closed(row, why, seconds=seconds, end=SearchEnd.CUT)
        except (ValueError, RuntimeError) as error:
            return LayerAudit.closed(row, str(error), seconds=time.perf_counter() - start)
        seconds, use = time.perf_counter() - start, self.subject.trace.use_of(row.name)
        batch, reason = self._with_estimates(row.name, KnownBatch.of(inverter), reason)
        return LayerAudit(
            row.name,
            inverter,
            reason,
            row,
            batch,
            ATTACKED,
            seconds,
            why_open=why_open(row, given, inverter, use, self.subject.loss) or self._doubt(row.name),
            likely_candidates=() if self._shows_steps(inverter, given) else likely_candidates(inverter, given),
            at_least=_at_least(row, given, inverter),
            rows=given.rows_per_sample,
            end=inverter.search_end_,
        )

    def _layer(self, name: str) -> LayerGradient:
        """Return a layer with its gradient; without a bias gradient the scale of its inputs is searched for first."""
        subject, use = self.subject, self.subject.trace.use_of(name)
        if use is None or not subject.lacks_bias_gradient(use):
            return subject.layer_gradient(name)
        if subject.learning_rate is not None:
            raise NoScale("no bias gradient was sent, and of several local steps the scale is not searched for")
        why_not = NoScale()
        for share in SHARES:
            given = subject.layer_gradient(name, stand_in(subject.weight_gradient(use), share))
            next_gradient(given)
            inverter = clone(self.inverter)
            if inverter.batch_size is not None:
                inverter.set_params(batch_size=inverter.batch_size * given.rows_per_sample + 1)
            try:
                with cut_at(self.latest):
                    inverter, _ = self._with_either_size(inverter, with_bias_as_input(given))
                subject.sums[name] = sums_of_batch(inverter, given)
                return subject.layer_gradient(name)
            except NoScale as reason:
                why_not = reason
        raise why_not

    def _doubt(self, name: str) -> str:
        """Return why a layer that gives nothing has not resisted; empty where it may have."""
        return self.subject.doubt or (SEARCHED if name in self.subject.sums else "")

    def _with_estimates(self, name: str, batch: KnownBatch, reason: str) -> tuple[KnownBatch, str]:
        """Return a batch with what the estimates of filtered features add to its errors, and its status."""
        estimates = self.subject.estimates_of(name)
        if estimates is None or not batch.certified.any():
            return batch, reason
        batch = replace(batch, errors=np.hypot(batch.errors, estimates.errors(batch.inputs)))
        n_certified, n_estimated = int(batch.certified.sum()), len(estimates.columns)
        return batch, (
            f"{n_certified} of {len(batch.inputs)} inputs certified; of {n_estimated} of {batch.inputs.shape[1]} "
            "features a filter left too little, which are estimates"
        )

    def _shows_steps(self, inverter: GradientInverter, given: LayerGradient) -> bool:
        """Return whether an update has more inputs in a layer than records: one for each local step.

        Candidates may then be differences between steps. (Two updates of three momentum steps,
        `tests.hostile.calibration`: 4 of 24 candidates each were likely, 7 of these 8 had correlations of 0.28 to
        0.73.)
        """
        given_size = self.inverter.batch_size
        return given_size is not None and given.is_update and inverter.batch_size_ > given_size * given.rows_per_sample

    def _with_either_size(self, inverter: GradientInverter, given: LayerGradient) -> tuple[GradientInverter, str]:
        """Fit an inverter with the batch size given, and where that leaves inputs open with the gradient's rank."""
        given_size = inverter.batch_size
        try:
            fitted, reason = self._fitted(inverter, given)
            if given_size is None or (fitted.recovered_.all() and fitted.batch_size_ == given_size):
                return fitted, reason
        except ValueError:
            if given_size is None:
                raise
            fitted, reason = None, ""
        try:
            other, of_other = self._fitted(clone(inverter).set_params(batch_size=None), given)
        except ValueError:
            if fitted is None:
                raise
            return fitted, reason
        is_clear = other.signal_to_noise_ >= LowRankGradient.clear_gap and other.batch_size_ != given_size
        if is_clear and (fitted is None or other.recovered_.sum() >= fitted.recovered_.sum()):
            by_caller = argument_with("batch_size", given_size)
            return other, f"{by_caller} was given, but the gradient shows {other.batch_size_}; {of_other}"
        if fitted is None:
            return other, of_other
        return fitted, reason

    def _fitted(self, inverter: GradientInverter, given: LayerGradient) -> tuple[GradientInverter, str]:
        """Fit an inverter to a layer within what is left of the budget; return it with its status in words."""
        if inverter.directions is None:
            seconds = None if self.deadline is None else max(self.deadline - time.perf_counter(), 1e-3)
            left = None if self.max_effort is None else max(self.max_effort - self.spent, 1e-9)
            inverter.set_params(directions=best_known(seconds, left))
        fitted, reason = _fitted(inverter, given)
        if given.weight.size > CHUNK_ENTRIES:  # reference cycles keep copies of a large gradient alive
            gc.collect()
        self.spent += effort(fitted.n_starts_, fitted.batch_size_, given.shape[0], resolve(given.activation))
        return fitted, reason

    @property
    def latest(self) -> float | None:
        """When work on a large layer is cut: a twentieth of the cap, at least five seconds, after the deadline.

        A search ends at the deadline; this leaves time to certify what it found, and as much for what comes after.
        """
        return None if self.deadline is None else self.deadline + max(0.1 * (self.max_seconds or 0.0), 10.0) / 2

    def _too_large(self, given: LayerGradient) -> str:
        m, n = given.shape
        cap = argument_with("max_seconds", f"{self.max_seconds:g}")
        return f"too large for {cap}: with {m} x {n} weights, the attack did not get to its end; give it more seconds"

    @property
    def is_past_deadline(self) -> bool:
        """Whether the cap of seconds is reached."""
        return self.deadline is not None and time.perf_counter() >= self.deadline

    @property
    def is_spent(self) -> str:
        """Which cap was reached before all layers were attacked, in words, or an empty text."""
        if self.is_past_deadline:
            return "not attacked: the cap of seconds was reached before"
        if self.max_effort is not None and self.spent >= self.max_effort:
            return f"not attacked: the effort of {self.max_effort:g} was spent before"
        return ""

    def confirmed(self, name: str, batch: KnownBatch) -> tuple[GradientInverter | None, KnownBatch]:
        """Certify inputs that come from another layer by the layer's own gradient, which may also show more labels."""
        asking = clone(self.inverter).set_params(directions=KnownInputs(inputs=batch.inputs), batch_size=None)
        try:
            with cut_at(self.latest):
                inverter, _ = _fitted(asking, self.subject.layer_gradient(name))
        except (ValueError, OutOfTime):  # too large a batch or layer: the other layers confirm it
            return None, batch
        order = match_batches(batch.inputs, inverter.inputs_).order
        own = np.where(order >= 0, inverter.labels_[order], NO_LABEL)
        labels = np.where(batch.labels == NO_LABEL, own, batch.labels)
        return inverter, replace(batch, labels=labels)


def _fitted(inverter: GradientInverter, given: LayerGradient) -> tuple[GradientInverter, str]:
    """Fit an inverter to a layer; return it with its status in words."""
    with caught_warnings() as doubts:
        inverter.fit(given)
    # The warning that not all is certified begins with the status and adds advice.
    status = [inverter.status_] if inverter.recovered_.all() else []
    return inverter, "; ".join(dict.fromkeys([*status, *(str(doubt.message) for doubt in doubts)]))


def _at_least(row: LayerRow, given: LayerGradient, inverter: GradientInverter, *, rounding: float = 1e-4) -> int:
    """Return the least number of inputs that a head's gradient shows; zero where it shows the number itself.

    The gradients of softmax and cross-entropy add up to zero over the classes, so that the rank is at most the number
    of classes less one; a batch with that rank may be larger.
    """
    m, b = given.shape[0], inverter.batch_size_
    live = min(int(np.any(given.weight_grad, axis=axis).sum()) for axis in (0, 1))
    if inverter.size_is_clear_ and not inverter.recovered_.all() and b >= live - 2 > 0 and row.attack != Attack.HEAD:
        return b  # the layer allows no larger rank
    if row.attack != Attack.HEAD and m > 2:
        return 0
    sums = np.abs(given.weight_grad.sum(axis=0, dtype=np.float64)).max()
    adds_up = sums <= rounding * np.abs(given.weight_grad).max()
    return b if b >= m - 1 and (adds_up or m <= 2) else 0


def caps(max_seconds: float | None, max_effort: float | None) -> dict[str, float | None]:
    """Return the caps of an attack as `LayerAttack` takes them: a deadline, or an effort."""
    for name, cap in (("max_seconds", max_seconds), ("max_effort", max_effort)):
        if cap is not None and not (isinstance(cap, int | float) and cap >= 0):
            raise ValueError(f"{name} must be a number that is not negative, or None, got {cap!r}")
    if max_seconds is None:
        return {"max_effort": max_effort}
    return {"deadline": time.perf_counter() + max_seconds, "max_seconds": max_seconds}
