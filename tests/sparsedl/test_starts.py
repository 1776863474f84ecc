import numpy as np
import pytest
import torch

from sparsedl.datasets import make_sparse_dictionary
from sparsedl.preconditioning import whiten
from sparsedl.starts import RowStarts, SphereStarts, SymmetricStarts, complement_of


def true_columns(observations, codes):
    columns = np.linalg.lstsq(observations, codes, rcond=None)[0].T
    return torch.from_numpy(columns / np.linalg.norm(columns, axis=1, keepdims=True))


def test_starts_lean_away_from_what_was_found():
    generator = torch.Generator().manual_seed(0)
    observations = torch.randn(50, 6, generator=generator, dtype=torch.float64)
    found = torch.eye(6, dtype=torch.float64)[:3]
    starts = RowStarts().draw(observations, found, 400, torch.Generator().manual_seed(1))
    plain = RowStarts().draw(observations, found[:0], 400, torch.Generator().manual_seed(1))
    torch.testing.assert_close(starts.norm(dim=1), torch.ones(400, dtype=torch.float64))
    assert starts[:, :3].norm() < 0.6 * plain[:, :3].norm()


@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
@pytest.mark.parametrize("n_found", [0, 4, 9])
def test_symmetric_starts_are_orthonormal_in_the_complement(precision, n_found):
    X, codes, _ = make_sparse_dictionary(600, 10, sparsity=0.7, random_state=0)
    observations = whiten(X).whitened
    found = true_columns(observations, codes)[:n_found]
    starts = SymmetricStarts().draw(torch.from_numpy(observations).to(precision), found, 1, torch.Generator())
    assert starts.dtype == precision
    tolerance = {"rtol": 0, "atol": 1e3 * torch.finfo(precision).eps}
    torch.testing.assert_close(starts @ starts.T, torch.eye(10 - n_found, dtype=precision), **tolerance)
    torch.testing.assert_close(
        starts @ found.T.to(precision), torch.zeros(10 - n_found, n_found).to(precision), **tolerance
    )


def test_symmetric_starts_are_near_a_column_each_where_samples_are_plenty():
    X, codes, _ = make_sparse_dictionary(4000, 10, sparsity=0.7, random_state=0)
    observations = whiten(X).whitened
    starts = SymmetricStarts().draw(
        torch.from_numpy(observations), torch.zeros((0, 10)).double(), 10, torch.Generator()
    )
    cosines = (starts @ true_columns(observations, codes).T).abs()
    assert (cosines.amax(dim=0) > 0.98).all()


def test_symmetric_starts_survive_observations_of_less_rank_than_columns():
    flat = torch.randn(50, 2, generator=torch.Generator().manual_seed(0)).double() @ torch.ones(2, 4).double()
    starts = SymmetricStarts().draw(flat, torch.zeros((0, 4)).double(), 4, torch.Generator())
    assert torch.isfinite(starts).all()


def test_sphere_starts_are_unit_vectors_that_a_generator_repeats():
    observations = torch.zeros(5, 3, dtype=torch.float64)
    draws = [SphereStarts().draw(observations, observations[:0], 7, torch.Generator().manual_seed(2)) for _ in range(2)]
    assert torch.equal(*draws)
    torch.testing.assert_close(draws[0].norm(dim=1), torch.ones(7, dtype=torch.float64))


def test_the_complement_is_an_orthonormal_basis():
    found = torch.randn(2, 5, generator=torch.Generator().manual_seed(0)).double()
    basis = complement_of(found)
    torch.testing.assert_close(basis.T @ basis, torch.eye(3, dtype=torch.float64))
    torch.testing.assert_close(found @ basis, torch.zeros(2, 3, dtype=torch.float64))
    assert torch.equal(complement_of(found[:0]), torch.eye(5, dtype=torch.float64))


@pytest.mark.parametrize(("starts", "name"), [(RowStarts(noise=0), "noise"), (SymmetricStarts(max_iter=0), "max_iter")])
def test_parameters_out_of_range_are_named(starts, name):
    with pytest.raises(ValueError, match=name):
        starts.check_parameters()
