"""Base of readers of Arrow tables (Parquet, Feather, data frames): typed, named columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import pyarrow
from numpy.typing import NDArray

from bigscreen.data.missing import Missing
from bigscreen.errors import InputError, MissingValue
from bigscreen.fleet.protocol import Each
from bigscreen.intake.readers.base import Block, name_rows, try_parse
from bigscreen.intake.readers.categories import (
    BLANK,
    NO_MISSING,
    TEXT,
    TRUTH,
    Kind,
    kinds_of_store,
    parse_labels,
    parse_numbers,
)
from bigscreen.intake.readers.columns import (
    ColumnOptions,
    ColumnRoles,
    detect_kind,
    find_category_columns,
    find_index_columns,
)
from bigscreen.intake.readers.delimited import check_weights
from bigscreen.intake.readers.text import missing_value_error, parse_finite
from bigscreen.intake.readers.typed import TypedReader

_DAY_US = 86_400_000_000
"""Microseconds of a day."""

TYPE_SAMPLE_ROWS = 1 << 16
"""Detect the types of text columns from at most this many first rows."""

_Converted = tuple[Block, dict[int, Any]]
"""A block without category codes, and the texts (or hashes) of each text feature."""


class ArrowReader(TypedReader):
    """Turns Arrow record batches into blocks of rows; text columns become categorical.

    Parameters
    ----------
    name : str
        Name of the source, for errors.
    schema : pyarrow.Schema
    n_rows : int or None
        Number of rows, if it is known.
    **options
        Fields of `ColumnOptions`.

    Raises
    ------
    InputError
        If a column holds neither numbers nor dates nor texts.
    """

    _done = 0

    def __init__(self, name: str, schema: Any, n_rows: int | None, **options: Any) -> None:
        """Choose the columns, and settle the type of each feature.

        `name` names the source in errors, `schema` is its Arrow schema, `n_rows` its number of rows
        (None: not known); `options` are fields of `ColumnOptions`.
        """
        asked = ColumnOptions(**options)
        self._name, self.n_rows = name, n_rows
        self._names = names = list(schema.names)
        twice = [column for column, times in Counter(names).items() if times > 1]
        if twice:
            raise InputError(f"{name}: two columns are named {twice[0]!r}; rename one.")
        types = [schema.field(f).type for f in range(len(names))]
        said = asked.kinds(name, len(names), names)
        metadata = (schema.metadata or {}).get(b"pandas")
        index = find_index_columns(names, metadata, lambda f: pyarrow.types.is_integer(types[f]))
        index = [f for f in index if f not in said]
        chosen = ColumnRoles.choose(name, len(names), names, asked, index)
        if asked.like is not None:
            kinds = kinds_of_store(asked.like)
        else:
            kinds = self._detect_kinds(
                chosen, types, said, asked.missing, find_category_columns(metadata)
            )
        super().__init__(chosen, names, kinds, asked.missing)
        for j, f in enumerate(chosen.features):
            if pyarrow.types.is_null(types[f]) and not asked.missing.allowed:
                raise MissingValue.at(
                    f"{name}, every row, column {names[f]!r}",
                    "say what stands for such values (`impute='median'`), or `drop` the column",
                )
            known = j in self._coders or j in self._dates or self._is_text(types[f])
            if not (known or self._is_number(types[f])):
                raise InputError(
                    f"{name}: column {names[f]!r} holds {types[f]}, neither numbers nor texts that "
                    "are known as categories; drop it."
                )

    def _detect_kinds(
        self,
        chosen: ColumnRoles,
        types: list[Any],
        said: Mapping[int, Kind],
        missing: Missing,
        declared: set[str],
    ) -> dict[int, Kind]:
        """Return the types of features that do not hold numbers, by position among the features.

        Parameters
        ----------
        chosen : ColumnRoles
            Positions of the features in the table.
        types : list of pyarrow.DataType
            Type of each column of the table.
        said : mapping of int to Kind
            Types that the user gave, by position in the table.
        missing : Missing
            Marks of missing values.
        declared : set of str
            Columns that are categorical by the metadata of pandas.

        Notes
        -----
        Dictionaries of texts, and `declared` columns, are categorical. The types of other text
        columns are
        detected from the first rows.
        """
        kinds = {j: said[f] for j, f in enumerate(chosen.features) if f in said}
        texts = {}
        for j, f in enumerate(chosen.features):
            if j in kinds:
                continue
            coded = pyarrow.types.is_dictionary(types[f])
            plain = types[f].value_type if coded else types[f]
            if pyarrow.types.is_null(plain):
                kinds[j] = BLANK
            elif pyarrow.types.is_temporal(types[f]):
                kinds[j] = Kind("date", "")
            elif self._names[f] in declared and self._is_number(plain):
                kinds[j] = TEXT
            elif pyarrow.types.is_boolean(plain):
                kinds[j] = TRUTH
            elif self._is_text(plain) and (coded or self._names[f] in declared):
                kinds[j] = TEXT
            elif self._is_text(plain):
                texts[j] = self._names[f]
        first = next(self.text_batches([*texts.values()]), None) if texts else None
        for j, column in texts.items():
            assert first is not None
            kind = self._detect_kind(first.slice(0, TYPE_SAMPLE_ROWS), 0, column, missing)
            if kind is not None:
                kinds[j] = kind
        blank = {j: column for j, column in texts.items() if kinds.get(j) == BLANK}
        late = self._detect_late_kinds(blank, missing)
        return {j: kind for j, kind in (kinds | late).items() if kind is not None}

    def _detect_kind(self, batch: Any, first: int, column: str, missing: Missing) -> Kind | None:
        """Return the type of the text column called `column`, from a record batch; None: numbers.

        `first` is the row number of the batch's first row, for errors; values that `missing` marks
        have no type.
        """
        places = partial(_name_place, self._name, first, column)
        return detect_kind(batch[column], places, missing, "convert the column to numbers")

    def _detect_late_kinds(self, blank: dict[int, str], missing: Missing) -> dict[int, Kind | None]:
        """Return the types of text columns without a value in the first rows, from later rows.

        Parameters
        ----------
        blank : dict of int to str
            Position among the features, and name, of each column.
        missing : Missing
            Marks of missing values.

        Returns
        -------
        dict of int to Kind or None
            None: numbers. Columns without any value have no entry.
        """
        kinds: dict[int, Kind | None] = {}
        row, blank = 0, dict(blank)
        for batch in self.text_batches([*blank.values()]) if blank else ():
            for j, column in [*blank.items()]:
                if batch[column].null_count < len(batch):
                    kind = self._detect_kind(batch, row, column, missing)
                    if kind != BLANK:
                        kinds[j] = kind
                        del blank[j]
            if not blank:
                break
            row += len(batch)
        return kinds

    def text_batches(self, names: list[str]) -> Iterator[Any]:
        """Yield all rows of the named text columns as record batches, to detect types."""
        raise NotImplementedError

    def batches(self, skip_rows: int) -> Iterator[tuple[int, Any]]:
        """Yield record batches from row number `skip_rows` on, each with its first row number.

        Instead of a batch, a subclass may yield anything that its `split_batch` turns into batches,
        such as the number of a row group.
        """
        raise NotImplementedError

    def split_batch(self, first: int, batch: Any) -> Iterator[tuple[int, Any]]:
        """Yield the record batches of one item of `batches`, each with its first row number.

        Parameters
        ----------
        first : int
            Row number of the item's first row.
        batch : pyarrow.RecordBatch, or what a subclass yields instead
        """
        yield first, batch

    def separate_labels(self, first: int, rows: int) -> tuple[Any, Any]:
        """Return labels and weights that are not columns of the table, of some rows.

        They are those of `rows` rows from row number `first` on, each (rows,), or None if there are
        none.
        """
        return None, None

    def blocks(self, skip_rows: int = 0, each: Each = map) -> Iterator[Block]:
        """Yield the rows from number `skip_rows` on, in blocks.

        `each` converts the items of `batches`, in their order; it has the arguments of `map`.
        Category codes are assigned here, as they depend on earlier rows.
        """
        self._reset_encoders()
        for item, read in each(partial(try_parse, self._read_whole), self.batches(skip_rows)):
            for block, texts in self._read(item) if read is None else read:
                self._encode_texts(block.X, texts)
                self._done = block.first_row + block.X.shape[0]
                yield block

    def _is_text(self, kind: Any) -> bool:
        """Whether an Arrow type is text, or a dictionary of texts."""
        types = pyarrow.types
        if types.is_dictionary(kind):
            kind = kind.value_type
        return bool(
            types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
        )

    def _is_number(self, kind: Any) -> bool:
        """Whether an Arrow type is of numbers or truth values, or a dictionary of them.

        A column of nulls counts as numbers if values may be missing.
        """
        types = pyarrow.types
        if types.is_dictionary(kind):
            kind = kind.value_type
        return bool(
            types.is_integer(kind)
            or types.is_floating(kind)
            or types.is_boolean(kind)
            or types.is_decimal(kind)
            or (types.is_null(kind) and self._missing.allowed)
        )

    def _read_whole(self, item: tuple[int, Any]) -> list[_Converted]:
        """Return all blocks of one item of `batches`, for work in another thread or process."""
        return list(self._read(item))

    def _read(self, item: tuple[int, Any]) -> Iterator[_Converted]:
        """Yield the blocks of one item of `batches`, a first row number and a batch."""
        for first, batch in self.split_batch(*item):
            yield self._convert(first, batch)

    def _convert(self, first: int, batch: Any) -> _Converted:
        """Return a batch as a block, and the texts of its categories, whose codes come later.

        `first` is the row number of the batch's first row.
        """
        texts = {}
        where = name_rows(self._name, first)

        def column(f: int, may_lack: bool) -> Any:
            """Return column `f` of the batch.

            Raises
            ------
            InputError
                If a value is missing and `may_lack` is false.
            """
            values = batch.column(self._names[f])
            if values.null_count and not may_lack:
                row = int(np.argmax(values.is_null().to_numpy(zero_copy_only=False)))
                raise missing_value_error(_name_place(self._name, first, self._names[f], row))
            return values

        X = np.empty((len(batch), len(self.columns.features)))
        for j, f in enumerate(self.columns.features):
            values = column(f, self._missing.allowed)
            if j in self._dates:
                X[:, j] = self._to_days(j, values, where)
            elif j in self._coders:
                values = self._as_texts(values) if j in self.hashed else values
                texts[j] = self._coders[j].tokens(values, where)
            else:
                X[:, j] = self._parse_column(values, first, f, self._missing, self._kinds.get(j))
        y, weight = self.separate_labels(first, len(batch))
        if self.columns.labels:
            y = self._stack_labels(lambda f: self._parse_labels(column(f, True), where), len(batch))
        if self.columns.weight is not None:
            weight = self._parse_weights(column(self.columns.weight, False), first)
        return Block(X, y, weight, first, where), texts

    def _parse_labels(self, values: Any, where: Callable[[int], str]) -> NDArray[Any]:
        """Return the labels in a column; ``where(i)`` names the i-th row in an error."""
        if self._is_text(values.type):
            return parse_labels(values, where)
        if self._is_number(values.type):
            return self._numbers(values)
        return np.array(values.to_pylist(), object)

    def _parse_weights(self, values: Any, first: int) -> NDArray[np.float64]:
        """Return the weights of rows from number ``first`` on, float64 (rows,).

        Raises
        ------
        InputError
            If the column holds truth values, or a weight is negative or not finite.
        """
        f = self.columns.weight
        assert f is not None
        places = partial(_name_place, self._name, first, self._names[f])
        if pyarrow.types.is_boolean(values.type):
            parse_finite(str(values[0]), places(0))
        weight = self._parse_column(values, first, f, NO_MISSING)
        if not (fine := np.isfinite(weight)).all():
            row = int(np.argmin(fine))
            parse_finite(str(weight[row]), places(row))
        return check_weights(weight, places)

    def _as_texts(self, values: Any) -> Any:
        """Return an Arrow array as texts: numbers are written out, dictionaries of texts stay."""
        is_text = self._is_text(values.type)
        return values if is_text else self._decode_dictionary(values).cast(pyarrow.utf8())

    def _decode_dictionary(self, values: Any) -> Any:
        """Return an Arrow array as plain values if it is a dictionary, else unchanged."""
        dictionary = pyarrow.types.is_dictionary(values.type)
        return values.dictionary_decode() if dictionary else values

    def _parse_column(
        self, values: Any, first: int, f: int, missing: Missing, kind: Kind | None = None
    ) -> NDArray[np.float64]:
        """Return the values of column `f` as numbers, float64 (rows,), even if they are texts.

        Parameters
        ----------
        values : pyarrow.Array
        first : int
            Row number of the first value, for errors.
        f : int
            Position of the column in the table.
        missing : Missing
            Marks of missing values, and whether values may be missing.
        kind : Kind or None
            With `TRUTH` the texts true and false are read as 1 and 0.
        """
        if not self._is_text(values.type):
            return self._numbers(values)
        places = partial(_name_place, self._name, first, self._names[f])
        return parse_numbers(values, places, missing, None, kind)

    def _numbers(self, values: Any) -> NDArray[np.float64]:
        """Return an Arrow array of numbers as float64 (rows,); null becomes NaN."""
        cast = self._decode_dictionary(values).cast(pyarrow.float64(), safe=False)
        return np.asarray(cast.to_numpy(zero_copy_only=False))

    def _to_days(self, j: int, values: Any, where: Any) -> NDArray[np.float64]:
        """Return dates and times, or texts of them, as days since 1970; NaN if they are missing.

        Parameters
        ----------
        j : int
            Position of the column among the features.
        values : pyarrow.Array
        where : callable
            ``where(i)`` names the place of the i-th row, for errors.

        Returns
        -------
        float64 array (rows,)
        """
        values = self._decode_dictionary(values)
        if self._is_text(values.type):
            return self._dates[j].encode(values, where)
        types = pyarrow.types
        if types.is_date32(values.type):
            return self._numbers(values.cast(pyarrow.int32()))
        if types.is_date64(values.type) or types.is_timestamp(values.type):
            values = values.cast(pyarrow.timestamp("us", getattr(values.type, "tz", None)), False)
        elif types.is_time(values.type):
            values = values.cast(pyarrow.time64("us"), False)
        elif types.is_duration(values.type):
            values = values.cast(pyarrow.duration("us"), False)
        else:
            return self._numbers(values)  # the values are days already
        return self._numbers(values.cast(pyarrow.int64())) / _DAY_US


def _name_place(name: str, first: int, column: str, i: int) -> str:
    """Return the place of value i of a batch: source `name`, row ``first + i`` and column."""
    return f"{name}, row {first + i}, column {column!r}"
