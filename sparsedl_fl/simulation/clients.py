"""Clients to audit: the gradient or update that an honest client would send, for experiments and tests."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from sparsedl.arrays import chunks, draw_generator, draw_seed
from sparsedl.process import neutral_modes
from sparsedl_fl.wording import installs

__all__ = ["client_gradient", "dp_sgd_gradient", "fedavg_update", "fully_connected", "opacus_gradient"]

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

MOST_ENTRIES = 250_000_000
"""Entries of the gradients of single inputs that are held at once: a gigabyte in single precision."""


def fully_connected(
    n_inputs: int, *, width: int, n_hidden: int = 3, n_classes: int = 10, random_state: Any = None
) -> nn.Sequential:
    """Build the papers' classifier: ``n_hidden`` linear layers of one width with ReLU, and a linear head.

    Weights are torch's default initialisation, drawn from ``random_state`` without touching torch's global seed.

    Parameters
    ----------
    n_inputs : int
        Length of a flattened input.
    width : int
        Outputs of each hidden layer, ``m``.
    n_hidden : int, default=3
        Number of hidden layers.
    n_classes : int, default=10
        Outputs of the head.
    random_state : int, RandomState or None, default=None
        Seed.
    """
    sizes = [n_inputs, *[width] * n_hidden]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(draw_seed(random_state))
        layers: list[nn.Module] = []
        for size_in, size_out in zip(sizes[:-1], sizes[1:], strict=True):
            layers += [nn.Linear(size_in, size_out), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(sizes[-1], n_classes))


@neutral_modes(gradients=True)
def client_gradient(
    model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor, loss: Loss = cross_entropy
) -> dict[str, torch.Tensor]:
    """Return the gradient of the loss of one batch by parameter name (FedSGD).

    Parameters
    ----------
    model : torch.nn.Module
        The shared model.
    inputs : torch.Tensor of shape (batch_size, ...)
        The private batch, on the scale the model takes.
    labels : torch.Tensor of shape (batch_size,)
        Its labels.
    loss : callable, default=cross_entropy
        ``loss(outputs, labels)``, a scalar.
    """
    inputs, labels = _checked_batch(inputs, labels)
    named = dict(model.named_parameters())
    gradients = torch.autograd.grad(loss(model(inputs), labels), list(named.values()))
    return dict(zip(named, gradients, strict=True))


@neutral_modes(gradients=True)
def fedavg_update(
    model: nn.Module,
    inputs: torch.Tensor,
    labels: torch.Tensor,
    *,
    learning_rate: float = 0.01,
    n_epochs: int = 1,
    batch_size: int | None = None,
    loss: Loss = cross_entropy,
    random_state: Any = None,
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Train a copy of the model locally by plain gradient descent; return its state before and after.

    Parameters
    ----------
    model : torch.nn.Module
        The shared model; it is not changed.
    inputs, labels : torch.Tensor
        The private data.
    learning_rate : float, default=0.01
        Local learning rate.
    n_epochs : int, default=1
        Passes over the data.
    batch_size : int or None, default=None
        Size of the mini-batches, drawn anew each epoch; None takes all data in each step.
    loss : callable, default=cross_entropy
        ``loss(outputs, labels)``, a scalar.
    random_state : int, RandomState or None, default=None
        Seed of the mini-batches.

    References
    ----------
    SPEAR (2024), Appendix F.
    """
    inputs, labels = _checked_batch(inputs, labels)
    local = deepcopy(model)
    before = {name: tensor.clone() for name, tensor in local.state_dict().items()}
    optimizer = torch.optim.SGD(local.parameters(), lr=learning_rate)
    generator = draw_generator(random_state)
    for _ in range(n_epochs):
        for part in torch.randperm(len(inputs), generator=generator).split(batch_size or len(inputs)):
            optimizer.zero_grad()
            loss(local(inputs[part]), labels[part]).backward()
            optimizer.step()
    return before, {name: tensor.clone() for name, tensor in local.state_dict().items()}


@neutral_modes(gradients=True)
def dp_sgd_gradient(
    model: nn.Module,
    inputs: torch.Tensor,
    labels: torch.Tensor,
    *,
    clipping: float,
    noise_std: float,
    loss: Loss = cross_entropy,
    random_state: Any = None,
) -> dict[str, torch.Tensor]:
    """Clip the gradient of each input, average, and add Gaussian noise (DP-SGD).

    Parameters
    ----------
    model : torch.nn.Module
        The shared model.
    inputs, labels : torch.Tensor
        The private batch.
    clipping : float
        Largest norm ``C`` of an input's gradient over all parameters.
    noise_std : float
        Standard deviation of the noise on each entry of the *averaged* gradient. Opacus' ``noise_multiplier`` times
        ``clipping / batch_size`` is the same thing.
    loss : callable, default=cross_entropy
        ``loss(outputs, labels)``, a scalar.
    random_state : int, RandomState or None, default=None
        Seed of the noise.

    References
    ----------
    Abadi et al., "Deep learning with differential privacy", CCS 2016, Algorithm 1; SPEAR (2024), Appendix E.6.
    """
    inputs, labels = _checked_batch(inputs, labels)
    if clipping <= 0 or noise_std < 0:
        raise ValueError(f"clipping must be positive and noise_std non-negative, got {clipping!r} and {noise_std!r}")
    parameters = {name: tensor.detach() for name, tensor in model.named_parameters()}

    def input_loss(parameters: dict[str, torch.Tensor], one: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return loss(torch.func.functional_call(model, parameters, (one[None],)), label[None])

    input_gradients = torch.func.vmap(torch.func.grad(input_loss), in_dims=(None, 0, 0))
    clipped = {name: torch.zeros_like(tensor) for name, tensor in parameters.items()}
    for part in chunks(len(inputs), sum(tensor.numel() for tensor in parameters.values()), MOST_ENTRIES):
        per_input = input_gradients(parameters, inputs[part], labels[part])
        norms = torch.stack([gradient.flatten(1).norm(dim=1) for gradient in per_input.values()]).norm(dim=0)
        factors = (clipping / norms).clamp(max=1.0) / len(inputs)
        for name, gradient in per_input.items():
            clipped[name] += torch.tensordot(factors.to(gradient.dtype), gradient, dims=1)
    generator = draw_generator(random_state)
    return {
        name: mean + noise_std * torch.randn(mean.shape, generator=generator, dtype=mean.dtype)
        for name, mean in clipped.items()
    }


@neutral_modes(gradients=True)
def opacus_gradient(
    model: nn.Module,
    inputs: torch.Tensor,
    labels: torch.Tensor,
    *,
    clipping: float,
    noise_multiplier: float,
    loss: Loss = cross_entropy,
    random_state: Any = None,
) -> dict[str, torch.Tensor]:
    """Return what a client with Opacus sends (DP-SGD); needs the extra ``sparsedl[dp]``.

    Parameters
    ----------
    model : torch.nn.Module
        The shared model; it is not changed.
    inputs, labels : torch.Tensor
        The private batch.
    clipping : float
        Largest norm ``C`` of an input's gradient over all parameters.
    noise_multiplier : float
        The noise on each entry of the averaged gradient has the deviation ``noise_multiplier * clipping / batch_size``.
    loss : callable, default=cross_entropy
        ``loss(outputs, labels)``, a mean over the batch.
    random_state : int, RandomState or None, default=None
        Seed of the noise.

    Raises
    ------
    ImportError
        If Opacus is not installed.
    """
    inputs, labels = _checked_batch(inputs, labels)
    with installs("opacus_gradient needs Opacus", "dp"):
        from opacus.grad_sample import GradSampleModule
        from opacus.optimizers import DPOptimizer
    private = GradSampleModule(deepcopy(model))
    optimizer = DPOptimizer(
        torch.optim.SGD(private.parameters(), lr=1.0),
        noise_multiplier=noise_multiplier,
        max_grad_norm=clipping,
        expected_batch_size=len(inputs),
        generator=draw_generator(random_state),
    )
    with warnings.catch_warnings():
        # Opacus hooks the gradient of the inputs too, and torch says that data has none.
        warnings.filterwarnings("ignore", "Full backward hook is firing", UserWarning)
        loss(private(inputs), labels).backward()
    optimizer.pre_step()
    return {name.removeprefix("_module."): tensor.grad.detach() for name, tensor in private.named_parameters()}


def _checked_batch(inputs: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    if len(inputs) == 0:
        raise ValueError("inputs is empty: a client without data sends no gradient")
    if len(inputs) != len(labels):
        raise ValueError(f"inputs and labels differ in length: {len(inputs)} and {len(labels)}")
    inputs, labels = (tensor.clone() if tensor.is_inference() else tensor for tensor in (inputs, labels))
    return inputs, labels
