"""The linear algebra that the searches share."""

import pytest
import torch
from joblib import parallel_config
from torch.nn.functional import normalize

from sparsedl.linalg import (
    LARGE,
    inverse_iteration,
    least_squares,
    normalized,
    reweight,
    smallest_eigenvectors,
    solve_weighted,
    vanishing_vectors,
    weighted_gram,
    zero_gram,
)


def generator():
    return torch.Generator().manual_seed(0)


def draw(*shape):
    return torch.randn(shape, generator=generator(), dtype=torch.float64)


@pytest.mark.parametrize(("dtype", "largest"), [(torch.float64, 1000), (torch.float32, 100)])
@pytest.mark.parametrize("dim", [0, 1])
def test_normalized_knows_no_units(dtype, largest, dim):
    vectors = draw(6, 5).to(dtype)
    expected = normalize(vectors, dim=dim)
    for exponent in (-largest, 0, largest):
        assert torch.equal(normalized(vectors * 2.0**exponent, dim=dim), expected)


def test_normalized_leaves_zeros_and_nothing_alone():
    assert normalized(torch.tensor([[0.0, 0.0], [0.0, -3.0]])).tolist() == [[0.0, 0.0], [0.0, -1.0]]
    assert normalized(torch.zeros((2, 0))).shape == (2, 0)


def test_least_squares_are_the_same_each_time():
    matrix, goal = draw(98, 97), draw(98, 30)
    found = least_squares(matrix, goal)
    torch.testing.assert_close(matrix.T @ (matrix @ found - goal), torch.zeros_like(found), rtol=0, atol=1e-11)
    kept = []
    for size in range(20):  # memory that was used before is what gave torch's own other pivots
        kept.append(torch.full((97 + size,), size + 1))
        del kept[::3]
        assert torch.equal(least_squares(matrix, goal), found)


def test_least_squares_of_less_than_full_rank_are_the_smallest():
    matrix, goal = draw(9, 4), draw(9, 3)
    matrix[:, 3] = matrix[:, 0]
    torch.testing.assert_close(least_squares(matrix, goal), torch.linalg.pinv(matrix) @ goal)
    assert least_squares(matrix, goal[:, :0]).shape == (4, 0)
    assert least_squares(matrix[:, :0], goal).shape == (0, 3)
    assert least_squares(matrix * torch.nan, goal).isnan().all()


def test_weighted_gram_does_not_depend_on_its_chunks(monkeypatch):
    L, w = draw(40, 5), draw(7, 40).abs()
    expected = torch.stack([L.T @ torch.diag(row) @ L for row in w])
    torch.testing.assert_close(weighted_gram(L, w), expected)
    calls = []
    monkeypatch.setattr("sparsedl.linalg.chunks", lambda n, each: calls.append(n) or [slice(0, 3), slice(3, 7)])
    torch.testing.assert_close(weighted_gram(L, w), expected)
    assert calls == [7]
    assert weighted_gram(L, w[:0]).shape == (0, 5, 5)


@pytest.mark.parametrize("size", [1, 7, 60])
def test_smallest_eigenvectors_are_those_of_a_decomposition(size):
    factors = draw(5, 2 * size, size)
    gram = factors.mT @ factors
    values, vectors = smallest_eigenvectors(gram)
    expected, complete = torch.linalg.eigh(gram)
    torch.testing.assert_close(values[:, 0], expected[:, 0], rtol=1e-6, atol=0)
    torch.testing.assert_close((vectors * complete[:, :, 0]).sum(dim=1).abs(), torch.ones(5, dtype=torch.float64))


def test_inverse_iteration_comes_closer_to_the_smallest_eigenvector():
    factors = draw(3, 30, 8)
    gram = factors.mT @ factors
    true = torch.linalg.eigh(gram)[1][:, :, 0]
    start = normalize(draw(3, 8), dim=1)
    cosines = [(inverse_iteration(gram, start, n) * true).sum(dim=1).abs() for n in (1, 4, 40)]
    assert (cosines[0] < cosines[1]).all()
    assert (cosines[2] > 1 - 1e-5).all()


def test_solve_weighted_solves():
    L, w, right = draw(40, 5), draw(3, 40).abs() + 0.1, draw(3, 5)
    for row, weights, solution in zip(right, w, solve_weighted(L, w, right), strict=True):
        expected = normalize(torch.linalg.solve(L.T @ torch.diag(weights) @ L, row), dim=0)
        torch.testing.assert_close(solution, expected)


def test_reweighting_goes_through_the_scales_and_finds_a_sparse_direction():
    codes = draw(200, 6) * (torch.rand((200, 6), generator=generator()) < 0.4)
    mixing = draw(6, 6)
    L = torch.linalg.qr(codes @ mixing)[0] * 200**0.5
    true = normalize(torch.linalg.lstsq(L, codes).solution.T, dim=1)
    start = normalize(true + 0.1 * draw(6, 6) / 6**0.5, dim=1)
    scales = []

    def weigh(entries, scale):
        scales.append(scale)
        return 1 / (entries.square() + scale**2)

    found = reweight(
        start, L, (0.1, 0.01, 1e-3, 1e-4), weigh, lambda weights, _: smallest_eigenvectors(weighted_gram(L, weights))[1]
    )
    assert scales == [0.1, 0.01, 1e-3, 1e-4]
    assert ((found * true).sum(dim=1).abs() > 1 - 1e-9).all()


@pytest.mark.parametrize("k", [LARGE - 1, LARGE, LARGE + 20])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gram_matrices_are_weighted_sums_of_rows(k, dtype):
    generator = torch.Generator().manual_seed(k)
    rows, weights = torch.randn((6 * k, k), generator=generator), torch.rand((3, 6 * k), generator=generator)
    weights[0] = 0
    is_in = weights > 0.4
    expected = torch.einsum("nr,ri,rj->nij", weights.double(), rows.double(), rows.double())
    accuracy = {"rtol": 1e-4, "atol": 1e-4 * 6 * k} if dtype == torch.float32 else {"rtol": 1e-12, "atol": 1e-10}
    found = weighted_gram(rows.to(dtype), weights.to(dtype))
    torch.testing.assert_close(found.double(), expected, **accuracy)
    expected = torch.einsum("nr,ri,rj->nij", is_in.double(), rows.double(), rows.double())
    torch.testing.assert_close(zero_gram(rows.to(dtype), is_in).double(), expected, **accuracy)


@pytest.mark.parametrize("n_jobs", [1, 2])
@pytest.mark.parametrize("kind", [torch.bool, torch.float64])
def test_what_vanishes_is_found_part_by_part(monkeypatch, kind, n_jobs):
    rows, k = draw(120, 10), 10
    weights = torch.rand((7, 120), generator=generator(), dtype=torch.float64) < 0.5
    weights = weights if kind == torch.bool else weights.double()
    expected = torch.stack([torch.linalg.eigh(rows.T @ (w[:, None] * rows))[1][:, 0] for w in weights.double()])
    monkeypatch.setattr("sparsedl.arrays.CHUNK_ENTRIES", 2 * k * k)
    with parallel_config(n_jobs=n_jobs):
        found = vanishing_vectors(rows, weights)
    assert torch.allclose((found * expected).sum(dim=1).abs(), torch.ones(7, dtype=torch.float64))
    assert vanishing_vectors(rows, weights[:0]).shape == (0, k)
