"""Whether a layer from which nothing was recovered has resisted: it was in range, and attacked to the end."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sparsedl_fl.activations import resolve
from sparsedl_fl.certify.candidates import Provenance, SearchEnd
from sparsedl_fl.inverter import GradientInverter
from sparsedl_fl.layers.diagnosis import is_clipped
from sparsedl_fl.layers.layer_gradient import LayerGradient
from sparsedl_fl.models import LayerRow
from sparsedl_fl.theory import Attack, largest_batch
from sparsedl_fl.tracing.tracing import LinearUse
from sparsedl_fl.wording import argument

__all__ = ["MOST_EXCESS", "reach_of", "why_open"]

MOST_EXCESS = 5.0
"""Largest singular value beyond the batch over that of white noise, above which it is not noise: rounding reaches 3.3
(see `sparsedl_fl.lowrank.factors.LowRankGradient.excess`)."""


def reach_of(row: LayerRow, given: LayerGradient, uses_next_layer: bool) -> tuple[Attack, int]:
    """Return what a layer leaks by and its largest batch: those of `inspect_model`, corrected by its gradient.

    A next layer's gradient that is too noisy does not count, and units without a gradient give no equations.
    """
    attack, limit = row.attack, row.largest_batch
    is_moved = attack == Attack.NEXT_WEIGHTS and given.is_update
    if is_moved or (attack == Attack.SPAN and not uses_next_layer):
        activation = resolve(given.activation)
        if activation is not None and activation.has_flat_part:
            attack = Attack.ZEROS
        else:
            attack = Attack.NONE if given.tail.rest is None else Attack.REST
        limit = largest_batch(*given.shape, attack) if attack else 0
    live = np.any(given.weight_grad, axis=1).mean()
    return attack, int(limit * live) if attack in (Attack.ZEROS, Attack.NEXT_WEIGHTS, Attack.SPAN) else limit


def why_open(
    row: LayerRow, given: LayerGradient, inverter: GradientInverter, use: LinearUse | None, loss: str | Callable | None
) -> str:
    """Say why nothing recovered from a layer is no conclusion; return an empty text where the layer resisted.

    Parameters
    ----------
    row : LayerRow
        The layer, as `inspect_model` has it.
    given : LayerGradient
        Its gradient.
    inverter : GradientInverter
        Fitted to it.
    use : LinearUse or None
        The layer as a run of the model showed it; None where the model could not be run.
    loss : str, callable or None
        Of the client; None where it was not given.
    """
    b, (attack, limit) = inverter.batch_size_, reach_of(row, given, inverter.uses_next_layer_)
    n_found = int((inverter.provenance_ == Provenance.COLUMN_FOUND).sum())
    # First what the reader can do most about.
    doubts = [
        (inverter.search_end_ is SearchEnd.INTERRUPTED, "the search was interrupted"),
        (inverter.search_end_ is SearchEnd.CUT, "a budget or cap that was given ended the search early"),
        (use is None, "the model could not be run, so that what follows the layer was guessed: pass example"),
        (
            use is not None and use.norm is not None,
            "batch normalisation follows, taken in evaluation mode: of a client that trains, and normalises over the "
            "batch, this attack says nothing",
        ),
        (limit == 0, "the layer has too few outputs for this attack to mean anything"),
        (b > limit, f"the layer's batch has {b} inputs or more, and batches of up to {limit} are recovered as a rule"),
        (
            inverter.batch_size is None and not inverter.size_is_clear_,
            "the gradient does not show how large the batch is (noise, or an update that is no sum of gradients): "
            f"pass {argument('batch_size')}",
        ),
        (
            inverter.batch_size is not None and inverter.noise_level is None and inverter.noise_excess_ > MOST_EXCESS,
            f"the gradient holds more than {b} inputs and noise: the batch size is another, or the update is no sum "
            "of gradients (Adam, sparsified, clipped entry by entry)",
        ),
        (
            n_found > 0,
            f"candidates for {n_found} inputs were found, and nothing certifies them: noise is too large for that, or "
            "these are not the weights, the activation or the loss of the client",
        ),
        (
            not resolve(given.activation).has_flat_part and (inverter.noise_level is None or given.is_update),
            "no input fulfils the layer's equations, although there are enough: the loss, the activation, the number "
            "of steps or the noise is another than the one given",
        ),
        (
            is_clipped(given),
            "many entries have exactly the largest size: they were clipped one by one, which hides the batch size",
        ),
        (
            attack in (Attack.REST, Attack.HEAD) and loss is None,
            "this attack depends on the loss, which was not given (cross-entropy was assumed): pass loss",
        ),
    ]
    return next((text for holds, text in doubts if holds), "")
