import sys

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from sklearn.exceptions import NotFittedError

from sparsedl import SparseDictionaryRecovery
from sparsedl.datasets import make_sparse_dictionary
from sparsedl.plotting import plot_components


@pytest.fixture(autouse=True)
def agg():
    matplotlib.use("Agg")


@pytest.fixture
def fitted():
    X, _, _ = make_sparse_dictionary(120, 6, sparsity=0.6, random_state=0)
    return SparseDictionaryRecovery(random_state=0).fit(X)


def has_frame(axis):
    return all(spine.get_visible() for spine in axis.spines.values())


def test_pictures_are_the_components_in_order(tmp_path):
    components = np.random.default_rng(0).standard_normal((7, 6))
    axes = plot_components(components, (2, 3), n_columns=4)
    assert len(axes) == 7
    for axis, component in zip(axes, components, strict=True):
        np.testing.assert_array_equal(axis.images[0].get_array(), component.reshape(2, 3))
    hidden = [axis for axis in axes[0].figure.axes if not axis.get_visible()]
    assert len(hidden) == 1
    axes[0].figure.savefig(tmp_path / "components.png")


@pytest.mark.parametrize("scale", [2.0**-60, 1.0, 2.0**60])
def test_the_middle_colour_is_zero_in_any_unit(scale):
    axes = plot_components(scale * np.array([[1.0, -3.0], [0.0, 0.0], [2.0, 1.0]]), (1, 2))
    limits = [axis.images[0].get_clim() for axis in axes]
    assert limits == [(-3 * scale, 3 * scale), (-1, 1), (-2 * scale, 2 * scale)]


def test_frames_mark_what_is_not_recovered(fitted):
    assert not any(has_frame(axis) for axis in plot_components(fitted, (2, 3)))
    fitted.recovered_ = np.array([True, True, False, True, False, True])
    assert [has_frame(axis) for axis in plot_components(fitted, (2, 3))] == [False, False, True, False, True, False]
    assert not any(has_frame(axis) for axis in plot_components(fitted.components_, (2, 3)))


def test_takes_tensors_and_draws_where_it_is_told():
    components = torch.eye(4)
    figure = Figure()
    axes = plot_components(components, (2, 2), figure=figure, cmap="RdBu")
    assert all(axis.figure is figure and axis.images[0].get_cmap().name == "RdBu" for axis in axes)
    given = Figure().subplots(2, 3)
    assert plot_components(components, (2, 2), axes=given) == list(given.flat[:4])
    assert [axis.get_visible() for axis in given.flat] == [True] * 4 + [False] * 2


def test_a_column_of_pictures_and_one_picture():
    axes = plot_components(np.eye(4), (2, 2), n_columns=1)
    assert axes[0].get_gridspec().get_geometry() == (4, 1)
    assert len(plot_components(np.ones((1, 4)), (2, 2))) == 1


@pytest.mark.parametrize(
    ("components", "options", "says"),
    [
        (np.eye(4), {"shape": (2, 3)}, "6 features, the components have 4"),
        (np.ones(4), {"shape": (2, 2)}, r"\(n_components, n_features\)"),
        (np.eye(4), {"shape": (2, 2), "n_columns": 0}, "n_columns must be positive"),
        (np.eye(4), {"shape": (2, 2), "axes": Figure().subplots(1, 3)}, "3 axes are too few for 4"),
        (np.eye(4), {"shape": (2, 2), "axes": Figure().subplots(2, 2), "figure": Figure()}, "neither figure nor"),
        (np.eye(4), {"shape": (2, 2), "axes": Figure().subplots(2, 2), "n_columns": 2}, "neither figure nor"),
    ],
)
def test_what_does_not_fit_is_said(components, options, says):
    with pytest.raises(ValueError, match=says):
        plot_components(components, **options)


def test_an_estimator_has_to_be_fitted():
    with pytest.raises(NotFittedError):
        plot_components(SparseDictionaryRecovery(), (2, 3))


def test_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'sparsedl\[plot\]'"):
        plot_components(np.eye(4), (2, 2))
