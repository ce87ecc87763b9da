"""Readers of arrays: numpy, sparse, dask and zarr arrays, and iterables of blocks of them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.sparse import csr_array, issparse

from bigscreen.data.dask_rows import dask_rows, is_chunked
from bigscreen.data.other_arrays import on_host
from bigscreen.data.zarr_stores import is_zarr_array, is_zarr_store
from bigscreen.errors import InputError
from bigscreen.fleet.protocol import Each
from bigscreen.intake.readers.base import Block, Reader, name_rows
from bigscreen.intake.readers.binary import ArrayRows, MatrixReader, OpenMatrix


class ArrayReader(MatrixReader):
    """Reads arrays in memory.

    Parameters
    ----------
    X : array-like (n, d), or scipy sparse array or matrix
    y : array-like (n,), or (n, targets), optional
    weight : array-like (n,), optional
    """

    def __init__(self, X: Any, y: Any = None, weight: Any = None) -> None:
        """Keep the arrays; a sparse X is converted to CSR."""
        sparse = issparse(X)
        X = csr_array(X) if sparse else np.asarray(X)
        y, weight = (None if part is None else np.asarray(part) for part in (y, weight))
        parts = [X.data, X.indices, X.indptr] if sparse else [X]
        parts += [part for part in (y, weight) if part is not None]
        self._arrays = parts
        y_rows, weight_rows = (None if p is None else ArrayRows(p) for p in (y, weight))
        size = sum(int(part.nbytes) for part in parts)
        super().__init__(
            lambda: OpenMatrix(ArrayRows(X), y_rows, weight_rows, "", "y", sparse, size)
        )

    @property
    def identity(self) -> str:  # type: ignore[override]
        """Return a hash of the content: an ingest only resumes with equal arrays."""
        state = hashlib.blake2b(digest_size=16)
        for part in self._arrays:
            state.update(f"{part.dtype} {part.shape}".encode())
            content = part.tolist() if part.dtype == object else np.ascontiguousarray(part)
            state.update(repr(content).encode() if isinstance(content, list) else content.data)
        return state.hexdigest()


class BlocksReader(Reader):
    """Reads an iterable of X, (X, y) or (X, y, weight).

    Parameters
    ----------
    blocks : iterable, or callable that returns an iterable
        A callable is called for each pass, so that the rows can be read a second time.
    """

    def __init__(self, blocks: Iterable[Any] | Callable[[], Iterable[Any]]) -> None:
        """Keep the iterable; nothing is read."""
        super().__init__()
        self._blocks, self._done, self._rows = blocks, 0, 0

    def progress(self) -> tuple[int, int]:
        """Return the bytes read so far, and 0: the total is not known."""
        return self._done, 0

    def parts(self, skip_rows: int) -> Iterator[tuple[int, Any]]:
        """Yield the first row number of each block and the block: X, (X, y) or (X, y, weight).

        Blocks whose rows all come before row number `skip_rows` may be left out.
        """
        first = 0
        for item in self._blocks() if callable(self._blocks) else self._blocks:
            yield first, item
            X = item[0] if isinstance(item, tuple) else item
            first += X.shape[0] if issparse(X) else len(X)

    def blocks(self, skip_rows: int = 0, each: Each = map) -> Iterator[Block]:
        """Yield the rows from number `skip_rows` on, in blocks.

        `each` is not used, as nothing is parsed.

        Raises
        ------
        InputError
            If a block is not X, (X, y) or (X, y, weight) of matching shapes.
        """
        for first, item in self.parts(skip_rows):
            parts = item if isinstance(item, tuple) else (item,)
            if not 1 <= len(parts) <= 3:
                raise InputError(
                    f"row {first}: a block is X, (X, y) or (X, y, weight), not {len(parts)} things."
                )
            X, *beside = parts
            X = csr_array(X) if issparse(X) else np.asarray(X)
            if X.ndim != 2:
                raise InputError(f"row {first}: a block's X has shape {X.shape}, not (rows, d).")
            rows = X.shape[0]
            self._rows = first + rows
            for what, part in zip(("labels", "weights"), beside, strict=False):
                if part is not None and len(part) != rows:
                    raise InputError(
                        f"row {first}: a block has {rows} rows and {len(part)} {what}."
                    )
            if rows == 0 or first + rows <= skip_rows:
                continue
            reader = ArrayReader(X, *beside)
            reader.piece_bytes = self.piece_bytes
            for block in reader.blocks(max(skip_rows - first, 0)):
                at = first + block.first_row
                self._done += block.X.data.nbytes
                yield replace(block, first_row=at, where=name_rows("", at))


class DaskReader(BlocksReader):
    """Reads a dask array block by block; dask's scheduler computes each block.

    Parameters
    ----------
    X : dask array (n, d), of numpy or scipy sparse blocks
    y, weight : dask array or array-like (n,), optional
        Several targets are y of shape (n, targets).

    Notes
    -----
    Dask is not imported: its arrays are recognised by their attributes.
    """

    def __init__(self, X: Any, y: Any = None, weight: Any = None) -> None:
        """Rechunk X so that each block has all columns, and match the blocks of `y` and `weight`.

        Nothing is computed.
        """
        if X.ndim != 2:
            raise InputError(f"the dask array has {X.ndim} dimensions; X needs rows and columns.")
        super().__init__(())
        self._X = X.rechunk({1: -1}) if X.numblocks[1] > 1 else X
        self._beside = [self._align("y", y), self._align("weight", weight)]
        self.n_features = int(X.shape[1])
        self._size = 0 if math.isnan(X.nbytes) else int(X.nbytes)
        parts = [X, *(part for part in (y, weight) if part is not None)]
        # Dask's names are hashes of the computation; other arrays are hashed by content.
        self.identity = " ".join(
            part.name if hasattr(part, "dask") else ArrayReader(np.reshape(part, (-1, 1))).identity
            for part in parts
        )

    def _align(self, name: str, part: Any) -> Any:
        """Return labels or weights with the row blocks of X: a dask array, an array, or None.

        `part` is a dask array, array-like or None; `name` is "y" or "weight".

        Raises
        ------
        InputError
            If a dask array has another number of rows than X.
        """
        if part is None or not hasattr(part, "dask"):
            flat = None if part is None else np.asarray(part)
            return flat if flat is None or (name == "y" and flat.ndim == 2) else flat.reshape(-1)
        chunks = self._X.chunks[0]
        if not (any(map(math.isnan, chunks)) or part.chunks[0] == chunks):
            if part.shape[0] != self._X.shape[0]:
                raise InputError(f"{name} has {part.shape[0]} rows and X has {self._X.shape[0]}.")
            return part.rechunk({0: chunks})
        return part

    def progress(self) -> tuple[int, int]:
        """Return the bytes of the rows read so far, and of all rows (0: not known)."""
        return (self._size * self._rows // self._X.shape[0] if self._size else 0), self._size

    def parts(self, skip_rows: int) -> Iterator[tuple[int, Any]]:
        """Yield the first row number and the computed arrays (X, y, weight) of each block.

        Blocks whose rows all come before row number `skip_rows` are left out; y and weight may be
        None.
        """
        first = 0
        for i, count in enumerate(self._X.chunks[0]):
            if first + count <= skip_rows:  # false if the count is unknown (NaN)
                first += count
                continue
            X = self._X.blocks[i].compute()
            yield first, (X, *(self._block_of(part, i, first, X.shape[0]) for part in self._beside))
            first += X.shape[0]

    def _block_of(self, part: Any, i: int, first: int, rows: int) -> Any:
        """Return the labels or weights of block `i`, which has `rows` rows from number `first` on.

        `part` is a result of `_align`; if it is None, None is returned.
        """
        if part is None:
            return None
        return part.blocks[i].compute() if hasattr(part, "dask") else part[first : first + rows]


def open_data(source: Any) -> Reader:
    """Return the reader for X, (X, y), (X, y, weight), or an iterable of these.

    Raises
    ------
    InputError
        If `source` has another type.
    """
    parts = source if isinstance(source, tuple) else (source,)
    if 1 <= len(parts) <= 3:
        X = parts[0]
        if hasattr(X, "dims") and hasattr(X, "data"):  # an array of xarray: take the plain array
            parts, X = (X.data, *parts[1:]), X.data
        if is_zarr_store(X):
            raise InputError(
                f"a {type(X).__name__} of zarr is no source: give its arrays, as (group['X'], "
                "group['y']), or open it with Dataset.open if bigscreen has stored it."
            )
        if is_zarr_array(X):
            return DaskReader(dask_rows(X, None, None), *parts[1:])
        if is_chunked(X):
            return DaskReader(*parts)
        parts = on_host(parts)
        if issparse(X) or hasattr(X, "__array__"):
            return ArrayReader(*parts)
    if isinstance(source, Iterable) or callable(source):
        return BlocksReader(source)
    raise InputError(
        f"{type(source).__name__} is no source: give a path, a data frame, an array, (X, y), or "
        "blocks of these."
    )
