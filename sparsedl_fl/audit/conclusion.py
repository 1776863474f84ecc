"""Whether a layer from which nothing came back has resisted: in range, attacked to the end, by what is known."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sparsedl_fl.activations import resolve
from sparsedl_fl.certify.candidates import Provenance, SearchEnd
from sparsedl_fl.inverter import GradientInverter
from sparsedl_fl.layers.diagnosis import is_clipped
from sparsedl_fl.layers.layer_gradient import LayerGradient
from sparsedl_fl.models import LayerRow
from sparsedl_fl.theory import largest_batch
from sparsedl_fl.tracing.tracing import LinearUse
from sparsedl_fl.wording import argument

__all__ = ["MOST_EXCESS", "reach_of", "why_open"]

MOST_EXCESS = 5.0
"""Largest singular value beyond the batch over that of white noise, from which on it is no noise: rounding has up to
3.3 (see `sparsedl_fl.lowrank.factors.LowRankGradient.excess`)."""


def reach_of(row: LayerRow, given: LayerGradient, uses_next_layer: bool) -> tuple[str, int]:
    """Return what a layer leaks by and its largest batch: those of `inspect_model`, by what its gradient has of it.

    A span that noise makes useless is none, and units without a gradient have no equations.
    """
    attack, limit = row.attack, row.largest_batch
    if attack == "span" and not uses_next_layer:
        activation = resolve(given.activation)
        if activation is not None and activation.has_flat_part:
            attack, limit = "zeros", largest_batch(*given.shape, "zeros")
        else:
            attack, limit = ("rest", largest_batch(*given.shape, "rest")) if given.tail.rest is not None else ("", 0)
    live = np.any(given.weight_grad, axis=1).mean()
    return attack, int(limit * live) if attack in ("zeros", "span") else limit


def why_open(
    row: LayerRow, given: LayerGradient, inverter: GradientInverter, use: LinearUse | None, loss: str | Callable | None
) -> str:
    """Say why nothing recovered from a layer is no conclusion, or nothing where it has resisted.

    Parameters
    ----------
    row : LayerRow
        The layer, as `inspect_model` has it.
    given : LayerGradient
        Its gradient.
    inverter : GradientInverter
        Fitted to it.
    use : LinearUse or None
        As a run of the model showed it; None where it could not be run.
    loss : str, callable or None
        Of the client; None where nobody said.
    """
    b, (attack, limit) = inverter.batch_size_, reach_of(row, given, inverter.uses_next_layer_)
    n_found = int((inverter.provenance_ == Provenance.COLUMN_FOUND).sum())
    # In order of what a reader can do most about.
    doubts = [
        (inverter.search_end_ is SearchEnd.INTERRUPTED, "the search was interrupted"),
        (inverter.search_end_ is SearchEnd.CUT, "a budget or cap of the caller ended the search before its end"),
        (use is None, "the model could not be run, so that what follows the layer is a guess: pass example"),
        (
            use is not None and use.norm is not None,
            "batch normalisation follows, taken in evaluation mode: a client that trains normalises over the batch, "
            "and of that this attack says nothing",
        ),
        (limit == 0, "the layer has too few outputs to be a test of anything"),
        (b > limit, f"the batch has {b} inputs here or more, and the layer has equations for {limit} as a rule"),
        (
            inverter.batch_size is None and not inverter.size_is_clear_,
            "how large the batch is does not show in the gradient (noise, or an update that is no sum of gradients): "
            f"pass {argument('batch_size')}",
        ),
        (
            inverter.batch_size is not None and inverter.noise_level is None and inverter.noise_excess_ > MOST_EXCESS,
            f"what the gradient has beyond {b} inputs is no noise: the batch size is another, or the update is no sum "
            "of gradients (Adam, sparsified, clipped entry by entry)",
        ),
        (
            n_found > 0,
            f"of the gradient's columns {n_found} came out that nothing certifies: noise hides what would, or these "
            "are not the weights, the activation or the loss of the client",
        ),
        (
            not resolve(given.activation).has_flat_part and (inverter.noise_level is None or given.is_update),
            "no input fits the layer's equations, of which there are enough: the loss, the activation, the number of "
            "steps or the noise is another than said",
        ),
        (is_clipped(given), "many entries have the largest size exactly: they were clipped, which hides the rank"),
        (
            attack in ("rest", "head") and loss is None,
            "what the layer leaks by rests on the loss, which nobody said: pass loss (cross-entropy was taken)",
        ),
    ]
    return next((text for holds, text in doubts if holds), "")
