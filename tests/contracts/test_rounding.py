"""Laws that every public rounding obeys."""

import numpy as np
import pytest
import torch
from sklearn.base import clone
from torch.nn.functional import normalize

from sparsedl import rounding
from sparsedl.datasets import make_sparse_dictionary
from sparsedl.preconditioning import whiten

CLASSES = [getattr(rounding, name) for name in rounding.__all__ if name != "Rounding"]


@pytest.fixture(scope="module")
def problem():
    """Whitened observations, the true directions, and directions two hundredths away from them."""
    X, codes, _ = make_sparse_dictionary(200, 6, sparsity=0.5, random_state=0)
    observations = whiten(X).whitened
    true = np.linalg.lstsq(observations, codes, rcond=None)[0].T
    true = torch.from_numpy(true / np.linalg.norm(true, axis=1, keepdims=True))
    noise = torch.randn(true.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return torch.from_numpy(observations), true, normalize(true + 0.02 * normalize(noise, dim=1), dim=1)


@pytest.mark.parametrize("kind", CLASSES)
class TestRounding:
    def test_lands_on_the_column(self, kind, problem):
        observations, true, near = problem
        rounded = kind().round(observations, near, torch.Generator().manual_seed(0))
        torch.testing.assert_close(rounded.norm(dim=1), torch.ones(6, dtype=torch.float64))
        sines = (1 - (rounded * true).sum(dim=1).square()).clamp(min=0).sqrt()
        assert (sines < 1e-5).all()

    def test_keeps_what_is_sparse(self, kind, problem):
        observations, true, _ = problem
        rounded = kind().round(observations, true, torch.Generator().manual_seed(0))
        assert ((rounded * true).sum(dim=1).abs() > 1 - 1e-9).all()

    def test_leaves_its_input_alone(self, kind, problem):
        observations, _, near = problem
        before = near.clone()
        kind().round(observations, near, torch.Generator().manual_seed(0))
        assert torch.equal(near, before)

    def test_clones_with_its_parameters(self, kind):
        strategy = kind()
        assert clone(strategy).get_params() == strategy.get_params()


PARAMETERS = [(kind, name) for kind in CLASSES for name in kind().get_params()]


@pytest.mark.parametrize(("kind", "name"), PARAMETERS)
def test_refuses_bad_parameters(kind, name):
    with pytest.raises(ValueError, match=f"{kind.__name__}: {name} must be"):
        kind(**{name: -1}).check_parameters()


def test_some_have_parameters():
    assert {name for _, name in PARAMETERS} >= {"smoothing", "n_draws"}
