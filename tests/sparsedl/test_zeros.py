import numpy as np
import pytest
import torch
from scipy.stats import binom

from sparsedl.chance import FALSE_ACCEPTANCE, required_zeros
from sparsedl.datasets import make_sparse_dictionary
from sparsedl.determinacy import Determinacy
from sparsedl.linalg import LARGE, smallest_eigenvectors
from sparsedl.preconditioning import whiten
from sparsedl.zeros import ZeroTest


def build(codes_seed=0, n_samples=200, n_components=10, sparsity=0.5):
    """Return the zero test of a problem and its true directions in whitened coordinates."""
    X, codes, _ = make_sparse_dictionary(n_samples, n_components, sparsity=sparsity, random_state=codes_seed)
    whitening = whiten(X)
    test = ZeroTest(*map(torch.from_numpy, (whitening.whitened, whitening.unmixing, whitening.noise_level)))
    true = np.linalg.lstsq(whitening.whitened, codes, rcond=None)[0].T
    return test, torch.from_numpy(true / np.linalg.norm(true, axis=1, keepdims=True)), codes


@pytest.mark.parametrize(("n_rows", "n_components", "chance"), [(200, 20, 1e-6), (1000, 65, 0.01), (500, 5, 0.2)])
def test_required_zeros_is_the_smallest_count_beyond_chance(n_rows, n_components, chance):
    free = n_components - 1
    beyond = required_zeros(n_rows, n_components, chance) - free
    coincidences = binom(n_rows - free, chance)
    assert coincidences.sf(beyond - 1) <= FALSE_ACCEPTANCE < coincidences.sf(beyond - 2)


def test_true_columns_are_accepted_with_their_zeros():
    test, true, codes = build()
    accepted, counts = test.accept(true)
    assert accepted.all()
    np.testing.assert_array_equal(counts.numpy(), (codes == 0).sum(axis=0))


def test_kernels_of_random_rows_are_not_accepted():
    test, _, _ = build()
    generator = torch.Generator().manual_seed(0)
    rows = torch.stack([torch.randperm(200, generator=generator)[:9] for _ in range(200)])
    kernels = torch.linalg.svd(test.observations[rows]).Vh[:, -1]
    accepted, counts = test.accept(kernels)
    true_kernels = counts > 40
    assert not accepted[~true_kernels].any()
    assert (counts[~true_kernels] >= 9).all()


def test_a_mixture_of_two_columns_is_not_accepted_even_with_one_zero_more():
    test, true, codes = build(sparsity=0.6)
    row = np.flatnonzero(codes[:, 0] * codes[:, 1])[0]
    entries = test.observations[row] @ true[:2].T
    mixture = entries[1] * true[0] - entries[0] * true[1]
    mixture = (mixture / mixture.norm())[None]
    common = int(((codes[:, 0] == 0) & (codes[:, 1] == 0)).sum())
    accepted, counts = test.accept(mixture)
    assert counts.item() == common + 1 > 10
    assert not accepted.item()


def test_a_mixture_with_zeros_by_chance_is_not_apart_from_what_it_is_mixed_of():
    exact, true, codes = build(sparsity=0.6)
    row = np.flatnonzero(codes[:, 0] * codes[:, 1])[0]
    entries = exact.observations[row] @ true[:2].T
    mixture = entries[1] * true[0] - entries[0] * true[1]
    basis = torch.cat([(mixture / mixture.norm())[None], true[1:]])
    # Noise so wide that further rows of the mixture are zero by chance: then none of them has leverage one.
    noisy = ZeroTest(exact.observations, exact.unmixing, 3e12 * exact.noise_level)
    everywhere = torch.ones((10, 200), dtype=torch.bool)
    zeros = noisy.zeros(basis)
    assert zeros[0].sum() > exact.zeros(basis)[0].sum() + 1
    assert noisy.apart(basis, zeros, everywhere).tolist() == [False] + [True] * 9
    assert exact.apart(true, exact.zeros(true), everywhere).all()


def test_refit_repairs_an_error_of_a_millionth():
    test, true, _ = build()
    noise = torch.randn(true.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    near = true + 1e-6 * noise
    refitted = test.refit(near / near.norm(dim=1, keepdim=True))
    assert ((refitted * true).sum(dim=1).abs() > 1 - 1e-14).all()
    assert test.accept(refitted)[0].all()


def heavily_noisy(seed, noise=0.1):
    """Return the zero test of a problem with this share of noise on every entry, and its true directions."""
    rng = np.random.default_rng(seed)
    codes = rng.standard_normal((200, 10)) * (rng.random((200, 10)) < 0.5)
    noisy = codes @ rng.standard_normal((10, 100)) + noise * np.sqrt(5) * rng.standard_normal((200, 100))
    U, S, _ = np.linalg.svd(noisy, full_matrices=False)
    L = U[:, :10] * np.sqrt(200)
    unmixing, noise_level = np.diag(np.sqrt(200) / S[:10]), np.full(200, noise * np.sqrt(5))
    test = ZeroTest(*map(torch.from_numpy, (L, unmixing, noise_level)))
    true = np.linalg.lstsq(L, codes, rcond=None)[0].T
    return test, torch.from_numpy(true / np.linalg.norm(true, axis=1, keepdims=True)), codes


@pytest.mark.parametrize("seed", range(3))
def test_refit_leads_to_the_column_under_heavy_noise(seed):
    test, true, _ = heavily_noisy(seed, noise=0.3)
    off = torch.randn(true.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 0.05
    off = (true + off) / (true + off).norm(dim=1, keepdim=True)
    assert (test.refit(off) * true).sum(dim=1).abs().min() > 0.99


def test_likely_zeros_are_fewer_where_the_noise_is_heavy():
    for (test, true, codes), differ in ((build(), False), (heavily_noisy(0), True)):
        zeros, likely = test.zeros(true), test.likely_zeros(true)
        assert not (likely & ~zeros).any()
        assert bool((likely != zeros).any()) == differ
        assert ((codes == 0) == likely.numpy().T).mean() > 0.9


def test_zeros_determine_nothing_when_there_are_none():
    assert Determinacy().of(torch.eye(3).double(), torch.zeros((0, 3), dtype=torch.bool)).shape == (0,)


@pytest.mark.parametrize("k", [LARGE - 1, LARGE, 2 * LARGE])
def test_smallest_eigenvectors_with_and_without_one_that_stands_alone(k):
    generator = torch.Generator().manual_seed(0)
    axes = torch.linalg.qr(torch.randn(3, k, k, generator=generator, dtype=torch.float64))[0]
    values = torch.linspace(1, 2, k, dtype=torch.float64).repeat(3, 1)
    values[0, 0], values[1, 0], values[2, :2] = 1e-16, 0.3, 1e-16  # a column, a noisy one, and a plane
    found, vectors = smallest_eigenvectors((axes * values[:, None, :]) @ axes.mT)
    assert found.shape == (3, 2)
    assert (vectors[:2] * axes[:2, :, 0]).sum(dim=1).abs() == pytest.approx(torch.ones(2), abs=1e-12)
    assert torch.linalg.vector_norm(axes[2, :, 2:].T @ vectors[2]) < 1e-6
    assert found[1] == pytest.approx(values[1, :2], rel=1e-9)
    assert found[0, 1] > 0.9
    assert found[2].abs().max() < 1e-12
