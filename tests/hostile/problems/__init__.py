"""Problems made to mislead: what a certificate has to survive, drawn from a seed.

One problem is a batch, a network, a client and what happens on the wire, each of which may lie: weights that are not
those of the gradient, another activation than declared, gradients of another batch behind, coarse number formats,
sparsified or sign-flipped updates, dropout, batch normalisation, local training, noise, inputs that repeat or mix,
more inputs than features have
dimensions, the tokens of a transformer, and a user who tells a wrong batch size or noise level.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from tests.hostile.problems import activations, alone, batches, before_head, clients, crowded, one_piece, tokens
from tests.hostile.problems.problem import N_CLASSES, HostileProblem, build_network, draw_inputs

__all__ = ["TWISTS", "HostileProblem", "hostile_problem"]


def hostile_problem(seed: int, twist: str | None = None) -> HostileProblem:
    """Draw a problem.

    Parameters
    ----------
    seed : int
        Of everything.
    twist : str or None, default=None
        Name in `TWISTS`; None draws one.
    """
    rng = np.random.default_rng(seed)
    names = list(TWISTS)
    twist = names[rng.integers(len(names))] if twist is None else twist
    width = int(rng.choice([60, 100, 200]))
    batch_size = int(rng.integers(2, max(3, round(width * rng.choice([0.1, 0.2, 0.35])))))
    inputs, data = draw_inputs(batch_size, rng)
    labels = torch.from_numpy(rng.integers(N_CLASSES, size=batch_size))
    problem = HostileProblem(inputs, labels, build_network(inputs.shape[1], width, nn.ReLU, seed), rng)
    problem.description = f"seed {seed}: {twist}, {data}, b={batch_size}, m={width}"
    TWISTS[twist](problem)
    return problem


TWISTS: dict[str, Callable[[HostileProblem], None]] = {
    "honest": clients.honest,
    "other weights": clients.other_weights,
    "stale weights": clients.stale_weights,
    "other activation": clients.other_activation,
    "any activation": activations.any_activation,
    "any activation again": activations.any_activation,
    "one layer alone": alone.one_layer_alone,
    "one layer alone again": alone.one_layer_alone,
    "head": alone.head,
    "crowded": crowded.crowded,
    "crowded again": crowded.crowded,
    "tokens": tokens.tokens,
    "tokens again": tokens.tokens,
    "other batch behind": clients.other_batch_behind,
    "wire": clients.wire,
    "wire again": clients.wire,
    "sign flipped": clients.sign_flipped,
    "dropout": clients.dropout,
    "batch norm": clients.batch_norm,
    "FedAvg": clients.fedavg,
    "FedAvg again": clients.fedavg,
    "DP noise": clients.private,
    "duplicates": batches.duplicates,
    "near-duplicates": batches.near_duplicates,
    "mixtures": batches.mixtures,
    "wrong batch size": batches.wrong_batch_size,
    "wrong noise level": batches.wrong_noise_level,
    "no loss": batches.no_loss,
    "dead and doubled units": batches.dead_and_doubled_units,
    "before a head": before_head.before_a_head,
    "before a head again": before_head.before_a_head,
    "one linear piece": one_piece.one_piece,
}
"""What is done to a problem, by name; `hostile_problem` draws one of them."""
