import numpy as np
import pytest
import torch

from sparsedl.datasets import make_sparse_dictionary
from sparsedl.polishing import polish
from sparsedl.preconditioning import whiten
from sparsedl.zeros import ZeroTest


def problem(k=15, sparsity=0.5, noise=0.0, seed=0):
    X, codes, _ = make_sparse_dictionary(12 * k, k, sparsity=sparsity, noise_level=noise, random_state=seed)
    whitening = whiten(X, noise_level=noise or None)
    test = ZeroTest(*(torch.from_numpy(np.ascontiguousarray(part)) for part in (
        whitening.whitened, whitening.unmixing, whitening.noise_level)))  # fmt: skip
    true = np.linalg.lstsq(whitening.whitened, codes, rcond=None)[0].T
    return test, torch.from_numpy(true / np.linalg.norm(true, axis=1, keepdims=True))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("off", "noise", "accuracy"), [(3e-3, 0.0, 1e-12), (3e-3, 1e-6, 1e-4)])
def test_what_is_close_to_a_column_becomes_it(seed, off, noise, accuracy):
    test, true = problem(noise=noise, seed=seed)
    error = torch.randn(true.shape, generator=torch.Generator().manual_seed(seed)).double() * off / true.shape[1] ** 0.5
    polished = polish((true + error) / (true + error).norm(dim=1, keepdim=True), test)
    assert (polished - true).norm(dim=1).max() < accuracy  # and its sign stays
    assert test.accept(polished)[0].all()


def test_directions_stay_unit_vectors_far_from_any_column():
    test, _ = problem()
    directions = torch.nn.functional.normalize(torch.randn(6, 15, generator=torch.Generator().manual_seed(1)).double())
    polished = polish(directions, test)
    torch.testing.assert_close(polished.norm(dim=1), torch.ones(6, dtype=torch.float64))
    assert not test.accept(polished)[0].any()


def test_what_has_converged_stays_while_others_have_not():
    """In single precision the squares of further steps underflow, and a quotient of two of them is no number."""
    test, true = problem(k=60)
    far = torch.nn.functional.normalize(torch.randn(20, 60, generator=torch.Generator().manual_seed(1)).double())
    near = torch.nn.functional.normalize(true + 1e-4 * torch.randn(true.shape, generator=torch.Generator()).double())
    polished = polish(torch.cat([near, far]), test, max_iter=400)
    assert torch.isfinite(polished).all()
    assert (polished[: len(true)] - true).norm(dim=1).max() < 1e-10
