"""A picture of an audit, for notebooks."""

from __future__ import annotations

from typing import Any

from sparsedl_fl.audit.facts import AuditFacts

__all__ = ["plot_layers"]


def plot_layers(result: AuditFacts, axes: Any = None) -> Any:
    """Draw how much of its batch each layer gives away, on matplotlib axes; returns these."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("plot needs matplotlib: pip install 'sparsedl[audit]'") from error
    layers = [layer for layer in result.layers if layer.n_inputs]
    if axes is None:
        axes = Figure(figsize=(6, 0.4 * len(layers) + 1.2), layout="constrained").subplots()
    names = [f"{layer.name}\n{layer.what}" for layer in layers]
    axes.barh(names, [layer.n_inputs for layer in layers], color="0.85", label="in the gradient")
    axes.barh(names, [layer.n_certified for layer in layers], color="tab:red", label="recovered, certified")
    axes.invert_yaxis()
    axes.set_xlabel("inputs of the layer")
    axes.set_title(str(result.verdict))
    axes.legend(loc="lower right", frameon=False, fontsize="small")
    return axes
