import pytest
import torch

from sparsedl import SparseDictionaryRecovery
from sparsedl.datasets import make_sparse_dictionary
from sparsedl.search import stretch
from sparsedl.surrogates import L1


def test_stretch_prices_the_columns_found_and_nothing_else():
    found = torch.linalg.qr(torch.randn(5, 2, generator=torch.Generator().manual_seed(0)).double())[0].T
    T = stretch(found, 3.0)
    lengths = torch.linalg.solve(T, found.T).norm(dim=0)
    torch.testing.assert_close(lengths, torch.full((2,), 1 / 3, dtype=torch.float64))
    torch.testing.assert_close(torch.linalg.svdvals(T), torch.tensor([3.0, 3, 1, 1, 1], dtype=torch.float64))
    assert stretch(found[:0], 3.0) is None
    assert stretch(found, 1.0) is None


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_deflation_completes_the_basis_with_fewer_starts(seed):
    X, _, _ = make_sparse_dictionary(300, 40, sparsity=0.6, random_state=seed)
    options = {"surrogate": L1(), "max_rounds": 4, "random_state": seed}
    plain = SparseDictionaryRecovery(deflation=None, **options).fit(X)
    deflated = SparseDictionaryRecovery(**options).fit(X)
    assert deflated.recovered_.sum() > plain.recovered_.sum()
