"""Writes the rows after edits as a new data set; the old data set is not changed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse

from bigscreen.amend.edits import Changes
from bigscreen.data.dataset import MANIFEST, Dataset
from bigscreen.data.folder import store_path, take_name, unfinished_path
from bigscreen.data.layout import Features, Layout, stack_rows, take_rows
from bigscreen.data.memory import MemoryDataset
from bigscreen.data.rows import Rows
from bigscreen.data.writer import DatasetWriter
from bigscreen.errors import InputError
from bigscreen.files.scratch import scratch

AMENDED_FROM = "amended_from"
"""The manifest's key for the fingerprint of the rows before an edit."""

Block = tuple[Features, NDArray[np.int32], NDArray[np.float64], NDArray[np.int64]]
"""A block of rows: features, label codes, weights and row numbers."""


def make_edited_rows(
    data: Rows,
    edited: Changes,
    path: str | os.PathLike[str] | None,
    extra: dict[str, Any] | None = None,
) -> Rows:
    """Make the edited data set: the old rows that stay, in their order, then the added rows.

    ``data``: the rows before the edits; ``edited``: the rows that change. No number is rounded:
    added float64 rows make the edited rows float64.

    Parameters
    ----------
    path : path or None
        The new store, which is complete or absent. None: rows in memory, numbered from 0.
    extra : dict, optional
        Additional entries of the store's manifest.
    """
    gone = np.zeros(data.n_rows, np.bool_)
    gone[edited.places[edited.removed]] = True
    entering = int(np.count_nonzero(edited.places < 0))
    n = data.n_rows - int(np.count_nonzero(gone)) + entering
    weighted = data.has_weights or bool(np.any(edited.weights[1][~edited.removed] != 1.0))
    layout = Layout.of(
        n_rows=n,
        n_features=data.n_features,
        sparse=data.is_sparse,
        labels=data.layout.labels,
        weights=weighted,
        wide=edited.X.dtype == np.float64,
    )
    blocks = _blocks(data, edited, gone)
    if path is None:
        parts = list(blocks)
        X = stack_rows(data.is_sparse, [part[0] for part in parts])
        y, weights, _ = (np.concatenate([part[k] for part in parts]) for k in (1, 2, 3))
        return MemoryDataset(
            X, y, data.layout.labels, weights if weighted else None, preparation=data.preparation
        )
    writer = DatasetWriter(path, layout, data.preparation, extra=extra)
    return write_store(writer, blocks)


class StorePlace:
    """The path of an edited store, and its temporary folder until the machine is fitted.

    The temporary folder is next to the path. A run that fails or is killed leaves no store behind.

    Parameters
    ----------
    path : path
    overwrite : bool
        Whether an existing store may be replaced.
    before : str or None
        Fingerprint of the rows before the edit. A store that an edit of these rows made may exist
        at the path: a run that was killed just before it wrote the model has left it, and it stays
        if it has the edited rows.

    Raises
    ------
    InputError
        If anything else exists at the path.
    """

    def __init__(self, path: str | os.PathLike[str], overwrite: bool, before: str | None) -> None:
        """Check that a store may be written at the path; see the class for arguments and errors."""
        self.path, self.overwrite = store_path(path), overwrite
        if not self.path.exists():
            return
        if not (self.path / MANIFEST).exists():
            raise InputError(f"{self.path} is not a bigscreen dataset, so it is not overwritten")
        if not overwrite:
            extra = Dataset.open(self.path).manifest["extra"]
            if before is None or extra.get(AMENDED_FROM) != before:
                raise self._exists()

    @contextmanager
    def temporary(self) -> Iterator[Path]:
        """Yield a path at which to write the store; its folder is removed when the context ends."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with scratch("amend", self.path.parent) as folder:
            yield folder / self.path.name

    def check(self, made: Rows) -> None:
        """Raise InputError if an existing store has other rows and must not be replaced."""
        if self.overwrite or not self.path.exists():
            return
        if Dataset.open(self.path).fingerprint != made.fingerprint:
            raise self._exists()

    def publish(self, made: Dataset) -> Dataset:
        """Move the finished store to its path and open it."""
        self.check(made)
        assert isinstance(made.path, Path)
        take_name(made.path, self.path)
        return Dataset(self.path)

    def _exists(self) -> InputError:
        """The error for a store at the path that must not be replaced."""
        return InputError(f"{self.path} exists already; choose another path or overwrite it")


def source_entries(data: Rows, more: Rows | None) -> dict[str, Any]:
    """The entries of a manifest about the source that an edited store inherits.

    Parameters
    ----------
    data, more : Rows, Rows or None
        The rows before an edit, and the added rows. Rows in memory have no manifest.

    Returns
    -------
    dict
        JSON-able: "index_base", and "rounded" if it is known of all rows.
    """
    both = [part.manifest["extra"] for part in (data, more) if isinstance(part, Dataset)]
    known = {"index_base": both[0].get("index_base")} if isinstance(data, Dataset) else {}
    if both and all("rounded" in extra for extra in both):
        known["rounded"] = any(extra["rounded"] for extra in both)
    return known


def write_store(writer: DatasetWriter, blocks: Iterator[Block]) -> Dataset:
    """Write blocks of rows of any size as a store; after an error remove the unfinished store."""
    try:
        _write(writer, blocks)
        return writer.finish()
    except BaseException:
        shutil.rmtree(unfinished_path(writer.path), ignore_errors=True)
        raise


def _write(writer: DatasetWriter, blocks: Iterator[Block]) -> None:
    """Write all chunks of a store, cutting and joining blocks of rows to the chunks' sizes."""
    held: Block | None = None
    for k in range(writer.n_chunks):
        start, stop = writer.chunk(k)
        while held is None or len(held[1]) < stop - start:
            more = next(blocks)
            held = more if held is None else _join(held, more)
        rows = slice(0, stop - start)
        X, y, weights, ids = (_part(each, rows) for each in held)
        writer.write(k, X, y, weights if writer.layout.has_weights else None, ids)
        rest = slice(stop - start, len(held[1]))
        held = (_part(held[0], rest), held[1][rest], held[2][rest], held[3][rest])


def _blocks(data: Rows, edited: Changes, gone: NDArray[np.bool_]) -> Iterator[Block]:
    """Iterate over blocks of the edited rows: old rows that stay, by chunk, then the added rows.

    ``gone`` (n,): whether a row of ``data`` is removed.
    """
    stored = edited.places >= 0
    changed = edited.places[stored]
    codes, weights = edited.codes[1][stored], edited.weights[1][stored]
    for start, stop in map(data.chunk, range(data.n_chunks)):
        y, own = data.y(start, stop).copy(), data.weights(start, stop).copy()
        here = np.flatnonzero((changed >= start) & (changed < stop))
        y[changed[here] - start], own[changed[here] - start] = codes[here], weights[here]
        keep = np.flatnonzero(~gone[start:stop])
        X = data.X(start, stop)
        yield _part(X, keep), y[keep], own[keep], data.row_ids(start, stop)[keep]
    if not stored.all():
        new = np.flatnonzero(~stored)
        X = _part(edited.X, new)
        yield X, edited.codes[1][new], edited.weights[1][new], edited.numbers[new]


def _part(X: Any, rows: Any) -> Any:
    """Return rows of a dense or sparse matrix X; ``rows``: a slice or an index array."""
    if isinstance(rows, slice):
        rows = np.arange(rows.start, rows.stop)
    return X[rows] if isinstance(X, np.ndarray) else take_rows(X, rows)


def _join(one: Block, other: Block) -> Block:
    """Join two blocks of rows to one block, the rows of ``one`` first."""
    rest = (np.concatenate([one[k], other[k]]) for k in (1, 2, 3))
    y, weights, ids = rest
    return stack_rows(issparse(one[0]), [one[0], other[0]]), y, weights, ids
