"""The kinds of problems of the yardstick, each with how many seeds it is run on."""

from __future__ import annotations

from functools import partial

from torch import nn

from paper.any_activation import MODULES
from paper.clients import DPSGD, FedAvg, Wired
from sparsedl_fl.directions import DictionaryDirections, KernelDirections
from tests.frontier.problems import Batch, Dictionary, Kind, OneStep, Photographs, Rows
from tests.frontier.whole import BankOfUpdates, Example, Tokens
from tests.hostile.bank import cases

__all__ = ["KINDS"]

MANY, FEW = 10, 3
"""Seeds where a problem is cheap, and where it takes more than some ten seconds."""

ELSEWHERE = ("relu", "gelu-tanh", "hardtanh")
"""Activations that have rows of their own, or a twin."""

ONE_LAYER = {
    "relu 20x200, one layer": (Batch(Photographs(20, 200, seen="one")), MANY),
    "relu 45x200, one layer": (Batch(Photographs(45, 200, seen="one")), MANY),
    "relu 65x1000, one layer": (Batch(Photographs(65, 1000, seen="one")), MANY),
    "relu 180x1000, one layer": (Batch(Photographs(180, 1000, seen="one")), FEW),
    "gelu 40x200, weights of the rest": (Batch(Photographs(40, 200, nn.GELU, seen="rest")), MANY),
    "elu 40x200, weights of the rest": (Batch(Photographs(40, 200, nn.ELU, seen="rest")), MANY),
    "elu 80x200, weights of the rest": (Batch(Photographs(80, 200, nn.ELU, seen="rest")), FEW),
    "tanh 40x200, weights of the rest": (Batch(Photographs(40, 200, nn.Tanh, seen="rest")), MANY),
}

NEXT_LAYER = {
    f"relu {b}x200, next layer": (Batch(Photographs(b, 200, seen="next")), n)
    for b, n in ((60, MANY), (90, MANY), (98, MANY))
} | {"relu 250x1000, next layer": (Batch(Photographs(250, 1000, seen="next")), FEW)}

ALL_LAYERS = {
    "relu 105x200, all layers": (Batch(Photographs(105, 200)), FEW),
    "gelu 95x200, all layers": (Batch(Photographs(95, 200, nn.GELU)), MANY),
    "gelu 120x200, all layers": (Batch(Photographs(120, 200, nn.GELU)), FEW),
    "tanh 110x200, all layers": (Batch(Photographs(110, 200, nn.Tanh)), FEW),
    "selu 95x200, all layers": (Batch(Photographs(95, 200, nn.SELU)), FEW),
    "hardtanh 20x200, all layers": (Batch(Photographs(20, 200, nn.Hardtanh)), MANY),
    "relu 60x200, 300 steps": (Batch(Photographs(60, 200, n_steps=300)), MANY),
    "relu 80x200, raw pixels": (Batch(Photographs(80, 200, is_raw=True)), FEW),
    "relu 40x200, raw pixels": (Batch(Photographs(40, 200, is_raw=True)), MANY),
} | {
    f"{name} 60x200": (Batch(Photographs(60, 200, make)), MANY)
    for name, make in MODULES.items()
    if name not in ELSEWHERE
}

HEADS = {
    "relu 90x200, before a head": (Batch(Photographs(90, 200, n_hidden=1)), MANY),
    "relu 110x200, before a head": (Batch(Photographs(110, 200, n_hidden=1)), FEW),
    "relu 60x200, before a head, 300 steps": (Batch(Photographs(60, 200, n_hidden=1, n_steps=300)), MANY),
    "head 16 in 100": (Batch(Photographs(16, 0, n_hidden=0, n_classes=100)), MANY),
    "head 40 in 100": (Batch(Photographs(40, 0, n_hidden=0, n_classes=100)), MANY),
    "head 40 in 100, 300 steps": (Batch(Photographs(40, 0, n_hidden=0, n_classes=100, n_steps=300)), MANY),
}

CLIENTS = {
    "relu 16x400, float16": (
        Batch(Photographs(16, 400, client=Wired("float16"), told=("batch_size",)), exact=0.1),
        MANY,
    ),
    "relu 16x400, int8": (Batch(Photographs(16, 400, client=Wired("int8"), told=("batch_size",)), exact=0.1), MANY),
    "gelu 16x400, bfloat16": (
        Batch(Photographs(16, 400, nn.GELU, client=Wired("bfloat16"), told=("batch_size",)), exact=0.1),
        MANY,
    ),
    "relu 20x200, 5 epochs": (Batch(Photographs(20, 200, client=FedAvg(5, None, 0.01))), MANY),
    "relu 20x200, 5 epochs of 4 steps": (
        Batch(Photographs(20, 200, client=FedAvg(5, 5, 0.01), told=("batch_size",))),
        MANY,
    ),
    "digits 16x200, one step of stored weights": (Batch(Rows(16, 200, table="digits", client=OneStep())), MANY),
    "relu 20x200, noise 1e-4": (
        Batch(Photographs(20, 200, client=DPSGD(2.0, 1e-4), told=("batch_size", "noise_level")), exact=0.1),
        MANY,
    ),
}

CROWDED = {
    "rows 64x200 of 30 features": (Batch(Rows(64, 200)), MANY),
    "rows 100x400 of 30 features, 50 steps": (Batch(Rows(100, 400, 50)), FEW),
    "tokens of a text": (Tokens("text"), FEW),
    "tokens of a picture": (Tokens("vision"), FEW),
}

OTHER_STRATEGIES = {
    "relu 30x200, dictionary alone": (
        Batch(Photographs(30, 200, seen="one"), partial(DictionaryDirections, sparsity="gradient")),
        MANY,
    ),
    "relu 100x1000, dictionary alone": (
        Batch(Photographs(100, 1000, seen="one"), partial(DictionaryDirections, sparsity="gradient")),
        FEW,
    ),
    "relu 12x200, kernels": (Batch(Photographs(12, 200, seen="one"), KernelDirections), MANY),
}

DICTIONARIES = {
    "dictionary 50, 10 a component": (Dictionary(50, 10, 0.5), MANY),
    "dictionary 20, 5 a component": (Dictionary(20, 5, 0.5), MANY),
    "dictionary 100, 6 a component": (Dictionary(100, 6, 0.5), FEW),
    "dictionary 50, 20 a component, noise": (Dictionary(50, 20, 0.7, noise=0.03), MANY),
}

WHOLE = {"bank of updates": (BankOfUpdates(), len(cases())), "audit --example": (Example(), 1)}

KINDS: dict[str, tuple[Kind, int]] = {
    **ONE_LAYER,
    **NEXT_LAYER,
    **ALL_LAYERS,
    **HEADS,
    **CLIENTS,
    **CROWDED,
    **OTHER_STRATEGIES,
    **DICTIONARIES,
    **WHOLE,
}
"""Kinds by name, and the number of seeds; the bank of updates has a seed for each of its cases."""
