"""The parts of the activation search, each on problems whose answer is known."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.base import clone
from torch import nn
from torch.nn.functional import normalize

from sparsedl_fl import GradientInverter, LayerGradient
from sparsedl_fl.activations import ReLU
from sparsedl_fl.constraints import ActivationSubspace
from sparsedl_fl.constraints.problem import LayerProblem
from sparsedl_fl.directions import ActivationDirections, DictionaryDirections
from sparsedl_fl.metrics import psnr
from sparsedl_fl.search import Alternation, Projection, Reflection, SampleCoordinates, Schedule
from sparsedl_fl.search.columns_and_forward_pass import PrincipalForward, leaders
from sparsedl_fl.search.dual_estimates import PosteriorMeans
from sparsedl_fl.search.knowledge import Knowledge
from sparsedl_fl.search.projection import _add_rows
from sparsedl_fl.simulation import client_gradient, fully_connected
from sparsedl_fl.theory import expected_samples

EVERY = torch.ones(25, dtype=torch.bool)


class Problem:
    """A Gaussian batch behind a layer of width 100; 25 are past what the gradient alone gives."""

    def __init__(self, batch_size=25, width=100):
        batch = torch.randn(batch_size, 80, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        model = fully_connected(80, width=width, random_state=0).double()
        self.given = LayerGradient.from_model(model, client_gradient(model, batch, torch.arange(batch_size) % 10))
        self.problem = LayerProblem.of(self.given)
        self.factors = self.problem.factors
        self.batch = batch.numpy()
        # Rows p of P = Q^-1, and columns q of Q, as unit rows.
        samples = self.batch @ self.factors.right.T / self.factors.singular_values
        self.samples = torch.from_numpy(samples / np.linalg.norm(samples, axis=1, keepdims=True))
        columns = np.linalg.inv(samples).T
        self.columns = torch.from_numpy(columns / np.linalg.norm(columns, axis=1, keepdims=True))
        self.forward = self.problem.regressors()
        self.test = self.factors.zero_test
        self.coordinates = SampleCoordinates.of_problem(self.problem)
        self.subspace = self.problem.subspace


@pytest.fixture(scope="module")
def problem():
    return Problem()


def cosines(found, true):
    return (found @ true.T).abs().amax(dim=1)


def knowing(problem, columns):
    """Return the views deflated by columns, and by what their patterns say of the samples."""
    coordinates = problem.coordinates.deflated_by(columns)
    return replace(coordinates, inputs=coordinates.estimated_inputs(~problem.test.zeros(columns)))


def generator():
    return torch.Generator().manual_seed(1)


class TestTwoViews:
    def test_the_forward_view_has_the_true_pattern(self, problem):
        z = problem.forward @ problem.samples.T
        scale = problem.samples @ torch.from_numpy(problem.problem.forward.scale)
        expected = problem.given.preactivations(problem.batch)
        np.testing.assert_allclose((z / scale).numpy(), expected, atol=1e-9)

    def test_random_starts_end_in_true_columns(self, problem):
        path = []
        preactivations = Alternation().run(
            problem.coordinates, 64, 0.02, generator(), observe=lambda q, z: path.append((q, z))
        )
        is_true = cosines(preactivations, problem.columns) > 0.999
        assert is_true.double().mean() > 0.1
        # On the way ``U q`` gets its zeros, and they are where the forward view has its inactive units.
        zeros = [((q @ problem.coordinates.left.T.float()).abs() < 0.02)[is_true] for q, _ in path]
        assert (zeros[-1].sum(dim=1) > zeros[0].sum(dim=1) + 20).all()
        assert ((path[-1][1][is_true] < 0) & zeros[-1]).sum() > 0.7 * zeros[-1].sum()

    def test_a_start_goes_on_only_as_long_as_it_moves(self):
        easy, path = Problem(4), []
        preactivations = Alternation().run(
            easy.coordinates, 16, 0.02, generator(), observe=lambda q, z: path.append((q, z))
        )
        assert len(path) < Alternation().n_coarse + Alternation().n_fine
        is_still = [((before[1] == after[1]).all(dim=1)) for before, after in zip(path[:-1], path[1:], strict=True)]
        assert 0 < torch.stack(is_still).double().mean() < 1
        assert (cosines(preactivations, easy.columns) > 0.999).double().mean() > 0.9

    def test_what_is_known_is_not_found_again(self, problem):
        coordinates = knowing(problem, problem.columns[:20])
        preactivations = Alternation().run(coordinates, 64, 0.02, generator())
        preactivations = preactivations[cosines(preactivations, problem.columns) > 0.999]
        assert len(preactivations) > 32
        assert (cosines(preactivations, problem.columns[20:]) > 0.999).double().mean() > 0.95

    def test_the_free_space_is_that_of_the_other_samples(self, problem):
        coordinates = problem.coordinates.deflated_by(problem.columns[:10])
        others = problem.samples[10:]
        torch.testing.assert_close(others @ coordinates.free @ coordinates.free.T, others)
        torch.testing.assert_close(coordinates.free.T @ coordinates.free, torch.eye(15, dtype=torch.float64))

    def test_samples_are_estimated_the_better_the_more_is_known(self, problem):
        errors = []
        for n_known in (5, 15, 24, 25):
            estimates = knowing(problem, problem.columns[:n_known]).inputs
            similarity = (estimates * problem.samples[:n_known]).sum(dim=1)
            assert (similarity > 0).all()
            errors.append(1 - similarity.mean().item())
        assert errors == sorted(errors, reverse=True)
        assert errors[0] < 0.2
        assert errors[-1] < 1e-6

    def test_a_pattern_says_more_of_a_sample_than_the_other_columns_do(self, problem):
        coordinates = knowing(problem, problem.columns[:15])
        duals = normalize(torch.linalg.solve(coordinates.found @ coordinates.found.T, coordinates.found), dim=1)
        left_open = 1 - cosines(duals, problem.samples[:15])
        assert (1 - (coordinates.inputs * problem.samples[:15]).sum(dim=1)).mean() < 0.5 * left_open.mean()

    def test_some_wrong_signs_do_little_harm_to_the_estimate_of_a_sample(self, problem):
        coordinates = problem.coordinates.deflated_by(problem.columns[:15])
        is_active = ~problem.test.zeros(coordinates.found)
        is_wrong = torch.rand(is_active.shape, generator=generator()) < 0.02
        for pattern, enough in ((is_active, 0.95), (is_active ^ is_wrong, 0.85)):
            estimates = PosteriorMeans().of(coordinates.found, coordinates.free, coordinates.forward, pattern)
            assert (estimates * problem.samples[:15]).sum(dim=1).mean() > enough

    def test_the_principal_forward_view_spans_the_free_preactivations(self, problem):
        coordinates = problem.coordinates.deflated_by(problem.columns[:10])
        forward = PrincipalForward.of(coordinates)
        torch.testing.assert_close(coordinates.forward @ forward.axes, forward.orthonormal * forward.sizes)
        assert (coordinates.found @ forward.axes).abs().max() < 1e-9
        assert (forward.sizes.diff() <= 0).all()


class TestReflections:
    @pytest.mark.parametrize("n_known", [0, 12, 22])
    def test_what_it_returns_are_columns_and_most_of_them_new(self, problem, n_known):
        known = problem.columns[:n_known]
        preactivations = Reflection().run(knowing(problem, known), 256, generator())
        is_known = ((preactivations @ known.T).abs() > 1 - 1e-9).any(dim=1)
        is_true = (cosines(preactivations, problem.columns) > 0.999) & ~is_known
        assert is_true.sum() > is_known.sum()
        # Starts that came to the same place have the same end.
        found = (preactivations[is_true] @ problem.columns.T).abs().argmax(dim=1)
        assert len(found.unique()) == len(preactivations[is_true].unique(dim=0))


def test_of_rows_that_are_nearly_the_same_the_first_goes_on():
    rows = torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 0.1], [-1.0, 0.0], [0.0, 3.0]])
    assert leaders(rows).tolist() == [0, 1, 0, 3, 1]
    assert leaders(rows[:0]).tolist() == []


class TestSpan:
    def test_true_activations_lie_in_it_and_others_do_not(self, problem):
        distances = problem.subspace.distances(problem.samples @ problem.forward.T)
        assert (distances < problem.subspace.tolerance).all()
        mixtures = normalize(problem.samples + problem.samples.roll(1, dims=0), dim=1)
        assert (problem.subspace.distances(mixtures @ problem.forward.T) > 0.01).all()

    def test_it_identifies_less_than_half_the_width(self):
        def subspace(m, b):
            return ActivationSubspace(torch.linalg.qr(torch.randn(m, b, generator=generator()))[0], 1e-5, ReLU())

        assert subspace(100, 48).identifies
        assert not subspace(100, 49).identifies

    def test_it_is_not_used_where_it_says_nothing(self, problem):
        assert ActivationSubspace.of(None, 25, ReLU()) is None
        assert ActivationSubspace.of(problem.given.next_weight_grad[:20], 25, ReLU()) is None
        noise = np.random.default_rng(0).standard_normal(problem.given.next_weight_grad.shape)
        assert ActivationSubspace.of(problem.given.next_weight_grad + noise, 25, ReLU()) is None


@pytest.fixture(scope="module")
def two_slopes():
    """What a server sees of 60 inputs behind 200 LeakyReLUs: the problem, true pre-activations, and columns."""
    batch = torch.randn((60, 100), generator=generator(), dtype=torch.float64)
    model = fully_connected(100, width=200, random_state=0).double()
    for index in range(1, len(model), 2):
        model[index] = nn.LeakyReLU(0.2)
    given = LayerGradient.from_model(model, client_gradient(model, batch, torch.arange(60) % 10))
    problem = LayerProblem.of(given)
    samples = batch.numpy() @ problem.factors.right.T / problem.factors.singular_values
    true = torch.from_numpy(given.preactivations(batch.numpy()).T.copy())
    return problem, normalize(true, dim=1), normalize(torch.from_numpy(np.linalg.inv(samples).T), dim=1)


class TestProjection:
    def test_what_it_returns_are_samples(self, problem):
        found, is_determined = Projection().run(problem.coordinates, problem.subspace, 128, generator())
        assert len(found) > 3
        assert is_determined.all()
        assert (cosines(found, problem.samples) > 1 - 1e-9).all()

    def test_most_starts_close_to_the_limit_end_in_samples_too(self):
        patient = Projection(more=2 * Projection().more)
        crowded = Problem(batch_size=42)
        z = normalize(crowded.samples @ crowded.forward.T, dim=1)
        forward = PrincipalForward.of(crowded.coordinates)
        preactivations = patient.reflections(
            forward, replace(crowded.subspace, basis=crowded.subspace.basis.float()), 64, generator()
        )
        assert (cosines(preactivations.double() @ forward.orthonormal.T, z) > 0.99).double().mean() > 0.5
        found, is_determined = patient.run(crowded.coordinates, crowded.subspace, 512, generator())
        assert is_determined.any()
        assert (cosines(found[is_determined], crowded.samples) > 1 - 1e-9).all()

    def test_an_end_with_fewer_active_units_than_unknowns_is_not_determined(self):
        crowded = Problem(batch_size=47)
        z = crowded.samples @ crowded.forward.T
        n_active = (z > 0).sum(dim=1)
        found, is_determined = Projection().run(crowded.coordinates, crowded.subspace, 512, generator())
        of = (found @ crowded.samples.T).abs().argmax(dim=1)
        assert is_determined.any()
        assert not is_determined.all()
        assert not is_determined[n_active[of] < 47].any()
        assert (cosines(found[is_determined], crowded.samples) > 1 - 1e-9).all()
        # Of the others the activations are right.
        activations = normalize(torch.relu(found @ crowded.forward.T), dim=1)
        assert (cosines(activations, normalize(torch.relu(z), dim=1)) > 1 - 1e-9).all()

    def test_behind_two_slopes_reflections_that_go_on_less_far_end_at_many_more_samples(self, two_slopes):
        """Whole reflections wander: 0 and 3 % of starts end at a sample, however many there are."""
        problem, true, _ = two_slopes
        forward, subspace = PrincipalForward.of(SampleCoordinates.of_problem(problem)), problem.subspace.up_to_scale()

        def share(projection):
            preactivations = projection.reflections(
                forward, replace(subspace, basis=subspace.basis.float()), 64, generator()
            )
            return (cosines(preactivations.double() @ forward.orthonormal.T, true) > 0.95).double().mean()

        less_far = Projection.for_two_slopes()
        whole = clone(less_far).set_params(overshoot=1.0, step=1.0)
        assert share(less_far) > 0.5
        assert share(less_far) > 5 * share(whole)

    def test_behind_two_slopes_a_column_that_is_off_holds_up_no_other(self, two_slopes):
        """One slope taken for the other: its column is a little off, and so is what is left to search."""
        problem, true, columns = two_slopes
        off = normalize(columns[:1] + 0.003 * normalize(torch.randn(1, 60, generator=generator()), dim=1), dim=1)
        coordinates, subspace = SampleCoordinates.of_problem(problem).deflated_by(off), problem.subspace.up_to_scale()
        found, _ = Projection.for_two_slopes().run(coordinates, subspace, 64, generator())
        near = cosines(normalize(found @ problem.regressors().T, dim=1), true)
        assert len(found) > 5
        assert near.min() > 0.99
        exact, _ = Projection.for_two_slopes().set_params(is_last=True).run(coordinates, subspace, 64, generator())
        assert 2 * len(exact) < len(found)

    def test_rows_that_change_are_added_as_if_all_were(self):
        left, right = torch.randn(40, 8, generator=generator(), dtype=torch.float64).split([3, 5], dim=1)
        weights = torch.zeros(3, 40, dtype=torch.float64)
        weights[0, :2], weights[1, 5], weights[1, 7], weights[2] = 1, -1, 1, 1
        expected = torch.stack([left.T @ torch.diag(row) @ right for row in weights])
        products = torch.zeros_like(expected)
        _add_rows(products, left, right, weights, few_rows=0.15)
        torch.testing.assert_close(products, expected)

    def test_it_stays_among_the_unknown(self, problem):
        coordinates = replace(problem.coordinates.deflated_by(problem.columns[:20]), inputs=problem.samples[:20])
        found, _ = Projection().run(coordinates, problem.subspace, 64, generator())
        assert len(found) > 0
        assert (cosines(found, problem.samples[20:]) > 1 - 1e-9).all()


class TestKnowledge:
    @staticmethod
    def leaving_open(problem, n_zeros):
        """Keep the rows where sample 0 is active, and few others: its column stays open until others close it."""
        active = problem.forward @ problem.samples[0] > 0
        keep = active.clone()
        keep[torch.nonzero(~active)[:n_zeros, 0]] = True
        test = type(problem.test)(
            problem.test.observations[keep], problem.test.unmixing, problem.test.noise_level[keep]
        )
        return Knowledge(test, replace(problem.coordinates, left=test.observations, forward=problem.forward[keep]))

    def test_samples_become_columns(self, problem):
        knowledge = Knowledge(problem.test, problem.coordinates)
        assert knowledge.add_inputs(problem.samples[:7], EVERY[:7])
        assert knowledge.n_found == 7
        assert (cosines(knowledge.coordinates.found, problem.columns[:7]) > 1 - 1e-12).all()
        assert not knowledge.add_inputs(problem.samples[:7], EVERY[:7])

    def test_a_sample_without_enough_zeros_waits_for_the_others(self, problem):
        knowledge = self.leaving_open(problem, n_zeros=10)
        knowledge.add_inputs(problem.samples[:1], EVERY[:1])
        assert knowledge.n_found == 0
        knowledge.add_inputs(problem.samples[1:], EVERY[1:])
        assert (cosines(problem.columns[:1], knowledge.coordinates.found) > 1 - 1e-9).all()

    @pytest.mark.parametrize("width", [100, 1000])
    def test_the_other_samples_count_as_much_behind_wide_layers(self, width):
        problem = Problem(width=width)
        knowledge = self.leaving_open(problem, n_zeros=15)
        knowledge.add_inputs(problem.samples[:14], EVERY[:14])
        assert len(knowledge.inputs) == 14
        assert (cosines(problem.columns[:1], knowledge.coordinates.found) > 1 - 1e-9).all()

    def test_of_a_sample_that_is_not_determined_only_the_column_is_taken(self, problem):
        knowledge = Knowledge(problem.test, problem.coordinates)
        assert knowledge.add_inputs(problem.samples[:1], ~EVERY[:1])
        assert (cosines(knowledge.coordinates.found, problem.columns[:1]) > 1 - 1e-12).all()
        assert len(knowledge.inputs) == 0

    def test_a_column_that_contradicts_the_other_samples_is_not_taken(self, problem):
        knowledge = Knowledge(problem.test, problem.coordinates)
        wrong = normalize(problem.samples[1:2] + 0.1 * problem.samples[:1], dim=1)
        knowledge.add_inputs(torch.cat([problem.samples[:1], wrong]), EVERY[:2])
        assert knowledge.n_found == 0

    def test_the_column_view_loses_samples_known_and_estimates_of_the_others(self, problem):
        knowledge = Knowledge(problem.test, problem.coordinates)
        knowledge.add_inputs(problem.samples[:3], EVERY[:3])
        knowledge.add_columns(problem.columns[3:5])
        knowledge.deflate_columns()
        closest = cosines(problem.samples[:5], knowledge.coordinates.inputs)
        assert len(knowledge.coordinates.inputs) == knowledge.n_found == 5
        assert (closest[:3] > 1 - 1e-12).all()
        assert ((closest[3:] > 0.6) & (closest[3:] < 1 - 1e-6)).all()
        assert knowledge.n_known == 8

    def test_ends_that_prove_nothing_are_not_taken(self, problem):
        knowledge = Knowledge(problem.test, problem.coordinates)
        random = normalize(torch.randn(50, 25, generator=generator(), dtype=torch.float64), dim=1)
        assert not knowledge.add_columns(random)
        assert knowledge.n_found == 0
        assert knowledge.add_columns(torch.cat([random, problem.columns[:3]]))
        assert knowledge.n_found == 3


class TestActivationDirections:
    @pytest.mark.parametrize("use_next_layer", [False, True])
    def test_batches_past_the_papers_frontier(self, cifar, use_next_layer):
        for seed in range(3):
            pixels, given = cifar.problem(50, 200, seed)
            search = ActivationDirections(use_next_layer=use_next_layer)
            inverter = GradientInverter(search, random_state=0).fit(given)
            assert inverter.recovered_.all()
            assert psnr(pixels, cifar.pixels(inverter.inputs_)).min() > 90
            assert inverter.n_starts_ < expected_samples(50) / 1e9
            assert ("next layer" in inverter.status_) == use_next_layer

    def test_the_next_layer_reaches_further_than_zeros(self, cifar):
        for seed in range(2):
            pixels, given = cifar.problem(90, 200, seed)
            inverter = GradientInverter(random_state=0).fit(given)
            assert inverter.recovered_.all()
            assert psnr(pixels, cifar.pixels(inverter.inputs_)).min() > 90

    def test_patterns_that_nearly_agree(self):
        # Uncentred inputs switch nearly the same units: the gradient alone loses columns here.
        for seed in range(3):
            batch = torch.rand(12, 200, generator=torch.Generator().manual_seed(seed))
            model = fully_connected(200, width=200, random_state=seed)
            given = LayerGradient.from_model(model, client_gradient(model, batch, torch.arange(12) % 10))
            assert GradientInverter(random_state=0).fit(given).recovered_.all()

    def test_a_spent_budget_is_said(self, problem):
        search = ActivationDirections(patience=1, schedule=Schedule(starts_per_round=1), use_next_layer=False)
        candidates = search.propose(problem.problem, random_state=0)
        assert candidates.status == "nothing new in 1 rounds (used: gradient and weights)"
        search = ActivationDirections(max_seconds=1e-9)
        assert "cut short by the cap of 1e-09 seconds" in search.propose(problem.problem).status
        candidates = ActivationDirections(max_starts=100, use_next_layer=False).propose(problem.problem, random_state=0)
        assert "the budget of 100 starts is spent" in candidates.status
        assert candidates.n_starts == 128

    def test_the_same_seed_gives_the_same_result_however_slow_the_machine_is(self, problem, monkeypatch):
        search = ActivationDirections(use_next_layer=False, patience=3)
        first = search.propose(problem.problem, random_state=0)
        clock = iter(range(10**9, 10**12, 10**6))
        monkeypatch.setattr("time.monotonic", lambda: next(clock))
        second = search.propose(problem.problem, random_state=0)
        assert first.n_starts == second.n_starts
        np.testing.assert_array_equal(first.directions, second.directions)

    def test_what_is_left_over_goes_to_the_fallback(self, small_problem):
        _, model, gradient = small_problem
        given = LayerGradient.from_model(model, gradient)
        search = ActivationDirections(
            patience=1, schedule=Schedule(starts_per_round=1), fallback=DictionaryDirections()
        )
        inverter = GradientInverter(search, random_state=0).fit(given)
        assert inverter.recovered_.all()
        assert "nothing new" not in inverter.status_

    def test_a_last_column_without_enough_zeros_is_not_left_to_the_fallback(self, problem, monkeypatch):
        def all_but_one(self, preactivations):
            self.pool.add_proven(problem.columns[:-1], self.test)
            return self._deflate()

        monkeypatch.setattr(Knowledge, "add_columns", all_but_one)
        search = ActivationDirections(use_next_layer=False, fallback=DictionaryDirections())
        monkeypatch.setattr(DictionaryDirections, "propose", lambda *args, **options: pytest.fail("it was called"))
        inverter = GradientInverter(search, random_state=0).fit(problem.given)
        assert inverter.recovered_.all()
        assert "nothing new in 10 rounds" in inverter.status_

    def test_a_spent_budget_leaves_nothing_to_the_fallback(self, problem):
        search = ActivationDirections(max_seconds=1e-9, fallback=DictionaryDirections())
        candidates = search.propose(problem.problem, random_state=0)
        assert candidates.n_starts == 0
        assert "cut short by the cap of 1e-09 seconds" in candidates.status

    @pytest.mark.parametrize("name", ["max_seconds", "max_starts", "patience"])
    def test_bad_parameters_are_named(self, problem, name):
        with pytest.raises(ValueError, match=f"{name} must be positive, got 0"):
            ActivationDirections(**{name: 0}).propose(problem.problem)
