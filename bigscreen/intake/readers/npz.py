"""Reader of NPZ files: arrays X and y, or a sparse matrix of `scipy.sparse.save_npz`."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from bigscreen.errors import InputError, NoLabels, in_units
from bigscreen.fleet.memory import allowed_memory
from bigscreen.intake.readers.binary import (
    X_NAMES,
    Y_NAMES,
    ArrayRows,
    Column,
    Labels,
    MatrixReader,
    OpenMatrix,
    RowSource,
    StreamRows,
    as_floats,
    open_npy_file,
    open_npy_rows,
)


def open_npz(
    path: Path,
    label: Labels,
    weight: Column | None,
    labels_file: str | Path | None = None,
    memory: int | None = None,
) -> MatrixReader:
    """Open an NPZ file with an array X, or a CSR matrix of `scipy.sparse.save_npz`.

    The labels are in `labels_file` (NPY), in the column `label`, or in an array y of the file.

    Parameters
    ----------
    path : Path
    label, weight : as for `MatrixReader`
    labels_file : str, Path or None
    memory : int, optional
        Bytes of memory that reading may use.

    Raises
    ------
    InputError
        If the file is damaged, its arrays have other names, or a sparse matrix has no labels.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            keys = [name.removesuffix(".npy") for name in archive.namelist()]
    except zipfile.BadZipFile as error:
        raise InputError(f"{path} is damaged ({error}): fetch the file again.") from None
    sparse = {"format", "shape", "data"} <= {*keys}
    if sparse and label is None and labels_file is None:
        raise NoLabels(
            f"{path} holds a sparse matrix and no labels: give a labels file (.npy), or label none."
        )
    x_key = "data" if sparse else _choose_array(path, keys, X_NAMES, "X")
    beside = label is None and labels_file is None
    y_key = _choose_array(path, keys, Y_NAMES, "y") if beside else None

    def matrix() -> OpenMatrix:
        """Open the file, and return its arrays as features and labels, at their first row."""
        archive = zipfile.ZipFile(path)
        files: list[Any] = [archive]

        def rows(key: str) -> StreamRows | ArrayRows:
            """Return the rows of the array called `key` in the file."""
            info = archive.getinfo(key + ".npy")
            stream: Any = io.BufferedReader(archive.open(info))
            return open_npy_rows(stream, path, info.file_size, allowed_memory(memory))

        size = archive.getinfo(x_key + ".npy").file_size
        y, y_name = None if y_key is None else rows(y_key), path
        if labels_file is not None and label is None:
            y, y_name = open_npy_file(Path(labels_file), files, memory), Path(labels_file)
        X: RowSource = (
            rows(x_key) if not sparse else _open_csr_rows(path, keys, rows, allowed_memory(memory))
        )
        return OpenMatrix(X, y, None, str(path), str(y_name), sparse, size, files)

    return MatrixReader(matrix, label, weight)


class CsrRows:
    """Rows of a CSR matrix whose arrays are streams, which can only be read forwards.

    Parameters
    ----------
    path : Path
        Path of the file, for messages.
    shape : (int, int)
        Rows and columns of the matrix.
    indptr : int64 array (rows + 1,)
    indices, data : RowSource
        Column number and value of each entry.

    Raises
    ------
    InputError
        If the arrays do not fit together.
    """

    def __init__(
        self,
        path: Path,
        shape: tuple[int, int],
        indptr: NDArray[np.int64],
        indices: RowSource,
        data: RowSource,
    ) -> None:
        """Check that indptr, indices and data are those of a CSR matrix; no entry is read."""
        self.shape: tuple[int, ...] = shape
        self._path, self._indptr = path, indptr
        self._indices, self._data = indices, data
        ends = indptr[-1:].tolist()
        falls = len(indptr) and (indptr[0] != 0 or (np.diff(indptr) < 0).any())
        if len(indptr) != shape[0] + 1 or falls or not ends == [*indices.shape] == [*data.shape]:
            raise InputError(f"{path} is damaged: its arrays are not those of a CSR matrix.")
        # Average bytes of a row.
        self.row_bytes = 16 * ends[0] // max(shape[0], 1) + 8

    def read(self, start: int, stop: int) -> csr_array:
        """Return rows start..stop-1; `start` must not be below the last `stop`."""
        first, last = int(self._indptr[start]), int(self._indptr[stop])
        indices = np.asarray(self._indices.read(first, last))
        if len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < self.shape[1]:
            raise InputError(
                f"{self._path}, rows {start} to {stop - 1}: the file is damaged, as a column is "
                f"outside 0 to {self.shape[1] - 1}."
            )
        data = as_floats(self._data.read(first, last), lambda _: f"{self._path}, row {start}")
        indptr = self._indptr[start : stop + 1] - first
        return csr_array((data, indices, indptr), shape=(stop - start, self.shape[1]))


def _open_csr_rows(
    path: Path, keys: Sequence[str], rows: Callable[[str], RowSource], memory: int
) -> CsrRows:
    """Return the rows of a CSR matrix that `scipy.sparse.save_npz` has written.

    Parameters
    ----------
    path : Path
        Path of the file, for errors.
    keys : sequence of str
        Names of the arrays in the file.
    rows : callable
        ``rows(key)`` opens the array of that name.
    memory : int
        Bytes allowed; a quarter of it may hold indptr.

    Raises
    ------
    InputError
        If it is not in CSR format, is damaged, or its indptr is too large for memory.
    """
    kind = rows("format")
    name = kind.read(0, 1).tolist() if not kind.shape and kind.row_bytes < 64 else [None]
    text = name[0].decode(errors="replace") if isinstance(name[0], bytes) else name[0]
    if text != "csr" or not {"indices", "indptr"} <= {*keys}:
        raise InputError(
            f"{path} holds a sparse matrix in the format {text!r}: save it by rows, as "
            "scipy.sparse.save_npz(path, X.tocsr())."
        )
    shape, indptr = rows("shape"), rows("indptr")
    if shape.shape != (2,) or len(indptr.shape) != 1:
        raise InputError(f"{path} is damaged: its arrays are not those of a CSR matrix.")
    n, d = (int(size) for size in shape.read(0, 2).tolist())
    if not 0 < d <= np.iinfo(np.int32).max:
        raise InputError(f"{path}: a matrix of {d} columns cannot be read.")
    size = 8 * indptr.shape[0]
    if size > memory // 4:
        raise InputError(
            f"{path}: where its {n} rows begin takes {in_units(size)}, and {in_units(memory)} of "
            "memory are allowed: save it in several files, or allow more memory."
        )
    begin = np.asarray(indptr.read(0, indptr.shape[0])).astype(np.int64)
    return CsrRows(path, (n, d), begin, rows("indices"), rows("data"))


def _choose_array(path: Path, keys: Sequence[str], usual: Sequence[str], what: str) -> str:
    """Return the only array of an NPZ file that has a usual name.

    Parameters
    ----------
    path : Path
        Path of the file, for errors.
    keys : sequence of str
        Names of the arrays in the file.
    usual : sequence of str
        Names that the array may have.
    what : str
        "X" or "y", for errors.

    Raises
    ------
    InputError
        If there is no such array, or more than one.
    """
    found = [key for key in keys if key in usual]
    if len(found) != 1:
        kind = InputError if found or what == "X" else NoLabels
        raise kind(
            f"{path}: {'several arrays' if found else 'no array'} could be {what} (it holds "
            f"{', '.join(keys[:20]) or 'nothing'}); name exactly one of them {what}."
        )
    return found[0]
