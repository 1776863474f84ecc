"""Hold an audit against the truth: what it certifies wrongly, and where it reassures falsely.

An audit reassures where its verdict is NOT RECOVERED. That is false where more than one in twenty samples of a layer,
or any token id, was in the attack's hands, or where nothing in range was tried.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.spatial.distance import cdist

from sparsedl_fl.audit import AuditResult, LayerAudit, Verdict
from sparsedl_fl.metrics import are_mislabelled, are_wrong
from tests.hostile.truth import Truth

__all__ = ["MOST_IN_HAND", "Judgement", "judged", "shown_tokens"]

MOST_IN_HAND = 1 / 20
"""Share of the samples that an audit may have had in its hands and still be green."""

NEAR = 0.1
"""Distance from a candidate, over the spread of the samples, up to which a sample is in the attack's hands."""

LEAST_CORRELATION = 0.7
"""A likely candidate that is less like every sample is no candidate of theirs."""


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """One audit by the truth.

    Attributes
    ----------
    verdict : str
        Of the audit.
    n_certified, n_wrong : int
        Certified inputs of all layers, and those further from every true one than five expected errors and 1e-6 of
        its size.
    n_wrong_labels : int
        Labels of certified inputs that no record near has, and labels said to be present that no record has.
    n_likely, n_unlike : int
        Likely candidates, and those whose correlation with every true input is below 0.7.
    in_hand : float
        Share of the samples of one step that a candidate of their layer is near to, certified or not; of the layer
        and the step where it is largest.
    n_tokens, n_tokens_said, n_wrong_tokens : int
        Token ids that can be read off the embedding's gradient; those that the audit says; of these the false ones.
    is_tried : bool
        Whether a layer was attacked whose rank was within its range.
    is_green, is_false_green : bool
        Whether the verdict reassures, and whether falsely.
    reason : str
        Why the audit says what it says.
    """

    verdict: str
    n_certified: int = 0
    n_wrong: int = 0
    n_wrong_labels: int = 0
    n_likely: int = 0
    n_unlike: int = 0
    in_hand: float = 0.0
    n_tokens: int = 0
    n_tokens_said: int = 0
    n_wrong_tokens: int = 0
    is_tried: bool = False
    is_green: bool = False
    is_false_green: bool = False
    reason: str = ""


def judged(result: AuditResult, truth: Truth, embedding_grad: torch.Tensor | None = None) -> Judgement:
    """Return what the truth says of an audit.

    Parameters
    ----------
    result : AuditResult
        The audit.
    truth : Truth
        What was fed.
    embedding_grad : torch.Tensor of shape (vocabulary, width) or None, default=None
        What arrived of the table that the token ids index, where there is one.
    """
    layers = [_of_layer(layer, truth) for layer in result.layers if layer.batch is not None]
    n_certified, n_wrong, n_wrong_labels = (sum(found[i] for found in layers) for i in range(3))
    tokens, said = shown_tokens(embedding_grad, truth), [int(token) for token in getattr(result, "tokens", ())]
    present = getattr(result, "labels_present", {})
    likely = [_correlation(candidate, truth) for candidate in getattr(result, "likely", ())]
    in_hand = max((_share_in_hand(layer, truth) for layer in result.layers), default=0.0)
    is_tried = any(_is_tried(layer) for layer in result.layers)
    is_green = result.verdict == Verdict.NOT_RECOVERED
    return Judgement(
        verdict=str(result.verdict),
        n_certified=n_certified,
        n_wrong=n_wrong,
        n_wrong_labels=n_wrong_labels + (len(set(present) - truth.labels) if truth.labels else 0),
        n_likely=len(likely),
        n_unlike=sum(correlation < LEAST_CORRELATION for correlation in likely),
        in_hand=in_hand,
        n_tokens=len(tokens),
        n_tokens_said=len(said),
        n_wrong_tokens=len(set(said) - truth.tokens),
        is_tried=is_tried,
        is_green=is_green,
        is_false_green=is_green and (in_hand > MOST_IN_HAND or bool(tokens) or not is_tried),
        reason=result.reason[:300],
    )


def shown_tokens(embedding_grad: torch.Tensor | None, truth: Truth) -> set[int]:
    """Return the rows of an embedding's gradient that are not zero, where all of them are tokens of the batch."""
    if embedding_grad is None:
        return set()
    shown = set(embedding_grad.double().abs().sum(1).nonzero().flatten().tolist())
    return shown if shown <= truth.tokens else set()


def _of_layer(layer: LayerAudit, truth: Truth) -> tuple[int, int, int]:
    """Return how many inputs of a layer are certified, how many of them are wrong, and how many have a wrong label."""
    batch, fed = layer.batch, truth.fed(layer.name)
    certified = np.asarray(batch.certified, dtype=bool)
    if not certified.any():
        return 0, 0, 0
    if fed is None or fed.shape[1] != batch.inputs.shape[1]:  # certified of a layer that the client never ran
        return int(certified.sum()), int(certified.sum()), 0
    found, errors, labels = batch.inputs[certified], batch.errors[certified], batch.labels[certified]
    n_wrong = int(are_wrong(fed, found, errors, multiple=5.0, small=1e-6).sum())
    first, of_records = truth.runs[0][layer.name], truth.of_records
    n_mislabelled = int((labels >= 0).sum()) if len(of_records) == 0 else 0
    if len(of_records) == len(first) and len(truth.runs) == 1:
        n_mislabelled = int(are_mislabelled(first, of_records, found, labels).sum())
    elif len(of_records):
        n_mislabelled = sum(int(label) not in truth.labels for label in labels if label >= 0)
    return int(certified.sum()), n_wrong, n_mislabelled


def _share_in_hand(layer: LayerAudit, truth: Truth) -> float:
    """Return the largest share of a step's samples that candidates of a layer are near to."""
    candidates = [layer.batch.inputs] if layer.batch is not None else []
    candidates += [layer.inverter.inputs_] if layer.inverter is not None else []
    shares = [0.0]
    for run in truth.runs:
        fed = run.get(layer.name)
        if fed is None:
            continue
        spread = _spread(fed)
        for found in candidates:
            found = np.asarray(found, dtype=float)
            found = found[np.isfinite(found).all(axis=1)]
            if len(found) and found.shape[1] == fed.shape[1] and spread > 0:
                distances = cdist(fed, found).min(axis=1) / np.sqrt(fed.shape[1])
                shares.append(float(np.mean(distances < NEAR * spread)))
    return max(shares)


def _spread(fed: np.ndarray) -> float:
    """Return how far samples are from their mean, or how far the entries of one are from theirs where all are one."""
    among = float(np.sqrt(np.mean((fed - fed.mean(axis=0)) ** 2)))
    within = float(np.sqrt(np.mean((fed - fed.mean(axis=1, keepdims=True)) ** 2)))
    return among if among > 1e-3 * within else within


def _is_tried(layer: LayerAudit) -> bool:
    """Return whether a layer was attacked, with no more inputs than come back as a rule."""
    inverter, row = layer.inverter, layer.row
    return inverter is not None and row is not None and inverter.batch_size_ <= row.largest_batch


def _correlation(candidate: object, truth: Truth) -> float:
    """Return the largest correlation of a likely candidate with what its layer was fed."""
    fed, values = truth.fed(candidate.layer), np.ravel(candidate.values)
    if fed is None or fed.shape[1] != len(values):
        return 0.0
    fed = fed - fed.mean(axis=1, keepdims=True)
    values = values - values.mean()
    sizes = np.linalg.norm(fed, axis=1) * np.linalg.norm(values)
    return float(np.max(fed @ values / np.maximum(sizes, np.finfo(float).tiny)))
