"""Roles of table columns (label, weight, feature, index), and the types of their values."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow

from bigscreen.data.missing import Missing
from bigscreen.data.preparation import Preparation, source_position
from bigscreen.data.texts import (
    DATE_LIKE,
    ISO_DATE,
    THOUSANDS_SEPARATORS,
    parse_number,
    parse_truth,
)
from bigscreen.errors import InputError
from bigscreen.files.remote import Place
from bigscreen.intake.readers.categories import (
    BLANK,
    NO_MISSING,
    TEXT,
    TRUTH,
    Kind,
    Tokens,
    check_texts,
    trim_texts,
    try_numbers,
)
from bigscreen.intake.readers.decimals import normalise_numbers

LABEL_NAMES = ("label", "class", "target", "y")
"""Names, in any case, of a column that holds labels if no label column is given."""

Column = str | int
"""A column of a table, by name or by position."""


@dataclass(frozen=True)
class ColumnOptions:
    """Options that name columns of a table, by name or by position.

    Attributes
    ----------
    label : str, int, sequence of these, False or None
        Several columns hold the targets of a regression. False: no labels. None: the columns of the
        targets of `like` if it has several, else the column named label, class, target or y, else
        the last column.
    weight : str, int or None
        Column of sample weights.
    drop, columns : sequence of str or int
        Columns to leave out, and columns to take as features (default: all others).
    categorical : sequence of str or int
        Columns whose values are categories even if they read as numbers, truth values or dates.
        Text columns need not be named, columns of texts AND numbers must be.
    dates : mapping of str or int to str
        Columns of dates, and their formats: see `Dates`. Dates in ISO 8601, and columns whose type
        is a date or a time, need not be named.
    hashed : mapping of str or int to int
        Columns whose texts are hashed, and the bits of each hash.
    like : Preparation or None
        Columns and categories of an earlier store, which settle the types of all columns. A value
        that is not among its categories has code -1 and is counted in `unseen`.
    missing : Missing
        Marks of missing values, and whether features may be missing: a missing number is NaN, a
        missing text is a category of its own.
    """

    label: Column | Sequence[Column] | Literal[False] | None = None
    weight: Column | None = None
    drop: Sequence[Column] = ()
    columns: Sequence[Column] = ()
    categorical: Sequence[Column] = ()
    dates: Mapping[Column, str] = field(default_factory=dict)
    hashed: Mapping[Column, int] = field(default_factory=dict)
    like: Preparation | None = None
    missing: Missing = NO_MISSING

    @property
    def given_labels(self) -> list[Column]:
        """Return the columns that `label` names."""
        if self.label is None or self.label is False:
            return []
        return [self.label] if isinstance(self.label, (str, int)) else [*self.label]

    @property
    def names(self) -> list[str]:
        """Return all texts among the options that may be column names."""
        one = (self.weight,)
        many = self.given_labels, self.drop, self.columns, self.categorical, self.dates, self.hashed
        return [c for c in (*one, *(c for part in many for c in part)) if isinstance(c, str)]

    def kinds(self, path: str | Place, count: int, names: list[str] | None) -> dict[int, Kind]:
        """Return the types that the options give to columns of a file, by position.

        Parameters
        ----------
        path : str or Place
            Name of the file, for errors.
        count : int
            Number of columns.
        names : list of str or None
            Names of the columns.

        Raises
        ------
        InputError
            If a column does not exist, or is given two types.
        """
        said: list[tuple[Column, Kind]] = [(column, TEXT) for column in self.categorical]
        said += [(column, Kind("date", form)) for column, form in self.dates.items()]
        said += [(column, Kind("hash", bits)) for column, bits in self.hashed.items()]
        out: dict[int, Kind] = {}
        for column, kind in said:
            at = find_column(path, count, names, column)
            if out.setdefault(at, kind) != kind:
                raise InputError(
                    f"{path}: the column {column!r} cannot be {out[at].name} and {kind.name} at "
                    "once."
                )
        return out


@dataclass(frozen=True)
class ColumnRoles:
    """Positions of the labels, the weight and the features among the columns of a file.

    Attributes
    ----------
    labels : list of int or None
        The label, or each of several targets; None for a target that the file lacks, and empty if
        it has no label.
    weight : int or None
        None if there is no such column.
    features : list of int
        In the order of the stored features.
    left_out : list of str
        Columns of the file that the existing store lacks, and that the user did not drop.
    index_names : list of str
        Columns that are left out as the index of a data frame.
    """

    labels: list[int | None]
    weight: int | None
    features: list[int]
    left_out: list[str] = field(default_factory=list)
    index_names: list[str] = field(default_factory=list)

    @staticmethod
    def choose(
        path: str | Place,
        count: int,
        names: list[str] | None,
        asked: ColumnOptions,
        index: Sequence[int] = (),
    ) -> ColumnRoles:
        """Return the roles of the columns, given the options.

        Features are the requested columns (default: all) that have no other role and are not
        dropped, in the order of the file. If the file and the existing store have names, the
        features are the store's columns, in any order of the file, and a label that is not named is
        not one of them. A file without names that has as many columns as the store has no label;
        one with more has its features where the store's source had them.

        Parameters
        ----------
        path : str or Place
            Name of the file, for errors.
        count : int
            Number of columns.
        names : list of str or None
            Names of the columns.
        asked : ColumnOptions
            The options.
        index : sequence of int
            Columns that hold the index of a data frame; left out unless the options name them.

        Raises
        ------
        InputError
            If a named column does not exist, no column is left as a feature, or columns that the
            existing store has are missing.
        """
        like, weight = asked.like, asked.weight
        weight_at = None if weight is None else find_column(path, count, names, weight)
        dropped = [find_column(path, count, names, column) for column in asked.drop]
        known = like.names if like is not None and names and not asked.columns else None
        if known is not None and len({*known}) == len(known):
            assert names is not None
            _check_names(path, names, known)
            first = {name: f for f, name in reversed([*enumerate(names)])}
            features = [first[name] for name in known]
            used = {*features, *dropped, weight_at}
            others = [f for f in range(count) if f not in used]
            at = _find_labels(path, count, names, asked, others, index)
            index = [f for f in others if f in index and f not in at]
            left_out = [names[f] for f in others if f not in at and f not in index]
            _check_labels(path, at, [*features, *dropped, weight_at])
            index_names = [names[f] for f in index]
            return ColumnRoles(at, weight_at, features, left_out, index_names)
        if (as_source := _roles_in_source(path, count, names, asked)) is not None:
            return as_source
        beside = len({weight_at, *dropped} - {None})
        as_many = like is not None and count - beside == like.n_raw
        if asked.label is None and not names and as_many and not asked.columns:
            at = []  # as many columns as the store has features: the last one is no label
        else:
            at = _find_labels(path, count, names, asked, range(count), index)
        out = {*at, weight_at, *dropped}
        kept = {find_column(path, count, names, column) for column in asked.columns}
        index = [f for f in index if f not in kept | out]
        kept = kept or set(range(count)).difference(index)
        features = sorted(kept - out)
        if not features:
            raise InputError(
                f"{path}: of its {count} column(s) none is left as a feature; check the delimiter "
                "and which columns are the label, the weight and dropped."
            )
        _check_labels(path, at, [weight_at, *dropped])
        if like is not None and like.categories and len(features) < (like.n_raw or 0):
            label = f" beside the label, column {at[0]} (from 0)" if len(at) == 1 else ""
            raise InputError(
                f"{path} has {len(features)} columns{label}, and the store it shall be like has "
                f"{like.n_raw}; give all of them."
            )
        index_names = [names[f] for f in index] if names else []
        return ColumnRoles(at, weight_at, features, index_names=index_names)


def _roles_in_source(
    path: str | Place, count: int, names: list[str] | None, asked: ColumnOptions
) -> ColumnRoles | None:
    """Return the roles of a file without names whose columns stand as in a store's source.

    None if options say the roles, the file has the store's features alone, or the source had no
    other columns than its features and a label after them.

    Raises
    ------
    InputError
        If the file has too few columns, or may be the source without its label as well as the
        source without another column.
    """
    like = asked.like
    said = asked.label is not None or asked.weight is not None or asked.drop or asked.columns
    if like is None or names or said or like.targets or count == like.n_raw:
        return None
    features = [source_position(c, like.skipped) for c in range(like.n_raw or 0)]
    if not like.skipped and like.label_at in ([], [len(features)]):
        return None
    lacks_label = bool(like.label_at) and like.label_at[0] >= count
    if count <= features[-1] or (lacks_label and count == len(features) + 1):
        raise InputError(
            f"{path} has {count} columns and no names, and which of them are the features of the "
            f"store it shall be like is not known: give all columns of that store's source, or the "
            f"{len(features)} features alone."
        )
    others = set(range(count)).difference(features)
    left_out = sorted(others.difference(like.label_at))
    return ColumnRoles(
        [f for f in like.label_at if f in others], None, features, [str(f) for f in left_out]
    )


def _find_labels(
    path: str | Place,
    count: int,
    names: list[str] | None,
    asked: ColumnOptions,
    among: Sequence[int],
    index: Sequence[int],
) -> list[int | None]:
    """Return the positions of the label, or of all targets, as `ColumnRoles.labels`.

    Parameters
    ----------
    path : str or Place
        Name of the file, for errors.
    count : int
        Number of columns.
    names : list of str or None
        Names of the columns.
    asked : ColumnOptions
        The options.
    among : sequence of int
        Columns that may be a label that is not named: a target of the existing store, the label by
        a usual name, or the last column.
    index : sequence of int
        Columns that hold the index of a data frame, and are never the label unless named.
    """
    if asked.label is False:
        return []
    if given := asked.given_labels:
        found = [find_column(path, count, names, column) for column in given]
        if len({*found}) < len(found):
            twice = next(c for c, f in zip(given, found, strict=True) if found.count(f) > 1)
            raise InputError(f"{path}: the label names the column {twice!r} twice; name it once.")
        return [*found]
    if asked.like is not None and asked.like.targets:
        return _find_targets(path, count, names, asked.like.targets, among)
    named = {names[f].lower(): f for f in reversed(among) if f not in index} if names else {}
    usual = (named[name] for name in LABEL_NAMES if name in named)
    last = max((f for f in range(count) if f not in index), default=None)
    at = next(usual, last if last in among else None)
    return [] if at is None else [at]


def _find_targets(
    path: str | Place,
    count: int,
    names: list[str] | None,
    targets: Sequence[Column],
    among: Sequence[int],
) -> list[int | None]:
    """Return the position of each target of the existing store; empty if the file has no target.

    Parameters
    ----------
    path : str or Place
        Name of the file, for errors.
    count : int
        Number of columns.
    names : list of str or None
        Names of the columns.
    targets : sequence of str or int
        The targets, as `Preparation.targets`.
    among : sequence of int
        Columns that may be targets.

    Raises
    ------
    InputError
        If the file has no names, and the store knows its targets by names.
    """
    if not names and any(isinstance(target, str) for target in targets):
        raise InputError(
            f"{path} has no header, and which of its columns hold the targets "
            f"{', '.join(map(str, targets))} is not known: give it a header, or leave these "
            "columns out."
        )
    known = {name: f for f, name in enumerate(names or [])}
    found = [known.get(t) if isinstance(t, str) else t for t in targets]
    at = [f if f in among else None for f in found]
    return [] if at == [None] * len(at) else at


def _check_labels(
    path: str | Place, at: Sequence[int | None], others: Sequence[int | None]
) -> None:
    """Raise InputError if a label column in `at` is one of the `others`, which have another role.

    None stands for a column that is not there.
    """
    if {*at} & {*others} - {None}:
        raise InputError(
            f"{path}: the label's column cannot be the weight or a feature, or be dropped."
        )


def _check_names(path: str | Place, names: list[str], known: list[str]) -> None:
    """Raise InputError if a file lacks a column of the existing store.

    `names` are the file's columns, `known` the store's.
    """
    there = {*names}
    missing = [name for name in known if name not in there]
    if missing:
        more = f" (nor {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise InputError(
            f"{path} has no column {missing[0]!r}{more}, which the store it shall be like has; its "
            f"columns are {', '.join(names[:20])}."
        )


def find_column(path: str | Place, count: int, names: list[str] | None, column: Column) -> int:
    """Return the position of a column given by its name, or by its position.

    A negative position counts from the last column, -1; a name may also be a position as a text.

    Parameters
    ----------
    path : str or Place
        Name of the file, for errors.
    count : int
        Number of columns.
    names : list of str or None
        Names of the columns.
    column : str or int

    Raises
    ------
    InputError
        If there is no such column.
    """
    if isinstance(column, str):
        if names and column in names:
            return names.index(column)
        if not re.fullmatch(r"-?\d+", column):
            known = f"its columns are {', '.join(names[:20])}" if names else "it has no header"
            raise InputError(f"{path} has no column {column!r}: {known}.")
    at = int(column)
    if not -count <= at < count:
        raise InputError(f"{path} has no column {at}: its columns are 0 to {count - 1}.")
    return at % count


_WRITTEN_INDEX = re.compile(r"__index_level_\d+__|__null_dask_index__")
"""Matches names that pandas, pyarrow and dask give to an index without a name."""

_GROUPED = re.compile(
    rf"[+-]?(?:\d+(?:,\d+)+(?:\.\d*)?|\d{{1,3}}(?:[{THOUSANDS_SEPARATORS}]\d{{3}})+(?:[.,]\d*)?)"
)
"""Matches a number with a comma or with thousands separators: 1,200.5 and 1 234 567,8."""

# Parts of the pattern below: a sign of a unit, and a number with any marks between its digits.
_SIGN = r"[%\u2030$\u20ac\u00a3\u00a5\u20b9\u00a2]"
_NUMBER = rf"[+-]?\d(?:[\d.,{THOUSANDS_SEPARATORS}]*\d)?"
_WITH_UNIT = re.compile(
    rf"{_SIGN}\s?{_NUMBER}|{_NUMBER}\s?{_SIGN}|([A-Z]{{3}})\s{_NUMBER}|{_NUMBER}\s([^\W\d_]{{1,4}})"
)
"""Matches a number with a unit: $5, 5 %, EUR 10 and 10 kg, but not 4wd."""


def detect_kind(
    column: Any,
    places: Callable[[int], str],
    missing: Missing,
    advice: str,
    decimal: str | None = None,
) -> Kind | None:
    """Return the type of a text column, judged by its first rows; None if it holds numbers.

    Parameters
    ----------
    column : pyarrow.Array
        Texts, perhaps null.
    places : callable
        ``places(i)`` names the i-th row in an error.
    missing : Missing
        Marks of missing values, which have no type.
    advice : str
        Advice in the error about numbers with commas or thousands separators.
    decimal : {".", ","}, optional
        Decimal mark, if the other mark may separate thousands. Default: a point, no separators.

    Returns
    -------
    Kind or None
        `BLANK` if every value is missing.

    Raises
    ------
    InputError
        If it holds both texts and numbers (except 0 and 1 among truth values), amounts with a unit
        (which would lose their order as categories), or dates whose order of day and month is
        ambiguous.
    """
    if pyarrow.types.is_dictionary(column.type):
        coded = Tokens.of(column, places)
        column, places = coded.array, coded.place
    column = normalise_numbers(trim_texts(column).fill_null(""), decimal)
    if try_numbers(column) is not None and not missing.numbers:
        return None
    found = Tokens.of(column, places)
    numbers = [text for text in found.texts if parse_number(text) is not None]
    words = [text for text in found.texts if text not in missing and parse_number(text) is None]
    has_numbers = any(text not in missing for text in numbers)
    if not words:
        return None if has_numbers else BLANK
    place = found.place(found.texts.index(words[0]))
    check_texts(len(words), sum(map(len, words)), lambda: place)
    if decimal is None and all(map(_GROUPED.fullmatch, words)):
        mark = "a comma" if "," in words[0] else "marks of thousands"
        raise InputError(
            f"{place}: {words[0]!r} has {mark}: {advice}, or say that the column is `categorical`."
        )
    amounts = [_WITH_UNIT.fullmatch(word) for word in words]
    if all(amounts) and len({match[1] or match[2] for match in amounts if match}) == 1:
        raise InputError(
            f"{place}: {words[0]!r} is a number with a unit: write numbers without their units, "
            "say that the column is `categorical`, or `drop` it."
        )
    is_truth = all(parse_truth(word) is not None for word in words)
    if not all(missing.is_mark(n) or (is_truth and parse_number(n) in (0, 1)) for n in numbers):
        raise InputError(
            f"{place}: {words[0][:40]!r} stands among numbers; mend it, say that it means a "
            f"missing value (`missing={words[0][:40]!r}`), or that the column is `categorical`, or "
            "`drop` it."
        )
    if is_truth:
        return TRUTH
    if all(map(ISO_DATE.fullmatch, words)):
        return Kind("date", "")
    if all(ISO_DATE.fullmatch(word) or DATE_LIKE.fullmatch(word) for word in words):
        raise InputError(
            f"{place}: {words[0]!r} looks like a date or a time, but not in which order it is "
            "written: say so (`date='COLUMN=%d/%m/%Y'`, as strptime has it), name the column as "
            "`categorical`, or `drop` it."
        )
    return TEXT


def find_index_columns(
    names: Sequence[str] | None,
    metadata: bytes | None = None,
    is_whole: Callable[[int], bool] = lambda _: False,
    n_blank: int = 0,
) -> list[int]:
    """Return the positions of columns that hold the index of a data frame.

    Parameters
    ----------
    names : sequence of str or None
        Names of all columns of a source.
    metadata : bytes, optional
        The JSON metadata that pandas and dask add to a table; it names the index columns.
    is_whole : callable
        Whether the column at a position holds only whole numbers. Leading columns without a name,
        or named "Unnamed: 0" as by `pandas.read_csv`, are an index if they hold whole numbers.
    n_blank : int
        Number of leading columns whose name is empty in the source.
    """
    if names is None:
        return []
    declared = _read_index_names(metadata)
    found = [f for f, name in enumerate(names) if name in declared or _WRITTEN_INDEX.match(name)]
    for f, name in enumerate(names):
        unnamed = f < n_blank or name in ("", f"Unnamed: {f}")
        if not (unnamed and is_whole(f)):
            break
        found.append(f)
    return sorted({*found})


def find_category_columns(metadata: bytes | None) -> set[str]:
    """Return the names of columns of type `category`, by the JSON metadata of pandas (or None)."""
    columns = _read_pandas_metadata(metadata).get("columns") or ()
    return {
        str(column.get("field_name"))
        for column in columns
        if isinstance(column, dict) and column.get("pandas_type") == "categorical"
    }


def _read_index_names(metadata: bytes | None) -> set[str]:
    """Return the names of the index columns, by the JSON metadata of pandas (or None)."""
    columns = _read_pandas_metadata(metadata).get("index_columns") or ()
    # An index of consecutive numbers is a mapping in the metadata, and has no column.
    return {name for name in columns if isinstance(name, str)}


def _read_pandas_metadata(metadata: bytes | None) -> dict[str, Any]:
    """Return the JSON metadata that pandas adds to a table; empty if invalid or None."""
    try:
        record = json.loads(metadata or b"{}")
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}
