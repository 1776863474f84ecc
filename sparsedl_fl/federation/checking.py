"""The client's own check of an update, for any framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Sized
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from sparsedl.process import neutral_modes
from sparsedl_fl.audit import AuditResult, Verdict, audit_model, out_of_range
from sparsedl_fl.audit.declared import with_more
from sparsedl_fl.audit.first_step import audit_first_step, is_first_step
from sparsedl_fl.federation.arguments import check_arguments
from sparsedl_fl.inverter import GradientInverter
from sparsedl_fl.layers.updates import gradients_of_update, obstacle_of_optimizer
from sparsedl_fl.tracing.naming import check_same_tensors, plain_names, unwrapped, with_names_of

__all__ = ["check_update", "state_of"]

State = Mapping[str, Any] | Sequence[Any]


@neutral_modes(gradients=True)
def check_update(
    model: nn.Module | Callable[[], nn.Module],
    before: State | None,
    after: State,
    *,
    learning_rate: float,
    n_steps: int | None = None,
    momentum: float = 0.0,
    weight_decay: float | None = 0.0,
    optimizer: str = "sgd",
    is_difference: bool = False,
    batch_size: int | None = None,
    example: torch.Tensor | None = None,
    loss: str | Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
    max_effort: float | None = None,
    max_seconds: float | None = None,
    random_state: int = 0,
) -> AuditResult:
    """Say what the server could read from an update, before it leaves.

    Parameters
    ----------
    model : torch.nn.Module or callable
        The model, which is not changed, or a function that makes one.
    before, after : mapping of name to tensor or array, or sequence of arrays
        Weights before and after local training; arrays without names are in the order of ``model.state_dict()``.
        ``before`` is None for those that the model has.
    learning_rate : float
        The client's.
    n_steps, momentum, weight_decay, optimizer
        Of the client, as of `sparsedl_fl.models.gradients_of_update`; any other optimiser of `torch.optim` than "sgd"
        is OUT OF RANGE.
    is_difference : bool, default=False
        Whether ``after`` holds the difference to ``before`` instead. Arrays that are nearer to zero than to ``before``
        may be differences or gradients all the same: they are audited both ways, and the worst result counts.
    batch_size : int or None, default=None
        Records of the update; None finds their number.
    example, loss
        As of `sparsedl_fl.audit.audit_model`.
    max_effort, max_seconds : float or None, default=None
        Caps on the searches, as of `sparsedl_fl.audit.audit_model`; None lets each run to its end. An audit that a cap
        has cut short is not complete (`AuditResult.is_complete`), and concludes nothing from what it did not find.
    random_state : int, default=0
        Seed.

    Returns
    -------
    AuditResult
        Its ``verdict`` and ``reason`` say what was recovered.

    Raises
    ------
    ValueError
        If an argument makes no sense, or the states are not of this model; the tensor that does not fit is named.

    Examples
    --------
    >>> from sparsedl_fl.simulation import fedavg_update, fully_connected
    >>> model = fully_connected(64, width=100, random_state=0)
    >>> batch = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))
    >>> before, after = fedavg_update(model, batch, torch.arange(4), learning_rate=0.1)
    >>> str(check_update(model, before, after, learning_rate=0.1, n_steps=1).verdict)
    'RECOVERED'
    """
    client = {"n_steps": n_steps, "momentum": momentum, "weight_decay": weight_decay}
    audit = {"example": example, "loss": loss, "max_effort": max_effort, "max_seconds": max_seconds}
    check_arguments(
        model=model, learning_rate=learning_rate, **client, optimizer=optimizer, batch_size=batch_size, **audit
    )
    given = {**client, "learning_rate": learning_rate, "optimizer": optimizer, "batch_size": batch_size}
    inner = _at(model, before)
    sent = state_of(inner, after, "after")
    if obstacle_of_optimizer(optimizer):
        result = _of_adaptive_steps(inner, sent, is_difference, given | {"random_state": random_state}, audit)
        return _declaring(result, is_difference, given)
    audit |= {"inverter": GradientInverter(batch_size=batch_size, random_state=random_state)}
    audit |= {"learning_rate": None if n_steps == 1 else learning_rate}
    client["learning_rate"] = learning_rate
    return _declaring(_worst_reading(inner, sent, is_difference, client, audit), is_difference, given)


def _declaring(result: AuditResult, is_difference: bool, given: Mapping[str, Any]) -> AuditResult:
    """Return a result whose report has what the arguments declare of the client."""
    kind = "difference to the weights before training" if is_difference else "weights after local training"
    entries = with_more(result.context["declared"], kind=kind, **given)
    return replace(result, context={**result.context, "declared": entries})


def _worst_reading(
    model: nn.Module, sent: Mapping[str, torch.Tensor], is_difference: bool, client: dict, audit: dict
) -> AuditResult:
    """Audit arrays in each way in which they can be meant, as weights or as differences, until an interrupt."""
    before = {name: tensor.detach() for name, tensor in model.named_parameters()}
    starts = {name: tensor.cpu().double() for name, tensor in before.items()}
    given = {name: sent[name].cpu().double() for name in starts}
    added = {name: tensor + given[name] for name, tensor in starts.items()}
    far = sum(float((given[name] - tensor).square().sum()) for name, tensor in starts.items())
    size = sum(float(tensor.square().sum()) for tensor in given.values())
    results = []
    for after in [added] if is_difference else [given, added] if size < far else [given]:
        results.append(audit_model(model, gradients_of_update(before, after, **client), **audit))
        if results[-1].is_interrupted:
            break
    return min(results, key=_comfort)


def _of_adaptive_steps(
    model: nn.Module, sent: Mapping[str, torch.Tensor], is_difference: bool, client: dict[str, Any], audit: dict
) -> AuditResult:
    """Audit one step of an adaptive optimiser; of several, token ids show."""
    parameters = {name: tensor.detach() for name, tensor in model.named_parameters()}
    moves = {name: sent[name] if is_difference else tensor - sent[name] for name, tensor in parameters.items()}
    optimizer, n_steps = client["optimizer"], client["n_steps"]
    spoilt = [name for name, tensor in sent.items() if not tensor.isfinite().all()]
    if is_first_step(optimizer, n_steps) and not spoilt:
        after = {name: tensor + sent[name] for name, tensor in parameters.items()} if is_difference else sent
        inverter = GradientInverter(batch_size=client["batch_size"], random_state=client["random_state"])
        step = {"learning_rate": client["learning_rate"], "weight_decay": client["weight_decay"]}
        return audit_first_step(model, after, optimizer=optimizer, inverter=inverter, **step, **audit)
    facts = {key: client[key] for key in ("n_steps", "weight_decay", "optimizer")}
    facts |= {"momentum": client["momentum"] or None, "missing": spoilt or None}
    return out_of_range(model, obstacle_of_optimizer(optimizer), audit["example"], gradients=moves, **facts)


def _comfort(result: AuditResult) -> tuple[int, int, int]:
    """Return how little a result worries: leaks first, certified ones before likely; the unfinished; then the rest.

    (A difference that is read as weights leaks too, with the rounding of the model's weights on top of it.)
    """
    if result.verdict.is_leak:
        n_certified = result.best.n_certified if result.best else 0
        return 0, list(Verdict).index(result.verdict), -n_certified
    return 1, result.is_complete, result.verdict is Verdict.NOT_RECOVERED


def _at(model: nn.Module | Callable[[], nn.Module], before: State | None) -> nn.Module:
    """Return a copy of the model without its wrappers, with the weights that a client was given."""
    model = deepcopy(model) if isinstance(model, nn.Module) else model()
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module or return one, got {type(model).__name__}")
    inner = unwrapped(model)
    if before is not None:
        inner.load_state_dict(state_of(inner, before, "before"))
    return inner


def state_of(model: nn.Module, given: State, argument: str) -> dict[str, torch.Tensor]:
    """Return a whole state of a model by plain name; what is not given, such as buffers, stays as the model has it."""
    own, parameters = model.state_dict(), [name for name, _ in model.named_parameters()]
    trained = [name for name, tensor in model.named_parameters() if tensor.requires_grad]
    if not isinstance(given, Sized):
        raise ValueError(f"{argument} must hold arrays by name or in order, got {type(given).__name__}")
    if len(given) == 0:
        raise ValueError(f"{argument} holds no arrays: they travel elsewhere, or secure aggregation masks them, and "
                         "then the sum can be audited")  # fmt: skip
    if not isinstance(given, Mapping):
        arrays = list(given)
        names = next((names for names in (list(own), parameters, trained) if len(names) == len(arrays)), None)
        if names is None:
            raise ValueError(f"{argument} has {len(arrays)} arrays, and the model's state has {len(own)}")
        given = dict(zip(names, arrays, strict=True))
    given = with_names_of(own, plain_names(argument, given))
    named = {name: _as_tensor(value, argument, name) for name, value in given.items()}
    check_same_tensors(own, named, argument, needed=trained or parameters)
    for name, tensor in named.items():
        if own[name].is_floating_point() and not tensor.is_floating_point():
            kind = str(tensor.dtype).removeprefix("torch.")
            raise ValueError(f"{argument} has {name!r} in {kind}, and the model has weights there: what was rounded to "
                             "integers or packed cannot be read; audit it before that")  # fmt: skip
        named[name] = tensor.detach() if own[name].is_floating_point() else tensor.detach().to(own[name].dtype)
    return own | named


def _as_tensor(value: Any, argument: str, name: str) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value
    try:
        return torch.as_tensor(np.asarray(value))
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{argument} has {name!r} that is no array of numbers: {error}") from error
