"""Parquet: tables stored by columns, read one row group after the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bigscreen.data.limits import file_size
from bigscreen.errors import InputError, NoRows, in_units, reason_of
from bigscreen.files.remote import Place, RemotePath, located
from bigscreen.fleet.memory import allowed_memory
from bigscreen.intake.readers.arrow import ArrowReader, needs_pyarrow
from bigscreen.intake.readers.base import PIECE_BYTES, WHOLE_BYTES, check_state, state_of

MOST_WHOLE_BYTES = 256 << 20
"""Numbers of a row group that is read whole, at most, and then where there is much memory."""


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
        self.path = located(path)
        most = allowed_memory(memory)
        with self._readable(), self._opened() as file:
            self._state = state_of(self.path)
            schema, rows, self._metadata = file.schema_arrow, file.metadata.num_rows, file.metadata
            self._check_sizes(file.metadata, most // 4)
        if rows == 0:
            raise NoRows(f"{path} has no row.")
        super().__init__(str(path), schema, rows, **options)
        self._whole_bytes = min(max(most // 128, WHOLE_BYTES), MOST_WHOLE_BYTES)
        groups = range(self._metadata.num_row_groups)
        self.anywhere = all(map(self._is_piece, groups))

    def _opened(self, **how: Any) -> Any:
        """The file as pyarrow has it: of a path that holds in any folder, or an open one elsewhere.

        (Imported here, as a worker that is sent a reader has imported nothing for it.)
        """
        import pyarrow.parquet

        path = self.path.absolute()
        return pyarrow.parquet.ParquetFile(
            path.open() if isinstance(path, RemotePath) else path, **how
        )

    @contextmanager
    def _readable(self) -> Iterator[None]:
        """Say of all that a damaged file raises that the file is damaged."""
        try:
            yield
        except (self._arrow.ArrowException, OSError, MemoryError, OverflowError) as error:
            reason = reason_of(error)
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
        with self._readable(), self._opened(read_dictionary=names) as file:
            for batch in file.iter_batches(step, columns=names):
                return batch
        raise InputError(
            f"{self.path} is damaged: it says that it has {self.n_rows} rows, and it gives none; "
            "write or fetch the file again."
        )

    def batches(self, skip_rows: int) -> Iterator[tuple[int, Any]]:
        """See `ArrowReader.batches`: numbers of row groups, and batches of those that are large."""
        first = 0
        for g in range(self._metadata.num_row_groups):
            rows = self._metadata.row_group(g).num_rows
            skip = max(skip_rows - first, 0)
            if skip < rows:
                of_group = (g, skip)
                if self._is_piece(g):
                    yield first, of_group
                else:
                    yield from self.parts(first, of_group)
            first += rows

    def parts(self, first: int, batch: Any) -> Iterator[tuple[int, Any]]:
        """See `ArrowReader.parts`."""
        if not isinstance(batch, tuple):
            yield first, batch
            return
        group, skip_rows = batch
        promised, given = self._metadata.row_group(group).num_rows, 0
        step = max(PIECE_BYTES // (8 * len(self._names)), 1)
        wanted = [f for f in (self._columns.label, self._columns.weight) if f is not None]
        names = [self._names[f] for f in [*wanted, *self._columns.features]]
        check_state(self.path.absolute(), self._state)
        with (
            self._readable(),
            # Texts stay numbers of a dictionary: one that occurs often is not written out as often.
            self._opened(metadata=self._metadata, read_dictionary=self.text_names) as file,
        ):
            for found in file.iter_batches(step, [group], columns=names):
                skip = min(max(skip_rows - given, 0), len(found))
                if skip < len(found):
                    yield first + given + skip, found.slice(skip)
                given += len(found)
        if given != promised:
            raise InputError(
                f"{self.path} is damaged: its row group {group} says that it has {promised} rows, "
                f"and it gives {given}; write or fetch the file again."
            )

    def _is_piece(self, group: int) -> bool:
        """Whether a row group may be read whole, by anybody."""
        rows = self._metadata.row_group(group).num_rows
        return bool(8 * rows * len(self._names) <= self._whole_bytes)
