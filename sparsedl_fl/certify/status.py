"""What a fit has found, in words."""

from __future__ import annotations

import numpy as np

from sparsedl_fl.certify.assembly import Batch
from sparsedl_fl.certify.criterion import EvidenceKind

__all__ = ["in_words"]


def in_words(batch: Batch, search: str) -> str:
    """Say how many inputs are certified and how exactly, how the search ended, and how well it all fits."""
    numbers = {
        "sparsity matching {:.4f}": batch.agreement.mean(),
        "relative residual {:.1e}": batch.relative_residual,
    }
    told = ", ".join(text.format(value) for text, value in numbers.items() if not np.isnan(value))
    certified = f"{int(batch.recovered.sum())} of {len(batch.inputs)} inputs certified{_precision_of(batch)}"
    return "; ".join([certified, search, *([f"{told} (noise {batch.residual_floor:.1e})"] if told else [])])


def _precision_of(batch: Batch, *, worth_saying: float = 1e-3) -> str:
    """Say how exact the certified inputs are, what they may stand for, and what was not confirmed.

    A distance of inputs that come back as one is worth saying from that share of their size on.
    """
    proven = batch.recovered
    if not proven.any():
        return ""
    text = f" to within {batch.uncertainty[proven].max():.1g} (expected error of the worst, in its units)"
    sizes = np.sqrt(np.mean(batch.inputs[proven] ** 2, axis=1))
    if np.any(batch.resolution[proven] > worth_saying * sizes):
        text += f", one of which may stand for several up to {batch.resolution[proven].max():.1g} apart"
    alone = int(np.sum(batch.evidence == EvidenceKind.ZEROS_OF_ALL))
    if alone:
        text += f"; {alone} of them by their columns alone, since the pattern does not fit (dropout, other weights)"
    return text
