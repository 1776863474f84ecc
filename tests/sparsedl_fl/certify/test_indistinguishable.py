"""How far apart two inputs may lie that come back as one: by its equation, and by pairs that are drawn."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import ndtr

from sparsedl_fl import LayerGradient
from sparsedl_fl.certify.collinear import WeightsByTail
from sparsedl_fl.certify.near_duplicates import NearDuplicates
from sparsedl_fl.constraints.problem import LayerProblem
from sparsedl_fl.simulation import client_gradient, fully_connected

PAIRS = NearDuplicates()
B, M, N = 6, 100, 300


@pytest.fixture(scope="module")
def client():
    """Return a problem, and of the true inputs: pre-activations (m, b), gradients (m, b) and sizes (b,)."""
    inputs = torch.randn((B, N), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    model = fully_connected(N, width=M, random_state=0).double()
    labels = torch.arange(B) % 10
    z = (inputs @ model[0].weight.T + model[0].bias).detach().requires_grad_()
    loss = torch.nn.functional.cross_entropy(model[1:](z), labels)
    gradients = torch.autograd.grad(loss, z)[0].T.numpy()
    sent = {name: tensor.bfloat16() for name, tensor in client_gradient(model, inputs, labels).items()}
    problem = LayerProblem.of(LayerGradient.from_model(model, sent))
    return problem, z.detach().T.numpy(), gradients, np.sqrt(np.mean(inputs.numpy() ** 2, axis=1))


def resolutions(client, level):
    problem, z, gradients, sizes = client
    return PAIRS.resolutions(level, problem.layer_gradient.weight, problem.distance_to_kink([z]), gradients, sizes)


class TestResolutions:
    @pytest.mark.parametrize("level", [1e-5, 1e-4, 1e-3])
    def test_at_that_distance_a_pair_leaves_just_what_goes_unseen(self, client, level):
        """``r sqrt(n) / 4`` times the gradient at the units that switch, expected, or ``c |d| r / |x|`` if more."""
        problem, z, gradients, sizes = client
        found = resolutions(client, level)
        margins = np.abs(z) / np.linalg.norm(problem.layer_gradient.weight, axis=1)[:, None]

        def trace(distance):
            switches = 2 * ndtr(-2 * margins / distance)
            by_units = np.sqrt(np.sum(switches * gradients**2, axis=0)) * (switches.sum(axis=0) > 3)
            smoothly = 0.01 * np.linalg.norm(gradients, axis=0) * distance / sizes
            return distance * np.sqrt(N) / 4 * np.maximum(by_units, smoothly)

        is_inside = found < sizes
        assert is_inside.any()
        # A jump where enough units switch lies between a hair below and one above.
        assert (trace(found * (1 - 1e-6))[is_inside] <= level * (1 + 1e-3)).all()
        assert (trace(found * (1 + 1e-6))[is_inside] >= level * (1 - 1e-3)).all()

    def test_the_more_goes_unseen_the_further_up_to_the_size_of_an_input(self, client):
        found = np.stack([resolutions(client, level) for level in 10.0 ** np.arange(-9, 3)])
        assert (np.diff(found, axis=0) >= 0).all()
        assert (found[0] < 1e-2).all()
        np.testing.assert_allclose(found[-1], client[3])
        each = resolutions(client, 10.0 ** np.arange(-6, 0))
        np.testing.assert_array_equal(each, [resolutions(client, 10.0 ** (i - 6))[i] for i in range(B)])

    @pytest.mark.parametrize("factor", [2.0**-20, 2.0**20])
    def test_larger_inputs_behind_smaller_weights_are_the_same_further_apart(self, client, factor):
        problem, z, gradients, sizes = client
        found = PAIRS.resolutions(1e-4, problem.layer_gradient.weight, np.abs(z), gradients, sizes)
        weight = problem.layer_gradient.weight.astype(float) / factor
        scaled = PAIRS.resolutions(factor * 1e-4, weight, np.abs(z), gradients, factor * sizes)
        np.testing.assert_allclose(scaled, factor * found, rtol=1e-9)

    def test_pairs_at_that_distance_leave_about_that_trace(self):
        """The second singular value of the gradient of pairs that far apart: twice the level, and never half of it."""
        rng, ratios = np.random.default_rng(0), []
        for seed in range(10):
            model = fully_connected(N, width=M, random_state=seed).double()
            x, step = (torch.from_numpy(rng.standard_normal(N)) for _ in range(2))
            given = model[0].weight.detach().numpy()
            z = (model[0](x[None])).detach().requires_grad_()
            loss = torch.nn.functional.cross_entropy(model[1:](z), torch.tensor([0]))
            d = torch.autograd.grad(loss, z)[0].detach().numpy().T
            size, level = np.sqrt(np.mean(x.numpy() ** 2)), 0.02 * np.linalg.norm(d) * np.linalg.norm(x)
            (r,) = PAIRS.resolutions(level, given, np.abs(z.detach().numpy().T), d, np.array([size]))
            assert r < size
            pair = torch.stack([x - r / 2 * step, x + r / 2 * step])
            sent = client_gradient(model, pair, torch.tensor([0, 0]))["0.weight"]
            ratios.append(float(torch.linalg.svdvals(sent)[1]) / level)
        assert np.min(ratios) > 0.5
        assert np.median(ratios) < 4


class TestErrors:
    ERRORS = np.full(B, 1e-4)
    NOTHING = np.zeros((B, B), dtype=bool)

    def errors(self, client, gradients=None, may_be_difference=NOTHING, expected=None, pairs=PAIRS, problem=None):
        given, z, true, sizes = client
        gradients = true if gradients is None else gradients
        by_tail = None
        if expected is not None:
            by_tail = WeightsByTail(
                np.arange(B), np.linalg.norm(gradients, axis=0) / expected, np.zeros(B), np.ones(B, bool)
            )
        return pairs.errors(self.ERRORS, problem or given, [z], gradients, sizes, may_be_difference, by_tail)

    def test_alone_an_input_is_as_exact_as_it_is(self, client):
        distances, errors = self.errors(client, client[2] / np.linalg.norm(client[2], axis=0))
        np.testing.assert_array_equal(errors, self.ERRORS)
        assert (distances > 1e-4).all()
        assert (distances <= client[3]).all()

    @pytest.mark.parametrize("copies", [2, 3, 4])
    @pytest.mark.parametrize("index", range(B))
    def test_a_gradient_as_large_as_several_stands_for_them(self, client, index, copies):
        gradients = client[2] / np.linalg.norm(client[2], axis=0)
        gradients[:, index] *= copies
        distances, errors = self.errors(client, gradients)
        expected = self.ERRORS.copy()
        expected[index] = np.hypot(expected[index], distances[index])
        np.testing.assert_allclose(errors, expected)

    @pytest.mark.parametrize("index", range(B))
    def test_where_the_rest_says_how_large_a_gradient_is_that_counts(self, client, index):
        """Sizes may differ as they like, as long as it is by what the rest of the network says."""
        sizes = 10.0 ** np.random.default_rng(0).uniform(-2, 2, B)
        gradients = client[2] / np.linalg.norm(client[2], axis=0) * sizes
        _, errors = self.errors(client, gradients, expected=3 * sizes)
        np.testing.assert_array_equal(errors, self.ERRORS)
        told = sizes.copy()
        told[index] /= 2
        distances, errors = self.errors(client, gradients, expected=told)
        assert np.flatnonzero(errors > self.ERRORS).tolist() == [index]
        assert errors[index] == pytest.approx(np.hypot(self.ERRORS[index], distances[index]))

    def test_tokens_that_make_no_whole_samples_are_all_in_doubt(self, client):
        given = client[0]
        layer = replace(given.layer_gradient, rows_per_sample=4)
        problem = replace(given, layer_gradient=layer)
        distances, errors = self.errors(client, problem=problem)
        np.testing.assert_allclose(errors, np.hypot(self.ERRORS, distances))

    def test_a_difference_that_came_back_puts_its_pair_in_doubt(self, client):
        """Far smaller, and with entries where its pair has some: the pair is as far apart as that says."""
        gradients = client[2] / np.linalg.norm(client[2], axis=0)
        gradients[:, 5] = 1e-2 * gradients[:, 2] * np.random.default_rng(0).uniform(0.5, 1.5, M)
        belongs = self.NOTHING.copy()
        belongs[5] = True
        traces = PAIRS._traces(belongs, gradients, client[3])
        share = gradients[:, 5] ** 2 / np.sum(gradients[:, 5] ** 2)
        own = np.array([share[gradients[:, i] != 0].sum() > PAIRS.own_share for i in range(B)])
        own[5] = False
        assert own[2]
        np.testing.assert_allclose(traces, np.where(own, np.linalg.norm(gradients[:, 5]) * client[3][5], 0.0))
        distances, errors = self.errors(client, gradients, belongs)
        before, _ = self.errors(client, gradients)
        assert errors[2] == pytest.approx(np.hypot(self.ERRORS[2], distances[2]))
        assert distances[2] > before[2]
        assert (errors[~own] == self.ERRORS[~own]).all()
