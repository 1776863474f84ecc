"""Whether what the inverter says is true: hostile problems, and expected errors beside the true ones."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from paper.experiments import Experiment, ImageBatch, Score
from paper.methods import Budget, Problem
from sparsedl_fl.inverter import GradientInverter
from sparsedl_fl.metrics import are_mislabelled, are_wrong, match_batches
from tests.hostile.problems import hostile_problem

__all__ = ["CalibratedBatch", "HostileBatch"]

RIGHT = 1e-2
"""Error, relative to the size of an input, below which it counts as right."""

MULTIPLE = 10.0
"""An expected error is wrong by more than a factor that can be explained when the true one is so many times larger."""

FACTOR = 3.0


@dataclass(frozen=True)
class HostileBatch(Experiment):
    """One problem that is made to mislead.

    Attributes
    ----------
    twist : str
        Name in `tests.hostile.problems.TWISTS`.
    """

    metrics: ClassVar[tuple[str, ...]] = ("right", "right_and_certified", "wrong")
    twist: str = "honest"

    def run(self, method: str, seed: int, data: str | None, budget: Budget) -> dict[str, Any]:
        """Attack the problem of a seed; exact means that nothing wrong was certified."""
        problem, start = hostile_problem(seed, self.twist), time.perf_counter()
        record = {"exact": True, "right": 0, "right_and_certified": 0, "wrong": 0, "starts": 0, "status": ""}
        try:
            if problem.layer_gradient is None:
                raise ValueError(problem.refusal)
            inverter = GradientInverter(random_state=seed, **problem.told)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                inverter.fit(problem.layer_gradient)
        except ValueError as refusal:
            return {**record, "status": str(refusal), "seconds": round(time.perf_counter() - start, 3)}
        true = problem.inputs.double().numpy()
        squares = np.mean((true[None] - inverter.inputs_[:, None]) ** 2, axis=2)
        errors, sizes = np.sqrt(squares.min(axis=1)), np.sqrt(np.mean(true**2, axis=1))[squares.argmin(axis=1)]
        is_wrong = are_wrong(true, inverter.inputs_, inverter.uncertainty_) & inverter.recovered_
        is_wrong |= are_mislabelled(true, problem.labels.numpy(), inverter.inputs_, inverter.labels_)
        return {
            "exact": not is_wrong.any(),
            "right": int(np.sum(errors < RIGHT * sizes)),
            "right_and_certified": int(np.sum((errors < RIGHT * sizes) & inverter.recovered_)),
            "wrong": int(is_wrong.sum()),
            "starts": inverter.n_starts_,
            "seconds": round(time.perf_counter() - start, 3),
            "status": f"{problem.description}: {inverter.status_}",
        }


@dataclass(frozen=True)
class CalibratedBatch(ImageBatch):
    """A batch of images, scored by how true the expected errors of the certified inputs are."""

    metrics: ClassVar[tuple[str, ...]] = ("psnr", "ratio", "within_three")

    def measure(self, problem: Problem, score: Score, inverter: GradientInverter) -> dict[str, Any]:
        """Add true over expected errors; exact means that no true error is ten times what was expected."""
        match = match_batches(problem.truth, inverter.inputs_)
        found = match.order >= 0
        order, errors = match.order[found], np.sqrt(match.squared_errors[found])
        ratios = (errors / inverter.uncertainty_[order])[inverter.recovered_[order]]
        record = {**score(inverter.inputs_), "exact": bool((ratios < MULTIPLE).all())}
        if len(ratios):
            record["ratio"] = [float(f"{ratio:.3g}") for ratio in ratios]
            record["within_three"] = float(np.mean((ratios < FACTOR) & (ratios > 1 / FACTOR)))
        return record
