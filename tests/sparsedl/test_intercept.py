"""Observations with an offset, by themselves or behind a scaler: nothing is lost, and nothing wrong is marked."""

import numpy as np
import pytest
from sklearn.decomposition import PCA
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sparsedl import SparseDictionaryRecovery
from sparsedl.datasets import make_sparse_dictionary
from sparsedl.intercept import is_centred


def worst_cosine(codes, found):
    """Return the smallest over the true columns of the largest cosine with a found one."""
    unit = [columns / np.linalg.norm(columns, axis=0) for columns in (codes, found)]
    return np.abs(unit[0].T @ unit[1]).max(axis=1).min()


@pytest.fixture(scope="module")
def data():
    return make_sparse_dictionary(300, 10, sparsity=0.5, random_state=0)


@pytest.mark.parametrize(
    "change",
    [
        lambda X: X - X.mean(axis=0),
        lambda X: StandardScaler().fit_transform(X),
        lambda X: PCA().fit_transform(X),
        lambda X: X + 5,
        lambda X: X + np.arange(10.0),
    ],
    ids=["centred", "standardised", "rotated", "all plus 5", "each plus its own"],
)
def test_an_offset_is_found(data, change):
    X, codes, _ = data
    changed = change(X)
    sdr = SparseDictionaryRecovery(random_state=0).fit(changed)
    assert sdr.recovered_.all()
    assert sdr.intercept_.any()
    # The codes themselves, and not what is left of them after centring.
    assert worst_cosine(codes, sdr.codes_) > 1 - 1e-9
    np.testing.assert_allclose(sdr.inverse_transform(sdr.codes_), changed, atol=1e-8)
    np.testing.assert_array_equal(sdr.transform(changed), sdr.codes_)


def test_a_pipeline_with_a_scaler_just_works(data):
    X, codes, _ = data
    found = make_pipeline(StandardScaler(), SparseDictionaryRecovery(random_state=0)).fit_transform(X)
    assert worst_cosine(codes, found) > 1 - 1e-9


def test_without_an_offset_there_is_none(data):
    X, codes, _ = data
    for fit_intercept in ("auto", False):
        sdr = SparseDictionaryRecovery(fit_intercept=fit_intercept, random_state=0).fit(X)
        assert sdr.recovered_.all()
        assert not sdr.intercept_.any()
    asked = SparseDictionaryRecovery(fit_intercept=True, random_state=0).fit(X)
    assert worst_cosine(codes, asked.codes_) > 1 - 1e-9
    np.testing.assert_allclose(asked.intercept_, 0, atol=1e-10)
    assert is_centred(X - X.mean(axis=0))
    assert not is_centred(X)


def test_a_wrong_setting_is_named(data):
    with pytest.raises(ValueError, match="fit_intercept must be True, False or 'auto', got 'yes'"):
        SparseDictionaryRecovery(fit_intercept="yes").fit(data[0])
