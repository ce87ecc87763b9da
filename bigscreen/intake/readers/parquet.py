"""Parquet: tables stored by columns, read one row group after the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bigscreen.data.limits import most_memory
from bigscreen.data.preparation import ABSENT
from bigscreen.errors import InputError, in_units
from bigscreen.intake.readers.base import PIECE_BYTES, Block
from bigscreen.intake.readers.binary import Column
from bigscreen.intake.readers.table import TableColumns, find_column


class ParquetReader:
    """Reads a Parquet file; columns of texts are categorical.

    Parameters
    ----------
    path : str or Path
    label : str, int, False or None
        Name or position of the label's column; False: there is none. Default: the column named
        label, class, target or y, else the last one.
    weight : str or int, optional
        Column of sample weights.
    drop, categorical : sequence of str or int, optional
        Columns to leave out, and columns of numbers that are categories.
    categories : mapping of int to list of str, optional
        Categories from an earlier store, for columns of X; see `TableReader`.
    missing : bool, default=False
        Whether features may be null: see `DelimitedReader`.
    memory : int, optional
        Bytes that reading may take.

    Raises
    ------
    InputError
        If pyarrow is not installed, or a column is neither of numbers nor of texts.
    """

    sparse = False

    def __init__(
        self,
        path: str | Path,
        *,
        label: Column | Literal[False] | None = None,
        weight: Column | None = None,
        drop: Sequence[Column] = (),
        categorical: Sequence[Column] = (),
        categories: Mapping[int, list[str]] | None = None,
        memory: int | None = None,
        missing: bool = False,
    ) -> None:
        self._missing = missing
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError:
            raise InputError(
                f"{path}: reading Parquet needs pyarrow; install it with "
                'pip install "bigscreen[parquet]".'
            ) from None
        self.path, self._arrow = Path(path), pyarrow
        with self._readable(), pyarrow.parquet.ParquetFile(path) as file:
            schema, self.n_rows = file.schema_arrow, file.metadata.num_rows
            self._check_sizes(file.metadata, most_memory(memory) // 4)
        if self.n_rows == 0:
            raise InputError(f"{path} has no row.")
        names = list(schema.names)
        twice = [name for name, times in Counter(names).items() if times > 1]
        if twice:
            raise InputError(f"{path}: two columns are named {twice[0]!r}; rename one.")
        columns = TableColumns.choose(path, len(names), names, label, weight, drop)
        self._columns = columns
        self._names = names
        self._kinds = {name: schema.field(name).type for name in names}
        self.names: list[str] | None = [names[f] for f in columns.features]
        self.n_features: int | None = len(columns.features)
        known: dict[int, list[str] | None]
        if categories is None:
            named = [find_column(path, len(names), names, column) for column in categorical]
            known = {
                j: None
                for j, f in enumerate(columns.features)
                if f in named or self._is_text(schema.field(f).type)
            }
        else:
            known = {j: list(of_column) for j, of_column in categories.items()}
        self._known = known
        for j, f in enumerate(columns.features):
            kind = schema.field(f).type
            if j not in known and not self._is_number(kind):
                raise InputError(
                    f"{path}: column {names[f]!r} holds {kind}, neither numbers nor texts that are "
                    "known as categories; drop it."
                )
        self._done = 0
        self._restart()

    @contextmanager
    def _readable(self) -> Iterator[None]:
        """Say of all that a damaged file raises that the file is damaged."""
        try:
            yield
        except (self._arrow.ArrowException, OSError, MemoryError, OverflowError) as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise InputError(f"{self.path} is not a readable Parquet file ({reason}).") from None

    def _check_sizes(self, metadata: Any, most: int) -> None:
        """Refuse a part that must be held whole and is beyond the memory, by what it declares."""
        total = 0
        for g in range(metadata.num_row_groups):
            group = metadata.row_group(g)
            total += max(group.num_rows, 0)
            for c in range(group.num_columns):
                column = group.column(c)
                if not 0 <= column.total_uncompressed_size <= most:
                    raise InputError(
                        f"{self.path}: the column {column.path_in_schema!r} takes "
                        f"{in_units(column.total_uncompressed_size)} in one row group, and at most "
                        f"{in_units(most)} are taken: write the file in smaller row groups, or "
                        "allow more memory."
                    )
        if total != metadata.num_rows:
            raise InputError(
                f"{self.path} is damaged: it says that it has {metadata.num_rows} rows, and its "
                f"row groups {total}."
            )

    def _restart(self) -> None:
        self.categories = {j: list(known or []) for j, known in self._known.items()}
        self.unseen = {j: 0 for j, known in self._known.items() if known is not None}

    def _is_text(self, kind: Any) -> bool:
        types = self._arrow.types
        if types.is_dictionary(kind):
            kind = kind.value_type
        return bool(
            types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
        )

    def _is_number(self, kind: Any) -> bool:
        types = self._arrow.types
        if types.is_dictionary(kind):
            kind = kind.value_type
        return bool(
            types.is_integer(kind)
            or types.is_floating(kind)
            or types.is_boolean(kind)
            or types.is_decimal(kind)
        )

    def progress(self) -> tuple[int, int]:
        """Bytes read and bytes in all, as far as the rows read tell."""
        size = self.path.stat().st_size
        return size * self._done // self.n_rows, size

    def blocks(self, skip_rows: int = 0) -> Iterator[Block]:
        """Yield the rows from number `skip_rows` on; whole row groups before it are not read."""
        self._restart()
        step = max(PIECE_BYTES // (8 * len(self._names)), 1)
        # Texts stay numbers of a dictionary: one that occurs often is not written out as often.
        texts = [name for name, kind in self._kinds.items() if self._is_text(kind)]
        file = self._arrow.parquet.ParquetFile(self.path, read_dictionary=texts)
        with self._readable(), file:
            first = 0
            groups = list(range(file.metadata.num_row_groups))
            while groups and first + file.metadata.row_group(groups[0]).num_rows <= skip_rows:
                first += file.metadata.row_group(groups.pop(0)).num_rows
            wanted = [f for f in (self._columns.label, self._columns.weight) if f is not None]
            wanted += self._columns.features
            names = [self._names[f] for f in wanted]
            for batch in file.iter_batches(step, groups, columns=names):
                skip = max(skip_rows - first, 0)
                self._done = first + len(batch)
                if skip < len(batch):
                    yield self._block(batch.slice(skip), first + skip)
                first += len(batch)

    def _block(self, batch: Any, first: int) -> Block:
        def where(i: int) -> str:
            return f"{self.path}, row {first + i}"

        def column(f: int) -> Any:
            values = batch.column(self._names[f])
            if values.null_count and not (self._missing and f in self._columns.features):
                row = int(np.argmax(values.is_null().to_numpy(zero_copy_only=False)))
                raise InputError(
                    f"{where(row)}: column {self._names[f]!r} is empty; remove or fill the row."
                )
            return values

        def numbers(f: int) -> NDArray[np.float64]:
            values = column(f)
            if self._arrow.types.is_dictionary(values.type):
                values = values.dictionary_decode()
            cast = values.cast(self._arrow.float64(), safe=False)
            return np.asarray(cast.to_numpy(zero_copy_only=False))

        X = np.empty((len(batch), len(self._columns.features)))
        for j, f in enumerate(self._columns.features):
            X[:, j] = self._codes(j, column(f)) if j in self._known else numbers(f)
        y = weight = None
        if self._columns.label is not None:
            values = column(self._columns.label)
            if self._is_number(values.type):
                y = numbers(self._columns.label)
            else:
                if self._arrow.types.is_dictionary(values.type):
                    known = np.array(values.dictionary.to_pylist(), object)
                    y = known[values.indices.to_numpy(zero_copy_only=False)]
                else:
                    y = np.array(values.to_pylist(), object)
        if self._columns.weight is not None:
            weight = numbers(self._columns.weight)
        return Block(X, y, weight, first, where)

    def _codes(self, j: int, values: Any) -> NDArray[np.int32]:
        """Category numbers of the values; a category not seen before gets the next one."""
        if values.null_count:
            if self._arrow.types.is_dictionary(values.type):
                values = values.dictionary_decode()
            values = values.cast(self._arrow.string()).fill_null(ABSENT)
        if not self._arrow.types.is_dictionary(values.type):
            values = values.dictionary_encode()
        names = self.categories[j]
        table = {name: code for code, name in enumerate(names)}
        codes = []
        for value in values.dictionary.to_pylist():
            text = str(value)
            if text not in table and self._known[j] is None:
                table[text] = len(names)
                names.append(text)
            codes.append(table.get(text, -1))
        out: NDArray[np.int32] = np.array(codes, np.int32)[
            values.indices.to_numpy(zero_copy_only=False)
        ]
        if j in self.unseen:
            self.unseen[j] += int(np.count_nonzero(out < 0))
        return out
