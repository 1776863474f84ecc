"""The tables and figures of SPEAR and SPEAR++: run again, summarised, and drawn.

>>> from sparsedl_fl.reproduce import TABLES
>>> TABLES["spearpp-table1"].title
'SPEAR++ Table 1: surrogates, with Riemannian Adam'

Where things are: `tables` says what a table holds, `experiments` how a row is drawn and measured, `clients` what a
client sends, `methods` which attacks are compared, `published` what the papers print; `runner` runs, `summary` and
`figures` show.
"""

from sparsedl_fl.reproduce.figures import write_figure
from sparsedl_fl.reproduce.methods import Budget
from sparsedl_fl.reproduce.runner import read_records, reproduce
from sparsedl_fl.reproduce.summary import summarize, write_summary
from sparsedl_fl.reproduce.tables import TABLES

__all__ = ["TABLES", "Budget", "read_records", "reproduce", "summarize", "write_figure", "write_summary"]
