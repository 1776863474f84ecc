"""Laws that every public surrogate obeys."""

import numpy as np
import pytest
import torch
from sklearn.base import clone

from sparsedl import surrogates

CLASSES = [
    kind
    for kind in (getattr(surrogates, name) for name in surrogates.__all__)
    if isinstance(kind, type) and kind is not surrogates.Surrogate
]
POINTS = torch.tensor([-40.0, -3.0, -0.7, -0.05, 0.03, 0.11, 0.4, 1.5, 40.0], dtype=torch.float64)


@pytest.mark.parametrize("kind", CLASSES)
class TestSurrogate:
    def test_derivative_is_that_of_the_value(self, kind):
        t = POINTS.clone().requires_grad_()
        (automatic,) = torch.autograd.grad(kind().value(t).sum(), t)
        torch.testing.assert_close(kind().derivative(POINTS), automatic, rtol=1e-9, atol=1e-12)

    def test_even(self, kind):
        torch.testing.assert_close(kind().value(POINTS), kind().value(-POINTS))
        torch.testing.assert_close(kind().derivative(POINTS), -kind().derivative(-POINTS))

    def test_stationary_at_zero(self, kind):
        assert kind().derivative(torch.zeros(1)).item() == 0

    def test_monotone_in_the_modulus(self, kind):
        t = torch.linspace(0, 5, 50, dtype=torch.float64)
        steps = kind().value(t).diff()
        assert ((steps if kind is not surrogates.NegativeL4 else -steps) >= 0).all()

    def test_keeps_shape_and_dtype(self, kind):
        t = torch.ones((2, 3), dtype=torch.float32)
        for result in (kind().value(t), kind().derivative(t)):
            assert result.shape == t.shape
            assert result.dtype == t.dtype

    def test_passes_the_public_checker(self, kind):
        surrogates.check_surrogate(kind())

    def test_clones(self, kind):
        assert clone(kind()).get_params() == kind().get_params()


PARAMETERS = [(kind, name) for kind in CLASSES for name in kind().get_params()]


def test_some_have_parameters():
    assert {name for _, name in PARAMETERS} >= {"mu", "epsilon"}


@pytest.mark.parametrize(("kind", "name"), PARAMETERS)
class TestParameters:
    def test_clones_with_it(self, kind, name):
        assert clone(kind(**{name: 0.7})).get_params()[name] == 0.7

    @pytest.mark.parametrize("bad", [0, -1.0, float("nan"), "wide"])
    def test_refuses_bad_values(self, kind, name, bad):
        with pytest.raises(ValueError, match=f"{kind.__name__}: {name} must be a positive finite number"):
            kind(**{name: bad}).check_parameters()


def test_log_cosh_does_not_overflow():
    assert torch.isfinite(surrogates.LogCosh(mu=1e-3).value(torch.tensor([1e6]))).all()


def test_gaussian_moments_are_those_of_the_clean_entries():
    noisy, clean = surrogates.GaussianMoments(width=0.5, noise=0.3), surrogates.GaussianMoments(width=0.5, noise=1e-9)
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    t = torch.linspace(-2, 2, 9, dtype=torch.float64)
    noise, weights = torch.from_numpy(0.3 * nodes), torch.from_numpy(weights / weights.sum())
    torch.testing.assert_close(noisy.value(t[:, None] + noise) @ weights, clean.value(t), rtol=1e-9, atol=1e-12)
    with pytest.raises(ValueError, match=r"noise must be less than width, 0.3, got 0.4"):
        surrogates.GaussianMoments(noise=0.4).check_parameters()


class Square(surrogates.Surrogate):
    """A surrogate of a user's own; its subclasses each break one law."""

    def value(self, t):
        return t.square()

    def derivative(self, t):
        return 2 * t


class WrongSlope(Square):
    def derivative(self, t):
        return 3 * t


class Odd(Square):
    def value(self, t):
        return t.pow(3)


class Infinite(Square):
    def value(self, t):
        return t.square() / 0


class Scalar(Square):
    def value(self, t):
        return t.square().sum()


class Kinked(surrogates.L1):
    def derivative(self, t):
        return torch.where(t >= 0, 1.0, -1.0).to(t.dtype)


@pytest.mark.parametrize(
    ("surrogate", "error", "message"),
    [
        (WrongSlope(), ValueError, r"WrongSlope.derivative is not that of its value: at t=-7.1 it is -21.3"),
        (Odd(), ValueError, "Odd.value is not even"),
        (Infinite(), ValueError, "Infinite.value is not finite"),
        (Scalar(), TypeError, "Scalar.value must return a tensor of the shape and dtype"),
        (Kinked(), ValueError, "Kinked.derivative must be zero at zero"),
        ("l1", TypeError, "str must derive from sparsedl.surrogates.Surrogate"),
        (surrogates.LogCosh(mu=0), ValueError, "LogCosh: mu must be"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_checker_tells_what_is_wrong(surrogate, error, message):
    with pytest.raises(error, match=message):
        surrogates.check_surrogate(surrogate)


def test_a_surrogate_of_ones_own_is_checked_and_used():
    from sparsedl import SparseDictionaryRecovery
    from sparsedl.datasets import make_sparse_dictionary
    from sparsedl.metrics import match_components

    class SquareRoot(surrogates.Surrogate):
        smooth = True

        def value(self, t):
            return (t.square() + 0.01).sqrt()

        def derivative(self, t):
            return t / (t.square() + 0.01).sqrt()

    surrogates.check_surrogate(SquareRoot())
    X, _, components = make_sparse_dictionary(200, 8, sparsity=0.6, random_state=0)
    sdr = SparseDictionaryRecovery(surrogate=SquareRoot(), random_state=0).fit(X)
    assert match_components(sdr.components_, components).errors.max() < 1e-9
