"""Inputs on one line that come back as fewer: what weights say of them."""

import numpy as np
import pytest

from sparsedl_fl.certify.collinear import errors_by_weights

LABELS = np.array([0, 0, 1, 1, 2])
OTHERS = np.array([[30.0], [50.0], [90.0]])


def gauss(points):
    """Return the two nodes and weights that integrate every cubic as points of weight one do."""
    moments = [np.sum(points**k) for k in range(4)]
    hankel = np.array([moments[:2], moments[1:3]])
    c0, c1 = np.linalg.solve(hankel, -np.array(moments[2:4]))
    nodes = np.sort(np.roots([1.0, c1, c0]).real)
    return nodes, np.linalg.solve(np.vander(nodes, 2, increasing=True).T, moments[:2])


@pytest.mark.parametrize("points", [[0.0, 0.8, 1.0], [-1.0, 0.0, 1.0], [0.0, 0.9, 1.0], [0.0, 0.2, 1.0], [0, 0.99, 1]])
def test_the_errors_of_two_that_stand_for_three_are_said(points):
    points = np.array(points)
    nodes, weights = gauss(points)
    errors = errors_by_weights(np.vstack([nodes[:, None], OTHERS]), LABELS, np.r_[weights, 1, 1, 1])[:2]
    off = np.abs(nodes[:, None] - points).min(axis=1)
    assert np.all(off <= 1.5 * errors)
    assert np.all(errors <= 0.5)


def test_single_inputs_are_not_off():
    inputs = np.vstack([[[0.0], [1.0]], OTHERS])
    assert errors_by_weights(inputs, LABELS, np.ones(5)).tolist() == [0] * 5


def test_an_input_that_the_batch_holds_twice_is_as_exact_as_weights_are():
    inputs = np.vstack([[[0.0], [1.0]], OTHERS])
    errors = errors_by_weights(inputs, LABELS, np.array([2.0, 1.0, 1.0, 1.0, 1.0]))
    assert errors.tolist() == [0] * 5
    noisy = errors_by_weights(inputs, LABELS, np.array([2.0, 1.0, 1.0, 1.0, 1.0]) + 1e-4 * np.array([1, -1, 1, 1, -1]))
    assert 0 < noisy[0] < 1e-2
    assert noisy[2:].tolist() == [0] * 3


def test_classes_may_have_weights_where_the_loss_was_told():
    inputs, weights = np.vstack([[[0.0], [1.0]], OTHERS]), np.array([1.5, 1.5, 1.0, 1.0, 1.0])
    assert errors_by_weights(inputs, LABELS, weights)[:2].min() > 0.1
    assert errors_by_weights(inputs, LABELS, weights, is_loss_given=True).tolist() == [0] * 5
