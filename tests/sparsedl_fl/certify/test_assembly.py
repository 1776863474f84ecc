import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from sparsedl_fl import LayerGradient
from sparsedl_fl.certify.assembly import Assembly, repeats
from sparsedl_fl.certify.columns_from_zeros import without_outliers
from sparsedl_fl.certify.constraint_criteria import BySubspace
from sparsedl_fl.certify.hypothesis import Hypothesis
from sparsedl_fl.certify.zero_criteria import ZerosOfOthers
from sparsedl_fl.constraints.problem import LayerProblem
from sparsedl_fl.metrics import match_batches
from sparsedl_fl.simulation import client_gradient

ALL = np.ones(8, dtype=bool)


@pytest.fixture
def problem(small_problem):
    batch, model, gradient = small_problem
    layer_gradient = LayerGradient.from_model(model, gradient)
    problem = LayerProblem.of(layer_gradient)
    true = np.linalg.inv(batch @ problem.factors.right.T / problem.factors.singular_values)
    return batch, layer_gradient, problem, true / np.linalg.norm(true, axis=0)


def test_the_truth_is_recovered_and_certified(problem):
    batch, layer_gradient, problem, true = problem
    result = Assembly().of(Hypothesis(problem, true, ALL))
    np.testing.assert_allclose(result.inputs, batch, atol=1e-9)
    assert result.recovered.all()
    assert result.relative_residual < 1e-12
    np.testing.assert_allclose(problem.factors.left @ result.disaggregation, result.preactivation_gradients, atol=1e-12)
    np.testing.assert_allclose(result.preactivation_gradients.sum(axis=1), layer_gradient.bias_grad, atol=1e-12)


def test_sign_and_order_of_the_columns_do_not_matter(problem):
    batch, layer_gradient, problem, true = problem
    order = np.random.default_rng(0).permutation(8)
    result = Assembly().of(Hypothesis(problem, -true[:, order], ALL))
    np.testing.assert_allclose(result.inputs, batch[order], atol=1e-9)
    assert result.recovered.all()


def test_columns_are_estimated_again_from_all_their_zero_rows(problem):
    batch, given, problem, true = problem
    factors = problem.factors
    noise = 1e-6 * np.sqrt(np.mean(given.weight_grad**2))
    noisy = given.weight_grad + noise * np.random.default_rng(0).standard_normal(given.weight_grad.shape)
    noisy = LayerGradient(given.weight, given.bias, noisy, given.bias_grad)
    noisy_problem = LayerProblem.of(noisy, batch_size=8)
    seen = noisy_problem.factors
    # From a few of them only.
    zeros = np.abs(factors.left @ true) < 1e-9
    rough = np.column_stack([np.linalg.svd(seen.left[np.flatnonzero(zeros[:, j])[:14]])[2][-1] for j in range(8)])
    inverse = np.linalg.inv(rough)
    unrefined = (inverse / (inverse @ noisy_problem.forward.scale)[:, None] * seen.singular_values) @ seen.right
    refined = Assembly().of(Hypothesis(noisy_problem, rough, ALL))
    before, after = (match_batches(batch, inputs).squared_errors.mean() for inputs in (unrefined, refined.inputs))
    assert after < before / 1.5
    assert refined.recovered.all()


@pytest.mark.parametrize("has_next", [False, True])
def test_one_wrong_column_spoils_the_input_that_it_mixes_in_and_no_other(problem, has_next):
    batch, layer_gradient, problem, true = problem
    if not has_next:
        problem = LayerProblem.of(replace(layer_gradient, next_weight_grad=None))
    wrong = true.copy()
    wrong[:, 0] += 0.3 * true[:, 1]
    wrong[:, 0] /= np.linalg.norm(wrong[:, 0])
    result = Assembly().of(Hypothesis(problem, wrong, ALL))
    errors = np.sqrt(np.mean((result.inputs - batch) ** 2, axis=1))
    assert not result.recovered[1]
    assert errors[1] > 1e-2
    assert errors[result.recovered].max(initial=0) < 1e-9
    if has_next:
        assert result.recovered.tolist() == [i != 1 for i in range(8)]
    assert result.relative_residual > 1e-3


def test_beside_a_stand_in_only_what_is_proven_by_itself_is_certified(problem):
    batch, layer_gradient, problem, true = problem
    alone = LayerProblem.of(replace(layer_gradient, next_weight_grad=None))
    result = Assembly().of(Hypothesis(alone, true, np.arange(8) != 3))
    # The third input is orthogonal to all columns that were found; the others need the third column.
    assert result.recovered.tolist() == [i == 3 for i in range(8)]
    result = Assembly().of(Hypothesis(problem, true, np.arange(8) != 3))
    assert set(result.evidence) == {BySubspace.kind, ZerosOfOthers.kind}
    assert result.recovered.all()


@pytest.mark.parametrize("missing", range(8))
def test_a_stand_in_for_a_missing_column_certifies_nothing_under_heavy_noise(problem, missing):
    batch, given, problem, true = problem
    factors = problem.factors
    noise = 0.08 * np.sqrt(np.mean(given.weight_grad**2))
    noisy = given.weight_grad + noise * np.random.default_rng(missing).standard_normal(given.weight_grad.shape)
    noisy = LayerGradient(given.weight, given.bias, noisy, given.bias_grad)
    noisy_problem = LayerProblem.of(noisy, batch_size=8, noise_level=noise)
    basis = noisy_problem.factors.left.T @ factors.left @ true
    basis[:, missing] = np.linalg.svd(np.delete(basis, missing, axis=1))[0][:, -1]
    result = Assembly().of(Hypothesis(noisy_problem, basis, np.arange(8) != missing))
    assert not result.recovered.any()


def test_on_which_side_of_zero_a_pre_activation_is_the_gradient_says(small_problem):
    batch, model, _ = small_problem
    model = copy.deepcopy(model)
    with torch.no_grad():
        z = model[0](torch.from_numpy(batch))
        step = 2e-6 * z[0].square().mean().sqrt()
        model[0].bias[0] += step - z[0, 0]
    given = LayerGradient.from_model(model, client_gradient(model, torch.from_numpy(batch), torch.arange(8) % 10))
    bias = given.bias.copy()
    bias[0] -= 2 * step.item()
    rounded = LayerGradient(given.weight, bias, given.weight_grad, given.bias_grad)
    problem = LayerProblem.of(rounded)
    factors = problem.factors
    true = np.linalg.inv(batch @ factors.right.T / factors.singular_values)
    result = Assembly().of(Hypothesis(problem, true / np.linalg.norm(true, axis=0), ALL))
    assert result.recovered.all()


def test_wrong_weights_certify_nothing(problem):
    _, given, _, true = problem
    other = LayerGradient(given.weight[::-1], given.bias, given.weight_grad, given.bias_grad)
    result = Assembly().of(Hypothesis(LayerProblem.of(other), true, ALL))
    assert not result.recovered.any()


def test_of_two_that_cannot_be_told_apart_the_more_exact_stays():
    inputs = np.array([[1.0, 0.0], [1.0, 1e-3], [0.0, 1.0], [1.0, 5e-4]])
    found = repeats(inputs, np.array([1e-6, 1e-3, 1e-3, np.inf]))
    assert found.tolist() == [False, True, False, False]  # what is not certified repeats nothing


def test_an_update_of_a_single_input_has_no_rows_to_leave_out(problem):
    """Rows that are on for a few steps stand out of the zeros; there is one column, and no second singular value."""
    _, layer_gradient, _, _ = problem
    update = replace(layer_gradient, weight_grad=np.outer(layer_gradient.bias_grad, np.ones(layer_gradient.shape[1])))
    factors = LayerProblem.of(replace(update, next_weight_grad=None)).factors
    rows = np.ones((len(factors.left), 1), dtype=bool)
    assert without_outliers(factors, np.ones((1, 1)), rows, Assembly().outlier).all()
