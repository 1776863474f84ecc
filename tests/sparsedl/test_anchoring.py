from functools import partial

import numpy as np
import pytest
import torch

from sparsedl import SparseDictionaryRecovery
from sparsedl.anchoring import anchored_directions, draw_anchors
from sparsedl.datasets import make_sparse_dictionary
from sparsedl.preconditioning import whiten
from sparsedl.recipes import stages_of
from sparsedl.surrogates import L1, LogSum


def test_anchors_lie_in_the_complement_or_lean_out_of_it():
    found = torch.randn(5, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    anchors = draw_anchors(found, 10, torch.Generator().manual_seed(1))
    torch.testing.assert_close(anchors.norm(dim=1), torch.ones(10, dtype=torch.float64))
    inside = (anchors @ found.T).abs().amax(dim=1)
    assert (inside[:5] < 1e-12).all()
    assert (inside[5:] > 1e-3).all()


@pytest.mark.parametrize("surrogate", [L1(), LogSum()], ids=repr)
@pytest.mark.parametrize("seed", range(3))
def test_the_last_column_comes_from_the_others(surrogate, seed):
    X, codes, _ = make_sparse_dictionary(300, 12, sparsity=0.6, random_state=seed)
    observations = whiten(X).whitened
    true = np.linalg.lstsq(observations, codes, rcond=None)[0].T
    true = torch.from_numpy(true / np.linalg.norm(true, axis=1, keepdims=True))
    generator = torch.Generator().manual_seed(seed)
    anchors = draw_anchors(true[1:], 8, generator)
    ends = anchored_directions(torch.from_numpy(observations), anchors, surrogate, generator)
    assert ((ends @ true[0]).abs() > 0.999).double().mean() > 0.7


def correlated_problem(seed, n_samples=80, n_components=8):
    """Codes whose supports share a common factor, as the ReLU patterns of similar samples do."""
    rng = np.random.default_rng(seed)
    support = 0.8 * rng.standard_normal((n_samples, 1)) + rng.standard_normal((n_samples, n_components)) > 0
    codes = rng.standard_normal((n_samples, n_components)) * support
    return codes @ np.linalg.qr(rng.standard_normal((n_components, n_components)))[0]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_the_endgame_completes_what_starts_alone_do_not(monkeypatch):
    found = []
    for n_anchors in (16, 0):
        monkeypatch.setattr("sparsedl.recipes.stages_of", partial(stages_of, n_anchors=n_anchors))
        options = {"surrogate": L1(), "n_starts": 16, "max_rounds": 6}
        found.append(
            sum(
                SparseDictionaryRecovery(random_state=seed, **options).fit(correlated_problem(seed)).recovered_.sum()
                for seed in range(6)
            )
        )
    assert found[0] > found[1]
