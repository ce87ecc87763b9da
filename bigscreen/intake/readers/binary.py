"""Readers of HDF5, NPY and IDX files: matrices that are read in slices of rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, issparse

from bigscreen.data.limits import check_regular, npy_bytes, read_npy_header, read_values
from bigscreen.errors import InputError, NoLabels, NoRows, in_units, reason_of
from bigscreen.fleet.memory import allowed_memory
from bigscreen.fleet.protocol import Each
from bigscreen.intake.readers import base
from bigscreen.intake.readers.base import (
    COMPRESSION_SUFFIXES,
    Block,
    Reader,
    Source,
    name_rows,
)
from bigscreen.intake.readers.hdf5_parts import check_complete
from bigscreen.intake.tuning import TUNING

X_NAMES = ("X", "x", "data", "features")
Y_NAMES = ("y", "Y", "label", "labels", "target", "targets")
"""Usual names of the arrays of features, and of labels, in HDF5 and NPZ files."""

# Type of the values of an IDX file, by its third byte.
_IDX_TYPES = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


class StreamRows:
    """Rows of a C-ordered array in a stream, which can only be read forwards.

    Parameters
    ----------
    stream : Source or binary file
        Positioned at the array's first byte.
    path : Path
        Path of the file, for messages.
    shape : tuple of int
        Shape of the array; the first size counts rows.
    dtype : str or dtype

    Attributes
    ----------
    row_bytes : int
        Bytes of one row.
    """

    def __init__(self, stream: Any, path: Path, shape: tuple[int, ...], dtype: Any) -> None:
        """Set the array's shape and type; nothing is read.

        `stream` is at the array's first byte, and `path` names the file in errors. ``_at`` is the
        number of the row that is read next.
        """
        self.stream, self._path = stream, path
        self.shape, self._dtype = shape, np.dtype(dtype)
        self.row_bytes = math.prod(shape[1:]) * self._dtype.itemsize
        self._at = 0

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return rows start..stop-1; `start` must not be below the last `stop`."""
        missing = (start - self._at) * self.row_bytes
        while missing > 0:
            missing -= len(self._bytes(min(missing, TUNING.piece_bytes)))
        data = self._bytes((stop - start) * self.row_bytes)
        self._at = stop
        values = np.frombuffer(data, self._dtype).reshape(stop - start, *self.shape[1:])
        return values.astype(self._dtype.newbyteorder("="), copy=False)

    def _bytes(self, size: int) -> bytes:
        """Return the next `size` bytes of the stream; raise InputError if it ends before."""
        data: bytes = self.stream.read(size)
        if len(data) < size:
            raise InputError(
                f"{self._path} ends too early: it promises {self.shape[0]} rows; fetch it again."
            )
        return data


class ArrayRows:
    """Rows of an array that can be sliced: an HDF5 dataset, or an array in memory.

    Attributes
    ----------
    shape : tuple of int
        Shape of the array; the first size counts rows.
    row_bytes : int
        Bytes of one row.
    """

    def __init__(self, array: Any) -> None:
        """Keep the array, which has a shape and a dtype, and compute the bytes of a row."""
        self._array = array
        self.shape = tuple(int(n) for n in array.shape)
        self.row_bytes = math.prod(self.shape[1:]) * array.dtype.itemsize

    def read(self, start: int, stop: int) -> Any:
        """Return rows start..stop-1."""
        return self._array[start:stop]


def open_npy_rows(stream: BinaryIO, path: Path, size: int, memory: int) -> StreamRows | ArrayRows:
    """Return the rows of the NPY array at the start of `stream`.

    Parameters
    ----------
    stream : binary file
    path : Path
        Path of the file, for errors.
    size : int
        Bytes of the stream.
    memory : int
        Bytes allowed. Up to half of it holds an array in Fortran order, which is read whole.

    Raises
    ------
    InputError
        If it is not an NPY array, holds Python objects, is too short, or is too large for memory.
    """
    try:
        header = read_npy_header(stream)
    except ValueError as error:
        raise InputError(f"{path} is not an array of numbers in NPY format ({error}).") from None
    declared = npy_bytes(header)
    if declared > size:
        raise InputError(
            f"{path} ends too early: its header promises the shape {header[0]}, "
            f"{in_units(declared)}, and it holds {in_units(size)}; fetch it again."
        )
    shape, by_columns, dtype = header
    if not by_columns or len(shape) < 2:
        return StreamRows(stream, path, shape, dtype)
    # Fortran order: no row is complete before the last column, so the whole array is held.
    if declared > memory // 2:
        raise InputError(
            f"{path} is stored column after column (Fortran order), so its {in_units(declared)} "
            f"must be held whole, and {in_units(memory)} of memory are allowed; save it in C "
            "order, or allow more memory."
        )
    try:
        return ArrayRows(read_values(stream, header))
    except EOFError:
        raise InputError(f"{path} ends too early; fetch it again.") from None


def open_npy(
    path: Path,
    label: Labels,
    weight: Column | None,
    labels_file: str | Path | None,
    memory: int | None = None,
) -> MatrixReader:
    """Open an NPY file with labels in `labels_file` (NPY) or in the column `label`.

    Parameters
    ----------
    path : Path
    label, weight : as for `MatrixReader`
        A given `label` takes precedence over `labels_file`.
    labels_file : str, Path or None
    memory : int, optional
        Bytes of memory that reading may use.

    Raises
    ------
    InputError
        If neither `label` nor `labels_file` is given, or a file cannot be read.
    """
    if label is None and labels_file is None:
        raise NoLabels(
            f"{path} says nothing of labels: give a labels file (.npy), or the position of the "
            "label's column, or label none."
        )

    def matrix() -> OpenMatrix:
        """Open the files at their first row, and return them as features and labels."""
        files: list[Any] = []
        X, y = open_npy_file(path, files, memory), None
        if labels_file is not None and label is None:
            y = open_npy_file(Path(labels_file), files, memory)
        return OpenMatrix(
            X, y, None, str(path), str(labels_file), False, path.stat().st_size, files
        )

    return MatrixReader(matrix, label, weight)


def open_npy_file(file: Path, files: list[Any], memory: int | None) -> StreamRows | ArrayRows:
    """Open an NPY file, append the open file to the list `files`, and return its rows.

    The caller closes the files. `memory` is the number of bytes that reading may use (None:
    default).
    """
    check_regular(file)
    try:
        files.append(open(file, "rb"))  # noqa: SIM115 (the reader of the rows closes it)
    except OSError as error:
        raise InputError(f"{file} cannot be opened: {reason_of(error)}.") from None
    return open_npy_rows(files[-1], file, file.stat().st_size, allowed_memory(memory))


def open_hdf5(
    path: Path,
    label: Labels,
    weight: Column | None,
    h5_x: str | None,
    h5_y: str | None,
    memory: int | None = None,
    max_chunk_bytes: int = 256 << 20,
) -> MatrixReader:
    """Open an HDF5 file.

    Parameters
    ----------
    path : Path
    label, weight : as for `MatrixReader`
    h5_x, h5_y : str or None
        Paths of the datasets within the file. Default: the only dataset with a usual name (X,
        data, features; y, label, target), or else the only dataset of a suitable shape.
    memory : int, optional
        Bytes of memory that reading may use.
    max_chunk_bytes : int
        Refuse datasets with larger chunks: reading one row needs a whole chunk in memory.
    """
    import h5py

    shapes: dict[str, tuple[int, ...]] = {}
    chunks: dict[str, int] = {}

    def note(name: str, item: Any) -> None:
        """Record the shape, and the bytes of a chunk, of the object `item` if it is a dataset."""
        if isinstance(item, h5py.Dataset) and item.shape is not None:
            shapes[name] = item.shape
            chunks[name] = math.prod(item.chunks or (0,)) * item.dtype.itemsize

    try:
        with h5py.File(path, "r") as file:
            file.visititems(note)
    except OSError as error:
        raise InputError(f"{path} is not a readable HDF5 file ({reason_of(error)}).") from None
    x_name = _choose_dataset(path, shapes, h5_x, X_NAMES, "X", lambda shape: len(shape) > 1)
    y_name = None
    if label is None:
        rows = shapes[x_name][0] if shapes[x_name] else 0
        y_name = _choose_dataset(
            path, shapes, h5_y, Y_NAMES, "y", lambda shape: shape in ((rows,), (rows, 1))
        )

    most = min(max_chunk_bytes, allowed_memory(memory) // 4)
    for name in (x_name, y_name):
        if name is not None and chunks[name] > most:
            raise InputError(
                f"{path}: the dataset {name} is stored in chunks of {in_units(chunks[name])}, each "
                f"of which must be held whole to read one row, and at most {in_units(most)} are "
                "taken: store it in smaller chunks (h5repack does)."
            )
    # The cache holds two chunks, so that consecutive rows decompress no chunk twice.
    largest = max(1 << 20, chunks[x_name], chunks.get(y_name or "", 0))

    def matrix() -> OpenMatrix:
        """Open the file, and return its datasets as features and labels.

        The datasets are checked to be complete.
        """
        file = h5py.File(path, "r", rdcc_nbytes=2 * largest)
        try:
            for name in filter(None, (x_name, y_name)):
                check_complete(path, file[name])
        except BaseException:
            file.close()
            raise
        X = file[x_name]
        y = None if y_name is None else ArrayRows(file[y_name])
        place, y_place = f"{path}:{x_name}", f"{path}:{y_name}"
        return OpenMatrix(ArrayRows(X), y, None, place, y_place, False, int(X.nbytes), [file])

    return MatrixReader(matrix, label, weight)


def _choose_dataset(
    path: Path,
    shapes: dict[str, tuple[int, ...]],
    asked: str | None,
    usual: Sequence[str],
    what: str,
    fits: Any,
) -> str:
    """Return the path, within an HDF5 file, of the dataset of features or labels.

    Parameters
    ----------
    path : Path
        Path of the file, for errors.
    shapes : dict of str to tuple of int
        Shape of each dataset in the file.
    asked : str or None
        The path that the user gave.
    usual : sequence of str
        Without `asked`: names that are tried.
    what : str
        "X" or "y", for errors.
    fits : callable
        Without a usual name: whether a shape is suitable.

    Raises
    ------
    InputError
        If there is not exactly one such dataset.
    """
    if asked is not None:
        if asked.strip("/") not in shapes:
            raise InputError(f"{path} has no dataset {asked}: {_list_datasets(shapes)}.")
        return asked.strip("/")
    named = [name for name in shapes if name.rsplit("/", 1)[-1] in usual]
    found = named or [name for name, shape in shapes.items() if fits(shape)]
    if len(found) != 1:
        kind = InputError if found or what == "X" else NoLabels
        raise kind(
            f"{path}: which dataset is {what} is not clear; say it by its path: "
            f"{_list_datasets(shapes)}."
        )
    return found[0]


def _list_datasets(shapes: dict[str, tuple[int, ...]]) -> str:
    """Return a text "it holds ..." with the paths and shapes of the first 20 datasets."""
    return "it holds " + (", ".join(f"{n} {s}" for n, s in list(shapes.items())[:20]) or "none")


def open_idx_rows(path: Path) -> StreamRows:
    """Return the rows of an IDX file (the format of MNIST), plain or compressed.

    Raises
    ------
    InputError
        If it is not an IDX file, or too short.
    """
    source = Source(path)
    head = source.read(4)
    if len(head) < 4 or head[:2] != b"\0\0" or head[2] not in _IDX_TYPES or head[3] < 1:
        raise InputError(f"{path} is not an IDX file: its first bytes are {head!r}.")
    sizes = source.read(4 * head[3])
    shape = tuple(int(n) for n in np.frombuffer(sizes, ">u4")) if len(sizes) == 4 * head[3] else ()
    if not shape or min(shape) < 1:
        raise InputError(f"{path} is a damaged IDX file: its sizes are {shape}.")
    rows = StreamRows(source, path, shape, _IDX_TYPES[head[2]])
    if not source.compressed and rows.row_bytes * shape[0] > source.total:
        raise InputError(
            f"{path} ends too early: it promises the shape {shape} and has {source.total} bytes; "
            "fetch it again."
        )
    return rows


def find_idx_labels(path: Path) -> Path | None:
    """Return the labels file whose name corresponds to an images file, or None if there is none."""
    name = path.name.replace("images", "labels").replace("idx3", "idx1")
    stem = name
    for suffix in COMPRESSION_SUFFIXES:
        stem = stem.removesuffix(suffix)
    beside = (path.with_name(n) for n in (name, stem, *(stem + s for s in COMPRESSION_SUFFIXES)))
    return next((file for file in beside if file != path and file.exists()), None)


def open_idx(path: Path, label: Labels, labels_file: str | Path | None) -> MatrixReader:
    """Open an IDX file of images, one row each.

    Parameters
    ----------
    path : Path
    label : str, int, False or None
        As for `MatrixReader`; None: labels are in another file.
    labels_file : str, Path or None
        IDX file of the labels. Default: the file of corresponding name in the same folder.

    Raises
    ------
    InputError
        If `label` is None and there is no labels file.
    """
    labels = None
    if label is None:
        labels = Path(labels_file) if labels_file else find_idx_labels(path)
        if labels is None:
            raise NoLabels(
                f"{path} has no labels file next to it: name one (`labels_file`), or say label "
                "none."
            )

    def matrix() -> OpenMatrix:
        """Open the files at their first row, and return them as features and labels."""
        X = open_idx_rows(path)
        y = None if labels is None else open_idx_rows(labels)
        size = X.shape[0] * X.row_bytes
        files = [rows.stream for rows in (X, y) if rows is not None]
        return OpenMatrix(X, y, None, str(path), str(labels), False, size, files)

    return MatrixReader(matrix, label)


Column = str | int
"""Position of a column, as a number or as text."""

Labels = Column | Sequence[Column] | Literal[False] | None
"""The option label of a matrix: see `MatrixReader`."""


class RowSource(Protocol):
    """An array whose rows can be read in slices, in ascending order.

    Attributes
    ----------
    shape : tuple of int
        Shape of the array; the first size counts rows.
    row_bytes : int
        Bytes of one row (on average, if rows are sparse).
    """

    shape: tuple[int, ...]
    row_bytes: int

    def read(self, start: int, stop: int) -> NDArray[Any] | csr_array:
        """Return rows start..stop-1."""
        ...


@dataclass
class OpenMatrix:
    """Open matrix of a `MatrixReader`: rows, labels, weights, and the files to close.

    Attributes
    ----------
    X : RowSource
        Features, of shape (n, d) or (n, a, b, ...), which is flattened to (n, d).
    y : RowSource or None
        Labels, (n,) or (n, 1), or several targets of each row, (n, targets).
    weight : RowSource or None
        Sample weights, (n,).
    name : str
        Name of the source, for messages; "" for an array in memory.
    y_name : str
        Name of the source of the labels, for messages.
    sparse : bool
        Whether `X` yields csr_array.
    size : int
        Bytes of all rows.
    files : list
        Files to close after the last row.
    """

    X: RowSource
    y: RowSource | None
    weight: RowSource | None
    name: str
    y_name: str
    sparse: bool
    size: int
    files: list[Any] = field(default_factory=list)


class MatrixReader(Reader):
    """Reads a matrix in slices of rows.

    Parameters
    ----------
    matrix : callable
        Opens the matrix anew for each pass.
    label : str, int, sequence of these, False or None
        Position of the label column in X, or positions of several targets; False: no labels; None:
        labels are in `y`.
    weight : str or int, optional
        Position of the weight column in X.

    Raises
    ------
    InputError
        If the shapes do not match.
    """

    n_rows: int

    def __init__(
        self,
        matrix: Callable[[], OpenMatrix],
        label: Labels = None,
        weight: Column | None = None,
    ) -> None:
        """Open the matrix, and check its shapes and the positions of label and weight.

        `matrix` opens it anew for each pass; `label` (one or several) and `weight` are positions of
        columns of X, and a label of False means no labels, of None labels outside X.
        """
        super().__init__()
        self._open, opened = matrix, matrix()
        self._opened: OpenMatrix | None = opened
        shape = opened.X.shape
        place = opened.name or "the array"
        if len(shape) < 2 or shape[0] < 1:
            kind = NoRows if shape[:1] == (0,) else InputError
            raise kind(f"{place}: X has the shape {shape}; it needs rows and columns.")
        self.sparse = opened.sparse
        self._size, self._done = opened.size, 0
        self.n_rows = shape[0]
        width = math.prod(shape[1:])
        for part in (opened.X, opened.y, opened.weight):
            if part is not None and opened.name and part.row_bytes > base.MAX_RECORD_BYTES:
                raise InputError(
                    f"{place}: one row of the shape {part.shape} takes {in_units(part.row_bytes)}, "
                    f"and at most {in_units(base.MAX_RECORD_BYTES)} are taken; check its shape."
                )
        given: Any = [] if label is None or label is False else label
        given = [given] if isinstance(given, (str, int)) else [*given]
        self._labels = [_parse_position(place, width, column) for column in given]
        self.targets = [*self._labels] if len(given) > 1 else []
        self._weight = None if weight is None else _parse_position(place, width, weight)
        self._without_labels = label is False
        within = [c for c in (*self._labels, self._weight) if c is not None]
        if within and self.sparse:
            raise InputError(
                f"{place}: labels and weights of sparse rows must be arrays of their own."
            )
        if len(set(within)) < len(within):
            twice = next(c for c in within if within.count(c) > 1)
            raise InputError(f"{place}: column {twice} cannot be two labels, or label and weight.")
        self._features = np.delete(np.arange(width), within)
        self.skip_all_but(self._features.tolist() if within else [])
        self.n_features = len(self._features)
        for what, part in (("labels", opened.y), ("weights", opened.weight)):
            if part is not None and part.shape[:1] != shape[:1]:
                of = opened.y_name if what == "labels" else place
                raise InputError(
                    f"{of} has {part.shape[0] if part.shape else 'no'} {what} and {place} has "
                    f"{shape[0]} rows; there must be one for each row."
                )
            flat = ((shape[0],), (shape[0], 1))
            several = part is opened.y and part is not None and len(part.shape) == 2
            if part is not None and part.shape not in flat and not (several and part.shape[1]):
                of = opened.y_name if what == "labels" else place
                raise InputError(f"{of}: {what} of shape {part.shape}, not one per row.")

    def progress(self) -> tuple[int, int]:
        """Return the bytes of the rows read so far, and of all rows."""
        return self._size * self._done // self.n_rows, self._size

    def blocks(self, skip_rows: int = 0, each: Each = map) -> Iterator[Block]:
        """Yield the rows from number `skip_rows` on, in blocks, and close the files at the end.

        `each` is not used, as nothing is parsed.
        """
        matrix, self._opened = self._opened or self._open(), None
        try:
            yield from self._blocks(matrix, skip_rows)
        finally:
            for file in matrix.files:
                file.close()

    def _blocks(self, matrix: OpenMatrix, skip_rows: int) -> Iterator[Block]:
        """Yield the rows of an open matrix from number `skip_rows` on, `piece_bytes` at a time."""
        beside = sum(part.row_bytes for part in (matrix.y, matrix.weight) if part is not None)
        size = max(self._size + beside * self.n_rows, 1)
        step = max(self.piece_bytes * self.n_rows // size, 1)
        for start in range(skip_rows, self.n_rows, step):
            stop = min(start + step, self.n_rows)
            X = matrix.X.read(start, stop)
            where = name_rows(matrix.name, start)
            y = weight = None
            if not issparse(X):
                X = as_floats(X.reshape(stop - start, -1), where)
            if self._labels:
                y = X[:, self._labels] if self.targets else X[:, self._labels[0]]
            elif matrix.y is not None and not self._without_labels:
                y = np.asarray(matrix.y.read(start, stop))
                y = y if matrix.y.shape[1:] > (1,) else _flatten(y)
            if self._weight is not None:
                weight = X[:, self._weight].astype(np.float64)
            elif matrix.weight is not None:
                weight = as_floats(_flatten(matrix.weight.read(start, stop)), where).astype(
                    np.float64
                )
            if len(self._features) < X.shape[1]:
                X = X[:, self._features]
            self._done = stop
            yield Block(X, y, weight, start, where)


def _parse_position(place: str, width: int, column: Any) -> int:
    """Return the position of a column, from 0, given as a number (negative: from the last).

    Parameters
    ----------
    place : str
        Name of the source, for errors.
    width : int
        Number of columns.
    column : int or str

    Raises
    ------
    InputError
        If it is not a number, or there is no such column.
    """
    try:
        at = int(column)
    except ValueError:
        raise InputError(
            f"{place}: its columns have no names; give {column!r} by number."
        ) from None
    if not -width <= at < width:
        raise InputError(f"{place} has no column {at}: its columns are 0 to {width - 1}.")
    return at % width


def _flatten(values: Any) -> NDArray[Any]:
    """Return values as an array with one dimension."""
    return np.asarray(values).reshape(-1)


def as_floats(values: NDArray[Any], where: Callable[[int], str]) -> NDArray[Any]:
    """Return values as float32 if it holds their type exactly (8 and 16 bits), else as float64.

    ``where(i)`` names the place of the i-th row in an error.

    Raises
    ------
    InputError
        If a value is not a number.
    """
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
