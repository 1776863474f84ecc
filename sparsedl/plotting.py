"""Components as pictures, where observations are images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from sklearn.utils.validation import check_is_fitted

from sparsedl.arrays import Matrix, as_numpy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from sparsedl.estimator import SparseDictionaryRecovery

__all__ = ["plot_components"]


def plot_components(
    components: SparseDictionaryRecovery | Matrix,
    shape: tuple[int, int],
    *,
    n_columns: int | None = None,
    axes: Axes | Sequence[Axes] | np.ndarray | None = None,
    figure: Figure | None = None,
    cmap: str = "gray",
) -> list[Axes]:
    """Draw each component as a picture, in a grid.

    Each picture has a scale of colours of its own, from minus to plus its largest modulus, so that the middle colour
    is zero: neither the sign nor the length of a component is known.

    Parameters
    ----------
    components : SparseDictionaryRecovery or array-like of shape (n_components, n_features)
        A fitted estimator, or components one a row. Of an estimator those that are not recovered are drawn within an
        orange dashed frame.
    shape : tuple of int
        Height and width of a picture; their product is the number of features.
    n_columns : int or None, default=None
        Pictures side by side; None makes the grid about square. Not together with ``axes``.
    axes : array-like of matplotlib Axes or None, default=None
        Where to draw, one for each component at least; those left over are hidden. None makes them.
    figure : matplotlib Figure, SubFigure or None, default=None
        Where to make the axes; None makes a figure, which is not registered with ``pyplot``. Not together with
        ``axes``.
    cmap : str, default="gray"
        Name of the colour map.

    Returns
    -------
    list of matplotlib Axes
        Of the components in their order; the figure is ``axes[0].figure``.

    Raises
    ------
    ImportError
        If matplotlib is missing.
    ValueError
        If the shape does not fit the components, or the axes are too few.

    Examples
    --------
    >>> import numpy as np
    >>> from sparsedl.plotting import plot_components
    >>> axes = plot_components(np.eye(6), (2, 3), n_columns=3)
    >>> len(axes), axes[0].images[0].get_clim()
    (6, (-1.0, 1.0))
    """
    rows, recovered = _rows_of(components)
    height, width = shape
    if rows.shape[1] != height * width:
        raise ValueError(f"shape {tuple(shape)} has {height * width} features, the components have {rows.shape[1]}")
    if axes is not None and (figure is not None or n_columns is not None):
        raise ValueError("axes have a figure and a grid already: pass neither figure nor n_columns with them")
    grid = _grid(len(rows), n_columns, figure, height / width) if axes is None else np.asarray(axes, dtype=object)
    pictures = list(np.ravel(grid))
    if len(pictures) < len(rows):
        raise ValueError(f"{len(pictures)} axes are too few for {len(rows)} components")
    for axis, row, is_recovered in zip(pictures, rows, recovered, strict=False):
        _draw(axis, row.reshape(height, width), is_recovered, cmap)
    for axis in pictures[len(rows) :]:
        axis.set_visible(False)
    return pictures[: len(rows)]


def _grid(n_pictures: int, n_columns: int | None, figure: Figure | None, aspect: float) -> np.ndarray:
    """Return axes for so many pictures, in a figure of their own if none is given."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("plot_components draws with matplotlib: pip install 'sparsedl[plot]'") from error
    n_columns = int(np.ceil(np.sqrt(n_pictures))) if n_columns is None else n_columns
    if n_columns < 1:
        raise ValueError(f"n_columns must be positive, got {n_columns}")
    n_rows = -(-n_pictures // n_columns)
    if figure is None:
        figure = Figure(figsize=(0.8 * n_columns, 0.8 * n_rows * aspect), layout="constrained")
    return figure.subplots(n_rows, n_columns, squeeze=False)


def _rows_of(components: SparseDictionaryRecovery | Matrix) -> tuple[np.ndarray, np.ndarray]:
    """Return components, one a row, and which of them are recovered; an array says nothing of that, so all of it."""
    if hasattr(components, "fit"):
        check_is_fitted(components)
    rows = np.asarray(as_numpy(getattr(components, "components_", components)), dtype=np.float64)
    if rows.ndim != 2 or len(rows) == 0:
        raise ValueError(
            f"components must be a fitted estimator or have shape (n_components, n_features): {rows.shape}"
        )
    return rows, np.asarray(getattr(components, "recovered_", np.ones(len(rows), dtype=bool)))


def _draw(axis: Axes, picture: np.ndarray, is_recovered: bool, cmap: str) -> None:
    largest = float(np.abs(picture).max()) or 1.0
    axis.imshow(picture, cmap=cmap, vmin=-largest, vmax=largest, interpolation="nearest")
    axis.set(xticks=[], yticks=[])
    axis.spines[:].set_visible(not is_recovered)
    axis.spines[:].set(color="tab:orange", linestyle="--", linewidth=1.5)
