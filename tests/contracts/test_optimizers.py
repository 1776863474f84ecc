"""Laws that every public optimiser obeys."""

import numpy as np
import pytest
import torch
from sklearn.base import clone
from torch.nn.functional import normalize

from sparsedl import optimizers
from sparsedl.datasets import make_sparse_dictionary
from sparsedl.preconditioning import whiten
from sparsedl.surrogates import L1, LogCosh, NegativeL4

PUBLIC = [kind for name in optimizers.__all__ if isinstance(kind := getattr(optimizers, name), type)]
CLASSES = [kind for kind in PUBLIC if issubclass(kind, optimizers.Optimizer) and not kind.__abstractmethods__]


def surrogate_for(kind):
    return NegativeL4() if kind is optimizers.MatchingStretchProject else L1()


@pytest.fixture(scope="module")
def problem():
    X, codes, _ = make_sparse_dictionary(300, 8, sparsity=0.7, random_state=0)
    observations = torch.from_numpy(whiten(X).whitened)
    starts = normalize(torch.randn(24, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64), dim=1)
    return observations, starts, codes


def objective(surrogate, observations, directions):
    return surrogate.value(directions @ observations.T).mean(dim=1)


@pytest.mark.parametrize("kind", CLASSES)
class TestOptimizer:
    def test_stays_on_the_sphere_and_descends(self, kind, problem):
        observations, starts, _ = problem
        surrogate = surrogate_for(kind)
        ends = kind().minimize(observations, starts, surrogate).directions
        torch.testing.assert_close(ends.norm(dim=1), torch.ones(24, dtype=torch.float64))
        assert (objective(surrogate, observations, ends) < objective(surrogate, observations, starts)).all()

    def test_most_starts_end_in_a_column(self, kind, problem):
        observations, starts, codes = problem
        ends = kind().minimize(observations, starts, surrogate_for(kind)).directions
        entries = (ends @ observations.T).numpy()
        cosines = np.abs(entries @ codes) / np.linalg.norm(entries, axis=1)[:, None] / np.linalg.norm(codes, axis=0)
        assert np.mean(cosines.max(axis=1) > 0.98) > 0.7

    def test_sign_equivariance(self, kind, problem):
        observations, starts, _ = problem
        short = kind(max_iter=20)
        ends, mirrored = (short.minimize(observations, s, surrogate_for(kind)).directions for s in (starts, -starts))
        torch.testing.assert_close(ends, -mirrored)

    def test_rotation_equivariance(self, kind, problem):
        observations, starts, _ = problem
        rotation = torch.linalg.qr(torch.randn(8, 8, generator=torch.Generator().manual_seed(1)).double())[0]
        short = kind(max_iter=10)
        ends = short.minimize(observations, starts, surrogate_for(kind)).directions
        rotated = short.minimize(observations @ rotation, starts @ rotation, surrogate_for(kind)).directions
        torch.testing.assert_close(ends @ rotation, rotated, rtol=0, atol=1e-9)

    def test_each_start_for_itself(self, kind, problem):
        observations, starts, _ = problem
        short, surrogate = kind(max_iter=20), surrogate_for(kind)
        together = short.minimize(observations, starts, surrogate).directions
        # A group of eight is what MatchingStretchProject takes for itself.
        torch.testing.assert_close(together[:8], short.minimize(observations, starts[:8], surrogate).directions)

    def test_leaves_its_starts_alone(self, kind, problem):
        observations, starts, _ = problem
        before = starts.clone()
        kind(max_iter=3).minimize(observations, starts, surrogate_for(kind))
        assert torch.equal(starts, before)

    def test_clones_with_its_parameters(self, kind):
        optimizer = kind(max_iter=7)
        assert clone(optimizer).get_params() == optimizer.get_params()

    def test_refuses_bad_parameters(self, kind):
        for name in set(kind().get_params()) - {"milestones", "betas"}:
            for bad in (0, -1, float("nan"), "many"):
                with pytest.raises(ValueError, match=f"{kind.__name__}: {name} must be"):
                    kind(**{name: bad}).check_parameters()


def test_schedule_of_the_papers():
    adam = optimizers.RiemannianAdam()
    rates = [adam.learning_rate_at(i) / adam.learning_rate for i in (0, 199, 200, 399, 400, 499)]
    np.testing.assert_allclose(rates, [1, 1, 0.1, 0.1, 0.01, 0.01])
    assert adam.max_iter == 500


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (optimizers.RiemannianAdam(decay=2), "decay must be at most 1"),
        (optimizers.DiminishingSubgradient(ratio=1.0), "ratio must be below 1"),
        (optimizers.FixedPoint(final_smoothing=9.0), "final_smoothing must be at most smoothing"),
        (optimizers.Graduated(smoothing=(0.5, 2.0), final_smoothing=1.0), "final_smoothing must be at most smoothing"),
        (optimizers.Graduated(momentum=1.0), "momentum must be below 1"),
        (optimizers.Graduated(smoothing=(0.5, 2.0, 4.0)), "smoothing must be"),
        (optimizers.ReweightedLeastSquares(final_smoothing=2.0), "final_smoothing must be at most smoothing"),
    ],
)
def test_parameters_that_do_not_fit_each_other(optimizer, message):
    with pytest.raises(ValueError, match=message):
        optimizer.check_parameters()


def test_an_impossible_pair_is_refused_naming_both():
    with pytest.raises(TypeError, match=r"MatchingStretchProject .* NegativeL4\(\), got LogCosh\(\)"):
        optimizers.MatchingStretchProject().check_surrogate(LogCosh())
    optimizers.MatchingStretchProject().check_surrogate(NegativeL4())


def test_a_pair_of_smoothings_is_spread_over_the_starts(problem):
    observations, starts, _ = problem
    spread = optimizers.Graduated(smoothing=(0.5, 2.0), max_iter=20)
    ends = spread.minimize(observations, starts, L1()).directions
    for index, smoothing in ((0, 0.5), (-1, 2.0)):
        alone = optimizers.Graduated(smoothing=smoothing, max_iter=20).minimize(observations, starts, L1())
        torch.testing.assert_close(ends[index], alone.directions[index])
