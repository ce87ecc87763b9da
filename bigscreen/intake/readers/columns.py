"""Columns of any table: which hold the index of a data frame, which amounts that are no numbers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence

from bigscreen.errors import InputError
from bigscreen.intake.readers.decimals import GROUPERS

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
