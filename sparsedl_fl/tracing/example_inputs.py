"""Made-up inputs for a model without an example: shapes that its layers suggest."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

__all__ = ["made_up_examples"]

N_SAMPLES = 2
IMAGE_SIZES = (32, 28, 64, 224, 16, 8)
SEQUENCE_LENGTHS = (16, 64, 128)
SEED = 0


def made_up_examples(model: nn.Module) -> Iterator[torch.Tensor]:
    """Yield inputs to try, first those that the first layers suggest."""
    generator = torch.Generator().manual_seed(SEED)
    parameter = next(iter(model.parameters()), torch.zeros(0, dtype=torch.float32))
    dtype = parameter.dtype if parameter.is_floating_point() else torch.float32

    def numbers(*shape: int) -> torch.Tensor:
        found = torch.randn((N_SAMPLES, *shape), generator=generator, dtype=torch.float32)
        return found.to(parameter.device, dtype)

    seen = set()
    for module in model.modules():
        shapes: list[tuple[int, ...]] = []
        if isinstance(module, nn.Conv2d):
            shapes = [(module.in_channels, size, size) for size in IMAGE_SIZES]
        elif isinstance(module, nn.Conv1d):
            shapes = [(module.in_channels, length) for length in SEQUENCE_LENGTHS]
        elif isinstance(module, nn.Embedding):
            top = min(module.num_embeddings, 2**31)
            yield torch.randint(top, (N_SAMPLES, SEQUENCE_LENGTHS[0]), generator=generator).to(parameter.device)
        elif isinstance(module, nn.RNNBase):
            shapes = [(SEQUENCE_LENGTHS[0], module.input_size)]
        else:
            own = [tensor for tensor in module.parameters(recurse=False) if tensor.ndim == 2]
            shapes = [(size,) for tensor in own for size in reversed(tensor.shape)]
            shapes += [(SEQUENCE_LENGTHS[0], size) for tensor in own for size in reversed(tensor.shape)]
        for shape in shapes:
            if shape not in seen:
                seen.add(shape)
                yield numbers(*shape)
