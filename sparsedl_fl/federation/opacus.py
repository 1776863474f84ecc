"""Opacus: audit what leaves a private optimiser, step by step, with the accountant still counting."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from sparsedl_fl.audit import AuditResult, audit_model
from sparsedl_fl.doubts import caught_warnings
from sparsedl_fl.federation.policy import LeakWarning
from sparsedl_fl.inverter import GradientInverter
from sparsedl_fl.models.naming import plain_name, unwrapped

__all__ = ["StepAudits", "audit_steps"]


class StepAudits:
    """Audits of the gradients that leave a `DPOptimizer`, after clipping and noise.

    Attributes
    ----------
    results : dict of int to AuditResult
        By step, counted from 1.
    errors : dict of int to str
        Steps whose audit failed.
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
        try:
            self.results[self.n_steps] = self._audited(optimizer)
        except Exception as error:  # whatever it is, it must not break a training
            self.errors[self.n_steps] = f"{type(error).__name__}: {error}"
            warnings.warn(f"step {self.n_steps}: the audit failed: {error}", LeakWarning, stacklevel=2)

    def detach(self, optimizer: Any) -> None:
        """Take the hook away, and leave the accountant's."""
        optimizer.attach_step_hook(self._before)

    def _audited(self, optimizer: Any) -> AuditResult:
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
        result = replace(result, context={**result.context, "dp": statement})
        if options["out"] is not None:
            folder = Path(options["out"])
            folder.mkdir(parents=True, exist_ok=True)
            result.to_json(folder / f"step-{self.n_steps:05}.json")
            result.to_html(folder / f"step-{self.n_steps:05}.html")
        return result

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
    max_effort: float | None = 5.0,
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
    max_effort, max_seconds : float or None, default=5 and None
        Budget of the searches of one audit, as of `sparsedl_fl.audit.audit_model`; seconds take the place of effort.
    out : str or Path or None, default=None
        Folder of a report for each step that is audited.

    Returns
    -------
    StepAudits
        Fills as training goes on.
    """
    try:
        from opacus.optimizers import DPOptimizer
    except ImportError as error:
        raise ImportError("audit_steps needs Opacus: pip install 'sparsedl[dp]'") from error
    if not isinstance(optimizer, DPOptimizer):
        raise TypeError(f"optimizer must be an opacus DPOptimizer, got {type(optimizer).__name__}")
    if every < 1:
        raise ValueError(f"every must be at least 1, got {every!r}")
    options = {"accountant": accountant, "delta": delta, "every": every, "batch_size": batch_size, "example": example}
    options |= {"loss": loss, "max_effort": max_effort, "max_seconds": max_seconds, "out": out}
    return StepAudits(optimizer, model, options)
