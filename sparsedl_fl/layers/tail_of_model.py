"""The network tail of a layer, as a module that is traced from a model."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from sparsedl_fl.layers.network_tail import RestOfNetwork
from sparsedl_fl.tracing.naming import plain_modules, unwrapped
from sparsedl_fl.tracing.tracing import LinearUse, Trace, hooked, in_evaluation

__all__ = ["rest_of_model"]

CANDIDATES = (53, 59, 61, 67, 71, 73)
"""Batch sizes for tracing: the first that is no size of a layer, so that it cannot be mistaken for one."""

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def rest_of_model(
    model: nn.Module, use: LinearUse, trace: Trace, loss: str | Loss | None = None
) -> RestOfNetwork | None:
    """Return the network tail of a layer, or None where there is none.

    There is none where a path around the layer carries information that its outputs lack, or where later modules mix
    inputs.

    Parameters
    ----------
    model : torch.nn.Module
        The model; it is left as it was.
    use : LinearUse
        The layer, as a run showed it.
    trace : Trace
        That run.
    loss : str or callable, default=None
        As of `RestOfNetwork`.
    """
    if use.rows != 1 or trace.example is None:
        return None
    if use.is_last:
        return RestOfNetwork.of_head(loss)
    model = unwrapped(model)
    layer = use.norm if use.norm is not None else plain_modules(model).get(use.name)
    if layer is None:
        return None
    try:
        example = trace.example[:1]
        if _mixes_downstream(model, layer, example):
            return None
        if type(model) is nn.Sequential and layer in list(model):
            module = model[list(model).index(layer) + 1 :]
        else:
            module = _traced(model, layer, example)
        if module is None:
            return None
        tail = RestOfNetwork(module, loss)
        tail.check(use.width)
    except Exception:  # a model may raise anything: its tail is then not known
        return None
    return tail


def _mixes_downstream(model: nn.Module, layer: nn.Module, example: torch.Tensor) -> bool:
    """Return whether batch normalisation in training mode runs after a layer."""
    kind = nn.modules.batchnorm._BatchNorm
    mixing = [part for part in model.modules() if isinstance(part, kind) and part.training and part is not layer]
    if not mixing:
        return False
    order: list[nn.Module] = []
    watched = dict.fromkeys((layer, *mixing), lambda part, *_: order.append(part))
    with in_evaluation(model), torch.no_grad(), hooked(watched):
        model(example)
    return any(part is not layer for part in order[order.index(layer) :])


class _TracedTail(nn.Module):
    """A traced graph, which may ask for the shape of the model's input."""

    example: torch.Tensor

    def __init__(self, graph: torch.fx.GraphModule, example: torch.Tensor) -> None:
        super().__init__()
        self.graph = graph
        self.register_buffer("example", example)

    def forward(self, outputs: torch.Tensor) -> torch.Tensor:
        return self.graph(self.example.expand(len(outputs), *self.example.shape[1:]), outputs)


def _free_of_size(graph: torch.fx.Graph, n: int) -> None:
    """Replace the traced batch size, as from ``len(x)``, by that of the graph's input."""
    *_, outputs = (node for node in graph.nodes if node.op == "placeholder")
    with graph.inserting_after(outputs):
        size = graph.call_function(torch.ops.aten.sym_size.int, (outputs, 0))
    for node in graph.nodes:
        if node is not size and node.op == "call_function":
            node.args = torch.fx.node.map_aggregate(
                node.args, lambda part: size if type(part) is int and part == n else part
            )


def _traced(model: nn.Module, layer: nn.Module, example: torch.Tensor) -> nn.Module | None:
    """Return the operations after a layer as a module of its outputs, for any batch size; None if others matter.

    The model runs once on shapes alone, with the layer's outputs replaced; what does not depend on these is left out.
    """
    from torch.fx.experimental.proxy_tensor import make_fx  # slow to import, and not needed for most models

    outputs: list[torch.Tensor] = []

    def run(x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        with hooked({layer: lambda *_: z}):
            return model(x)

    with in_evaluation(model), torch.no_grad():
        with hooked({layer: lambda part, given, found: outputs.append(found)}):
            model(example)
        sizes = {size for tensor in (*model.parameters(), example) for size in tensor.shape}
        n = next(number for number in CANDIDATES if number not in sizes)
        many, replacing = (tensor.expand(n, *tensor.shape[1:]) for tensor in (example, outputs[0]))
        traced = make_fx(run, tracing_mode="symbolic", _allow_non_fake_inputs=True)(many, replacing)
    _free_of_size(traced.graph, n)
    traced.graph.eliminate_dead_code()
    given, replaced = (node for node in traced.graph.nodes if node.op == "placeholder")
    if not replaced.users or any(user.target is not torch.ops.aten.sym_size.int for user in given.users):
        return None
    graph = torch.fx.GraphModule(traced, traced.graph)
    for name, value in list(vars(graph).items()):
        if isinstance(value, torch.Tensor):  # constants, which would otherwise keep their precision
            delattr(graph, name)
            graph.register_buffer(name, value)
    return _TracedTail(graph, example)
