"""Ingest: stream files or arrays to a dataset on disk, in bounded memory; killed runs can resume.

There are two passes. The first (`read_pass`) checks the rows and appends each row to one of many
bucket files, chosen by a hash of the row's number. Then `settle` fixes labels, scaling and layout.
The second pass (`write_pass`) sorts one bucket after the other in memory and writes the chunks of
the dataset. Temporary files live in `<path>.ingest.wip`, which is deleted at the end. A journal in
that folder records what is done, so that a run that was killed resumes where it stopped.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from bigscreen.data.dataset import MANIFEST, Dataset
from bigscreen.data.folder import store_path, unfinished_path
from bigscreen.data.layout import Label
from bigscreen.data.missing import as_marks
from bigscreen.data.preparation import Preparation
from bigscreen.data.texts import parse_dates, parse_hashes
from bigscreen.errors import InputError, MissingValue, TimeOver, reason_of
from bigscreen.files.remote import RemotePath, as_path
from bigscreen.files.scratch import check_own, make_private_folder
from bigscreen.files.sealed import hash_json
from bigscreen.fleet.inline import Inline
from bigscreen.fleet.memory import allowed_memory
from bigscreen.fleet.protocol import Each, Fleet
from bigscreen.intake.choices import (
    Choices,
    Column,
    Pattern,
    add_absent_category,
    parse_row_range,
    read_pattern,
    settle_label,
)
from bigscreen.intake.inputs import Input, label_files, list_inputs
from bigscreen.intake.needs import count_threads
from bigscreen.intake.read_pass import Reading, ReadRequest
from bigscreen.intake.settle import Ingested, StoreBuilder, StoreRequest
from bigscreen.intake.spill import JOURNAL, LOCK, Journal
from bigscreen.intake.tuning import TUNING
from bigscreen.model.model import Model

Progress = Callable[[dict[str, Any]], None]
"""A function that is called with an event of `ingest`: a dict of its phase, bytes and rows done."""

BUCKETS = "buckets"
"""Folder of the bucket files (rows in the order they were read) in the folder of an ingest."""

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
"""Error numbers that mean that no more bytes can be written to a disk."""


def ingest(  # noqa: PLR0913
    sources: Any,
    path: str | os.PathLike[str],
    *,
    label: Column | Sequence[Column] | None = None,
    weight: Column | None = None,
    drop: Sequence[Column] = (),
    columns: Sequence[Column] = (),
    categorical: Sequence[Column] = (),
    date: Sequence[str] = (),
    hashed: Sequence[str] = (),
    header: bool | None = None,
    delimiter: str | None = None,
    decimal: Literal[".", ","] | None = None,
    zero_based: bool | Literal["auto"] = "auto",
    labels_file: str | os.PathLike[str] | None = None,
    h5_x: str | None = None,
    h5_y: str | None = None,
    holdout: float = 0,
    seed: int = 0,
    rows: str | None = None,
    scale: str = "none",
    impute: str | None = None,
    add_indicator: bool = False,
    drop_missing: bool = False,
    missing: Sequence[str | float] = (),
    positive: Label | None = None,
    regression: bool = False,
    unlabelled: bool = False,
    like: str | os.PathLike[str] | Dataset | Model | Preparation | None = None,
    shuffle: bool = True,
    layout: Literal["auto", "dense", "sparse"] = "auto",
    max_kinds: int | None = None,
    memory: int | None = None,
    threads: int | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    deadline: float | None = None,
    fleet: Fleet | None = None,
) -> Ingested:
    """Make a dataset of files or arrays.

    Parameters
    ----------
    sources : path, list of paths, frame, array, (X, y), (X, y, weight), or iterable of these
        svmlight, CSV, TSV, ARFF, HDF5, NPY, NPZ, IDX, Parquet or Feather files, folders of them,
        or patterns such as ``part-*.csv``; pandas, polars, Arrow and dask data frames; numpy, scipy
        sparse, dask or zarr arrays. Row numbers run from 0 over all sources in their order.
    path : path
        The dataset to make. If it is a URL, the finished dataset is copied there, manifest last.
    label, weight : str or int, optional
        Columns of tables, by name or position (0 is the first, -1 the last). label="none": there
        are no labels. With `regression` the label column holds the target, and a sequence of
        columns holds several; other sources give them as y of shape (rows, targets).
    drop, columns : sequence of str or int
        Columns of tables to leave out, and columns to take as features (default: all others).
    date : sequence of str
        Columns of dates, as COLUMN=FORMAT with a format of `strptime` such as "born=%d/%m/%Y"; they
        become days since 1970. Dates in ISO 8601 are recognised without being named.
    hashed : sequence of str
        Text columns with too many categories for a feature each, as COLUMN:BITS: a hash of the
        text picks one of ``2**BITS`` features.
    decimal : {".", ","}, optional
        Decimal mark of numbers in text tables. If it is given, the other mark, blanks and
        apostrophes may separate thousands. Default: a point, and no thousands separators.
    categorical, header, delimiter, zero_based, labels_file, h5_x, h5_y
        How to read the sources: text columns whose values are categories although they read as
        numbers; whether the first row has names (detected); what separates columns (detected);
        whether svmlight columns are counted from 0 (detected); the labels of IDX, NPY or NPZ files;
        names of the datasets in an HDF5 file.
    holdout : float, default=0
        Fraction (below 1) or number of rows for a second dataset: `train-holdout.store`
        next to `train.store`.
    seed : int, default=0
        Seed of the shuffle and of the choice of the held-out rows.
    rows : str, optional
        "A:B" takes only the rows A to B-1, counted from 0; A or B may be left out.
    scale : str, default="none"
        "none", "standard", "minmax" or "divide:N": scaling of numeric columns, computed on the
        rows that are not held out. Categories stay 0 and 1. "auto": "standard" for dense tables,
        whose columns of 0 and 1 stay as they are; "none" for sparse sources or a sparse layout.
    impute : {"mean", "median", "most-frequent", "zero"}, optional
        Replacement of a missing number ("", "?", "NA", NaN, null), computed for each column from
        the rows that are not held out (medians and commonest values from at most 100,000 rows).
        A missing text is a category of its own. Default: a missing value is an error.
    add_indicator : bool, default=False
        With `impute`: each column of which a number is missing (in the rows that are not held out)
        gets one more feature, which is 1 where it is missing and 0 elsewhere, and is not scaled.
        They come after all other features. Numbers missing in other columns are filled alone.
    drop_missing : bool, default=False
        Leave out the rows that lack a feature value or their label. Other rows keep their row
        numbers.
    missing : sequence of str or float
        Further marks of missing values, in every column: texts such as "-", and numbers such as
        -999, which also match equal numbers that are written differently. Labels are missing if
        they equal a text mark; targets if they equal a text or a number.
    positive : label, optional
        Make two labels: this one (code 1) and "rest" (code 0).
    regression : bool, default=False
        Labels are targets: finite numbers, stored as float64. Rows may lack a target only with
        `like`; a missing target is stored as NaN. Several targets of a row share its features, and
        a fit gives each a machine of its own.
    unlabelled : bool, default=False
        Rows for a one-class machine: every column is a feature except a column named as `label`.
        Labels that are separate from the columns (svmlight, HDF5, arrays, ...) are ignored.
    like : path of a dataset or model, Dataset, Model or Preparation, optional
        Take columns, categories, scaling and labels from this store or model. If it has no
        labels, the sources may have any labels.
    shuffle : bool, default=True
        Store the rows in a random order that `seed` determines; otherwise in source order.
    layout : {"auto", "dense", "sparse"}
        "auto": the layout of `like`; without `like`, sparse if there are more than 256 features
        and CSR takes less than half the bytes of dense rows. Both layouts hold the same numbers,
        except that sparse rows without categories are scaled without centring.
    max_kinds : int, optional
        Most categories that a column may have; each becomes a feature. Default: 1,000, and for
        more than 50 categories at most one for each ten rows. It limits the number of labels,
        too; the default for labels is 200.
    memory : int, optional
        Bytes of memory that the ingest may use; sources that need more are refused. Default: 0.8
        of the memory that the process may use.
    threads : int, optional
        Threads that parse, sort and write; fewer if `memory` is small. The dataset is the same
        for any number of threads. Default: one per core.
    overwrite : bool, default=False
        Replace an existing dataset at `path`, once the new dataset is complete.
    progress : callable, optional
        Called with dicts {"event": "ingest", "phase": "read", "bytes", "bytes_total" (0: unknown),
        "rows"}, then {"event": "ingest", "phase": "measure" or "write", "rows", "rows_total"}.
    deadline : float, optional
        Value of ``time.monotonic()`` at which to stop.
    fleet : Fleet, optional
        Workers, as `local_cluster` or `connect` return them. They parse pieces of plain CSV and
        svmlight files, row groups of Parquet, and small files, and sort the rows. The dataset is
        the same. The workers must see the files, and the folder of the dataset, under the same
        paths. Default: threads of this process do all work.

    Returns
    -------
    Ingested
        The datasets ``store`` and ``holdout`` (or None), and ``notes``: sentences for the user.

    Raises
    ------
    InputError
        For anything wrong with the sources, the options or the place to write to.
    KeyboardInterrupt
        With a message that says what is kept; a run with the same arguments resumes.
    TimeOver
        At the deadline; a run with the same arguments resumes.

    Notes
    -----
    During the ingest the disk holds the rows twice: in the buckets and in the new dataset.
    """
    pattern = read_pattern(like)
    known = None if pattern is None else pattern.preparation
    choices = Choices(
        holdout=holdout,
        seed=seed,
        rows=parse_row_range(rows),
        scale=scale,
        impute=impute,
        add_indicator=add_indicator,
        drop_missing=drop_missing,
        missing=tuple(as_marks(missing)),
        positive=positive,
        regression=regression,
        unlabelled=unlabelled,
        shuffle=shuffle,
        layout=layout,
        max_kinds=max_kinds,
    ).check(known)
    options: dict[str, Any] = {
        "label": settle_label(label, choices, pattern),
        "weight": weight,
        "drop": tuple(drop),
        "columns": tuple(columns),
        "categorical": tuple(categorical),
        "dates": parse_dates(date),
        "hashed": parse_hashes(hashed),
        "header": header,
        "delimiter": delimiter,
        "decimal": decimal,
        "zero_based": zero_based,
        "labels_file": None if labels_file is None else str(labels_file),
        "h5_x": h5_x,
        "h5_y": h5_y,
        "unlabelled": unlabelled,
    }
    allowed = allowed_memory(memory)
    inputs, how = _list_inputs(sources, options, choices, pattern, allowed)
    target = _Target.of(path, overwrite)
    record = choices.record(known)
    job = {
        "sources": [source.identity for source in inputs],
        **options,
        **record,
        "labels_file": label_files(inputs, labels_file),
        "like": None if pattern is None else pattern.record(),
    }
    request = ReadRequest(
        names=[source.name for source in inputs],
        openers=[partial(source.open, how) for source in inputs],
        expected_bytes=sum(source.expected_bytes for source in inputs),
        choices=choices,
        like=known,
        missing=how["missing"],
        # Not if `rows` ends within a file: later rows may have further categories.
        small=[
            s.anywhere_opener(how)
            if s.is_small(TUNING.max_whole_bytes) and choices.rows[1] is None
            else None
            for s in inputs
        ],
        exact=pattern is not None and pattern.exact,
        repeatable=all(source.identity is not None for source in inputs),
        n_targets=None if pattern is None else pattern.n_targets,
    )
    wanted = StoreRequest(
        path=target.here,
        choices=choices,
        like=known,
        like_sparse=None if pattern is None else pattern.sparse,
        overwrite=overwrite,
        extra={"sources": [source.name for source in inputs], **record},
        decimal=decimal,
        memory=allowed,
    )
    report = _Reporter(progress, [source.size for source in inputs], deadline)
    advised = _advise_on_missing(pattern)
    with target, Inline(count_threads(allowed, threads)) as own, advised:
        each = partial(own.each, in_flight=own.workers + 1)
        return target.take(_run(request, wanted, job, report, each, fleet))


@contextmanager
def _advise_on_missing(pattern: Pattern | None) -> Iterator[None]:
    """Advise against imputation for a missing value if the numbers for it come from ``pattern``."""
    try:
        yield
    except MissingValue as error:
        if pattern is None:
            raise
        advice = (
            "fill it in, or leave such rows out (`drop_missing`), as the rows that these are to be "
            "like had no missing values"
        )
        raise MissingValue.at(error.place, advice) from None


def _list_inputs(
    sources: Any,
    options: dict[str, Any],
    choices: Choices,
    pattern: Pattern | None,
    memory: int,
) -> tuple[list[Input], dict[str, Any]]:
    """Return the single inputs that `sources` names, and the options that open them.

    Parameters
    ----------
    sources : path, list of paths, array, data frame, or any other source of `ingest`
    options : dict
        The reading options of `ingest`.
    choices : Choices
        Options of `ingest` that decide what the store holds.
    pattern : Pattern or None
        Existing store or model that the new store takes its columns from.
    memory : int
        Bytes of memory allowed.

    Returns
    -------
    inputs : list of Input
    options : dict
        `options` with the marks of missing values, the columns of `pattern`, the size of pieces
        and the memory added.
    """
    known = None if pattern is None else pattern.preparation
    how = {
        **options,
        "missing": choices.missing_rule(known),
        "piece_bytes": TUNING.piece_bytes,
    }
    if known is not None and known.n_raw is not None:
        how["like"] = add_absent_category(known) if choices.drop_missing else known
        if pattern is not None and pattern.index_base is not None:
            # (Columns of svmlight that count from 1 have no column 0.)
            how["like"] = replace(how["like"], skipped=[])
    inputs = list_inputs(sources, how, TUNING)
    if pattern is not None and pattern.index_base is not None and options["zero_based"] == "auto":
        how["zero_based"] = pattern.index_base == 0
    return inputs, {**how, "memory": memory}


class _Target:
    """Where a dataset is written: at its own path, or in a local folder before a copy to a URL.

    Attributes
    ----------
    here : Path
        The local folder that the dataset is written to.
    """

    def __init__(self, here: Path, elsewhere: RemotePath | None = None) -> None:
        """Set the dataset's local folder, and the URL it is copied to (None: it stays there)."""
        self.here, self._elsewhere = here, elsewhere

    @classmethod
    def of(cls, path: str | os.PathLike[str], overwrite: bool) -> _Target:
        """Return the target for a path or a URL.

        Raises
        ------
        InputError
            If there is a dataset at the URL, and `overwrite` is false; or `path` is neither a path
            nor a URL.
        """
        elsewhere = as_path(path)
        if not isinstance(elsewhere, RemotePath):
            return cls(store_path(path))
        if (elsewhere / MANIFEST).exists() and not overwrite:
            raise InputError(f"{elsewhere} exists already; choose another path or overwrite it.")
        return cls(_local_folder(elsewhere), elsewhere)

    def take(self, made: Ingested) -> Ingested:
        """Return the datasets at their final place: copied to the URL if there is one.

        `made` are the finished datasets in the local folder.
        """
        return made if self._elsewhere is None else _copy_to_url(made, self._elsewhere)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        """Remove the local folder of a dataset that was copied to a URL, if it is empty."""
        if self._elsewhere is not None:
            with suppress(OSError):  # the folder stays if a later run can resume with what is in it
                self.here.parent.rmdir()


def _local_folder(target: RemotePath) -> Path:
    """Return the local folder for a dataset that is copied to the URL `target`.

    It is equal for equal URLs, so that a second run finds the files of a first run that was killed.
    A finished dataset in it, whose copy to the URL did not end, is deleted.
    """
    path = make_private_folder(f"ingest-{os.geteuid()}-{hash_json(str(target))[:16]}") / target.name
    # A complete dataset whose copy did not end is made again: its journal is gone.
    if not path.with_name(path.name + ".ingest.wip").exists():
        shutil.rmtree(path, ignore_errors=True)
    return path


def _copy_to_url(made: Ingested, target: RemotePath) -> Ingested:
    """Copy datasets to their URL, the main one last, and remove the local files.

    Parameters
    ----------
    made : Ingested
        The datasets in a local folder.
    target : RemotePath
        URL of the main dataset; the hold-out dataset keeps its own name next to it.

    Returns
    -------
    Ingested
        The datasets at the URL, and the notes of `made`.
    """
    copies: list[Dataset] = []
    stores = [made.store] if made.holdout is None else [made.holdout, made.store]
    try:
        for store in stores:
            assert isinstance(store.path, Path)
            place = target.with_name(store.path.name)
            if place.exists():
                place.remove()
            for file in sorted(store.path.rglob("*"), key=lambda file: file.name == MANIFEST):
                if file.is_file():
                    place.joinpath(*file.relative_to(store.path).parts).take(file)
            copies.append(Dataset.open(place))
    finally:
        for store in stores:
            shutil.rmtree(str(store.path))
    return replace(made, store=copies[-1], holdout=copies[0] if len(copies) > 1 else None)


def _run(
    request: ReadRequest,
    wanted: StoreRequest,
    job: dict[str, Any],
    report: _Reporter,
    each: Each,
    fleet: Fleet | None,
) -> Ingested:
    """Make the datasets, or resume an earlier run, under the lock and journal of this ingest.

    Parameters
    ----------
    request : ReadRequest
        The sources, and how their rows are read.
    wanted : StoreRequest
        Where and how the rows are stored.
    job : dict
        JSON values of the sources and options: a journal of another job is refused.
    report : _Reporter
        Passes progress to the caller, and ends the run at the deadline.
    each : callable
        Applies a function to items in threads of this process.
    fleet : Fleet or None
        Worker processes that read and sort; None: `each` does all work.

    Returns
    -------
    Ingested
    """
    work = wanted.path.with_name(wanted.path.name + ".ingest.wip")
    if not (work / JOURNAL).exists():
        _refuse_existing(wanted)
    for folder in (work, *map(unfinished_path, wanted.paths)):
        check_own(folder)
    resumable = request.repeatable
    with _explain_errors(work, resumable):
        journal = Journal(work, job, wanted.overwrite)
        try:
            if not any("finishing" in line for line in journal.lines):
                _refuse_existing(wanted)
            if not journal.lines:
                _clear_unfinished(wanted)
            try:
                made = _find_finished(wanted, journal)
                made = made or _make(request, wanted, journal, report, each, fleet)
            except BaseException as error:
                # A run that cannot be resumed leaves nothing. The journal is removed before the
                # rows that it counts.
                if isinstance(error, InputError) or not resumable:
                    for folder in map(unfinished_path, wanted.paths):
                        shutil.rmtree(folder, ignore_errors=True)
                    (work / JOURNAL).unlink(missing_ok=True)
                    shutil.rmtree(work, ignore_errors=True)
                raise
        finally:
            journal.close()
        shutil.rmtree(work / BUCKETS, ignore_errors=True)
        shutil.rmtree(work)
    return made


def _make(
    request: ReadRequest,
    wanted: StoreRequest,
    journal: Journal,
    report: _Reporter,
    each: Each,
    fleet: Fleet | None,
) -> Ingested:
    """Run both passes, record in the journal that they are done, and return the datasets.

    Parameters
    ----------
    request : ReadRequest
        The sources, and how their rows are read.
    wanted : StoreRequest
        Where and how the rows are stored.
    journal : Journal
        Records what is done, for a run that resumes.
    report : _Reporter
        Passes progress to the caller, and ends the run at the deadline.
    each : callable
        Applies a function to items in threads of this process.
    fleet : Fleet or None
        Workers that read and sort; None: `each` does all work.
    """
    if fleet is not None:  # the workers must see the folder
        fleet.rely_on([journal.folder / LOCK])
    anywhere = None if fleet is None else fleet.each
    reading = Reading(request, journal.folder.absolute() / BUCKETS, journal, TUNING)
    reading.run(report.read, each, anywhere)
    made = StoreBuilder(wanted, reading, journal, report.build).run(each, anywhere)
    dropped = [made.dropped, made.dropped_rows]
    journal.write({"finished": made.notes, "dropped": dropped})
    return made


def _find_finished(wanted: StoreRequest, journal: Journal) -> Ingested | None:
    """Return the datasets of an earlier run that was killed after it had finished them.

    Return None if the journal does not say that they are finished: then they must be made.

    Parameters
    ----------
    wanted : StoreRequest
        Its paths are those of the datasets.
    journal : Journal
        Its lines tell what earlier runs have done.
    """
    for line in journal.lines:
        if "finished" in line:
            made = [Dataset.open(path) for path in wanted.paths]
            dropped = line.get("dropped", [0, []])
            held = made[1] if len(made) > 1 else None
            return Ingested(made[0], held, line["finished"], *dropped)
    return None


def _refuse_existing(wanted: StoreRequest) -> None:
    """Raise InputError if a requested path exists, unless it is a dataset to be overwritten."""
    for path in wanted.paths:
        if path.exists() and not wanted.overwrite:
            raise InputError(f"{path} exists already; choose another path or overwrite it.")
        if path.exists() and not (path / MANIFEST).exists():
            raise InputError(f"{path} is not a bigscreen dataset, so it is not overwritten.")


def _clear_unfinished(wanted: StoreRequest) -> None:
    """Delete unfinished datasets that another run has left at the requested paths.

    Raises
    ------
    InputError
        If there is one, and `wanted.overwrite` is false.
    """
    for folder in map(unfinished_path, wanted.paths):
        if folder.exists() and not wanted.overwrite:
            raise InputError(
                f"{folder} was left by another run: delete it or use overwrite to start anew."
            )
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _explain_errors(work: Path, resumable: bool) -> Iterator[None]:
    """Turn errors of the operating system, and Ctrl-C, into a sentence that says what is kept.

    Parameters
    ----------
    work : Path
        Folder with the journal and the rows read so far.
    resumable : bool
        Whether a second run can go on from `work`; else nothing is kept.
    """
    kept = f"what was done is kept in {work}; run the same command again to go on, or delete it."
    if not resumable:
        kept = "nothing is kept, because these blocks cannot be read from the middle."
    try:
        yield
    except OSError as error:
        if error.errno in _DISK_FULL:
            raise InputError(f"the disk of {work.parent} is full: make room; {kept}") from error
        if isinstance(error, (ConnectionError, TimeoutError)):  # of the network: no file
            raise type(error)(f"{reason_of(error)}; {kept}") from error
        place = error.filename or work
        raise InputError(
            f"{place} cannot be read or written: {reason_of(error)}; {kept}"
        ) from error
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"stopped: {kept}") from None
    except TimeOver as error:
        raise TimeOver(f"{error}; {kept}") from None


class _Reporter:
    """Turns the reports of both passes into events of `ingest`, and raises at the deadline.

    Parameters
    ----------
    progress : callable or None
        Called with each event, a dict: phase, bytes and rows done. None: not called.
    sizes : list of int
        Bytes of each source on disk.
    deadline : float or None
        Value of ``time.monotonic()`` after which TimeOver is raised.
    """

    def __init__(self, progress: Progress | None, sizes: list[int], deadline: float | None) -> None:
        """Report to ``progress`` (None: report nothing), and stop at ``deadline`` (None: never).

        ``sizes`` are the bytes of each source on disk. ``deadline`` is a value of
        ``time.monotonic()``.
        """
        self._progress, self._sizes, self._deadline = progress, sizes, deadline

    def read(self, event: dict[str, Any]) -> None:
        """Report the rows read: `event` is a report of `Reading.run`, for one source.

        Its bytes are scaled to bytes of the source on disk, and bytes of earlier sources are added.
        """
        done, total = event["bytes"], event["total"]
        of_source = self._sizes[event["source"]]
        # The reader of a compressed file may count uncompressed bytes, not bytes on disk.
        share = of_source * done // total if total else done
        self._send(
            phase="read",
            bytes=sum(self._sizes[: event["source"]]) + share,
            bytes_total=sum(self._sizes),
            rows=event["rows"],
        )

    def build(self, event: dict[str, Any]) -> None:
        """Report the rows measured or written: `event` has the phase, its rows so far, and all."""
        self._send(**event)

    def _send(self, **event: Any) -> None:
        """Pass an event with these entries to the caller; raise TimeOver past the deadline."""
        if self._deadline is not None and time.monotonic() > self._deadline:
            raise TimeOver(f"the time budget ended after {event['rows']:,} rows")
        if self._progress is not None:
            self._progress({"event": "ingest", **event})
