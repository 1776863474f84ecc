"""Equations against unknowns for a layer and a batch, and what to expect by them and by the lemmas of SPEAR."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from itertools import pairwise

from sparsedl_fl.lemmas import (
    expected_samples,
    failure_probability,
    failure_probability_bound,
    false_rejection_rate,
    samples_with_confidence,
    sparsity_threshold,
    success_probability,
)

__all__ = [
    "Expectation",
    "equations",
    "Attack",
    "expect",
    "expected_samples",
    "failure_probability",
    "failure_probability_bound",
    "is_determined",
    "largest_batch",
    "false_rejection_rate",
    "samples_with_confidence",
    "sparsity_threshold",
    "success_probability",
]


class Attack(StrEnum):
    """What a layer leaks by."""

    ZEROS = "zeros"
    """Zeros of its own gradient, where units are inactive."""

    SPAN = "span"
    """The activation subspaces of downstream layers."""

    NEXT_WEIGHTS = "next weights"
    """Zeros of its own gradient, and what a narrow next layer's weights send back to active units."""

    REST = "rest"
    """The network tail: the layers after it and the loss."""

    HEAD = "head"
    """The loss alone: it is a classifier's last layer."""

    ROWS = "rows"
    """Rows of an embedding's gradient: token ids."""

    PICTURES = "pictures"
    """Features of pictures, and the convolutions in front of them; the gradients of these are proof."""

    JOINT_PICTURES = "pictures with gradients"
    """Features of pictures that do not hold them alone, and the gradients of the convolutions in front of them."""

    NONE = ""
    """No attack applies."""

    def __repr__(self) -> str:
        return str.__repr__(self)

    @property
    def gives_pictures(self) -> bool:
        """Whether it goes from features back to pictures."""
        return self in (self.PICTURES, self.JOINT_PICTURES)


ENOUGH = {
    Attack.ZEROS: Fraction(2),
    Attack.SPAN: Fraction(11, 9),
    Attack.NEXT_WEIGHTS: Fraction(5, 3),
    Attack.REST: Fraction(4),
    Attack.HEAD: Fraction(1),
}
"""Equations for each unknown with which batches are recovered as a rule, by what a layer leaks by; fewer often suffice.

Measured: by zeros all of 66 at width 200 and of 250 at 1000; by the next layer's activation subspace ("span") all of 95
at 200 and of 400 at 1000; by the weights of a head of ten classes ("next weights") all of 120 at 200; by the network
tail ("rest") 40 at 200 for all smooth activations that were tried (GELU and SiLU 95)."""

ENOUGH_OF_SUBSPACES = Fraction(6, 5)
"""The same for several activation subspaces together, with smooth activations (20 batches of 125 at width 200 with two
subspaces have 1.2, and five of 140 with three 1.3; GELU and SiLU)."""

ENOUGH_WITH_FEW_FEATURES = Fraction(17, 8)
"""The same for the next layer's activation subspace with more samples than features (untrained: all of 64 at width 200
and of 128 at 400)."""


def equations(batch_size: int, width: int, attack: Attack | str, following: Sequence[int] = ()) -> float:
    """Return how many equations there are for the unknowns of an input, which are as many as inputs.

    Parameters
    ----------
    batch_size : int
        Number of inputs ``b``.
    width : int
        Number of outputs ``m``, those with a gradient.
    attack : {"zeros", "span", "next weights", "rest", "head"}
        What the layer leaks by: zeros of its gradient, half of a column; the activation subspaces of downstream layers,
        ``m - b`` each; the network tail, ``m - b``; a classifier's last layer, whose gradients sum to zero. By the
        weights of a next layer ("next weights") every unit gives one, less those that its outputs take.
    following : sequence of int, default=()
        Outputs of the downstream layers, in turn: an activation subspace needs a layer with more than ``b`` outputs.
        Empty for a single one that has enough (for weights of a next layer: that has few).

    Examples
    --------
    >>> equations(90, 200, "span"), equations(125, 200, "span", (200, 200, 10))
    (110, 150)
    """
    if attack == Attack.ZEROS:
        return width / 2
    if attack == Attack.NEXT_WEIGHTS:
        return width - sum(following[:1])
    widths = pairwise((width, *following)) if following else [(width, math.inf)]
    if attack == Attack.SPAN:
        return sum(max(0, m - batch_size) for m, outputs in widths if outputs > batch_size)
    return width - (attack == Attack.HEAD) - batch_size


def is_determined(batch_size: int, width: int, attack: Attack | str) -> bool:
    """Return whether there are more equations than unknowns; for zeros, whether that has a chance of one half.

    Parameters
    ----------
    batch_size, width, attack
        As of `equations`.
    """
    if attack == Attack.ZEROS:
        return failure_probability(batch_size, width) <= 0.5
    return equations(batch_size, width, attack) > batch_size


def largest_batch(
    width: int, n_inputs: int, attack: Attack | str, next_width: int | None = None, behind: Sequence[int] = ()
) -> int:
    """Return the largest batch that is recovered as a rule.

    Parameters
    ----------
    width, n_inputs : int
        Outputs and inputs of the layer.
    attack : {"zeros", "span", "next weights", "rest", "head"}
        What it leaks by, as of `equations`.
    next_width : int or None, default=None
        Outputs of the next layer, which needs more of them than inputs.
    behind : sequence of int, default=()
        Outputs of the layers after that one, in turn, where the activations between them are smooth: the gradient of
        each shows the subspace of its inputs.

    Examples
    --------
    >>> largest_batch(200, 3072, "span", next_width=200), largest_batch(100, 512, "head")
    (90, 49)
    >>> largest_batch(200, 3072, "span", next_width=200, behind=(200, 10))
    125
    >>> largest_batch(200, 3072, "next weights", next_width=10)
    114
    """
    if attack == Attack.NEXT_WEIGHTS:
        return min(_largest(width, attack, ENOUGH[Attack.NEXT_WEIGHTS], (next_width or 0,)), n_inputs - 1)
    most, with_few_features = _largest(width, attack, ENOUGH[Attack(attack)]), 0
    if attack == Attack.SPAN:
        if next_width is not None and behind:
            most = max(most, _largest(width, attack, ENOUGH_OF_SUBSPACES, (next_width, *behind)))
        with_few_features = min(most, _largest(width, attack, ENOUGH_WITH_FEW_FEATURES))
    next_outputs = width if next_width is None else next_width
    return max(0, min(most, max(n_inputs - 1, with_few_features), next_outputs - 1))


def _largest(width: int, attack: Attack | str, enough: Fraction, following: Sequence[int] = ()) -> int:
    """Return the largest batch with enough equations for each unknown: larger ones have fewer."""

    def is_short(batch_size: int) -> bool:
        return equations(batch_size, width, attack, following) < enough * batch_size

    return bisect_right(range(1, width), False, key=is_short)


@dataclass(frozen=True)
class Expectation:
    """What to expect of an attack before it starts.

    Attributes
    ----------
    batch_size : int
        Number of inputs ``b``.
    width : int
        Number of outputs ``m``.
    failure_probability : float
        Chance that the zeros do not determine the batch, whatever the search [Lemma 5.3].
    expected_draws : float
        Draws that `KernelDirections` needs [Lemma 5.2].
    is_determined : bool
        Whether there are equations enough for the batch.
    verdict : str
        The same in words.
    """

    batch_size: int
    width: int
    failure_probability: float
    expected_draws: float
    is_determined: bool
    verdict: str


def expect(batch_size: int, width: int, has_next_layer: bool = False) -> Expectation:
    """Say what to expect of a batch at a layer with half of the units active.

    Parameters
    ----------
    batch_size : int
        Number of inputs ``b``.
    width : int
        Number of outputs ``m``.
    has_next_layer : bool, default=False
        Whether the next linear layer's gradient is known as well.

    Examples
    --------
    >>> expect(20, 200).verdict
    'b = 20 at width 200: expect the whole batch (kernel sampling would take 2.7e+06 draws)'
    """
    failure, draws = failure_probability(batch_size, width), expected_samples(batch_size) if batch_size > 1 else 1.0
    attack = Attack.SPAN if has_next_layer else Attack.ZEROS
    within_reach, has_enough = _largest(width, attack, ENOUGH[attack]), is_determined(batch_size, width, attack)
    if not has_enough:
        facts = "the zeros and the next layer's gradient" if has_next_layer else "the zeros of the gradient alone"
        verdict = f"{facts} do not determine the batch (half of the {width} units with a gradient is the limit)"
    elif batch_size <= within_reach:
        verdict = "expect the whole batch"
    else:
        verdict = f"the batch is determined, but beyond b = {within_reach} the search may end before"
        verdict += "" if has_next_layer else "; the next layer's gradient would take it further"
    verdict = f"b = {batch_size} at width {width}: {verdict} (kernel sampling would take {draws:.1e} draws)"
    return Expectation(batch_size, width, failure, draws, has_enough, verdict)
