"""An audit as a page (recovered records as pictures, rows of a table or numbers), as a short table, as a picture.

The page is made of chapters from templates, with everything inline and no script.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from typing import Any

import numpy as np

from sparsedl_fl.audit.facts import AuditFacts
from sparsedl_fl.audit.findings import Fed, Sample, Verdict
from sparsedl_fl.audit.report.data import as_dict
from sparsedl_fl.audit.text import Sentence
from sparsedl_fl.certify.labels import NO_LABEL
from sparsedl_fl.models.reach import LEAKS_BY
from sparsedl_fl.tabular import decode_table
from sparsedl_fl.wording import escaped, installs

__all__ = ["SECTIONS", "as_html", "as_table", "plot_layers"]

SECTIONS = {
    "summary": "Summary and verdict",
    "statement": "Risk statement: measured, declared, not looked at",
    "scope": "Scope and system",
    "threat": "Threat model",
    "seen": "What the server saw",
    "recovered": "What was recovered",
    "tokens": "Which texts and tokens the batch holds",
    "members": "Which given records were trained on",
    "untested": "What was not tested, and why",
    "defences": "Defences and their measured effect",
    "privacy": "Statement on differential privacy",
    "residual": "Residual risk and treatment",
    "reproducibility": "Reproducibility",
    "clauses": "Appendix: clauses, and the evidence towards each",
}
"""Chapters in their order, each a template in ``sections/``. After ISO/IEC 29134, ICO's steps of a data protection
impact assessment, and NIST AI 100-2."""

OPEN = ("summary", "statement", "recovered")
"""Chapters that are not folded away."""

MOST_SHOWN = 48
"""Samples in a report; the JSON has all of them."""

FIRST = 12
"""Numbers of a plain vector that are shown."""


def as_html(
    result: AuditFacts,
    *,
    show_samples: bool = False,
    decoder: Any = None,
    sweep: Any = None,
    vocabulary: Mapping[int, str] | None = None,
) -> str:
    """Return a report as one self-contained page (see `AuditFacts.to_html`)."""
    with installs("the report is a page made with Jinja2", "audit"):
        from jinja2 import Environment, FunctionLoader, StrictUndefined
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
        title="Audit of a federated-learning update",
        report=as_dict(result, show_samples),
        sections=SECTIONS,
        unfolded=OPEN,
        leaks_by=LEAKS_BY,
        vocabulary=vocabulary or {},
        words=lambda tokens: Sentence(tuple(tokens)).in_words(vocabulary or {}),
        samples=_shown_samples(result, decoder) if show_samples else None,
        sweep=None if sweep is None else sweep.to_dict(),
    )


def as_table(result: AuditFacts) -> str:
    """Return a short table of the layers, for notebooks."""
    rows = "".join(
        f"<tr><td>{_text(layer.name)}</td><td>{_text(layer.what)}</td><td><b>{layer.verdict}</b></td>"
        f"<td>{_text('' if layer.verdict is Verdict.OUT_OF_RANGE else layer.count)}</td>"
        f"<td>{_number(layer.worst_error)}</td><td>{_text(layer.how)}</td></tr>"
        for layer in result.layers
    )
    return (
        f"<p><b>{result.verdict}</b>: {_text(result.reason)}</p><table><tr><th>layer</th><th>what it is fed</th>"
        f"<th>verdict</th><th>certified</th><th>expected error</th><th>how, or why not</th></tr>{rows}</table>"
    )


def _text(text: str) -> str:
    return escape(escaped(text))


def _shown(value: Any) -> Any:
    """Return text without invisible characters, for a template; markup of the page itself stays as it is."""
    return escaped(value) if type(value) is str else value


def _number(value: float | None, digits: int = 2) -> str:
    """Return a number in few digits; a dash where there is none."""
    if value is None or not np.isfinite(value):
        return "–"
    if value == int(value) and abs(value) < 1e6:
        return str(int(value))
    return f"{value:.{digits}g}"


def _shown_samples(result: AuditFacts, decoder: Any = None) -> dict[str, Any]:
    """Return what the chapter on recovered samples shows: ``kind`` is "images", "table", "numbers" or "nothing".

    Parameters
    ----------
    result : AuditFacts
        The audit.
    decoder : callable or fitted sklearn.compose.ColumnTransformer, default=None
        As of `AuditFacts.to_html`.
    """
    samples = result.samples[:MOST_SHOWN]
    if not samples:
        return {"kind": "nothing", "n_left_out": 0}
    values = np.stack([sample.values for sample in samples])
    is_input = samples[0].kind is Fed.INPUTS
    decoded = _decoded(values, decoder) if decoder is not None and is_input else None
    if decoded is None and decoder is None and is_input:
        decoded = _as_images(values, result.input_shape)
    common = {"n_left_out": len(result.samples) - len(samples), "what": samples[0].kind, "layer": samples[0].layer}
    captions = [_caption(sample) for sample in samples]
    if isinstance(decoded, Mapping):
        columns = {str(name): [str(value) for value in np.asarray(column)] for name, column in decoded.items()}
        rows = [[column[i] for column in columns.values()] for i in range(len(samples))]
        return {"kind": "table", "columns": list(columns), "rows": rows, "captions": captions, **common}
    if decoded is not None:
        return {"kind": "images", "pictures": [_png(image) for image in decoded], "captions": captions, **common}
    shown = [
        {"first": [f"{value:.4g}" for value in row[:FIRST]], "mean": row.mean(), "low": row.min(), "high": row.max()}
        for row in values
    ]
    return {"kind": "numbers", "rows": shown, "length": values.shape[1], "captions": captions, **common}


def _caption(sample: Sample) -> str:
    label = "" if sample.label == NO_LABEL else f"label {sample.label}, "
    return f"{label}±{sample.error:.1g}"


def _decoded(values: np.ndarray, decoder: Any) -> Any:
    """Return what a decoder makes of the values: a mapping of columns, or images."""
    found = decode_table(decoder, values) if hasattr(decoder, "transformers_") else decoder(values)
    if isinstance(found, Mapping):
        return found
    images = np.asarray(found, dtype=np.float64)
    if images.ndim not in (3, 4) or len(images) != len(values):
        raise ValueError(
            "decoder must return a mapping of column names to columns, or images of shape (k, height, width[, 3]), "
            f"got shape {images.shape} for {len(values)} samples"
        )
    return images


def _as_images(values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
    """Return values as images where the model's input has the shape of one, each stretched to [0, 1]."""
    if len(shape) != 3 or shape[0] not in (1, 3) or values.shape[1] != np.prod(shape):
        return None
    images = values.reshape(-1, *shape).transpose(0, 2, 3, 1)
    low, high = (edge(images, axis=(1, 2, 3), keepdims=True) for edge in (np.min, np.max))
    return (images - low) / np.maximum(high - low, np.finfo(float).tiny)


def _png(image: np.ndarray) -> str:
    """Return an image in [0, 1] as a data address."""
    with installs("pictures in a report need matplotlib", "audit"):
        from matplotlib.image import imsave
    image = np.clip(np.nan_to_num(image), 0, 1)
    image = image[..., 0] if image.ndim == 3 and image.shape[-1] == 1 else image
    target = io.BytesIO()
    shades: dict[str, Any] = {"cmap": "gray", "vmin": 0, "vmax": 1} if image.ndim == 2 else {}
    imsave(target, image, format="png", **shades)
    return "data:image/png;base64," + base64.b64encode(target.getvalue()).decode()


def plot_layers(result: AuditFacts, axes: Any = None) -> Any:
    """Draw how much of its batch each layer leaks, on matplotlib axes; returns these."""
    with installs("plot needs matplotlib", "audit"):
        from matplotlib.figure import Figure
    layers = [layer for layer in result.layers if layer.n_inputs]
    if axes is None:
        axes = Figure(figsize=(6, 0.4 * len(layers) + 1.2), layout="constrained").subplots()
    names = [f"{layer.name}\n{layer.what}" for layer in layers]
    axes.barh(names, [layer.n_inputs for layer in layers], color="0.85", label="in the gradient")
    axes.barh(names, [layer.n_certified for layer in layers], color="tab:red", label="recovered, certified")
    axes.invert_yaxis()
    axes.set_xlabel("inputs of the layer")
    axes.set_title(str(result.verdict))
    axes.legend(loc="lower right", frameon=False, fontsize="small")
    return axes
