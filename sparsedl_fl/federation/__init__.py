"""Audit during training: every update of every client is reported, warned of, or blocked.

- `check_update` is the client's own check, for any framework: the model, before and after.
- `LeakPolicy` says what counts as a leak and what happens then; `RoundTable` keeps the results by client and round.
- `sparsedl_fl.federation.flower`: `LeakAuditMod` on the client, `LeakAuditStrategy` around a server's strategy.
- `sparsedl_fl.federation.nvflare`: `LeakAuditFilter`, for a client's results.
- `sparsedl_fl.federation.opacus`: `audit_steps`, for what leaves a private optimiser.

`FRAMEWORKS` lists the last three. A new one is a file here, an extra in ``pyproject.toml``, and an entry there. It
pairs the weights sent to a client with its reply, and leaves everything else to `LeakPolicy`::

    with installs("sparsedl_fl.federation.fedml needs FedML", "fedml"):
        import fedml

    def audited(policy: LeakPolicy, sent: dict, reply: fedml.Reply, server_round: int) -> fedml.Reply | None:
        checked = policy.check(sent, reply.weights, client=reply.client, server_round=server_round)
        return None if checked.is_blocked else reply

A reply that cannot be read goes to `LeakPolicy.check` as the exception that it raised: the check fails closed.
"""

from sparsedl_fl.federation.checking import check_update
from sparsedl_fl.federation.outcome import Checked, Finding
from sparsedl_fl.federation.policy import LeakPolicy, LeakWarning
from sparsedl_fl.federation.round_table import RoundTable

FRAMEWORKS = {"flower": "flower", "nvflare": "nvflare", "opacus": "dp"}
"""Modules here, each with the extra of ``pyproject.toml`` that it needs."""

__all__ = ["FRAMEWORKS", "Checked", "Finding", "LeakPolicy", "LeakWarning", "RoundTable", "check_update"]
