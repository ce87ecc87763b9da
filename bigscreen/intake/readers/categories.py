"""Turn the texts of Arrow columns into category codes, hashes, dates, labels and numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow
import pyarrow.compute
from numpy.typing import NDArray

from bigscreen.data.missing import MISSING_CATEGORY, MISSING_TEXTS, Missing
from bigscreen.data.preparation import Preparation
from bigscreen.data.texts import (
    bucket_names,
    hash_bucket,
    match_truth,
    normalise_for_hash,
    normalise_number,
    parse_days,
    parse_number,
)
from bigscreen.errors import InputError
from bigscreen.intake.readers.base import decode
from bigscreen.intake.readers.decimals import check_points, normalise_numbers
from bigscreen.intake.readers.text import missing_value_error, not_a_truth_error, parse_finite
from bigscreen.numerics.rows import njit

NO_MISSING = Missing()
"""Missing values are errors, and only the usual texts ("", "NA", ...) mark them."""

MAX_CATEGORIES = 100_000
"""Refuse a column of categories with more distinct texts than this."""

MAX_TEXT_BYTES = 64 << 20
"""Refuse a column of categories whose distinct texts take more bytes than this."""


@dataclass
class Tokens:
    """Texts of a column, dictionary encoded: the distinct texts, and the text number of each row.

    Attributes
    ----------
    texts : list of str
        The distinct texts; `MISSING_CATEGORY` for null.
    codes : int32 array, (rows,)
        Position in `texts` of the text of each row.
    places : callable
        ``places(i)`` names the i-th row in an error.
    """

    texts: list[str]
    codes: NDArray[np.int32]
    places: Callable[[int], str]

    @classmethod
    def of(cls, column: Any, places: Callable[[int], str]) -> Tokens:
        """Return the texts in an Arrow array of any type; null becomes `MISSING_CATEGORY`.

        ``places(i)`` names the i-th row in an error.
        """
        if not pyarrow.types.is_dictionary(column.type):
            column = column.dictionary_encode()
        known = [*column.dictionary.to_pylist(), None]
        codes = column.indices.fill_null(len(known) - 1).to_numpy(zero_copy_only=False)
        occurs = np.bincount(codes, minlength=len(known)) > 0
        own = (np.cumsum(occurs) - 1).astype(np.int32)
        texts = [known[code] for code in np.flatnonzero(occurs).tolist()]
        texts = [decode(text) if isinstance(text, bytes) else text for text in texts]
        return cls(
            [MISSING_CATEGORY if text is None else str(text) for text in texts], own[codes], places
        )

    def place(self, code: int) -> str:
        """Return the place of the first row that has the text with this code."""
        return self.places(int(np.argmax(self.codes == code)))

    @property
    def array(self) -> Any:
        """Return the texts as an Arrow array, null for missing ones."""
        return pyarrow.array(
            [None if text == MISSING_CATEGORY else text for text in self.texts], "string"
        )


def check_texts(count: int, size: int, place: Callable[[], str]) -> None:
    """Refuse a column with too many distinct texts, or too many bytes of distinct texts.

    Parameters
    ----------
    count, size : int
        Number of distinct texts, and their bytes.
    place : callable
        Returns the name of the place for the error.

    Raises
    ------
    InputError
    """
    if count > MAX_CATEGORIES:
        too = f"there are more than {MAX_CATEGORIES} different texts"
    elif size > MAX_TEXT_BYTES:
        too = f"there are more than {MAX_TEXT_BYTES >> 20} MiB of texts"
    else:
        return
    raise InputError(f"{place()}: {too} in this column; drop it.")


class Categories:
    """Encodes a text column by categories, learnt in order of first appearance unless given.

    Parameters
    ----------
    known : list of str, optional
        The categories, in code order. Default: each new text becomes a category.
    closed : bool, default=False
        Whether a text that is not among `known` is an error; else it has code -1 and is counted.
    missing : Missing
        If it allows missing texts, they have a category of their own, `MISSING_CATEGORY`.

    Attributes
    ----------
    names : list of str
        Categories so far, in code order.
    unseen : int
        Number of values so far that are not among `known`.
    """

    def __init__(
        self,
        known: list[str] | None = None,
        closed: bool = False,
        missing: Missing = NO_MISSING,
    ) -> None:
        """Begin with the categories in `known`; None: categories are learnt from the texts.

        `closed` makes an unknown text an error; else `unseen` counts unknown texts. `missing` tells
        which texts mark missing values.
        """
        self.names: list[str] = list(known or [])
        self.unseen = 0
        self._given = frozenset(self.names)
        self._learning = known is None
        self._closed, self._missing = closed, missing
        self._codes = {name: code for code, name in enumerate(self.names)}
        self._seen: set[str] = set()
        self._bytes = 0

    def tokens(self, column: Any, places: Callable[[int], str]) -> Tokens:
        """Return the texts of an Arrow column, each checked; this needs no earlier rows.

        ``places(i)`` names the i-th row in an error.
        """
        found = Tokens.of(column, places)
        for code, text in enumerate(found.texts):
            self._check(text, found, code)
        return found

    def encode(self, found: Tokens) -> NDArray[np.int32]:
        """Return the category code of each row, int32 (rows,); blocks must be encoded in row order.

        `found` is the result of `tokens`.
        """
        fresh = {*found.texts} - self._seen
        self._seen |= fresh
        self._bytes += sum(len(text.encode()) for text in fresh)
        check_texts(len(self._seen), self._bytes, lambda: found.places(0))
        of_texts = np.array([self._code(text) for text in found.texts], np.int32)
        codes = of_texts[found.codes]
        self.unseen += int(np.count_nonzero(codes < 0))
        return codes

    def code(self, text: str, place: str) -> int:
        """Return the code of one text, perhaps a new code; `place` names it in an error."""
        self._check(text, Tokens([text], np.zeros(1, np.int32), lambda _: place), 0)
        return self._code(text)

    def _check(self, text: str, found: Tokens, code: int) -> None:
        """Refuse a missing text if none may be missing, and undeclared texts if closed.

        `code` is the position of `text` in `found`, which names its row in the error.
        """
        bare = text.strip()
        if text in self._given or bare in self._given:
            return
        if bare in self._missing:
            if not self._missing.allowed:
                raise missing_value_error(found.place(code))
        elif self._closed:
            raise InputError(
                f"{found.place(code)}: {bare[:40]!r} is not one of the column's declared "
                "categories."
            )

    def _code(self, text: str) -> int:
        """Return the code of one text: a new one while categories are learnt, else -1 if unknown.

        Missing texts have the category `MISSING_CATEGORY`. Spellings of one truth value share a
        code.
        """
        if text not in self._codes:
            text = text.strip()  # blanks within quotes are ignored, too
        if text not in self._codes:
            if (alike := match_truth(text, self.names)) is not None:
                self._codes[text] = self._codes[alike]
                return self._codes[text]
            absent = text in self._missing
            text = MISSING_CATEGORY if absent else text
            grows = self._learning or (absent and self._closed)
            if grows and text not in self._codes:
                self._codes[text] = len(self.names)
                self.names.append(text)
        return self._codes.get(text, -1)


class Hashed:
    """Encodes a text column by hashes of ``bits`` bits: a hash is the code of a text.

    Parameters
    ----------
    bits : int
        There are ``2**bits`` codes.
    missing : Missing
        If it allows missing texts, they are hashed as `MISSING_CATEGORY`.

    Attributes
    ----------
    names : list of str
        Names of the hashes, in order.
    unseen : int
        Always 0: every text has a hash.
    """

    def __init__(self, bits: int, missing: Missing = NO_MISSING) -> None:
        """Name the ``2**bits`` hashes; `missing` tells which texts mark missing values.

        `unseen` (the number of unknown texts) stays 0, as every text has a hash.
        """
        self.names, self.unseen = bucket_names(bits), 0
        self._bits, self._missing = bits, missing

    def encode(self, found: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the codes of the rows, `found`, unchanged: `tokens` has computed them already."""
        return found

    def tokens(self, column: Any, places: Callable[[int], str]) -> NDArray[np.int32]:
        """Return the hash of each text of an Arrow column, int32 (rows,).

        ``places(i)`` names the i-th row in an error.
        """
        if pyarrow.types.is_dictionary(column.type):  # hash each distinct text once
            found = Tokens.of(column, places)
            return self.tokens(found.array, found.place)[found.codes]
        texts = trim_texts(column).cast(pyarrow.large_utf8())
        holes = find_missing(texts, self._missing)
        if holes.any() and not self._missing.allowed:
            raise missing_value_error(places(int(np.argmax(holes))))
        texts = _normalise_for_hash(texts)
        _, bounds, content = texts.buffers()
        bounds = np.frombuffer(bounds, np.int64)[texts.offset : texts.offset + len(texts) + 1]
        codes = np.empty(len(texts), np.int32)
        _hash_texts(np.frombuffer(content or b"", np.uint8), bounds, (1 << self._bits) - 1, codes)
        codes[holes] = hash_bucket(MISSING_CATEGORY, self._bits)
        return codes


_HASHED_AS_IS = r"^(?:0|-?[1-9][0-9]*|[^+\-.0-9TtFf].*|)$"
"""Matches texts that `normalise_for_hash` does not change, which are most texts."""


def _normalise_for_hash(texts: Any) -> Any:
    """Return `normalise_for_hash` of each text of an Arrow array; null stays null."""
    as_is = pyarrow.compute.match_substring_regex(texts, _HASHED_AS_IS)
    others = pyarrow.compute.if_else(as_is, None, texts).dictionary_encode()
    known = pyarrow.array(map(normalise_for_hash, others.dictionary.to_pylist()), texts.type)
    return pyarrow.compute.if_else(as_is, texts, known.take(others.indices))


@njit(cache=True, nogil=True)
def _hash_texts(
    buf: NDArray[np.uint8], bounds: NDArray[np.int64], mask: int, codes: NDArray[np.int32]
) -> None:
    """Write the hash of each text, computed as by `hash_bucket`, to `codes`, int32 (rows,).

    Parameters
    ----------
    buf : uint8 array
        The bytes of all texts, one after the other.
    bounds : int64 array (rows + 1,)
        Text r lies between entries r and r + 1.
    mask : int
        One less than the number of hashes, which is a power of two.
    """
    for r in range(len(codes)):
        h = np.uint64(14695981039346656037)
        for i in range(bounds[r], bounds[r + 1]):
            h = (h ^ np.uint64(buf[i])) * np.uint64(1099511628211)
        h ^= h >> np.uint64(29)
        codes[r] = np.int32(h & np.uint64(mask))


def find_missing(texts: Any, missing: Missing, numbers: bool = True) -> NDArray[np.bool_]:
    """Return a mask (rows,) of missing values among trimmed texts.

    Parameters
    ----------
    texts : pyarrow.Array
        Texts without surrounding blanks, perhaps null.
    missing : Missing
        Marks of missing values in addition to the usual ones.
    numbers : bool
        Whether marks that are numbers count.
    """
    marks = (mark for mark in missing.marks if numbers or parse_number(mark) is None)
    known = pyarrow.array([*MISSING_TEXTS, *marks], texts.type)
    holes = pyarrow.compute.is_in(texts, known).to_numpy(zero_copy_only=False)
    holes = holes | texts.is_null().to_numpy(zero_copy_only=False)
    if numbers and missing.numbers:
        found = pyarrow.compute.match_substring_regex(texts, r"^[+-]?[0-9.]").fill_null(False)
        for row in np.flatnonzero(found.to_numpy(zero_copy_only=False)).tolist():
            holes[row] |= texts[row].as_py() in missing
    return np.asarray(holes)


class Dates:
    """Converts dates and times of a column to days since 1970.

    Parameters
    ----------
    form : str
        Format of `strptime`; "": ISO 8601.
    missing : Missing
        If it allows missing dates, they are NaN.
    """

    def __init__(self, form: str, missing: Missing = NO_MISSING) -> None:
        """Keep the format of dates (as `strptime` has it; "": ISO 8601) and the missing marks."""
        self._form, self._missing = form, missing

    def encode(self, column: Any, places: Callable[[int], str]) -> NDArray[np.float64]:
        """Return each text of an Arrow column as days since 1970, float64 (rows,).

        ``places(i)`` names the i-th row in an error.

        Raises
        ------
        InputError
            If a text is no date in the format, or is missing and none may be.
        """
        found = Tokens.of(column, places)
        values = [self._value(text.strip(), found, code) for code, text in enumerate(found.texts)]
        return np.array(values, np.float64)[found.codes]

    def _value(self, text: str, found: Tokens, code: int) -> float:
        """Return one text as days since 1970; NaN if it is missing.

        `code` is its position in `found`, which names its row in an error.
        """
        if text == MISSING_CATEGORY or text in self._missing:
            if not self._missing.allowed:
                raise missing_value_error(found.place(code))
            return float("nan")
        try:
            return parse_days(text, self._form)
        except ValueError:
            how = f"written as {self._form}" if self._form else "as ISO 8601 has it"
            raise InputError(
                f"{found.place(code)}: {text[:40]!r} is no date {how}; correct it, or say how "
                "dates are written (`date='COLUMN=%d/%m/%Y'`)."
            ) from None


class Kind(NamedTuple):
    """Type of the values of a column: categorical, truth, date, hash or blank."""

    name: str
    how: Any = None
    """Categories in code order (None: to be learnt), format of dates, or bits of hashes."""


TEXT = Kind("categorical")
"""Texts, or values that are named as categorical; their categories are learnt."""
TRUTH = Kind("truth")
"""Truth values: the texts true and false, in any case, are stored as 1 and 0."""
BLANK = Kind("blank")
"""All values are missing in the first rows."""


def kinds_of_store(like: Preparation) -> dict[int, Kind]:
    """Return the types of the features of an earlier store, by column; numbers have no entry."""
    out = dict.fromkeys(like.truths, TRUTH)
    out |= {j: Kind("categorical", [*texts]) for j, texts in like.categories.items()}
    out |= {j: Kind("hash", bits) for j, bits in like.hashed.items()}
    return out | {j: Kind("date", form) for j, form in like.dates.items()}


def parse_label(text: str, place: str) -> float | str | None:
    """Return a label: a float if the text is a number, None if it is missing, else the text.

    `place` names the label in an error.

    Raises
    ------
    InputError
        If the text is an infinite number.
    """
    text = text.strip()
    if text in MISSING_TEXTS or text == MISSING_CATEGORY:
        return None
    number = parse_number(text)
    if number is not None and not np.isfinite(number):
        return parse_finite(text, f"{place}: the label")
    return text if number is None else number


def parse_labels(column: Any, places: Callable[[int], str]) -> NDArray[Any]:
    """Return labels; numbers become floats, so that 1, +1 and 1.0 are one label.

    Parameters
    ----------
    column : pyarrow.Array of float64 or of texts
    places : callable
        ``places(i)`` names the i-th row in an error.

    Returns
    -------
    float64 array (rows,), or object array (rows,) of float, str and None
        float64 if all labels are numbers. Missing labels are None.
    """
    coded = pyarrow.types.is_dictionary(column.type)
    numbers = None if coded else try_numbers(column)
    if numbers is not None:
        values: NDArray[Any] = numbers.to_numpy(zero_copy_only=False)
        holes = numbers.is_null().to_numpy(zero_copy_only=False)
        if not (fine := np.isfinite(values) | holes).all():
            row = int(np.argmin(fine))
            parse_finite(str(values[row]), f"{places(row)}: the label")
        return np.where(holes, np.array(None), values.astype(object)) if holes.any() else values
    found = Tokens.of(column, places)
    values = np.empty(len(found.texts), object)
    for code, text in enumerate(found.texts):
        values[code] = parse_label(text, found.place(code))
    if all(isinstance(value, float) for value in values):
        values = values.astype(float)
    return values[found.codes]


def trim_texts(column: Any) -> Any:
    """Return an Arrow array as texts without surrounding blanks."""
    if not (pyarrow.types.is_string(column.type) or pyarrow.types.is_large_string(column.type)):
        column = column.cast(pyarrow.large_utf8())
    return pyarrow.compute.utf8_trim_whitespace(column)


def try_numbers(column: Any, first_rows: int = 64) -> Any:
    """Return an Arrow array as float64, or None if it contains a text that is not a number.

    The first `first_rows` values are tried alone: a failing cast is slow, and usually fails there.
    """
    try:
        if pyarrow.types.is_large_binary(column.type):
            column = column.cast(pyarrow.large_utf8())
        column.slice(0, first_rows).cast(pyarrow.float64(), safe=False)
        return column.cast(pyarrow.float64(), safe=False)
    except pyarrow.ArrowException:
        return None


def parse_numbers(
    column: Any,
    places: Callable[[int], str],
    missing: Missing,
    decimal: str | None = None,
    kind: Kind | None = None,
) -> NDArray[np.float64]:
    """Return the numbers in an Arrow array of texts, NaN for missing values.

    Parameters
    ----------
    column : pyarrow.Array
        Texts, perhaps null.
    places : callable
        ``places(i)`` names the i-th row in an error.
    missing : Missing
        Marks of missing values, and whether values may be missing.
    decimal : {".", ","} or None
        Decimal mark, if the other mark may separate thousands; None: a point, and no separators.
    kind : Kind or None
        With `TRUTH` the texts true and false are read as 1 and 0.

    Returns
    -------
    float64 array (rows,)

    Raises
    ------
    InputError
        For the first text that is not a finite number, or that is missing if none may be.
    """
    if pyarrow.types.is_dictionary(column.type):
        found = Tokens.of(column, places)
        return parse_numbers(found.array, found.place, missing, decimal, kind)[found.codes]
    texts = trim_texts(column)
    holes = find_missing(
        texts, missing, numbers=False
    )  # numeric marks are recognised in the first pass
    if holes.any():
        if not missing.allowed:
            raise missing_value_error(places(int(np.argmax(holes))))
        texts = pyarrow.compute.if_else(pyarrow.array(~holes), texts, None)
    check_points(texts, decimal, places)
    if kind == TRUTH:
        lower = pyarrow.compute.utf8_lower(texts)
        for word, digit in (("true", "1"), ("false", "0")):
            is_word = pyarrow.compute.equal(lower, word)
            texts = pyarrow.compute.if_else(is_word, pyarrow.scalar(digit, texts.type), texts)
    numbers = try_numbers(normalise_numbers(texts, decimal))
    out = np.full(len(texts), np.nan)
    if numbers is not None:
        out = numbers.to_numpy(zero_copy_only=False)
    if not np.isfinite(out[~holes]).all():
        out = np.full(len(texts), np.nan)
        for row in np.flatnonzero(~holes).tolist():
            text = normalise_number(texts[row].as_py(), decimal)
            if kind == TRUTH and parse_number(text) is None:
                raise not_a_truth_error(text, places(row))
            out[row] = parse_finite(text, places(row))
    return out
