"""The expected errors of components that zeros prove are those that are made."""

import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from sparsedl import SparseDictionaryRecovery
from sparsedl.datasets import make_sparse_dictionary
from sparsedl.metrics import match_components


def fitted(n_features, noise, sparsity=0.6, k=12, n_dense=0, offset=0.0):
    X, codes, components = make_sparse_dictionary(40 * k, k, n_features=n_features, sparsity=sparsity, random_state=1)
    rng = np.random.default_rng(2)
    if n_dense:
        codes[:, :n_dense] = rng.laplace(size=(len(codes), n_dense))
        X = codes @ components
    X = X + noise * rng.standard_normal(X.shape) + offset * rng.standard_normal(X.shape[1])
    known = {"noise_level": noise or None, "fit_intercept": offset != 0}
    sdr = SparseDictionaryRecovery(k, patience=2, random_state=0, **known)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        sdr.fit(X)
    return sdr, components


@pytest.mark.parametrize("n_features", [12, 30])
@pytest.mark.parametrize(("noise", "offset"), [(1e-7, 0), (1e-5, 0), (1e-4, 0), (1e-5, 3)])
def test_expected_errors_are_the_errors_made(n_features, noise, offset):
    sdr, components = fitted(n_features, noise, offset=offset)
    assert sdr.recovered_.all()
    match = match_components(sdr.components_, components)
    ratios = match.errors / sdr.component_errors_[match.permutation]
    assert ratios.max() < 3
    assert 0.3 < np.median(ratios) < 1.5


def test_errors_scale_with_the_noise():
    errors = [np.median(fitted(12, noise)[0].component_errors_) for noise in (1e-6, 1e-5)]
    assert errors[1] / errors[0] == pytest.approx(10, rel=0.05)


def test_nothing_is_known_of_rows_that_change_with_what_is_missing():
    sdr, _ = fitted(12, 0.0, n_dense=2)
    assert sdr.recovered_.sum() == 10
    assert (sdr.component_errors_ == 1).all()
    one_missing, components = fitted(12, 0.0, n_dense=1)
    told = one_missing.component_errors_ < 1
    assert told.sum() <= 1
    assert match_components(components, one_missing.components_[told]).errors.max(initial=0) < 1e-10
