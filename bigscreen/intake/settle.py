"""Settle labels, categories, hold-out, scaling and layout between the two passes of an ingest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.data.dataset import Dataset
from bigscreen.data.folder import held_out_path, unfinished_path
from bigscreen.data.layout import Label, Layout, row_grid
from bigscreen.data.missing import Missing
from bigscreen.data.order import Holdout
from bigscreen.data.preparation import (
    Preparation,
    describe_column,
    parse_divisor,
    source_position,
)
from bigscreen.data.texts import by_column
from bigscreen.data.writer import DatasetWriter
from bigscreen.errors import InputError
from bigscreen.fleet.protocol import Each
from bigscreen.intake.choices import Choices
from bigscreen.intake.needs import COSTS, check_disk, check_memory
from bigscreen.intake.profile import TableProfile, describe_scales, find_nearly_equal
from bigscreen.intake.read_pass import Reading, Report
from bigscreen.intake.source import (
    LIMITS,
    match_labels,
    normalise_truths,
    settle_labels,
)
from bigscreen.intake.spill import Journal
from bigscreen.intake.write_pass import (
    RowCounts,
    SpillReader,
    Transform,
    measure_fill,
    measure_moments,
    write_datasets,
)

MAX_NAMED = 5
"""Name at most this many columns, labels or rows in a note (a sentence for the user)."""

# What a missing number counts as in a note, by the option `impute`.
_FILLS = {
    "mean": "its mean",
    "median": "its median",
    "most-frequent": "its commonest value",
    "zero": "nothing",
}


@dataclass(frozen=True)
class Ingested:
    """The datasets that an ingest wrote, and notes for the user.

    Attributes
    ----------
    store : Dataset
        The main dataset.
    holdout : Dataset or None
        The rows held out; None if none were requested.
    notes : list of str
        Sentences for the user: unseen categories, a scaling without centring, and more.
    dropped : int
        Number of rows that were left out because a value is missing.
    dropped_rows : list of str
        Places of the first 1,000 dropped rows, and what each lacks.
    """

    store: Dataset
    holdout: Dataset | None
    notes: list[str] = field(default_factory=list)
    dropped: int = 0
    dropped_rows: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class StoreRequest:
    """Where and how the rows are stored; `ingest` documents the options.

    Attributes
    ----------
    path : Path
        Folder of the main dataset.
    choices : Choices
        Options that decide what the datasets hold.
    like : Preparation or None
        Columns, categories, scaling and labels of an existing store or model, to be taken over.
    like_sparse : bool or None
        Whether the existing store is sparse; None if not known.
    overwrite : bool
        Whether existing datasets at `paths` are replaced.
    extra : dict
        Further entries of the manifests.
    decimal : {".", ","} or None
        What stands before the decimals of numbers in a text table, if that was said.
    memory : int
        Bytes of memory allowed.
    """

    path: Path
    choices: Choices
    like: Preparation | None
    like_sparse: bool | None
    overwrite: bool
    extra: dict[str, Any]
    decimal: str | None
    memory: int

    @property
    def paths(self) -> list[Path]:
        """Return the paths of the datasets to make: the main one, then the hold-out."""
        beside = held_out_path(self.path)
        return [self.path, beside] if self.choices.holdout else [self.path]


class StoreBuilder:
    """Makes the datasets from a finished spill (all rows in bucket files).

    Parameters
    ----------
    wanted : StoreRequest
        Where and how the rows are stored.
    reading : Reading
        The first pass, finished.
    journal : Journal
        Log of the ingest: it records fill values, scaling and profiles; an earlier run, which was
        killed, may have recorded them.
    report : callable
        Called with dicts {"phase": "measure" or "write", "rows", "rows_total"}.

    Attributes
    ----------
    notes : list of str
        Sentences for the user, collected by `run`.
    planned : dict of str to int
        Bytes of the features in the "dense" and in the "sparse" layout.
    """

    def __init__(
        self, wanted: StoreRequest, reading: Reading, journal: Journal, report: Report
    ) -> None:
        """Take the finished first pass `reading`: its counts, labels and rows in bucket files.

        `wanted` says what to store, `journal` (the log of the ingest) records what is done, and
        `report` is called with the progress.
        """
        assert reading.shape is not None and reading.spill is not None
        self.wanted, self.found, self.shape = wanted, reading.found, reading.shape
        self._tuning = reading.tuning
        self._spill, self._journal, self._report = reading.spill, journal, report
        self.notes: list[str] = []

    def run(self, each: Each = map, anywhere: Each | None = None) -> Ingested:
        """Measure (for fill values and scaling) and write the datasets, and name them finally.

        Steps that an earlier run, which was killed, has recorded in the journal are skipped.

        Parameters
        ----------
        each : callable
            Applies a function to items, as `map` does, in threads of this process: the transform
            of rows to slices of rows.
        anywhere : callable, optional
            Like `each`, perhaps in other processes: sorts parts of buckets (files of rows).
            Default: `each`.
        """
        wanted, found = self.wanted, self.found
        labels, codes = self._settle_labels()
        first = found.first
        count = self._count_held_out()
        if found.dropped:
            holdout = Holdout.among(wanted.choices.seed, self._spill.numbers, count)
        else:
            holdout = Holdout.choose(wanted.choices.seed, first, first + found.rows, count)
        survey = RowCounts.of(self._spill, holdout, len(found.labels))
        if wanted.like is None and labels and codes is not None:
            _check_labels(labels, codes, survey.labels[0])
        n_raw = self._count_raw_columns()
        ways = each, anywhere or each
        spilled = SpillReader(self._spill, holdout, n_raw, found.index_base or 0, *ways)
        finishing = next((line for line in self._journal.lines if "finishing" in line), None)
        seen = [] if finishing is None else finishing.get("profiles", [])
        transform = self._settle_transform(n_raw, labels)
        if finishing is None:
            self._check_disk(transform)
        if wanted.like is None:
            self._settle_fill(spilled, survey, transform)
            if finishing is None and transform.preparation.indicators:
                self._check_disk(transform)
            self._settle_scaling(spilled, survey, transform)
        self._note_counts(transform)
        sizes = survey.sizes.sum(axis=0).tolist()
        if finishing is None:
            writers = [
                self._make_writer(path, rows, transform)
                for path, rows in zip(wanted.paths, sizes, strict=False)
            ]
            profiles = self._make_profiles(transform, len(writers))
            progress = self._make_counter("write")
            write_datasets(spilled, survey, transform, codes, writers, profiles, progress)
            seen = [profile.record(transform.recode) for profile in profiles]
            self._journal.write({"finishing": True, "profiles": seen})
        raw = transform.preparation.scaling == "none" and wanted.like is None
        if raw and seen and (scales := describe_scales(seen[0])):
            self.notes.append(f"{scales}: scale them (`scale='standard'`), unless that is meant.")
        # The main dataset gets its name last: then everything is done.
        made = [
            self._finish(side, sizes[side], transform, seen[side] if seen else None)
            for side in reversed(range(len(wanted.paths)))
        ][::-1]
        dropped = found.dropped, found.dropped_rows
        return Ingested(made[0], made[1] if len(made) > 1 else None, self.notes, *dropped)

    def _settle_labels(self) -> tuple[list[Label] | None, NDArray[np.int32] | None]:
        """Return the labels, and the final code of each raw label; None, None if rows have targets.

        A raw label is one of `ReadState.labels`: in order of first appearance in the sources.
        """
        wanted, like = self.wanted, self.wanted.like
        if wanted.choices.regression:
            return None, None
        if like is not None and like.labels:
            return list(like.labels), match_labels(self.found.labels, like.labels, like.positive)
        # Test rows of a one-class machine keep their own labels: the existing store has none.
        least, most = 0, LIMITS.max_raw_labels
        if like is None and not wanted.choices.unlabelled:
            least, most = 2, max(wanted.choices.max_kinds or 0, LIMITS.max_labels)
        return settle_labels(self.found.labels, wanted.choices.positive, least, most)

    def _count_held_out(self) -> int:
        """Return the number of rows to hold out; the option `holdout` is a fraction or a number.

        Raises
        ------
        InputError
            If the main dataset or the hold-out would be empty.
        """
        wanted, rows = self.wanted.choices.holdout, self.found.rows
        count = round(wanted * rows) if wanted < 1 else int(wanted)
        if wanted and not 0 < count < rows:
            raise InputError(
                f"holding out {wanted:g} of {rows} rows leaves one of the two datasets empty; "
                "choose another hold-out."
            )
        return count

    def _count_raw_columns(self) -> int:
        """Return the number of source columns, before categories become features of their own.

        It is at least the number of the existing store; svmlight files may have more.

        Raises
        ------
        InputError
            If the source has more columns than an existing store whose columns have names or
            categories.
        """
        base = self.found.index_base or 0
        like, n_raw = self.wanted.like, self.found.width - base
        last = self.found.width - 1  # the largest index, as the source has it
        if like is None or like.n_raw is None:
            return n_raw
        if n_raw > like.n_raw and (like.names or like.categories):
            raise InputError(
                f"the indices of the source go up to {last}, and the store it shall be "
                f"like has {like.n_raw} columns with names; check whether the source belongs to it."
            )
        if n_raw > like.n_raw:  # only svmlight files get here
            self.notes.append(
                f"the columns {like.n_raw + base} to {last} of the source are beyond those of the "
                "store or model it shall be like: they are kept as columns that are 0 in every row "
                "there, as LIBSVM takes them."
            )
        return max(n_raw, like.n_raw)

    def _settle_transform(self, n_raw: int, labels: list[Label] | None) -> Transform:
        """Settle the columns, categories and layout of the stored rows, from what was read.

        A "standard" or "minmax" scaling, which must be measured on the rows, is added later.

        Parameters
        ----------
        n_raw : int
            Number of source columns.
        labels : list or None
            Labels in code order; None: rows have targets.

        Returns
        -------
        Transform
            How rows as they were read become rows as they are stored.
        """
        like, found, scale = self.wanted.like, self.found, self.wanted.choices.scale
        positive = labels[1] if labels and self.wanted.choices.positive is not None else None
        recode: dict[int, NDArray[np.int32]] = {}
        kinds = sum(len(texts) - 1 for texts in found.categories.values())
        if like is not None and like.n_raw is not None and n_raw > like.n_raw:
            like = like.widened(n_raw)
        width = (like and like.n_features) or n_raw + kinds
        stores = len(self.wanted.paths)
        dense = self.wanted.choices.layout == "dense" or not self.shape.sparse
        check_memory(self.wanted.memory, width, scale, 4 * width if dense else 0, stores)
        if like is not None:
            targets = like.targets if like.labels is None else self.shape.targets
            preparation = like
            if not like.labels:
                preparation = replace(like, labels=labels, positive=positive, targets=targets)
        else:
            final = {c: sorted(texts) for c, texts in found.categories.items()}
            for c, texts in found.categories.items():
                code = {text: i for i, text in enumerate(final[c])}
                recode[c] = np.array([code[text] for text in texts], np.int32)
            preparation = Preparation(
                n_raw=n_raw,
                names=self.shape.names,
                skipped=self.shape.skipped or list(range(self.found.index_base or 0)),
                label_at=self.shape.label_at,
                categories=final,
                labels=labels,
                positive=positive,
                dates=by_column(self.shape.dates),
                hashed=by_column(self.shape.hashed),
                missing=[*self.wanted.choices.missing],
                truths=self.shape.truths,
                targets=self.shape.targets,
                decimal=self.wanted.decimal,
            )
            if scale != "auto" and (by := parse_divisor(scale)):
                _, factor = _expand_to_features(
                    preparation, None, np.full(len(preparation.numeric_columns), 1 / by)
                )
                preparation = replace(preparation, scaling=scale, factor=factor)
        n_features = preparation.n_features or n_raw
        self.planned = self._plan_bytes(preparation, n_features)
        sparse = self._is_sparse(preparation, n_features)
        return Transform(preparation, recode, n_features, sparse, self._tuning.slice_bytes)

    def _plan_bytes(self, preparation: Preparation, n_features: int) -> dict[str, int]:
        """Return the bytes that all features would take on disk, keyed "dense" and "sparse".

        `n_features` is the number of features that `preparation` makes of the source columns.
        """
        rows, values = self.found.rows, self.found.nonzeros
        if not self.shape.sparse:
            centred = (
                preparation.makes_dense(sparse=True) or self.wanted.choices.scale == "standard"
            )
            if centred or (self.wanted.choices.scale == "minmax" and preparation.categories):
                values = rows * (preparation.n_raw or n_features)  # centring leaves no zeros
            values += rows * len(preparation.indicators)  # (if all were missing)
        size = 8 if self._is_float64(preparation) else 4
        return {"dense": size * rows * n_features, "sparse": (4 + size) * (values + rows)}

    def _check_disk(self, transform: Transform) -> None:
        """Raise InputError if the disk has no room for the datasets that `transform` will make.

        Files that an earlier, unfinished run has written count as room.
        """
        wanted, rows = self.wanted, self.found.rows
        name = "sparse" if transform.sparse else "dense"
        parts = {
            f"{rows} {name} rows of {transform.n_features} features": self.planned[name],
            "labels, weights and numbers of rows": COSTS.stored_row_bytes * rows,
        }
        files = (file for path in wanted.paths for file in unfinished_path(path).rglob("*"))
        kept = sum(file.stat().st_size for file in files if file.is_file())
        check_disk(parts, wanted.path.parent, kept)

    def _is_sparse(self, preparation: Preparation, n_features: int) -> bool:
        """Whether the datasets are stored as CSR.

        The requested layout decides, else the layout of the existing store that this one is made
        like, else the bytes of both layouts.

        Parameters
        ----------
        preparation : Preparation
            Dense rows are needed if its scaling subtracts an offset from zeros.
        n_features : int
            Number of stored features.

        Raises
        ------
        InputError
            If sparse rows are requested and the existing store's scaling subtracts an offset.
        """
        wanted = self.wanted
        fills = preparation.makes_dense(self.shape.sparse)
        if wanted.choices.layout != "auto":
            if fills and wanted.choices.layout == "sparse":
                raise InputError(
                    f"the {preparation.scaling} scaling of the store it shall be like subtracts an "
                    "offset, which would fill sparse rows: leave the layout to auto."
                )
            return wanted.choices.layout == "sparse"
        if fills:
            return False
        if wanted.like_sparse is not None:
            return wanted.like_sparse
        saves = self.planned["sparse"] < self._tuning.max_sparse_fraction * self.planned["dense"]
        return n_features > self._tuning.min_sparse_features and saves

    def _settle_fill(self, spilled: SpillReader, survey: RowCounts, transform: Transform) -> None:
        """Add the replacements of missing numbers, and indicators, to `transform`.

        They are measured on the rows that are not held out, unless an earlier run has recorded them
        in the journal. Nothing is done unless missing numbers are to be imputed. `spilled` reads
        the rows, and `survey` counts them.
        """
        how, preparation = self.wanted.choices.impute, transform.preparation
        if how is None:
            return
        if self.shape.sparse:
            raise InputError(
                "impute is for values that are missing, and what sparse rows leave out is 0; leave "
                "it out"
            )
        known = next((line["fill"] for line in self._journal.lines if "fill" in line), None)
        if known is None:
            fill = measure_fill(spilled, survey, how, preparation.numeric_columns)
            known = {"values": fill.values.tolist(), "missing": fill.missing.tolist()}
            self._journal.write({"fill": known})
        every = np.zeros(preparation.n_raw or 0)
        every[preparation.numeric_columns] = known["values"]
        transform.preparation = replace(preparation, fill=every)
        if self.wanted.choices.add_indicator:
            lacking = np.array(known["missing"]) > 0
            self._add_indicators(transform, preparation.numeric_columns[lacking].tolist())
        self._note_fill(transform.preparation, known)

    def _add_indicators(self, transform: Transform, columns: list[int]) -> None:
        """Add features to `transform` that say where numbers of these source columns are missing.

        Widths, bytes and layout are settled again for them.
        """
        known, memory = transform.preparation, self.wanted.memory
        factor = known.factor
        if factor is not None:  # one divisor for all numbers; indicators stay 0 and 1
            factor = np.append(factor, np.ones(len(columns)))
        transform.preparation = replace(known, indicators=columns, factor=factor)
        width = transform.preparation.n_features or 0
        check_memory(memory, width, self.wanted.choices.scale, 4 * width, len(self.wanted.paths))
        self.planned = self._plan_bytes(transform.preparation, width)
        transform.n_features = width
        transform.sparse = self._is_sparse(transform.preparation, width)

    def _note_fill(self, preparation: Preparation, known: dict[str, Any]) -> None:
        """Add notes on the columns with missing numbers, and on what replaces them.

        The notes are sentences for the user. `known` holds "values" (the replacements) and
        "missing" (the numbers of missing values), with an entry for each numeric column.
        """
        what = _FILLS[self.wanted.choices.impute or ""]
        missing, values = np.array(known["missing"]), known["values"]
        columns = np.flatnonzero(missing)
        for k in columns[:MAX_NAMED].tolist():
            c = int(preparation.numeric_columns[k])
            count = f"{missing[k]} missing value(s) of {preparation.describe_column(c)} count"
            self.notes.append(f"{count} as {what}, {values[k]:g}.")
        if len(columns) > MAX_NAMED:
            rest = int(missing[columns[MAX_NAMED:]].sum())
            self.notes.append(
                f"{rest} missing value(s) of {len(columns) - MAX_NAMED} more columns do, too."
            )
        if preparation.indicators:
            self.notes.append(
                f"{len(preparation.indicators)} more feature(s) say where those are missing."
            )

    def _settle_scaling(
        self, spilled: SpillReader, survey: RowCounts, transform: Transform
    ) -> None:
        """Add a "standard" or "minmax" scaling to the preparation of `transform`.

        An "auto" scaling is "standard" for dense tables, except that columns of 0 and 1 are kept.
        It is measured on the rows that are not held out, unless an earlier run has recorded it in
        the journal. Other scalings need no measurement, and nothing is done for them. `spilled`
        reads the rows, and `survey` counts them.
        """
        scale, chosen = self.wanted.choices.scale, self.wanted.choices.scale == "auto"
        if chosen and not (self.shape.sparse or transform.sparse):
            scale = "standard"
        if scale not in ("standard", "minmax"):
            return
        preparation = transform.preparation
        # A sparse layout saves the zeros of one-hot features, even if numeric columns are centred.
        shift = not transform.sparse or bool(preparation.categories)
        if not shift:
            what = "centring" if scale == "standard" else "shifting"
            self.notes.append(f"{scale} on sparse data scales without {what}: zeros stay zeros.")
        known = next((line["scaling"] for line in self._journal.lines if "scaling" in line), None)
        if known is None and not len(preparation.numeric_columns):
            known = {"offset": None, "factor": None}
        if known is None:
            moments = measure_moments(spilled, survey, transform, self._make_counter("measure"))
            offsets, factors = moments.scaling(scale, shift)
            if chosen and offsets is not None:
                offsets, factors = (
                    np.where(moments.are_truths, kept, own)
                    for kept, own in ((0.0, offsets), (1.0, factors))
                )
            offset, factor = _expand_to_features(preparation, offsets, factors)
            known = {
                "offset": None if offset is None else offset.tolist(),
                "factor": factor.tolist(),
            }
            self._journal.write({"scaling": known})
        factors = known["factor"]
        if chosen and (factors is None or all(factor == 1 for factor in factors)):
            return  # all columns are categories, constant, or 0 and 1
        transform.preparation = replace(preparation, scaling=scale, **known)
        if chosen:
            self.planned = self._plan_bytes(transform.preparation, transform.n_features)
            self.notes.append(
                "columns of numbers are scaled to mean 0 and deviation 1, in predictions, too "
                "(`scale='none'`: as they are)."
            )

    def _note_counts(self, transform: Transform) -> None:
        """Add notes for the user: unseen categories, rows without labels, float64 features, ..."""
        found, describe = self.found, transform.preparation.describe_column
        for c, count in sorted(found.unseen.items()):
            self.notes.append(
                f"{count} value(s) of {describe(c)} are not among its known categories; they are "
                "stored as zeros."
            )
        self._note_rows()
        if found.unlabelled:
            what = "have no target" if self.wanted.choices.regression else "have no label"
            what = "lack at least one target" if self.shape.n_targets > 1 else what
            self.notes.append(f"{found.unlabelled} row(s) {what}.")
        if self._is_float64(transform.preparation):
            self.notes.append(
                "features are stored as float64: some column is too far from 0, compared with its "
                "spread, for float32, or beyond its range; with `scale='standard'` float32 would "
                "do."
            )
        elif found.narrowed is not None and not self.shape.wide:
            self.notes.append(
                f"{describe(found.narrowed)} is coarse in float32, which the first rows did not "
                "show: scale it (`scale='standard'`), or put rows that show it first."
            )

    def _note_rows(self) -> None:
        """Add notes on columns and rows left out, dates found, and labels that the model lacks."""
        found, like, shape = self.found, self.wanted.like, self.shape
        if shape.left_out:
            some = _join_first([*map(repr, shape.left_out)])
            self.notes.append(
                f"{len(shape.left_out)} column(s) are left out, as the training data did not have "
                f"them: {some}."
            )
        if shape.index_names:
            some = _join_first([*map(repr, shape.index_names)])
            self.notes.append(
                f"the column(s) {some} hold the index of a data frame (names or numbers of its "
                "rows) and are left out; `columns` takes them as features."
            )
        if found.empty:
            some = _join_first([self.wanted.extra["sources"][k] for k in found.empty])
            self.notes.append(f"{len(found.empty)} source(s) hold no row and are skipped: {some}.")
        if found.dropped:
            some = _join_first(found.dropped_rows, "; ")
            self.notes.append(f"{found.dropped} row(s) lack something and are left out: {some}.")
        for c, form in shape.dates.items():
            if like is None and not form:
                name = describe_column(source_position(int(c), shape.skipped), shape.names)
                self.notes.append(f"{name} holds dates, taken as days since 1970.")
        marks = Missing(self.wanted.choices.missing)
        numbers = [str(label) for label in found.labels if marks.is_mark(label)]
        if numbers and not (self.wanted.choices.regression or self.wanted.choices.unlabelled):
            self.notes.append(
                f"the label {' and '.join(numbers)} is a label, though missing names it: marks "
                "that are numbers speak of features (and targets) alone."
            )
        pair = (
            find_nearly_equal(normalise_truths(found.labels))
            if like is None and not self.wanted.choices.regression
            else None
        )
        if pair:
            self.notes.append(
                f"the labels {pair} differ in case or blanks alone and count as two: write them "
                "alike if they are one."
            )
        if found.unknown:
            parts = (f"{found.labels[c]!r} ({rows})" for c, rows in sorted(found.unknown.items()))
            known = ", ".join(map(str, ((like and like.labels) or [])[:MAX_NAMED]))
            self.notes.append(
                f"{sum(found.unknown.values())} row(s) have a label that is none of {known}, and "
                f"are stored without one: {', '.join(list(parts)[:MAX_NAMED])}."
            )

    def _make_writer(self, path: Path, rows: int, transform: Transform) -> DatasetWriter:
        """Return the writer of a dataset of `rows` rows at `path`, which may be partly written."""
        planned = self.planned["sparse" if transform.sparse else "dense"]
        shard_rows, chunk_rows = row_grid(rows, planned // self.found.rows)
        return DatasetWriter(
            path,
            Layout.of(
                n_rows=rows,
                n_features=transform.n_features,
                sparse=transform.sparse,
                labels=transform.preparation.labels,
                weights=self.shape.weighted,
                shard_rows=shard_rows,
                chunk_rows=chunk_rows,
                wide=self._is_float64(transform.preparation),
                n_targets=self.shape.n_targets,
            ),
            transform.preparation,
            extra={
                **self.wanted.extra,
                "index_base": self.found.index_base,
                "rounded": self._is_rounded(transform.preparation),
                "bytes_planned": {
                    name: size * rows // self.found.rows for name, size in self.planned.items()
                },
            },
            overwrite=self.wanted.overwrite,
        )

    def _is_float64(self, preparation: Preparation) -> bool:
        """Whether features are stored as float64: float32 is too coarse even after scaling."""
        # After a standard or minmax scaling values are near 0 and of size 1: float32 will do.
        name = preparation.scaling if preparation.scaling != "none" else self.wanted.choices.scale
        return self.shape.wide and (name in ("none", "auto") or name.startswith("divide"))

    def _is_rounded(self, preparation: Preparation) -> bool:
        """Whether float32 may have rounded a number of the source, or a value computed from one."""
        made = (preparation.fill, preparation.offset, preparation.factor)
        return self.found.rounded or any(values is not None for values in made)

    def _finish(
        self, side: int, rows: int, transform: Transform, profile: dict[str, Any] | None
    ) -> Dataset:
        """Give a written dataset its final name, and return it.

        Parameters
        ----------
        side : int
            0: the main dataset; 1: the hold-out.
        rows : int
            Its number of rows.
        transform : Transform
            How its rows were made.
        profile : dict or None
            Statistics of its columns, for the manifest.
        """
        path = self.wanted.paths[side]
        if not unfinished_path(path).exists():  # an earlier run has finished this dataset
            return Dataset.open(path)
        return self._make_writer(path, rows, transform).finish(profile)

    def _make_profiles(self, transform: Transform, sides: int) -> list[TableProfile]:
        """Return an empty profile (statistics of each column) for each of `sides` datasets.

        The list is empty if rows are sparse or have very many columns.
        """
        n_raw = transform.preparation.n_raw or 0
        if self.shape.sparse or not 0 < n_raw <= self._tuning.max_profile_columns:
            return []
        return [TableProfile(transform.preparation) for _ in range(sides)]

    def _make_counter(self, phase: str) -> Callable[[int], None]:
        """Return a function that reports the progress of `phase` ("measure" or "write").

        The function takes a number of rows, and reports the sum of the rows so far.
        """
        done = 0

        def count(rows: int) -> None:
            """Add `rows` to the rows done, and report them."""
            nonlocal done
            done += rows
            self._report({"phase": phase, "rows": done, "rows_total": self.found.rows})

        return count


def _join_first(names: list[str], mark: str = ", ") -> str:
    """Return the first `MAX_NAMED` names as one text, with three dots if there are more.

    `mark` stands between the names.
    """
    return mark.join([*names[:MAX_NAMED], "..."] if len(names) > MAX_NAMED else names)


def _expand_to_features(
    preparation: Preparation, offset: NDArray[Any] | None, factor: NDArray[Any]
) -> tuple[NDArray[Any] | None, NDArray[Any]]:
    """Return a scaling's offset and factor of all features, given those of the numeric columns.

    Features of categories get offset 0 and factor 1.

    Parameters
    ----------
    preparation : Preparation
        Says which feature each numeric column becomes.
    offset : array (numeric columns,) or None
        None: there is no offset, and None is returned for it.
    factor : array (numeric columns,)

    Returns
    -------
    offset : array (features,) or None
    factor : array (features,)
    """
    at = preparation.places[preparation.numeric_columns]
    every = np.ones(preparation.n_features or 0)
    every[at] = factor
    if offset is not None:
        offset, own = np.zeros(len(every)), offset
        offset[at] = own
    return offset, every


def _check_labels(labels: list[Label], codes: NDArray[np.int32], kept: NDArray[np.int64]) -> None:
    """Raise InputError if the rows that are not held out have fewer than two labels.

    Parameters
    ----------
    labels : list
        Labels in code order.
    codes : int32 array (raw labels,)
        Final code of each raw label.
    kept : int64 array (raw labels,)
        Number of rows with each raw label that are not held out.
    """
    counts = np.bincount(codes, weights=kept, minlength=len(labels))
    present = np.flatnonzero(counts)
    if len(present) < 2:
        raise InputError(
            f"without the rows held out all have the label {labels[present[0]]!r}; hold out fewer, "
            "or choose another seed."
        )
