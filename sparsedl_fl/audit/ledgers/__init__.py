"""The ledger of several rounds: what each update leaked, and how many different records all of them did.

- `distinct_records.py` compares records of two rounds within their errors.
- `ledger_rows.py` reads a row from a report.
- `possible_clients.py` says whose a record can be, where sums of clients were audited.
- `ledger_totals.py`: `ledger`, with the totals, as a table, as JSON and as a page.
"""

from sparsedl_fl.audit.ledgers.ledger_rows import LedgerRow
from sparsedl_fl.audit.ledgers.ledger_totals import Ledger, ledger

__all__ = ["Ledger", "LedgerRow", "ledger"]
