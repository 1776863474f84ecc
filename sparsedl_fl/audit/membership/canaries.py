"""Records that a client adds to its own, to see whether an audit finds them."""

from __future__ import annotations

from typing import Any

import torch

from sparsedl.arrays import draw_generator

__all__ = ["make_canaries"]


def make_canaries(records: Any, n_canaries: int, *, random_state: Any = None) -> torch.Tensor:
    """Return records that nobody else has, with each feature from another record.

    They stay on the scale of the records, and lie far from each other and from any real record. Give each a label at
    random, so that training has much to learn from it; train on one half, and pass the other half to `members` as
    ``others``: the p-values of the first then say whether membership shows.

    Parameters
    ----------
    records : array-like or torch.Tensor of shape (n_records, ...)
        Records to draw from, two or more; integers are converted.
    n_canaries : int
        Number of records to make.
    random_state : int, RandomState or None, default=None
        Seed.

    Returns
    -------
    torch.Tensor of shape (n_canaries, ...)
        In the precision of the records.

    Examples
    --------
    >>> make_canaries(torch.eye(4), 3, random_state=0).shape
    torch.Size([3, 4])
    """
    given = torch.as_tensor(records)
    if given.ndim < 2 or len(given) < 2:
        raise ValueError(f"records must have shape (n_records, ...) with two or more records, got {tuple(given.shape)}")
    if n_canaries < 1:
        raise ValueError(f"n_canaries must be positive, got {n_canaries!r}")
    given = given if given.is_floating_point() else given.double()
    flat = given.reshape(len(given), -1)
    picked = torch.randint(len(flat), (n_canaries, flat.shape[1]), generator=draw_generator(random_state))
    return flat.gather(0, picked).reshape(n_canaries, *given.shape[1:])
