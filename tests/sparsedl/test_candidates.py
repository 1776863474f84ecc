import numpy as np
import torch

from sparsedl.candidates import CandidatePool, UnprovenPool, assemble_basis, distinct
from sparsedl.zeros import ZeroTest

EMPTY = UnprovenPool(torch.zeros((0, 3), dtype=torch.float64), torch.zeros(0, dtype=torch.float64))


def test_distinct_keeps_the_first_of_each_direction_up_to_sign():
    directions = torch.tensor([[1.0, 0.0], [-1.0, 1e-4], [0.0, 1.0], [0.6, 0.8]])
    assert distinct(directions).tolist() == [True, False, True, True]


def test_pool_keeps_the_sparser_of_two_that_are_the_same():
    pool = CandidatePool.empty(2)
    pool.add(torch.tensor([[1.0, 0.0]], dtype=torch.float64), torch.tensor([5]))
    pool.add(torch.tensor([[-1.0, 0.0], [0.0, 1.0]], dtype=torch.float64), torch.tensor([8, 6]))
    assert pool.n_zeros.tolist() == [8, 6]
    assert pool.directions.tolist() == [[-1.0, 0.0], [0.0, 1.0]]
    assert pool.selection().n_zeros.tolist() == [8, 6]


def test_noise_merges_mixtures_with_the_column_they_are_of():
    rng = np.random.default_rng(0)
    codes = rng.standard_normal((200, 5)) * (rng.random((200, 5)) < 0.5)
    L = torch.from_numpy(np.linalg.qr(codes)[0] * np.sqrt(200))
    true = torch.linalg.lstsq(L, torch.from_numpy(codes)).solution.T
    true = true / true.norm(dim=1, keepdim=True)
    mixture = true[0] + 0.4 * true[1]
    mixture = (mixture / mixture.norm())[None]
    for noise, n_left in ((1e-6, 6), (0.05, 5)):
        test = ZeroTest(L, torch.eye(5, dtype=torch.float64), torch.full((200,), noise, dtype=torch.float64))
        pool = CandidatePool.empty(5)
        pool.add(mixture, test.zeros(mixture).sum(dim=1))
        pool.add_proven(true, test)
        assert len(pool.directions) == n_left
        assert ((pool.directions @ true.T).abs().amax(dim=0) > 0.999).all()


def test_unproven_pool_keeps_the_best_few():
    pool = UnprovenPool(EMPTY.directions, EMPTY.values)
    directions = torch.randn(200, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    directions /= directions.norm(dim=1, keepdim=True)
    values = torch.arange(200.0, dtype=torch.float64).flip(0)
    pool.add(directions, values)
    assert len(pool.values) <= 3 * pool.per_component
    assert pool.values[0] == 0
    assert (pool.values.diff() > 0).all()
    assert distinct(pool.directions).all()


def test_basis_takes_proven_then_unproven_then_completes():
    axes = torch.eye(3, dtype=torch.float64)
    proven = CandidatePool(axes[:1], torch.tensor([9]))
    near_proven = torch.tensor([[0.9, np.sqrt(0.19), 0.0]], dtype=torch.float64)
    unproven = UnprovenPool(torch.cat([near_proven, axes[1:2]]), torch.tensor([0.1, 0.2], dtype=torch.float64))
    basis = assemble_basis(proven, unproven)
    np.testing.assert_allclose(np.abs(basis), np.eye(3), atol=1e-12)
    assert np.linalg.matrix_rank(assemble_basis(CandidatePool.empty(3), EMPTY)) == 3
