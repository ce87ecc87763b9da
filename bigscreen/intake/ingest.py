"""Ingest: from files or arrays to a dataset on disk, streaming, in bounded memory, resumable.

Two passes. `reading` checks the rows and drops each into one of many buckets on disk, by a hash of
its number; then `building` settles labels, scaling and layout, and `arranging` sorts one bucket
after the other in memory and writes the chunks. All in between lives in `<path>.ingest.wip` and is
deleted at the end; a journal there says what is done, so that a killed run goes on where it was.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal

from bigscreen.data.dataset import MANIFEST, Dataset
from bigscreen.data.folder import store_path, unfinished
from bigscreen.data.layout import Label
from bigscreen.data.missing import as_marks
from bigscreen.data.preparation import Preparation
from bigscreen.data.texts import parse_dates, parse_hashes
from bigscreen.errors import InputError, TimeOver, reason_of
from bigscreen.files.remote import RemotePath, is_url, located
from bigscreen.files.scratch import check_own, private_folder
from bigscreen.files.sealed import digest
from bigscreen.fleet.inline import Inline
from bigscreen.fleet.memory import allowed_memory
from bigscreen.fleet.protocol import Each, Fleet
from bigscreen.intake.choices import Choices, Pattern, pattern_of, row_range, with_absent
from bigscreen.intake.inputs import Input, inputs_of
from bigscreen.intake.needs import threads_within
from bigscreen.intake.read_pass import Reading, Request
from bigscreen.intake.settle import Build, Ingested, Wanted
from bigscreen.intake.spill import JOURNAL, LOCK, Journal
from bigscreen.model.model import Model

Column = str | int
Progress = Callable[[dict[str, Any]], None]

BUCKETS = "buckets"
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


def ingest(
    sources: Any,
    path: str | os.PathLike[str],
    *,
    label: Column | None = None,
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
    sources : path, list of paths, frame, array, (X, y), (X, y, weight), or iterable of such blocks
        svmlight, CSV, TSV, ARFF, HDF5, NPY, NPZ, IDX or Parquet files, folders of them, or patterns
        such as ``part-*.csv``; pandas, polars, Arrow and dask data frames; numpy, scipy sparse or
        dask arrays. Row numbers run from 0 over all sources in their order.
    path : path
        The dataset to make; to a URL it is copied when it is whole, its manifest last.
    label, weight : str or int, optional
        Columns of tables, by name or position. label="none": there are no labels. With
        `regression` the label is the target.
    drop, columns : sequence of str or int
        Columns of tables to leave out; those to take as features, if not all.
    date : sequence of str
        Columns of dates, as COLUMN=FORMAT with a format of `strptime` such as "born=%d/%m/%Y"; they
        become days since 1970. Those in ISO 8601 are found.
    hashed : sequence of str
        Columns of texts whose kinds are too many to have a feature each, as COLUMN:BITS: a hash of
        the text picks one of ``2**BITS`` features.
    decimal : {".", ","}, optional
        What stands before the decimals of numbers in text tables; the other one sets thousands
        apart, as blanks and apostrophes do. Default: a point, and nothing sets them apart.
    categorical, header, delimiter, zero_based, labels_file, h5_x, h5_y
        How to read: see `open_source` and the readers.
    holdout : float, default=0
        Fraction (below 1) or number of rows for a second dataset: `train-holdout.store`
        beside `train.store`.
    seed : int, default=0
        Of the shuffle and of the choice of the held out rows.
    rows : str, optional
        "A:B" takes the rows number A to B-1 only; either may be left out.
    scale : str, default="none"
        "none", "standard", "minmax" or "divide:N", of numeric columns, computed on the rows that
        are not held out; the 0 and 1 of categories stay as they are.
    impute : {"mean", "median", "most-frequent", "zero"}, optional
        What stands for a missing number ("", "?", "NA", NaN, null) of a column, learnt from the
        rows that are not held out (medians and commonest values from up to 100,000 of them); a
        missing text is a category of its own. Default: a missing value is an error.
    drop_missing : bool, default=False
        Leave out the rows that lack a number, a text or their label. Other rows keep their numbers.
    missing : sequence of str or float
        What else says that a value is missing, in every column: texts such as "-", and numbers such
        as -999 wherever a value equals them. Of labels only texts do, of targets both.
    positive : label, optional
        Make two labels: this one (code 1) and "rest" (code 0).
    regression : bool, default=False
        Labels are targets, finite numbers that are stored as they are, in float64. Only rows of a
        store made like another may lack one, which is NaN then.
    unlabelled : bool, default=False
        Rows for a one-class machine: every column is a feature but the one named as `label`.
        Labels beside the rows (svmlight, HDF5, arrays, ...) are left out, whatever they are.
    like : path of a dataset or model, Dataset, Model or Preparation, optional
        Take columns, categories, scaling and labels from there; of a store without labels, all
        but the labels, of which there may be any number then.
    shuffle : bool, default=True
        Store the rows in an order given by `seed`, otherwise in the order of the source.
    layout : {"auto", "dense", "sparse"}
        "auto": that of `like`; else sparse for more than 256 features of which CSR takes less than
        half the bytes. Either holds the same numbers, except that sparse rows without categories
        are scaled without centring.
    max_kinds : int, optional
        Most kinds that a column of texts, or one named as categorical, may have; each becomes a
        feature. Default: 1,000, but for more than 50 kinds at most one for ten rows. Most labels,
        too; default: 200.
    memory : int, optional
        Bytes that the ingest may take; what needs more is refused. Default: 0.8 of what
        the process may use.
    threads : int, optional
        Threads that parse, sort and write; fewer where `memory` is little. The dataset is the same
        for any number. Default: one per core.
    overwrite : bool, default=False
        Replace what is at `path`, once the new dataset is whole.
    progress : callable, optional
        Gets dicts: {"event": "ingest", "phase": "read", "bytes", "bytes_total" (0: not known),
        "rows"}, then {"event": "ingest", "phase": "measure" or "write", "rows", "rows_total"}.
    deadline : float, optional
        Value of ``time.monotonic()`` at which to stop.
    fleet : Fleet, optional
        Such as `local_cluster` or `connect` give: its workers read and parse the pieces of plain
        CSV and svmlight files, row groups of Parquet, and small files, and sort; the dataset is the
        same. They must see the files, and the folder of the dataset, under the same paths. Default:
        threads here do all.

    Returns
    -------
    Ingested

    Raises
    ------
    InputError
        For anything wrong with the sources, the options or the place to write to.
    KeyboardInterrupt
        With a message that says what is kept; a run with the same arguments goes on.
    TimeOver
        The same, at the deadline.

    Notes
    -----
    While it runs, the disk holds the rows twice: in the buckets and in the new dataset.
    """
    pattern = pattern_of(like)
    known = None if pattern is None else pattern.preparation
    choices = Choices(
        holdout=holdout,
        seed=seed,
        rows=row_range(rows),
        scale=scale,
        impute=impute,
        drop_missing=drop_missing,
        missing=tuple(as_marks(missing)),
        positive=positive,
        regression=regression,
        unlabelled=unlabelled,
        shuffle=shuffle,
        layout=layout,
        max_kinds=max_kinds,
    ).checked(known)
    options: dict[str, Any] = {
        "label": label,
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
    inputs, how = _inputs(sources, options, choices, pattern, allowed)
    target = _Target.of(path, overwrite)
    record = choices.record(known)
    job = {
        "sources": [source.identity for source in inputs],
        **options,
        **record,
        "like": None if known is None else known.fingerprint,
    }
    request = Request(
        names=[source.name for source in inputs],
        openers=[partial(source.open, how) for source in inputs],
        expected_bytes=sum(source.expected_bytes for source in inputs),
        choices=choices,
        like=known,
        missing=how["missing"],
        # (Of a file whose rows are not all wanted the others might have kinds of their own.)
        small=[s.elsewhere(how) if s.small and choices.rows[1] is None else None for s in inputs],
        exact=pattern is not None and pattern.exact,
        repeatable=all(source.identity is not None for source in inputs),
    )
    wanted = Wanted(
        path=target.here,
        choices=choices,
        like=known,
        like_sparse=None if pattern is None else pattern.sparse,
        overwrite=overwrite,
        extra={"sources": [source.name for source in inputs], **record},
        memory=allowed,
    )
    report = _Reporter(progress, [source.size for source in inputs], deadline)
    with target, Inline(threads_within(allowed, threads)) as own:
        each = partial(own.each, in_flight=own.workers + 1)
        return target.take(_run(request, wanted, job, report, each, fleet))


def _inputs(
    sources: Any,
    options: dict[str, Any],
    choices: Choices,
    pattern: Pattern | None,
    memory: int,
) -> tuple[list[Input], dict[str, Any]]:
    """Take the sources apart; returns how their files are opened, too."""
    known = None if pattern is None else pattern.preparation
    how = {**options, "missing": choices.gaps(known)}
    if known is not None and known.n_raw is not None:
        how["like"] = with_absent(known) if choices.drop_missing else known
    inputs = inputs_of(sources, how)
    if pattern is not None and pattern.index_base is not None and options["zero_based"] == "auto":
        how["zero_based"] = pattern.index_base == 0
    return inputs, {**how, "memory": memory}


class _Target:
    """Where a dataset is made: in place, or here to be copied elsewhere when it is whole.

    Attributes
    ----------
    here : Path
    """

    def __init__(self, here: Path, elsewhere: RemotePath | None = None) -> None:
        self.here, self._elsewhere = here, elsewhere

    @classmethod
    def of(cls, path: str | os.PathLike[str], overwrite: bool) -> _Target:
        """Return the target for a path or URL; InputError if a URL exists already."""
        elsewhere = located(path) if is_url(path) else None
        if not isinstance(elsewhere, RemotePath):
            return cls(store_path(path))
        if (elsewhere / MANIFEST).exists() and not overwrite:
            raise InputError(f"{elsewhere} exists already; choose another path or overwrite it.")
        return cls(_made_here(elsewhere), elsewhere)

    def take(self, made: Ingested) -> Ingested:
        """Bring what was made to where it belongs."""
        return made if self._elsewhere is None else _copied(made, self._elsewhere)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        if self._elsewhere is not None:
            with suppress(OSError):  # unless a later run goes on with what is in it
                self.here.parent.rmdir()


def _made_here(target: RemotePath) -> Path:
    """Where a dataset is made that is to go elsewhere: the same place for the same command."""
    path = private_folder(f"ingest-{os.geteuid()}-{digest(str(target))[:16]}") / target.name
    # What was whole and not copied to its end is made again: its journal is gone.
    if not path.with_name(path.name + ".ingest.wip").exists():
        shutil.rmtree(path, ignore_errors=True)
    return path


def _copied(made: Ingested, target: RemotePath) -> Ingested:
    """Copy datasets to where they belong, the main one last, and remove them here."""
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
    return Ingested(copies[-1], copies[0] if len(copies) > 1 else None, made.notes)


def _run(
    request: Request,
    wanted: Wanted,
    job: dict[str, Any],
    report: _Reporter,
    each: Each,
    fleet: Fleet | None,
) -> Ingested:
    work = wanted.path.with_name(wanted.path.name + ".ingest.wip")
    if not (work / JOURNAL).exists():
        _refuse_existing(wanted)
    for folder in (work, *map(unfinished, wanted.paths)):
        check_own(folder)
    resumable = request.repeatable
    with _explained(work, resumable):
        journal = Journal(work, job, wanted.overwrite)
        try:
            if not any("finishing" in line for line in journal.lines):
                _refuse_existing(wanted)
            if not journal.lines:
                _clear_unfinished(wanted)
            try:
                made = _made(wanted, journal)
                made = made or _make(request, wanted, journal, report, each, fleet)
            except BaseException as error:
                # What cannot be gone on with is not left lying about; the journal goes before the
                # rows that it counts.
                if isinstance(error, InputError) or not resumable:
                    for folder in map(unfinished, wanted.paths):
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
    request: Request,
    wanted: Wanted,
    journal: Journal,
    report: _Reporter,
    each: Each,
    fleet: Fleet | None,
) -> Ingested:
    if fleet is not None:  # whose workers must see the folder
        fleet.rely_on([journal.folder / LOCK])
    anywhere = None if fleet is None else fleet.each
    reading = Reading(request, journal.folder.absolute() / BUCKETS, journal)
    reading.run(report.read, each, anywhere)
    made = Build(wanted, reading, journal, report.build).run(each, anywhere)
    dropped = [made.dropped, made.dropped_rows]
    journal.write({"finished": made.notes, "dropped": dropped})
    return made


def _made(wanted: Wanted, journal: Journal) -> Ingested | None:
    """Return what an earlier run finished, if it died while clearing up."""
    for line in journal.lines:
        if "finished" in line:
            made = [Dataset.open(path) for path in wanted.paths]
            dropped = line.get("dropped", [0, []])
            held = made[1] if len(made) > 1 else None
            return Ingested(made[0], held, line["finished"], *dropped)
    return None


def _refuse_existing(wanted: Wanted) -> None:
    for path in wanted.paths:
        if path.exists() and not wanted.overwrite:
            raise InputError(f"{path} exists already; choose another path or overwrite it.")
        if path.exists() and not (path / MANIFEST).exists():
            raise InputError(f"{path} is not a bigscreen dataset, so it is not overwritten.")


def _clear_unfinished(wanted: Wanted) -> None:
    for folder in map(unfinished, wanted.paths):
        if folder.exists() and not wanted.overwrite:
            raise InputError(
                f"{folder} was left by another run: delete it or use overwrite to start anew."
            )
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _explained(work: Path, resumable: bool) -> Iterator[None]:
    """Say in a sentence what the operating system or Ctrl-C put an end to."""
    kept = f"what was done is kept in {work}; run the same command again to go on, or delete it."
    if not resumable:
        kept = "nothing is kept, because these blocks cannot be read from the middle."
    try:
        yield
    except OSError as error:
        if error.errno in _DISK_FULL:
            raise InputError(f"the disk of {work.parent} is full: make room; {kept}") from error
        if isinstance(error, (ConnectionError, TimeoutError)):  # of what works, not of a place
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
    """Turns what the passes report into the events of `ingest`, and ends it at its deadline."""

    def __init__(self, progress: Progress | None, sizes: list[int], deadline: float | None) -> None:
        self._progress, self._sizes, self._deadline = progress, sizes, deadline

    def read(self, event: dict[str, Any]) -> None:
        done, total = event["bytes"], event["total"]
        of_source = self._sizes[event["source"]]
        # The reader of a compressed file may count what is in it, not what lies on the disk.
        share = of_source * done // total if total else done
        self._send(
            phase="read",
            bytes=sum(self._sizes[: event["source"]]) + share,
            bytes_total=sum(self._sizes),
            rows=event["rows"],
        )

    def build(self, event: dict[str, Any]) -> None:
        self._send(**event)

    def _send(self, **event: Any) -> None:
        if self._deadline is not None and time.monotonic() > self._deadline:
            raise TimeOver(f"the time budget ended after {event['rows']:,} rows")
        if self._progress is not None:
            self._progress({"event": "ingest", **event})
