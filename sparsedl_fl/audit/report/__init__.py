"""The report of an audit: one self-contained page, and JSON.

A chapter is a template in `sections/` and a place in `SECTIONS`; what it may say is in `data.py`, what was recovered in
`samples.py`, look and print in `page.html`.
"""

from sparsedl_fl.audit.report.data import SCHEMA_VERSION, as_dict, as_json, schema
from sparsedl_fl.audit.report.drawing import plot_layers
from sparsedl_fl.audit.report.page import SECTIONS, as_html, as_table

__all__ = ["SCHEMA_VERSION", "SECTIONS", "as_dict", "as_html", "as_json", "as_table", "plot_layers", "schema"]
