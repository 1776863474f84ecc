"""Inputs from a user's description, read in the way in which the model runs on them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from sparsedl_fl.tracing.example_inputs import N_SAMPLES, SEED
from sparsedl_fl.tracing.tracing import in_evaluation
from sparsedl_fl.wording import argument, first_line

__all__ = ["fitting_example", "ids_of_length", "numbers_of_shape"]

MOST_NUMBERS = 2**28
"""Largest number of entries of an example: a gigabyte in single precision."""


def fitting_example(model: nn.Module, candidates: Iterable[torch.Tensor], what: str) -> torch.Tensor:
    """Return the first input for which a model returns a row for each sample, else the first on which it runs.

    Parameters
    ----------
    model : torch.nn.Module
        The model; it is left as it was.
    candidates : iterable of torch.Tensor
        Inputs that the user may mean, the likeliest first.
    what : str
        The description, for the message.

    Raises
    ------
    ValueError
        If it runs on none of them.
    """
    running, why = None, ""
    for candidate in candidates:
        output, error = _tried(model, candidate)
        if error is not None:
            why = why or f"on shape {tuple(candidate.shape)}, {first_line(error)}"
            continue
        if isinstance(output, torch.Tensor) and output.ndim == 2 and len(output) == len(candidate):
            return candidate
        running = candidate if running is None else running
    if running is None:
        raise ValueError(f"the model does not run on {what}: {why}")
    return running


def numbers_of_shape(model: nn.Module, shape: Sequence[int]) -> Iterator[torch.Tensor]:
    """Yield made-up numbers of a shape; then without its first dimension, where that may be the batch.

    A first dimension other than one counts as the batch only where the model does not run on the whole shape.

    Raises
    ------
    ValueError
        If an input of that shape is too large.
    """
    if N_SAMPLES * math.prod(shape) > MOST_NUMBERS:
        raise ValueError(
            f"{argument('example')}: an input of shape {tuple(shape)} has more numbers than fit into memory"
        )
    generator, like = torch.Generator().manual_seed(SEED), _like(model)
    whole = torch.randn((N_SAMPLES, *shape), generator=generator, dtype=torch.float32).to(like.device, like.dtype)
    yield whole
    if len(shape) > 1 and (shape[0] == 1 or _tried(model, whole)[1] is not None):
        yield whole[:, 0]


def ids_of_length(model: nn.Module, length: int) -> Iterator[torch.Tensor]:
    """Yield made-up token ids below the size of an embedding, the largest first: a model may have several."""
    sizes = {module.num_embeddings for module in model.modules() if isinstance(module, nn.Embedding | nn.EmbeddingBag)}
    sizes = sizes or {len(tensor) for tensor in model.parameters() if tensor.ndim == 2}
    generator = torch.Generator().manual_seed(SEED)
    for size in (*sorted(sizes, reverse=True), 1):
        yield torch.randint(size, (N_SAMPLES, length), generator=generator).to(_like(model).device)


def _tried(model: nn.Module, example: torch.Tensor) -> tuple[Any, BaseException | None]:
    """Return a model's output for an example, and the error: any, where it was not made for such an input."""
    try:
        with in_evaluation(model), torch.no_grad():
            return model(example.to(_like(model).device)), None
    except (Exception, SystemExit) as error:
        return None, error


def _like(model: nn.Module) -> torch.Tensor:
    """Return a parameter with the precision and device of inputs."""
    found = (tensor for tensor in model.parameters() if tensor.is_floating_point())
    return next(found, torch.zeros(0, dtype=torch.float32))
