"""Inputs with a large common part: the stage at their true scale, and what it makes of whole and partial batches."""

import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from sparsedl_fl import GradientInverter, LayerGradient
from sparsedl_fl.certify.candidates import Candidates
from sparsedl_fl.constraints.problem import LayerProblem
from sparsedl_fl.directions import ActivationDirections, Directions
from sparsedl_fl.search import Descent, SampleCoordinates, ScaledReflection
from sparsedl_fl.search.columns_and_forward_pass import ScaledForward
from sparsedl_fl.search.knowledge import Knowledge
from sparsedl_fl.search.scaled_reflection import _link
from sparsedl_fl.simulation import client_gradient, fully_connected

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def alike(b=12, seed=0, common=1.0):
    """A batch whose inputs share a large part, and what the server sees of the first layer."""
    rng = np.random.default_rng(seed)
    batch = common * rng.uniform(0.5, 1.5, 80) + 0.4 * rng.standard_normal((b, 80))
    inputs = torch.tensor(batch, dtype=torch.float32)
    model = fully_connected(80, width=120, random_state=seed)
    given = LayerGradient.from_model(model, client_gradient(model, inputs, torch.arange(b) % 10))
    return inputs.double().numpy(), given


def errors(true, recovered):
    return np.sqrt(((true[:, None] - recovered[None]) ** 2).mean(axis=2)).min(axis=1)


@pytest.fixture(scope="module")
def setting():
    true, given = alike()
    problem = LayerProblem.of(given)
    samples = torch.from_numpy(true @ problem.factors.right.T / problem.factors.singular_values)
    return problem, SampleCoordinates.of_problem(problem), samples


class TestScaledForward:
    def test_every_input_is_the_common_part_and_a_difference(self, setting):
        problem, coordinates, samples = setting
        forward = ScaledForward.of(coordinates)
        z = samples @ problem.regressors().T
        v = forward.coordinates(z)
        torch.testing.assert_close(forward.preactivations(v), z)
        again, true = (nn.functional.normalize(rows, dim=1) for rows in (forward.inputs(v), samples))
        torch.testing.assert_close(again, true, atol=1e-6, rtol=0)  # a float32 client
        assert float((samples @ coordinates.scale - 1).abs().max()) < 1e-4

    def test_deflated_by_a_column_it_holds_all_other_inputs(self, setting):
        problem, coordinates, samples = setting
        columns = nn.functional.normalize(torch.linalg.inv(samples).T, dim=1)
        forward = ScaledForward.of(coordinates.deflated_by(columns[:3]))
        z = samples[3:] @ problem.regressors().T
        assert len(forward.sizes) == len(samples) - 4
        torch.testing.assert_close(forward.preactivations(forward.coordinates(z)), z, atol=1e-5, rtol=1e-5)

    def test_of_ends_that_are_alike_the_nearest_to_the_span_goes_on(self, setting):
        """With one dimension left all are parallel, and only their sizes tell them apart."""
        problem, coordinates, samples = setting
        columns = nn.functional.normalize(torch.linalg.inv(samples).T, dim=1)
        forward = ScaledForward.of(coordinates.deflated_by(columns[2:]))
        first, second = forward.coordinates(samples[:2] @ problem.regressors().T)
        beside, nowhere = 1.001 * first, torch.full_like(first, torch.nan)
        minimisers = torch.stack([beside, nowhere, second, 0.2 * first, first])
        kept = forward.distinct(minimisers, problem.subspaces.first, 0.995)
        torch.testing.assert_close(
            kept.sort(dim=0).values, torch.stack([first, second, 0.2 * first]).sort(dim=0).values
        )


class TestScaledReflection:
    def test_it_applies_to_inputs_with_much_in_common_only(self, setting):
        assert ScaledReflection().applies(setting[1])
        centred = LayerProblem.of(alike(common=0.0)[1])
        assert not ScaledReflection().applies(SampleCoordinates.of_problem(centred))

    def test_its_ends_are_true_inputs(self, setting):
        problem, coordinates, samples = setting
        generator = torch.Generator().manual_seed(1)
        leads = ScaledReflection().inputs(coordinates, problem.subspaces.first, 32, generator)
        minimisers, is_determined = Descent().run(coordinates, problem.subspaces, leads, generator)
        overlaps = nn.functional.normalize(minimisers, dim=1) @ nn.functional.normalize(samples, dim=1).T
        assert len(minimisers) >= 8
        assert is_determined.all()
        assert (overlaps.amax(dim=1) > 1 - 1e-6).all()

    def test_of_the_last_input_there_is_only_one(self, setting):
        problem, coordinates, samples = setting
        columns = nn.functional.normalize(torch.linalg.inv(samples).T, dim=1)
        coordinates, generator = coordinates.deflated_by(columns[1:]), torch.Generator().manual_seed(1)
        leads = ScaledReflection().inputs(coordinates, problem.subspaces.first, 4, generator)
        last, is_determined = Descent().run(coordinates, problem.subspaces, leads, generator)
        assert is_determined.tolist() == [True]
        assert abs(float(last @ nn.functional.normalize(samples[0], dim=0))) > 1 - 1e-9


class TestChain:
    """Several spans behind, and inputs with so much in common that the first one hardly tells them apart."""

    @staticmethod
    def client(b, width, common, seed=0):
        generator = torch.Generator().manual_seed(seed)
        inputs = common + torch.randn((b, 300), generator=generator)
        model = fully_connected(300, width=width, n_hidden=3, random_state=seed)
        labels = torch.randint(0, 10, (b,), generator=generator)
        return inputs.double().numpy(), LayerGradient.from_model(model, client_gradient(model, inputs, labels))

    def test_is_there_where_all_spans_are_asked_for_only(self):
        _, given = self.client(12, 60, 1.0)
        problem = LayerProblem.of(given)
        assert len(problem.subspaces.levels) == 1
        assert len(problem.all_subspaces.levels) == 2
        assert LayerProblem.of(replace(given, behind=())).all_subspaces is None

    def test_links_make_the_nearest_pair_of_activations_and_what_follows(self):
        problem = LayerProblem.of(self.client(12, 60, 1.0)[1])
        subspaces, generator = problem.all_subspaces, torch.Generator().manual_seed(0)
        z = [torch.randn((5, 60), generator=generator, dtype=torch.float64) for _ in range(2)]
        link = _link(subspaces, 0, z)
        y, behind = (torch.randn((5, 60), generator=generator, dtype=torch.float64) for _ in range(2))
        found, follows = link.nearest(y, behind, torch.full((5, 1), 2.0, dtype=torch.float64))
        W, bias = subspaces.layers[0]
        torch.testing.assert_close(follows, found @ W.T + bias)
        assert subspaces.levels[0].outside(found).norm() < 1e-9
        basis, (here, there) = subspaces.levels[0].basis, link.power
        matrix = torch.cat([(2 * here) ** 0.5 * basis, there**0.5 * W @ basis])
        goal = torch.cat([(2 * here) ** 0.5 * y, there**0.5 * (behind - bias)], dim=1)
        expected = torch.linalg.lstsq(matrix, goal.T).solution.T @ basis.T
        torch.testing.assert_close(found, expected)

    @pytest.mark.parametrize("seed", range(2))
    def test_finds_what_one_span_does_not(self, seed):
        inputs, given = self.client(42, 100, 2.0, seed)
        whole = GradientInverter(random_state=0).fit(given)
        assert whole.recovered_.all()
        errors = np.sqrt(((whole.inputs_[:, None] - inputs[None]) ** 2).mean(axis=2))
        assert sorted(errors.argmin(axis=1)) == list(range(42))
        assert (errors.min(axis=1) < 10 * whole.uncertainty_).all()

    @pytest.mark.slow
    def test_a_stale_layer_behind_certifies_nothing_by_it(self):
        inputs, given = self.client(30, 100, 2.0)
        _, other = self.client(30, 100, 2.0, seed=1)
        stale = replace(given, behind=other.behind)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = GradientInverter(random_state=0).fit(stale)
        errors = np.sqrt(((found.inputs_[:, None] - inputs[None]) ** 2).mean(axis=2)).min(axis=1)
        sure = found.recovered_
        assert (errors[sure] < 10 * found.uncertainty_[sure]).all()


class TestKnowledge:
    def test_the_column_of_an_input_comes_from_behind_where_zeros_leave_it_open(self, setting):
        problem, coordinates, samples = setting
        columns = nn.functional.normalize(torch.linalg.inv(samples).T, dim=1)
        p = nn.functional.normalize(samples[:1], dim=1)
        nothing = p[:0]
        alone = Knowledge(problem.factors.zero_test, coordinates)
        behind = Knowledge(problem.factors.zero_test, coordinates, [problem.column])
        found = behind._from_downstream(p, nothing)
        assert len(alone._from_downstream(p, nothing)) == 0
        assert abs(float(found @ columns[0])) > 1 - 1e-8

    def test_with_all_inputs_known_the_columns_follow_and_are_settled(self, setting):
        problem, coordinates, samples = setting
        knowledge = Knowledge(problem.factors.zero_test, coordinates)
        knowledge.add_inputs(nn.functional.normalize(samples, dim=1), torch.ones(len(samples), dtype=torch.bool))
        assert knowledge.is_complete
        knowledge.settle()
        z = samples @ problem.regressors().T
        columns = nn.functional.normalize(torch.linalg.inv(samples).T, dim=1)
        own = (columns @ knowledge.pool.directions.T).abs().argmax(dim=1)
        zeros = problem.factors.zero_test.zeros(knowledge.pool.directions)[own]
        assert (zeros == (z <= 0)).double().mean() > 0.99


@dataclass(eq=False, repr=False)
class Cut(Directions):
    """The search without the first columns that it found, and without their inputs."""

    n_lost: int = 2
    with_inputs: bool = True

    def propose(self, problem: LayerProblem, *, random_state: Any = None, verbose: bool = False) -> Candidates:
        found = ActivationDirections().propose(problem, random_state=random_state)
        columns, sizes = found.selection(), problem.factors.singular_values
        inputs, duals = found.inputs * sizes, columns[:, : self.n_lost] / sizes[:, None]
        cosines = inputs @ duals / np.linalg.norm(inputs, axis=1, keepdims=True) / np.linalg.norm(duals, axis=0)
        kept = found.inputs[np.abs(cosines).max(axis=1) < 1e-3]
        columns = columns[:, self.n_lost :]
        n_zeros = problem.factors.zeros(columns).sum(axis=0)
        return Candidates(columns, n_zeros, "cut", 1, 1, kept if self.with_inputs else None)


class TestBatches:
    @pytest.mark.parametrize("seed", range(3))
    def test_inputs_with_much_in_common_come_back_whole(self, seed):
        true, given = alike(b=24, seed=seed)
        inverter = GradientInverter(random_state=seed).fit(given)
        assert inverter.recovered_.all()
        error = errors(inverter.inputs_, true)
        assert (error < 10 * inverter.uncertainty_).all()
        assert error.max() < 1e-4

    def test_without_the_next_layers_weights_zeros_and_inputs_have_to_do(self):
        true, given = alike()
        inverter = GradientInverter(random_state=0).fit(replace(given, next_weight=None, behind=()))
        assert inverter.recovered_.all()

    @pytest.mark.parametrize("seed", range(3))
    def test_columns_that_are_missing_take_only_their_own_inputs_with_them(self, seed):
        true, given = alike(b=24, seed=seed)
        inverter = GradientInverter(Cut(n_lost=4), random_state=seed).fit(given)
        certified = inverter.recovered_
        assert certified.sum() >= 18
        assert (errors(inverter.inputs_[certified], true) < 10 * inverter.uncertainty_[certified]).all()

    def test_a_functional_lenet_is_attacked_behind_its_convolutions(self):
        from paper.raw import LeNet

        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = LeNet()
        pictures = torch.rand((10, 3, 32, 32), generator=torch.Generator().manual_seed(1))
        gradients = client_gradient(model, pictures, torch.arange(10))
        given = LayerGradient.from_model(model, gradients, "fc1")
        np.testing.assert_array_equal(given.next_weight, model.fc2.weight.detach().numpy())
        inverter = GradientInverter(random_state=0).fit(given)
        with torch.no_grad():
            x = model.pool(torch.relu(model.conv2(model.pool(torch.relu(model.conv1(pictures))))))
        assert inverter.recovered_.all()
        assert errors(x.flatten(1).double().numpy(), inverter.inputs_).max() < 1e-4
