"""The span with its noise, the column from the next layer's weights, and what both leave to the other inputs."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import normalize

from sparsedl_fl import LayerGradient
from sparsedl_fl.activations import GELU, ReLU
from sparsedl_fl.constraints import ActivationSubspace, DownstreamSubspaces, Inputs, KnownWeights
from sparsedl_fl.constraints.activation_subspace import ROUNDING_SHARE
from sparsedl_fl.constraints.problem import LayerProblem
from sparsedl_fl.layers.next_layers import LayerBehind
from sparsedl_fl.simulation import client_gradient, fully_connected


def activations(b=6, m=50, seed=0):
    return np.maximum(np.random.default_rng(seed).standard_normal((b, m)), 0)


class TestActivationSpan:
    def test_tolerance_follows_what_an_input_left_of_a_gradient(self):
        rng, Y = np.random.default_rng(1), activations()
        sizes = np.array([1, 1, 1, 1, 1, 1e-5])
        gradient = (rng.standard_normal((40, 6)) * sizes) @ Y + 1e-8 * rng.standard_normal((40, 50))
        subspace = ActivationSubspace.of(gradient, 6, ReLU())
        tolerances = subspace.tolerances_of(torch.from_numpy(Y))
        assert (tolerances[:5] < tolerances[5]).all()
        assert (subspace.distances_of(torch.from_numpy(Y)) <= tolerances).all()

    def test_a_singular_value_in_the_noise_does_not_take_the_others_with_it(self):
        rng, Y = np.random.default_rng(2), activations()
        sizes = np.array([1, 1, 1, 1, 1, 1e-12])
        gradient = (rng.standard_normal((40, 6)) * sizes) @ Y + 1e-8 * rng.standard_normal((40, 50))
        subspace = ActivationSubspace.of(gradient, 6, ReLU())
        inside = subspace.distances_of(torch.from_numpy(Y)) <= subspace.tolerances_of(torch.from_numpy(Y))
        assert inside.tolist() == [True] * 5 + [False]

    def test_the_sum_of_a_head_s_rows_shows_its_noise(self):
        """Four samples in five classes: one direction is a tenth of the noise, which only the sum of the rows shows."""
        rng, Y = np.random.default_rng(8), activations(b=4)
        left = np.linalg.qr(np.column_stack([np.ones(5), rng.standard_normal((5, 4))]))[0]
        parts = np.array([1, 1, 1, 1e-9])[:, None] * np.linalg.svd(Y, full_matrices=False)[2]
        noise = 1e-8 * rng.standard_normal(50)
        subspace = ActivationSubspace.of(left[:, 1:] @ parts + np.outer(left[:, 0], noise), 4, ReLU())
        assert (subspace.basis.norm(dim=0) < 0.9).tolist() == [False, False, False, True]
        assert subspace.noise_of(torch.from_numpy(parts[3:])).item() > 0.01

    def test_copies_of_units_count_once_also_where_one_of_them_is_dead(self):
        rng = np.random.default_rng(4)
        X, weight, bias = rng.standard_normal((6, 20)), rng.standard_normal((50, 20)), rng.standard_normal(50)
        weight[40:], bias[40:], bias[:3] = weight[:10], bias[:10], -100.0
        gradient = rng.standard_normal((40, 6)) @ np.maximum(X @ weight.T + bias, 0)
        subspace = ActivationSubspace.of(gradient, 6, ReLU(), (weight, bias))
        assert subspace.stand_for.tolist() == [1.0] * 3 + [2.0] * 7 + [1.0] * 33 + [0.0] * 7
        assert subspace.n_equations == 43 - 6
        strengths = subspace.strengths_of(
            torch.from_numpy(np.maximum(rng.standard_normal((1, 20)) @ weight.T + bias, 0))
        )
        assert (strengths > 0).sum() <= 37
        assert ActivationSubspace.of(gradient, 6, ReLU(), (rng.standard_normal((50, 20)), bias)).stand_for is None

    def test_inputs_beyond_the_noise_are_by_how_much(self):
        rng, Y = np.random.default_rng(5), activations()
        gradient = rng.standard_normal((40, 6)) @ Y + 1e-5 * rng.standard_normal((40, 50))
        subspace = ActivationSubspace.of(gradient, 6, ReLU())
        true = torch.from_numpy(Y)
        assert (DownstreamSubspaces((subspace,)).at(true).beyond_noise == 1).all()
        away = subspace.outside(torch.from_numpy(activations(seed=6)))
        moved = (
            true + 20 * subspace.noise_of(true)[:, None] * away / away.norm(dim=1)[:, None] * true.norm(dim=1)[:, None]
        )
        assert DownstreamSubspaces((subspace,)).at(moved).beyond_noise.numpy() == pytest.approx(
            np.full(6, 20.0), rel=0.2
        )

    def test_weak_directions_of_smooth_activations_are_there(self):
        rng = np.random.default_rng(7)
        sizes = np.array([1, 1, 1, 1, 1, 1e-5])
        Y = np.linalg.svd(rng.standard_normal((6, 50)), full_matrices=False)[2]
        gradient = (np.linalg.qr(rng.standard_normal((40, 6)))[0] * sizes) @ Y + 3e-8 * rng.standard_normal((40, 50))
        kept = {
            phi: ActivationSubspace.of(gradient, 6, phi, gap=1e6).basis.norm(dim=0).numpy() for phi in (GELU(), ReLU())
        }
        smooth, flat = kept.values()
        assert smooth == pytest.approx(np.ones(6), abs=1e-3)
        assert flat[:5] == pytest.approx(np.ones(5))
        assert flat[5] == 0  # no input left so little of its own gradient

    def test_noise_as_large_as_the_gradient_leaves_no_span(self):
        rng = np.random.default_rng(3)
        assert ActivationSubspace.of(rng.standard_normal((40, 50)), 6, ReLU()) is None

    def test_units_that_are_off_leave_fewer_equations(self):
        """40 units, 6 inputs; two units are on for the first alone, so that one says what the other does."""
        rng = np.random.default_rng(0)
        activations = np.maximum(rng.standard_normal((40, 6)), 0)
        activations[:2] = 0.0
        activations[:2, 0] = 1.0, 2.0
        subspace = ActivationSubspace.of(rng.standard_normal((30, 6)) @ activations.T, 6, ReLU())
        candidates = torch.as_tensor(np.stack([np.ones(40), activations[:, 1]]))
        strengths = subspace.strengths_of(candidates)
        assert (strengths[0] > 0.99).sum() == 34
        n_on, held = int((activations[:, 1] > 0).sum()), 1  # by the span alone with these units on: the input itself
        own = torch.as_tensor(activations[:, 1] > 0)
        V = torch.nn.functional.normalize(subspace.basis, dim=0)
        outside = torch.linalg.svdvals((torch.eye(40, dtype=torch.float64) - V @ V.T)[:, own])
        np.testing.assert_allclose(strengths[1].sort(descending=True).values[:n_on], outside, atol=1e-6)
        assert (strengths[1] > 1e-6).sum() == min(n_on, 34 - 1) - held


@pytest.fixture(scope="module")
def client():
    inputs = torch.randn(7, 30, generator=torch.Generator().manual_seed(0))
    model = fully_connected(30, width=60, random_state=0)
    return inputs, model, LayerGradient.from_model(model, client_gradient(model, inputs, torch.arange(7)))


class TestColumnView:
    def test_every_column_comes_from_its_pre_activations(self, client):
        inputs, _, given = client
        problem = LayerProblem.of(given)
        p = inputs.double().numpy() @ problem.factors.right.T / problem.factors.singular_values
        columns, is_only = problem.column.columns(torch.from_numpy(p) @ problem.regressors().T)
        true = normalize(torch.linalg.inv(torch.from_numpy(p)).T, dim=1)
        assert is_only.all()
        assert ((columns * true).sum(dim=1).abs() > 1 - 1e-8).all()

    def test_beyond_half_the_width_the_layer_behind_decides(self):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            layers = [nn.Linear(80, 60), nn.GELU(), nn.Linear(60, 60), nn.SiLU(), nn.Linear(60, 60), nn.GELU()]
            model, batch = nn.Sequential(*layers, nn.Linear(60, 40)), 2 * torch.randn(34, 80)
        given = LayerGradient.from_model(model, client_gradient(model, batch, torch.arange(34)))
        problem = LayerProblem.of(given)
        p = torch.from_numpy(batch.double().numpy() @ problem.factors.right.T / problem.factors.singular_values)
        true = normalize(torch.linalg.inv(p).T, dim=1)
        columns, is_only = problem.column.columns(p @ problem.regressors().T)
        assert len(problem.column.outputs) == 2
        assert is_only.all()
        assert ((columns * true).sum(dim=1).abs() > 1 - 1e-5).all()
        alone = LayerProblem.of(replace(given, behind=())).column
        assert not alone.columns(p @ problem.regressors().T)[1].any()

    def test_of_a_wrong_pattern_no_column_is_the_only_one(self, client):
        problem = LayerProblem.of(client[2])
        z = torch.rand((5, 60), generator=torch.Generator().manual_seed(4), dtype=torch.float64) - 0.5
        assert not problem.column.columns(z)[1].any()

    def test_there_is_none_without_weights_or_for_an_update(self, client):
        given = client[2]
        assert LayerProblem.of(replace(given, next_weight=None, behind=())).column is None
        update = replace(given, learning_rate=0.1)
        assert KnownWeights.of(update, LayerProblem.of(given).factors, LayerProblem.of(given).subspaces) is None


def test_next_weights_of_another_shape_are_named(client):
    with pytest.raises(ValueError, match="next_weight must have shape"):
        replace(client[2], next_weight=np.ones((60, 59)))
    with pytest.raises(ValueError, match="next_weight must have the shape of next_weight_grad"):
        replace(client[2], next_weight=np.ones((59, 60)))


class TestSpansBehind:
    @pytest.fixture
    def behind(self):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            layers = [nn.Linear(30, 50), nn.GELU(), nn.Linear(50, 40), nn.Tanh(), nn.Linear(40, 45), nn.SiLU()]
            model = nn.Sequential(*layers, nn.Linear(45, 10))
            batch = torch.randn(6, 30)
        gradients = client_gradient(model, batch, torch.arange(6))
        given = LayerGradient.from_model(model, gradients)
        with torch.no_grad():
            z = model.double()[0](batch.double())
        return DownstreamSubspaces.of(given, 6, GELU()), z

    def test_there_is_one_for_each_layer_that_spans_the_batch(self, behind):
        subspaces, z = behind
        assert [len(subspace.basis) for subspace in subspaces.levels] == [50, 40, 45]
        assert subspaces.n_equations == 50 + 40 + 45 - 3 * 6
        assert subspaces.identifies
        assert subspaces.first.n_equations == 44
        assert subspaces.at(z).is_proof.all()
        assert subspaces.at(z).distances.max() < 1e-5

    def test_gradient_and_curve_are_those_of_the_cost(self, behind):
        subspaces, z = behind
        subspaces = subspaces.scaled_to(z)
        z = z + 0.5
        step = 1e-5 * torch.randn(z.shape, generator=torch.Generator().manual_seed(1), dtype=z.dtype)
        here, above, below = subspaces.at(z), subspaces.at(z + step), subspaces.at(z - step)
        torch.testing.assert_close((above.cost - below.cost) / 4, (here.gradient * step).sum(dim=1), rtol=1e-4, atol=0)
        # J^T J is symmetric and positive, and J dz is what leaves the spans, to first order.
        other = torch.randn(z.shape, generator=torch.Generator().manual_seed(2), dtype=z.dtype)
        torch.testing.assert_close((other * here.curve(step)).sum(dim=1), (step * here.curve(other)).sum(dim=1))
        change = [
            weight * (subspace.outside(one - two) ** 2).sum(dim=1) / 4
            for subspace, one, two, weight in zip(
                subspaces.levels, above.activations, below.activations, subspaces.weights, strict=True
            )
        ]
        torch.testing.assert_close((step * here.curve(step)).sum(dim=1), sum(change), rtol=1e-3, atol=0)

    def test_weights_go_with_their_inputs(self, behind):
        subspaces, z = behind
        varied = subspaces.weighted(6, 1.0, torch.Generator().manual_seed(0))
        index = torch.tensor([4, 1])
        torch.testing.assert_close(varied.at(z + 0.3).cost[index], varied.of_some(index).at(z[index] + 0.3).cost)

    def test_an_update_has_the_first_alone(self, behind):
        rng = np.random.default_rng(0)
        D, X, D2 = (rng.standard_normal(shape) for shape in ((50, 6), (6, 30), (40, 6)))
        Y = rng.standard_normal((6, 50))
        layer = LayerBehind(rng.standard_normal((40, 50)), None, "gelu", D2[:30] @ rng.standard_normal((6, 40)))
        given = LayerGradient(
            rng.standard_normal((50, 30)), np.zeros(50), D @ X, D.sum(axis=1), D2 @ Y, activation="gelu", behind=[layer]
        )
        assert len(DownstreamSubspaces.of(given, 6, GELU()).levels) == 2
        assert len(DownstreamSubspaces.of(replace(given, learning_rate=0.1), 6, GELU()).levels) == 1

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"weight": np.ones((4, 3))}, "takes 3 inputs, and the layer before has 50"),
            ({"bias": np.ones(3)}, "a LayerBehind must have weight"),
            ({"next_weight_grad": np.full((5, 40), np.nan)}, "contains NaN"),
            ({"activation": "nothing"}, "activation must be"),
        ],
    )
    def test_layers_that_do_not_fit_are_refused(self, behind, change, message):
        arguments = {
            "weight": np.ones((40, 50)),
            "bias": None,
            "activation": "relu",
            "next_weight_grad": np.ones((5, 40)),
        }
        if "weight" in change:
            change = {**change, "bias": np.ones(4), "next_weight_grad": np.ones((5, 4))}
        with pytest.raises(ValueError, match=message):
            LayerGradient(
                np.ones((50, 30)),
                np.ones(50),
                np.ones((50, 30)),
                np.ones(50),
                behind=[LayerBehind(**{**arguments, **change})],
            )


def test_a_next_gradient_of_lower_rank_spans_the_inputs_whose_columns_are_independent():
    """Two inputs whose gradients are parallel leave one direction: neither lies inside, and noise does not tell."""
    rng = np.random.default_rng(0)
    activations = np.maximum(rng.standard_normal((8, 60)), 0)
    columns = rng.standard_normal((20, 8))
    columns[:, 1] = columns[:, 0]
    given = columns @ activations + 1e-8 * rng.standard_normal((20, 60))
    short, open_ = (ActivationSubspace.of(given, 8, ReLU(), gap=gap) for gap in (1e5, 10.0))
    y = torch.from_numpy(activations)
    over_noise, if_it_were_weak = ((subspace.distances_of(y) / subspace.noise_of(y)) for subspace in (short, open_))
    assert (over_noise[2:] < 5).all()
    assert (over_noise[:2] > 1e3).all()
    assert (if_it_were_weak < ROUNDING_SHARE).all()  # what left little of a gradient could be anything there
    assert short.n_equations == open_.n_equations == 60 - 8


class TestOthers:
    """What is left of the views without some inputs."""

    N_KNOWN = 8

    @pytest.fixture(params=[nn.GELU, nn.LeakyReLU, nn.Tanh])
    def known(self, request):
        inputs, labels = torch.randn((12, 30), generator=torch.Generator().manual_seed(0)), torch.arange(12) % 5
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            parts = [(nn.Linear(n, m), request.param()) for n, m in ((30, 60), (60, 50), (50, 40))]
            model = nn.Sequential(*(part for pair in parts for part in pair), nn.Linear(40, 5))
        problem = LayerProblem.of(LayerGradient.from_model(model, client_gradient(model, inputs, labels)))
        model, factors = model.double(), problem.factors
        z = model[0](inputs.double()).detach().requires_grad_()
        (d,) = torch.autograd.grad(nn.functional.cross_entropy(model[1:](z), labels), z)
        p = torch.as_tensor(inputs.double().numpy() @ factors.right.T / factors.singular_values)
        return problem, Inputs(p, z.detach(), d)

    def first(self, inputs, n):
        return Inputs(inputs.whitened[:n], inputs.preactivations[:n], inputs.gradients[:n])

    def check(self, constraint, inputs, n):
        distances = constraint.at(inputs.preactivations).distances
        assert (distances[n:] < 1e-4).all()
        assert (distances[:n] > 0.02).all()

    @pytest.mark.parametrize("level", [0, 1])
    def test_known_inputs_leave_every_span(self, known, level):
        problem, inputs = known
        subspaces = problem.subspaces.without(self.first(inputs, self.N_KNOWN))
        assert [subspace.basis.shape[1] for subspace in subspaces.levels] == [4, 4]
        y = subspaces.at(inputs.preactivations).activations[level]
        assert (subspaces.levels[level].distances_of(y)[self.N_KNOWN :] < 1e-4).all()
        assert (subspaces.levels[level].distances_of(y)[: self.N_KNOWN] > 0.02).all()

    def test_one_after_the_other_is_as_all_at_once(self, known):
        problem, inputs = known
        subspaces = problem.subspaces
        for index in range(self.N_KNOWN):
            one = Inputs(*(part[index : index + 1] for part in vars(inputs).values()))
            subspaces = subspaces.without(one)
        self.check(subspaces, inputs, self.N_KNOWN)

    def test_wrong_gradients_leave_the_spans_as_they_are(self, known):
        problem, inputs = known
        noise = torch.randn(inputs.gradients.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        wrong = replace(inputs, gradients=inputs.gradients + 0.3 * inputs.gradients.std() * noise)
        subspaces = problem.subspaces.without(self.first(wrong, self.N_KNOWN))
        assert [subspace.basis.shape[1] for subspace in subspaces.levels] == [12, 12]

    def test_known_inputs_leave_the_column_space_and_their_labels_the_others(self, known):
        problem, inputs = known
        rest = problem.tail.without(self.first(inputs, self.N_KNOWN))
        assert rest.n_unknowns == problem.tail.n_unknowns - self.N_KNOWN
        self.check(rest.settled(inputs.preactivations), inputs, self.N_KNOWN)
        of_first_label = problem.tail.without(Inputs(*(part[::5] for part in vars(inputs).values())))
        assert of_first_label.shares[0] < 0.5 * problem.tail.shares[0]

    def test_nothing_known_changes_nothing(self, known):
        problem, inputs = known
        assert problem.subspaces.without(self.first(inputs, 0)) is problem.subspaces
        assert problem.tail.without(self.first(inputs, 0)) is problem.tail
