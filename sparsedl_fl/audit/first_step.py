"""Updates of one step of an adaptive optimiser: gradients fitted to what the step shows of them.

Adam divides each entry of the gradient by its own size, and the sum of several steps has no low rank. The first step of
a fresh optimiser is a function of the gradient, entry by entry, and the gradient has the rank of the batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from sklearn.base import clone
from torch import nn

from sparsedl.process import one_thread
from sparsedl_fl.audit.adaptive_optimizers import FIRST_STEPS, Client, is_first_step
from sparsedl_fl.audit.attack import audit_model, out_of_range
from sparsedl_fl.audit.completed_update import CompletedUpdate
from sparsedl_fl.audit.declared import with_more
from sparsedl_fl.audit.filtered import MOST_ENTRIES
from sparsedl_fl.audit.result import AuditResult
from sparsedl_fl.inverter import GradientInverter
from sparsedl_fl.layers.updates import plain_optimizer
from sparsedl_fl.lowrank.saturated import SaturatedFit, fit_smallest
from sparsedl_fl.lowrank.saturated_steps import Steps
from sparsedl_fl.tracing.embeddings import token_tables
from sparsedl_fl.tracing.naming import plain_parameters
from sparsedl_fl.tracing.tracing import Trace, trace_model
from sparsedl_fl.tracing.uses import LinearUse
from sparsedl_fl.wording import argument_with

__all__ = ["FIRST_STEPS", "NoFirstStep", "audit_first_step", "first_step", "is_first_step"]

SPARE = 2.0
"""Entries of a row or column that are seen, over the rank, below which it stays open."""

NOISY, MOST_NOISE = 4.0, 0.2
"""Noise of a row, over the median, from which on the unit is left out; and the largest singular value of the noise,
over the least of the fit, up to which a layer is attacked. (At 0.23 and 0.5 records of small problems were off by 3.5
of their errors; 16 records of MNIST at 200 units have 0.25 before noisy units are left out.)"""

OF_SCALE = 2.0
"""Factor on the noise of the bias gradient, a single column, which gives all inputs their scale. (Without, 2 of 133
small problems had an input off by 2.6 and 2.9 of its error, most of it in the scale.)"""

DOUBT = "the gradient is a fit to one step of an adaptive optimiser, whose errors may hide the records"

BEYOND = 10.0
"""Deviations by which no step may be longer than the first one can be."""


class NoFirstStep(ValueError):
    """An update is no first step of the optimiser, or shows too little of the gradient."""


@dataclass(frozen=True)
class FirstStep:
    """What the first step of an adaptive optimiser shows.

    Attributes
    ----------
    update : CompletedUpdate
        Fitted gradients of linear layers, for `audit_model`.
    batch_size : int or None
        Their rank; None where layers have different ones, or tokens.
    """

    update: CompletedUpdate
    batch_size: int | None


def audit_first_step(
    model: nn.Module,
    after: Mapping[str, torch.Tensor],
    learning_rate: float,
    optimizer: str,
    inverter: GradientInverter,
    *,
    weight_decay: float | None = 0.0,
    example: torch.Tensor | None = None,
    **audit: Any,
) -> AuditResult:
    """Audit weights after one step of an adaptive optimiser.

    Parameters
    ----------
    model, after, learning_rate, optimizer, weight_decay
        As of `first_step`; ``after`` holds every floating-point parameter.
    inverter : GradientInverter
        What attacks each layer. Its batch size, if there is one, is the rank that is tried first.
    example : torch.Tensor or None, default=None
        As of `sparsedl_fl.audit.audit_model`.
    **audit
        Its further arguments.

    Returns
    -------
    AuditResult
        OUT OF RANGE, with the reason, where no gradient of low rank fits; token ids show all the same.
    """
    trace = trace_model(model, example)
    tables = token_tables(model, trace.example if example is None else example)
    client: dict[str, Any] = {"weight_decay": weight_decay, "batch_size": inverter.batch_size, "tables": tables}
    given = {"optimizer": optimizer, "learning_rate": learning_rate, "n_steps": 1}
    given |= {"batch_size": inverter.batch_size, "weight_decay": weight_decay or 0.0}
    try:
        found = first_step(model, after, trace, learning_rate, optimizer, **client)
    except NoFirstStep as reason:
        moves = {name: tensor.detach() - after[name] for name, tensor in plain_parameters(model).items()}
        result = out_of_range(model, str(reason), example, gradients=moves, optimizer=optimizer)
        return replace(result, context={**result.context, "declared": with_more(result.context["declared"], **given)})
    inverter = clone(inverter).set_params(batch_size=found.batch_size)
    result = audit_model(model, found.update, inverter, example=example, **audit)
    context = {**result.context, "optimizer": optimizer, "declared": with_more(result.context["declared"], **given)}
    context["not_fitted"] = list(found.update.reasons)  # they were sent
    return replace(result, context=context, given_batch_size=client["batch_size"])


@one_thread()
def first_step(
    model: nn.Module,
    after: Mapping[str, torch.Tensor],
    trace: Trace,
    learning_rate: float,
    optimizer: str,
    *,
    weight_decay: float | None = 0.0,
    batch_size: int | None = None,
    tables: tuple[str, ...] = (),
) -> FirstStep:
    """Fit gradients of low rank to the first step of an adaptive optimiser.

    The noise that the fits are left with is drawn into what is beyond their rank, where attacks look for it.

    Parameters
    ----------
    model : torch.nn.Module
        With the weights before the step.
    after : mapping of str to torch.Tensor
        The weights after it, by plain name.
    trace : Trace
        What a run of the model showed.
    learning_rate : float
        The client's, exactly: at one part in a million off, nothing fits.
    optimizer : str
        One of `FIRST_STEPS`.
    weight_decay : float or None, default=0
        The client's; None counts as zero.
    batch_size : int or None, default=None
        A rank to try first.
    tables : tuple of str, default=()
        Embeddings, whose unchanged rows say which tokens there are not.

    Raises
    ------
    NoFirstStep
        With the reason.
    """
    spoilt = next((name for name, tensor in after.items() if not tensor.isfinite().all()), None)
    if spoilt is not None:
        raise NoFirstStep(f"the weights after the step have NaN or infinity in {spoilt!r}")
    client = Client(FIRST_STEPS[plain_optimizer(optimizer)], learning_rate, weight_decay or 0.0)
    before = plain_parameters(model)
    found = CompletedUpdate(dict.fromkeys(before))
    for name in tables:
        found.gradients[name] = before[name].detach().cpu().double() - after[name].cpu().double()
    # The largest layer first: its rank is tried first in the others.
    uses = {use.weight: use for use in trace.layers if use.weight in before and use.weight not in tables}
    ordered = sorted(uses.values(), key=lambda use: -min(before[use.weight].shape))
    shares, ranks = _fit_layers(found, client, before, after, ordered, batch_size)
    if not found.open_rows:
        if ranks or not shares:
            raise NoFirstStep(next(iter(found.reasons.values())))
        raise NoFirstStep(
            f"no gradient of low rank fits the update as a first step of {optimizer} at "
            f"{argument_with('learning_rate', learning_rate)}: more than one step, another rate or weight decay, too "
            "large a batch, or weights so large that their rounding hides the gradient"
        )
    note = (
        f"the update is one step of {optimizer}: {min(shares):.0%} to {max(shares):.0%} of a matrix show their "
        f"gradient, and {len(found.open_rows)} of {len(shares)} gradients were fitted to these, of rank "
        f"{' and '.join(map(str, sorted(set(ranks))))}"
    )
    update = CompletedUpdate(**{**vars(found), "notes": (note,), "doubt": DOUBT})
    is_one = len(set(ranks)) == 1 and all(use.rows == 1 for use in ordered)
    return FirstStep(update, ranks[0] if is_one else None)


def _fit_layers(
    found: CompletedUpdate,
    client: Client,
    before: Mapping[str, torch.Tensor],
    after: Mapping[str, torch.Tensor],
    uses: Sequence[LinearUse],
    likely: int | None,
) -> tuple[list[float], list[int]]:
    """Fit the gradients of layers; return the share that each shows, and the rank of each that was fitted."""
    shares: list[float] = []
    ranks: list[int] = []
    for use in uses:
        if before[use.weight].numel() > MOST_ENTRIES:
            found.reasons[use.weight] = f"{use.weight!r} is too large to fit its gradient to one step"
            continue
        steps = client.steps(before, after, use)
        if (np.abs(steps.values) > 1 + BEYOND * steps.deviations).any():
            longest = float(np.abs(steps.values).max())
            raise NoFirstStep(
                f"not one step of this optimiser: weights of {use.name!r} moved by up to {longest:.7g} times as far as "
                f"one step at {argument_with('learning_rate', client.learning_rate)} can; several local steps are out "
                "of range"
            )
        shares.append(float(steps.seen.mean()))
        fit = _put(found, use, steps, ranks[-1] if ranks else likely)
        if fit is not None:
            ranks.append(fit.left.shape[1])
    return shares, ranks


def _put(found: CompletedUpdate, use: LinearUse, steps: Steps, rank: int | None) -> SaturatedFit | None:
    """Fit the gradient of a layer, and put it and its bias where they belong; return the fit, or None."""
    has_bias = bool(use.bias)
    if has_bias:  # what it shows by itself, of labels its signs
        bounds = np.sign(steps.values) * steps.eps / np.maximum(steps.room, steps.deviations)
        found.gradients[use.bias] = torch.from_numpy(np.where(steps.seen, steps.start()[0], bounds)[:, -1].copy())
    rows, columns = (np.asarray(steps.seen.any(axis=axis)) for axis in (1, 0))
    if min(rows.sum(), columns.sum()) < 2:
        found.reasons[use.weight] = f"the step shows nothing of the gradient of {use.weight!r}"
        return None
    fit = fit_smallest(steps.part(rows, columns), rank)
    if fit is None:
        found.reasons[use.weight] = (
            f"no gradient of low rank fits the step of {use.weight!r}: too few of its entries show, or the batch "
            "is too large for it"
        )
        return None
    least = SPARE * fit.left.shape[1]
    open_rows, open_columns = (steps.moved.any(axis=axis) & (steps.seen.sum(axis=axis) < least) for axis in (1, 0))
    open_rows[rows] |= fit.row_noise > NOISY * np.median(fit.row_noise)
    noisy, share = _with_noise(fit, ~open_rows[rows])
    if not share <= MOST_NOISE:
        found.reasons[use.weight] = (
            f"the step shows too little of the gradient of {use.weight!r}: the errors of a fit are {share:.0%} of its "
            f"least singular value, and at most {MOST_NOISE:.0%} are in range"
        )
        return fit
    gradient = np.zeros(steps.values.shape)
    gradient[np.ix_(rows, columns)] = noisy
    weight = gradient[:, :-1] if has_bias else gradient
    found.open_rows[use.weight] = open_rows
    found.open_columns[use.weight] = open_columns[: weight.shape[1]]
    is_whole = not (found.open_rows[use.weight].any() or found.open_columns[use.weight].any())
    place = found.gradients if is_whole else found.partly
    place[use.weight] = torch.from_numpy(np.ascontiguousarray(weight.T if use.is_transposed else weight))
    if has_bias:
        place[use.bias] = torch.from_numpy(gradient[:, -1].copy())
    if use.is_transposed:
        parts = found.open_rows[use.weight], found.open_columns[use.weight]
        found.open_columns[use.weight], found.open_rows[use.weight] = parts
    return fit


def _with_noise(fit: SaturatedFit, kept: np.ndarray) -> tuple[np.ndarray, float]:
    """Return a fit with its noise drawn into what is beyond its rank, where attacks look for noise, zero in other rows.

    And the largest singular value of that noise, over the least of the fit.
    """
    gradient, b = np.where(kept[:, None], fit.gradient, 0.0), fit.left.shape[1]
    if kept.sum() <= b:
        return gradient, np.inf
    U, S, V = np.linalg.svd(gradient, full_matrices=False)
    U, V = U[:, :b], V[:b]
    rows = np.where(kept, fit.row_noise, 0.0)
    sizes = np.sqrt(np.mean(rows[kept] ** 2)), np.sqrt(np.mean(fit.column_noise**2))
    level = np.outer(rows, fit.column_noise) / max(min(sizes), np.finfo(float).tiny)
    level[:, -1] *= OF_SCALE
    noise = level * np.random.default_rng(0).standard_normal(gradient.shape)
    noise -= U @ (U.T @ noise)
    noise -= (noise @ V.T) @ V
    return gradient + noise, float(np.linalg.norm(noise, 2) / S[b - 1])
