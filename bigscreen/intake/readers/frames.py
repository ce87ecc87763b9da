"""Reader of data frames: pandas, polars, Arrow, DuckDB, dask, and others that export Arrow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow

from bigscreen.data.dask_rows import is_dask_frame
from bigscreen.data.source_rows import name_text
from bigscreen.errors import InputError, NoRows, reason_of
from bigscreen.intake.readers.arrow import TYPE_SAMPLE_ROWS, ArrowReader

_PLAIN = (str, bool, int, float, np.bool_, np.number)
"""Types of values that a text in a CSV file can stand for."""


def is_frame(X: Any) -> bool:
    """Whether X is a data frame: it exports an Arrow stream, or is a dask data frame."""
    streams = hasattr(X, "__arrow_c_stream__") and not hasattr(
        X, "dims"
    )  # ("dims": arrays of xarray)
    dask = is_dask_frame(X) and hasattr(X, "columns")  # a series has no columns
    return streams or _is_pandas(X) or dask


def _is_pandas(X: Any) -> bool:
    """Whether X is a pandas data frame; pandas need not be installed."""
    return type(X).__module__.split(".")[0] == "pandas" and hasattr(X, "columns")


def _mixed_as_texts(frame: Any) -> Any:
    """Return a pandas frame with columns of mixed texts and numbers converted to texts.

    The frame then means what a CSV file of these texts means.
    """
    for k, kind in enumerate(frame.dtypes):
        known = frame.iloc[:, k].dropna() if kind.kind == "O" else []
        types = {*map(type, known)}
        if str in types and types != {str} and all(issubclass(one, _PLAIN) for one in types):
            texts = frame.iloc[:, k].map(str, na_action="ignore")
            frame = frame.copy(deep=False)
            frame.isetitem(k, texts)
    return frame


class FrameReader(ArrowReader):
    """Reads a data frame; dask's scheduler computes each partition of a dask data frame.

    Parameters
    ----------
    frame : table with columns
        A frame for which `is_frame` is true.
    y, weights : array-like or series (n,), optional
        Labels and weights that are not columns of the frame.
    **options
        Options of `ArrowReader`.
    """

    def __init__(self, frame: Any, y: Any = None, weights: Any = None, **options: Any) -> None:
        """Convert the first partition that has rows, for the types of the columns.

        The type of a column without a value there is taken from later partitions. `y` and `weights`
        are labels and weights that are not columns of `frame`; `options` are fields of
        `ColumnOptions`.
        """
        kind = type(frame).__name__
        self._parts: list[Callable[[], Any]] = [lambda: frame]
        if is_dask_frame(frame):
            parts = (frame.partitions[k] for k in range(frame.npartitions))
            self._parts = [part.compute for part in parts]
        every = enumerate(map(self._to_arrow, self._parts), 1)
        tables = ((after, table) for after, table in every if table.num_rows)
        after, first = next(tables, (0, None))
        if first is None:
            raise NoRows(f"the {kind} has no row.")
        schema = first.schema
        null = pyarrow.types.is_null
        # A partition without any value of a column does not have the column's type.
        while any(null(field.type) for field in schema) and (other := next(tables, None)):
            fields = [
                other[1].schema.field(field.name)
                if null(field.type) and field.name in other[1].schema.names
                else field
                for field in schema
            ]
            schema = pyarrow.schema(fields, schema.metadata)
        if schema != first.schema:
            first = first.cast(schema)
        rows = None if len(self._parts) > 1 else first.num_rows
        self._separate = [None if part is None else np.asarray(part) for part in (y, weights)]
        names = getattr(y, "column_names", getattr(y, "columns", ()))
        if y is not None:
            options = {"label": False, **options}
        self._first, self._after_first = first, after
        super().__init__(f"the {kind}", first.schema, rows, **options)
        del self._first
        if len(names) > 1:
            self.targets = [name_text(name) for name in names]
        self._size = first.nbytes if rows is not None else 0

    def _to_arrow(self, part: Callable[[], Any]) -> Any:
        """Return a partition as an Arrow table; `part` returns it as a data frame.

        Raises
        ------
        InputError
            If a column cannot be converted.
        """
        frame = part()
        try:
            if _is_pandas(frame):
                try:
                    return pyarrow.Table.from_pandas(frame, preserve_index=False)
                except (pyarrow.ArrowException, TypeError, ValueError):
                    frame = _mixed_as_texts(frame)
                return pyarrow.Table.from_pandas(frame, preserve_index=False)
            return pyarrow.table(frame)
        except (pyarrow.ArrowException, TypeError, ValueError) as error:
            reason = "; ".join(map(str, error.args)) or reason_of(error)
            raise InputError(
                f"the {type(frame).__name__} has a column that is neither of numbers nor of texts "
                f"({reason}); convert or drop it first."
            ) from None

    def progress(self) -> tuple[int, int]:
        """Return the bytes of the rows read so far, and of all rows (0: not known)."""
        return (self._size * self._done // (self.n_rows or 1)), self._size

    def text_batches(self, names: list[str]) -> Iterator[Any]:
        """Yield all rows of the named text columns as record batches, to detect types."""
        table = self._first.select(names)
        yield table.slice(0, TYPE_SAMPLE_ROWS).combine_chunks().to_batches()[0]
        yield from table.slice(TYPE_SAMPLE_ROWS).to_batches()
        for part in self._parts[self._after_first :]:
            yield from self._to_arrow(part).select(names).to_batches()

    def batches(self, skip_rows: int) -> Iterator[tuple[int, Any]]:
        """Yield record batches from row number `skip_rows` on, each with its first row number.

        Raises
        ------
        InputError
            If a partition has other columns, or there is not one label and weight for each row.
        """
        step, first = max(self.piece_bytes // (8 * len(self._names)), 1), 0
        for part in self._parts:
            table = self._to_arrow(part)
            if list(table.schema.names) != self._names:
                raise InputError(f"{self._name}, row {first}: a partition has other columns.")
            for batch in table.to_batches(max_chunksize=step):
                if first + len(batch) > skip_rows and len(batch):
                    skip = max(skip_rows - first, 0)
                    yield first + skip, batch.slice(skip)
                first += len(batch)
        for what, values in zip(("labels", "weights"), self._separate, strict=True):
            if values is not None and len(values) != first:
                raise InputError(f"{self._name} has {first} rows and {len(values)} {what}.")

    def separate_labels(self, first: int, rows: int) -> tuple[Any, Any]:
        """Return labels and weights given next to the frame, of `rows` rows from number `first` on.

        Each is an array (rows,), of several targets (rows, targets), or None if it was not given.
        """
        y, weight = (None if v is None else v[first : first + rows] for v in self._separate)
        return y, None if weight is None else np.asarray(weight, np.float64)
