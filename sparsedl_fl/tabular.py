"""Recovered rows of a table, back in the table's own columns and categories."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.compose import ColumnTransformer

__all__ = ["decode_table"]


def decode_table(encoder: ColumnTransformer, inputs: Any) -> dict[str, np.ndarray]:
    """Undo the encoding of a table: one-hot columns become categories, scaled columns numbers.

    Each part of the encoder undoes its own columns by its ``inverse_transform``; `sklearn.preprocessing.OneHotEncoder`
    takes the largest column, so that an approximate recovery decodes too.

    Parameters
    ----------
    encoder : sklearn.compose.ColumnTransformer
        What the client encoded its table with, fitted.
    inputs : array-like of shape (batch_size, n)
        Recovered inputs, such as ``GradientInverter.inputs_``.

    Returns
    -------
    dict of str to ndarray of shape (batch_size,)
        A column of the table each, by name; ``pandas.DataFrame`` takes it as it is.

    Raises
    ------
    ValueError
        If the inputs do not have the encoder's width, or a part of the encoder cannot be undone.

    Examples
    --------
    >>> from sklearn.preprocessing import OneHotEncoder, StandardScaler
    >>> table = np.array([["red", 3], ["blue", 5], ["red", 7]], dtype=object)
    >>> encoder = ColumnTransformer(
    ...     [("colour", OneHotEncoder(), [0]), ("size", StandardScaler(), [1])], sparse_threshold=0
    ... )
    >>> decode_table(encoder, encoder.fit_transform(table) + 0.01)["0"].tolist()
    ['red', 'blue', 'red']
    """
    inputs = np.asarray(inputs, dtype=np.float64)
    width = max((part.stop for part in encoder.output_indices_.values()), default=0)
    if inputs.ndim != 2 or inputs.shape[1] != width:
        raise ValueError(f"inputs must have shape (batch_size, {width}) as the encoder makes it, got {inputs.shape}")
    table: dict[str, np.ndarray] = {}
    for name, transformer, columns in encoder.transformers_:
        part = inputs[:, encoder.output_indices_[name]]
        if part.shape[1] == 0:
            continue
        if transformer != "passthrough":
            if not hasattr(transformer, "inverse_transform"):
                raise ValueError(f"the encoder's part {name!r} ({type(transformer).__name__}) has no inverse_transform")
            part = transformer.inverse_transform(part)
        names = np.arange(encoder.n_features_in_)[columns] if isinstance(columns, slice) else np.atleast_1d(columns)
        for index, column in enumerate(names):
            table[str(column)] = np.asarray(part)[:, index]
    return table
