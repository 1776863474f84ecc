import numpy as np
import pandas
import pytest
import torch
from sklearn.compose import ColumnTransformer
from sklearn.preprocessing import FunctionTransformer, Normalizer, OneHotEncoder, StandardScaler

from sparsedl_fl import GradientInverter, LayerGradient
from sparsedl_fl.simulation import client_gradient, fully_connected
from sparsedl_fl.tabular import decode_table


@pytest.fixture
def table():
    return pandas.DataFrame({"colour": ["red", "blue", "red"], "size": [3.0, 5.0, 7.0], "weight": [1.0, 2.0, 3.0]})


def test_the_table_comes_back(table):
    encoder = ColumnTransformer(
        [("c", OneHotEncoder(), ["colour"]), ("s", StandardScaler(), ["size"])], remainder="passthrough"
    )
    encoded = encoder.fit_transform(table)
    decoded = pandas.DataFrame(decode_table(encoder, encoded + 1e-9))
    assert decoded["colour"].tolist() == table["colour"].tolist()
    np.testing.assert_allclose(decoded[["size", "weight"]].to_numpy(float), table[["size", "weight"]])


def test_dropped_columns_are_left_out(table):
    encoder = ColumnTransformer([("c", OneHotEncoder(), ["colour"])], remainder="drop", sparse_threshold=0)
    assert list(decode_table(encoder, encoder.fit_transform(table))) == ["colour"]


def test_what_cannot_be_undone_is_named(table):
    encoder = ColumnTransformer([("n", Normalizer(), ["size", "weight"])]).fit(table)
    with pytest.raises(ValueError, match=r"part 'n' \(Normalizer\) has no inverse_transform"):
        decode_table(encoder, np.ones((2, 2)))
    with pytest.raises(ValueError, match=r"inputs must have shape \(batch_size, 2\).*got \(2, 3\)"):
        decode_table(encoder, np.ones((2, 3)))


def test_a_census_comes_back_row_by_row(census):
    adult = pandas.read_csv(census)
    labels = torch.tensor((adult.pop("income") == ">50K").to_numpy(dtype=int))
    numbers = adult.select_dtypes("number").columns.tolist()
    categories = [name for name in adult if name not in numbers]
    encoder = ColumnTransformer(
        [("numbers", StandardScaler(), numbers), ("categories", OneHotEncoder(), categories)], sparse_threshold=0
    )
    encoded = torch.tensor(encoder.fit_transform(adult), dtype=torch.float32)
    for seed in range(3):
        rows = np.random.default_rng(seed).choice(len(adult), 16, replace=False)
        model = fully_connected(encoded.shape[1], width=400, n_classes=2, random_state=seed)
        gradient = client_gradient(model, encoded[rows], labels[rows])
        inverter = GradientInverter(random_state=0).fit(LayerGradient.from_model(model, gradient))
        assert inverter.recovered_.all()
        decoded = pandas.DataFrame(decode_table(encoder, inverter.inputs_))[adult.columns]
        decoded[numbers] = decoded[numbers].astype(float).round().astype(int)
        found = sorted(map(tuple, decoded.astype(str).to_numpy()))
        assert found == sorted(map(tuple, adult.iloc[rows].astype(str).to_numpy()))


def test_functions_without_inverse_pass_through():
    encoder = ColumnTransformer([("f", FunctionTransformer(), slice(0, 2))])
    encoder.fit(np.ones((3, 2)))
    assert decode_table(encoder, np.ones((1, 2)))["1"].tolist() == [1.0]
