"""Units, wrong entries and number formats: the answer is the same, or says what is not."""

import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning

from sparsedl import SparseDictionaryRecovery
from sparsedl.datasets import make_sparse_dictionary
from sparsedl.metrics import match_components
from sparsedl.observations import Observations, ScaledRows, product
from sparsedl.preconditioning import whiten


def fit(X, **parameters):
    return SparseDictionaryRecovery(random_state=0, max_rounds=6, **parameters).fit(X)


@pytest.mark.parametrize(("dtype", "powers"), [(np.float64, (-1000, 333, 1000)), (np.float32, (-100, 100))])
@pytest.mark.parametrize("kind", ["square", pytest.param("offset", marks=pytest.mark.slow), "noisy", "noise given"])
def test_any_power_of_two_gives_the_same_answer_to_the_last_bit(kind, dtype, powers):
    noisy = kind.startswith("nois")
    X, _, _ = make_sparse_dictionary(
        150,
        6,
        n_features=12 if noisy else 6,
        sparsity=0.6,
        condition_number=3,
        noise_level=1e-4 * noisy,
        random_state=1,
    )
    X = (X + 3 * (kind == "offset")).astype(dtype)
    parameters = {"n_components": 6} if noisy else {}
    given = 1e-4 if kind == "noise given" else None
    expected = fit(X, noise_level=given, **parameters)
    assert expected.recovered_.all()
    for power in powers:
        scaled = np.ldexp(X, power)
        sdr = fit(scaled, noise_level=None if given is None else np.ldexp(given, power), **parameters)
        np.testing.assert_array_equal(sdr.components_, expected.components_)
        np.testing.assert_array_equal(sdr.directions_, expected.directions_)
        np.testing.assert_array_equal(sdr.codes_, np.ldexp(expected.codes_, power))
        np.testing.assert_array_equal(sdr.intercept_, np.ldexp(expected.intercept_, power))
        np.testing.assert_array_equal(sdr.transform(scaled), sdr.codes_)
        np.testing.assert_array_equal(
            sdr.inverse_transform(sdr.codes_), np.ldexp(expected.inverse_transform(expected.codes_), power)
        )
        assert sdr.score(scaled) == expected.score(X)


@pytest.mark.parametrize("power", [-300, -60, 4, 13, 60, 300])
@pytest.mark.parametrize("n_features", [8, 11])
def test_a_row_or_column_in_other_units_than_the_others_does_no_harm(power, n_features):
    X, _, components = make_sparse_dictionary(100, 8, n_features=n_features, sparsity=0.6, random_state=0)
    for axis in (0, 1):
        exponents = np.where(np.arange(X.shape[axis]) == 5, power, 0)
        scaled = np.ldexp(X, exponents[:, None] if axis == 0 else exponents)
        expected = np.ldexp(components, exponents) if axis == 1 else components
        sdr = fit(scaled)
        assert sdr.status_ == "complete"
        assert match_components(sdr.components_, expected).errors.max() < 1e-10


@pytest.mark.parametrize("value", [5.0, -9999.0, 1e20, 1e300])
def test_a_wrong_entry_is_named_and_left_out(value):
    X, _, components = make_sparse_dictionary(100, 8, n_features=12, sparsity=0.5, random_state=0)
    X[3, 2] = value
    with pytest.warns(ConvergenceWarning, match="row 3 of X is left out: it lies outside the span of all others"):
        sdr = fit(X)
    assert sdr.status_ == "complete without row 3"
    assert match_components(sdr.components_, components).errors.max() < 1e-10
    X[[7, 11], [5, 6]] = value
    with pytest.warns(ConvergenceWarning, match="rows 3, 7 and 11 of X are left out"):
        assert fit(X).recovered_.all()


@pytest.mark.slow
def test_wrong_entries_of_one_column_are_named():
    X, _, _ = make_sparse_dictionary(100, 8, n_features=12, sparsity=0.5, random_state=0)
    X[[3, 8], 2] = 1e4, -1e5
    with pytest.warns(ConvergenceWarning, match="is used by rows 3 and 8 alone"):
        assert not fit(X).recovered_.all()


@pytest.mark.slow
def test_features_below_the_rounding_of_others_are_named():
    X, _, _ = make_sparse_dictionary(100, 8, sparsity=0.5, random_state=0)
    X[:, 2] *= 2.0**-50
    with pytest.warns(ConvergenceWarning, match="feature 2 of X cannot be told from the rounding.*divide each"):
        fit(X)


@pytest.mark.parametrize("convert", [lambda X: X.astype(np.float16), lambda X: torch.tensor(X).bfloat16()])
@pytest.mark.parametrize("n_features", [8, 12])
def test_half_precision_is_as_rough_as_it_is(convert, n_features):
    X, _, components = make_sparse_dictionary(
        300, 8, n_features=n_features, sparsity=0.6, condition_number=3, random_state=0
    )
    sdr = fit(convert(X))
    assert sdr.status_ == "complete"
    assert sdr.codes_.dtype == np.float64
    assert match_components(sdr.components_, components).errors.max() < 3e-3


def test_masked_arrays_are_refused():
    X, _, _ = make_sparse_dictionary(50, 4, random_state=0)
    with pytest.raises(ValueError, match="X is a masked array, and every entry is needed"):
        fit(np.ma.masked_greater(X, 1.0))


def test_products_neither_overflow_nor_underflow():
    left, right = np.random.default_rng(0).standard_normal((2, 3, 3))
    for power in (-1000, 1000):
        np.testing.assert_array_equal(product(np.ldexp(left, power), right), np.ldexp(left @ right, power))
    assert not product(np.zeros((2, 3)), right).any()


@pytest.mark.parametrize("columns", [[0, 0, 0], [3, 0, -700]])
def test_scaled_rows_are_the_rows_of_the_scaled_matrix(columns):
    X = np.random.default_rng(0).standard_normal((9, 3))
    rows = np.array([0, 1, -2, 80, 5, 5, -900, 3, 3])
    scaled, expected = ScaledRows(X, rows, np.array(columns)), np.ldexp(X, rows[:, None] + columns)
    mask = np.arange(9) % 2 == 0
    some = scaled.only(mask)
    assert (len(scaled), scaled.shape, scaled.dtype) == (9, (9, 3), X.dtype)
    for index in (slice(0, 3), slice(2, 9), np.array([8, 0, 3])):
        np.testing.assert_array_equal(scaled[index], expected[index])
    np.testing.assert_array_equal(np.asarray(scaled), expected)
    np.testing.assert_array_equal(np.asarray(some), expected[mask])
    np.testing.assert_array_equal(some[1:3], expected[mask][1:3])
    np.testing.assert_array_equal(np.asarray(some.only(np.arange(5) > 2)), expected[mask][3:])


def test_scaled_rows_are_whitened_as_their_matrix_is():
    X = make_sparse_dictionary(60, 4, random_state=0)[0]
    scaled = ScaledRows(X, np.full(60, -3), np.array([0, 0, 5, 0])).only(np.arange(60) > 7)
    one, other = whiten(scaled), whiten(np.asarray(scaled))
    np.testing.assert_array_equal(one.mixing, other.mixing)
    np.testing.assert_array_equal(one.whitened, other.whitened)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_memory_map_is_fitted_as_an_array_is_without_a_copy(dtype, tmp_path, monkeypatch):
    X, _, _ = make_sparse_dictionary(6000, 6, sparsity=0.6, random_state=0)
    X[17], X[:, 2] = 0, np.ldexp(X[:, 2], 9)
    mapped = np.memmap(tmp_path / "X", dtype=dtype, mode="w+", shape=X.shape)
    mapped[:] = X
    expected = fit(np.array(mapped))
    for name in ("arrays", "observations", "preconditioning"):
        monkeypatch.setattr(f"sparsedl.{name}.CHUNK_ENTRIES", 10_000)
    monkeypatch.setattr("sparsedl.arrays.ROW_ENTRIES", 5_000)
    values = Observations.of(mapped, None, float(np.finfo(dtype).eps)).values
    assert isinstance(values, ScaledRows)
    assert np.shares_memory(values._X, mapped)
    found = fit(mapped)
    assert found.status_ == expected.status_ == "complete"
    assert match_components(found.components_, expected.components_).errors.max() < 20 * np.finfo(dtype).eps
    with_offset = fit(mapped, fit_intercept=True)
    assert match_components(with_offset.components_, expected.components_).errors.max() < 20 * np.finfo(dtype).eps
