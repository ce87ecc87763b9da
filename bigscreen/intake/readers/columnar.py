"""Readers of Parquet and Feather files, which pyarrow reads one row group after the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import pyarrow
import pyarrow.dataset
import pyarrow.fs

from bigscreen.data.limits import file_size
from bigscreen.errors import InputError, NoRows, in_units, reason_of
from bigscreen.files.remote import Place, RemotePath, as_path
from bigscreen.fleet.memory import allowed_memory
from bigscreen.intake.readers.arrow import ArrowReader
from bigscreen.intake.readers.base import check_state, file_state
from bigscreen.intake.tuning import TUNING


class ColumnarReader(ArrowReader):
    """Reads a Parquet or Feather file; text columns become categorical.

    Parameters
    ----------
    path : str or Path
    memory : int, optional
        Bytes of memory that reading may use.
    **options
        Options of `ArrowReader`.

    Raises
    ------
    InputError
        If the file is damaged, or a column holds neither numbers nor dates nor texts.
    """

    n_rows: int
    format = "Parquet"

    def __init__(self, path: str | Place, *, memory: int | None = None, **options: Any) -> None:
        """Open the file for its schema and the sizes of its row groups.

        `memory` is the number of bytes that reading may use; `options` are fields of
        `ColumnOptions`.
        """
        self.path = as_path(path)
        most = allowed_memory(memory)
        with self._report_damage():
            self._state = file_state(self.path)
            fragment = self._open_fragment([])
            schema, self._groups = fragment.physical_schema, self._group_rows(fragment, most // 4)
            rows = sum(self._groups)
        # Reading texts as dictionaries copies each distinct text only once.
        self._text_names = [field.name for field in schema if self._is_text(field.type)]
        if rows == 0:
            raise NoRows(f"{path} has no row.")
        super().__init__(str(path), schema, rows, **options)
        # Row groups whose numbers take at most this are read as one piece.
        self._whole_bytes = min(max(most // 128, TUNING.max_whole_bytes), 256 << 20)
        self.anywhere = all(map(self._is_piece, range(len(self._groups))))

    @cached_property
    def _fragment(self) -> Any:
        """Open the file, once in each process, as `_open_fragment` returns it."""
        return self._open_fragment(self._text_names)

    def _open_fragment(self, text_names: list[str]) -> Any:
        """Return the file as a pyarrow dataset fragment, which reads chosen row groups.

        The columns in `text_names` are read as dictionaries.
        """
        path, kind = self.path.absolute(), self._file_format(text_names)
        if isinstance(path, RemotePath):
            return kind.make_fragment(path.open())
        return kind.make_fragment(str(path), filesystem=pyarrow.fs.LocalFileSystem())

    def _file_format(self, text_names: list[str]) -> Any:
        """Return the pyarrow format of the file, which reads `text_names` as dictionaries."""
        return pyarrow.dataset.ParquetFileFormat(dictionary_columns=text_names)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the open file: another process opens it again."""
        return {key: value for key, value in self.__dict__.items() if key != "_fragment"}

    @contextmanager
    def _report_damage(self) -> Iterator[None]:
        """Turn any error that a damaged file causes into InputError."""
        try:
            yield
        except (pyarrow.ArrowException, OSError, MemoryError, OverflowError) as error:
            raise InputError(
                f"{self.path} is not a readable {self.format} file ({reason_of(error)})."
            ) from None

    def _group_rows(self, fragment: Any, most: int) -> list[int]:
        """Return the number of rows of each row group.

        Raises
        ------
        InputError
            If a column of a group takes more than `most` bytes, or the numbers of rows disagree.
        """
        metadata, rows = fragment.metadata, []
        for g in range(metadata.num_row_groups):
            group = metadata.row_group(g)
            rows.append(max(group.num_rows, 0))
            for c in range(group.num_columns):
                column = group.column(c)
                if not 0 <= column.total_uncompressed_size <= most:
                    raise InputError(
                        f"{self.path}: the column {column.path_in_schema!r} takes "
                        f"{in_units(column.total_uncompressed_size)} in one row group, and at most "
                        f"{in_units(most)} are taken: write the file in smaller row groups, or "
                        "allow more memory."
                    )
        if sum(rows) != metadata.num_rows:
            raise InputError(
                f"{self.path} is damaged: it says that it has {metadata.num_rows} rows, and its "
                f"row groups {sum(rows)}."
            )
        return rows

    def progress(self) -> tuple[int, int]:
        """Return the bytes read so far, estimated from the rows read, and the file's size."""
        size = file_size(self.path)
        return size * self._done // self.n_rows, size

    def text_batches(self, names: list[str]) -> Iterator[Any]:
        """Yield all rows of the named text columns as record batches, to detect types.

        Raises
        ------
        InputError
            If the file declares rows and holds none.
        """
        rows = 0
        with self._report_damage():
            for group in range(len(self._groups)):
                for batch in self._read_group(group, names):
                    if len(batch):
                        yield batch
                    rows += len(batch)
        if rows == 0:
            raise InputError(
                f"{self.path} is damaged: it says that it has {self.n_rows} rows, and it gives "
                "none; write or fetch the file again."
            )

    def _read_group(self, group: int, names: list[str]) -> Iterator[Any]:
        """Yield the record batches of a row group, with the columns in `names`."""
        fragment = self._fragment
        if len(self._groups) > 1:
            fragment = fragment.subset(row_group_ids=[group])
        step = max(self.piece_bytes // (8 * len(self._names)), 1)
        yield from fragment.to_batches(
            columns=names, batch_size=step, batch_readahead=1, use_threads=False
        )

    def batches(self, skip_rows: int) -> Iterator[tuple[int, Any]]:
        """Yield items from row number `skip_rows` on, each with its first row number.

        An item is (number of a small row group, rows of it to skip), which `split_batch` reads in
        any process, or a record batch of a large row group.
        """
        first = 0
        for g, rows in enumerate(self._groups):
            skip = max(skip_rows - first, 0)
            if skip < rows:
                of_group = (g, skip)
                if self._is_piece(g):
                    yield first, of_group
                else:
                    yield from self.split_batch(first, of_group)
            first += rows

    def split_batch(self, first: int, batch: Any) -> Iterator[tuple[int, Any]]:
        """Yield the record batches of one item of `batches`, each with its first row number.

        Parameters
        ----------
        first : int
            Row number of the item's first row.
        batch : pyarrow.RecordBatch, or (int, int)
            A pair is a row group and the number of its rows to skip.

        Raises
        ------
        InputError
            If the file has changed, or a row group has another number of rows than it declares.
        """
        if not isinstance(batch, tuple):
            yield first, batch
            return
        group, skip_rows = batch
        promised, given = self._groups[group], 0
        wanted = [f for f in (*self.columns.labels, self.columns.weight) if f is not None]
        names = [self._names[f] for f in [*wanted, *self.columns.features]]
        check_state(self.path.absolute(), self._state)
        with self._report_damage():
            for found in self._read_group(group, names):
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
        """Whether a row group is small enough to be read as one piece, in any process."""
        return 8 * self._groups[group] * len(self._names) <= self._whole_bytes


class FeatherReader(ColumnarReader):
    """Reads a Feather file (Arrow's own format), as one row group."""

    format = "Feather"

    def _file_format(self, text_names: list[str]) -> Any:
        """Return the pyarrow format of Feather files, which has no option for texts."""
        return pyarrow.dataset.IpcFileFormat()

    def _group_rows(self, fragment: Any, most: int) -> list[int]:
        """Return the number of rows of the file, as one row group of any size."""
        return [fragment.count_rows()]
