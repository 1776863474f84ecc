import numpy as np
import pytest

from sparsedl_fl.layers import blocks


@pytest.fixture(params=[np.float32, np.float64])
def matrix(request, monkeypatch):
    monkeypatch.setattr("sparsedl.arrays.CHUNK_ENTRIES", 70)
    monkeypatch.setattr(blocks, "CHUNK_ENTRIES", 70)  # several blocks, the last one shorter
    return np.random.default_rng(0).standard_normal((10, 33)).astype(request.param)


def test_products_are_those_in_double_precision(matrix):
    rng, exact = np.random.default_rng(1), matrix.astype(float)
    left, right = rng.standard_normal((10, 4)), rng.standard_normal((33, 4))
    np.testing.assert_allclose(blocks.times(matrix, right), exact @ right, rtol=1e-12)
    np.testing.assert_allclose(blocks.transposed_times(matrix, left), exact.T @ left, rtol=1e-12)
    np.testing.assert_allclose(blocks.row_norms(matrix), np.linalg.norm(exact, axis=1), rtol=1e-12)


def test_row_factor_has_the_same_gram_matrix(matrix):
    factor, exact = blocks.row_factor(matrix), matrix.astype(float)
    assert factor.shape == (10, 10)
    np.testing.assert_allclose(factor @ factor.T, exact @ exact.T, atol=1e-12)


def test_residual_norms(matrix):
    rng = np.random.default_rng(2)
    left, right = rng.standard_normal((10, 3)), rng.standard_normal((3, 33))
    rows, columns = blocks.residual_norms(matrix, left, right)
    residual = matrix.astype(float) - left @ right
    np.testing.assert_allclose(rows, np.linalg.norm(residual, axis=1))
    np.testing.assert_allclose(columns, np.linalg.norm(residual, axis=0))


def test_only_what_fits_into_a_block_is_copied(matrix):
    assert blocks.in_double(matrix) is matrix
    assert blocks.in_double(matrix[:, :7]).dtype == np.float64
