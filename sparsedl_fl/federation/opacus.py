"""Opacus: audit the gradients of a private optimiser, step by step; the accountant goes on counting."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import nn

from sparsedl_fl.audit import AuditResult, audit_model
from sparsedl_fl.audit.declared import with_more
from sparsedl_fl.caught_warnings import caught_warnings
from sparsedl_fl.federation.arguments import check_arguments
from sparsedl_fl.federation.outcome import Interrupts
from sparsedl_fl.federation.policy import LeakWarning
from sparsedl_fl.federation.round_table import write_reports
from sparsedl_fl.inverter import GradientInverter
from sparsedl_fl.tracing.naming import plain_name, unwrapped
from sparsedl_fl.wording import installs

__all__ = ["StepAudits", "audit_steps"]


@dataclass(eq=False)
class StepAudits:
    """Audits of the gradients that leave a `DPOptimizer`, after clipping and noise.

    They hold nothing back: the step is taken whatever they find. An interrupt (Ctrl-C) during an audit is raised again
    before the step, once what was found by then is kept.

    Attributes
    ----------
    results : dict of int to AuditResult
        By number of the step, from 1.
    errors : dict of int to str
        Steps whose audit failed, was interrupted, or could not be written down.
    n_steps : int
        Steps so far.
    """

    _model: nn.Module
    _before: Any
    """The hook that was there, the accountant's."""
    _every: int
    _batch_size: int | None
    _accountant: Any
    _delta: float
    _out: str | Path | None
    _audit_options: dict[str, Any]
    results: dict[int, AuditResult] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)
    n_steps: int = 0

    def __call__(self, optimizer: Any) -> None:
        """Let the accountant count, then audit."""
        if self._before is not None:
            self._before(optimizer)
        self.n_steps += 1
        if (self.n_steps - 1) % self._every:
            return
        with Interrupts() as interrupts:
            try:
                self._audit(optimizer)
            except Exception as error:  # whatever it is, it must not break a training
                self._note(f"{type(error).__name__}: {error}")
        result = self.results.get(self.n_steps)
        if interrupts.came or (result is not None and result.is_interrupted):
            self._note("interrupted: the audit is incomplete")
            raise KeyboardInterrupt

    def _note(self, error: str) -> None:
        """Record why an audit is missing, and warn of it."""
        self.errors[self.n_steps] = error
        warnings.warn(f"step {self.n_steps}: the audit failed: {error}", LeakWarning, stacklevel=3)

    def detach(self, optimizer: Any) -> None:
        """Remove the hook, and restore the accountant's."""
        optimizer.attach_step_hook(self._before)

    def _audit(self, optimizer: Any) -> None:
        size = optimizer.expected_batch_size
        scale = size if optimizer.loss_reduction == "mean" else 1
        noise = optimizer.noise_multiplier * optimizer.max_grad_norm / scale
        gradients = {
            plain_name(name): tensor.grad.detach().clone()
            for name, tensor in self._model.named_parameters()
            if tensor.grad is not None
        }
        with caught_warnings():
            batch_size = self._batch_size or (size if noise else None)
            inverter = GradientInverter(batch_size=batch_size, noise_level=noise or None, random_state=0)
            result = audit_model(unwrapped(self._model), gradients, inverter, **self._audit_options)
        statement = {
            "noise_multiplier": float(optimizer.noise_multiplier),
            "clipping": float(optimizer.max_grad_norm),
            "expected_batch_size": int(size) if size else 0,
            "steps": self.n_steps,
            "epsilon": self._epsilon(),
            "delta": self._delta,
            "unit": "record",
        }
        shown = {key: statement[key] for key in ("noise_multiplier", "clipping", "expected_batch_size")}
        context = {**result.context, "dp": statement, "declared": with_more(result.context["declared"], dp=shown)}
        self.results[self.n_steps] = result = replace(result, context=context)
        if self._out is not None:
            write_reports(result, Path(self._out), f"step-{self.n_steps:05}")

    def _epsilon(self) -> float | None:
        if self._accountant is None or len(self._accountant) == 0:
            return None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return float(self._accountant.get_epsilon(self._delta))


def audit_steps(
    optimizer: Any,
    model: nn.Module,
    *,
    accountant: Any = None,
    delta: float = 1e-5,
    every: int = 1,
    batch_size: int | None = None,
    example: Any = None,
    loss: Any = None,
    max_effort: float | None = None,
    max_seconds: float | None = None,
    out: str | Path | None = None,
) -> StepAudits:
    """Audit the gradient that each step of an Opacus optimiser takes, after clipping and noise.

    Parameters
    ----------
    optimizer : opacus.optimizers.DPOptimizer
        Private optimiser. Its only slot for a hook is shared with the accountant's hook.
    model : torch.nn.Module
        The private model (`opacus.GradSampleModule`).
    accountant : opacus.accountants.IAccountant or None, default=None
        Such as ``privacy_engine.accountant``, for the epsilon in the report.
    delta : float, default=1e-5
        For that.
    every : int, default=1
        Audit one step in so many.
    batch_size : int or None, default=None
        Records in a step; None takes the expected ones under noise, and else finds them.
    example, loss
        As of `sparsedl_fl.audit.audit_model`.
    max_effort, max_seconds : float or None, default=None
        Caps on the searches of one audit, as of `sparsedl_fl.audit.audit_model`. None lets each run to its end; an
        audit that is cut short concludes nothing (`AuditResult.is_complete`). To save time audit fewer steps.
    out : str or Path or None, default=None
        Folder of a report for each step that is audited.

    Returns
    -------
    StepAudits
        Fills as training goes on.

    Raises
    ------
    ValueError, TypeError
        If an argument makes no sense; it is named.
    """
    with installs("audit_steps needs Opacus", "dp"):
        from opacus.optimizers import DPOptimizer
    if not isinstance(optimizer, DPOptimizer):
        raise TypeError(f"optimizer must be an opacus DPOptimizer, got {type(optimizer).__name__}")
    audit = {"example": example, "loss": loss, "max_effort": max_effort, "max_seconds": max_seconds}
    check_arguments(every=every, batch_size=batch_size, **audit, out=out)
    audits = StepAudits(model, optimizer.step_hook, every, batch_size, accountant, delta, out, audit)
    optimizer.attach_step_hook(audits)
    return audits
