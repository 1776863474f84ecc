"""Expected errors against the errors of draws: zeros of an input estimate it, and the noise says how far off."""

from types import SimpleNamespace

import numpy as np
import pytest

from sparsedl_fl.certify.uncertainty import errors_from_inputs

M, N, B, SIGMA = 50, 80, 5, 1e-6


def problem(seed, n_zeros):
    """Return inputs of which the first has zeros of its own, and the gradient without noise, transposed."""
    rng = np.random.default_rng(seed)
    inputs = rng.standard_normal((B, N))
    inputs[0, rng.choice(N, n_zeros, replace=False)] = 0.0
    columns = rng.standard_normal((M, B))
    return inputs, (columns @ inputs).T


def factorised(transposed, noise):
    left, singular_values, _ = np.linalg.svd(transposed, full_matrices=False)
    return SimpleNamespace(left=left[:, :B], singular_values=singular_values[:B], noise_level=noise)


def off_by(transposed, x):
    """Return by how much the vector of the column space that is smallest where the input is zero differs from it."""
    left = np.linalg.svd(transposed, full_matrices=False)[0][:, :B]
    found = left @ np.linalg.svd(left[x == 0])[2][-1]
    return found * (x @ x) / (found @ x) - x


@pytest.mark.parametrize("n_zeros", [6, 10, 40])
@pytest.mark.parametrize("seed", range(2))
def test_as_large_as_the_errors_of_draws(n_zeros, seed):
    """To first order ``dx = V dc + e`` with white noise ``e``, and ``V dc = -e`` in the mean where ``x`` is zero.

    ``|V dc|^2`` is what is expected here. The product with ``e`` has one entry of noise for each of the ``b - 1``
    directions that the zeros determine; along ``x`` there is no error, at the right scale.
    """
    inputs, transposed = problem(seed, n_zeros)
    left, singular_values, right = np.linalg.svd(transposed, full_matrices=False)
    amplified = SIGMA * np.linalg.norm(left[:, :B].T @ inputs[0] / singular_values[:B])
    factors = factorised(transposed, np.full(N, SIGMA))
    (by_zeros,) = errors_from_inputs(factors, inputs[:1], (inputs[:1] == 0).T)
    expected = N * by_zeros**2 + amplified**2 * (N - 1 - 2 * (B - 1))
    rng = np.random.default_rng(seed)
    squares = [
        np.sum(off_by(transposed + SIGMA * rng.standard_normal(transposed.shape), inputs[0]) ** 2) for _ in range(1000)
    ]
    # Six zeros leave two degrees of freedom: their share of the error is most of it, and spreads like that.
    assert np.mean(squares) == pytest.approx(expected, rel=0.04 if n_zeros == 40 else 0.1)


@pytest.mark.parametrize("n_zeros", range(1, B - 1))
@pytest.mark.parametrize("seed", range(5))
def test_fewer_zeros_than_the_others_have_dimensions_leave_an_input_open(n_zeros, seed):
    inputs, transposed = problem(seed, n_zeros)
    factors = factorised(transposed, np.full(N, SIGMA))
    assert errors_from_inputs(factors, inputs[:1], (inputs[:1] == 0).T)[0] == np.inf


def test_zeros_of_entries_that_say_the_same_leave_an_input_open():
    """Many zeros where another two inputs are alike: any mixture with their difference has them too."""
    inputs, _ = problem(0, 40)
    inputs[2] = np.where(inputs[0] == 0, inputs[1], inputs[2])
    transposed = (np.random.default_rng(1).standard_normal((M, B)) @ inputs).T
    factors = factorised(transposed, np.full(N, SIGMA))
    assert errors_from_inputs(factors, inputs[:1], (inputs[:1] == 0).T)[0] == np.inf


def test_noise_counts_where_the_zeros_are():
    inputs, transposed = problem(1, 20)
    is_zero = inputs[0] == 0
    noise = np.where(is_zero, SIGMA, 1.0)
    zeros = is_zero[:, None]
    (there,) = errors_from_inputs(factorised(transposed, noise), inputs[:1], zeros)
    (everywhere,) = errors_from_inputs(factorised(transposed, np.full(N, SIGMA)), inputs[:1], zeros)
    assert there == pytest.approx(everywhere)
    (twice,) = errors_from_inputs(factorised(transposed, 2 * noise), inputs[:1], zeros)
    assert twice == pytest.approx(2 * there)


def test_each_input_by_itself():
    inputs, transposed = problem(2, 20)
    inputs[1, :15] = 0.0
    transposed = (np.random.default_rng(5).standard_normal((M, B)) @ inputs).T
    factors, zeros = factorised(transposed, np.full(N, SIGMA)), (inputs == 0).T
    both = errors_from_inputs(factors, inputs[:2], zeros[:, :2])
    alone = [errors_from_inputs(factors, inputs[i : i + 1], zeros[:, i : i + 1])[0] for i in range(2)]
    np.testing.assert_allclose(both, alone)
    assert errors_from_inputs(factors, inputs[:0], zeros[:, :0]).shape == (0,)
