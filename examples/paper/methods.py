"""The attacks that the tables compare: the papers' and ours, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from paper.oracle import ToldTheBatch
from sparsedl import SparseDictionaryRecovery
from sparsedl.optimizers import Optimizer, ProjectedGradient, RiemannianAdam
from sparsedl.rounding import KernelRounding, Rounding
from sparsedl.surrogates import L1, LogCosh, NegativeL4, Surrogate
from sparsedl_fl.directions import (
    ActivationDirections,
    DictionaryDirections,
    Directions,
    KernelDirections,
    PriorDirections,
)
from sparsedl_fl.layers.layer_gradient import LayerGradient
from sparsedl_fl.reconstruction import match_gradients

__all__ = ["METHODS", "OURS", "Budget", "Method", "Problem"]

DRAWS_AT_ONCE = 1024
"""So few that small batches do not all take the same number of draws."""

PRIOR_ITERATIONS = 500
PATIENCE = 600
"""Rounds with nothing new after which our search gives up: enough that its budget of seconds decides."""


def fed_to(model: nn.Module, layer: str, inputs: torch.Tensor) -> torch.Tensor:
    """Return what a layer of a model is fed for some inputs."""
    seen: list[torch.Tensor] = []
    handle = model.get_submodule(layer).register_forward_pre_hook(lambda _, given: seen.append(given[0].detach()))
    with torch.no_grad():
        model(inputs)
    handle.remove()
    return seen[0]


@dataclass(frozen=True)
class Problem:
    """What the server has, and what only the experiment knows.

    Attributes
    ----------
    truth : torch.Tensor of shape (batch_size, n)
        True inputs of the attacked layer.
    layer_gradient : LayerGradient
        What the server sees of it.
    model, labels, shape
        The shared model, the labels, and (height, width, channels) of a sample, for the attack that gives the prior.
    reveals_batch_size : bool
        Whether the rank of the gradient gives the batch size.
    """

    truth: torch.Tensor
    layer_gradient: LayerGradient
    model: nn.Module
    labels: torch.Tensor
    shape: tuple[int, ...] = ()
    reveals_batch_size: bool = True


@dataclass(frozen=True)
class Budget:
    """What one batch may cost at most, and where the papers' searches run."""

    starts: int = 4096
    seconds: float = 300.0
    draws: int = 2_000_000
    device: str = "cpu"
    steps: int = 1000
    members: int = 30


@dataclass(frozen=True)
class Method:
    """One attack.

    Attributes
    ----------
    label : str
        For the tables.
    directions : callable
        Makes the strategy for a problem and a budget.
    unit : str, default=""
        The part of the budget that limits it, by its name in `Budget`; empty where its own patience ends it.
    """

    label: str
    directions: Callable[[Problem, Budget], Directions]
    unit: str = ""


def _spear_plus_plus(surrogate: Surrogate, optimizer: Optimizer, rounding: Rounding | None = None) -> Callable:
    """SPEAR++ as printed: starts drawn at random on the sphere, whatever was found before."""

    def directions(problem: Problem, budget: Budget) -> Directions:
        per_round = max(64, 2 * len(problem.truth))
        recovery = SparseDictionaryRecovery(
            surrogate=surrogate,
            optimizer=optimizer,
            rounding=rounding,
            deflation=None,
            n_starts=per_round,
            max_rounds=max(1, round(budget.starts / per_round)),
            device=budget.device,
        )
        return DictionaryDirections(recovery, sparsity="gradient")

    return directions


def _spear(problem: Problem, budget: Budget) -> Directions:
    return KernelDirections(max_draws=budget.draws, draws_per_batch=DRAWS_AT_ONCE, device=budget.device)


def _spear_with_prior(problem: Problem, budget: Budget) -> Directions:
    """SPEAR behind gradient matching, whose time counts."""
    height, width, channels = problem.shape
    model = nn.Sequential(_ChannelsLast(), problem.model)
    gradients = torch.autograd.grad(
        nn.functional.cross_entropy(problem.model(problem.truth), problem.labels), list(problem.model.parameters())
    )
    guesses = match_gradients(
        model, gradients, problem.labels, (channels, height, width), n_iterations=PRIOR_ITERATIONS, random_state=0
    )
    return PriorDirections(inputs=model[0](guesses), max_draws=budget.draws, device=budget.device)


def _activation(use_next_layer: bool) -> Callable:
    """What `GradientInverter` takes by default, with more patience."""

    def directions(problem: Problem, budget: Budget) -> Directions:
        return ActivationDirections(
            use_next_layer=use_next_layer,
            max_seconds=budget.seconds,
            patience=PATIENCE,
            fallback=DictionaryDirections(),
        )

    return directions


def _dictionary(problem: Problem, budget: Budget) -> Directions:
    """Our default dictionary search, of the gradients as SPEAR++ takes them: it knows no weights."""
    return DictionaryDirections(SparseDictionaryRecovery(device=budget.device), sparsity="gradient")


def _oracle(problem: Problem, budget: Budget) -> Directions:
    """Our last fits, which begin at the true batch."""
    return ToldTheBatch(inputs=problem.truth, max_seconds=budget.seconds)


def _of_pictures(problem: Problem, budget: Budget) -> Directions:
    raise ValueError("the peers attack whole networks with convolutions, in the table picture-peers")


def _of_tables(problem: Problem, budget: Budget) -> Directions:
    raise ValueError("TabLeak and guesses are of whole networks on census rows, in the table tabular-peers")


class _ChannelsLast(nn.Module):
    """From images as gradient matching takes them to what the fully connected model is fed."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.permute(0, 2, 3, 1).flatten(1)


METHODS = {
    "l1-radam": Method("SPEAR++, l1, Riemannian Adam", _spear_plus_plus(L1(), RiemannianAdam()), "starts"),
    "l1-pgd": Method("SPEAR++, l1, projected gradient", _spear_plus_plus(L1(), ProjectedGradient()), "starts"),
    "logcosh-radam": Method(
        "SPEAR++, LogCosh, Riemannian Adam", _spear_plus_plus(LogCosh(), RiemannianAdam(), KernelRounding()), "starts"
    ),
    "l4-radam": Method(
        "SPEAR++, -l4, Riemannian Adam", _spear_plus_plus(NegativeL4(), RiemannianAdam(), KernelRounding()), "starts"
    ),
    "kernel": Method("SPEAR, kernel sampling", _spear, "draws"),
    "prior": Method("SPEAR behind gradient matching", _spear_with_prior, "draws"),
    "activation": Method("ours, from one layer", _activation(use_next_layer=False), "seconds"),
    "activation-next": Method("ours, with the next layer's gradient", _activation(use_next_layer=True), "seconds"),
    "oracle": Method("our last fit, told the true batch", _oracle, "seconds"),
    "dictionary": Method("ours, dictionary search, no weights", _dictionary),
    "breaching": Method("inverting gradients, by breaching", _of_pictures, "steps"),
    "r-gap": Method("R-GAP, by breaching", _of_pictures),
    "tableak": Method("TabLeak, by its own code", _of_tables, "members"),
    "guess": Method("a guess, column by column", _of_tables),
}
OURS = ("activation", "activation-next")
