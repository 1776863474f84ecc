from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from sparsedl_fl.constraints.many_samples import ManySamplesProblem
from sparsedl_fl.constraints.next_columns import NextColumns


@pytest.mark.parametrize(("activation", "has_tail"), [(nn.ReLU, True), (nn.ReLU, False), (nn.GELU, True)])
def test_columns_of_the_next_layer_by_zeros_and_by_the_rest(many_samples, activation, has_tail):
    inputs, labels, _, given = many_samples(activation=activation)
    problem = ManySamplesProblem.of(given if has_tail else replace(given, rest=None))
    columns, whitened = NextColumns(problem), torch.from_numpy(problem.whitened(inputs.double().numpy()))
    found, is_determined = columns.of(whitened)
    assert is_determined.sum() >= 20
    products = columns.coordinates(whitened) @ found[is_determined].T
    np.testing.assert_allclose(products, torch.eye(24, dtype=torch.float64)[:, is_determined], atol=0.05)
    if has_tail:
        _, named, _ = columns.by_tail(whitened)
        assert (named == labels).float().mean() > 0.9
        assert set(named[named != labels].tolist()) <= {-1}


def test_what_is_known_takes_its_dimensions_from_the_span(many_samples):
    inputs, _, _, given = many_samples()
    problem = ManySamplesProblem.of(given)
    whitened = torch.from_numpy(problem.whitened(inputs.double().numpy()))
    basis = NextColumns(problem).subspace_without(whitened[:10])
    assert basis.shape == (100, 14)
    others = problem.activations(whitened[10:].numpy())
    left = others - others @ basis @ basis.T
    assert left.norm() < 1e-3 * others.norm()


def test_without_zeros_or_the_rest_there_is_none(many_samples):
    inputs, _, _, given = many_samples(activation=nn.GELU)
    problem = ManySamplesProblem.of(replace(given, rest=None))
    _, is_determined = NextColumns(problem).of(torch.from_numpy(problem.whitened(inputs.double().numpy())))
    assert not is_determined.any()
