"""First pass of an ingest: check the rows of all sources and append them to buckets on disk."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, issparse

from bigscreen.data.layout import Features
from bigscreen.data.missing import MISSING_CATEGORY, Missing
from bigscreen.data.order import Order
from bigscreen.data.preparation import Preparation
from bigscreen.data.targets import (
    as_features,
    column_spreads,
    first_coarse_column,
    fits_float32,
    plain_label,
)
from bigscreen.errors import InputError, NoRows
from bigscreen.fleet.protocol import Each
from bigscreen.intake.choices import Choices
from bigscreen.intake.needs import check_source
from bigscreen.intake.readers.base import Block, FileChanged, Reader
from bigscreen.intake.readers.binary import MatrixReader
from bigscreen.intake.readers.svmlight import SvmlightReader
from bigscreen.intake.readers.text import missing_value_error
from bigscreen.intake.source import BlockChecker, BlockShape, ReadState
from bigscreen.intake.spill import Journal, Spill, choose_bucket_bits, record_type
from bigscreen.intake.tuning import TUNING, IngestTuning

Report = Callable[[dict[str, Any]], None]
"""A function that is called with a dict of the progress of a pass: bytes or rows done."""

_Open = tuple[Reader, Iterable[Block]]
"""The reader of a source, and the blocks of rows that it yields."""


@dataclass(frozen=True)
class ReadRequest:
    """The sources of an ingest, and how their rows are read.

    Attributes
    ----------
    names : sequence of str
        Names of the sources, for messages.
    openers : sequence of callable
        One for each source: returns its reader.
    expected_bytes : int
        Estimate of the bytes of all rows as float32.
    choices : Choices
    like : Preparation or None
        Existing columns, categories and labels that the sources must match.
    missing : Missing
        Marks of missing values, and whether values may be missing; missing numbers are NaN in the
        bucket files.
    small : sequence of callable or None
        One for each source: opens the reader of a small source in any process, where it is read
        as one piece; None for a large source.
    exact : bool
        Store float64 if float32 would round any number, not only if it makes a column coarse: the
        existing store has rounded none.
    repeatable : bool
        Whether the sources can be read a second time.
    n_targets : int or None
        Number of targets of the existing rows that the sources must match; None if they have
        labels, or there are none.
    """

    names: Sequence[str]
    openers: Sequence[Callable[[], Reader]]
    expected_bytes: int
    choices: Choices
    like: Preparation | None
    missing: Missing
    small: Sequence[Callable[[], Reader] | None] = ()
    exact: bool = False
    repeatable: bool = True
    n_targets: int | None = None


class _NeedsFloat64Error(Exception):
    """A block needs float64, and earlier blocks were read as float32."""


class Reading:
    """Reads the rows of a request into bucket files, resuming where an earlier run stopped.

    Parameters
    ----------
    request : ReadRequest
        The sources, and how their rows are read.
    folder : Path
        Folder of the bucket files.
    journal : Journal
        Its lines tell what earlier runs have read; `Reading` adds lines for the rows it reads.
    tuning : IngestTuning

    Attributes
    ----------
    found : ReadState
        Counts, labels and categories of the rows read so far.
    shape : BlockShape or None
        Properties that all blocks share; None before the first row.
    spill : Spill or None
        The rows read so far, in bucket files; None before the first row.
    wide : bool
        Whether all rows are kept as float64, because a first attempt as float32 lost digits.
    """

    def __init__(
        self,
        request: ReadRequest,
        folder: Path,
        journal: Journal,
        tuning: IngestTuning = TUNING,
    ) -> None:
        """Restore the state after the last saved row of the journal, or start without rows.

        `request` names the sources, and `folder` holds the bucket files with the rows.
        ``_written`` has the number of labels, and of categories by column, that the journal lists
        already, and ``_listed`` the number of dropped rows that it lists.
        """
        self.tuning = tuning
        self.request, self.folder, self.journal = request, folder, journal
        self.shape: BlockShape | None
        self.spill: Spill | None
        lengths = self._reset(wide=False)
        for line in journal.lines:
            if "wide" in line:
                lengths = self._reset(wide=True)
            if "shape" in line:
                self.shape = BlockShape(**line["shape"])
            if "found" in line:
                self._restore(line)
                lengths.update({int(b): of_bucket for b, of_bucket in line["lengths"].items()})
        self._written = len(self.found.labels), self._count_categories()
        self._listed = len(self.found.dropped_rows)
        if self.shape is not None:
            self._prepare(self.shape, lengths)

    def _reset(self, wide: bool) -> dict[int, list[int]]:
        """Start without rows and buckets; with ``wide`` all features are kept as float64.

        Returns
        -------
        dict of int to list of int
            Lengths of the bucket files, keyed by bucket: empty, as there are no buckets.
        """
        self.wide = wide
        self.found = ReadState(first=self.request.choices.rows[0])
        if self.request.like is not None:
            self.found.categories = {c: list(v) for c, v in self.request.like.categories.items()}
        self.shape = self.spill = None
        self._written, self._listed = (0, self._count_categories()), 0
        return {}

    def run(self, report: Report, each: Each = map, anywhere: Each | None = None) -> None:
        """Read until all requested rows are in the spill (bucket files on disk).

        Parameters
        ----------
        report : callable
            Called with dicts of the bytes and rows read: {"source" (its number), "bytes", "total",
            "rows"}.
        each : callable
            Applies the parser to pieces of a source, in their order, as `map` does: for example in
            threads.
        anywhere : callable, optional
            Applies the parser to pieces that other processes can read. Default: `each`.
        """
        if self.found.finished:
            return
        try:
            self._read_all(report, each, anywhere)
        except _NeedsFloat64Error:
            # What was read before is rounded, so all of it is read again.
            self._reset(wide=True)
            self.journal.write({"wide": True})
            self._read_all(report, each, anywhere)

    def _read_all(self, report: Report, each: Each, anywhere: Each | None) -> None:
        """Read the rows that no bucket file holds yet.

        `report` is called with the progress. `each` applies the parser to pieces of a source, as
        `map` does; `anywhere` does so for pieces that other processes can read (None: `each` does).

        Raises
        ------
        InputError
            If no source has a row in the requested range, or every row lacks a value.
        """
        found, stop = self.found, self.request.choices.rows[1]
        last = len(self.request.openers) - 1
        self._saved = time.monotonic()
        last_read: Reader | None = None
        for reader, blocks in self._open_sources(each, anywhere):
            if self.spill is not None:
                self._intake.next_source()
            try:
                self._read_source(reader, blocks, report)
                last_read = reader
            except NoRows as error:
                if not last:
                    raise
                found.empty.append(found.source)
                if len(found.empty) > last:
                    raise InputError(f"none of {last + 1} sources holds a row: {error}") from None
            ended = stop is not None and found.offset + found.source_rows >= stop
            if ended or found.source == last:
                found.finished = True
                break
            found.source, found.offset = found.source + 1, found.offset + found.source_rows
            found.source_rows = 0
        if self.spill is None and found.dropped:
            raise InputError(
                f"every row lacks something: {found.dropped_rows[0]}; say what stands for missing "
                "values (`impute='median'`), or `drop` the columns that have them."
            )
        if self.spill is None:
            first, stop = self.request.choices.rows
            raise InputError(
                f"there is no row in the range {first}:{'' if stop is None else stop} of the "
                "source; give a range within it."
            )
        if last_read is not None:
            self._intake.finish(last_read)
        self._save()

    def _read_source(self, reader: Reader, blocks: Iterable[Block], report: Report) -> None:
        """Append the blocks of one source to the bucket files, up to the last requested row.

        Parameters
        ----------
        reader : Reader
            The source.
        blocks : iterable of Block
            Its rows, without rows that an earlier run has read.
        report : callable
            Called after each block with a dict: number of the source, bytes and rows read.

        Raises
        ------
        NoRows
            If the source holds no row.
        """
        found, stop = self.found, self.request.choices.rows[1]
        for block in blocks:
            for part in _densify_categories(block, reader):
                self._append_block(part, reader)
            found.source_rows = block.first_row + block.X.shape[0]
            self._update_index_base(reader)
            done, total = reader.progress()
            report({"source": found.source, "bytes": done, "total": total, "rows": found.rows})
            self._save_if_due()
            if stop is not None and found.offset + found.source_rows >= stop:
                break
        self._update_index_base(reader)

    def _open_sources(
        self, each: Each, anywhere: Each | None
    ) -> Iterator[tuple[Reader, Iterable[Block]]]:
        """Yield reader and blocks of each source that is not done, opened one after another.

        `each` applies a parser to pieces, as `map` does, and `anywhere` (if given) does so in other
        processes. Consecutive small sources are read whole by `anywhere`, or else by `each`.
        """
        found, count = self.found, len(self.request.openers)
        small = dict(enumerate(self.request.small))
        if found.source_rows:
            small.pop(found.source, None)  # an earlier run has read a part of this source
        for are_small, numbers in groupby(range(found.source, count), lambda k: bool(small.get(k))):
            if are_small:
                run = list(numbers)
                read = partial(_read_small_source, self.tuning.max_whole_bytes)
                wholes = (anywhere or each)(read, (small[k] for k in run))
                for k, whole in zip(run, wholes, strict=True):
                    yield whole or self._open_source(k, each, anywhere)
            else:
                yield from (self._open_source(k, each, anywhere) for k in numbers)

    def _open_source(self, k: int, each: Each, anywhere: Each | None) -> _Open:
        """Return the reader of source `k`, and its blocks; errors name the source.

        `each` applies the parser to pieces, as `map` does; `anywhere`, if given, does so in other
        processes. If the source is empty, NoRows is raised when the first block is requested.
        """
        name = self.request.names[k]
        try:
            with _name_source(name):
                reader, blocks = self._start_reader(k, each, anywhere)
        except NoRows as error:
            return Reader(), _raise_later(error)
        return reader, _read_blocks(name, blocks)

    def _start_reader(self, k: int, each: Each, anywhere: Each | None) -> _Open:
        """Open source `k`; return its reader and its blocks from the first row not yet read.

        `each` applies the parser to pieces, as `map` does; `anywhere`, if given, does so in other
        processes.

        Raises
        ------
        InputError
            If the source declares more rows than the disk can hold.
        """
        found, reader = self.found, self.request.openers[k]()
        skip = found.source_rows
        if k == len(self.request.openers) - 1:
            # Only in the last source: all rows of earlier sources must be counted.
            skip = max(skip, self.request.choices.rows[0] - found.offset)
        if reader.n_rows is not None:
            wanted = self._count_requested(reader.n_rows) - self._count_requested(skip)
            check_source(reader, wanted, self.folder.parents[1])
        by = anywhere if anywhere and reader.anywhere else each
        return reader, reader.blocks(skip, by)

    def _count_requested(self, rows: int) -> int:
        """Return how many of the first `rows` rows of the source are in the range of rows to read.

        The option `rows` of `ingest` gives the range, over the rows of all sources.
        """
        first, stop = self.request.choices.rows
        end = self.found.offset + rows
        return max((end if stop is None else min(end, stop)) - max(first, self.found.offset), 0)

    def _append_block(self, block: Block, reader: Reader) -> None:
        """Check a block, and append its rows in the requested range to the bucket files.

        Rows that lack a value are left out if they are to be dropped. `reader` has read the block.
        """
        first = self.found.offset + block.first_row
        start = max(self.request.choices.rows[0] - first, 0)
        stop = block.X.shape[0]
        if self.request.choices.rows[1] is not None:
            stop = min(self.request.choices.rows[1] - first, stop)
        if start >= stop:
            return
        if start > 0 or stop < block.X.shape[0]:
            block = block.take(np.arange(start, stop))
        numbers = np.arange(first + start, first + stop)
        block = self._replace_marks(block, reader)
        if self.request.choices.drop_missing:
            kept = self._find_complete_rows(block, reader)
            if not len(kept):
                return
            if len(kept) < len(numbers):
                block, numbers = block.take(kept), numbers[kept]
        block, holes = self._zero_missing(block)
        wide = self._needs_float64(block)
        if not (wide or self.found.rounded):
            self.found.rounded = not fits_float32(block.X)
        X = as_features(block.X, block.where, wide)
        if holes is not None:
            X[holes] = np.nan
        y, weight, where = block.y, block.weight, block.where
        if self.spill is None:
            self._begin_spill(X, block, reader, wide)
        assert self.spill is not None
        X, y = self._intake.admit(X, y, weight, reader, where)
        record = np.zeros(X.shape[0], self.spill.record_type)
        record["row"] = numbers
        record["nnz"] = np.diff(X.indptr) if isinstance(X, csr_array) else 0
        record["weight"] = 1.0 if weight is None else weight
        record["y"] = y
        self.spill.append(record, X)
        self.found.rows += X.shape[0]
        self.found.nonzeros += _count_nonzeros(X, list(reader.categories))

    def _replace_marks(self, block: Block, reader: Reader) -> Block:
        """Return the block with NaN for numbers, and None for labels, that mark missing values.

        `reader`, which read the block, has recognised the texts that mark missing values.

        Raises
        ------
        InputError
            If a feature is missing and none may be, or a number of a sparse row marks a missing
            value.
        """
        missing, X = self.request.missing, block.X
        if not missing.marks:
            return block
        y = (
            None
            if block.y is None
            else _replace_marked_labels(block.y, missing, self.request.choices.regression)
        )
        if isinstance(X, csr_array):
            if missing.find_marks(X.data).any():
                raise InputError(
                    f"{block.where(0)}: sparse rows hold a number that means a missing value, "
                    "which they cannot be without: leave out missing."
                )
            return replace(block, y=y)
        holes = missing.find_marks(X)
        holes[:, [*reader.categories, *reader.dates]] = False
        if not holes.any():
            return replace(block, y=y)
        if not missing.allowed:
            row, c = np.argwhere(holes)[0].tolist()
            raise missing_value_error(f"{block.where(row)}, {reader.describe_column(c)}")
        return replace(block, X=np.where(holes, np.nan, X), y=y)

    def _find_complete_rows(self, block: Block, reader: Reader) -> NDArray[np.int64]:
        """Return the numbers of the block's rows that lack neither a feature value nor a label.

        Rows that lack one are counted in `found.dropped`; the first are listed in
        `found.dropped_rows`. `reader`, which read the block, knows its categories and column names.
        """
        if isinstance(block.X, csr_array):
            lacks = np.zeros((block.X.shape[0], 0), bool)
        else:
            lacks = np.isnan(block.X)
            for c, kinds in reader.categories.items():
                if MISSING_CATEGORY in kinds:
                    lacks[:, c] |= block.X[:, c] == kinds.index(MISSING_CATEGORY)
        lacking = lacks.any(axis=1)
        if block.y is not None and not self.request.choices.unlabelled:
            absent = [plain_label(value) is None for value in block.y.ravel().tolist()]
            absent_by_row = np.array(absent, bool).reshape(block.X.shape[0], -1)
            lacking = lacking | absent_by_row.any(axis=1)
        found = self.found
        max_rows = self.tuning.max_listed_rows
        for row in np.flatnonzero(lacking)[: max_rows - len(found.dropped_rows)].tolist():
            names = (
                repr(reader.names[c]) if reader.names else reader.describe_column(c)
                for c in np.flatnonzero(lacks[row]).tolist()
            )
            found.dropped_rows.append(f"{block.where(row)}: {', '.join(names) or 'the label'}")
        found.dropped += int(np.count_nonzero(lacking))
        return np.flatnonzero(~lacking)

    def _zero_missing(self, block: Block) -> tuple[Block, NDArray[np.bool_] | None]:
        """Return the block with 0 for missing numbers, and a mask (rows, d) of these numbers.

        The mask is None if no number is missing, or if the block is sparse.
        """
        if not self.request.missing.allowed or issparse(block.X):
            return block, None
        holes = np.isnan(block.X)
        if not holes.any():
            return block, None
        return replace(block, X=np.where(holes, 0, block.X)), holes

    def _needs_float64(self, block: Block) -> bool:
        """Whether the features of a block are kept as float64, as float32 would lose digits.

        Raises
        ------
        _NeedsFloat64Error
            If this block needs float64, earlier blocks were read as float32, and the sources can be
            read again.
        """
        if self.wide or (self.shape is not None and self.shape.wide):
            return True
        known = [] if self.shape is None else self.shape.spread or []
        # (`BlockChecker.admit` refuses rows of another width.)
        alike = len(known) == block.X.shape[1]
        column = first_coarse_column(block.X, np.array(known) if alike else None)
        needed = column is not None or (self.request.exact and not fits_float32(block.X))
        if self.shape is None or not needed:
            return needed
        if self.request.repeatable:
            raise _NeedsFloat64Error
        if self.found.narrowed is None:
            self.found.narrowed = column
        return False

    def _begin_spill(self, X: Features, block: Block, reader: Reader, wide: bool) -> None:
        """Fix the properties that all blocks share, by the first block; create the bucket files.

        Parameters
        ----------
        X : dense or CSR array (rows, d)
            Features of the block as they will be stored.
        block : Block
            The block as it was read.
        reader : Reader
            The source of the block.
        wide : bool
            Whether features are float64.
        """
        sparse = isinstance(X, csr_array)
        size = 8 if wide else 4
        row_bytes = size * X.shape[1]
        if isinstance(X, csr_array):
            row_bytes = (4 + size) * len(X.data) // X.shape[0]
        n_targets = self._count_targets(block)
        row_bytes += record_type(n_targets).itemsize
        kinds, dates, truths = self._find_kinds_elsewhere(reader)
        shape = BlockShape(
            sparse=sparse,
            width=None if sparse else X.shape[1],
            weighted=block.weight is not None,
            names=reader.names,
            categorical=sorted({*reader.categories, *kinds}),
            dates={str(c): form for c, form in {**reader.dates, **dates}.items()},
            hashed={str(c): bits for c, bits in reader.hashed.items()},
            bits=choose_bucket_bits(self.request.expected_bytes, self.tuning),
            rows_per_bucket=max(self.tuning.bucket_bytes // row_bytes, 1),
            wide=wide,
            left_out=reader.left_out,
            spread=None if sparse or wide else column_spreads(block.X).tolist(),
            index_names=reader.index_names,
            skipped=reader.skipped,
            label_at=reader.label_at,
            truths=sorted({*reader.truths, *truths}),
            n_targets=n_targets,
            targets=reader.targets,
        )
        self.journal.write({"shape": shape.__dict__})
        self._prepare(shape, {})

    def _count_targets(self, block: Block) -> int:
        """Return the number of targets of each row, by the first block; 1 if rows have labels."""
        if self.request.n_targets is not None:
            return self.request.n_targets
        is_table = self.request.choices.regression and block.y is not None and block.y.ndim == 2
        return block.y.shape[1] if is_table and block.y is not None else 1

    def _find_kinds_elsewhere(self, reader: Reader) -> tuple[list[int], dict[int, str], list[int]]:
        """Return text, date and truth value columns that are blank only in the first source.

        A column is blank if all its values in the first rows are missing. Later sources are opened,
        but not read, until the type of each blank column is known.

        Parameters
        ----------
        reader : Reader
            The first source.

        Returns
        -------
        categorical : list of int
            Text columns.
        dates : dict of int to str
            Date columns, and the format of each.
        truths : list of int
            Columns of true and false.
        """
        categorical: list[int] = []
        dates: dict[int, str] = {}
        truths: list[int] = []
        blank = set() if self.request.like is not None else {*reader.blank}
        for opened in self.request.openers[self.found.source + 1 :]:
            if not blank:
                break
            try:
                other = opened()
            except InputError:
                continue  # the error is reported when this source is read
            if other.names != reader.names:
                continue
            known = blank - other.blank
            blank -= known
            categorical += [c for c in known if c in other.categories]
            dates |= {c: form for c, form in other.dates.items() if c in known}
            truths += known & other.truths
        return categorical, dates, truths

    def _prepare(self, shape: BlockShape, lengths: dict[int, list[int]]) -> None:
        """Set the shape (common properties) of all blocks, and open the bucket files for rows.

        `lengths` gives, for each bucket, the valid bytes and checksums of its two files.
        """
        choices = self.request.choices
        order = Order(choices.seed, choices.shuffle, shape.bits, shape.rows_per_bucket)
        self.shape = shape
        kinds = shape.width, lengths, shape.wide, shape.n_targets
        self.spill = Spill(self.folder, order, *kinds, self.tuning)
        self._intake = BlockChecker(self.found, shape, self.request.like, choices)

    def _update_index_base(self, reader: Reader) -> None:
        """Lower `found.index_base` to 0 if the svmlight file of `reader` is 0-based."""
        if isinstance(reader, SvmlightReader):
            base, known = reader.index_base(), self.found.index_base
            # If one svmlight file is 0-based, all are read as 0-based.
            self.found.index_base = base if known is None else min(base, known)

    def _save_if_due(self) -> None:
        """Save the rows read so far if they take many bytes, or the last save was long ago."""
        if self.spill is None:
            return
        due = self.spill.pending >= max(self.tuning.checkpoint_bytes, len(self.spill.lengths) << 16)
        if due or time.monotonic() - self._saved >= self.tuning.checkpoint_seconds:
            self._save()

    def _count_categories(self) -> dict[int, int]:
        """Return the number of categories of each categorical column, keyed by column."""
        return {c: len(texts) for c, texts in self.found.categories.items()}

    def _save(self) -> None:
        """Write the rows read so far to disk: first the rows, then a line of the journal.

        The line holds the state of the pass and, of its labels, categories and dropped rows, those
        that are new since the line before.
        """
        assert self.spill is not None
        lengths = self.spill.flush()
        labels, sizes = self._written
        # Only the new entries of the lists, which would otherwise be written in every line.
        fresh = {
            **self.found.__dict__,
            "labels": self.found.labels[labels:],
            "dropped_rows": self.found.dropped_rows[self._listed :],
            "categories": {c: v[sizes.get(c, 0) :] for c, v in self.found.categories.items()},
        }
        self.journal.write({"found": fresh, "lengths": lengths})
        self._written = len(self.found.labels), self._count_categories()
        self._listed = len(self.found.dropped_rows)
        self._saved = time.monotonic()

    def _restore(self, line: dict[str, Any]) -> None:
        """Add a saved journal line {"found": ..., "lengths": ...} to the state in `found`.

        Each line holds only the labels, categories and dropped rows that are new since the line
        before.
        """
        known, new = self.found, dict(line["found"])
        known.labels += new.pop("labels")
        known.dropped_rows += new.pop("dropped_rows", [])
        for c, texts in new.pop("categories").items():
            known.categories.setdefault(int(c), []).extend(texts)
        known.unseen = {int(c): count for c, count in new.pop("unseen").items()}
        known.unknown = {int(c): count for c, count in new.pop("unknown", {}).items()}
        for name, value in new.items():
            setattr(known, name, value)


@contextmanager
def _name_source(name: str) -> Iterator[None]:
    """Add the name of the source to an error of the operating system that names no file."""
    try:
        yield
    except OSError as error:
        if error.filename is None and not isinstance(error, (ConnectionError, TimeoutError)):
            error.filename = name
        raise


def _read_blocks(name: str, blocks: Iterable[Block]) -> Iterator[Block]:
    """Yield the blocks of the source called `name`; errors of the operating system name it."""
    with _name_source(name):
        yield from blocks


def _raise_later(error: NoRows) -> Iterator[Block]:
    """Raise the error of an empty source when its first block is requested."""
    yield from ()
    raise error


def _read_small_source(max_bytes: int, opened: Callable[[], Reader]) -> _Open | None:
    """Return the reader of a small source and all its blocks; None if it must be read in its turn.

    None is returned for a source that is invalid, large, or an open matrix file: it is read again
    after the sources before it, so that its error is raised in order.

    Parameters
    ----------
    max_bytes : int
        A source whose numbers take more bytes is large.
    opened : callable
        Opens the source and returns its reader.
    """
    blocks: list[Block] = []
    held = 0
    try:
        reader = opened()
        if isinstance(reader, MatrixReader):  # its open file cannot be sent elsewhere
            return None
        for block in reader.blocks():
            blocks.append(block)
            held += block.X.data.nbytes
            if held > max_bytes:
                return None
    except FileChanged:
        raise
    except (InputError, OSError):
        return None
    return reader, blocks


def _densify_categories(block: Block, reader: Reader) -> Iterator[Block]:
    """Yield the block; sparse rows with categories become dense, as 0 is a category's code there.

    Dense parts have at most ``reader.piece_bytes`` each. `reader`, which read the block, says which
    columns are categories.
    """
    if not (isinstance(block.X, csr_array) and reader.categories):
        yield block
        return
    step = max(reader.piece_bytes // (8 * block.X.shape[1]), 1)
    for at in range(0, block.X.shape[0], step):
        part = block.take(np.arange(at, min(at + step, block.X.shape[0])))
        yield replace(part, X=csr_array(part.X).toarray(), first_row=block.first_row + at)


def _replace_marked_labels(y: NDArray[Any], missing: Missing, targets: bool) -> NDArray[Any]:
    """Return labels with None, or targets with NaN, in place of marks of missing values.

    A numeric label is never a mark: -1 is a class far more often than a mark of a missing label.

    Parameters
    ----------
    y : array (rows,) or (rows, targets)
        Labels or targets; an object array may hold texts, numbers and None.
    missing : Missing
        The marks.
    targets : bool
        Whether `y` holds regression targets.
    """
    if y.dtype == object:
        marks = [
            value in missing and (targets or isinstance(plain_label(value), str))
            for value in y.ravel().tolist()
        ]
        return np.where(np.array(marks, bool).reshape(y.shape), np.array(None), y)
    holes = missing.find_marks(y) if targets else np.zeros(y.shape, bool)
    return np.where(holes, np.nan, y) if holes.any() else y


def _count_nonzeros(X: Features, categorical: list[int]) -> int:
    """Count the nonzeros that the rows will have once each category is a column of its own.

    `categorical` lists the columns of X that hold category codes (-1: no category).
    """
    if isinstance(X, csr_array):
        return len(X.data)
    of_codes = X[:, categorical]
    return int(np.count_nonzero(X) - np.count_nonzero(of_codes) + np.count_nonzero(of_codes >= 0))
