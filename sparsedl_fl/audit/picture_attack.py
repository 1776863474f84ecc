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
from sparsedl_fl.propagate.pictures import RecoveredPictures, recover_pictures
from sparsedl_fl.theory import Attack
from sparsedl_fl.wording import argument

__all__ = ["pictures_behind", "source_of_pictures", "why_no_pictures"]


def source_of_pictures(subject: Subject, found: Mapping[str, LayerAudit]) -> LayerAudit | None:
    """Return the layer nearest to the input with certified features, one row for each picture."""
    for use in subject.trace.layers:
        layer, is_alone = found.get(use.name), use.rows == 1 and subject.trace.n_uses(use.name) == 1
        if is_alone and layer is not None and layer.n_certified:
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
        why_not = "pictures follow from features, and no features of a linear layer were certified"
    elif subject.learning_rate is not None:
        why_not = why_not or "not tried: the convolutions changed between the client's local steps"
    if why_not or layer is None or example is None:
        return LayerAudit.closed(row, why_not)
    start = time.perf_counter()
    report(f"pictures in front of layer '{layer.name}': {row.behind}")
    batch = layer.batch
    assert batch is not None  # it has certified features
    try:
        pictures = _recovered(subject, layer, batch, tuple(example.shape[1:]))
    except (ValueError, RuntimeError) as error:
        return LayerAudit.closed(row, f"features were recovered, and pictures not: {error}")
    known = _among(batch, pictures)
    source = f"through the convolutions from layer '{layer.name}'"
    seconds, why_open = time.perf_counter() - start, "" if known.is_whole else str(pictures)
    fed = replace(row, feeds=FED_THE_INPUT)
    return LayerAudit(row.name, None, str(pictures), fed, known, source, seconds, why_open=why_open)


def _recovered(subject: Subject, layer: LayerAudit, batch: KnownBatch, shape: tuple[int, ...]) -> RecoveredPictures:
    """Go from certified features to pictures; the convolutions' gradients prove those of a whole batch."""
    weight = subject.layer_gradient(layer.name).weight.astype(np.float64)
    return recover_pictures(
        subject.model,
        layer.name,
        batch.inputs[batch.certified],
        batch.errors[batch.certified],
        shape,
        sent_back=batch.gradients.T @ weight if batch.is_whole else None,
        gradients=subject.gradients,
        noise=1e-6 if layer.inverter is None else max(1e-6, layer.inverter.relative_residual_),
        max_rounds=0,  # what features leave open takes minutes a picture
    )


def _among(features: KnownBatch, pictures: RecoveredPictures) -> KnownBatch:
    """Return pictures as a batch in the order of the features; one whose features are not certified is empty."""
    b, was = len(features.inputs), features.certified
    inputs, errors, certified = np.zeros((b, pictures.n_unknowns)), np.full(b, np.inf), np.full(b, False)
    inputs[was] = pictures.pictures.reshape(-1, pictures.n_unknowns)
    errors[was], certified[was] = pictures.errors, pictures.certified
    return KnownBatch(inputs, np.zeros((0, b)), errors, certified, features.labels)
