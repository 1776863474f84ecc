"""Sweep defences: simulated clients at settings of each, audited until nothing is recovered.

- `defences.py`: what is tried, `default_settings` and the `STOCK` settings of frameworks; a new one is a line there.
- `sweep_clients.py`: the records that clients have, made up where the user has none; what a setting costs in
  accuracy, and its epsilon.
- `records_on_file.py`: what is on file already, and whether it may be trusted.
- `running.py`: `sweep`, which simulates, audits and compares with the truth.
- `sweep_result.py`: the table and the picture.
"""

from sparsedl_fl.audit.sweeping.defences import STOCK, Setting, default_settings
from sparsedl_fl.audit.sweeping.running import sweep
from sparsedl_fl.audit.sweeping.sweep_result import SweepResult, SweepRow

__all__ = ["STOCK", "Setting", "SweepResult", "SweepRow", "default_settings", "sweep"]
