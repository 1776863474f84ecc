"""What counts as a leak in a federation, and what happens then; it never breaks a training."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from joblib import Parallel, delayed
from torch import nn

from sparsedl.process import neutral_modes
from sparsedl_fl.audit import Verdict
from sparsedl_fl.federation.arguments import check_arguments
from sparsedl_fl.federation.checking import State, state_of
from sparsedl_fl.federation.outcome import Checked, Finding, Outcome, audited
from sparsedl_fl.federation.round_table import RoundTable
from sparsedl_fl.tracing.naming import unwrapped

__all__ = ["LeakPolicy", "LeakWarning"]

LEAKS = tuple(verdict for verdict in Verdict if verdict.is_leak)
"""Verdicts that always count as a leak."""

OF_THE_CHECK = (
    "learning_rate", "n_steps", "momentum", "weight_decay", "optimizer", "batch_size", "example", "loss",
    "max_effort", "max_seconds",
)  # fmt: skip
"""Fields of a policy that go to `check_update`."""


class LeakWarning(UserWarning):
    """An update gives something away, or could not be audited."""


@dataclass
class LeakPolicy:
    """How updates are audited, and what happens to one that leaks.

    Parameters
    ----------
    model : torch.nn.Module or callable
        The model, or a function that makes one.
    learning_rate : float
        The clients'.
    mode : {"report", "warn", "block"}, default="warn"
        "report" records results, "warn" warns as well of updates that "block" would hold (`LeakWarning`), "block" holds
        them. Blocking fails closed: an update leaves only after a complete audit that ended NOT RECOVERED. It is held
        for a leak, after an audit that was interrupted, was ended by a cap, or failed anywhere (also in reading the
        update or writing the report), and for numbers that are not finite.
    out_of_range : {"hold", "release"}, default="hold"
        What happens to an update for which a complete audit has no conclusion, OUT OF RANGE. With "release" you take
        the risk: nothing is known of such an update. It releases nothing else.
    leaks : tuple of Verdict, default=(RECOVERED, PARTLY, LIKELY)
        Verdicts that count as a leak. These three always do; others can only be added: with ``Verdict.OUT_OF_RANGE``
        updates without a conclusion are held whatever ``out_of_range`` says, with ``Verdict.NOT_RECOVERED`` everything
        is.
    n_steps, momentum, weight_decay, optimizer, batch_size, example, loss
        Of the clients, as of `check_update`.
    max_effort, max_seconds : float or None, default=None
        Caps on the searches for one update, as of `sparsedl_fl.audit.audit_model`. None lets each run to its end; an
        update whose audit is cut short is held.
    out : str or Path or None, default=None
        Folder of a report for each update (samples are left out), and of the table.
    n_jobs : int, default=1
        Updates of a round that a server audits at the same time, through joblib, with the backend that
        `joblib.parallel_config` says; the default's processes run side by side, threads wait for each other.

    Raises
    ------
    ValueError, TypeError
        If an argument makes no sense; it is named.
    """

    model: nn.Module | Callable[[], nn.Module]
    learning_rate: float
    mode: str = "warn"
    leaks: tuple[Verdict, ...] = LEAKS
    n_steps: int | None = None
    momentum: float = 0.0
    weight_decay: float | None = 0.0
    optimizer: str = "sgd"
    batch_size: int | None = None
    example: torch.Tensor | None = None
    loss: Any = None
    max_effort: float | None = None
    max_seconds: float | None = None
    out: str | Path | None = None
    n_jobs: int = 1
    out_of_range: str = "hold"
    table: RoundTable = field(init=False)
    _shapes: nn.Module | None = field(init=False, default=None, repr=False)

    def __post_init__(self) -> None:
        self._check_arguments()
        check_arguments(out=self.out)
        self.leaks = _all_leaks(self.leaks)
        self.table = RoundTable(self.out)

    def _check_arguments(self) -> None:
        check_arguments(model=self.model, mode=self.mode, out_of_range=self.out_of_range)
        _all_leaks(self.leaks)
        check_arguments(**self._options, n_jobs=self.n_jobs)

    @property
    def is_blocking(self) -> bool:
        """Whether updates that are not clear are held; an invalid mode, set later, holds as well."""
        return self.mode not in ("report", "warn")

    @property
    def _options(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in OF_THE_CHECK}

    def check(self, before: State, after: State, *, client: Any, server_round: int, **facts: Any) -> Checked:
        """Audit one update. It raises nothing but an interrupt, and that after the update is held.

        Parameters
        ----------
        before, after : mapping or sequence, or Exception
            As of `check_update`; a state that could not be read is given as the exception.
        client : object
            The client, named by its text.
        server_round : int
            The round.
        **facts
            Options of this update, such as ``batch_size``; ``record`` and ``not_looked_at`` are kept in the `Checked`.

        Raises
        ------
        KeyboardInterrupt
            If one came during the audit, even if the search handled it.
        """
        return self.check_all([(client, before, after, facts)], server_round=server_round)[0]

    def check_all(
        self, updates: Iterable[tuple[Any, State, State, Mapping[str, Any]]], *, server_round: int
    ) -> list[Checked]:
        """Audit the updates of one round, ``n_jobs`` at the same time. Raises as `check` does.

        Parameters
        ----------
        updates : iterable of tuple
            Client, before, after and facts of each, as of `check`.
        server_round : int
            The round.
        """
        notes: list[dict[str, Any]] = []
        tasks: list[tuple[Any, ...]] = []
        for client, before, after, facts in updates:
            kept = {name: value for name, value in facts.items() if name in ("record", "not_looked_at")}
            known = {name: value for name, value in facts.items() if name not in kept}
            notes.append({"client": str(client), **kept})
            tasks.append((self.model, before, after, self._options | known))
        try:
            self._check_arguments()
        except (TypeError, ValueError) as problem:  # set after the policy was made
            tasks = [(self.model, problem, problem, {}) for _ in tasks]
        checked, is_interrupted = [], False
        for note, outcome in zip(notes, self._outcomes(tasks), strict=False):
            checked.append(self._noted(server_round, outcome, **note))
            is_interrupted = is_interrupted or outcome.is_interrupted
        if is_interrupted:
            raise KeyboardInterrupt
        return checked

    def _outcomes(self, tasks: list[tuple[Any, ...]]) -> Iterator[Outcome]:
        """Yield the outcome of each update in turn; an interrupt is the last."""
        if self.n_jobs != 1 and len(tasks) > 1:
            try:
                outcomes = Parallel(n_jobs=self.n_jobs)(delayed(audited)(*task) for task in tasks)
            except KeyboardInterrupt:
                outcomes = [Outcome(is_interrupted=True)]
            except Exception:  # updates that cannot be sent to another process are audited here
                outcomes = []
            if outcomes:
                yield from outcomes
                return
        for task in tasks:
            outcome = audited(*task)
            yield outcome
            if outcome.is_interrupted:
                return

    @neutral_modes(gradients=True)
    def fits(self, state: State) -> bool:
        """Return whether arrays are a state of the model."""
        try:
            if self._shapes is None:
                model = self.model if isinstance(self.model, nn.Module) else self.model()
                self._shapes = deepcopy(unwrapped(model)).to("meta")
            state_of(self._shapes, state, "the message")
        except Exception:  # whatever it is, it must not break a training
            return False
        return True

    def _noted(self, server_round: int, outcome: Outcome, **note: Any) -> Checked:
        """Record the outcome of an update, and warn of it where the mode asks for it."""
        checked = self._judged(outcome, server_round=server_round, **note)
        try:
            self.table.add(checked)
        except Exception as problem:  # no disk, permission or template: the report of this update would be missing
            text = f"the report of client {checked.client} could not be written: {problem}"
            warnings.warn(text, LeakWarning, stacklevel=4)
            error = "; ".join(part for part in (outcome.error, text) if part)
            checked = self._judged(replace(outcome, error=error), server_round=server_round, **note)
            self.table.audits[-1] = checked
        if self.mode != "report" and self._is_held(checked.finding):
            word = "blocked: " if checked.is_blocked else ""
            text = f"client {checked.client}, round {server_round}: {word}{checked.reason}"
            warnings.warn(text, LeakWarning, stacklevel=4)
        return checked

    def _judged(self, outcome: Outcome, **note: Any) -> Checked:
        finding = self._finding(outcome)
        is_blocked = self.is_blocking and self._is_held(finding)
        return Checked(**vars(outcome), is_blocked=is_blocked, finding=finding, **note)

    def _finding(self, outcome: Outcome) -> Finding:
        result = outcome.result
        if result is not None and (result.verdict in LEAKS or result.verdict in self.leaks):
            return Finding.LEAK
        if outcome.is_interrupted:
            return Finding.INTERRUPTED
        if result is None or outcome.error:
            return Finding.ERROR
        if not result.is_complete:
            return Finding.CAP
        return Finding.CLEAR if result.verdict is Verdict.NOT_RECOVERED else Finding.OUT_OF_RANGE

    def _is_held(self, finding: Finding) -> bool:
        """Return whether blocking holds an update with a finding."""
        is_released = finding is Finding.OUT_OF_RANGE and self.out_of_range == "release"
        return finding is not Finding.CLEAR and not is_released


def _all_leaks(given: Any) -> tuple[Verdict, ...]:
    """Return the verdicts that count as a leak: those that always do, and those that the user adds."""
    try:
        added = () if isinstance(given, str) else tuple(map(Verdict, given))
    except (TypeError, ValueError):
        added = None
    if added is None or isinstance(given, str):
        words = ", ".join(repr(str(verdict)) for verdict in Verdict)
        raise ValueError(f"leaks must be a tuple of verdicts ({words}), got {given!r}")
    return tuple(verdict for verdict in Verdict if verdict in LEAKS or verdict in added)
