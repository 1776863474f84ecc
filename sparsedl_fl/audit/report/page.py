"""The page: chapters from templates, everything inline, no script."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from importlib.resources import files
from typing import Any

import numpy as np

from sparsedl_fl.audit.facts import AuditFacts
from sparsedl_fl.audit.findings import LayerAudit
from sparsedl_fl.audit.report.data import as_dict
from sparsedl_fl.audit.report.samples import shown_samples
from sparsedl_fl.audit.verdicts import Verdict
from sparsedl_fl.models.reach import LEAKS_BY
from sparsedl_fl.wording import escaped

__all__ = ["SECTIONS", "as_html", "as_table"]

SECTIONS = {
    "summary": "Summary and verdict",
    "scope": "Scope and system",
    "threat": "Threat model",
    "seen": "What the server saw",
    "recovered": "What was recovered",
    "tokens": "Which tokens the batch holds",
    "untested": "What was not tested, and why",
    "defences": "Defences and their measured effect",
    "privacy": "Statement on differential privacy",
    "residual": "Residual risk and treatment",
    "reproducibility": "Reproducibility",
}
"""Chapters in their order, each a template in ``sections/``. After ISO/IEC 29134, ICO's steps of a data protection
impact assessment, and NIST AI 100-2."""


OPEN = ("summary", "recovered")
"""Chapters that are not folded away: what somebody who signs reads."""


def as_html(
    result: AuditFacts,
    *,
    show_samples: bool = False,
    decoder: Any = None,
    sweep: Any = None,
    vocabulary: Mapping[int, str] | None = None,
    title: str = "",
) -> str:
    """Return a report as one self-contained page (see `AuditFacts.to_html`)."""
    try:
        from jinja2 import Environment, FunctionLoader, StrictUndefined
    except ImportError as error:
        raise ImportError("the report is a page made with Jinja2: pip install 'sparsedl[audit]'") from error
    folder = files("sparsedl_fl.audit.report")
    environment = Environment(
        loader=FunctionLoader(lambda name: folder.joinpath(*name.split("/")).read_text(encoding="utf-8")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    environment.filters["number"] = _number
    return environment.get_template("page.html").render(
        title=title or "Audit of a federated-learning update",
        report=as_dict(result, show_samples),
        sections=SECTIONS,
        unfolded=OPEN,
        leaks_by=LEAKS_BY,
        vocabulary=vocabulary or {},
        samples=shown_samples(result, decoder) if show_samples else None,
        sweep=None if sweep is None else sweep.to_dict(),
    )


def as_table(result: AuditFacts) -> str:
    """Return a short table of the layers, for notebooks."""
    rows = "".join(
        f"<tr><td>{_text(layer.name)}</td><td>{_text(layer.what)}</td><td><b>{layer.verdict}</b></td>"
        f"<td>{_text('' if layer.verdict is Verdict.OUT_OF_RANGE else layer.count)}</td>"
        f"<td>{_number(layer.worst_error)}</td><td>{_text(_how(layer))}</td></tr>"
        for layer in result.layers
    )
    return (
        f"<p><b>{result.verdict}</b>: {_text(result.reason)}</p><table><tr><th>layer</th><th>what it is fed</th>"
        f"<th>verdict</th><th>certified</th><th>expected error</th><th>how, or why not</th></tr>{rows}</table>"
    )


def _how(layer: LayerAudit) -> str:
    """Return where what came back comes from; of a layer without a conclusion, why there is none."""
    why = layer.why_open or layer.reason if layer.verdict is Verdict.OUT_OF_RANGE else ""
    return why or layer.source or layer.reason


def _text(text: str) -> str:
    return escape(escaped(text))


def _shown(value: Any) -> Any:
    """Return what a template writes, without characters that are not shown; pages' own parts stay as they are."""
    return escaped(value) if type(value) is str else value


def _number(value: float | None, digits: int = 2) -> str:
    """Return a number as people write it; a dash where there is none."""
    if value is None or not np.isfinite(value):
        return "–"
    if value == int(value) and abs(value) < 1e6:
        return str(int(value))
    return f"{value:.{digits}g}"
