"""Columns of any table: which of them hold the index of a data frame, not a measurement."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence

_WRITTEN_INDEX = re.compile(r"__index_level_\d+__|__null_dask_index__")
"""Names that pandas, pyarrow and dask give to an index without a name."""


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
