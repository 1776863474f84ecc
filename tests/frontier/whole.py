"""Kinds that audit whole models or attack transformers: the bank of updates, `audit --example`, tokens."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

from paper.methods import fed_to
from paper.models.transformers import text_transformer, vision_transformer
from sparsedl_fl import LayerGradient
from sparsedl_fl.audit import audit_model, example
from sparsedl_fl.simulation import client_gradient
from tests.frontier.problems import Batch, Kind, Problem, photographs
from tests.hostile.bank import cases, run_case

__all__ = ["BankOfUpdates", "Example", "Tokens"]


@dataclass(frozen=True)
class BankOfUpdates(Kind):
    """The bank of `tests.hostile.bank`: a seed here is the number of a case."""

    def run(self, seed: int) -> dict[str, Any]:
        """Audit a case; false reassurance counts as wrong."""
        found = run_case(cases()[seed])
        n_wrong = sum(found[name] for name in ("n_wrong", "n_wrong_labels", "n_wrong_tokens", "is_false_green"))
        return {
            "exact": float(found["in_hand"]),
            "certified": float(found["n_certified"] > 0),
            "wrong": int(n_wrong) + bool(found["traceback"]),
            "starts": 0,
            "verdict": found["verdict"],
            "counts": {name: found[name] for name in ("n_certified", "n_likely", "n_tokens_said")},
            "status": f"{found['network']} / {found['client']} / {found['wire']}: {found['traceback'][-200:]}",
        }


@dataclass(frozen=True)
class Example(Kind):
    """What `sparsedl-fl audit --example` audits."""

    def run(self, seed: int) -> dict[str, Any]:
        """Audit the update that ships with the package."""
        model = example.model()
        model.load_state_dict(load_file(example.WEIGHTS))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = audit_model(model, load_file(example.UPDATE), example=torch.zeros(1, 1, 8, 8))
        return {
            "exact": float(len(result.samples) > 0),
            "certified": float(len(result.samples) > 0),
            "wrong": 0,
            "starts": 0,
            "verdict": result.verdict.name,
            "counts": {"samples": len(result.samples), "likely": len(result.likely)},
            "status": result.reason,
        }


@dataclass(frozen=True)
class Tokens(Kind):
    """The tokens of a text or of a picture, as they enter the first block's perceptron of a small transformer.

    Attributes
    ----------
    what : str
        "text" or "vision".
    """

    what: str

    def run(self, seed: int) -> dict[str, Any]:
        """Attack the perceptron of the first block."""
        return Batch(self._problem).run(seed)

    def _problem(self, seed: int) -> Problem:
        generator = torch.Generator().manual_seed(seed)
        if self.what == "text":
            model: nn.Module = text_transformer(random_state=seed)
            ids = torch.randint(96, (1, 65), generator=generator)
            inputs, labels = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
        else:
            model = vision_transformer(random_state=seed)
            pixels, classes = photographs(False)
            inputs = pixels[seed : seed + 1].reshape(1, 32, 32, 3).permute(0, 3, 1, 2).contiguous()
            labels = classes[seed : seed + 1] % 10
        sent = LayerGradient.from_model(model, client_gradient(model, inputs, labels), "blocks.0.fc1", inputs[:1])
        truth = fed_to(model, "blocks.0.fc1", inputs).flatten(0, 1)
        return Problem(sent, truth, torch.full((len(truth),), -1))
