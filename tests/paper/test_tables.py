"""The tables against the papers' own, and every kind of experiment once."""

import numpy as np
import pandas as pd
import pytest
import torch

from paper.clients import DPSGD, FedAvg, FedSGD
from paper.experiments import FailureTrials, ImageBatch, LayerBatch, TableBatch
from paper.methods import METHODS, OURS, Budget
from paper.published import PUBLISHED
from paper.tables import TABLES
from sparsedl_fl.simulation import client_gradient, fully_connected


@pytest.mark.parametrize("name", TABLES)
def test_every_row_is_its_own_experiment(name):
    names = [experiment.name for experiment in TABLES[name].rows.values()]
    assert len(set(names)) == len(names)
    assert set(TABLES[name].methods) <= {*METHODS, "exhaustive"}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_numbers_have_their_row(name):
    table = TABLES[name]
    for (row, method), numbers in PUBLISHED[name].items():
        assert row in table.rows
        assert method in METHODS
        assert set(numbers) - {"accuracy"} <= set(table.rows[row].metrics)
        assert 0 <= numbers.get("accuracy", 0) <= 100


def test_names_keep_when_fields_are_added():
    assert ImageBatch(20, 200).name == "ImageBatch(batch_size=20, width=200)"
    assert ImageBatch(20, 200, client=DPSGD(2.0, 1e-4)).name == (
        "ImageBatch(batch_size=20, width=200, client=DPSGD(clipping=2.0, noise_std=0.0001))"
    )


@pytest.mark.parametrize("method", OURS)
@pytest.mark.parametrize(
    "experiment",
    [
        ImageBatch(4, 60),
        ImageBatch(4, 60, n_hidden=5, one_class=True, n_steps=2),
        ImageBatch(4, 60, client=FedAvg(2, None, 0.01), exact_above=25.0),
        ImageBatch(4, 60, client=DPSGD(2.0, 1e-6), exact_above=25.0),
    ],
    ids=["plain", "one class, trained", "fedavg", "dp"],
)
def test_images_come_back(experiment, method, source):
    record = experiment.run(method, 0, source, Budget())
    assert record["exact"]
    assert record["certified"] == 4
    assert len(record["psnr"]) == 4
    assert min(record["psnr"]) > experiment.exact_above
    assert record["seconds"] > 0


def test_our_dictionary_search_alone_recovers_a_small_batch(source):
    record = ImageBatch(4, 60).run("dictionary", 0, source, Budget(starts=1, seconds=0.0))  # no part of it is a limit
    assert record["exact"], record["status"]


@pytest.mark.parametrize("layer", [0, 1])
def test_layers_are_scored_by_their_inputs(layer, source):
    record = LayerBatch(4, 80, layer=layer).run("activation", 0, source, Budget())
    assert record["exact"]
    assert max(record["mae"]) < 1e-5


@pytest.mark.parametrize("method", ["l1-radam", "l1-pgd", "logcosh-radam", "kernel", "prior"])
def test_the_papers_searches_recover_a_small_batch(method, source):
    record = ImageBatch(3, 60).run(method, 0, source, Budget(starts=256, draws=20_000))
    assert record["exact"], record["status"]
    assert record["starts"] <= 20_000


def test_a_budget_is_kept(source):
    record = ImageBatch(12, 40).run("l4-radam", 0, source, Budget(starts=64))
    assert record["starts"] == 64
    assert not record["exact"]


def test_census_rows_come_back_word_for_word(tmp_path):
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "age": rng.integers(18, 80, 80),
            "hours": rng.integers(1, 99, 80),
            "work": rng.choice(["Private", "State", "Self"], 80),
            "school": rng.choice(["HS", "BSc", "MSc", "PhD"], 80),
            "income": rng.choice(["<=50K", ">50K"], 80),
        }
    )
    table.to_csv(tmp_path / "adult.csv", index=False)
    record = TableBatch(4, 100).run("activation", 1, str(tmp_path), Budget())
    assert record["exact"]
    assert record["categories"] == 1
    assert record["mae"] < 1e-2


def test_failures_are_those_of_the_zeros(source):
    narrow = FailureTrials(6, 8, n_trials=5).run("exhaustive", 0, source, Budget())
    wide = FailureTrials(3, 80, n_trials=5).run("exhaustive", 0, source, Budget())
    assert narrow["failures"] == 1.0
    assert wide["failures"] == 0.0
    assert wide["exact"]
    assert not narrow["exact"]
    D = np.array([[0.0, 1, 2], [0, 2, 4], [1, 0, 1], [0, 1, 1]])
    assert FailureTrials._determined(D, 0)
    assert not FailureTrials._determined(D[:2], 0)
    assert not FailureTrials._determined(D, 1)


def test_clients_send_what_they_are_named_for():
    model = fully_connected(20, width=12, random_state=0)
    inputs, labels = torch.randn(4, 20, generator=torch.Generator().manual_seed(0)), torch.arange(4)
    clean = client_gradient(model, inputs, labels)["0.weight"].numpy()
    np.testing.assert_array_equal(FedSGD().send(model, inputs, labels, 0, 0).weight_grad, clean)
    one_step = FedAvg(1, None, 0.01).send(model, inputs, labels, 0, 0)
    np.testing.assert_allclose(one_step.weight_grad, clean, atol=1e-4)
    assert one_step.learning_rate == 0.01
    noisy = DPSGD(1e9, 0.1).send(model, inputs, labels, 0, 0).weight_grad
    assert 0.08 < (noisy - clean).std() < 0.12
