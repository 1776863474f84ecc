"""Approximate reconstructions by optimisation over the input: before the exact search, or after it.

- `match_gradients` turns a gradient into rough images (Geiping et al.); they can serve `PriorDirections`.
- `invert_features` turns the recovered input of an inner layer into images that cause it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cosine_similarity, cross_entropy

from sparsedl.arrays import draw_generator
from sparsedl.process import neutral_modes
from sparsedl.progress import progress_bar

__all__ = ["invert_features", "match_gradients", "total_variation"]

_DECAY_AT = (3 / 8, 5 / 8, 7 / 8)


def total_variation(images: torch.Tensor) -> torch.Tensor:
    """Return the mean absolute difference between neighbouring pixels of images of shape (..., height, width)."""
    return images.diff(dim=-1).abs().mean() + images.diff(dim=-2).abs().mean()


@neutral_modes(gradients=True)
def match_gradients(
    model: nn.Module,
    gradients: Sequence[torch.Tensor] | Mapping[str, torch.Tensor],
    labels: torch.Tensor,
    shape: tuple[int, ...],
    *,
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = cross_entropy,
    n_iterations: int = 1000,
    learning_rate: float = 0.1,
    variation_weight: float = 0.01,
    random_state: Any = None,
    verbose: bool = False,
) -> torch.Tensor:
    """Find images whose gradient points where the client's does.

    Minimises ``1 - cos(gradient(images), gradients) + variation_weight * total_variation(images)`` by Adam on the sign
    of the gradient.

    Parameters
    ----------
    model : torch.nn.Module
        The model at the parameters at which the gradient was taken.
    gradients : sequence of tensors or mapping of name to tensor
        In the order of ``model.parameters()``, or by name.
    labels : torch.Tensor of shape (batch_size,)
        Labels of the batch, which this attack takes as known.
    shape : tuple of int
        Shape of one input as the model takes it. Total variation applies where it is (channels, height, width) or
        (height, width).
    loss : callable, default=cross_entropy
        ``loss(outputs, labels)``, a scalar.
    n_iterations : int, default=1000
        Steps.
    learning_rate : float, default=0.1
        First step size, divided by ten three times.
    variation_weight : float, default=0.01
        Weight of the total variation.
    random_state : int, RandomState or None, default=None
        Seed of the start.
    verbose : bool, default=False
        Whether to draw a progress bar.

    Returns
    -------
    torch.Tensor of shape (batch_size, *shape)

    References
    ----------
    Geiping et al., "Inverting gradients - how easy is it to break privacy in federated learning?", NeurIPS 2020.
    """
    named = dict(model.named_parameters())
    wanted = [gradients[name] for name in named] if isinstance(gradients, Mapping) else list(gradients)
    if len(wanted) != len(named):
        raise ValueError(f"gradients has {len(wanted)} tensors, the model has {len(named)} parameters")
    target = torch.cat([tensor.detach().flatten() for tensor in wanted])
    start = _noise((len(labels), *shape), target, random_state)

    def objective(images: torch.Tensor) -> torch.Tensor:
        found = torch.autograd.grad(loss(model(images), labels), list(named.values()), create_graph=True)
        distance = 1 - cosine_similarity(torch.cat([tensor.flatten() for tensor in found]), target, dim=0)
        return distance + variation_weight * total_variation(images) if len(shape) > 1 else distance

    return _descend(objective, start, n_iterations, learning_rate, use_sign=True, verbose=verbose)


@neutral_modes(gradients=True)
def invert_features(
    extractor: Callable[[torch.Tensor], torch.Tensor],
    features: torch.Tensor,
    shape: tuple[int, ...],
    *,
    n_iterations: int = 500,
    learning_rate: float = 0.05,
    variation_weight: float = 0.5,
    random_state: Any = None,
    verbose: bool = False,
) -> torch.Tensor:
    """Find images with given features.

    Minimises ``|extractor(images) - features|^2 / |features|^2 + variation_weight * total_variation(images)`` by Adam.

    Parameters
    ----------
    extractor : callable
        What the model does before the attacked layer: images to features of shape (batch_size, n).
    features : torch.Tensor of shape (batch_size, n)
        Recovered inputs of that layer.
    shape : tuple of int
        Shape of one image, (channels, height, width).
    n_iterations : int, default=500
        Steps.
    learning_rate : float, default=0.05
        First step size, divided by ten three times.
    variation_weight : float, default=0.5
        Weight of the total variation.
    random_state : int, RandomState or None, default=None
        Seed of the start.
    verbose : bool, default=False
        Whether to draw a progress bar.

    Returns
    -------
    torch.Tensor of shape (batch_size, *shape)

    References
    ----------
    Mahendran and Vedaldi, "Understanding deep image representations by inverting them", CVPR 2015; SPEAR (2024),
    Sec. 6.4.
    """
    norms = features.square().sum(dim=1)
    start = 0.1 * _noise((len(features), *shape), features, random_state)

    def objective(images: torch.Tensor) -> torch.Tensor:
        distance = ((extractor(images) - features).square().sum(dim=1) / norms).mean()
        return distance + variation_weight * total_variation(images)

    return _descend(objective, start, n_iterations, learning_rate, use_sign=False, verbose=verbose)


def _noise(shape: tuple[int, ...], like: torch.Tensor, random_state: Any) -> torch.Tensor:
    generator = draw_generator(random_state)
    return torch.randn(shape, generator=generator, dtype=like.dtype).to(like.device)


def _descend(
    objective: Callable[[torch.Tensor], torch.Tensor],
    start: torch.Tensor,
    n_iterations: int,
    learning_rate: float,
    use_sign: bool,
    verbose: bool,
) -> torch.Tensor:
    """Run Adam with a step size cut tenfold at three, five and seven eighths of the iterations."""
    images = start.clone().requires_grad_(True)
    optimizer = torch.optim.Adam([images], lr=learning_rate)
    milestones = [int(share * n_iterations) for share in _DECAY_AT]
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones, gamma=0.1)
    with progress_bar(verbose, total=n_iterations, description="steps") as report:
        for step in range(n_iterations):
            value = objective(images)
            (gradient,) = torch.autograd.grad(value, [images])
            images.grad = gradient.sign() if use_sign else gradient
            optimizer.step()
            schedule.step()
            report(step + 1, f"objective {value.item():.4f}")
    return images.detach()
