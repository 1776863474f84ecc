"""Look at a torch module: which linear layers run, in which order, and what follows each.

- `trace_model` runs the model once on an example and compares numbers, so that functional calls, layers declared in
  another order and linear layers of one's own are recognised by what they compute.
- `inspect_model` lists the result in rows, one for every module with parameters.
- `named_gradients` returns gradients by the parameters' names; `gradients_of_update` computes them from the states
  before and after local training.
"""

from sparsedl_fl.layers.updates import gradients_of_update
from sparsedl_fl.models.inspection import LayerRow, inspect_model
from sparsedl_fl.tracing.naming import named_gradients, plain_names
from sparsedl_fl.tracing.tracing import LinearUse, Trace, trace_model

__all__ = [
    "LayerRow",
    "LinearUse",
    "Trace",
    "gradients_of_update",
    "inspect_model",
    "named_gradients",
    "plain_names",
    "trace_model",
]
