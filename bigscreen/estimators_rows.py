"""What an estimator is given, as rows: arrays, Dask arrays, data sets and paths of stored ones."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from bigscreen.errors import InputError
from bigscreen.store import Dataset, DatasetWriter, MemoryDataset, Preparation, Rows
from bigscreen.store.checks import check_weights
from bigscreen.store.readers.python import python_reader


def is_store(X: Any) -> bool:
    """Whether X is a data set or names one."""
    return isinstance(X, (Rows, str, os.PathLike))


def is_chunked(X: Any) -> bool:
    """Whether X is a Dask array, recognised by what it can do: its blocks are read one by one."""
    return hasattr(X, "dask") and hasattr(X, "blocks")


def open_store(X: Any) -> Rows:
    """The data set that X is or names."""
    return X if isinstance(X, Rows) else Dataset.open(X)


def blocks(X: Any) -> Iterator[Any]:
    """The rows of an array, a sparse array or a Dask array, a few megabytes at a time."""
    return (block.X for block in python_reader(X).blocks())


def plain_labels(classes: NDArray[Any]) -> list[Any]:
    """The classes as a model file can hold them: JSON has numbers and texts only."""
    values = classes.tolist()
    plain = all(isinstance(value, (str, int, float)) for value in values)
    return values if plain else [str(value) for value in values]


@dataclass(frozen=True)
class Labelled:
    """Rows that are not in a store, with their labels.

    Attributes
    ----------
    X : ndarray, sparse array or Dask array of shape (n, d)
    classes : ndarray
        The distinct labels, ascending.
    codes : int array (kept rows,)
        Positions in ``classes``.
    weights : float64 array (kept rows,) or None
    keep : bool array (n,) or None
        Rows of positive weight; None: all. A row without weight must not be a landmark, count in
        a class weight or make a class of its own, so it is left out from the start.
    square : bool
        The columns are rows, too (a precomputed kernel): those of rows left out go with them.
    """

    X: Any
    classes: NDArray[Any]
    codes: NDArray[np.int64]
    weights: NDArray[np.float64] | None
    keep: NDArray[np.bool_] | None
    square: bool = False

    @classmethod
    def of(cls, X: Any, y: NDArray[Any], sample_weight: Any, square: bool = False) -> Labelled:
        """Encode labels and leave out rows of weight zero.

        Raises
        ------
        InputError
            If a weight is negative, fewer than two classes are left, or the lengths differ.
        """
        if X.shape[0] != len(y):
            raise InputError(_lengths(X.shape[0], len(y)))
        weights, keep = check_weights(sample_weight, len(y)), None
        if weights is not None and not weights.all():
            keep = weights > 0
            y, weights = y[keep], weights[keep]
        classes, codes = np.unique(y, return_inverse=True)
        if len(classes) < 2:
            raise InputError(
                "a classifier needs rows of two classes, and y has "
                + (f"only one class, {classes[0]}" if len(classes) else "no row of any class")
                + ("" if keep is None else " once rows of weight zero are left out")
            )
        return cls(X, classes, codes, weights, keep, square)

    def rows(self, most: float, folder: Callable[[], Path]) -> Rows:
        """The rows as a data set.

        Parameters
        ----------
        most : float
            Bytes that a Dask array may take in memory; above, it is stored in one pass over it.
            0: all rows are stored, for workers that read them by path.
        folder : callable
            Makes the folder to store them in, if it comes to that.
        """
        labels = plain_labels(self.classes)
        if not is_chunked(self.X) and most > 0:
            X = self.X if self.keep is None else self._kept(self.X, self.keep)
            return MemoryDataset(X, self.codes, labels, self.weights)
        parts = self._blocks()
        first = next(parts)
        parts, n = chain([first], parts), len(self.codes)
        entry = 8 * first.nnz if sparse.issparse(first) else 4 * first.size
        if entry * n / first.shape[0] > most:
            return self._stored(folder() / "rows", parts, sparse.issparse(first), labels)
        if sparse.issparse(first):
            return MemoryDataset(_stack(list(parts)), self.codes, labels, self.weights)
        X, at = np.empty((n, first.shape[1]), np.float32), 0
        for part in parts:
            X[at : at + len(part)] = part
            at += len(part)
        return MemoryDataset(X, self.codes, labels, self.weights)

    def _kept(self, X: Any, rows: NDArray[np.bool_]) -> Any:
        X = X[rows]
        return X[:, self.keep] if self.square else X

    def _stored(self, path: Path, parts: Iterator[Any], is_sparse: bool, labels: Any) -> Dataset:
        writer = DatasetWriter(
            path,
            n_rows=len(self.codes),
            n_features=self.X.shape[1],
            sparse=is_sparse,
            labels=labels,
            weights=self.weights is not None,
            preparation=Preparation.none(),
        )
        for k, X in enumerate(_regrid(parts, writer.layout.chunk_rows)):
            a, b = writer.chunk(k)
            writer.write(k, X, self.codes[a:b], None if self.weights is None else self.weights[a:b])
        return writer.finish()

    def _blocks(self) -> Iterator[Any]:
        """The rows that are kept, block by block, float32."""
        for block in python_reader(self.X).blocks():
            a, X = block.first_row, block.X
            if self.keep is not None:
                X = self._kept(X, self.keep[a : a + X.shape[0]])
            if X.shape[0]:
                # What is beyond float32 becomes infinite, and is refused where rows are stored.
                with np.errstate(over="ignore"):
                    yield X.astype(np.float32, copy=False)


def _lengths(rows: float, labels: int) -> str:
    if rows != rows:
        return "X does not know how many rows it has; call X.compute_chunk_sizes() first"
    return f"X has {rows} rows and y has {labels} labels; give one label for each row"


def _regrid(parts: Iterator[Any], rows: int) -> Iterator[Any]:
    """The same rows in blocks of ``rows``; only the last may have fewer."""
    held: list[Any] = []
    count = 0
    for part in parts:
        while count + part.shape[0] >= rows:
            cut = rows - count
            yield _stack([*held, part[:cut]])
            part, held, count = part[cut:], [], 0
        if part.shape[0]:
            held.append(part)
            count += part.shape[0]
    if held:
        yield _stack(held)


def _stack(parts: list[Any]) -> Any:
    if len(parts) == 1:
        return parts[0]
    if sparse.issparse(parts[0]):
        return sparse.vstack(parts, format="csr")
    return np.concatenate(parts)
