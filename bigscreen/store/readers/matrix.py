"""A reader of matrices: rows read by their numbers, labels and weights beside them or within."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, issparse

from bigscreen.errors import InputError, in_units
from bigscreen.store.readers import base
from bigscreen.store.readers.base import PIECE_BYTES, Block

Column = str | int


class Rows(Protocol):
    """An array whose first axis can be read range by range, in ascending order."""

    shape: tuple[int, ...]
    row_bytes: int

    def read(self, start: int, stop: int) -> NDArray | csr_array:
        """Return rows start..stop-1."""
        ...


@dataclass
class Matrix:
    """What a `MatrixReader` reads.

    Attributes
    ----------
    X : Rows, of shape (n, d) or (n, a, b, ...), which is flattened
    y : Rows or None
        Labels, (n,) or (n, 1).
    weight : Rows or None
        Sample weights, (n,).
    name : str
        What the rows belong to, for messages; "" for an array in memory.
    y_name : str
        Where the labels come from, for messages.
    sparse : bool
    size : int
        Bytes of all rows.
    files : list
        To be closed when all is read.
    """

    X: Rows
    y: Rows | None
    weight: Rows | None
    name: str
    y_name: str
    sparse: bool
    size: int
    files: list[Any] = field(default_factory=list)


class MatrixReader:
    """Reads a matrix some rows at a time.

    Parameters
    ----------
    matrix : callable
        Opens the matrix, afresh for every pass.
    label : str, int, False or None
        Position of the label's column in X; False: there are no labels; None: they are in `y`.
    weight : str or int, optional
        Position of the weight's column in X.

    Raises
    ------
    InputError
        If the shapes do not fit each other.
    """

    names: list[str] | None = None

    def __init__(
        self,
        matrix: Callable[[], Matrix],
        label: Column | Literal[False] | None = None,
        weight: Column | None = None,
    ) -> None:
        self._open = matrix
        opened = matrix()
        self._opened: Matrix | None = opened
        shape = opened.X.shape
        place = opened.name or "the array"
        if len(shape) < 2 or shape[0] < 1:
            raise InputError(f"{place}: X has the shape {shape}; it needs rows and columns.")
        self.sparse = opened.sparse
        self.categories: dict[int, list[str]] = {}
        self.unseen: dict[int, int] = {}
        self._size, self._done = opened.size, 0
        self.n_rows = shape[0]
        width = math.prod(shape[1:])
        for part in (opened.X, opened.y, opened.weight):
            if part is not None and opened.name and part.row_bytes > base.LONGEST_RECORD:
                raise InputError(
                    f"{place}: one row of the shape {part.shape} takes {in_units(part.row_bytes)}, "
                    f"and at most {in_units(base.LONGEST_RECORD)} are taken; check its shape."
                )
        self._label = None if label in (None, False) else _position(place, width, label)
        self._weight = None if weight is None else _position(place, width, weight)
        self._without_labels = label is False
        within = [c for c in (self._label, self._weight) if c is not None]
        if within and self.sparse:
            raise InputError(f"{place}: labels and weights of sparse rows must be arrays beside X.")
        if len(set(within)) < len(within):
            raise InputError(f"{place}: column {within[0]} cannot be both label and weight.")
        self._features = np.delete(np.arange(width), within)
        self.n_features: int | None = len(self._features)
        for what, part in (("labels", opened.y), ("weights", opened.weight)):
            if part is not None and part.shape[:1] != shape[:1]:
                of = opened.y_name if what == "labels" else place
                raise InputError(
                    f"{of} has {part.shape[0] if part.shape else 'no'} {what} and {place} has "
                    f"{shape[0]} rows; there must be one for each row."
                )
            if part is not None and part.shape not in ((shape[0],), (shape[0], 1)):
                raise InputError(f"{opened.y_name}: {what} of shape {part.shape}, not one per row.")

    def progress(self) -> tuple[int, int]:
        """Bytes of the rows read so far, and of all rows."""
        return self._size * self._done // self.n_rows, self._size

    def blocks(self, skip_rows: int = 0) -> Iterator[Block]:
        """Yield the rows from number `skip_rows` on; see `Reader.blocks`."""
        matrix, self._opened = self._opened or self._open(), None
        try:
            yield from self._blocks(matrix, skip_rows)
        finally:
            for file in matrix.files:
                file.close()

    def _blocks(self, matrix: Matrix, skip_rows: int) -> Iterator[Block]:
        beside = sum(part.row_bytes for part in (matrix.y, matrix.weight) if part is not None)
        step = max(PIECE_BYTES * self.n_rows // max(self._size + beside * self.n_rows, 1), 1)
        for start in range(skip_rows, self.n_rows, step):
            stop = min(start + step, self.n_rows)
            X = matrix.X.read(start, stop)
            where = _places(matrix.name, start)
            y = weight = None
            if not issparse(X):
                X = _numeric(X.reshape(stop - start, -1), where)
            if self._label is not None:
                y = X[:, self._label]
            elif matrix.y is not None and not self._without_labels:
                y = _flat(matrix.y.read(start, stop))
            if self._weight is not None:
                weight = X[:, self._weight].astype(np.float64)
            elif matrix.weight is not None:
                weight = _numeric(_flat(matrix.weight.read(start, stop)), where).astype(np.float64)
            if len(self._features) < X.shape[1]:
                X = X[:, self._features]
            self._done = stop
            yield Block(X, y, weight, start, where)


def _position(place: str, width: int, column: Any) -> int:
    try:
        at = int(column)
    except ValueError:
        raise InputError(
            f"{place}: its columns have no names; give {column!r} by number."
        ) from None
    if not -width <= at < width:
        raise InputError(f"{place} has no column {at}: its columns are 0 to {width - 1}.")
    return at % width


def _places(name: str, first: int) -> Callable[[int], str]:
    return lambda i: f"{name}, row {first + i}" if name else f"row {first + i}"


def _flat(values: Any) -> NDArray:
    return np.asarray(values).reshape(-1)


def _numeric(values: NDArray, where: Callable[[int], str]) -> NDArray:
    """Return float32 or float64 values; whole numbers of 8 or 16 bits fit float32 exactly."""
    values = np.asarray(values)
    if values.dtype in (np.float32, np.float64):
        return values
    if values.dtype.kind == "b" or (values.dtype.kind in "iuf" and values.dtype.itemsize <= 2):
        return values.astype(np.float32)
    try:
        return values.astype(np.float64)
    except (TypeError, ValueError):
        pass
    flat = values.reshape(len(values), -1)
    for i, row in enumerate(flat):
        try:
            row.astype(np.float64)
        except (TypeError, ValueError):
            raise InputError(f"{where(i)}: there is a value in it that is no number.") from None
    raise InputError(f"{where(0)}: values of type {values.dtype} are no numbers.")
