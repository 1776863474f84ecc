"""Data as they are, on a small source: what is trained, drawn, attacked and counted."""

import numpy as np
import pytest
import torch

from paper import raw
from paper.methods import Budget, Problem
from paper.raw import RawImages
from sparsedl_fl.simulation import client_gradient, fully_connected


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
    assert not measured["audible"]
    assert measured["wrong"] == 1


def test_an_input_without_a_loss_is_silent_and_its_batch_not_exact():
    model = fully_connected(20, width=30, n_classes=3, random_state=0)
    inputs, labels = torch.randn(3, 20, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2])
    with torch.no_grad():
        model[-1].bias[1] = 40.0  # whatever comes in is of class 1, beyond single precision
    sent = client_gradient(model, inputs, labels)
    assert raw.silent(model, "0", inputs, labels, sent["0.weight"].numpy()).tolist() == [False, True, False]

    class Fitted:
        inputs_ = inputs.double().numpy()[[0, 2]]
        uncertainty_, recovered_, batch_size_ = np.full(2, 1e-6), np.ones(2, dtype=bool), 2

    problem = Problem(inputs, None, model, labels)
    measured = RawImages(3, 30).measure(problem, lambda recovered: {"silent": np.array([0, 1, 0], bool)}, Fitted())
    assert (measured["exact"], measured["audible"], measured["silent"]) == (False, 1.0, 1)


@pytest.mark.parametrize(
    ("experiment", "seed"),
    [
        pytest.param(RawImages(40, 200, n_steps=100), 1007, id="photographs"),
        pytest.param(RawImages(60, 200, 500, "mnist"), 1009, id="digits", marks=pytest.mark.slow),
    ],
)
def test_batches_behind_networks_in_training_come_back_whole(experiment, seed, raw_data):
    record = experiment.run("activation-next", seed, raw_data, Budget(seconds=60))
    assert record["wrong"] == 0
    assert record["certified"] >= 0.95 * experiment.batch_size
