"""What was recovered, as people look at it: pictures, rows of a table, or numbers."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from typing import Any

import numpy as np

from sparsedl_fl.audit.facts import AuditFacts
from sparsedl_fl.audit.findings import Sample
from sparsedl_fl.certify.labels import NO_LABEL
from sparsedl_fl.tabular import decode_table

__all__ = ["shown_samples"]

MOST_SHOWN = 48
"""Samples in a report; the JSON has all of them."""

FIRST = 12
"""Numbers of a plain vector that are shown."""


def shown_samples(result: AuditFacts, decoder: Any = None) -> dict[str, Any]:
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
    is_input = samples[0].kind == "inputs of the model"
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
    rows = [
        {"first": [f"{value:.4g}" for value in row[:FIRST]], "mean": row.mean(), "low": row.min(), "high": row.max()}
        for row in values
    ]
    return {"kind": "numbers", "rows": rows, "length": values.shape[1], "captions": captions, **common}


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
    try:
        from matplotlib.image import imsave
    except ImportError as error:
        raise ImportError("pictures in a report need matplotlib: pip install 'sparsedl[audit]'") from error
    image = np.clip(np.nan_to_num(image), 0, 1)
    image = image[..., 0] if image.ndim == 3 and image.shape[-1] == 1 else image
    target = io.BytesIO()
    imsave(target, image, format="png", **({"cmap": "gray", "vmin": 0, "vmax": 1} if image.ndim == 2 else {}))
    return "data:image/png;base64," + base64.b64encode(target.getvalue()).decode()
