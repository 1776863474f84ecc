"""The tables and figures of SPEAR and SPEAR++, and ours: run again, summarised, and drawn.

    python examples/paper/run.py spearpp-table1

Where things are: `tables` says what a table holds, `experiments` how a row is drawn and measured, `clients` what a
client sends, `methods` which attacks are compared, `published` what the papers print; `runner` runs, `summary` and
`figures` show; `models` are the networks.
"""

from paper.figures import write_figure
from paper.methods import Budget
from paper.runner import read_records, reproduce
from paper.summary import summarize, write_summary
from paper.tables import TABLES

__all__ = ["TABLES", "Budget", "read_records", "reproduce", "summarize", "write_figure", "write_summary"]
