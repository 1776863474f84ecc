"""What certifies and what does not: local training, dropout, stale weights, other weights, near-duplicates, noise."""

import warnings
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning
from torch import nn

from sparsedl_fl import GradientInverter, LayerGradient
from sparsedl_fl.activations import ReLU
from sparsedl_fl.certify.certificate import CRITERIA, certify
from sparsedl_fl.certify.criterion import Case, Criterion
from sparsedl_fl.certify.sent_back_columns import SentBackColumns
from sparsedl_fl.certify.uncertainty import errors_from_zeros
from sparsedl_fl.certify.zero_criteria import ZerosOfAll, ZerosOfOthers
from sparsedl_fl.constraints.problem import LayerProblem
from sparsedl_fl.metrics import match_batches
from sparsedl_fl.search import Alternation
from sparsedl_fl.simulation import client_gradient, fully_connected
from tests.hostile.problems import hostile_problem

TRUE, FALSE = np.ones(4, dtype=bool), np.zeros(4, dtype=bool)


class Fixed(Criterion):
    """Proves what it is told to."""

    kind = "told"

    def __init__(self, proven, error=0.0):
        self.proven, self.error = np.array(proven), error

    def prove(self, case):
        return self.proven, np.where(self.proven, self.error, np.inf)


def case(columns, agreement=1.0, consistency=1.0):
    """A case of four inputs at ten units, of which as many agree as is said; the zeros determine every input."""
    zeros = np.zeros((100, 4), dtype=bool)
    zeros[50:] = True
    is_active = ~zeros
    is_active[: round(50 * (1 - consistency))] = False
    is_active[50 : 50 + round(100 * (1 - agreement) - 50 * (1 - consistency))] = True
    problem = SimpleNamespace(activation=ReLU(), is_noise_hidden=False)
    hypothesis = SimpleNamespace(likely_zeros=zeros, trusted_agreement=0.9, problem=problem, known_errors=None)
    made = Case(
        hypothesis,
        np.zeros((4, 9)),
        np.eye(4),
        np.array(columns),
        zeros,
        np.ones(4, dtype=bool),
        np.eye(4),
        is_active,
        SentBackColumns.none((100, 4)),
    )
    made.__dict__["leaves_another"] = np.zeros(4, dtype=bool)
    made.__dict__["errors_by_columns"] = (np.full(4, 0.1), np.zeros((4, 4)), np.zeros(4))
    return made


def invert(given, **parameters):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return GradientInverter(random_state=0, **parameters).fit(given)


class TestCombination:
    KINDS = (ZerosOfOthers(), ZerosOfAll())

    def test_all_columns_prove_all_inputs(self):
        assert set(certify(case(TRUE), self.KINDS).evidence) == {ZerosOfOthers.kind}

    def test_beside_a_missing_column_only_its_own_input_follows(self):
        columns = np.array([True, True, False, True])
        assert certify(case(columns), self.KINDS).proven.tolist() == [False, False, True, False]
        columns[0] = False
        assert not certify(case(columns), self.KINDS).proven.any()

    def test_an_input_proven_by_itself_needs_no_columns(self):
        found = certify(case(FALSE), (*self.KINDS, Fixed([True, False, False, False])))
        assert found.evidence.tolist() == ["told", "none", "none", "none"]

    def test_without_the_pattern_columns_alone_prove_what_is_not_contradicted(self):
        assert set(certify(case(TRUE, agreement=0.75), self.KINDS).evidence) == {ZerosOfAll.kind}
        assert not certify(case(TRUE, agreement=0.75, consistency=0.6), self.KINDS).proven.any()

    def test_the_first_kind_names_and_the_least_error_counts(self):
        found = certify(case(TRUE), (*self.KINDS, Fixed(TRUE, error=0.05)))
        assert set(found.evidence) == {ZerosOfOthers.kind}
        assert found.errors.tolist() == [0.05] * 4

    def test_what_is_doubtful_is_taken_out(self):
        found = certify(case(TRUE), self.KINDS).without(np.array([True, False, False, False]))
        assert found.proven.tolist() == [False, True, True, True]

    def test_every_kind_has_a_name_of_its_own(self):
        kinds = [kind.kind for kind in CRITERIA]
        assert len(set(kinds)) == len(kinds) == 9
        assert "none" not in kinds


@pytest.mark.parametrize("before", [True, False])
def test_dropout_is_certified_by_the_columns_alone(before):
    torch.manual_seed(0)
    order = [nn.Dropout(0.3), nn.ReLU()] if before else [nn.ReLU(), nn.Dropout(0.3)]
    model, batch = nn.Sequential(nn.Linear(80, 120), *order, nn.Linear(120, 10)), torch.randn(8, 80)
    inverter = invert(LayerGradient.from_model(model, client_gradient(model, batch, torch.arange(8))))
    assert inverter.recovered_.all()
    assert set(inverter.evidence_) == {ZerosOfAll.kind}
    assert match_batches(batch, inverter.inputs_).squared_errors.max() < 1e-8
    assert "8 of them by zeros of the gradient alone" in inverter.status_


def test_weights_a_little_off_change_nothing(small_problem):
    batch, model, gradient = small_problem
    given = LayerGradient.from_model(model, gradient)
    rng = np.random.default_rng(0)
    stale = given.weight * (1 + 1e-3 * rng.standard_normal(given.weight.shape))
    inverter = invert(replace(given, weight=stale))
    assert inverter.recovered_.all()
    assert match_batches(batch, inverter.inputs_).squared_errors.max() < 1e-12


@pytest.mark.parametrize("seed", range(4))
def test_weights_of_another_initialisation_certify_nothing(seed):
    """And its own, of the same batch, certify all of it."""
    assert not invert(hostile_problem(seed, "other weights").layer_gradient).recovered_.any()
    assert invert(hostile_problem(seed, "honest").layer_gradient).recovered_.all()


@pytest.mark.parametrize(
    ("seeds", "least"),
    [pytest.param((300, 301, 303, 304, 305), 0.6), pytest.param(range(300, 306), 0.4, marks=pytest.mark.slow)],
)
def test_local_training_certifies_nothing_that_is_wrong(seeds, least):
    n_certified = n_inputs = 0
    for seed in seeds:
        problem = hostile_problem(seed, "FedAvg")
        inverter = invert(problem.layer_gradient)
        true = problem.inputs.double().numpy()
        squares = np.mean((true[None] - inverter.inputs_[:, None]) ** 2, axis=2).min(axis=1)
        certified, is_completed = inverter.recovered_, inverter.provenance_ == "completed"
        assert np.all(np.sqrt(squares[certified]) < np.maximum(10 * inverter.uncertainty_[certified], 1e-3))
        # Beside a column that no search found, only the input of that column itself can follow from the others.
        assert is_completed.sum() == 1 or not certified[is_completed].any()
        n_certified, n_inputs = n_certified + certified.sum(), n_inputs + len(true)
    assert n_certified > least * n_inputs


@pytest.mark.parametrize("distance", [1e-3, 3e-3, 1e-2])
def test_near_duplicates_come_back_as_one_and_that_is_said(distance):
    torch.manual_seed(0)
    batch = torch.randn(6, 400)
    batch[5] = batch[0] + distance * torch.randn(400)
    labels = torch.tensor([0, 1, 2, 3, 4, 0])
    model = fully_connected(400, width=200, random_state=0)
    coarse = {name: gradient.bfloat16() for name, gradient in client_gradient(model, batch, labels).items()}
    inverter = invert(LayerGradient.from_model(model, coarse))
    assert inverter.batch_size_ == 5
    match = match_batches(inverter.inputs_, batch)
    twin = int(np.argmax([sample in (0, 5) for sample in match.order]))
    assert inverter.recovered_[twin]
    assert inverter.resolution_[twin] > distance
    assert "one of which may be the mean of several records up to" in inverter.status_


def test_noise_is_said_in_the_units_of_the_inputs(cifar):
    _, given = cifar.private_problem(16, 200, 0, clipping=2.0, noise_std=1e-4)
    inverter = invert(given, batch_size=16)
    assert inverter.uncertainty_[inverter.recovered_].max() > 1e-2
    worst = f"{inverter.uncertainty_[inverter.recovered_].max():.1g}"
    assert f"certified to within {worst} (expected error of the worst" in inverter.status_


def test_a_search_that_is_interrupted_keeps_what_it_found(cifar, monkeypatch):
    _, given = cifar.problem(60, 200, 0)
    calls, original = [], Alternation.run

    def interrupted(*arguments):
        calls.append(1)
        if len(calls) > 3:
            raise KeyboardInterrupt
        return original(*arguments)

    monkeypatch.setattr(Alternation, "run", interrupted)
    with pytest.warns(ConvergenceWarning, match="search interrupted"):
        inverter = GradientInverter(random_state=0).fit(replace(given, next_weight_grad=None))
    assert 0 < np.sum(inverter.provenance_ != "completed") < 60


def test_columns_that_zeros_leave_open_say_nothing_of_any_other_input(small_problem):
    batch, model, gradient = small_problem
    problem = LayerProblem.of(LayerGradient.from_model(model, gradient))
    rows = problem.factors.zeros(np.linalg.inv(batch @ problem.factors.right.T / problem.factors.singular_values))
    determined = np.ones(len(batch), dtype=bool)
    assert errors_from_zeros(problem.factors, batch, rows, determined)[0].max() < 1e-3
    determined[:2] = False
    assert errors_from_zeros(problem.factors, batch, rows, determined)[0].min() > 1
    assert errors_from_zeros(problem.factors, batch, rows, ~np.ones(len(batch), dtype=bool))[0].min() > 1
