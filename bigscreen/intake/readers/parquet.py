"""Parquet: tables stored by columns, read one row group after the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bigscreen.data.limits import file_size, most_memory
from bigscreen.errors import InputError, in_units
from bigscreen.files.remote import Place, RemotePath, located
from bigscreen.intake.readers.arrow import ArrowReader, needs_pyarrow
from bigscreen.intake.readers.base import PIECE_BYTES


class ParquetReader(ArrowReader):
    """Reads a Parquet file; columns of texts are categorical.

    Parameters
    ----------
    path : str or Path
    memory : int, optional
        Bytes that reading may take.
    **options
        Of `ArrowReader`.

    Raises
    ------
    InputError
        If pyarrow is not installed, or a column is neither of numbers nor of dates nor of texts.
    """

    n_rows: int

    def __init__(self, path: str | Place, *, memory: int | None = None, **options: Any) -> None:
        self._arrow = needs_pyarrow(f"{path}: reading Parquet")
        import pyarrow.parquet

        self.path = located(path)
        with self._readable(), pyarrow.parquet.ParquetFile(self._file()) as file:
            schema, rows = file.schema_arrow, file.metadata.num_rows
            self._check_sizes(file.metadata, most_memory(memory) // 4)
        if rows == 0:
            raise InputError(f"{path} has no row.")
        super().__init__(str(path), schema, rows, **options)

    def _file(self) -> Any:
        """What pyarrow opens: a path, or an open file elsewhere."""
        return self.path.open() if isinstance(self.path, RemotePath) else self.path

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

    def progress(self) -> tuple[int, int]:
        """Bytes read and bytes in all, as far as the rows read tell."""
        size = file_size(self.path)
        return size * self._done // self.n_rows, size

    def first_rows(self, names: list[str]) -> Any:
        """See `ArrowReader.first_rows`."""
        step = max(PIECE_BYTES // (8 * len(self._names)), 1)
        file = self._arrow.parquet.ParquetFile(self._file(), read_dictionary=names)
        with self._readable(), file:
            return next(file.iter_batches(step, columns=names))

    def batches(self, skip_rows: int) -> Iterator[tuple[int, Any]]:
        """See `ArrowReader.batches`; whole row groups before them are not read."""
        step = max(PIECE_BYTES // (8 * len(self._names)), 1)
        # Texts stay numbers of a dictionary: one that occurs often is not written out as often.
        file = self._arrow.parquet.ParquetFile(self._file(), read_dictionary=self.text_names)
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
                if skip < len(batch):
                    yield first + skip, batch.slice(skip)
                first += len(batch)
