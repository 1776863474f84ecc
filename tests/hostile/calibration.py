"""Are likely candidates as like the truth as an audit says? Over updates that nothing certifies in full.

    python -m tests.hostile.calibration [--smooth] [--problems 300] [--only WORD ...] [--out FILE]

Networks x what blurs an update, of batches of 4 to 16, each audited as an ordinary user would: of every second problem
the batch size is told. Results are kept as JSON lines beside the table, so that an interrupted run goes on.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from sparsedl_fl import GradientInverter
from sparsedl_fl.audit import audit_model
from sparsedl_fl.layers.updates import gradients_of_update
from sparsedl_fl.simulation import WIRES as FORMATS
from tests.hostile import data
from tests.hostile.judge import LEAST_CORRELATION, correlation, judged
from tests.hostile.truth import Truth, recorded

__all__ = ["BLURS", "NETWORKS", "SMOOTH", "Blur", "Problem", "problems", "run_problem", "summary"]

NEAR = 0.1
"""Distance between the correlation that an audit states and the true one, up to which it is right."""

EFFORT = 2.0
"""Budget of each audit's searches: 300 problems take eight minutes in place of twenty."""

BATCHES = (4, 6, 8, 12, 16)

Tensors = dict[str, torch.Tensor]


def _perceptron(n_inputs: int, first: int, second: int, activation: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    layers = [nn.Linear(n_inputs, first), activation(), nn.Linear(first, second), activation()]
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(second, data.N_CLASSES))


def _cnn() -> nn.Sequential:
    convolutions = [nn.Conv2d(3, 8, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*convolutions, *_perceptron(64, 100, 50))


def _gaussian(n: int, rng: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    x = rng.standard_normal((n, 100)).astype(np.float32)
    return torch.from_numpy(x), torch.from_numpy(rng.integers(data.N_CLASSES, size=n))


NETWORKS = {
    "CNN, photographs": (_cnn, data.photographs),
    "perceptron, digits": (partial(_perceptron, 64, 100, 50), data.digits),
    "perceptron, photographs": (partial(_perceptron, 768, 120, 60), data.photographs),
    "perceptron, numbers": (partial(_perceptron, 100, 120, 60), _gaussian),
}
"""What makes the module from torch's global seed, and the records."""

SMOOTH = {
    "tanh, digits": (partial(_perceptron, 64, 100, 50, nn.Tanh), data.digits),
    "GELU, digits": (partial(_perceptron, 64, 100, 50, nn.GELU), data.digits),
    "GELU, table": (partial(_perceptron, 55, 80, 40, nn.GELU), data.table),
    "SiLU, photographs": (partial(_perceptron, 768, 120, 60, nn.SiLU), data.photographs),
}
"""The same, without flat parts."""


@dataclass(frozen=True, kw_only=True)
class Blur:
    """What keeps an update from being the exact gradient of one step.

    Attributes
    ----------
    wire : callable
        ``wire(tensor)`` for each tensor of the gradient.
    steps : tuple of int
        Fewest and most local steps; (0, 0) sends a gradient.
    momentum, weight_decay : float
        Of SGD; nobody tells the server.
    weights : torch.dtype
        Of the weights that the server sends and gets back.
    """

    wire: Callable[[torch.Tensor], torch.Tensor] = torch.clone
    steps: tuple[int, int] = (0, 0)
    momentum: float = 0.0
    weight_decay: float = 0.0
    weights: torch.dtype = torch.float32


def _rounded(tensor: torch.Tensor, *, bits: int) -> torch.Tensor:
    """Round to integers of some bits, with one scale for the tensor."""
    step = tensor.abs().max() / (2 ** (bits - 1) - 1)
    return torch.round(tensor / step) * step


def _noised(tensor: torch.Tensor) -> torch.Tensor:
    """Add Gaussian noise of 1 % to 60 % of the root mean square, drawn from torch's global seed."""
    level = 10 ** (-2 + 1.8 * float(torch.rand(())))
    return tensor + level * tensor.square().mean().sqrt() * torch.randn_like(tensor)


BLURS = {
    "8 bits": Blur(wire=FORMATS["int8"]),
    "6 bits": Blur(wire=partial(_rounded, bits=6)),
    "4 bits": Blur(wire=partial(_rounded, bits=4)),
    "noise": Blur(wire=_noised),
    "2 to 9 steps": Blur(steps=(2, 9)),
    "2 or 3 steps, momentum": Blur(steps=(2, 3), momentum=0.9),
    "weight decay": Blur(steps=(1, 1), weight_decay=1e-4),
    "float16 weights": Blur(steps=(1, 1), weights=torch.float16),
    "float32 weights": Blur(steps=(1, 1)),
}
"""By name."""


@dataclass(frozen=True)
class Problem:
    """One update; all that is random follows from the seed."""

    network: str
    blur: str
    seed: int

    @property
    def name(self) -> str:
        """All three."""
        return f"{self.network} / {self.blur} / {self.seed}"

    def audited(self) -> dict[str, Any]:
        """Audit as a user would; return the counts, and of each likely candidate what is stated and what is true."""
        blur, (build, records) = BLURS[self.blur], (NETWORKS | SMOOTH)[self.network]
        rng = np.random.default_rng(self.seed)
        n, rate, n_steps = int(rng.choice(BATCHES)), float(rng.choice([0.1, 0.01])), int(rng.integers(*_closed(blur)))
        truth, is_told = Truth(), self.seed % 2 == 0
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(self.seed)
            model = build()
            _to(model, blur.weights)
            x, y = records(n, rng)
            sent = _trained(deepcopy(model), x, y, truth, blur, rate, n_steps)
            sent = {name: blur.wire(tensor) for name, tensor in sent.items()}
            inverter = GradientInverter(random_state=0, batch_size=n if is_told else None)
            known_rate = rate if n_steps > 1 else None
            result = audit_model(
                model, sent, inverter, example=torch.randn(x[:2].shape), loss="cross_entropy",
                learning_rate=known_rate, max_effort=EFFORT,
            )  # fmt: skip
        by_truth = judged(result, truth)
        truth.runs = truth.runs[:1]  # later steps moved the features a little
        pairs = [(float(one.correlation), correlation(one, truth)) for one in result.likely]
        return {
            "verdict": by_truth.verdict, "n": n, "is_told": is_told, "n_certified": by_truth.n_certified,
            "n_wrong": by_truth.n_wrong, "is_false_green": by_truth.is_false_green, "likely": pairs,
        }  # fmt: skip


def _closed(blur: Blur) -> tuple[int, int]:
    return blur.steps[0], blur.steps[1] + 1


def _to(model: nn.Module, dtype: torch.dtype) -> None:
    """Bring the weights to numbers that a format has."""
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.copy_(tensor.to(dtype))


def _trained(
    model: nn.Module, x: torch.Tensor, y: torch.Tensor, truth: Truth, blur: Blur, rate: float, n_steps: int
) -> Tensors:
    """Return a gradient, or the difference of the weights over the rate."""
    named = dict(model.named_parameters())
    if n_steps == 0:
        with recorded(model, truth):
            loss = cross_entropy(model(x), y)
        return dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))
    before = {name: tensor.detach().clone() for name, tensor in named.items()}
    sgd = torch.optim.SGD(named.values(), lr=rate, momentum=blur.momentum, weight_decay=blur.weight_decay)
    for _ in range(n_steps):
        sgd.zero_grad()
        with recorded(model, truth):
            loss = cross_entropy(model(x), y)
        loss.backward()
        sgd.step()
    _to(model, blur.weights)
    return gradients_of_update(before, named, rate)


def problems(n: int = 300, networks: Iterable[str] = NETWORKS) -> list[Problem]:
    """Return as many problems, the networks and blurs in turn, each kind with the batch size told and without."""
    kinds = [(network, blur) for blur in BLURS for network in networks]
    return [Problem(*kinds[7 * (seed // 2) % len(kinds)], seed) for seed in range(n)]


def run_problem(problem: Problem) -> dict[str, Any]:
    """Return what came of a problem as plain data, with the seconds of processor time."""
    start = time.process_time()
    return {**asdict(problem), **problem.audited(), "seconds": round(time.process_time() - start, 1)}


def summary(records: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return how many candidates are likely, the share whose correlation is as stated, and the share unlike any."""
    pairs = np.array([pair for record in records for pair in record["likely"]]).reshape(-1, 2)
    n = len(pairs)
    near = np.abs(pairs[:, 0] - pairs[:, 1]) <= NEAR
    return {
        "problems": len(records),
        "certified": sum(record["n_certified"] for record in records),
        "wrong": sum(record["n_wrong"] for record in records),
        "green": sum(record["is_false_green"] for record in records),
        "likely": n,
        "near": float(near.mean()) if n else 1.0,
        "unlike": int(np.sum(pairs[:, 1] < LEAST_CORRELATION)),
        "stated": float(np.median(pairs[:, 0])) if n else np.nan,
        "true": float(np.median(pairs[:, 1])) if n else np.nan,
    }


def written(records: Sequence[dict[str, Any]]) -> str:
    """Return the tables as text."""
    lines = [
        f"# Likely candidates against the truth, {len(records)} updates",
        "",
        "As stated: the correlation that the audit states is within 0.1 of the true one. Unlike: that is below 0.7.",
        "Medians of both correlations. Made by `python -m tests.hostile.calibration` (`--smooth`).",
    ]
    of_size = {True: "told", False: "not told"}
    columns = ["updates", "certified", "wrong", "false greens", "likely", "as stated", "unlike", "stated", "true"]
    for title, key in (("update", "blur"), ("network", "network"), ("batch size", "is_told")):
        lines += ["", f"| {' | '.join([title, *columns])} |", "| --- " * (len(columns) + 1) + "|"]
        for value in dict.fromkeys(record[key] for record in records):
            lines.append(_row(str(of_size.get(value, value)), [one for one in records if one[key] == value]))
        lines.append(_row("all", records))
    return "\n".join(lines) + "\n"


def _row(name: str, records: Sequence[dict[str, Any]]) -> str:
    found = summary(records)
    counts = [str(found[key] or "") for key in ("problems", "certified", "wrong", "green", "likely")]
    if not found["likely"]:
        return f"| {' | '.join([name, *counts])} | | | | |"
    near, unlike = f"{found['near']:.1%}", str(found["unlike"] or "")
    return f"| {' | '.join([name, *counts, near, unlike])} | {found['stated']:.3f} | {found['true']:.3f} |"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the problems; return 1 if the audit does not keep its word."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile.calibration", description="Likely against true.")
    parser.add_argument("--problems", type=int, default=300, help="how many (default: 300)")
    parser.add_argument("--smooth", action="store_true", help="networks without flat parts in their activations")
    parser.add_argument("--only", nargs="+", metavar="WORD", default=[], help="those whose name has all of these")
    parser.add_argument(
        "--out", type=Path, default=Path("calibration.md"),
        help="where the table goes; results are kept beside it as .jsonl, and not made again (default: calibration.md)",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    kept = options.out.with_suffix(".jsonl")
    known = {_key(one): one for one in map(json.loads, kept.read_text().splitlines())} if kept.exists() else {}
    records = []
    for problem in problems(options.problems, SMOOTH if options.smooth else NETWORKS):
        if not all(word.lower() in problem.name.lower() for word in options.only):
            continue
        record = known.get(_key(asdict(problem))) or run_problem(problem)
        if _key(record) not in known:
            with kept.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
            print(
                f"{problem.name}: {record['verdict']}, {len(record['likely'])} likely, {record['seconds']} s",
                flush=True,
            )
        records.append(record)
        options.out.write_text(written(records), encoding="utf-8")
    found = summary(records)
    print(written(records))
    return int(found["near"] < 0.9 or found["unlike"] > 0.01 * found["likely"])


def _key(record: dict[str, Any]) -> tuple[str, str, int]:
    return record["network"], record["blur"], record["seed"]


if __name__ == "__main__":
    raise SystemExit(main())
