"""The report of an audit: one self-contained page, and JSON.

`SECTIONS` in `page.py` lists the chapters. A new one is a template and a line there::

    <!-- sections/clients.html; `report` is what `as_dict` returns -->
    <p>The update of {{ report.batch_size }} records.</p>

    SECTIONS = {..., "clients": "What the clients were sent"}

Templates show what `as_dict` in `data.py` returns: a new fact is an entry there and in `schema.json`. `samples` has the
recovered records, `sweep` the defences. The style sheet is at the top of `page.html`; `OPEN` lists the chapters that
are not folded away.
"""

from sparsedl_fl.audit.report.data import SCHEMA_VERSION, as_dict, as_json, schema
from sparsedl_fl.audit.report.page import SECTIONS, as_html, as_table, plot_layers

__all__ = ["SCHEMA_VERSION", "SECTIONS", "as_dict", "as_html", "as_json", "as_table", "plot_layers", "schema"]
