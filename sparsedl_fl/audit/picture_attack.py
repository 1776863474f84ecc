"""From the features of a convolutional model, recovered whole, to the pictures that it was fed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from sparsedl_fl.audit.findings import FED_THE_INPUT, LayerAudit
from sparsedl_fl.audit.subject import Subject
from sparsedl_fl.models import LayerRow
from sparsedl_fl.propagate.backward import KnownBatch
from sparsedl_fl.propagate.pictures import recover_pictures
from sparsedl_fl.theory import Attack
from sparsedl_fl.wording import argument

__all__ = ["pictures_behind", "source_of_pictures", "why_no_pictures"]


def source_of_pictures(subject: Subject, found: Mapping[str, LayerAudit]) -> LayerAudit | None:
    """Return the layer nearest to the input whose whole batch of features is certified, one row for each picture."""
    for use in subject.trace.layers:
        layer = found.get(use.name)
        is_alone = use.rows == 1 and subject.trace.n_uses(use.name) == 1
        if is_alone and layer is not None and layer.batch is not None and layer.batch.is_whole:
            return layer
    return None


def why_no_pictures(pictures: bool | None, peel: bool, *caps: float | None) -> str:
    """Return why an audit does not go from features to pictures, or an empty text."""
    if pictures is None and any(cap is not None for cap in caps):
        return f"not tried: the audit has a cap, and pictures take seconds each; pass {argument('pictures')}"
    return "" if peel and pictures in (None, True) else "not tried: it was switched off"


def pictures_behind(
    subject: Subject,
    rows: Mapping[str, LayerRow],
    found: Mapping[str, LayerAudit],
    why_not: str,
    report: Callable[[str], None],
) -> dict[str, LayerAudit]:
    """Go from features to pictures, where the model has convolutions; ``why_not`` says why it is not to be done."""
    wanted = [row for row in rows.values() if row.attack is Attack.PICTURES]
    return {row.name: _attacked(subject, row, found, why_not, report) for row in wanted}


def _attacked(
    subject: Subject, row: LayerRow, found: Mapping[str, LayerAudit], why_not: str, report: Callable[[str], None]
) -> LayerAudit:
    """Return what the convolutions of a model are fed, or the reason where nothing was tried."""
    layer, example = source_of_pictures(subject, found), subject.trace.example
    if layer is None:
        why_not = "pictures follow from features, and no linear layer's whole batch of features was recovered"
    elif subject.learning_rate is not None:
        why_not = why_not or "not tried: the convolutions changed between the client's local steps"
    if why_not or layer is None or example is None:
        return LayerAudit.closed(row, why_not)
    start = time.perf_counter()
    report(f"pictures in front of layer '{layer.name}': {row.behind}")
    weight, batch = subject.layer_gradient(layer.name).weight, layer.batch
    noise = 1e-6 if layer.inverter is None else max(1e-6, layer.inverter.relative_residual_)
    try:
        pictures = recover_pictures(
            subject.model, layer.name, batch.inputs, batch.errors, tuple(example.shape[1:]),
            sent_back=batch.gradients.T @ weight.astype(np.float64), gradients=subject.gradients,
            noise=noise, max_rounds=0,  # what features leave open takes minutes a picture
        )  # fmt: skip
    except (ValueError, RuntimeError) as error:
        return LayerAudit.closed(row, f"features were recovered, and pictures not: {error}")
    b = len(pictures.pictures)
    known = KnownBatch(
        pictures.pictures.reshape(b, -1), np.zeros((0, b)), pictures.errors, pictures.certified, batch.labels
    )
    source = f"through the convolutions from layer '{layer.name}'"
    seconds, why_open = time.perf_counter() - start, "" if pictures.certified.all() else str(pictures)
    fed = replace(row, feeds=FED_THE_INPUT)
    return LayerAudit(row.name, None, str(pictures), fed, known, source, seconds, why_open=why_open)
