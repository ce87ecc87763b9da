"""Columns of any table: label, weight, features, the index of a data frame, amounts with units."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from bigscreen.data.preparation import Preparation
from bigscreen.errors import InputError
from bigscreen.files.remote import Place
from bigscreen.intake.readers.categories import TEXT, Kind
from bigscreen.intake.readers.decimals import GROUPERS

LABEL_NAMES = ("label", "class", "target", "y")

Column = str | int


@dataclass(frozen=True)
class TableColumns:
    """What each column of a file is: positions of the label, the weight and the features.

    Attributes
    ----------
    label, weight : int or None
    features : list of int
    left_out : list of str
        Columns of the file alone, not of the store that it shall be like; nobody dropped them.
    index_names : list of str
        Columns that are left out because they hold the index of a data frame.
    """

    label: int | None
    weight: int | None
    features: list[int]
    left_out: list[str] = field(default_factory=list)
    index_names: list[str] = field(default_factory=list)

    @staticmethod
    def choose(
        path: str | Place,
        count: int,
        names: list[str] | None,
        label: Column | Literal[False] | None,
        weight: Column | None,
        drop: Sequence[Column],
        columns: Sequence[Column] = (),
        like: Preparation | None = None,
        index: Sequence[int] = (),
    ) -> TableColumns:
        """Return the choice; a label of None is a column with a usual name, or the last one.

        Features are those of ``columns``, or all if there are none, that are nothing else and not
        dropped, in the order of the file. Where the file and the store that it shall be ``like``
        have names, they are the store's columns, wherever the file has them, and a label of None
        is none of them. Columns of an ``index`` are left out unless they are named.

        Raises
        ------
        InputError
            If a column that is named is not there, or none is left as a feature.
        """
        weight_at = None if weight is None else find_column(path, count, names, weight)
        dropped = [find_column(path, count, names, column) for column in drop]
        known = like.names if like is not None and names and not columns else None
        if known is not None and len({*known}) == len(known):
            assert names is not None
            _check_names(path, names, known)
            features = [names.index(name) for name in known]
            others = [f for f in range(count) if f not in {*features, *dropped, weight_at}]
            at = _label_at(path, count, names, label, others, index)
            index = [f for f in others if f in index and f != at]
            left_out = [names[f] for f in others if f != at and f not in index]
            _check_label(path, at, [*features, *dropped, weight_at])
            index_names = [names[f] for f in index]
            return TableColumns(at, weight_at, features, left_out, index_names)
        at = _label_at(path, count, names, label, range(count), index)
        out = [at, weight_at, *dropped]
        kept = [find_column(path, count, names, column) for column in columns]
        index = [f for f in index if f not in {*kept, *out}]
        kept = kept or [f for f in range(count) if f not in index]
        features = [f for f in range(count) if f in kept and f not in out]
        if not features:
            raise InputError(
                f"{path}: of its {count} column(s) none is left as a feature; check the delimiter "
                "and which columns are the label, the weight and dropped."
            )
        _check_label(path, at, out[1:])
        index_names = [names[f] for f in index] if names else []
        return TableColumns(at, weight_at, features, index_names=index_names)


def _label_at(
    path: str | Place,
    count: int,
    names: list[str] | None,
    label: Column | Literal[False] | None,
    among: Sequence[int],
    index: Sequence[int],
) -> int | None:
    """Return the position of the label's column; if nobody names it, one of `among`, or None."""
    if label is False:
        return None
    if label is not None:
        return find_column(path, count, names, label)
    named = {names[f].lower(): f for f in reversed(among) if f not in index} if names else {}
    usual = (named[name] for name in LABEL_NAMES if name in named)
    last = max((f for f in range(count) if f not in index), default=None)
    return next(usual, last if last in among else None)


def _check_label(path: str | Place, at: int | None, others: Sequence[int | None]) -> None:
    """Refuse a label's column that is something else, too."""
    if at is not None and at in others:
        raise InputError(
            f"{path}: the label's column cannot be the weight or a feature, or be dropped."
        )


def _check_names(path: str | Place, names: list[str], known: list[str]) -> None:
    """Refuse a file without a column of the store that it shall be like."""
    missing = [name for name in known if name not in names]
    if missing:
        more = f" (nor {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise InputError(
            f"{path} has no column {missing[0]!r}{more}, which the store it shall be like has; its "
            f"columns are {', '.join(names[:20])}."
        )


def find_column(path: str | Place, count: int, names: list[str] | None, column: Column) -> int:
    """Return the position of a column given by its name, or its position (from 0, or from -1)."""
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


def asked_kinds(
    path: str | Place,
    names: list[str] | None,
    count: int,
    categorical: Sequence[Column],
    dates: Mapping[Column, str],
    hashed: Mapping[Column, int],
) -> dict[int, Kind]:
    """Return what columns of a file were said to hold, by their positions.

    Raises
    ------
    InputError
        If there is no such column, or it was said to hold two things.
    """
    said: list[tuple[Column, Kind]] = [(column, TEXT) for column in categorical]
    said += [(column, Kind("date", form)) for column, form in dates.items()]
    said += [(column, Kind("hash", bits)) for column, bits in hashed.items()]
    out: dict[int, Kind] = {}
    for column, kind in said:
        at = find_column(path, count, names, column)
        if out.setdefault(at, kind) != kind:
            raise InputError(
                f"{path}: the column {column!r} cannot be {out[at].name} and {kind.name} at once."
            )
    return out


_WRITTEN_INDEX = re.compile(r"__index_level_\d+__|__null_dask_index__")
"""Names that pandas, pyarrow and dask give to an index without a name."""

_GROUPED = re.compile(
    rf"[+-]?(?:\d+(?:,\d+)+(?:\.\d*)?|\d{{1,3}}(?:[{GROUPERS}]\d{{3}})+(?:[.,]\d*)?)"
)
"""A number with a comma, or with thousands set apart: 1,200.5 and 1 234 567,8."""

_SIGN = r"[%\u2030$\u20ac\u00a3\u00a5\u20b9\u00a2]"
_NUMBER = rf"[+-]?\d(?:[\d.,{GROUPERS}]*\d)?"
_WITH_UNIT = re.compile(
    rf"{_SIGN}\s?{_NUMBER}|{_NUMBER}\s?{_SIGN}|([A-Z]{{3}})\s{_NUMBER}|{_NUMBER}\s([^\W\d_]{{1,4}})"
)
"""A number with a unit: $5, 5 %, EUR 10 and 10 kg, but not 4wd."""


def check_amounts(words: Sequence[str], place: str, instead: str | None) -> None:
    """Refuse a column whose texts are amounts: as categories they would have no order.

    Parameters
    ----------
    words : sequence of str
        The different texts of the column that are neither numbers nor missing values.
    place : str
        Where the first of them stands.
    instead : str or None
        What to do about numbers with commas or marks of thousands; None: they were looked for
        already, so that what looks like one is none.

    Raises
    ------
    InputError
    """
    if instead is not None and all(map(_GROUPED.fullmatch, words)):
        mark = "a comma" if "," in words[0] else "marks of thousands"
        raise InputError(
            f"{place}: {words[0]!r} has {mark}: {instead}, or say that the column is `categorical`."
        )
    found = [_WITH_UNIT.fullmatch(word) for word in words]
    units = {match[1] or match[2] for match in found if match}
    if all(found) and len(units) == 1:
        raise InputError(
            f"{place}: {words[0]!r} is a number with a unit: write numbers without their units, "
            "say that the column is `categorical`, or `drop` it."
        )


def index_columns(
    names: Sequence[str] | None,
    metadata: bytes | None = None,
    is_whole: Callable[[int], bool] = lambda _: False,
    n_blank: int = 0,
) -> list[int]:
    """Return the positions of the columns that hold the index of a data frame.

    Parameters
    ----------
    names : sequence of str or None
        Names of all columns of a source.
    metadata : bytes, optional
        The JSON record that pandas and dask write beside a table; it names the index columns.
    is_whole : callable
        Whether the column at a position holds whole numbers alone. The leading columns that have no
        name, or the name that `pandas.read_csv` gives to one without ("Unnamed: 0"), are an index
        if they hold whole numbers.
    n_blank : int
        Leading columns whose name is empty in the source.
    """
    if names is None:
        return []
    declared = _declared_index(metadata)
    found = [f for f, name in enumerate(names) if name in declared or _WRITTEN_INDEX.match(name)]
    for f, name in enumerate(names):
        unnamed = f < n_blank or name in ("", f"Unnamed: {f}")
        if not (unnamed and is_whole(f)):
            break
        found.append(f)
    return sorted({*found})


def _declared_index(metadata: bytes | None) -> set[str]:
    """Return the names of the index columns in the record that pandas writes beside a table."""
    try:
        record = json.loads(metadata or b"{}")
    except ValueError:
        return set()
    columns = record.get("index_columns") if isinstance(record, dict) else None
    # An index of consecutive numbers is a mapping there and has no column.
    return {name for name in columns or () if isinstance(name, str)}
