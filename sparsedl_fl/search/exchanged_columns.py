"""Columns with or without a part that two alike samples put into the column space: which is told by their inputs."""

from __future__ import annotations

import torch

from sparsedl.candidates import distinct
from sparsedl.linalg import normalized
from sparsedl_fl.constraints import SentBackGradients
from sparsedl_fl.search.knowledge import Knowledge

__all__ = ["add_last_column", "exchange_columns"]

SAME_COLUMN = 1 - 1e-6
"""Cosine of two estimates of one column: others differ by the gradient of a unit at least."""


def exchange_columns(knowledge: Knowledge, sent_back: SentBackGradients, *, n_iterations: int = 8) -> bool:
    """Exchange columns for those of their inputs, until all are; return whether any was.

    Where two samples differ at few units, the part at these units of the longer one is in the column space, and
    every column with or without that part; the sparser ones are found first. Their inputs are right but for that
    of the part, and show which is the column; then that of the part is the missing sample's. (48 rows of Adult at
    100 units before two classes, two pairs that differ at one and two units: 43 and 15 columns of 48 were right,
    and all are.) A last column that is missing is that of the input orthogonal to all others.
    """
    found, is_whole = knowledge.coordinates.found, knowledge.n_found == knowledge.inputs.shape[1]
    if not is_whole:
        last, is_proven = sent_back.columns(knowledge.preactivations(knowledge.coordinates.free.T))
        if not is_proven.all():
            return False
        found = torch.cat([found, last])
    for _ in range(n_iterations):
        inputs, is_singular = torch.linalg.inv_ex(found.T)
        if is_singular:
            return False
        columns, is_proven = sent_back.columns(knowledge.preactivations(normalized(inputs, dim=1)))
        is_other = _to_exchange(found, columns, is_proven)
        if not is_other.any():
            break
        found = torch.where(is_other[:, None], columns, found)
    if is_other.any() or not is_proven.all() or torch.equal(found, knowledge.coordinates.found):
        return False
    knowledge.take_whole(found, inputs)
    return True


def _to_exchange(found: torch.Tensor, columns: torch.Tensor, is_proven: torch.Tensor) -> torch.Tensor:
    """Return which rows to exchange: of two for the same column that which is farther from it, which is the part."""
    cosines = torch.sum(columns * found, dim=1).abs()
    is_other = is_proven & (cosines < SAME_COLUMN)
    others = torch.nonzero(is_other)[:, 0]
    others = others[cosines[others].argsort()]
    is_new = distinct(torch.cat([found[~is_other], columns[others]]), SAME_COLUMN)[len(found) - len(others) :]
    is_other[others[~is_new]] = False
    return is_other


def add_last_column(knowledge: Knowledge, sent_back: SentBackGradients | None) -> bool:
    """Add a last column that is missing, where downstream layers give it; return whether they did."""
    if knowledge.n_found != knowledge.inputs.shape[1] - 1:
        return False
    if sent_back is not None:
        return exchange_columns(knowledge, sent_back)
    return knowledge.trusts_downstream and knowledge.repeat_downstream()
