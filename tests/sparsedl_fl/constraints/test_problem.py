"""The problem, its forward view, and what follows from a hypothesis."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from sparsedl_fl import GradientInverter, LayerGradient
from sparsedl_fl.activations import GELU, Hardtanh, ReLU, Threshold
from sparsedl_fl.certify.hypothesis import Hypothesis
from sparsedl_fl.constraints.problem import LayerProblem
from sparsedl_fl.simulation import client_gradient, fully_connected


def truth(given, batch):
    """Return the problem and the hypothesis of the true columns."""
    problem = LayerProblem.of(given)
    columns = np.linalg.inv(batch @ problem.factors.right.T / problem.factors.singular_values)
    return problem, Hypothesis(problem, columns / np.linalg.norm(columns, axis=0), np.ones(len(batch), dtype=bool))


def test_at_the_truth_the_pattern_is_that_of_the_gradient(small_problem):
    batch, model, gradient = small_problem
    given = LayerGradient.from_model(model, gradient)
    problem, hypothesis = truth(given, batch)
    np.testing.assert_allclose(hypothesis.preactivations[0], given.weight @ batch.T + given.bias[:, None], atol=1e-9)
    np.testing.assert_array_equal(hypothesis.agreement, np.ones(8))
    assert hypothesis.fits.all()
    samples = hypothesis.scaled()[1]
    np.testing.assert_allclose((samples * problem.factors.singular_values) @ problem.factors.right, batch, atol=1e-9)
    np.testing.assert_allclose(problem.forward.regressors() @ samples.T, hypothesis.preactivations[0], atol=1e-9)


def test_a_kink_elsewhere_is_taken_from_the_bias(small_problem):
    batch, model, gradient = small_problem
    given = LayerGradient.from_model(model, gradient)
    problem, hypothesis = truth(given, batch)
    shifted = LayerProblem.of(
        LayerGradient(given.weight, given.bias, given.weight_grad, given.bias_grad, activation=Threshold(0.3, 0.0))
    )
    z = problem.forward.regressors() @ hypothesis.scaled()[1].T
    np.testing.assert_allclose(shifted.regressors().numpy() @ hypothesis.scaled()[1].T, z - 0.3, atol=1e-9)


def test_what_is_not_known_is_taken_for_a_relu(small_problem):
    _, model, gradient = small_problem
    given = LayerGradient.from_model(model, gradient)

    def after(activation):
        return LayerGradient(given.weight, given.bias, given.weight_grad, given.bias_grad, activation=activation)

    assert LayerProblem.of(after(None)).activation == ReLU()
    assert LayerProblem.of(after("hardtanh")).activation == Hardtanh()
    assert LayerProblem.of(after("gelu")).activation == GELU()
    with pytest.raises(ValueError, match="activation must be an Activation, one of"):
        after("nothing")


def test_a_unit_of_an_update_is_active_at_either_end():
    rng = np.random.default_rng(0)
    W, bias, X = rng.standard_normal((30, 12)), rng.standard_normal(30), rng.standard_normal((4, 12))
    D = rng.standard_normal((30, 4))
    update = LayerGradient(W, bias, D @ X, D.sum(axis=1), learning_rate=0.05)
    assert update.is_update
    problem, hypothesis = truth(update, X)
    assert problem.forward.moves
    moved = (W - 0.05 * D @ X) @ X.T + (bias - 0.05 * D.sum(axis=1))[:, None]
    start = W @ X.T + bias[:, None]
    np.testing.assert_allclose(hypothesis.preactivations, [start, moved], atol=1e-9)
    np.testing.assert_allclose(update.preactivations(X), start, atol=1e-12)
    np.testing.assert_array_equal(hypothesis.is_active, (start > 0) | (moved > 0))
    np.testing.assert_allclose(
        problem.depth([start, moved]), torch.relu(torch.from_numpy(-np.maximum(start, moved))).numpy(), atol=1e-12
    )


def test_views_are_built_once(small_problem, monkeypatch):
    _, model, gradient = small_problem
    calls = []
    from sparsedl_fl import GradientInverter
    from sparsedl_fl.constraints.downstream_subspaces import DownstreamSubspaces
    from sparsedl_fl.constraints.forward_pass import ForwardPass

    for constraint in (ForwardPass, DownstreamSubspaces):
        build = constraint.of.__func__
        monkeypatch.setattr(
            constraint,
            "of",
            classmethod(lambda cls, *args, build=build: calls.append(cls.__name__) or build(cls, *args)),
        )
    GradientInverter(random_state=0).fit(LayerGradient.from_model(model, gradient))
    assert sorted(calls) == ["DownstreamSubspaces", "ForwardPass"]


def test_only_spans_that_identify_say_what_lies_beyond_their_noise(small_problem):
    batch, model, gradient = small_problem
    given = LayerGradient.from_model(model, gradient)
    problem, hypothesis = truth(given, batch)
    samples = hypothesis.scaled()[1]
    beside = samples + 1e-2 * np.roll(samples, 1, axis=0)
    assert (problem.beyond_noise(samples) == 1).all()
    assert (problem.beyond_noise(beside) > 10).all()
    alone = LayerProblem.of(replace(given, next_weight_grad=None, next_weight=None, behind=()))
    assert (alone.beyond_noise(beside) == 1).all()


def test_a_bias_gradient_of_zero_gives_no_scale_and_the_error_says_so():
    model = fully_connected(20, width=50, n_classes=2, random_state=0)
    gradient = client_gradient(
        model, torch.randn(3, 20, generator=torch.Generator().manual_seed(0)), torch.arange(3) % 2
    )
    last = [name for name in gradient if name.endswith("bias")][-1]
    gradient[last] = torch.zeros_like(gradient[last])
    given = LayerGradient.from_model(model, gradient, layer=last.removesuffix(".bias"))
    with pytest.raises(ValueError, match=r"does not give the inputs their scale|the bias gradient is zero"):
        GradientInverter(random_state=0).fit(given)
