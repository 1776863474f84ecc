"""Opacus: audit what leaves a private optimiser, step by step, with the accountant still counting."""

from __future__ import annotations

import warnings
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from sparsedl_fl.audit import AuditResult, audit_model
from sparsedl_fl.doubts import caught_warnings
from sparsedl_fl.federation.arguments import check_audit, check_folder, check_number
from sparsedl_fl.federation.interrupts import Interrupts
from sparsedl_fl.federation.policy import LeakWarning
from sparsedl_fl.inverter import GradientInverter
from sparsedl_fl.tracing.naming import plain_name, unwrapped

__all__ = ["StepAudits", "audit_steps"]


class StepAudits:
    """Audits of the gradients that leave a `DPOptimizer`, after clipping and noise.

    They hold nothing back: the step is taken whatever they find. An interrupt (Ctrl-C) during an audit is raised again
    before the step, once what was found by then is kept.

    Attributes
    ----------
    results : dict of int to AuditResult
        By step, counted from 1.
    errors : dict of int to str
        Steps whose audit failed, was interrupted, or could not be written down.
    n_steps : int
        Steps so far.
    """

    def __init__(self, optimizer: Any, model: nn.Module, options: dict[str, Any]) -> None:
        self.results: dict[int, AuditResult] = {}
        self.errors: dict[int, str] = {}
        self.n_steps = 0
        self._model, self._options = model, options
        self._before = optimizer.step_hook
        optimizer.attach_step_hook(self)

    def __call__(self, optimizer: Any) -> None:
        """Let the accountant count, then audit."""
        if self._before is not None:
            self._before(optimizer)
        self.n_steps += 1
        if (self.n_steps - 1) % self._options["every"]:
            return
        with Interrupts() as interrupts:
            try:
                self._audit(optimizer)
            except Exception as error:  # whatever it is, it must not break a training
                self._note(f"{type(error).__name__}: {error}")
        result = self.results.get(self.n_steps)
        if interrupts.came or (result is not None and result.is_interrupted):
            self._note("interrupted: the audit did not come to its end")
            raise KeyboardInterrupt

    def _note(self, error: str) -> None:
        """Keep why there is no audit to rely on, and warn of it."""
        self.errors[self.n_steps] = error
        warnings.warn(f"step {self.n_steps}: the audit failed: {error}", LeakWarning, stacklevel=3)

    def detach(self, optimizer: Any) -> None:
        """Take the hook away, and leave the accountant's."""
        optimizer.attach_step_hook(self._before)

    def _audit(self, optimizer: Any) -> None:
        options, size = self._options, optimizer.expected_batch_size
        scale = size if optimizer.loss_reduction == "mean" else 1
        noise = optimizer.noise_multiplier * optimizer.max_grad_norm / scale
        gradients = {
            plain_name(name): tensor.grad.detach().clone()
            for name, tensor in self._model.named_parameters()
            if tensor.grad is not None
        }
        with caught_warnings():
            inverter = GradientInverter(
                batch_size=options["batch_size"] or (size if noise else None), noise_level=noise or None, random_state=0
            )
            result = audit_model(
                unwrapped(self._model),
                gradients,
                inverter,
                example=options["example"],
                loss=options["loss"],
                max_effort=options["max_effort"],
                max_seconds=options["max_seconds"],
            )
        statement = {
            "noise_multiplier": float(optimizer.noise_multiplier),
            "clipping": float(optimizer.max_grad_norm),
            "expected_batch_size": int(size) if size else 0,
            "steps": self.n_steps,
            "epsilon": self._epsilon(),
            "delta": options["delta"],
            "unit": "record",
        }
        self.results[self.n_steps] = result = replace(result, context={**result.context, "dp": statement})
        if options["out"] is not None:
            folder = Path(options["out"])
            folder.mkdir(parents=True, exist_ok=True)
            result.to_json(folder / f"step-{self.n_steps:05}.json")
            with suppress(ImportError):  # without Jinja2 there is the JSON
                result.to_html(folder / f"step-{self.n_steps:05}.html")

    def _epsilon(self) -> float | None:
        accountant = self._options["accountant"]
        if accountant is None or len(accountant) == 0:
            return None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return float(accountant.get_epsilon(self._options["delta"]))


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
        Private optimiser. Its one slot for a hook is shared: what the accountant put there goes on.
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
        Caps on the searches of one audit, as of `sparsedl_fl.audit.audit_model`. None lets each come to its own end; an
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
    try:
        from opacus.optimizers import DPOptimizer
    except ImportError as error:
        raise ImportError("audit_steps needs Opacus: pip install 'sparsedl[dp]'") from error
    if not isinstance(optimizer, DPOptimizer):
        raise TypeError(f"optimizer must be an opacus DPOptimizer, got {type(optimizer).__name__}")
    check_number("every", every, is_positive=True, is_whole=True)
    check_audit(batch_size=batch_size, example=example, loss=loss, max_effort=max_effort, max_seconds=max_seconds)
    check_folder("out", out)
    options = {"accountant": accountant, "delta": delta, "every": every, "batch_size": batch_size, "example": example}
    options |= {"loss": loss, "max_effort": max_effort, "max_seconds": max_seconds, "out": out}
    return StepAudits(optimizer, model, options)
