"""Simulated clients over settings of a defence, each audited and compared with the truth."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from sparsedl.process import neutral_modes
from sparsedl_fl.audit.attack import audit_model
from sparsedl_fl.audit.findings import Fed, LayerAudit, Verdict
from sparsedl_fl.audit.first_step import audit_first_step
from sparsedl_fl.audit.result import AuditResult
from sparsedl_fl.audit.sweeping.defences import Setting, default_settings
from sparsedl_fl.audit.sweeping.records_on_file import append_record, digest_of_sweep, key_of, read_records
from sparsedl_fl.audit.sweeping.sweep_clients import accuracy_lost, check_client, epsilon_of, seeded, whole_records
from sparsedl_fl.audit.sweeping.sweep_result import SweepResult, SweepRow
from sparsedl_fl.caught_warnings import caught_warnings
from sparsedl_fl.inverter import GradientInverter
from sparsedl_fl.layers.running_model import RunFrom, in_double
from sparsedl_fl.metrics import are_wrong, match_batches
from sparsedl_fl.tracing.naming import plain_parameters
from sparsedl_fl.tracing.tracing import trace_model

__all__ = ["sweep"]

RIGHT = 0.05
"""Error of an input, relative to its size, up to which it is right."""

DEVIATIONS = 5.0
"""Expected errors by which a certified input may be off without being wrong."""

ROUNDING = 1e-6
"""Rounding of the client's own features, relative to their size: the truth is computed in double precision."""


@neutral_modes(gradients=True)
def sweep(
    model: nn.Module,
    inputs: torch.Tensor | None = None,
    labels: torch.Tensor | None = None,
    *,
    settings: Sequence[Setting] | None = None,
    batch_size: int = 16,
    n_batches: int = 3,
    example: torch.Tensor | None = None,
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = cross_entropy,
    max_effort: float | None = 20.0,
    max_seconds: float | None = None,
    n_rounds: int = 0,
    random_state: int = 0,
    n_jobs: int | None = None,
    out: str | Path | None = None,
    report: Callable[[int, int], None] | None = None,
) -> SweepResult:
    """Simulate clients at each setting, audit what they send, and compare with the truth.

    Parameters
    ----------
    model : torch.nn.Module
        The model that is sent out.
    inputs, labels : torch.Tensor of shape (n_records, ...) and (n_records,), or None, default=None
        Records, on the scale the model takes; what is None is drawn, Gaussian, in the shape of ``example``.
    settings : sequence of Setting or None, default=None
        The settings to try; None takes `default_settings` at ``batch_size``.
    batch_size : int, default=16
        For these.
    n_batches : int, default=3
        Batches a setting, at seeds of their own.
    example : torch.Tensor or None, default=None
        An input of the model; None takes the first of ``inputs``, or makes one up.
    loss : callable, default=cross_entropy
        ``loss(outputs, labels)``.
    max_effort, max_seconds : float or None, default=20 and None
        Budget of the searches of an audit, all layers together, as of `sparsedl_fl.audit.audit_model`; seconds take the
        place of effort.
    n_rounds : int, default=0
        Rounds of the training that measures the accuracy which a setting costs; 0 for none. It needs ``inputs`` and
        ``labels``, of which it keeps a fifth to test on.
    random_state : int, default=0
        Seed.
    n_jobs : int or None, default=None
        Audits at the same time, as of joblib, whose backend (loky, dask, ray) `joblib.parallel_config` sets.
    out : str or Path or None, default=None
        A file of records, one line an audit: what is there already, of the same model, data and options, is not run
        again.
    report : callable or None, default=None
        Called with how many audits are done, and how many there are.
    """
    example = inputs[:2] if example is None and inputs is not None else example
    data = "the user's records" if inputs is not None else "Gaussian numbers as records"
    inputs, labels = whole_records(model, inputs, labels, example, random_state)
    check_client(model, inputs, labels, loss)
    settings = default_settings(batch_size, most=len(inputs)) if settings is None else list(settings)
    too_large = next((setting for setting in settings if setting.client.n_records > len(inputs)), None)
    if too_large is not None:
        raise ValueError(f"{too_large.defence}, {too_large.name}, takes more records than the {len(inputs)} there are")
    work = _Sweep(model, inputs, labels, example, loss, {"max_effort": max_effort, "max_seconds": max_seconds})
    rows = work.run(settings, range(random_state, random_state + n_batches), n_rounds, n_jobs, out, report)
    return SweepResult(rows, n_batches, data)


@dataclass(frozen=True, eq=False)
class _Sweep:
    """The parts of a sweep that all settings share."""

    model: nn.Module
    inputs: torch.Tensor
    labels: torch.Tensor
    example: torch.Tensor | None
    loss: Any
    limits: dict[str, float | None]

    def run(
        self,
        settings: Sequence[Setting],
        seeds: range,
        n_rounds: int,
        n_jobs: int | None,
        out: str | Path | None,
        report: Callable[[int, int], None] | None,
    ) -> tuple[SweepRow, ...]:
        """Return a row for each setting; what is on file is not run again, and no half audit is kept.

        Raises
        ------
        KeyboardInterrupt
            If an audit was interrupted, which ends the sweep; that audit's record is not written.
        """
        shape = None if self.example is None else (*self.example.shape, str(self.example.dtype))
        known = (self.model, self.inputs, self.labels)
        name = digest_of_sweep(*known, self.loss, self.limits | {"example": shape})
        tasks = {key_of(setting, seed, name): (setting, seed) for setting in settings for seed in seeds}
        on_file = read_records(out, is_timed=self.limits["max_seconds"] is not None)
        done = {key: record for key, record in on_file.items() if key in tasks}
        waiting = [joblib.delayed(self.audited)(key, *task) for key, task in tasks.items() if key not in done]
        finished = joblib.Parallel(n_jobs=n_jobs, return_as="generator_unordered")(waiting)
        for count, record in enumerate(finished, len(tasks) - len(waiting) + 1):
            if record is None:
                raise KeyboardInterrupt
            done[record["key"]] = record
            append_record(out, record)
            if report is not None:
                report(count, len(tasks))
        rows = []
        for setting in settings:
            cost = accuracy_lost(*known, setting, self.loss, n_rounds, seeds.start)
            epsilon = epsilon_of(setting, len(self.inputs), n_rounds)
            rows.append(SweepRow.of(setting, [done[key_of(setting, seed, name)] for seed in seeds], epsilon, cost))
        return tuple(rows)

    def audited(self, key: str, setting: Setting, seed: int) -> dict[str, Any] | None:
        """Audit one update of one setting, and compare with the truth; None where that was interrupted."""
        client = setting.client
        chosen = torch.randperm(len(self.inputs), generator=seeded(seed))[: client.n_records]
        x, y = self.inputs[chosen], self.labels[chosen]
        result = {"key": key, "verdict": str(Verdict.OUT_OF_RANGE), "share": 0.0, "label_share": 0.0}
        result |= {"n_wrong": 0, "errors": [], "what": "", "seconds": 0.0, "is_complete": True}
        if not (client.is_in_range or client.is_first_step):
            return result
        sent = client.update(self.model, x, y, loss=self.loss, seed=seed)
        # The batch size is given where the rank does not show it.
        known = None if client.is_exact else client.n_records
        inverter = GradientInverter(batch_size=known, noise_level=sent.noise_level, random_state=seed)
        loss = "cross_entropy" if self.loss is cross_entropy else self.loss
        options: dict[str, Any] = {"example": self.example, "loss": loss, **self.limits}
        with caught_warnings():
            if client.is_first_step:
                step: dict[str, Any] = {"learning_rate": client.learning_rate, "optimizer": client.optimizer}
                step |= {"weight_decay": client.weight_decay, "inverter": inverter}
                after = _after(self.model, sent.gradients, client.learning_rate)
                audit = audit_first_step(self.model, after, **step, **options)
            else:
                options["learning_rate"] = sent.learning_rate
                audit = audit_model(self.model, sent.gradients, inverter, **options)
        return None if audit.is_interrupted else result | self._compared(audit, x, y)

    def _compared(self, audit: AuditResult, x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
        """Compare what an audit found with the truth, at the layer that leaks most."""
        found = {"verdict": str(audit.verdict), "seconds": audit.context["seconds"], "is_complete": audit.is_complete}
        best = audit.best
        if best is None or best.batch is None:
            return found
        batch, true = best.batch, self._fed(best, x)
        match = match_batches(true, batch.inputs)
        sizes = np.sqrt(np.mean(true**2, axis=1))
        errors = np.sqrt(match.squared_errors)
        is_found, order = match.order >= 0, np.maximum(match.order, 0)
        is_as_said = errors <= np.maximum(DEVIATIONS * batch.errors[order], ROUNDING * sizes)
        right = is_found & batch.certified[order] & is_as_said & (errors <= RIGHT * sizes)
        # With several local steps the weights change, and so the features.
        is_known = best.what is Fed.INPUTS or audit.context.get("learning_rate") is None
        certified = batch.inputs[batch.certified], batch.errors[batch.certified]
        wrong = are_wrong(true, *certified, multiple=DEVIATIONS, small=ROUNDING) if is_known else np.zeros(0)
        return found | {
            "share": float(right.mean()),
            "label_share": float(np.mean(is_found & (batch.labels[order] == y.numpy()))),
            "n_wrong": int(wrong.sum()),
            "errors": errors[right].tolist(),
            "what": str(best.what),
        }

    def _fed(self, layer: LayerAudit, x: torch.Tensor) -> np.ndarray:
        """Return the true inputs of a layer."""
        if layer.what is Fed.INPUTS:
            return x.flatten(1).double().numpy()
        trace = trace_model(self.model, x[:2])
        run = RunFrom(in_double(self.model), trace.use_of(layer.name), trace)
        found: dict[str, np.ndarray] = {}
        with run.watched(found), torch.no_grad():
            run.model(x.double())
        return found[layer.name]


def _after(model: nn.Module, moves: Mapping[str, torch.Tensor], learning_rate: float) -> dict[str, torch.Tensor]:
    """Return the weights of a client, in the model's precision, from their moves over the learning rate."""
    parameters = plain_parameters(model)
    return {
        name: (tensor.detach().double() - learning_rate * moves[name]).to(tensor.dtype)
        for name, tensor in parameters.items()
    }
