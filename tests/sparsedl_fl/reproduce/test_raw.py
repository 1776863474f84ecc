"""Data as they are, on a small source: what is trained, drawn, attacked and counted."""

import numpy as np
import pytest
import torch

from sparsedl_fl.reproduce import raw
from sparsedl_fl.reproduce.methods import Budget
from sparsedl_fl.reproduce.raw import RawImages


@pytest.mark.parametrize(
    "experiment",
    [
        RawImages(4, 60, n_steps=2),
        RawImages(4, 60, pixels="symmetric"),
        RawImages(4, 120, network="lenet", layer="fc1"),
        RawImages(4, 64, network="vgg", layer="classifier.0"),
    ],
    ids=["mlp", "symmetric", "lenet", "vgg"],
)
def test_a_small_batch_comes_back(experiment, source):
    record = experiment.run("activation-next", 1, source, Budget(seconds=20.0))
    assert record["exact"]
    assert record["certified"] == 4
    assert record["wrong"] == 0
    assert max(record["error"]) < 1e-3


def test_one_training_serves_all_batch_sizes(source):
    raw._train.cache_clear()
    small, large = RawImages(3, 60, n_steps=1), RawImages(5, 60, n_steps=1)
    problems = [experiment.problem(1, source)[0] for experiment in (small, large)]
    assert raw._train.cache_info().misses == 1
    assert problems[0].model is problems[1].model
    assert [len(problem.truth) for problem in problems] == [3, 5]
    untrained = RawImages(3, 60).problem(1, source)[0].model
    assert not torch.equal(untrained[0].weight, problems[0].model[0].weight)


def test_what_is_certified_and_off_is_counted_as_wrong(source):
    problem, score = RawImages(3, 60).problem(1, source)

    class Fitted:
        inputs_ = problem.truth.double().numpy() * np.array([[1.0], [1.5], [1.0]])
        uncertainty_, recovered_, batch_size_ = np.full(3, 1e-6), np.ones(3, dtype=bool), 3

    measured = RawImages(3, 60).measure(problem, score, Fitted())
    assert not measured["exact"]
    assert measured["wrong"] == 1
