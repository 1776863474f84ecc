"""Sweep defences: simulated clients at settings of each, audited until nothing is recovered.

- `settings.py`: what is tried, `default_settings` and the `STOCK` settings of frameworks; a new one is a line there.
- `clients.py`: the records that clients have, made up where the user has none.
- `records.py`: what is on file already, and whether it may be trusted.
- `running.py`: `sweep`, which simulates, audits and compares with the truth.
- `cost.py`: what a setting costs in accuracy, and its epsilon.
- `result.py`: the table and the picture.
"""

from sparsedl_fl.audit.sweeping.result import SweepResult, SweepRow
from sparsedl_fl.audit.sweeping.running import sweep
from sparsedl_fl.audit.sweeping.settings import STOCK, Setting, default_settings

__all__ = ["STOCK", "Setting", "SweepResult", "SweepRow", "default_settings", "sweep"]
