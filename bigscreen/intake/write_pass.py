"""Second pass of an ingest: sort the rows in bucket files and write the chunks of the datasets."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, issparse

from bigscreen.data.layout import Features, csr_slice
from bigscreen.data.order import Holdout
from bigscreen.data.preparation import Moments, Preparation
from bigscreen.data.writer import DatasetWriter
from bigscreen.fleet.protocol import Each
from bigscreen.intake.profile import TableProfile
from bigscreen.intake.spill import Part, Spill, SpilledRows, stack_rows
from bigscreen.intake.tuning import TUNING


@dataclass
class Transform:
    """Turns rows as they were read into rows as they are stored: recoded, expanded, scaled.

    Attributes
    ----------
    preparation : Preparation
        Columns, categories, fill values and scaling.
    recode : dict of int to int array
        For each categorical column, the final code of each code as it was read.
    n_features : int
        Number of columns of the result.
    sparse : bool
        Whether the result is CSR.
    slice_bytes : int
        `slices` yields rows whose dense float64 features take at most this.
    """

    preparation: Preparation
    recode: dict[int, NDArray[np.int32]]
    n_features: int
    sparse: bool
    slice_bytes: int = TUNING.slice_bytes

    def slices(self, X: Features) -> Iterator[tuple[int, Features]]:
        """Yield slices of the rows of X, and the number of the first row of each.

        A stored slice takes at most `slice_bytes`; rows that are stored unchanged, or sparse, are
        one slice.
        """
        width = X.shape[1] if self.sparse else self.n_features
        whole = (issparse(X) and self.sparse) or self._is_identity(X)
        step = X.shape[0] if whole else max(self.slice_bytes // (8 * width), 1)
        for at in range(0, X.shape[0], max(step, 1)):
            yield at, _slice_rows(X, at, min(at + step, X.shape[0]))

    def _is_identity(self, X: Features) -> bool:
        """Whether the rows X are stored unchanged: dense, not encoded, not filled, not scaled."""
        return not (issparse(X) or self.sparse or self.preparation.changes_features)

    def apply(self, X: Features) -> Features:
        """Return the rows as they are stored, dense or CSR, of shape (rows, n_features).

        X holds rows as they were read, dense or CSR, with category codes in order of first
        appearance.
        """
        prep = self.preparation
        if self._is_identity(X):
            return X
        if isinstance(X, csr_array):
            part = prep.expand(X)  # it stays sparse
            return prep.scale(part if self.sparse else part.toarray())  # type: ignore[union-attr]
        if self.recode:
            X = X.copy()
            for c, codes in self.recode.items():
                # One entry more, at the end, so that -1 stays -1.
                X[:, c] = np.append(codes, -1)[X[:, c].astype(np.int64)]
        return prep.to_csr(X) if self.sparse else prep.scale(prep.expand(X))


@dataclass
class RowCounts:
    """Numbers of kept rows and of held-out rows, by part and by label; kept: not held out.

    Attributes
    ----------
    parts : list of Part
        Ranges of sort keys that are sorted in memory one at a time, in stored order.
    sizes : int64 array, (parts, 2)
        Kept and held-out rows of each part.
    labels : int64 array, (2, raw labels)
        Kept and held-out rows with each raw label. Empty if rows have targets.
    """

    parts: list[Part]
    sizes: NDArray[np.int64]
    labels: NDArray[np.int64]

    @classmethod
    def of(cls, spill: Spill, holdout: Holdout, n_labels: int) -> RowCounts:
        """Count the rows in the bucket files `spill`; records are read, but no features.

        Parameters
        ----------
        spill : Spill
            All rows, in bucket files.
        holdout : Holdout
            Says which rows are held out.
        n_labels : int
            Number of raw labels; 0 if rows have targets.
        """
        parts = spill.parts()
        sizes = np.zeros((len(parts), 2), np.int64)
        labels = np.zeros((2, n_labels), np.int64)
        lows = np.array([part.low for part in parts], np.uint64)
        for bucket in sorted(spill.lengths):
            for record in spill.records(bucket):
                keys = spill.order.keys(record["row"])
                at = np.searchsorted(lows, keys, side="right") - 1
                held = holdout.mask(record["row"])
                for side, chosen in enumerate((~held, held)):
                    sizes[:, side] += np.bincount(at[chosen], minlength=len(parts))
                    if n_labels:
                        of_side = record["y"][chosen].astype(np.int64)
                        labels[side] += np.bincount(of_side[of_side >= 0], minlength=n_labels)
        return cls(parts, sizes, labels)

    def kept(self, spilled: SpillReader) -> Iterator[tuple[SpilledRows | None, NDArray[np.int64]]]:
        """Yield for each part its kept rows (not held out) and its row counts (kept, held out).

        A part is a range of sort keys. The rows are None if the part has no kept row; `spilled`
        reads and sorts the others.
        """
        some = (part for part, sizes in zip(self.parts, self.sizes, strict=True) if sizes[0])
        read = iter(spilled.read(some))
        for sizes in self.sizes:
            yield (next(read)[0] if sizes[0] else None), sizes


@dataclass
class SpillReader:
    """Reads parts of the rows in bucket files (a spill), sorts them and splits off held-out rows.

    Attributes
    ----------
    spill : Spill
        All rows, in bucket files.
    holdout : Holdout
        Says which rows are held out.
    n_raw : int
        Number of source columns.
    index_base : int
        Subtracted from the column indices of sparse rows.
    each : callable
        Applies the transform to slices of rows, in this process.
    anywhere : callable
        Applies the sorting to parts, perhaps in other processes.
    """

    spill: Spill
    holdout: Holdout
    n_raw: int
    index_base: int
    each: Each = map
    anywhere: Each = map

    def read(self, parts: Iterable[Part]) -> Iterable[list[SpilledRows]]:
        """Yield the rows to keep and the rows to hold out of each part, both in their final order.

        `parts` are ranges of sort keys; each is sorted in memory by `anywhere`.
        """
        bare = replace(self, each=map, anywhere=map)  # the mappers cannot be sent elsewhere
        return self.anywhere(bare._read, parts)

    def _read(self, part: Part) -> list[SpilledRows]:
        """Return the rows to keep and the rows to hold out of a part, sorted by their sort keys."""
        rows = self.spill.read(part, self.n_raw, self.index_base)
        held = self.holdout.mask(rows.record["row"])
        if not held.any():
            return [rows, rows.take(np.empty(0, np.int64))]
        return [rows.take(np.flatnonzero(~held)), rows.take(np.flatnonzero(held))]


def measure_moments(
    spilled: SpillReader, survey: RowCounts, transform: Transform, report: Callable[[int], None]
) -> Moments:
    """Return mean, spread and range of each numeric column, for a scaling.

    Rows that are held out do not count.

    Dense rows are measured as they were read, so that both layouts get the same scaling.

    Parameters
    ----------
    spilled : SpillReader
        Reads and sorts the rows.
    survey : RowCounts
        Ranges of sort keys ("parts") of the rows in bucket files, and their row counts.
    transform : Transform
        Fills missing numbers and, if rows are sparse, recodes them.
    report : callable
        Called with the number of rows of each part that was read.
    """
    numeric = transform.preparation.numeric_columns
    moments = Moments(len(numeric))

    def pieces() -> Iterator[Features]:
        """Yield the numeric columns of the rows that are not held out, part by part."""
        for rows, sizes in survey.kept(spilled):
            if rows is not None:
                X = rows.X
                if issparse(X):
                    yield from spilled.each(
                        transform.apply, (piece for _, piece in transform.slices(X))
                    )
                else:
                    X = transform.preparation.fill_missing(X)
                    yield X if len(numeric) == X.shape[1] else X[:, numeric]
            report(int(sizes.sum()))

    # Always the same batches: the last digits of sums depend on which rows are added at once.
    for batch in _rebatch(pieces(), max(transform.slice_bytes // (8 * len(numeric)), 1)):
        moments.add(batch)
    return moments


@dataclass(frozen=True)
class Fill:
    """Replacement of missing numbers for each numeric column, and how many are missing.

    Attributes
    ----------
    values : float64 array (numeric columns,)
        The number that replaces missing values of each column.
    missing : int64 array (numeric columns,)
        How many rows lack a value of each column.
    """

    values: NDArray[np.float64]
    missing: NDArray[np.int64]


def measure_fill(
    spilled: SpillReader, survey: RowCounts, how: str, numeric: NDArray[np.int64]
) -> Fill:
    """Return the replacements of missing numbers, computed from the rows that are not held out.

    Parameters
    ----------
    spilled : SpillReader
        Reads and sorts the rows.
    survey : RowCounts
        Ranges of sort keys ("parts") of the rows in bucket files, and their row counts.
    how : {"mean", "median", "most-frequent", "zero"}
        The mean is taken over all rows that are not held out, the median and the commonest value
        over at most `IngestTuning.fill_sample_rows` of them. A column without any value gets 0.
    numeric : int64 array (columns,)
        Numbers of the numeric columns.
    """
    rows = int(survey.sizes[:, 0].sum())
    tuning = spilled.spill.tuning
    within = tuning.fill_sample_bytes // (8 * max(len(numeric), 1))
    most = max(1, min(tuning.fill_sample_rows, within))
    step, at = -(-rows // most), 0
    sums, counts = np.zeros(len(numeric)), np.zeros(len(numeric), np.int64)
    sample = [np.empty((0, len(numeric)))]
    for kept, _ in survey.kept(spilled):
        if kept is not None:
            X = np.asarray(kept.X)[:, numeric].astype(np.float64)
            counts += np.count_nonzero(~np.isnan(X), axis=0)
            sums += np.nansum(X, axis=0)
            sample.append(X[-at % step :: step])
            at += len(X)
    values = sums / np.maximum(counts, 1)
    if how in ("median", "most-frequent"):
        of = np.median if how == "median" else _find_most_frequent
        columns = (column[~np.isnan(column)] for column in np.concatenate(sample).T)
        values = np.array([of(column) if len(column) else 0.0 for column in columns])
    elif how == "zero":
        values = np.zeros(len(numeric))
    return Fill(values, rows - counts)


def _find_most_frequent(values: NDArray[np.float64]) -> float:
    """Return the value that occurs most often in a nonempty array; the smallest if tied."""
    found, times = np.unique(values, return_counts=True)
    return float(found[np.argmax(times)])


def _rebatch(pieces: Iterator[Features], size: int) -> Iterator[Features]:
    """Yield the rows of all pieces in batches of `size` rows; the last batch may be smaller."""
    waiting: list[Features] = []
    held = 0
    for X in pieces:
        at = 0
        while at < X.shape[0]:
            end = min(at + size - held, X.shape[0])
            waiting.append(_slice_rows(X, at, end))
            held, at = held + end - at, end
            if held == size:
                yield stack_rows(waiting)
                waiting, held = [], 0
    if waiting:
        yield stack_rows(waiting)


def _slice_rows(X: Features, start: int, stop: int) -> Features:
    """Return the rows `start` to ``stop - 1`` of a dense or CSR array."""
    return csr_slice(X, start, stop) if isinstance(X, csr_array) else X[start:stop]


class _ChunkFiller:
    """Collects rows into the chunks of a dataset; full chunks are written in the background.

    Parameters
    ----------
    writer : DatasetWriter
        Chunks at the start of the dataset that it has already written are skipped.
    pool : ThreadPoolExecutor
        Its threads write the chunks.

    Attributes
    ----------
    at : int
        Number of the first row that has neither been written nor added.
    """

    def __init__(self, writer: DatasetWriter, pool: ThreadPoolExecutor) -> None:
        """Begin at the first chunk that `writer` has not written; `pool` writes the chunks.

        ``_next`` is the number of the chunk being filled, ``_pieces`` the rows collected for it
        and ``_held`` their number, and ``_writing`` is the future of the chunk being written.
        """
        self.writer, self._pool = writer, pool
        done = (k for k in range(writer.n_chunks) if not writer.is_written(k))
        self._next = next(done, writer.n_chunks)
        self.at = self._next * writer.layout.chunk_rows
        self._pieces: list[tuple[Any, ...]] = []
        self._held = 0
        self._writing: Future[None] | None = None

    def add(
        self, first: int, X: Features, y: NDArray[Any], weight: NDArray[Any], ids: NDArray[Any]
    ) -> None:
        """Add the rows of the dataset from number `first` on; rows already stored are skipped.

        Parameters
        ----------
        first : int
            Number in the dataset of the first row given.
        X : dense or CSR array (rows, features)
        y : array (rows,)
            Final label codes, or targets.
        weight : array (rows,)
        ids : array (rows,)
            Source row numbers.
        """
        at = self.at - first
        while at < X.shape[0]:
            start, stop = self.writer.chunk(self._next)
            end = min(at + stop - start - self._held, X.shape[0])
            piece = _slice_rows(X, at, end), y[at:end], weight[at:end], ids[at:end]
            self._pieces.append(piece)
            self._held += end - at
            self.at += end - at
            at = end
            if self._held == stop - start:
                self._write()

    def finish(self) -> None:
        """Wait until the last chunk is written."""
        if self._writing is not None:
            self._writing.result()

    def _write(self) -> None:
        """Begin to write the collected rows as the next chunk, once the one before is written."""
        self.finish()
        pieces = list(zip(*self._pieces, strict=True))
        arguments = self._next, pieces
        self._writing = self._pool.submit(self._store, *arguments)
        self._next, self._pieces, self._held = self._next + 1, [], 0

    def _store(self, k: int, pieces: list[Any]) -> None:
        """Write chunk `k`; `pieces` lists its features, labels, weights and source rows."""
        Xs, ys, weights, ids = pieces
        weight = np.concatenate(weights) if self.writer.layout.has_weights else None
        self.writer.write(k, stack_rows(list(Xs)), np.concatenate(ys), weight, np.concatenate(ids))


def write_datasets(
    spilled: SpillReader,
    survey: RowCounts,
    transform: Transform,
    codes: NDArray[np.int32] | None,
    writers: list[DatasetWriter],
    profiles: list[TableProfile],
    report: Callable[[int], None],
) -> None:
    """Write every chunk of the datasets (kept and held-out rows) that is not written yet.

    Parameters
    ----------
    spilled : SpillReader
        Reads and sorts the rows.
    survey : RowCounts
        Ranges of sort keys ("parts") of the rows in bucket files, and their row counts.
    transform : Transform
        Turns rows as they were read into rows as they are stored.
    codes : int32 array, (raw labels,), or None
        Final label code of each raw code; None: rows have targets, stored unchanged.
    writers : list of DatasetWriter
        For the kept rows and, if there are any, the rows held out.
    profiles : list of TableProfile
        One for each writer, or none. A profile sees all rows, even rows already written.
    report : callable
        Called with the number of rows that were written.
    """
    if codes is not None:
        codes = np.append(codes, -1).astype(np.int32)  # so that a missing label, -1, stays -1
    with ThreadPoolExecutor(len(writers)) as pool, ThreadPoolExecutor(1) as aside:
        targets = [_ChunkFiller(writer, pool) for writer in writers]
        summed: Future[None] | None = None
        for firsts, sizes, rows_of in _read_unwritten(spilled, survey, targets, bool(profiles)):
            for side, rows in enumerate(rows_of):
                y = rows.record["y"]
                if codes is not None:
                    y = codes[y.astype(np.int64)]
                if summed is not None:
                    summed.result()
                if profiles and len(y):
                    summed = aside.submit(profiles[side].add, rows.X, y)
                _add_rows(rows, y, firsts[side], targets[side], transform, spilled.each)
            report(sum(sizes))
        if summed is not None:
            summed.result()
        for target in targets:
            target.finish()


def _read_unwritten(
    spilled: SpillReader, survey: RowCounts, targets: list[_ChunkFiller], every: bool
) -> Iterator[tuple[list[int], list[int], list[SpilledRows]]]:
    """Yield for each part its first row number and row count in each dataset, and the rows.

    A part is a range of sort keys, whose rows are sorted in memory at once. A part whose rows are
    all written is not read, unless `every` is true; its list of rows is empty.

    Parameters
    ----------
    spilled : SpillReader
        Reads and sorts the rows.
    survey : RowCounts
        Ranges of sort keys ("parts") of the rows in bucket files, and their row counts.
    targets : list of _ChunkFiller
        One for each dataset: the kept rows, then the held-out rows if there are any.
    every : bool
        Whether all parts are read.
    """
    sizes = survey.sizes
    ends, n = sizes.cumsum(axis=0), len(targets)
    begun = np.array([target.at for target in targets])
    behind = np.any((ends[:, :n] > begun) & (sizes[:, :n] > 0), axis=1)
    wanted = (behind | every).tolist()
    read = iter(spilled.read(itertools.compress(survey.parts, wanted)))
    for firsts, of_part, is_wanted in zip(
        (ends - sizes).tolist(), sizes.tolist(), wanted, strict=True
    ):
        yield firsts, of_part, next(read)[:n] if is_wanted else []


def _add_rows(
    rows: SpilledRows,
    y: NDArray[Any],
    first: int,
    target: _ChunkFiller,
    transform: Transform,
    each: Each,
) -> None:
    """Transform rows as they were read, and add them to a dataset from row number `first` on.

    Parameters
    ----------
    rows : SpilledRows
        Rows as they were read.
    y : array (rows,)
        Their final label codes, or targets.
    first : int
        Number in the dataset of the first row.
    target : _ChunkFiller
        Collects the rows of the dataset.
    transform : Transform
        Turns rows as they were read into rows as they are stored.
    each : callable
        Applies the transform to slices of the rows.
    """
    cut = list(transform.slices(rows.X))
    made = each(transform.apply, (piece for _, piece in cut))
    for (at, _), X in zip(cut, made, strict=True):
        own = slice(at, at + X.shape[0])
        of_rows = y[own], rows.record["weight"][own], rows.record["row"][own]
        target.add(first + at, X, *of_rows)
