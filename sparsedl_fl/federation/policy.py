"""What counts as a leak in a federation, and what happens then; it never breaks a training."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from joblib import Parallel, delayed
from torch import nn

from sparsedl.process import neutral_modes
from sparsedl_fl.audit import AuditResult, Verdict
from sparsedl_fl.doubts import caught_warnings
from sparsedl_fl.federation.checking import State, check_update, state_of
from sparsedl_fl.federation.rounds import RoundTable
from sparsedl_fl.models.naming import unwrapped

__all__ = ["MODES", "Checked", "LeakPolicy", "LeakWarning"]

MODES = ("report", "warn", "block")


class LeakWarning(UserWarning):
    """An update gives something away, or could not be audited."""


@dataclass(frozen=True, eq=False)
class Checked:
    """What came of one update.

    Attributes
    ----------
    client, server_round : str, int
        Whose update, and when.
    result : AuditResult or None
        The audit; None where it failed.
    error : str
        Why it failed, or empty.
    is_blocked : bool
        Whether the update must not leave.
    seconds : float
        What the check cost.
    """

    client: str
    server_round: int
    result: AuditResult | None
    error: str
    is_blocked: bool
    seconds: float

    @property
    def reason(self) -> str:
        """What there is to say, in a sentence."""
        return (
            f"the audit failed: {self.error}" if self.result is None else f"{self.result.verdict}: {self.result.reason}"
        )


@dataclass
class LeakPolicy:
    """How updates are audited, and what happens to one that leaks.

    Parameters
    ----------
    model : torch.nn.Module or callable
        The model, or what makes one.
    learning_rate : float
        The clients'.
    mode : {"report", "warn", "block"}, default="warn"
        Write down alone; warn as well (`LeakWarning`); or block. Blocking fails closed: an update that could not be
        audited does not leave either.
    leaks : tuple of Verdict, default=(RECOVERED, PARTLY)
        Verdicts that count as a leak. With ``Verdict.OUT_OF_RANGE`` among them, what cannot be judged is blocked too.
    n_steps, momentum, weight_decay, optimizer, batch_size, example, loss
        Of the clients, as of `check_update`.
    max_effort, max_seconds : float or None, default=10 and None
        Budget of the searches for one update, as of `sparsedl_fl.audit.audit_model`; seconds take the place of effort.
    out : str or Path or None, default=None
        Folder of a report for each update (samples are left out), and of the table.
    n_jobs : int, default=1
        Updates of a round that a server audits at the same time, through joblib, with the backend that
        `joblib.parallel_config` says; the default's processes run side by side, threads wait for each other.
    """

    model: nn.Module | Callable[[], nn.Module]
    learning_rate: float
    mode: str = "warn"
    leaks: tuple[Verdict, ...] = (Verdict.RECOVERED, Verdict.PARTLY)
    n_steps: int | None = None
    momentum: float = 0.0
    weight_decay: float | None = 0.0
    optimizer: str = "sgd"
    batch_size: int | None = None
    example: torch.Tensor | None = None
    loss: Any = None
    max_effort: float | None = 10.0
    max_seconds: float | None = None
    out: str | Path | None = None
    n_jobs: int = 1
    table: RoundTable = field(init=False)
    _shapes: nn.Module | None = field(init=False, default=None, repr=False)

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"mode must be one of {MODES}, got {self.mode!r}")
        self.table = RoundTable(self.out)

    def check(self, before: State, after: State, *, client: Any, server_round: int, **facts: Any) -> Checked:
        """Audit one update. Nothing raised inside gets out.

        Parameters
        ----------
        before, after : mapping or sequence
            As of `check_update`.
        client : object
            Whose update it is; its text names it.
        server_round : int
            The round.
        **facts
            What is known better of this one update, such as ``batch_size``.
        """
        return self.check_all([(client, before, after, facts)], server_round=server_round)[0]

    def check_all(
        self, updates: Iterable[tuple[Any, State, State, Mapping[str, Any]]], *, server_round: int
    ) -> list[Checked]:
        """Audit the updates of one round, ``n_jobs`` at the same time. Nothing raised inside gets out.

        Parameters
        ----------
        updates : iterable of tuple
            Client, before, after and facts of each, as of `check`.
        server_round : int
            The round.
        """
        options = {
            "learning_rate": self.learning_rate,
            "n_steps": self.n_steps,
            "momentum": self.momentum,
            "weight_decay": self.weight_decay,
            "optimizer": self.optimizer,
            "batch_size": self.batch_size,
            "example": self.example,
            "loss": self.loss,
            "max_effort": self.max_effort,
            "max_seconds": self.max_seconds,
        }
        clients, tasks = [], []
        for client, before, after, facts in updates:
            clients.append(str(client))
            tasks.append(delayed(_audited)(self.model, before, after, options | dict(facts)))
        try:
            outcomes = Parallel(n_jobs=1 if len(tasks) == 1 else self.n_jobs)(tasks)
        except Exception:  # what cannot be sent to another process is audited here
            outcomes = Parallel(n_jobs=1)(tasks)
        return [self._noted(client, server_round, *found) for client, found in zip(clients, outcomes, strict=True)]

    @neutral_modes(gradients=True)
    def fits(self, state: State) -> bool:
        """Return whether arrays are a state of the model."""
        try:
            if self._shapes is None:
                model = self.model if isinstance(self.model, nn.Module) else self.model()
                self._shapes = deepcopy(unwrapped(model)).to("meta")
            state_of(self._shapes, state, "the message")
        except Exception:  # whatever travels there, it must not break a training
            return False
        return True

    def _noted(self, client: str, server_round: int, result: AuditResult | None, error: str, seconds: float) -> Checked:
        """Write down what came of an update, and warn where that is asked for."""
        is_leak = result is None or result.verdict in self.leaks
        blocked = self.mode == "block" and is_leak
        checked = Checked(client, server_round, result, error, blocked, seconds)
        try:
            self.table.add(checked)
        except OSError as problem:
            warnings.warn(f"the report of client {client} could not be written: {problem}", LeakWarning, stacklevel=4)
        if self.mode != "report" and is_leak:
            word = "blocked: " if blocked else ""
            warnings.warn(f"client {client}, round {server_round}: {word}{checked.reason}", LeakWarning, stacklevel=4)
        return checked


def _audited(
    model: nn.Module | Callable[[], nn.Module], before: State, after: State, options: Mapping[str, Any]
) -> tuple[AuditResult | None, str, float]:
    """Audit one update; return the result, or why there is none, and the seconds that it took."""
    result, error = None, ""
    with caught_warnings():
        start = time.perf_counter()
        try:
            result = check_update(model, before, after, **options)
        except Exception as problem:  # whatever it is, it must not break a training
            error = f"{type(problem).__name__}: {problem}"
        return result, error, time.perf_counter() - start
