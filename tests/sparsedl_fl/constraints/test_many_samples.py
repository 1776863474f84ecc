import numpy as np
import pytest
import torch

from sparsedl_fl.constraints.many_samples import ManySamplesProblem


def test_the_bias_is_one_more_input_and_all_inputs_fit(many_samples):
    inputs, _, _, given = many_samples()
    problem = ManySamplesProblem.of(given)
    assert problem.layer.batch_size == 7
    assert problem.batch_size == 24
    assert problem.is_free
    whitened = problem.whitened(inputs.double().numpy())
    np.testing.assert_allclose(problem.inputs(whitened), inputs, atol=1e-9)
    np.testing.assert_allclose(whitened @ problem.layer.forward.scale, 1, atol=1e-9)
    np.testing.assert_allclose(
        problem.preactivations(whitened).T, given.preactivations(inputs.double().numpy()), atol=1e-9
    )
    assert problem.layer.subspaces.at(problem.preactivations(whitened)).is_proof.all()


def test_categories_leave_features_empty(many_samples):
    values = torch.eye(4)[torch.arange(24) % 3]
    inputs = torch.cat([values, torch.randn(24, 3, generator=torch.Generator().manual_seed(1))], dim=1)
    problem = ManySamplesProblem.of(many_samples(inputs=inputs, n_features=7)[3])
    assert problem.layer.batch_size == 6  # three categories, which sum to the input of the bias, and three numbers
    assert not problem.is_free


@pytest.mark.parametrize("n_records", [3, 6])
def test_a_batch_that_its_features_hold_is_not_crowded(many_samples, n_records):
    assert ManySamplesProblem.of(many_samples(n_records)[3]) is None


def test_without_the_next_layer_nothing_is_known(many_samples):
    from dataclasses import replace

    given = many_samples()[3]
    assert ManySamplesProblem.of(replace(given, next_weight_grad=None, next_weight=None)) is None
    assert ManySamplesProblem.of(given, batch_size=60) is None
