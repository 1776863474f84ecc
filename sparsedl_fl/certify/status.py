"""The result of a fit in words: the status."""

from __future__ import annotations

import numpy as np

from sparsedl_fl.certify.assembly import Batch
from sparsedl_fl.certify.criterion import EvidenceKind

__all__ = ["in_words"]


def in_words(batch: Batch, search: str, n_without_gradient: int = 0) -> str:
    """Return how many inputs are certified and how exactly, how the search ended, and how well the batch fits.

    Features without a gradient are zero at every input, unless the client masks them, which nobody may see.
    """
    numbers = {
        "weights and gradient agree on {:.2%} of units": batch.agreement.mean(),
        "relative residual {:.1e}": batch.relative_residual,
    }
    if n_without_gradient and batch.recovered.any():
        search += f"; {n_without_gradient} features have no gradient and count as zero"
    fit = ", ".join(text.format(value) for text, value in numbers.items() if not np.isnan(value))
    certified = f"{int(batch.recovered.sum())} of {len(batch.inputs)} inputs certified{_precision_of(batch)}"
    return "; ".join([certified, search, *([f"{fit} (noise {batch.residual_floor:.1e})"] if fit else [])])


def _precision_of(batch: Batch, *, worth_saying: float = 1e-3) -> str:
    """Return how exact the certified inputs are, whether one may be several near-duplicates, and what is unconfirmed.

    An ambiguity radius is mentioned above that share of an input's size.
    """
    certified = batch.recovered
    if not certified.any():
        return ""
    is_shared = certified & (batch.evidence == EvidenceKind.SHARED_ZEROS)
    certified, n_shared, shared = certified & ~is_shared, int(is_shared.sum()), ""
    if n_shared:
        stand, within = "stands" if n_shared == 1 else "stand", batch.uncertainty[is_shared].max()
        shared = f"; {n_shared} {stand} for several records that no unit tells apart, to within {within:.1g}"
    if not certified.any():
        return shared
    text = f", {int(certified.sum())} of them to within" if n_shared else " to within"
    text += f" {batch.uncertainty[certified].max():.1g} (expected error of the worst, in its units)"
    sizes = np.sqrt(np.mean(batch.inputs[certified] ** 2, axis=1))
    if np.any(batch.resolution[certified] > worth_saying * sizes):
        apart = batch.resolution[certified].max()
        text += f", one of which may be the mean of several records up to {apart:.1g} apart"
    alone = int(np.sum(batch.evidence == EvidenceKind.ZEROS_OF_ALL))
    if alone:
        reason = "since the weights do not predict which units are active (dropout, other weights)"
        text += f"; {alone} of them by zeros of the gradient alone, {reason}"
    return text + shared
