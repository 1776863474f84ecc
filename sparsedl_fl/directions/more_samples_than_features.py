"""More samples than features: what a strategy does there, by its budget or by the samples that it was given."""

from __future__ import annotations

from typing import Any

from sklearn.utils import check_random_state

from sparsedl.arrays import draw_generator
from sparsedl.progress import progress_bar
from sparsedl_fl.certify.candidates import Candidates
from sparsedl_fl.constraints.many_samples import ManySamplesProblem
from sparsedl_fl.directions.activation import ActivationDirections
from sparsedl_fl.directions.known import KnownInputs
from sparsedl_fl.search.budget import Budget, effort
from sparsedl_fl.search.loop import search
from sparsedl_fl.search.many_samples_search import ManySamplesState, confirm_many_samples

__all__ = ["propose_samples"]


def propose_samples(
    problem: ManySamplesProblem,
    strategy: ActivationDirections | KnownInputs,
    *,
    random_state: Any = None,
    verbose: bool = False,
) -> Candidates:
    """Return samples as rows ``p`` at their true scale, without columns.

    Parameters
    ----------
    problem : ManySamplesProblem
        What is known.
    strategy : ActivationDirections or KnownInputs
        Its budget counts, or its samples are confirmed.
    random_state, verbose
        As of `GradientInverter`.
    """
    if isinstance(strategy, KnownInputs):
        return confirm_many_samples(problem, strategy.inputs)
    generator, layer = draw_generator(check_random_state(random_state)), problem.layer
    price = effort(1, problem.batch_size, layer.width, layer.activation)
    budget = Budget(price, None, strategy.max_effort, strategy.max_seconds)
    with progress_bar(verbose, total=problem.batch_size, description="inputs") as report:
        return search(ManySamplesState(problem, generator), budget, generator, report)
