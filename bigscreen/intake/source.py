"""Check blocks of rows before they are stored: equal columns, known labels, finite numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, issparse

from bigscreen.data.layout import Features, Label
from bigscreen.data.missing import MISSING_CATEGORY
from bigscreen.data.preparation import Preparation, describe_column
from bigscreen.data.targets import as_target_columns, as_targets, plain_label
from bigscreen.data.texts import find_untrue, parse_truth
from bigscreen.errors import InputError
from bigscreen.intake.choices import Choices
from bigscreen.intake.readers.base import Reader
from bigscreen.intake.readers.categories import MAX_TEXT_BYTES
from bigscreen.intake.readers.svmlight import SvmlightReader
from bigscreen.intake.readers.text import not_a_truth_error

Where = Callable[[int], str]
"""A function that names the place of the i-th row of a block in the source, for errors."""

_NUMBER_WITH_UNIT = re.compile(r"[^\w\s]?\s?-?\d[\d.,' ]*\s?(?:[^\W\d]{1,4}|[^\w\s])?[23²³]?")
"""Matches a number with a currency or a unit: $1,200.50, 45.5 kg, 12%."""


@dataclass(frozen=True)
class DistinctLimits:
    """Limits on distinct labels and categories: more are probably measurements, names or texts.

    Attributes
    ----------
    max_labels : int
        Refuse more distinct labels, unless the option `max_kinds` of `ingest` allows them.
    max_raw_labels : int
        Refuse more distinct labels while reading, whatever the options.
    max_kinds : int
        Refuse a text column with more categories, unless the option `max_kinds` of `ingest` allows
        them.
    min_kinds : int
        Accept this many categories of a text column for any number of rows; beyond it, accept at
        most one category for ten rows.
    """

    max_labels: int = 200
    max_raw_labels: int = 65_536
    max_kinds: int = 1000
    min_kinds: int = 50


LIMITS = DistinctLimits()
"""The limits that are in force."""


@dataclass
class ReadState:
    """State of the first pass after some rows: counts, labels and categories; the journal saves it.

    Attributes
    ----------
    source, source_rows : int
        Number of the source being read, and how many of its rows are done.
    offset : int
        Rows of all earlier sources.
    first : int
        Number of the first row taken.
    rows, nonzeros, unlabelled : int
        Counts over the rows taken so far; unlabelled rows lack their label, or a target.
    width : int
        Number of columns; for sparse rows one more than the largest index so far, as written in
        the file.
    narrowed : int or None
        A column that float32 makes coarse, and that was rounded because the sources could not be
        read again.
    rounded : bool
        Whether any number was rounded to float32.
    index_base : int or None
        Index of the first column as written in svmlight files; None if there are no such files.
    finished : bool
        Whether all requested rows were read.
    unseen : dict of int to int
        For each categorical column, how many values were not among the given categories.
    unknown : dict of int to int
        For each raw label that the existing store lacks, how many rows have it.
    dropped : int
        Number of rows that were left out because a value is missing.
    dropped_rows : list of str
        Places of the first dropped rows, and what each lacks.
    empty : list of int
        Numbers of the sources without rows.
    labels : list
        Raw labels, in order of first appearance.
    categories : dict of int to list of str
        Categories of each categorical column, in order of first appearance (or as given).
    """

    source: int = 0
    source_rows: int = 0
    offset: int = 0
    first: int = 0
    rows: int = 0
    nonzeros: int = 0
    unlabelled: int = 0
    width: int = 0
    narrowed: int | None = None
    rounded: bool = False
    index_base: int | None = None
    finished: bool = False
    empty: list[int] = field(default_factory=list)
    unseen: dict[int, int] = field(default_factory=dict)
    unknown: dict[int, int] = field(default_factory=dict)
    dropped: int = 0
    dropped_rows: list[str] = field(default_factory=list)
    labels: list[Label] = field(default_factory=list)
    categories: dict[int, list[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class BlockShape:
    """Properties of the first block of rows that all later blocks must share.

    Attributes
    ----------
    sparse : bool
        Whether rows are CSR.
    width : int or None
        Number of columns of dense rows; None for CSR.
    weighted : bool
        Whether rows have sample weights.
    names : list of str or None
        Names of the columns.
    categorical : list of int
        Columns that hold category codes.
    bits, rows_per_bucket : int
        Arguments of `Order`, which assigns rows to buckets.
    wide : bool
        Whether features are float64.
    dates : dict of str to str
        Date columns (column numbers as texts, for JSON), and the format of each.
    hashed : dict of str to int
        Columns of hashed texts (column numbers as texts), and the bits of each hash.
    left_out : list of str
        Columns that are left out because the existing store lacks them.
    index_names : list of str
        Columns that are left out as the index of a data frame.
    spread : list of float or None
        Spread of each column in the first block; None if rows are sparse or float64. It tells for
        later blocks whether float32 makes a column coarse.
    truths : list of int
        Columns of truth values.
    skipped : list of int
        Positions in the source of columns that are no features: see `Reader.skipped`.
    label_at : list of int
        Position in the source of the label: see `Reader.label_at`.
    n_targets : int
        Number of targets of each row; 1 if rows have labels.
    targets : list of str or int
        The columns of several targets: see `Reader.targets`.
    """

    sparse: bool
    width: int | None
    weighted: bool
    names: list[str] | None
    categorical: list[int]
    bits: int
    rows_per_bucket: int
    wide: bool = False
    dates: dict[str, str] = field(default_factory=dict)
    hashed: dict[str, int] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    spread: list[float] | None = None
    index_names: list[str] = field(default_factory=list)
    truths: list[int] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)
    label_at: list[int] = field(default_factory=list)
    n_targets: int = 1
    targets: list[str | int] = field(default_factory=list)


class BlockChecker:
    """Checks blocks, and replaces a reader's labels and category codes by codes for all sources.

    Parameters
    ----------
    found : ReadState
        Updated: labels, categories and counts grow.
    shape : BlockShape
        Properties that every block must have.
    like : Preparation or None
        Existing columns, categories and labels that the blocks must match.
    choices : Choices
        Options of `ingest`: whether rows have targets, whether values may be missing, and limits.
    """

    def __init__(
        self, found: ReadState, shape: BlockShape, like: Preparation | None, choices: Choices
    ) -> None:
        """Take over the labels and categories that earlier blocks have shown, in `found`.

        Every block must have the properties `shape`, and match the existing store `like` if there
        is one. ``_tables`` maps the category codes of the current reader to codes for all sources,
        by column. ``_known`` has, for each raw label, its code in the existing store, or -1.
        """
        self.found, self.shape, self.like, self.choices = found, shape, like, choices
        self._labels = LabelEncoder(found.labels)
        self._codes = {
            c: {text: code for code, text in enumerate(texts)}
            for c, texts in found.categories.items()
        }
        self._known = np.empty(0, np.int32)
        self._tables: dict[int, NDArray[np.int32]] = {}

    def next_source(self) -> None:
        """Forget the category codes of the previous source: each source numbers its categories."""
        self._tables = {}

    def admit(
        self,
        X: Features,
        y: NDArray[Any] | None,
        weight: NDArray[Any] | None,
        reader: Reader,
        where: Where,
    ) -> tuple[Features, NDArray[Any]]:
        """Return the features with category codes for all sources, and raw label codes or targets.

        Parameters
        ----------
        X : dense or CSR array (rows, d)
            Features, with the category codes of the reader.
        y : array (rows,) or (rows, targets), or None
            Labels or targets, as they were read.
        weight : array (rows,) or None
        reader : Reader
            The source of the block.
        where : callable
            ``where(i)`` names the place of the i-th row, for errors.

        Returns
        -------
        X : dense or CSR array (rows, d)
        y : int32 array (rows,), or float64 array (rows,) or (rows, targets) of targets
            -1 or NaN if the label or target is missing.

        Raises
        ------
        InputError
            Naming the row, if the block does not match earlier blocks or `like`.
        """
        X = self._recode_blank_columns(X, reader)
        self._check(X, weight, reader, where)
        if reader.categories:
            X = self._recode_categories(X, reader)
        y, missing = self._encode_labels(None if self.choices.unlabelled else y, X.shape[0], where)
        if not self.choices.unlabelled:
            self._check_missing(missing, where)
        return X, y

    def _recode_blank_columns(self, X: Features, reader: Reader) -> Features:
        """Return X with columns recoded that have no value here and are text in another source.

        Their missing values become the category `MISSING_CATEGORY`, also in the categories of
        `reader`.
        """
        blank = reader.blank & {*self.shape.categorical}
        if self.like is not None or not blank or issparse(X) or X.shape[1] != self.shape.width:
            return X
        columns = [c for c in sorted(blank) if np.isnan(X[:, c]).all()]
        X = X.copy()
        X[:, columns] = 0
        for c in columns:
            reader.categories[c] = [MISSING_CATEGORY]
        return X

    def _check(
        self, X: Features, weight: NDArray[Any] | None, reader: Reader, where: Where
    ) -> None:
        """Refuse a block that does not match earlier blocks, or the existing store `like`.

        Parameters
        ----------
        X : dense or CSR array (rows, d)
        weight : array (rows,) or None
        reader : Reader
            The source of the block: column names, categories and truth values are compared.
        where : callable
            ``where(i)`` names the place of the i-th row, for errors.

        Raises
        ------
        InputError
        """
        shape, like = self.shape, self.like
        if issparse(X) != shape.sparse:
            raise InputError(f"{where(0)}: sparse and dense rows cannot go into one store.")
        if not shape.sparse and X.shape[1] != shape.width:
            raise InputError(
                f"{where(0)}: the row has {X.shape[1]} columns and earlier rows have {shape.width}."
            )
        if (weight is not None) != shape.weighted:
            raise InputError(f"{where(0)}: either all sources must have weights, or none.")
        if weight is not None and not (fine := np.isfinite(weight) & (weight >= 0)).all():
            bad = int(np.argmin(fine))
            raise InputError(f"{where(bad)}: {weight[bad]} is not a weight; it must be 0 or more.")
        names = shape.names if like is None or like.names is None else like.names
        if names is not None and reader.names is not None and names != reader.names:
            pairs = zip(names, reader.names, strict=False)
            counts = f"{len(reader.names)} of {len(names)}; rows without labels need label none"
            differ = next((f"{b!r} for {a!r}" for a, b in pairs if a != b), counts)
            raise InputError(f"{where(0)}: the columns differ from the expected ones ({differ}).")
        if like is None and reader.targets != shape.targets:
            given, known = (", ".join(map(str, t)) for t in (reader.targets, shape.targets))
            raise InputError(
                f"{where(0)}: the targets differ from the expected ones ({given or 'no columns'} "
                f"for {known or 'no columns'})."
            )
        wanted = sorted(like.categories) if like is not None else shape.categorical
        if wanted != sorted(reader.categories):
            column = min(set(wanted) ^ set(reader.categories))
            name = reader.describe_column(column)
            raise InputError(
                f"{where(0)}: {name} is categorical in one source and not in another; "
                "name it as `categorical`."
            )
        if like is None and (others := ({*shape.truths} ^ reader.truths) - reader.blank):
            raise InputError(
                f"{where(0)}: {reader.describe_column(min(others))} holds truth values in "
                "one source and numbers in another; write them alike, or name it as `categorical`."
            )
        if not isinstance(X, csr_array):
            for c in shape.truths if like is None else like.truths:
                row = find_untrue(X[:, c])
                if row is not None:
                    place = f"{where(row)}, {reader.describe_column(c)}"
                    raise not_a_truth_error(f"{X[row, c]:.16g}", place)
        self.found.width = max(self.found.width, X.shape[1])
        if like is not None and like.n_raw is not None:
            self._check_width(X, like.n_raw, reader, where)

    def _check_width(self, X: Features, n_raw: int, reader: Reader, where: Where) -> None:
        """Refuse rows X whose columns do not match the `n_raw` columns of the existing store.

        Sparse rows may have fewer columns; rows of svmlight files may have more, too. `reader` has
        read the rows, and ``where(i)`` names the place of the i-th row in the error.
        """
        if not isinstance(X, csr_array):
            if X.shape[1] != n_raw:
                raise InputError(
                    f"{where(0)}: the row has {X.shape[1]} columns and the store it shall be like "
                    f"has {n_raw}."
                )
            return
        if isinstance(reader, SvmlightReader):
            return  # svmlight files do not say how many columns they have
        largest = n_raw - 1
        if len(above := np.flatnonzero(X.indices > largest)):
            row = int(np.searchsorted(X.indptr, above[0], side="right")) - 1
            raise InputError(
                f"{where(row)}: index {X.indices[above[0]]} is above {largest}, the largest of the "
                "store it shall be like."
            )

    def _recode_categories(self, X: Features, reader: Reader) -> Features:
        """Return X with the category codes of the reader replaced by the codes for all sources.

        A category that the existing store (`like`) lacks becomes -1; `found.unseen` counts it.
        """
        X = X.copy()
        for c, texts in reader.categories.items():
            table = self._tables.get(c, np.empty(0, np.int32))
            ours, names = self._codes.setdefault(c, {}), self.found.categories.setdefault(c, [])
            fresh = []
            for text in texts[len(table) :]:
                gone = self.choices.drop_missing and text == MISSING_CATEGORY
                if text not in ours and self.like is None and not gone:
                    ours[text] = len(names)
                    names.append(text)
                fresh.append(ours.get(text, -1))
            most = self.choices.max_kinds or LIMITS.max_kinds
            self._check_kinds(c, most, f"has more than {most} kinds", reader)
            self._tables[c] = table = np.concatenate([table, np.array(fresh, np.int32)])
            # One entry more, at the end, so that -1 stays -1.
            X[:, c] = np.append(table, -1)[X[:, c].astype(np.int64)]
            unseen = int(np.count_nonzero(X[:, c] < 0))
            if unseen:
                self.found.unseen[c] = self.found.unseen.get(c, 0) + unseen
        return X

    def finish(self, reader: Reader) -> None:
        """Refuse columns with too many categories for the number of rows, after the last row.

        `reader` is the last source; it names the columns in the error.
        """
        if self.choices.max_kinds is None:
            rows = self.found.rows
            for c, kinds in self.found.categories.items():
                why = f"has {len(kinds)} kinds in {rows} rows, more than one for ten"
                self._check_kinds(c, max(rows // 10, LIMITS.min_kinds), why, reader)

    def _check_kinds(self, c: int, most: int, why: str, reader: Reader) -> None:
        """Refuse column `c` if it has more than `most` categories; `why` says so in the error.

        Hashed columns, and columns of an existing store, are not limited.
        """
        hashed = str(c) in self.shape.hashed
        if self.like is not None or hashed or len(self.found.categories[c]) <= most:
            return
        last = self.found.categories[c][-1]
        unit = "write numbers without their units, " if _NUMBER_WITH_UNIT.fullmatch(last) else ""
        raise InputError(
            f"{reader.describe_column(c)} {why} (such as {last[:40]!r}), and each would be a "
            f"feature: {unit}leave it out (`drop`) if it names rows or holds free text, allow more "
            "(`max_kinds`), or hash them (`hashed='COLUMN:BITS'`)."
        )

    def _encode_labels(
        self, y: NDArray[Any] | None, rows: int, where: Where
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the raw label code or the target of each row, and a mask of missing ones.

        A raw code counts labels in order of first appearance. Both arrays have the shape (rows,),
        or (rows, targets) with several targets.
        `y` holds labels or targets as they were read, or is None, and ``where(i)`` names the i-th
        row in an error.
        """
        if not self.choices.regression:
            codes = self._labels.encode(y, rows, where)
            missing = codes < 0
            self._count_unknown(codes)
            return codes, missing
        if y is not None and y.ndim == 2 and y.shape[1] == 1:
            y = y[:, 0]
        if self.shape.n_targets > 1:
            targets = as_target_columns(y, rows, self._target_names, where)
        elif y is not None and y.ndim == 2:
            raise InputError(
                f"{where(0)}: {y.shape[1]} targets where every row has one; give one of them."
            )
        else:
            targets = as_targets(y, rows, where)
        return targets, np.isnan(targets)

    @property
    def _target_names(self) -> list[str]:
        """The name of each of several targets, for errors."""
        known = self.shape.targets if self.like is None else self.like.targets
        names = [t if isinstance(t, str) else describe_column(t) for t in known]
        return names or [f"target {j}" for j in range(self.shape.n_targets)]

    def _check_missing(self, missing: NDArray[np.bool_], where: Where) -> None:
        """Count the rows without label or target; refuse them in training rows.

        Only rows of a store that is made like an existing one (`like`) may lack a label. `missing`,
        (rows,) or (rows, targets), marks the missing ones, and ``where(i)`` names the i-th row in
        the error.
        """
        lacking = missing.reshape(len(missing), -1).any(axis=1)
        self.found.unlabelled += int(np.count_nonzero(lacking))
        if self.like is None and lacking.any():
            row = int(np.argmax(lacking))
            place = where(row)
            if missing.ndim == 2:
                place += f", {self._target_names[int(np.argmax(missing[row]))]}"
            what, ask = (
                ("target (nan)", "") if self.choices.regression else ("label", " or unlabelled")
            )
            raise InputError(
                f"{place}: the row has no {what}; training rows need "
                "one, so correct it, remove it, or leave out such rows (`drop_missing`); only a "
                f"store made like another{ask} may do without."
            )

    def _count_unknown(self, codes: NDArray[Any]) -> None:
        """Count the rows with a label that the existing store (`like`) lacks, in `found.unknown`.

        Rows with an unknown label are kept: a model predicts them nevertheless. `codes`, (rows,),
        are raw label codes: they count labels in order of first appearance.
        """
        like = self.like
        if like is None or not like.labels:
            return
        values = self._labels.values
        if len(values) > len(self._known):
            fresh = match_labels(values[len(self._known) :], like.labels, like.positive)
            self._known = np.concatenate([self._known, fresh])
        rows = np.bincount(codes[codes >= 0], minlength=len(values))
        for code in np.flatnonzero((self._known < 0) & (rows > 0)).tolist():
            self.found.unknown[code] = self.found.unknown.get(code, 0) + int(rows[code])


REST = "rest"
"""Label (code 0) of all rows without the positive label, if the option `positive` names one."""


class LabelEncoder:
    """Gives labels codes in order of first appearance; the final codes are settled after all rows.

    Parameters
    ----------
    values : list of str, int or float, optional
        The label of each raw code so far; new labels are appended.
    max_labels : int
        Refuse more labels than this.
    """

    def __init__(
        self, values: list[Label] | None = None, max_labels: int = LIMITS.max_raw_labels
    ) -> None:
        """Give the labels in `values` the codes 0, 1, ...; new labels are appended to the list.

        More than `max_labels` labels are refused. ``_bytes`` is the size of all labels as texts.
        """
        self._max_labels = max_labels
        self.values: list[Label] = [] if values is None else values
        self._codes: dict[Any, int] = {value: code for code, value in enumerate(self.values)}
        self._bytes = sum(len(str(value).encode()) for value in self.values)

    def encode(
        self, y: NDArray[Any] | None, rows: int, where: Callable[[int], str]
    ) -> NDArray[Any]:
        """Return the raw code of each label, int32 (rows,); -1 for a missing label.

        Parameters
        ----------
        y : array (rows,) or (rows, 1), or None
            Labels; None: all are missing.
        rows : int
        where : callable
            ``where(i)`` names the place of the i-th row, for errors.

        Raises
        ------
        InputError
            If there is not one label per row, or there are too many labels, or too long ones.
        """
        if y is None:
            return np.full(rows, -1, np.int32)
        y = np.asarray(y)
        if y.ndim == 2 and y.shape[1] == 1:
            y = y[:, 0]
        if y.shape != (rows,):
            raise InputError(
                f"{where(0)}: labels of shape {y.shape} for {rows} rows; give one label for each "
                "row, or ask for regression if they are targets."
            )
        if y.dtype == object:
            # Sorting mixed objects is not possible, and a dict is faster anyway.
            found = dict.fromkeys(y.tolist())
            table = {value: self._code(value) for value in found}
            codes = np.fromiter((table[value] for value in y.tolist()), np.int32, rows)
        else:
            values, inverse = np.unique(y, return_inverse=True)
            codes = np.array([self._code(v) for v in values.tolist()], np.int32)[inverse.ravel()]
        if len(self.values) > self._max_labels:
            first = int(np.argmax(codes >= self._max_labels))
            raise InputError(
                f"{where(first)}: there are more than {self._max_labels} different labels; say "
                "which column holds the label (this one looks like a measurement), or ask for "
                "regression."
            )
        if self._bytes > MAX_TEXT_BYTES:
            raise InputError(
                f"{where(0)}: there are more than {MAX_TEXT_BYTES >> 20} MiB of texts as labels."
            )
        return codes

    def _code(self, value: Any) -> int:
        """Return the code of one label, a new code if it is new; -1 if the label is missing."""
        label = plain_label(value)
        if label is None:
            return -1
        code = self._codes.get(label)
        if code is None:
            code = self._codes[label] = len(self.values)
            self.values.append(label)
            self._bytes += len(str(label).encode())
        return code


def match_labels(values: list[Label], labels: list[Label], positive: Label | None) -> NDArray[Any]:
    """Return the code that each label has in an earlier store, int32 (labels,); -1 if unknown.

    Parameters
    ----------
    values : list
        Distinct labels of new rows, in order of first appearance.
    labels : list
        Labels of the earlier store, in code order.
    positive : label or None
        If given, it has code 1, and every other label has code 0.
    """
    if positive is not None:
        wanted = plain_label(positive)
        truth = parse_truth(wanted)
        return np.array(
            [v == wanted or (truth is not None and parse_truth(v) == truth) for v in values],
            np.int32,
        )
    codes: dict[Any, int] = {plain_label(label): code for code, label in enumerate(labels)}
    if {parse_truth(label) for label in labels} == {0, 1}:
        # Tables hold truth values as texts in one format and as 0 and 1 in another.
        codes |= {parse_truth(label): code for code, label in enumerate(labels)}
        return np.array([codes.get(parse_truth(value), -1) for value in values], np.int32)
    return np.array([codes.get(value, -1) for value in values], np.int32)


def normalise_truths(values: Sequence[Label]) -> list[Label]:
    """Return the labels with 1 and 0 for truth values, if all of them are truth values.

    Truth values are texts in CSV files, and a type of their own in Parquet and data frames.
    """
    truths = [parse_truth(value) for value in values]
    found = [truth for truth in truths if truth is not None]
    return [*found] if len(found) == len(truths) else [*values]


def settle_labels(
    values: list[Label], positive: Label | None, least: int = 2, most: int = LIMITS.max_raw_labels
) -> tuple[list[Label], NDArray[np.int32]]:
    """Decide the labels of a new store, and the code of each raw label.

    Labels are sorted: as numbers if all are numbers, else as texts. If all are truth values, they
    are 0 and 1: see `normalise_truths`.

    Parameters
    ----------
    values : list
        Distinct raw labels, in order of first appearance.
    positive : label or None
        If given, the labels are `REST` (code 0) and this one (code 1).
    least, most : int
        Accepted number of labels; `most` holds without `positive` only.

    Returns
    -------
    labels : list
        In code order.
    codes : int32 array (raw labels,)

    Raises
    ------
    InputError
        If there are fewer than `least` labels or more than `most`, or `positive` is not among them.
    """
    values = normalise_truths(values)
    if positive is None and len(values) > most:
        numbers = not any(isinstance(value, str) for value in values)
        some = ", ".join(repr(value) for value in values[:3])
        instead = "ask for regression if it is an amount, " if numbers else ""
        raise InputError(
            f"the label has {len(values)} different values ({some}, ...): {instead}name another "
            f"column as the label, or allow so many labels (`max_kinds={len(values)}`)."
        )
    texts = any(isinstance(value, str) for value in values)
    labels = sorted({str(v) for v in values} if texts else {*values})
    if len(labels) < least:
        raise InputError(
            f"every row has the label {labels[0] if labels else None!r}: a classifier needs at "
            "least two labels; check which column holds the label, or ask for unlabelled rows, "
            "which a one-class machine is fitted to."
        )
    if positive is None:
        codes = {label: code for code, label in enumerate(labels)}
        return labels, np.array([codes[str(v) if texts else v] for v in values], np.int32)
    wanted = normalise_truths([*values, plain_label(positive) or 0])[-1]
    if wanted not in values:
        some = ", ".join(map(str, labels[:10]))
        raise InputError(
            f"no row has the label {positive!r} asked for as positive; there are {some}."
        )
    assert wanted is not None
    return [REST, wanted], match_labels(values, [], wanted)
