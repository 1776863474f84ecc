"""Updates of adapters (LoRA): the gradients of the layers that they stand beside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from sparsedl.process import one_thread
from sparsedl_fl.audit.completed_update import CompletedUpdate
from sparsedl_fl.lowrank.adapters import NotDetermined, gradient_of_product
from sparsedl_fl.lowrank.measured import precision_of
from sparsedl_fl.tracing.adapters import Adapter
from sparsedl_fl.tracing.uses import Trace

__all__ = ["with_full_gradients"]

SEVERAL_STEPS = (
    "only an adapter of the layer was trained, in several local steps: these change both of its factors, so that the "
    "change of neither is a sum of gradients at the same weights"
)


DOUBT = "the gradient follows from an adapter's two factors, whose errors may hide the records"


@one_thread()
def with_full_gradients(
    adapters: Sequence[Adapter],
    weights: Mapping[str, torch.Tensor],
    gradients: Mapping[str, torch.Tensor | None],
    trace: Trace,
    batch_size: int | None = None,
    *,
    is_one_step: bool = True,
) -> CompletedUpdate:
    """Return an update by the names of the model whose adapters are merged.

    Parameters
    ----------
    adapters : sequence of Adapter
        Those of the model.
    weights : mapping of str to torch.Tensor
        The model's parameters, by plain name, before it was merged.
    gradients : mapping of str to torch.Tensor or None
        What the client sent, by plain name.
    trace : Trace
        What a run of the merged model showed.
    batch_size : int or None, default=None
        Records of the batch, where it is known.
    is_one_step : bool, default=True
        Whether the gradients are those of one step.
    """
    own = {name for adapter in adapters for name in (adapter.weight, adapter.bias, adapter.first, adapter.second)}
    found = CompletedUpdate({name: tensor for name, tensor in gradients.items() if name not in own})
    reasons: dict[str, str] = {}
    ranks = []
    for adapter in adapters:
        name = f"{adapter.name}.weight".removeprefix(".")
        found.gradients[name] = None
        bias = gradients.get(adapter.bias)
        if adapter.bias:
            found.gradients[name.removesuffix("weight") + "bias"] = bias
        if gradients.get(adapter.first) is None or gradients.get(adapter.second) is None:
            continue
        use = trace.use_of(adapter.name)
        has_one_row = use is not None and use.rows == 1 and trace.n_uses(use.name) == 1
        try:
            if not is_one_step:
                raise NotDetermined(SEVERAL_STEPS)
            factors = [part.numpy() for tensors in (gradients, weights) for part in adapter.factors(tensors)]
            of_bias = None if bias is None else bias.detach().cpu().double().numpy()
            of_first, of_second, first, second = factors
            size = batch_size if has_one_row else None
            fit = gradient_of_product(of_first, of_second, first, second, adapter.scale, of_bias, size)
        except NotDetermined as reason:
            reasons[name] = str(reason)
            continue
        sent = gradients[adapter.second]
        found.gradients[name] = torch.from_numpy(fit.gradient).to(sent.device, _format_of(sent))
        ranks.append(fit.rank)
    n_sent = len(ranks) + len(reasons)
    sizes = " to ".join(map(str, sorted({min(ranks), max(ranks)}))) if ranks else ""
    shown = f", of {sizes} inputs each" if ranks else ""
    note = (
        f"the update holds {n_sent} adapters (LoRA); the gradients of {len(ranks)} of the layers beside which they "
        f"stand follow from both of an adapter's factors{shown}"
    )
    return CompletedUpdate(found.gradients, reasons=reasons, notes=(note,) if n_sent else (), doubt=DOUBT)


def _format_of(sent: torch.Tensor) -> torch.dtype:
    """Return single precision, or double where the client computed in it: what follows is no more exact than that."""
    matrix = sent.detach().cpu().double().numpy()
    return torch.float64 if precision_of(matrix) < torch.finfo(torch.float32).eps else torch.float32
