"""Hold an audit against the truth: what it certifies wrongly, and where it reassures falsely.

An audit reassures where its verdict is NOT RECOVERED. That is false where more than one in twenty samples of a layer,
or any token id, was in the attack's hands, or where nothing in range was tried.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from sparsedl_fl.audit import AuditResult, LayerAudit, Verdict
from sparsedl_fl.metrics import are_mislabelled, are_wrong
from tests.hostile.truth import Truth

__all__ = ["MOST_IN_HAND", "Judgement", "correlation", "judged", "shown_tokens", "standing_out"]

MOST_IN_HAND = 1 / 20
"""Share of the samples that an audit may have had in its hands and still be green."""

GAP = 3.0
"""Factor between the sizes of rows above which they are of two kinds."""

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
        Share of the samples that a candidate of their layer is near to, certified or not; of the layer where it is
        largest.
    n_tokens, n_tokens_said, n_wrong_tokens : int
        Token ids that can be read off the embedding's gradient; those that the audit says; of these the false ones.
    n_standing_out : int
        Token ids whose rows are not the only ones, and larger than all others by far.
    is_tried, is_whole : bool
        Whether a layer was attacked whose rank was within its range, and whether that was as large as the batch: of a
        rank that noise hides the attack may be one on fewer inputs than there are.
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
    n_standing_out: int = 0
    is_tried: bool = False
    is_whole: bool = False
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
    likely = [correlation(candidate, truth) for candidate in getattr(result, "likely", ())]
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
        n_standing_out=len(standing_out(embedding_grad, truth)),
        is_tried=is_tried,
        is_whole=any(_is_whole(layer, truth) for layer in result.layers),
        is_green=is_green,
        is_false_green=is_green and (in_hand > MOST_IN_HAND or bool(tokens) or not is_tried),
        reason=result.reason[:300],
    )


def shown_tokens(embedding_grad: torch.Tensor | None, truth: Truth, least: float = 0.0) -> set[int]:
    """Return the rows of an embedding's gradient above a size, where all of them are tokens of the batch.

    Parameters
    ----------
    embedding_grad : torch.Tensor of shape (vocabulary, width) or None
        What arrived.
    truth : Truth
        What was fed.
    least : float, default=0
        The size; zero for rows that are not zero.
    """
    if embedding_grad is None:
        return set()
    shown = set((embedding_grad.double().norm(dim=1) > least).nonzero().flatten().tolist())
    return shown if shown <= truth.tokens else set()


def standing_out(embedding_grad: torch.Tensor | None, truth: Truth) -> set[int]:
    """Return the rows of an embedding's gradient that stand out by their size, where all are tokens of the batch.

    Those above the widest gap, of a factor of `GAP` or more: noise or weight decay in every row hides none of these.
    """
    if embedding_grad is None or not embedding_grad.isfinite().all():
        return set()
    sizes = np.sort(embedding_grad.double().norm(dim=1).numpy())
    sizes = np.maximum(sizes, np.finfo(float).tiny)
    ratios = sizes[1:] / sizes[:-1]
    return shown_tokens(embedding_grad, truth, sizes[ratios.argmax()]) if ratios.max() >= GAP else set()


def _points(found: np.ndarray, fed: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return how far each candidate is from each sample, as a root mean square, and its nearest point of any.

    A sample is all between what it was at the first and at the last step.
    """
    first, last = fed
    moved = last - first
    size = np.maximum((moved**2).sum(axis=1), np.finfo(float).tiny)
    along = np.clip(((found[:, None] - first) * moved).sum(axis=2) / size, 0, 1)
    points = first + along[:, :, None] * moved
    distances = np.sqrt(np.mean((found[:, None] - points) ** 2, axis=2))
    return distances, points[np.arange(len(found)), distances.argmin(axis=1)]


def _of_layer(layer: LayerAudit, truth: Truth) -> tuple[int, int, int]:
    """Return how many inputs of a layer are certified, how many of them are wrong, and how many have a wrong label."""
    batch, fed = layer.batch, truth.fed(layer.name)
    certified = np.asarray(batch.certified, dtype=bool)
    n_certified = int(certified.sum())
    if n_certified == 0:
        return 0, 0, 0
    if fed is None or fed[0].shape[1] != batch.inputs.shape[1]:  # certified of a layer that the client never ran
        return n_certified, n_certified, 0
    found, errors, labels = batch.inputs[certified], batch.errors[certified], batch.labels[certified]
    n_wrong = int(are_wrong(_points(found, fed)[1], found, errors, multiple=5.0, small=1e-6).sum())
    if len(truth.of_records) == len(fed[0]):
        is_wrong = are_mislabelled(fed[0], truth.of_records, found, labels)
    else:
        is_wrong = [int(label) not in truth.labels for label in labels if label >= 0]
    return n_certified, n_wrong, int(np.sum(is_wrong))


def _share_in_hand(layer: LayerAudit, truth: Truth) -> float:
    """Return the share of the samples that candidates of a layer are near to."""
    fed = truth.fed(layer.name)
    candidates = [layer.batch.inputs] if layer.batch is not None else []
    candidates += [layer.inverter.inputs_] if layer.inverter is not None else []
    shares = [0.0]
    for found in candidates if fed is not None else []:
        found = np.asarray(found, dtype=float)
        found = found[np.isfinite(found).all(axis=1)]
        if len(found) and found.shape[1] == fed[0].shape[1]:
            shares.append(float(np.mean(_points(found, fed)[0].min(axis=0) < NEAR * _spread(fed[0]))))
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


def _is_whole(layer: LayerAudit, truth: Truth) -> bool:
    """Return whether such a layer was attacked for as many inputs as it was fed, copies once."""
    fed = truth.fed(layer.name)
    return _is_tried(layer) and fed is not None and layer.inverter.batch_size_ >= len(np.unique(fed[0], axis=0))


def correlation(candidate: object, truth: Truth) -> float:
    """Return the largest correlation of a likely candidate with what its layer was fed."""
    fed, values = truth.fed(candidate.layer), np.ravel(candidate.values)
    if fed is None or fed[0].shape[1] != len(values):
        return 0.0
    fed = np.concatenate([*fed, sum(fed) / 2])
    fed = fed - fed.mean(axis=1, keepdims=True)
    values = values - values.mean()
    sizes = np.linalg.norm(fed, axis=1) * np.linalg.norm(values)
    return float(np.max(fed @ values / np.maximum(sizes, np.finfo(float).tiny)))
