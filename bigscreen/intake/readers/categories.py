"""Texts to codes: categories of columns, and labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bigscreen.data.preparation import ABSENT, MISSING
from bigscreen.errors import InputError
from bigscreen.intake.readers.base import decode
from bigscreen.intake.readers.text import exact_number, finite_number, mark_numbers
from bigscreen.numerics.rows import njit

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


class Categories:
    """The categories of one column, learned in order of first appearance unless given.

    Parameters
    ----------
    known : list of str, optional
        The categories, in code order.
    closed : bool, default=False
        A text that is not among `known` is an error; otherwise it has code -1 and is counted.
    missing : bool, default=False
        A missing text has a category of its own, `ABSENT`; otherwise it is an error.
    """

    def __init__(
        self, known: list[str] | None = None, closed: bool = False, missing: bool = False
    ) -> None:
        self.names: list[str] = list(known or [])
        self.unseen = 0
        self._learning = known is None
        self._closed, self._missing = closed, missing
        self._codes = {name: code for code, name in enumerate(self.names)}
        self._encoder = Encoder()
        self._map = np.empty(0, np.int32)

    def encode(
        self,
        buf: NDArray[Any],
        starts: NDArray[Any],
        ends: NDArray[Any],
        where: Callable[[int], str],
    ) -> NDArray[np.int32]:
        """Return the codes of the tokens; `where(i)` names the i-th one's place in an error."""
        try:
            inner = self._encoder.encode(buf, starts, ends)
        except InputError as error:
            raise InputError(f"{where(0)}: {error} in this column; drop it.") from None
        fresh = [
            self.code(text, where(int(np.argmax(inner == code))))
            for code, text in enumerate(self._encoder.texts(len(self._map)), len(self._map))
        ]
        self._map = np.concatenate([self._map, np.array(fresh, np.int32)])
        codes = self._map[inner]
        self.unseen += int(np.count_nonzero(codes < 0))
        return codes

    def code(self, text: str, place: str) -> int:
        """Return the code of one text, perhaps a new one; `place` stands in an error."""
        if text not in self._codes:
            if text in MISSING and self._missing:
                if ABSENT not in self._codes and (self._learning or self._closed):
                    self._codes[ABSENT] = len(self.names)
                    self.names.append(ABSENT)
                return self._codes.get(ABSENT, -1)
            if text in MISSING:
                raise InputError(f"{place}: the value is missing; fill it in or remove the row.")
            if self._closed:
                raise InputError(
                    f"{place}: {text[:40]!r} is not one of the column's declared categories."
                )
            if self._learning:
                self._codes[text] = len(self.names)
                self.names.append(text)
        return self._codes.get(text, -1)


def label_value(text: str, place: str) -> float | str:
    """Return a label: a float if it reads as a number, else the text."""
    number = exact_number(text)
    if text in MISSING or (number is not None and not np.isfinite(number)):
        return finite_number(text, f"{place}: the label")
    return text if number is None else number


class Labels:
    """Reads labels: what is a number becomes a float, so that 1, +1 and 1.0 are one label."""

    def __init__(self) -> None:
        self._encoder = Encoder()

    def read(
        self,
        buf: NDArray[Any],
        starts: NDArray[Any],
        ends: NDArray[Any],
        where: Callable[[int], str],
    ) -> NDArray[Any]:
        """Return the labels: float64 if all are numbers, else an object array of float and str.

        Only tokens that are no plain number go through the encoder: a text is decoded once.
        """
        numbers = np.empty(len(starts))
        plain = np.empty(len(starts), bool)
        mark_numbers(buf, starts, ends, numbers, plain)
        odd = np.flatnonzero(~plain)
        if not len(odd):
            return numbers
        try:
            codes = self._encoder.encode(buf, starts[odd], ends[odd])
        except InputError as error:
            raise InputError(f"{where(int(odd[0]))}: {error} as labels.") from None
        values = np.empty(self._encoder.count, object)
        for code, text in enumerate(self._encoder.texts()):
            values[code] = label_value(text, where(int(odd[np.argmax(codes == code)])))
        if all(isinstance(values[code], float) for code in np.unique(codes)):
            numbers[odd] = values[codes].astype(float)
            return numbers
        labels = numbers.astype(object)
        labels[odd] = values[codes]
        return labels
