"""What an audit recovered of a batch of pictures, beside the truth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from paper.data import Images
from sparsedl_fl.audit import Sample
from sparsedl_fl.metrics import match_batches

__all__ = ["compared"]


def compared(samples: Sequence[Sample], inputs: torch.Tensor, images: Images) -> dict[str, Any]:
    """Return quality, share and errors of certified samples: ``error_ratio`` is true over expected error.

    Parameters
    ----------
    samples : sequence of Sample
        What was certified.
    inputs : torch.Tensor of shape (b, n)
        The batch.
    images : Images
        Where it was drawn.
    """
    if not samples:
        return {"psnr": [0.0], "share": 0.0, "error_ratio": [], "certified": 0}
    match = match_batches(inputs, np.stack([sample.values for sample in samples]))
    found = match.order >= 0
    errors = np.sqrt(match.squared_errors[found])
    expected = np.array([samples[i].error for i in match.order[found]])
    quality = np.zeros(len(inputs))
    quality[found] = -20 * np.log10(errors * float(np.mean(images.dataset.std)))
    return {
        "psnr": [round(float(value), 2) for value in quality],
        "share": len(samples) / len(inputs),
        "error_ratio": [float(f"{ratio:.3g}") for ratio in errors / expected],
        "certified": len(samples),
    }
