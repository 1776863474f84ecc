"""Rounds that workers share: the same candidates, whoever runs which block."""

from types import SimpleNamespace

import pytest
import torch
from joblib import parallel_config

from sparsedl.workers import Workers
from sparsedl_fl import GradientInverter, LayerGradient
from sparsedl_fl.search.loop import FEWEST_STARTS, proposed
from sparsedl_fl.search.stage import Proposals, Stage
from sparsedl_fl.simulation import client_gradient, fully_connected


class Drawing(Stage):
    name, shares = "drawing", True

    def requires(self, state):
        return None

    def propose(self, state, n_starts, generator):
        state.blocks.append(n_starts)
        return Proposals(inputs=torch.randn((n_starts, 3), generator=generator))


class Whole(Drawing):
    shares = False


class State(SimpleNamespace):
    def prepared(self):
        self.n_prepared += 1
        return self


def candidates(stage, n_starts, is_shared=True):
    state = State(blocks=[], is_shared=is_shared, n_prepared=0)
    found = proposed(stage, state, n_starts, torch.Generator().manual_seed(0), Workers())
    return found, state


def test_a_round_is_divided_where_a_stage_and_the_state_allow_it():
    found, state = candidates(Drawing(), 33)
    assert state.blocks == [17, 16]
    assert state.n_prepared == 1
    assert found.inputs.shape == (33, 3)
    assert len(found.inputs.unique(dim=0)) == 33  # each block draws its own
    assert found.columns is None
    for stage, n_starts, is_shared in ((Whole(), 33, True), (Drawing(), 33, False), (Drawing(), FEWEST_STARTS, True)):
        assert candidates(stage, n_starts, is_shared)[1].blocks == [n_starts]


@pytest.fixture(scope="module")
def given():
    model = fully_connected(100, width=450, n_hidden=2, random_state=0)
    batch = torch.randn(40, 100, generator=torch.Generator().manual_seed(0))
    return LayerGradient.from_model(model, client_gradient(model, batch, torch.arange(40) % 10))


def outcome(inverter, given):
    inverter.fit(given)
    return inverter.inputs_.tobytes(), inverter.n_starts_, inverter.recovered_.sum()


@pytest.mark.parametrize("n_jobs", [2, 3])
def test_workers_change_no_bit(given, n_jobs):
    serial = outcome(GradientInverter(random_state=0), given)
    assert serial[2] == 40
    assert outcome(GradientInverter(random_state=0, n_jobs=n_jobs), given) == serial


def test_processes_give_the_result_of_threads(given):
    inverter = GradientInverter(random_state=0, n_jobs=2)
    threads = outcome(inverter, given)
    with parallel_config("loky"):
        assert outcome(inverter, given) == threads
