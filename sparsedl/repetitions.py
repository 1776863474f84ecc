"""What repeats itself: rows, all of which vanish with one of them, and the values of a code, which cancel by chance."""

from __future__ import annotations

import torch

__all__ = ["distinct_rows", "takes_few_values"]


def distinct_rows(
    rows: torch.Tensor, tolerances: torch.Tensor, *, neighbours: int = 64, same_row: float = 1e-2
) -> torch.Tensor:
    """Return which rows repeat no other one, up to sign and a tolerance each; one of each kind is kept.

    Parameters
    ----------
    rows : torch.Tensor of shape (n_rows, n_columns)
        The rows.
    tolerances : torch.Tensor of shape (n_rows,)
        How far each may be off.
    neighbours : int, default=64
        Rows with similar projections among which repetitions are looked for.
    same_row : float, default=1e-2
        Distance of two rows, relative to their length, above which they are different whatever the noise.

    Examples
    --------
    >>> rows = torch.tensor([[1.0, 2.0], [3.0, 1.0], [-1.0, -2.0]])
    >>> distinct_rows(rows, torch.full((3,), 1e-6)).tolist()
    [True, True, False]
    """
    probe = torch.randn(rows.shape[1], generator=torch.Generator().manual_seed(0), dtype=rows.dtype).to(rows.device)
    keys = rows @ probe
    lengths = torch.linalg.vector_norm(rows, dim=1)
    widths = torch.minimum(tolerances, same_row * lengths) + 10 * torch.finfo(rows.dtype).eps * lengths
    order = torch.argsort(keys.abs(), stable=True)
    rows = torch.where(keys[:, None] < 0, -rows, rows)[order]
    keys, widths = keys.abs()[order], widths[order]
    repeats = torch.zeros(len(rows), dtype=torch.bool, device=rows.device)
    # Noise moves equal rows apart in this order, but not by much.
    for step in range(1, min(len(rows), neighbours + 1)):
        reach = widths[step:] + widths[:-step]
        is_close = keys[step:] - keys[:-step] <= torch.linalg.vector_norm(probe) * reach
        if not is_close.any():
            break
        index = torch.nonzero(is_close)[:, 0]
        distances = torch.linalg.vector_norm(rows[index + step] - rows[index], dim=1)
        repeats[index[distances <= reach[index]] + step] = True
    kept = torch.ones_like(repeats)
    kept[order] = ~repeats
    return kept


def takes_few_values(
    moduli: torch.Tensor,
    tolerances: torch.Tensor,
    used: torch.Tensor,
    *,
    different: float = 0.7,
    fewest_entries: int = 3,
    visible: float = 0.2,
) -> torch.Tensor:
    """Return which columns hold few values: those of a mixture then cancel often, and zeros are no evidence.

    They do where the share of different values among its entries is smaller than ``different``, a column has
    ``fewest_entries``, and zeros are not so wide that the ``visible`` share of the range of all falls into one.

    Parameters
    ----------
    moduli, tolerances : torch.Tensor of shape (n_directions, n_samples)
        Absolute entries, and how wide zero is for each.
    used : torch.Tensor of shape (n_directions, n_samples) of bool
        Which entries to look at: those that are not zero.
    """
    n_entries = used.sum(dim=1)
    entries, order = torch.where(used, moduli, torch.inf).sort(dim=1)
    is_entry = torch.arange(1, moduli.shape[1]) < n_entries[:, None]  # of each difference, the upper one
    widths = (2 * tolerances).gather(1, order)[:, 1:]
    n_values = 1 + ((entries[:, 1:] - entries[:, :-1] > widths) & is_entry).sum(dim=1)
    # Where noise is wide, different values look the same, and nothing can be said.
    mean_width = torch.where(is_entry, widths, 0.0).sum(dim=1) / (n_entries - 1).clamp(min=1)
    mean_entry = torch.where(used, moduli, 0.0).sum(dim=1) / n_entries.clamp(min=1)
    is_visible = (n_entries >= fewest_entries) & (n_entries * mean_width <= visible * mean_entry)
    return is_visible & (n_values <= different * n_entries)
