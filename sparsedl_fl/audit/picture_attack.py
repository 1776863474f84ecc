"""From the features of a convolutional model, recovered whole, to the pictures that it was fed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from sparsedl_fl.audit.findings import FED_THE_INPUT, LayerAudit
from sparsedl_fl.audit.subject import Subject
from sparsedl_fl.layers.layer_gradient import LayerGradient
from sparsedl_fl.models import LayerRow
from sparsedl_fl.propagate.backward import KnownBatch
from sparsedl_fl.propagate.pictures import RecoveredPictures, recover_pictures
from sparsedl_fl.theory import Attack
from sparsedl_fl.wording import argument

__all__ = ["pictures_behind", "source_of_pictures", "why_no_pictures"]


LEAST_NOISE = 1e-6
"""Share of the gradients that is noise at least: that of single precision."""

MOST_ROUNDS = 80
"""Rounds of a fit to features and gradients together at most: a picture of CIFAR-10 took 47 (`pictures.lifting`)."""


def source_of_pictures(subject: Subject, found: Mapping[str, LayerAudit]) -> LayerAudit | None:
    """Return the layer nearest to the input with certified features, one row for each picture."""
    for use in subject.trace.layers:
        layer, is_alone = found.get(use.name), use.rows == 1 and subject.trace.n_uses(use.name) == 1
        if is_alone and layer is not None and layer.n_certified:
            return layer
    return None


def why_no_pictures(pictures: bool | None, peel: bool, *caps: float | None) -> dict[Attack, str]:
    """Return why an audit does not go from features to pictures, by attack; an empty text where it does."""
    ask = f"pass {argument('pictures')}"
    why = "" if peel and pictures in (None, True) else "not tried: it was switched off"
    if pictures is None and any(cap is not None for cap in caps):
        why = f"not tried: the audit has a cap, and pictures take seconds each; {ask}"
    slow = f"not tried: with the gradients of the convolutions, pictures take minutes to an hour each; {ask}"
    return {Attack.PICTURES: why, Attack.JOINT_PICTURES: why or ("" if pictures else slow)}


def pictures_behind(
    subject: Subject,
    rows: Mapping[str, LayerRow],
    found: Mapping[str, LayerAudit],
    why_not: Mapping[Attack, str],
    report: Callable[[str], None],
) -> dict[str, LayerAudit]:
    """Go from features to pictures, where the model has convolutions; ``why_not`` says why it is not to be done."""
    wanted = [row for row in rows.values() if row.attack.gives_pictures]
    return {row.name: _attacked(subject, row, found, why_not[row.attack], report) for row in wanted}


def _attacked(
    subject: Subject, row: LayerRow, found: Mapping[str, LayerAudit], why_not: str, report: Callable[[str], None]
) -> LayerAudit:
    """Return what the convolutions of a model are fed, or the reason where nothing was tried."""
    layer, example = source_of_pictures(subject, found), subject.trace.example
    batch = None if layer is None else layer.batch
    if layer is None or batch is None:
        why_not = "pictures follow from features, and no features of a linear layer were certified"
    elif subject.learning_rate is not None:
        why_not = why_not or "not tried: the convolutions changed between the client's local steps"
    elif row.attack is Attack.JOINT_PICTURES:
        why_not = why_not or _why_not_together(row, batch)
    if why_not or layer is None or batch is None or example is None:
        return LayerAudit.closed(row, f"{row.behind}; {why_not}" if row.attack is Attack.JOINT_PICTURES else why_not)
    start = time.perf_counter()
    report(f"pictures in front of layer '{layer.name}': {row.behind}")
    max_rounds = MOST_ROUNDS if row.attack is Attack.JOINT_PICTURES else 0
    try:
        pictures = _recovered(subject, layer, batch, tuple(example.shape[1:]), max_rounds)
    except (ValueError, RuntimeError) as error:
        return LayerAudit.closed(row, f"features were recovered, and pictures not: {error}")
    known = _among(batch, pictures)
    source = f"through the convolutions from layer '{layer.name}'"
    seconds, why_open = time.perf_counter() - start, "" if known.is_whole else str(pictures)
    fed = replace(row, feeds=FED_THE_INPUT)
    return LayerAudit(row.name, None, str(pictures), fed, known, source, seconds, why_open=why_open)


def _why_not_together(row: LayerRow, batch: KnownBatch) -> str:
    """Say why the gradients of the convolutions do not help with a batch, or return an empty text."""
    if not batch.is_whole:
        return "gradients are of the whole batch, and not all of its features were certified"
    return "" if len(batch.inputs) <= row.largest_batch else f"the batch has {len(batch.inputs)}"


def _recovered(
    subject: Subject, layer: LayerAudit, batch: KnownBatch, shape: tuple[int, ...], max_rounds: int
) -> RecoveredPictures:
    """Go from certified features to pictures; the convolutions' gradients prove those of a whole batch."""
    sure = batch.certified
    sent_back, noise = _sent_back(subject.layer_gradient(layer.name), batch) if batch.is_whole else (None, LEAST_NOISE)
    return recover_pictures(
        subject.model,
        layer.name,
        batch.inputs[sure],
        batch.errors[sure],
        shape,
        sent_back=sent_back,
        gradients=subject.gradients,
        noise=noise,
        max_rounds=max_rounds,
    )


def _sent_back(given: LayerGradient, batch: KnownBatch) -> tuple[np.ndarray, float]:
    """Return the gradient of the loss at the features ``W^T D``, and the share of it that is noise.

    ``D`` is what the features leave of the gradient, by least squares: what an inverter says of it is zero where a unit
    seems inactive, and one unit near its kink is a tenth of a sample's ``D``.
    """
    gradient, features = given.weight_grad.astype(np.float64), batch.inputs
    D = np.linalg.lstsq(features.T, gradient.T, rcond=None)[0]
    residual = np.linalg.norm(gradient - D.T @ features) / np.linalg.norm(gradient)
    off = np.max(batch.errors / np.sqrt(np.mean(features**2, axis=1)))
    noise = max(LEAST_NOISE, float(residual), float(np.linalg.cond(features) * off))
    return D @ given.weight.astype(np.float64), noise


def _among(features: KnownBatch, pictures: RecoveredPictures) -> KnownBatch:
    """Return pictures as a batch in the order of the features; one whose features are not certified is empty."""
    b, was = len(features.inputs), features.certified
    inputs, errors, certified = np.zeros((b, pictures.n_unknowns)), np.full(b, np.inf), np.full(b, False)
    inputs[was] = pictures.pictures.reshape(-1, pictures.n_unknowns)
    errors[was], certified[was] = pictures.errors, pictures.certified
    return KnownBatch(inputs, np.zeros((0, b)), errors, certified, features.labels)
