"""Audit what one update gives away: attack a whole model, conclude, report, and sweep defences.

- `audit_model` attacks the layer with most room, goes on to the others from it, and replays the client; `attack.py`.
- `AuditResult` is what it returns, with a `Verdict` for each layer and the whole; `result.py`, `findings.py`.
- `report/` writes it as a page and as JSON, one file a chapter.
- `ledger` sums the audits of several rounds up, each different record once; `ledgers/`.
- `members` tests whether given records were trained on; `make_canaries` draws some to train on; `membership/`.
- `recover_text` reads texts with their tokens in order; `text/`.
- `sweep` runs simulated clients over settings of a defence until nothing is recovered; `sweeping/`.
- `load_model` and `load_update` read what users have on disk; `files/`.
"""

from sparsedl_fl.audit.attack import audit_model, out_of_range
from sparsedl_fl.audit.findings import Verdict
from sparsedl_fl.audit.ledgers import Ledger, LedgerRow, ledger
from sparsedl_fl.audit.membership import Membership, make_canaries, members
from sparsedl_fl.audit.result import AuditResult, LayerAudit, LikelySample, Sample
from sparsedl_fl.audit.sweeping import STOCK, Setting, SweepResult, SweepRow, default_settings, sweep
from sparsedl_fl.audit.text import Sentence, Text, recover_text

__all__ = [
    "STOCK",
    "AuditResult",
    "LayerAudit",
    "Ledger",
    "LedgerRow",
    "LikelySample",
    "Membership",
    "Sample",
    "Sentence",
    "Setting",
    "SweepResult",
    "SweepRow",
    "Text",
    "Verdict",
    "audit_model",
    "default_settings",
    "ledger",
    "make_canaries",
    "members",
    "out_of_range",
    "recover_text",
    "sweep",
]
