"""What happens to a gradient between the client and the server: number formats, quantisers, sparsifiers."""

from __future__ import annotations

from collections.abc import Callable

import torch

__all__ = ["WIRES", "percentile_clip", "quantize", "sign", "sparsify"]

Wire = Callable[[torch.Tensor], torch.Tensor]


def quantize(tensor: torch.Tensor, n_bits: int = 8, per_row: bool = False) -> torch.Tensor:
    """Round to ``2^n_bits - 1`` levels, symmetric about zero.

    Parameters
    ----------
    tensor : torch.Tensor
        One parameter's gradient.
    n_bits : int, default=8
        Bits an entry.
    per_row : bool, default=False
        Whether each row of a matrix has a scale of its own, instead of one for the whole tensor.

    Examples
    --------
    >>> quantize(torch.tensor([1.0, 0.74, 0.26]), n_bits=2).tolist()
    [1.0, 1.0, 0.0]
    """
    largest = 2 ** (n_bits - 1) - 1
    size = tensor.abs().amax(dim=1, keepdim=True) if per_row and tensor.ndim > 1 else tensor.abs().max()
    scale = (size / largest).clamp(min=torch.finfo(tensor.dtype).tiny)
    return (tensor / scale).round() * scale


def sparsify(tensor: torch.Tensor, share: float = 0.5) -> torch.Tensor:
    """Keep the given share of the entries, the largest ones, and zero the others (top-k)."""
    n_kept = max(1, round(share * tensor.numel()))
    threshold = tensor.abs().flatten().kthvalue(tensor.numel() - n_kept + 1).values
    return torch.where(tensor.abs() >= threshold, tensor, torch.zeros_like(tensor))


def percentile_clip(tensor: torch.Tensor, percentile: float = 10.0, gamma: float = 0.01) -> torch.Tensor:
    """Zero the smallest entries, those up to a percentile of the moduli, and clip the others at ``gamma``.

    As NVFLARE's PercentilePrivacy does, with its defaults.
    """
    moduli = tensor.abs()
    cut = moduli.flatten().float().kthvalue(max(1, round(percentile / 100 * tensor.numel()))).values
    return torch.where(moduli > cut, tensor.clamp(-gamma, gamma), torch.zeros_like(tensor))


def sign(tensor: torch.Tensor) -> torch.Tensor:
    """Keep the signs alone, as signSGD does, and the first step of Adam nearly."""
    return tensor.sign()


WIRES: dict[str, Wire] = {
    "float16": lambda tensor: tensor.half(),
    "bfloat16": lambda tensor: tensor.bfloat16(),
    "int8": quantize,
    "int8 by row": lambda tensor: quantize(tensor, per_row=True),
    "int4": lambda tensor: quantize(tensor, n_bits=4),
    "top half": sparsify,
    "top tenth": lambda tensor: sparsify(tensor, 0.1),
    "percentile 10, gamma 0.01": percentile_clip,
    "sign": sign,
}
"""By name, each for one parameter's gradient."""
