"""Texts to codes: categories of columns, and labels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bigscreen.data.missing import ABSENT, MISSING, Missing
from bigscreen.data.preparation import Preparation
from bigscreen.data.texts import (
    DATE_LIKE,
    ISO_DATE,
    bucket_names,
    days,
    hashed_name,
    same_truth,
)
from bigscreen.errors import InputError
from bigscreen.intake.readers.base import decode
from bigscreen.intake.readers.text import exact_number, finite_number, mark_numbers, missing_value
from bigscreen.numerics.rows import njit

NONE = Missing()
"""Nothing may be missing, and nothing but the usual texts says so."""

MAX_CATEGORIES = 100_000
MAX_TEXT_BYTES = 64 << 20
"""Of all different texts of a column together."""


class Texts(NamedTuple):
    """Different texts: their bytes one after the other, where each ends, and a hash table."""

    flat: NDArray[np.uint8]
    bounds: NDArray[np.int64]
    slots: NDArray[np.int32]


@njit(cache=True, nogil=True)
def _slot(buf: NDArray[np.uint8], start: int, stop: int, texts: Texts) -> int:
    """Return the hash slot that holds the token, or the empty one where it belongs."""
    flat, bounds, slots = texts
    h = np.uint64(14695981039346656037)
    for i in range(start, stop):
        h = (h ^ np.uint64(buf[i])) * np.uint64(1099511628211)
    h ^= h >> np.uint64(29)
    mask = np.int64(len(slots) - 1)
    at = np.int64(h) & mask
    while slots[at] >= 0:
        code = slots[at]
        low = bounds[code]
        if bounds[code + 1] - low == stop - start:
            k = 0
            while k < stop - start and flat[low + k] == buf[start + k]:
                k += 1
            if k == stop - start:
                break
        at = (at + 1) & mask
    return int(at)


@njit(cache=True, nogil=True)
def _encode(
    buf: NDArray[np.uint8],
    starts: NDArray[Any],
    ends: NDArray[Any],
    row: int,
    codes: NDArray[np.int32],
    count: int,
    texts: Texts,
) -> tuple[int, int]:
    """Write codes from `row` on; returns the row at which the tables are full, and the count."""
    flat, bounds, slots = texts
    for r in range(row, len(starts)):
        at = _slot(buf, starts[r], ends[r], texts)
        code = slots[at]
        if code < 0:
            size = ends[r] - starts[r]
            low = bounds[count]
            full = count + 2 > len(bounds) or 2 * count + 2 > len(slots)
            if full or low + size > len(flat):
                return r, count
            flat[low : low + size] = buf[starts[r] : ends[r]]
            bounds[count + 1] = low + size
            code = count
            slots[at] = code
            count += 1
        codes[r] = code
    return len(starts), count


class Encoder:
    """Gives each distinct token a code, in order of first appearance."""

    def __init__(self) -> None:
        self.count = 0
        self._texts = Texts(np.zeros(0, np.uint8), np.zeros(0, np.int64), np.zeros(0, np.int32))
        self._resize(16, 256)

    def _resize(self, categories: int, size: int) -> None:
        flat = np.zeros(size, np.uint8)
        bounds = np.zeros(categories + 1, np.int64)
        slots = np.full(4 * categories, -1, np.int32)
        old, self._texts = self._texts, Texts(flat, bounds, slots)
        if self.count:
            flat[: len(old.flat)] = old.flat
            bounds[: len(old.bounds)] = old.bounds
            for code in range(self.count):
                slots[_slot(flat, bounds[code], bounds[code + 1], self._texts)] = code

    def encode(
        self, buf: NDArray[np.uint8], starts: NDArray[Any], ends: NDArray[Any]
    ) -> NDArray[np.int32]:
        """Return the codes of the tokens; InputError if there are too many, or too long ones."""
        codes = np.empty(len(starts), np.int32)
        row = 0
        while True:
            flat, bounds, _ = self._texts
            row, self.count = _encode(buf, starts, ends, row, codes, self.count, self._texts)
            if self.count > MAX_CATEGORIES:
                raise InputError(f"there are more than {MAX_CATEGORIES} different texts")
            if row == len(starts):
                return codes
            need = int(bounds[self.count] + ends[row] - starts[row])
            if need > MAX_TEXT_BYTES:
                raise InputError(f"there are more than {MAX_TEXT_BYTES >> 20} MiB of texts")
            self._resize(2 * (len(bounds) - 1), max(2 * need, len(flat)))

    def texts(self, start: int = 0) -> list[str]:
        """Return the texts from code `start` on."""
        flat, bounds = self._texts.flat.tobytes(), self._texts.bounds
        return [decode(flat[bounds[c] : bounds[c + 1]]) for c in range(start, self.count)]


@dataclass
class Tokens:
    """The tokens of some rows: the different texts, and which of them each row has.

    Attributes
    ----------
    texts : list of str
        In order of first appearance.
    codes : int32 array, (rows,)
    places : callable
        ``places(i)`` names the i-th row in an error.
    """

    texts: list[str]
    codes: NDArray[np.int32]
    places: Callable[[int], str]

    def place(self, code: int) -> str:
        """Where the text with this code stands first."""
        return self.places(int(np.argmax(self.codes == code)))


def tokens(
    buf: NDArray[np.uint8],
    starts: NDArray[Any],
    ends: NDArray[Any],
    where: Callable[[int], str],
    what: str,
) -> Tokens:
    """Tell tokens apart; InputError if there are too many, `what` saying what they are."""
    encoder = Encoder()
    try:
        codes = encoder.encode(buf, starts, ends)
    except InputError as error:
        raise InputError(f"{where(0)}: {error} {what}.") from None
    return Tokens(encoder.texts(), codes, where)


IN_COLUMN, AS_LABELS = "in this column; drop it", "as labels"


class Categories:
    """The categories of one column, learned in order of first appearance unless given.

    Parameters
    ----------
    known : list of str, optional
        The categories, in code order.
    closed : bool, default=False
        A text that is not among `known` is an error; otherwise it has code -1 and is counted.
    missing : Missing
        Where it allows them, missing texts have a category of their own, `ABSENT`.
    """

    def __init__(
        self,
        known: list[str] | None = None,
        closed: bool = False,
        missing: Missing = NONE,
    ) -> None:
        self.names: list[str] = list(known or [])
        self.unseen = 0
        self._given = frozenset(self.names)
        self._learning = known is None
        self._closed, self._missing = closed, missing
        self._codes = {name: code for code, name in enumerate(self.names)}
        self._seen = Seen()

    def tokens(
        self,
        buf: NDArray[Any],
        starts: NDArray[Any],
        ends: NDArray[Any],
        where: Callable[[int], str],
    ) -> Tokens:
        """Tell the tokens of some rows apart, whatever the rows before; see `encode`."""
        found = tokens(buf, starts, ends, where, IN_COLUMN)
        for code, text in enumerate(found.texts):
            self._check(text, found, code)
        return found

    def encode(self, found: Tokens) -> NDArray[np.int32]:
        """Return the codes of some rows' tokens, which come after all that were encoded before."""
        self._seen.add(found, IN_COLUMN)
        of_texts = np.array([self._code(text) for text in found.texts], np.int32)
        codes = of_texts[found.codes]
        self.unseen += int(np.count_nonzero(codes < 0))
        return codes

    def code(self, text: str, place: str) -> int:
        """Return the code of one text, perhaps a new one; `place` stands in an error."""
        self._check(text, Tokens([text], np.zeros(1, np.int32), lambda _: place), 0)
        return self._code(text)

    def _check(self, text: str, found: Tokens, code: int) -> None:
        """Refuse a text that no row may have."""
        bare = text.strip()
        if text in self._given or bare in self._given:
            return
        if bare in self._missing:
            if not self._missing.allowed:
                raise missing_value(found.place(code))
        elif self._closed:
            raise InputError(
                f"{found.place(code)}: {bare[:40]!r} is not one of the column's declared "
                "categories."
            )

    def _code(self, text: str) -> int:
        if text not in self._codes:
            text = text.strip()  # blanks within quotes mean nothing either
        if text not in self._codes:
            if (alike := same_truth(text, self.names)) is not None:
                self._codes[text] = self._codes[alike]
                return self._codes[text]
            absent = text in self._missing
            text = ABSENT if absent else text
            grows = self._learning or (absent and self._closed)
            if grows and text not in self._codes:
                self._codes[text] = len(self.names)
                self.names.append(text)
        return self._codes.get(text, -1)


class Hashed:
    """The hash of every text of one column, as many bits of it as are wanted.

    Parameters
    ----------
    bits : int
    missing : Missing
        Where it allows them, missing texts are hashed as `ABSENT`.
    """

    def __init__(self, bits: int, missing: Missing = NONE) -> None:
        self.names, self.unseen = bucket_names(bits), 0
        self._bits, self._missing = bits, missing

    def encode(
        self,
        buf: NDArray[Any],
        starts: NDArray[Any],
        ends: NDArray[Any],
        where: Callable[[int], str],
    ) -> NDArray[np.int32]:
        """Return the buckets of the tokens; `where(i)` names the i-th one's place in an error."""
        codes = np.empty(len(starts), np.int32)
        plain = np.empty(len(starts), bool)
        _hash(buf, starts, ends, (1 << self._bits) - 1, codes, plain)
        if marks := self._missing.marks:  # a mark is looked at as a text
            numbers = "+-.0123456789" if self._missing.numbers else ""
            firsts = {byte for mark in (*marks, *numbers) for byte in mark.encode()[:1]}
            plain &= ~np.isin(buf[starts], list(firsts))
        for row in np.flatnonzero(~plain).tolist():
            text = decode(buf[starts[row] : ends[row]].tobytes())
            codes[row] = self.code(text, where(row))
        return codes

    def code(self, text: str, place: str) -> int:
        """Return the bucket of one text; `place` stands in an error."""
        text = text.strip()
        if text in self._missing:
            if not self._missing.allowed:
                raise missing_value(place)
            text = ABSENT
        return hashed_name(text, self._bits)


@njit(cache=True, nogil=True)
def _hash(
    buf: NDArray[np.uint8],
    starts: NDArray[Any],
    ends: NDArray[Any],
    mask: int,
    codes: NDArray[np.int32],
    plain: NDArray[np.bool_],
) -> None:
    """`hashed_name` of tokens; those that may be missing, or are not plain, are left out."""
    for r in range(len(starts)):
        start, stop = starts[r], ends[r]
        h = np.uint64(14695981039346656037)
        plain[r] = stop - start > 4 and buf[start] != 32 and buf[stop - 1] != 32
        for i in range(start, stop):
            if buf[i] > 127:
                plain[r] = False
            h = (h ^ np.uint64(buf[i])) * np.uint64(1099511628211)
        h ^= h >> np.uint64(29)
        codes[r] = np.int32(h & np.uint64(mask))


class Dates:
    """Dates and times of one column as days since 1970.

    Parameters
    ----------
    form : str
        Of `strptime`; "": ISO 8601.
    missing : Missing
        Where it allows them, a missing one is NaN.
    """

    def __init__(self, form: str, missing: Missing = NONE) -> None:
        self._form, self._missing = form, missing

    def encode(
        self,
        buf: NDArray[Any],
        starts: NDArray[Any],
        ends: NDArray[Any],
        where: Callable[[int], str],
    ) -> NDArray[np.float64]:
        """Return the days of the tokens; `where(i)` names the i-th one's place in an error."""
        content, out = buf.tobytes(), np.empty(len(starts))
        known: dict[bytes, float] = {}
        for row, (start, stop) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
            token = content[start:stop]
            value = known.get(token)
            if value is None:
                value = known[token] = self.value(decode(token), where, row)
            out[row] = value
        return out

    def value(self, text: str, where: Callable[[int], str], row: int) -> float:
        """Return the days of one text."""
        text = text.strip()
        if text in self._missing:
            if not self._missing.allowed:
                raise missing_value(where(row))
            return float("nan")
        try:
            return days(text, self._form)
        except ValueError:
            how = f"written as {self._form}" if self._form else "as ISO 8601 has it"
            raise InputError(
                f"{where(row)}: {text[:40]!r} is no date {how}; correct it, or say how dates are "
                "written (`date='COLUMN=%d/%m/%Y'`)."
            ) from None


def date_format(words: Iterable[str], place: str) -> str | None:
    """Return the format of a column's texts if all are dates, None if they are not.

    Raises
    ------
    InputError
        If they look like dates that are written in one of several orders.
    """
    words = list(words)
    if all(ISO_DATE.fullmatch(word) for word in words):
        return ""
    if all(ISO_DATE.fullmatch(word) or DATE_LIKE.fullmatch(word) for word in words):
        raise InputError(
            f"{place}: {words[0]!r} looks like a date or a time, but not in which order it is "
            "written: say so (`date='COLUMN=%d/%m/%Y'`, as strptime has it), name the column as "
            "`categorical`, or `drop` it."
        )
    return None


class Kind(NamedTuple):
    """What a column holds that is anything but numbers."""

    name: str
    """ "categorical", "date" or "hash"."""
    how: Any = None
    """Of dates the format, of hashes the bits."""


TEXT = Kind("categorical")


@dataclass(frozen=True)
class Typed:
    """The columns of X that are anything but numbers.

    Attributes
    ----------
    categories : dict of int to list of str or None
        None: they are to be learnt.
    dates : dict of int to str
        And their formats.
    hashed : dict of int to int
        And the bits.
    closed : bool
        Whether a text that is not among given categories is an error.
    """

    categories: Mapping[int, list[str] | None] = field(default_factory=dict)
    dates: dict[int, str] = field(default_factory=dict)
    hashed: dict[int, int] = field(default_factory=dict)
    closed: bool = False

    @classmethod
    def learnt(cls, kinds: Mapping[int, Kind]) -> Typed:
        """Of a new store, by what columns of X hold."""
        return cls(
            {j: None for j, kind in kinds.items() if kind == TEXT},
            {j: kind.how for j, kind in kinds.items() if kind.name == "date"},
            {j: kind.how for j, kind in kinds.items() if kind.name == "hash"},
        )

    @classmethod
    def of(cls, like: Preparation) -> Typed:
        """Those of an earlier store."""
        texts = {j: list(v) for j, v in like.categories.items() if j not in like.hashed}
        return cls(texts, like.dates, like.hashed)


def label_value(text: str, place: str) -> float | str | None:
    """Return a label: a float if it reads as a number, None if it is missing, else the text."""
    text = text.strip()
    if text in MISSING:
        return None
    number = exact_number(text)
    if number is not None and not np.isfinite(number):
        return finite_number(text, f"{place}: the label")
    return text if number is None else number


class Seen:
    """The different texts so far, of which only so many are taken."""

    def __init__(self) -> None:
        self._texts: set[str] = set()
        self._bytes = 0

    def add(self, found: Tokens, what: str) -> None:
        """Count the texts of some more rows; InputError if there are too many, or too long ones."""
        for text in found.texts:
            if text not in self._texts:
                self._texts.add(text)
                self._bytes += len(text.encode())
        if len(self._texts) > MAX_CATEGORIES:
            too = f"there are more than {MAX_CATEGORIES} different texts"
        elif self._bytes > MAX_TEXT_BYTES:
            too = f"there are more than {MAX_TEXT_BYTES >> 20} MiB of texts"
        else:
            return
        raise InputError(f"{found.places(0)}: {too} {what}.")


class Labels:
    """Labels of some rows: what is a number is a float, so that 1, +1 and 1.0 are one label.

    Attributes
    ----------
    values : float64 array (rows,), or object array of float and str
        The first if all are numbers. What is missing is None.
    odd : Tokens or None
        What is no plain number.
    """

    values: NDArray[Any]
    odd: Tokens | None

    @classmethod
    def numbers(cls, values: NDArray[np.float64]) -> Labels:
        """Of rows whose labels all are plain numbers."""
        out = cls.__new__(cls)
        out.values, out.odd = values, None
        return out

    def __init__(
        self,
        buf: NDArray[Any],
        starts: NDArray[Any],
        ends: NDArray[Any],
        where: Callable[[int], str],
    ) -> None:
        numbers = np.empty(len(starts))
        plain = np.empty(len(starts), bool)
        mark_numbers(buf, starts, ends, numbers, plain)
        self.values, self.odd = numbers, None
        odd = np.flatnonzero(~plain)
        if not len(odd):
            return
        places = partial(_picked, where, odd)
        self.odd = found = tokens(buf, starts[odd], ends[odd], places, AS_LABELS)
        values = np.empty(len(found.texts), object)  # (a label that is missing is None)
        for code, text in enumerate(found.texts):
            values[code] = label_value(text, found.place(code))
        if all(isinstance(value, float) for value in values):
            numbers[odd] = values[found.codes].astype(float)
            return
        self.values = numbers.astype(object)
        self.values[odd] = values[found.codes]


def _picked(where: Callable[[int], str], rows: NDArray[np.int64], i: int) -> str:
    return where(int(rows[i]))
