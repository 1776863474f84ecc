"""Audit where training happens: every update of every client, reported, warned of, or blocked.

- `check_update` is the client's own check, for any framework: the model, before and after.
- `LeakPolicy` says what counts as a leak and what happens then; `RoundTable` keeps what was found by client and round.
- `sparsedl_fl.federation.flower`: `LeakAuditMod` on the client, `LeakAuditStrategy` around a server's strategy.
- `sparsedl_fl.federation.nvflare`: `LeakAuditFilter`, for a client's results.
- `sparsedl_fl.federation.opacus`: `audit_steps`, for what leaves a private optimiser.

A framework is one file, which pairs what was sent with what came back and leaves the rest to `LeakPolicy`.
"""

from sparsedl_fl.federation.checked import Checked, Finding
from sparsedl_fl.federation.checking import check_update
from sparsedl_fl.federation.policy import LeakPolicy, LeakWarning
from sparsedl_fl.federation.rounds import RoundTable

__all__ = ["Checked", "Finding", "LeakPolicy", "LeakWarning", "RoundTable", "check_update"]
