"""NVFLARE: a filter that audits a client's results, and one that remembers what they started from."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from numbers import Number
from typing import Any

import numpy as np
from torch import nn

from sparsedl_fl.audit.files import load_object
from sparsedl_fl.federation.outcome import Checked
from sparsedl_fl.federation.policy import LeakPolicy, LeakWarning
from sparsedl_fl.wording import installs

with installs("sparsedl_fl.federation.nvflare needs NVFLARE", "nvflare"):
    from nvflare.apis.dxo import DXO, DataKind, from_shareable
    from nvflare.apis.dxo_filter import DXOFilter
    from nvflare.apis.shareable import ReservedHeaderKey

__all__ = ["GlobalModelFilter", "LeakAuditFilter"]

SENT = "sparsedl_fl.sent"
"""Under which name the global model of a round is kept in the context."""

HEADERS, CONTENT = ReservedHeaderKey.HEADERS, "DXO"
"""Where a result has its headers, and its data."""

ROUNDS = ("current_round", "contribution_round")
"""Headers that say which round it is."""


class GlobalModelFilter(DXOFilter):
    """Keeps the global model of a task; belongs into ``task_data_filters``."""

    def __init__(self) -> None:
        super().__init__(supported_data_kinds=[DataKind.WEIGHTS], data_kinds_to_filter=None)

    def process(self, shareable: Any, fl_ctx: Any) -> Any:
        """Replace the weights of an earlier task by those of this one."""
        fl_ctx.set_prop(SENT, None, private=True, sticky=True)
        return super().process(shareable, fl_ctx)

    def process_dxo(self, dxo: DXO, shareable: Any, fl_ctx: Any) -> DXO | None:
        """Keep the weights in the context, and change nothing."""
        fl_ctx.set_prop(SENT, dict(dxo.data), private=True, sticky=True)
        return None


class LeakAuditFilter(DXOFilter):
    """Audits a client's results; belongs into ``task_result_filters``, last, after filters that hide or cut numbers.

    It audits weights and differences of weights, in collections too. It needs the weights at the start of training: put
    a `GlobalModelFilter` into ``task_data_filters``, or give the policy a model (not a function) with these weights.
    Anything else with arrays, lists of numbers or bytes (data of other kinds, properties besides the data, results that
    are no DXO) cannot be audited and is recorded as such; single numbers and words, such as metrics, and the headers,
    which are NVFLARE's own, are not audited.

    In the mode "block" the data of an update that is held are emptied, as NVFLARE's own example of a gate does, and so
    are data that cannot be audited, such as encrypted or packed ones (homomorphic encryption, quantisers): put those
    filters after this one.

    Parameters
    ----------
    policy : LeakPolicy
        What is audited and how. In a job's configuration it may be the path ``package.module:name`` of one, or of a
        function that makes one.
    """

    def __init__(self, policy: LeakPolicy | str) -> None:
        super().__init__(supported_data_kinds=[DataKind.WEIGHTS, DataKind.WEIGHT_DIFF], data_kinds_to_filter=None)
        self.policy = policy  # unchanged: a job is saved by its components' arguments
        self._policy = _resolved(policy)

    def process(self, shareable: Any, fl_ctx: Any) -> Any:
        """Audit a whole result, whatever its return code; an error inside empties it where updates are blocked."""
        try:
            others = {key: value for key, value in shareable.items() if key not in (HEADERS, CONTENT)}
            self._check_others(others, shareable, shareable, fl_ctx)
            if CONTENT in shareable:
                dxo = from_shareable(shareable)
                self._check_all(dxo, "", shareable, fl_ctx)
                dxo.update_shareable(shareable)
        except BaseException as problem:  # an interrupt must not let the data leave either
            if self._policy.is_blocking:
                _emptied(shareable)
            if not isinstance(problem, Exception) or isinstance(problem, LeakWarning):  # an error by the user's choice
                raise
            self.log_error(fl_ctx, f"the leak audit failed: {type(problem).__name__}: {problem}")
            with suppress(Exception):  # the table itself may have failed
                self._checked(None, problem, "", shareable, fl_ctx)
        return shareable

    def process_dxo(self, dxo: DXO, shareable: Any, fl_ctx: Any) -> DXO | None:
        """Audit weights or differences of weights, and empty the data of an update that is held."""
        try:
            self._audit(dxo, "", shareable, fl_ctx)
        except BaseException:
            if self._policy.is_blocking:
                dxo.data = {}
            raise
        return dxo

    def _check_all(self, dxo: DXO, path: str, shareable: Any, fl_ctx: Any) -> None:
        """Check a DXO and all inside."""
        self._check_others(dxo.meta, dxo.meta, shareable, fl_ctx)
        if dxo.data_kind == DataKind.COLLECTION:
            parts = {name: part for name, part in dxo.data.items() if isinstance(part, DXO)}
            for name, part in parts.items():
                self._check_all(part, f"{path}.{name}".strip("."), shareable, fl_ctx)
            others = {name: part for name, part in dxo.data.items() if name not in parts}
            self._check_others(others, dxo.data, shareable, fl_ctx)
        elif dxo.data_kind in self.data_kinds:
            self._audit(dxo, path, shareable, fl_ctx)
        elif not _holds_arrays(dxo.data):
            dxo.set_meta_prop("leak_audit", f"not looked at: {_word(dxo.data_kind)}, single numbers and words")
        else:
            problem = ValueError(f"a DXO of the kind {_word(dxo.data_kind)} cannot be audited, and it holds arrays")
            self._note(dxo, self._checked(None, problem, path, shareable, fl_ctx), fl_ctx)

    def _check_others(self, found: Mapping, holder: Any, shareable: Any, fl_ctx: Any) -> None:
        """Check entries besides the data of an update, and delete those that are held."""
        names = [name for name, value in found.items() if _holds_arrays(value)]
        if names:
            problem = ValueError(
                f"{', '.join(map(repr, names))} holds arrays besides the weights, which cannot be audited"
            )
            if self._checked(None, problem, "besides the data", shareable, fl_ctx).is_blocked:
                for name in names:
                    del holder[name]

    def _audit(self, dxo: DXO, path: str, shareable: Any, fl_ctx: Any) -> None:
        sent = fl_ctx.get_prop(SENT)
        if sent is None and not isinstance(self._policy.model, nn.Module):
            sent = ValueError("the weights that the update starts from are not known: put a GlobalModelFilter into "
                              "task_data_filters, or give the policy the model itself")  # fmt: skip
        facts = {"is_difference": True} if dxo.data_kind == DataKind.WEIGHT_DIFF else {}
        self._note(dxo, self._checked(sent, dict(dxo.data), path, shareable, fl_ctx, **facts), fl_ctx)
        dxo.add_filter_history(type(self).__name__)

    def _checked(self, sent: Any, after: Any, path: str, shareable: Any, fl_ctx: Any, **facts: Any) -> Checked:
        number = next((value for value in map(shareable.get_header, ROUNDS) if value is not None), 0)
        client = fl_ctx.get_identity_name() or "client"
        server_round = int(number) if str(number).isdigit() else 0
        return self._policy.check(sent, after, client=client, server_round=server_round, record=path, **facts)

    def _note(self, dxo: DXO, checked: Checked, fl_ctx: Any) -> None:
        """Say what came of the audit in a DXO, and empty its data where they are held."""
        if checked.is_blocked:
            dxo.data = {}
            self.log_warning(fl_ctx, f"update blocked by the leak audit: {checked.reason}")
        dxo.set_meta_prop("leak_audit", checked.reason)


def _emptied(shareable: Any) -> None:
    """Take all out of a result but its headers; what was a DXO is one without data."""
    had_dxo = CONTENT in shareable
    for key in [key for key in shareable if key != HEADERS]:
        del shareable[key]
    if had_dxo:
        DXO(DataKind.WEIGHTS, data={}).update_shareable(shareable)


def _holds_arrays(value: Any) -> bool:
    """Return whether there is anything but single numbers and words in it, by name or in lists of words."""
    if isinstance(value, Mapping):
        return any(_holds_arrays(part) for part in value.values())
    if isinstance(value, list | tuple):
        return any(not isinstance(part, str) for part in value)
    return not (value is None or isinstance(value, str | Number | np.number | np.bool_))


def _word(kind: Any) -> str:
    return str(getattr(kind, "value", kind))


def _resolved(policy: LeakPolicy | str) -> LeakPolicy:
    """Return the policy itself, or that which a path names."""
    if isinstance(policy, str):
        policy = load_object(policy, "policy")
        policy = policy() if callable(policy) else policy
    if not isinstance(policy, LeakPolicy):
        raise TypeError(f"policy must be a LeakPolicy or a path to one, got {type(policy).__name__}")
    return policy
