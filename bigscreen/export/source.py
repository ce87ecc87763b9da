"""Reconstruct raw source rows from a store, to test an exported model on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse

from bigscreen.data.preparation import Preparation
from bigscreen.data.rows import Rows
from bigscreen.numerics.rows import FloatArray

UNKNOWN_CATEGORY = "(a kind that was never seen)"
"""Text of a categorical value that none of a store's categories stands for."""


@dataclass(frozen=True)
class SampledRows:
    """A sample of a store's rows, as features and as reconstructed source columns.

    Parameters
    ----------
    prepared : float64 (rows, n_features)
        Features as stored.
    columns : list of float64 (rows,) or object (rows,) arrays
        The source's columns: numbers, and categories as texts.
    """

    prepared: FloatArray
    columns: list[NDArray[Any]]

    def table(self) -> NDArray[Any]:
        """Return the columns as one array, of objects if there are categories."""
        kinds = any(column.dtype == object for column in self.columns)
        if not kinds:
            return np.stack(self.columns, axis=1)
        out = np.empty((len(self.prepared), len(self.columns)), object)
        for j, column in enumerate(self.columns):
            out[:, j] = column
        return out


def sample_rows(data: Rows, preparation: Preparation, most: int, seed: int = 0) -> SampledRows:
    """Draw at most `most` rows of a store at random, and reconstruct their source columns.

    Missing numbers are reconstructed as NaN if a feature says that they are missing, otherwise as
    their fill values, and unknown categories as `UNKNOWN_CATEGORY`.
    """
    rng = np.random.default_rng(seed)
    rows = np.sort(rng.choice(data.n_rows, min(most, data.n_rows), replace=False))
    X: Any = data.rows(rows)
    X = np.asarray(X.toarray() if issparse(X) else X, np.float64)
    values = X.copy()
    if preparation.factor is not None:
        values /= preparation.factor
    if preparation.offset is not None:
        values += preparation.offset
    n_raw = X.shape[1] if preparation.n_raw is None else preparation.n_raw
    places = np.arange(n_raw) if preparation.n_raw is None else preparation.places
    holes = X[:, X.shape[1] - len(preparation.indicators) :] > 0.5
    columns: list[NDArray[Any]] = []
    for j, place in enumerate(places.tolist()):
        kinds = preparation.categories.get(j)
        if kinds is None:
            gaps = [holes[:, k] for k, c in enumerate(preparation.indicators) if c == j]
            columns.append(
                np.where(gaps[0], np.nan, values[:, place]) if gaps else values[:, place]
            )
            continue
        ones = values[:, place : place + len(kinds)]
        texts = np.array([*kinds, UNKNOWN_CATEGORY], object)
        columns.append(texts[np.where(ones.max(axis=1) > 0.5, ones.argmax(axis=1), len(kinds))])
    return SampledRows(X, columns)
