"""Turn an estimator's input into rows: arrays, Dask arrays, data sets and paths of data sets."""

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

from bigscreen.data.dask_rows import is_chunked
from bigscreen.data.dataset import Dataset
from bigscreen.data.layout import Layout
from bigscreen.data.memory import MemoryDataset
from bigscreen.data.preparation import Preparation
from bigscreen.data.rows import Rows
from bigscreen.data.targets import as_target_columns, as_targets, check_weights, fits_float32
from bigscreen.data.writer import DatasetWriter
from bigscreen.data.zarr_stores import is_zarr_store
from bigscreen.errors import InputError
from bigscreen.fleet.graphs import run_graph
from bigscreen.intake.readers.python import open_data
from bigscreen.intake.settle import Ingested


def is_store(X: Any) -> bool:
    """Whether X is a data set, what made or names one, or a group or store of zarr that holds one.

    A data set is made by `ingest` and named by a path.
    """
    return isinstance(X, (Rows, Ingested, str, os.PathLike)) or is_zarr_store(X)


def open_store(X: Any) -> Rows:
    """Return the data set X, or open the data set that X names (`is_store`)."""
    if isinstance(X, Ingested):
        return X.store
    return X if isinstance(X, Rows) else Dataset.open(X)


def blocks(X: Any) -> Iterator[Any]:
    """Yield the rows of an array, a sparse array or a Dask array in blocks of a few megabytes."""
    return (block.X for block in open_data(X).blocks())


def plain_labels(classes: NDArray[Any]) -> list[Any]:
    """Convert classes to labels that a model file can hold: JSON has numbers and texts only."""
    values = classes.tolist()
    plain = all(isinstance(value, (str, int, float)) for value in values)
    return values if plain else [str(value) for value in values]


@dataclass(frozen=True)
class Given:
    """Rows that are not in a store, with their outcomes and weights.

    Attributes
    ----------
    X : ndarray, sparse array or Dask array of shape (n, d)
    y : int array of codes, float64 array of targets, (kept rows,), or None
        Outcomes of the rows that are kept.
    labels : list or None
        The label of every code, as in a data set; None if y holds targets.
    weights : float64 array (kept rows,) or None
        Weights of the rows that are kept.
    keep : bool array (n,) or None
        Mask of the rows of positive weight; None: all. A row of weight 0 must not become a
        landmark, count in a class weight or add a class, so it is left out from the start.
    square : bool
        Whether X is a precomputed kernel matrix, whose columns are left out with the rows.
    """

    X: Any
    y: NDArray[Any] | None
    labels: list[Any] | None
    weights: NDArray[np.float64] | None
    keep: NDArray[np.bool_] | None
    square: bool

    def __post_init__(self) -> None:
        """Raise InputError if no row has a weight."""
        if not self.n_kept:
            raise InputError(_NO_WEIGHT)

    @property
    def n_kept(self) -> int:
        """Number of rows that are kept."""
        return int(self.X.shape[0] if self.keep is None else np.count_nonzero(self.keep))

    def rows(self, most: float, folder: Callable[[], Path], scheduler: Any = None) -> Rows:
        """Make a data set of the rows that are kept.

        Parameters
        ----------
        most : float
            Most bytes that a Dask array may take in memory; a larger one is stored on disk in one
            pass over it. 0: store any rows, for workers that read them by path.
        folder : callable
            Creates the folder to store rows in; called only if rows are stored.
        scheduler : str, distributed.Client, Dask cluster or None
            Whose workers store a Dask array's blocks; None: where Dask computes them now.
        """
        if not is_chunked(self.X) and most > 0:
            X = self.X if self.keep is None else self._select_kept(self.X, self.keep)
            return MemoryDataset(X, self.y, self.labels, self.weights)
        try:
            return self._read_all(most, folder, scheduler, wide=False)
        except _NeedsFloat64Error:
            return self._read_all(most, folder, scheduler, wide=True)

    def _read_all(
        self, most: float, folder: Callable[[], Path], scheduler: Any, wide: bool
    ) -> Rows:
        """Read all blocks into memory, or into a store if they take more than ``most`` bytes.

        ``folder`` creates the store's folder. Rows become float64 if ``wide``. The workers of
        ``scheduler`` store a Dask array's blocks (None: where Dask computes them now).

        Raises
        ------
        _NeedsFloat64Error
            If a later block needs float64, but the first did not. Never if ``wide``.
        """
        # No row takes more than 12 bytes for each column: float64, and the index of a nonzero.
        if is_chunked(self.X) and 12 * self.X.shape[1] * self.n_kept > most:
            blocks = KeptBlocks.of(self.X, self.keep, self.square)
            is_sparse, is_wide, row_bytes = blocks.describe(scheduler)
            is_wide |= wide
            if row_bytes * self.n_kept > most:
                path = folder() / "rows"
                writer = self._writer(path, is_sparse, is_wide)
                blocks.store(writer, self.y, self.weights, path.parent, scheduler)
                return writer.finish()
        parts = self._blocks(wide)
        first = next(parts)
        parts, n = chain([first], parts), self.n_kept
        if most == 0:
            writer = self._writer(
                folder() / "rows", sparse.issparse(first), first.dtype == np.float64
            )
            for k, X in enumerate(_regrid(parts, writer.layout.chunk_rows)):
                rows = slice(*writer.chunk(k))
                y, weights = (v if v is None else v[rows] for v in (self.y, self.weights))
                writer.write(k, X, y, weights)
            return writer.finish()
        if sparse.issparse(first):
            return MemoryDataset(_stack(list(parts)), self.y, self.labels, self.weights)
        X, at = np.empty((n, first.shape[1]), first.dtype), 0
        for part in parts:
            X[at : at + len(part)] = part
            at += len(part)
        return MemoryDataset(X, self.y, self.labels, self.weights)

    def _select_kept(self, X: Any, rows: NDArray[np.bool_]) -> Any:
        """Select a block's rows by a mask and, of a kernel matrix, the columns of the kept rows."""
        X = X[rows]
        return X[:, self.keep] if self.square else X

    def _writer(self, path: Path, is_sparse: bool, wide: bool) -> DatasetWriter:
        """Begin a store of the kept rows at ``path``.

        ``is_sparse``: rows are CSR. ``wide``: features are stored as float64.
        """
        return DatasetWriter(
            path,
            Layout.of(
                n_rows=self.n_kept,
                n_features=self.X.shape[1],
                sparse=is_sparse,
                labels=self.labels,
                weights=self.weights is not None,
                wide=wide,
                n_targets=1 if self.y is None or self.y.ndim == 1 else self.y.shape[1],
            ),
            Preparation.none(),
        )

    def _blocks(self, wide: bool) -> Iterator[Any]:
        """Yield the rows that are kept, block by block, all with the same float type.

        Raises
        ------
        _NeedsFloat64Error
            If float32 can represent the first block exactly, but not a later one. Never if
            ``wide``.
        """
        dtype: type | None = np.float64 if wide else None
        for block in open_data(self.X).blocks():
            a, X = block.first_row, block.X
            if self.keep is not None:
                X = self._select_kept(X, self.keep[a : a + X.shape[0]])
            if not X.shape[0]:
                continue
            if dtype is None:
                dtype = np.float32 if fits_float32(X) else np.float64
            elif dtype is np.float32 and not fits_float32(X):
                raise _NeedsFloat64Error
            yield X.astype(dtype, copy=False)


class _NeedsFloat64Error(Exception):
    """A block needs float64, but the blocks before it were already read as float32."""


@dataclass(frozen=True)
class KeptBlocks:
    """The rows of a Dask array that are kept, read by tasks where its blocks lie.

    Attributes
    ----------
    blocks : list of Delayed
        The blocks of rows, with all columns.
    starts : int64 array (blocks + 1,)
        The number of the first row of each block, and the number of rows.
    rows : int64 array (kept rows,)
        The numbers of the rows that are kept, ascending.
    square : bool
        Whether of the columns, too, only those with these numbers are kept.
    """

    blocks: list[Any]
    starts: NDArray[np.int64]
    rows: NDArray[np.int64]
    square: bool

    @classmethod
    def of(cls, X: Any, keep: NDArray[np.bool_] | None, square: bool) -> KeptBlocks:
        """Split the Dask array X (n, d) into blocks of rows; ``keep`` is a mask (n,), None: all."""
        X = X.rechunk({1: -1}) if X.numblocks[1] > 1 else X
        starts = np.cumsum([0, *X.chunks[0]], dtype=np.int64)
        rows = np.arange(starts[-1]) if keep is None else np.flatnonzero(keep)
        return cls(list(X.to_delayed().ravel()), starts, rows, square)

    def describe(self, scheduler: Any) -> tuple[bool, bool, float]:
        """Compute what the first block with kept rows is like, on the workers of ``scheduler``.

        None: where Dask computes now.

        Returns
        -------
        bool
            Whether it is sparse.
        bool
            Whether it needs float64.
        float
            The bytes of one of its rows in memory.
        """
        stop = min(len(self.rows), int(self.starts[1:][self.starts[1:] > self.rows[0]][0]))
        call = (*self._parts(0, int(np.searchsorted(self.rows, stop))), None)
        (found,) = run_graph(_describe, [call], scheduler)
        described: tuple[bool, bool, float] = found
        return described

    def store(
        self,
        writer: DatasetWriter,
        y: NDArray[Any] | None,
        weights: NDArray[np.float64] | None,
        folder: Path,
        scheduler: Any,
    ) -> None:
        """Write all kept rows, chunk by chunk of the store, on the workers of ``scheduler``.

        None: where Dask computes now. Outcomes y and weights go to the workers through files in
        ``folder``, which they must see.

        Raises
        ------
        _NeedsFloat64Error
            If a block needs float64, but the store has float32.
        InputError
            If a worker does not see ``folder``, or a row cannot be stored.
        """
        folder.mkdir(parents=True, exist_ok=True)
        if y is not None:
            np.save(folder / "y.npy", y)
        if weights is not None:
            np.save(folder / "weights.npy", weights)
        columns = self.rows if self.square else None
        calls = [
            (*self._parts(*writer.chunk(k)), columns, writer, k, str(folder))
            for k in range(writer.n_chunks)
        ]
        if not all(run_graph(_write_chunk, calls, scheduler)):
            raise _NeedsFloat64Error

    def _parts(self, start: int, stop: int) -> tuple[list[Any], list[NDArray[np.int64]]]:
        """Return the blocks that hold kept rows ``start`` to ``stop``, and which rows of each."""
        rows = self.rows[start:stop]
        first = int(np.searchsorted(self.starts, rows[0], side="right")) - 1
        last = int(np.searchsorted(self.starts, rows[-1], side="right"))
        cuts = np.searchsorted(rows, self.starts[first + 1 : last])
        own = np.split(rows, cuts)
        local = [r - start for r, start in zip(own, self.starts[first:last], strict=True)]
        return self.blocks[first:last], local


def _gather(
    blocks: list[Any], rows: list[NDArray[np.int64]], columns: NDArray[np.int64] | None
) -> Any:
    """Stack rows of blocks, (rows, d), dense or CSR; ``columns`` are kept, or all if it is None."""
    plain = (sparse.csr_array(b) if sparse.issparse(b) else np.asarray(b) for b in blocks)
    X = _stack([block[own] for block, own in zip(plain, rows, strict=True)])
    return X if columns is None else X[:, columns]


def _describe(
    blocks: list[Any], rows: list[NDArray[np.int64]], columns: None
) -> tuple[bool, bool, float]:
    """Return whether rows are sparse, whether they need float64, and a row's bytes in memory.

    ``blocks`` are arrays, and ``rows`` are the numbers of the rows to stack of each block.
    """
    X = _gather(blocks, rows, columns)
    wide, is_sparse = not fits_float32(X), sparse.issparse(X)
    size = 8 if wide else 4
    return is_sparse, wide, ((4 + size) * X.nnz if is_sparse else size * X.size) / X.shape[0]


def _write_chunk(
    blocks: list[Any],
    rows: list[NDArray[np.int64]],
    columns: NDArray[np.int64] | None,
    writer: DatasetWriter,
    k: int,
    folder: str,
) -> bool:
    """Write chunk ``k`` of a store, from rows ``rows[i]`` of each ``blocks[i]``; a Dask task.

    Returns False, and writes nothing, if the rows need float64 and the store has float32.
    ``columns`` are the kept columns (None: all). ``folder`` has the outcomes and weights of all
    rows.
    """
    if not Path(folder).is_dir():
        raise InputError(
            f"a worker does not see {folder}, where the rows are to be stored: give a folder that "
            "all machines share (`work`)"
        )
    X = _gather(blocks, rows, columns)
    if not (writer.layout.wide or fits_float32(X)):
        return False
    span = slice(*writer.chunk(k))
    files = [Path(folder) / name for name in ("y.npy", "weights.npy")]
    y, weights = (np.load(f, mmap_mode="r")[span] if f.exists() else None for f in files)
    writer.write(k, X, y, weights)
    return True


@dataclass(frozen=True)
class Labelled(Given):
    """Rows with labels, given as arrays and not in a store, without the rows of weight zero.

    Attributes
    ----------
    classes : ndarray
        The distinct labels, ascending; y holds indices into it.
    """

    classes: NDArray[Any]

    @classmethod
    def of(cls, X: Any, y: NDArray[Any], sample_weight: Any, square: bool = False) -> Labelled:
        """Encode labels as codes and leave out rows of weight zero.

        ``square``: X is a precomputed kernel matrix, whose columns are left out with the rows.

        Raises
        ------
        InputError
            If a weight is negative, fewer than two classes are left, or the lengths differ.
        """
        _check_lengths(X, y, "label")
        weights, keep = _weights(sample_weight, len(y))
        classes, codes = np.unique(y if keep is None else y[keep], return_inverse=True)
        if len(classes) < 2:
            raise InputError(_too_few_classes(classes, keep is not None))
        return cls(X, codes, plain_labels(classes), weights, keep, square, classes)


@dataclass(frozen=True)
class Targets(Given):
    """Rows with the targets of a regression, given as arrays, without the rows of weight zero."""

    @classmethod
    def of(cls, X: Any, y: Any, sample_weight: Any, square: bool = False) -> Targets:
        """Check the targets y of a regression and leave out rows of weight zero.

        ``square``: X is a precomputed kernel matrix, whose columns are left out with the rows.

        Raises
        ------
        InputError
            If y is not a finite number for each row, or several, a weight is negative, or no row is
            left.
        """
        y = np.asarray(y)
        if y.ndim not in (1, 2):
            raise InputError(f"y must have a row of targets for each row, got the shape {y.shape}")
        _check_lengths(X, y, "target")
        if y.ndim == 2:
            names = [f"column {j}" for j in range(y.shape[1])]
            targets = as_target_columns(y, len(y), names, lambda row: f"row {row} of y")
        else:
            targets = as_targets(y, len(y), lambda row: f"row {row} of y")
        missing = np.flatnonzero(np.isnan(targets).reshape(len(y), -1).any(axis=1))
        if len(missing):
            raise InputError(
                f"row {missing[0]} of y: the target is missing (nan); fill it in or leave out that "
                "row"
            )
        weights, keep = _weights(sample_weight, len(y))
        return cls(X, targets if keep is None else targets[keep], None, weights, keep, square)


@dataclass(frozen=True)
class Unlabelled(Given):
    """Rows without labels or targets, given as arrays, without the rows of weight zero."""

    @classmethod
    def of(cls, X: Any, sample_weight: Any = None, square: bool = False) -> Unlabelled:
        """Leave out rows of weight zero.

        ``square``: X is a precomputed kernel matrix, whose columns are left out with the rows.

        Raises
        ------
        InputError
            If a weight is negative, the number of weights is wrong, or no row is left.
        """
        if X.shape[0] != X.shape[0]:  # NaN: a Dask array of unknown length
            raise InputError(_UNKNOWN_ROWS)
        weights, keep = _weights(sample_weight, int(X.shape[0]))
        return cls(X, None, [], weights, keep, square)


def _too_few_classes(classes: NDArray[Any], weighted: bool) -> str:
    """Return the error message for y with fewer than two classes.

    ``weighted``: rows of weight 0 were left out, so y itself may have more.
    """
    if not weighted:
        found = f"only one class, {classes[0]}" if len(classes) else "no row of any class"
        return f"a classifier needs rows of two classes, and y has {found}"
    if not len(classes):
        return _NO_WEIGHT
    return (
        "Invalid input - all samples with positive weights belong to the same class, "
        f"{classes[0]}; a classifier needs rows of two classes"
    )


_NO_WEIGHT = "Invalid input - all samples have zero or negative weights."
"""Message for rows of which none has a weight, in scikit-learn's words."""

_UNKNOWN_ROWS = "X does not know how many rows it has; call X.compute_chunk_sizes() first"
"""Message for a Dask array whose number of rows is NaN: its blocks' sizes are unknown."""


def _weights(
    sample_weight: Any, n: int
) -> tuple[NDArray[np.float64] | None, NDArray[np.bool_] | None]:
    """Check the weights of ``n`` rows; return the nonzero weights, and the mask of their rows.

    A mask of None means all rows; weights of None means that all weigh 1.
    """
    weights = check_weights(sample_weight, n)
    if weights is None or weights.all():
        return weights, None
    keep = weights > 0
    return weights[keep], keep


def _check_lengths(X: Any, y: NDArray[Any], what: str) -> None:
    """Raise InputError unless X and y have as many rows; ``what`` names an element of y."""
    if X.shape[0] != X.shape[0]:  # NaN: a Dask array of unknown length
        raise InputError(_UNKNOWN_ROWS)
    if X.shape[0] != len(y):
        raise InputError(
            f"X has {X.shape[0]} rows and y has {len(y)} {what}s; give one {what} for each row"
        )


def _regrid(parts: Iterator[Any], rows: int) -> Iterator[Any]:
    """Cut blocks of rows of any size into blocks of ``rows`` rows; the last may have fewer."""
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
    """Stack the blocks of rows ``parts`` vertically: CSR if the first is sparse, else dense."""
    if len(parts) == 1:
        return parts[0]
    if sparse.issparse(parts[0]):
        return sparse.vstack(parts, format="csr")
    return np.concatenate(parts)
