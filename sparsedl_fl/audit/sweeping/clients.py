"""What simulated clients have: records, made up where the user has none, on which they can take a step."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from sparsedl_fl.tracing.tracing import in_evaluation, trace_model
from sparsedl_fl.wording import argument, first_line, pass_example

__all__ = ["check_client", "seeded", "whole_records"]


def whole_records(
    model: nn.Module,
    inputs: torch.Tensor | None,
    labels: torch.Tensor | None,
    example: torch.Tensor | None,
    seed: int,
    *,
    n_records: int = 1024,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the user's records and labels, with what is missing made up."""
    if inputs is None:
        trace = trace_model(model, example)
        if trace.example is None:
            raise ValueError(f"the model could not be run ({trace.failure}): {pass_example()}")
        shape = (n_records, *trace.example.shape[1:])
        inputs, labels = _drawn(trace.example, shape, seeded(seed)), None
    if labels is None:
        labels = torch.randint(_n_labels(model, inputs), (len(inputs),), generator=seeded(seed + 1))
    return inputs, labels


def _drawn(example: torch.Tensor, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Return Gaussian numbers, or token ids up to the largest of an example."""
    if example.is_floating_point():
        return torch.randn(shape, generator=generator, dtype=example.dtype)
    return torch.randint(int(example.max()) + 1, shape, generator=generator)


def check_client(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor, loss: Any) -> None:
    """Raise ``ValueError`` where a client could not take a step: said once, before the work."""
    outputs = _outputs(model, inputs[:2])
    highest = int(labels.max())
    if loss is cross_entropy and (highest >= outputs.shape[1] or labels.min() < 0):
        raise ValueError(
            f"{argument('inputs')} has labels from {int(labels.min())} to {highest}, and the model {outputs.shape[1]} "
            "outputs"
        )
    try:
        loss(outputs, labels[:2])
    except Exception as error:  # a user's loss may raise anything
        raise ValueError(
            f"{argument('loss')} cannot be evaluated on outputs of shape {tuple(outputs.shape)}: {first_line(error)}"
        ) from error


def _outputs(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    try:
        with in_evaluation(model), torch.no_grad():
            outputs = model(inputs)
    except Exception as error:  # a model may raise anything on an input that it was not made for
        raise ValueError(
            f"the model does not run on {argument('inputs')} of shape {tuple(inputs.shape)}: {first_line(error)}"
        ) from error
    if not isinstance(outputs, torch.Tensor) or outputs.ndim != 2:
        found = tuple(outputs.shape) if isinstance(outputs, torch.Tensor) else type(outputs).__name__
        raise ValueError(f"the model must return a row of outputs for each record, of shape (n, outputs), got {found}")
    return outputs


def _n_labels(model: nn.Module, inputs: torch.Tensor) -> int:
    return max(2, _outputs(model, inputs[:2]).shape[1])


def seeded(seed: int) -> torch.Generator:
    """Return a generator of a seed."""
    return torch.Generator().manual_seed(seed)
