"""Tables as Arrow has them: columns with names and types, some rows at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow
from numpy.typing import NDArray

from bigscreen.data.missing import ABSENT, Missing
from bigscreen.data.preparation import Preparation
from bigscreen.errors import InputError
from bigscreen.fleet.protocol import Each
from bigscreen.intake.readers.base import Block, OtherFile
from bigscreen.intake.readers.categories import (
    NONE,
    TEXT,
    Kind,
    Tokens,
    Typed,
    date_format,
)
from bigscreen.intake.readers.columns import (
    Column,
    TableColumns,
    asked_kinds,
    check_amounts,
    index_columns,
)
from bigscreen.intake.readers.typed import TypedReader

_DAY_US = 86_400_000_000

_Converted = tuple[Block, dict[int, Any]]


class ArrowReader(TypedReader):
    """Turns record batches into blocks of rows; columns of texts are categorical.

    Parameters
    ----------
    name : str
        Of the source, for errors.
    schema : pyarrow.Schema
    n_rows : int or None
    label : str, int, False or None
        Name or position of the label's column; False: there is none. Default: the column named
        label, class, target or y, else the last one.
    weight : str or int, optional
        Column of sample weights.
    drop, columns, categorical : sequence of str or int, optional
        Columns to leave out, those to take, and columns of numbers that are categories.
    dates : mapping of str or int to str, optional
        Columns of texts that are dates, and their formats. Those whose type is a date or a time
        need not be named.
    hashed : mapping of str or int to int, optional
        Columns whose texts are hashed, and to how many bits.
    like : Preparation, optional
        Of an earlier store: see `TableReader`.
    missing : Missing
        Whether features may be null: see `DelimitedReader`.

    Raises
    ------
    InputError
        If a column is neither of numbers nor of dates nor of texts.
    """

    _done = 0

    def __init__(
        self,
        name: str,
        schema: Any,
        n_rows: int | None,
        *,
        label: Column | Literal[False] | None = None,
        weight: Column | None = None,
        drop: Sequence[Column] = (),
        columns: Sequence[Column] = (),
        categorical: Sequence[Column] = (),
        dates: Mapping[Column, str] | None = None,
        hashed: Mapping[Column, int] | None = None,
        like: Preparation | None = None,
        missing: Missing = NONE,
    ) -> None:
        self._name, self._missing, self.n_rows = name, missing, n_rows
        names = list(schema.names)
        twice = [column for column, times in Counter(names).items() if times > 1]
        if twice:
            raise InputError(f"{name}: two columns are named {twice[0]!r}; rename one.")
        types = [schema.field(f).type for f in range(len(names))]
        asked = asked_kinds(
            name, names, len(names), categorical, dict(dates or {}), dict(hashed or {})
        )
        metadata = (schema.metadata or {}).get(b"pandas")
        index = index_columns(names, metadata, lambda f: pyarrow.types.is_integer(types[f]))
        index = [f for f in index if f not in asked]
        chosen = TableColumns.choose(
            name, len(names), names, label, weight, drop, columns, like, index
        )
        self._names = names
        kinds = {j: asked.get(f) or self._kind(types[f]) for j, f in enumerate(chosen.features)}
        coded = pyarrow.types.is_dictionary  # what is said to be kinds is no dates
        texts = {j: names[f] for j, f in enumerate(chosen.features) if f not in asked}
        texts = {j: name for j, name in texts.items() if kinds[j] == TEXT}
        texts = {j: name for j, name in texts.items() if not coded(schema.field(name).type)}
        if like is None and texts:
            first = self.first_rows([*texts.values()])
            kinds |= {j: self._found_kind(first, name) for j, name in texts.items()}
        learnt = Typed.learnt({j: kind for j, kind in kinds.items() if kind is not None})
        super().__init__(chosen, names, learnt if like is None else Typed.of(like), missing, True)
        typed = {*self._coders, *self._dates}
        for j, f in enumerate(chosen.features):
            if pyarrow.types.is_null(types[f]) and not missing.allowed:
                raise InputError(
                    f"{name}: every value of the column {names[f]!r} is missing; say what stands "
                    "for such values (`impute='median'`), or `drop` the column."
                )
            if j not in typed and not self._is_number(types[f]):
                raise InputError(
                    f"{name}: column {names[f]!r} holds {types[f]}, neither numbers nor texts that "
                    "are known as categories; drop it."
                )
        null = pyarrow.types.is_null
        self.blank = {j for j, f in enumerate(chosen.features) if j not in typed and null(types[f])}

    def first_rows(self, names: list[str]) -> Any:
        """A record batch of some columns, by whose texts dates are known."""
        raise NotImplementedError

    def batches(self, skip_rows: int) -> Iterator[tuple[int, Any]]:
        """Yield record batches from row number `skip_rows` on, and each one's first row.

        In place of a batch may stand anything that `parts` makes batches of.
        """
        raise NotImplementedError

    def parts(self, first: int, batch: Any) -> Iterator[tuple[int, Any]]:
        """Yield the record batches of what `batches` has yielded, and each one's first row."""
        yield first, batch

    def beside(self, first: int, rows: int) -> tuple[Any, Any]:
        """Labels and weights of some rows that are no columns of theirs, or None."""
        return None, None

    def blocks(self, skip_rows: int = 0, each: Each = map) -> Iterator[Block]:
        """Yield the rows from number `skip_rows` on; see `Reader.blocks`."""
        self._restart()
        for item, tried in each(self._tried, self.batches(skip_rows)):
            for block, texts in self._read(item) if tried is None else tried:
                self._set_codes(block.X, texts)
                self._done = block.first_row + block.X.shape[0]
                yield block

    def _found_kind(self, first: Any, name: str) -> Kind:
        """What a column of texts holds by its first rows: dates, as in text files, or kinds."""
        found = Tokens.of(first.column(name), lambda row: f"row {row}")
        words = [t for t in found.texts if t != ABSENT and t.strip() not in self._missing]
        if not words:
            return TEXT
        first_place = f"{self._name}, {found.place(found.texts.index(words[0]))}, column {name!r}"
        check_amounts(words, first_place, "convert the column to numbers")
        form = date_format(words, first_place)
        return TEXT if form is None else Kind("date", form)

    def _is_text(self, kind: Any) -> bool:
        types = pyarrow.types
        if types.is_dictionary(kind):
            kind = kind.value_type
        return bool(
            types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
        )

    def _is_number(self, kind: Any) -> bool:
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

    def _kind(self, kind: Any) -> Kind | None:
        """What a column of a type holds; None for numbers and what is not known."""
        if self._is_text(kind):
            return TEXT
        return Kind("date", "") if pyarrow.types.is_temporal(kind) else None

    def _tried(self, item: tuple[int, Any]) -> tuple[Any, list[_Converted] | None]:
        """What is to be read next, and its blocks; None where that fails, to be said in turn."""
        try:
            return None, list(self._read(item))
        except OtherFile:
            raise
        except InputError:
            return item, None

    def _read(self, item: tuple[int, Any]) -> Iterator[_Converted]:
        for first, batch in self.parts(*item):
            yield self._converted(first, batch)

    def _converted(self, first: int, batch: Any) -> _Converted:
        """A batch as a block, and the texts of its categories, whose codes are not known yet."""
        texts = {}

        def where(i: int) -> str:
            return f"{self._name}, row {first + i}"

        def column(f: int) -> Any:
            values = batch.column(self._names[f])
            if values.null_count and not self._missing.allowed:
                row = int(np.argmax(values.is_null().to_numpy(zero_copy_only=False)))
                raise InputError(
                    f"{where(row)}: column {self._names[f]!r} is empty; fill it in, say what "
                    "stands for such values (`impute='median'`), or leave their rows out "
                    "(`drop_missing`)."
                )
            return values

        X = np.empty((len(batch), len(self.columns.features)))
        for j, f in enumerate(self.columns.features):
            values = column(f)
            if j in self._dates:
                X[:, j] = self._days(j, values, where)
            elif j in self._coders:
                values = self._as_texts(values) if j in self.hashed else values
                texts[j] = self._coders[j].tokens(values, where)
            else:
                X[:, j] = self._numbers(values)
        y, weight = self.beside(first, len(batch))
        if self.columns.label is not None:
            values = column(self.columns.label)
            if self._is_number(values.type):
                y = self._numbers(values)
            else:
                coded = values.dictionary_encode()  # no text is written out as often as it occurs
                known = [*coded.dictionary.to_pylist(), None]
                y = np.array(known, object)[coded.indices.fill_null(len(known) - 1).to_numpy()]
        if self.columns.weight is not None:
            weight = self._numbers(column(self.columns.weight))
        return Block(X, y, weight, first, where), texts

    def _as_texts(self, values: Any) -> Any:
        is_text = self._is_text(values.type)
        return values if is_text else self._plain(values).cast(pyarrow.utf8())

    def _plain(self, values: Any) -> Any:
        dictionary = pyarrow.types.is_dictionary(values.type)
        return values.dictionary_decode() if dictionary else values

    def _numbers(self, values: Any) -> NDArray[np.float64]:
        cast = self._plain(values).cast(pyarrow.float64(), safe=False)
        return np.asarray(cast.to_numpy(zero_copy_only=False))

    def _days(self, j: int, values: Any, where: Any) -> NDArray[np.float64]:
        """Dates and times, or texts of them, in days; NaN where there is none."""
        values = self._plain(values)
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
            return self._numbers(values)  # days already
        return self._numbers(values.cast(pyarrow.int64())) / _DAY_US
