"""The report of an audit: one self-contained page, and JSON.

`SECTIONS` in `page.py` lists the chapters. A new one is a template and a line there::

    <!-- sections/clients.html; `report` is what `as_dict` returns -->
    <p>The update of {{ report.batch_size }} records.</p>

    SECTIONS = {..., "clients": "What the clients were told"}

What a template may say is in `data.py`: a new fact is an entry of `as_dict` there and of `schema.json`, which reports
are held against. `samples` has what was recovered, `sweep` the defences. Look and print are in `page.html`, in the
style sheet at its top; `OPEN` says which chapters are not folded away.
"""

from sparsedl_fl.audit.report.data import SCHEMA_VERSION, as_dict, as_json, schema
from sparsedl_fl.audit.report.page import SECTIONS, as_html, as_table, plot_layers

__all__ = ["SCHEMA_VERSION", "SECTIONS", "as_dict", "as_html", "as_json", "as_table", "plot_layers", "schema"]
