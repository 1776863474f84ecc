"""Laws that every public optimiser obeys."""

import numpy as np
import pytest
import torch
from sklearn.base import clone
from torch.nn.functional import normalize

from sparsedl import optimizers
from sparsedl.datasets import make_sparse_dictionary
from sparsedl.preconditioning import whiten
from sparsedl.surrogates import L1

CLASSES = [optimizers.RiemannianAdam, optimizers.ProjectedGradient]


def test_the_list_is_complete():
    public = {getattr(optimizers, name) for name in optimizers.__all__ if isinstance(getattr(optimizers, name), type)}
    concrete = {kind for kind in public if issubclass(kind, optimizers.Optimizer) and not kind.__abstractmethods__}
    assert concrete == set(CLASSES)


@pytest.fixture(scope="module")
def problem():
    X, codes, _ = make_sparse_dictionary(300, 8, sparsity=0.7, random_state=0)
    observations = torch.from_numpy(whiten(X).whitened)
    starts = normalize(torch.randn(24, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64), dim=1)
    return observations, starts, codes


def objective(observations, directions):
    return (directions @ observations.T).abs().mean(dim=1)


@pytest.mark.parametrize("kind", CLASSES)
class TestOptimizer:
    def test_stays_on_the_sphere_and_descends(self, kind, problem):
        observations, starts, _ = problem
        ends = kind().minimize(observations, starts, L1()).directions
        torch.testing.assert_close(ends.norm(dim=1), torch.ones(24, dtype=torch.float64))
        assert (objective(observations, ends) < objective(observations, starts)).all()

    def test_most_starts_end_in_a_column(self, kind, problem):
        observations, starts, codes = problem
        entries = (kind().minimize(observations, starts, L1()).directions @ observations.T).numpy()
        cosines = np.abs(entries @ codes) / np.linalg.norm(entries, axis=1)[:, None] / np.linalg.norm(codes, axis=0)
        assert np.mean(cosines.max(axis=1) > 0.99) > 0.7

    def test_sign_equivariance(self, kind, problem):
        observations, starts, _ = problem
        short = kind(max_iter=20)
        ends, mirrored = (short.minimize(observations, s, L1()).directions for s in (starts, -starts))
        torch.testing.assert_close(ends, -mirrored)

    def test_rotation_equivariance(self, kind, problem):
        observations, starts, _ = problem
        rotation = torch.linalg.qr(torch.randn(8, 8, generator=torch.Generator().manual_seed(1)).double())[0]
        short = kind(max_iter=10)
        ends = short.minimize(observations, starts, L1()).directions
        rotated = short.minimize(observations @ rotation, starts @ rotation, L1()).directions
        torch.testing.assert_close(ends @ rotation, rotated, rtol=0, atol=1e-9)

    def test_each_start_for_itself(self, kind, problem):
        observations, starts, _ = problem
        short = kind(max_iter=20)
        together = short.minimize(observations, starts, L1()).directions
        torch.testing.assert_close(together[:5], short.minimize(observations, starts[:5], L1()).directions)

    def test_leaves_its_starts_alone(self, kind, problem):
        observations, starts, _ = problem
        before = starts.clone()
        kind(max_iter=3).minimize(observations, starts, L1())
        assert torch.equal(starts, before)

    def test_clones_with_its_parameters(self, kind):
        optimizer = kind(learning_rate=0.05, max_iter=7)
        assert clone(optimizer).get_params() == optimizer.get_params()

    @pytest.mark.parametrize(("name", "bad"), [("learning_rate", 0.0), ("max_iter", 1.5), ("decay", -0.1), ("decay", 2)])
    def test_refuses_bad_parameters(self, kind, name, bad):
        with pytest.raises(ValueError, match=f"{kind.__name__}: {name} must be"):
            kind(**{name: bad}).check_parameters()


def test_schedule_of_the_papers():
    adam = optimizers.RiemannianAdam()
    rates = [adam.learning_rate_at(i) / adam.learning_rate for i in (0, 199, 200, 399, 400, 499)]
    np.testing.assert_allclose(rates, [1, 1, 0.1, 0.1, 0.01, 0.01])
    assert adam.max_iter == 500
