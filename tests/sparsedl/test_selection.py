import numpy as np

from sparsedl.selection import complete_basis, select_independent


def test_sparsest_first_and_dependent_ones_left_out():
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.standard_normal((4, 4)))[0]
    mixture = basis[:, 0] + basis[:, 1]
    directions = np.column_stack([basis[:, 0], mixture / np.linalg.norm(mixture), basis[:, 1], basis[:, 2]])
    assert select_independent(directions, np.array([10, 3, 9, 20])).tolist() == [3, 0, 2]


def test_stops_at_a_basis():
    directions = np.eye(3)[:, [0, 1, 2, 0, 1]]
    assert len(select_independent(directions, np.arange(5))) == 3


def test_nothing_from_nothing():
    assert select_independent(np.zeros((3, 0)), np.zeros(0)).tolist() == []
    np.testing.assert_allclose(np.abs(np.linalg.det(complete_basis(np.zeros((3, 0))))), 1)


def test_completion_is_orthonormal_and_orthogonal_to_what_is_given():
    given = np.random.default_rng(0).standard_normal((5, 2))
    basis = complete_basis(given)
    np.testing.assert_array_equal(basis[:, :2], given)
    np.testing.assert_allclose(basis[:, 2:].T @ basis[:, 2:], np.eye(3), atol=1e-12)
    np.testing.assert_allclose(given.T @ basis[:, 2:], 0, atol=1e-12)
