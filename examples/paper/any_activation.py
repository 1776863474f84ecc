"""Batches behind networks with any activation."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from paper.clients import Wired
from paper.experiments import ImageBatch
from paper.models.activations import MODULES
from sparsedl_fl.simulation import fully_connected

__all__ = ["ACTIVATION_ROWS", "COARSE", "QUANTISED_ROWS", "SPAN_ROWS", "ActivationBatch"]


@dataclass(frozen=True)
class ActivationBatch(ImageBatch):
    """Images behind a fully connected network with another activation than ReLU.

    Attributes
    ----------
    activation : str
        A name in `MODULES`.
    """

    activation: str = "relu"

    def network(self, n_inputs: int, n_classes: int, seed: int) -> nn.Sequential:
        """Return the network of a seed."""
        model = fully_connected(
            n_inputs, width=self.width, n_hidden=self.n_hidden, n_classes=n_classes, random_state=seed
        )
        for index in range(1, len(model), 2):
            model[index] = MODULES[self.activation]()
        return model


ACTIVATION_ROWS = {
    f"{name}-{b}x{m}": ActivationBatch(b, m, activation=name)
    for b, m in ((20, 200), (50, 200), (80, 200), (95, 200), (100, 1000), (300, 1000))
    for name in MODULES
}
"""Of the table of activations."""

SPAN_ROWS = {
    f"{name}-{b}x{m}-spans{n_hidden - 1}": ActivationBatch(b, m, n_hidden=n_hidden, activation=name)
    for name in ("gelu", "silu", "elu", "tanh", "relu")
    for b, m, n_hidden in ((105, 200, 3), (110, 200, 3), (120, 200, 3), (125, 200, 3), (140, 200, 4), (550, 1000, 3))
}
"""Of the table beyond half the width."""

COARSE = 35.0
"""Mean PSNR in dB above which a batch of a quantised gradient counts: pictures in which nothing is left to hide."""

QUANTISED_ROWS = {
    f"{name}-{wire.replace(' ', '-')}": ActivationBatch(
        16, 400, activation=name, client=Wired(wire), exact_above=COARSE
    )
    for name in ("relu", "gelu", "leaky-relu-0.2", "tanh")
    for wire in ("float16", "bfloat16", "int8", "int8 by row", "int4")
}
"""Of the table of coarse number formats."""
