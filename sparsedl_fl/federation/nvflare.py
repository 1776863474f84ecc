"""NVFLARE: a filter that audits a client's results, and one that remembers what they started from."""

from __future__ import annotations

from typing import Any

from sparsedl_fl.federation.policy import LeakPolicy

try:
    from nvflare.apis.dxo import DXO, DataKind
    from nvflare.apis.dxo_filter import DXOFilter
except ImportError as error:
    raise ImportError("sparsedl_fl.federation.nvflare needs NVFLARE: pip install 'sparsedl[nvflare]'") from error

__all__ = ["GlobalModelFilter", "LeakAuditFilter"]

SENT = "sparsedl_fl.sent"
"""Under which name the global model of a round is kept in the context."""

ROUNDS = ("current_round", "contribution_round")
"""Headers that say which round it is."""


class GlobalModelFilter(DXOFilter):
    """Remembers the global model that a task brings; goes into ``task_data_filters``."""

    def __init__(self) -> None:
        super().__init__(supported_data_kinds=[DataKind.WEIGHTS], data_kinds_to_filter=None)

    def process_dxo(self, dxo: DXO, shareable: Any, fl_ctx: Any) -> DXO | None:
        """Keep the weights in the context, and change nothing."""
        fl_ctx.set_prop(SENT, dict(dxo.data), private=True, sticky=True)
        return None


class LeakAuditFilter(DXOFilter):
    """Audits what a client sends back; goes last into ``task_result_filters``, behind what hides or cuts numbers.

    It takes weights and differences of weights. For differences, and to tell what the weights started from, it needs
    the global model: put a `GlobalModelFilter` into ``task_data_filters``, or let the model of the policy have these
    weights. In the mode "block" the data of an update that leaks are emptied, as NVFLARE's own example of a gate does.

    Parameters
    ----------
    policy : LeakPolicy
        What is audited and how. In a job's configuration it may be the path ``package.module:name`` of one, or of a
        function that makes one.
    """

    def __init__(self, policy: LeakPolicy | str) -> None:
        super().__init__(supported_data_kinds=[DataKind.WEIGHTS, DataKind.WEIGHT_DIFF], data_kinds_to_filter=None)
        self.policy = policy  # as it was given: a job is written down by its components' arguments
        self._policy = _resolved(policy)

    def process_dxo(self, dxo: DXO, shareable: Any, fl_ctx: Any) -> DXO | None:
        """Audit, and empty the data of an update that is blocked."""
        sent = fl_ctx.get_prop(SENT)
        client = fl_ctx.get_identity_name() or "client"
        number = next((value for value in map(shareable.get_header, ROUNDS) if value is not None), 0)
        is_difference = dxo.data_kind == DataKind.WEIGHT_DIFF
        checked = self._policy.check(
            sent, dict(dxo.data), client=client, server_round=int(number), is_difference=is_difference
        )
        dxo.set_meta_prop("leak_audit", checked.reason)
        if checked.is_blocked:
            self.log_warning(fl_ctx, f"update blocked by the leak audit: {checked.reason}")
            dxo.data = {}
        return dxo


def _resolved(policy: LeakPolicy | str) -> LeakPolicy:
    """Return the policy itself, or that which a path names."""
    found = policy
    if isinstance(policy, str):
        from sparsedl_fl.audit.files import load_object

        named = load_object(policy, "policy")
        found = named() if callable(named) else named
    if not isinstance(found, LeakPolicy):
        raise TypeError(f"policy must be a LeakPolicy or a path to one, got {type(found).__name__}")
    return found
