"""Numbers as people of other places write them: decimal commas, and marks of thousands."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from bigscreen.errors import InputError
from bigscreen.intake.readers.text import Fields
from bigscreen.numerics.rows import njit

COMMA, POINT, APOSTROPHE, SPACE, NO_BREAK = 44, 46, 39, 32, 0xA0
MARKS = (",", ".")

GROUPERS = " '\u2019\u00a0\u2009\u202f"
"""What sets thousands apart besides commas and points: blanks, narrow or not, and apostrophes."""


def check_decimal(decimal: str | None) -> None:
    """Refuse what stands before no decimals.

    Raises
    ------
    InputError
    """
    if decimal not in (None, *MARKS):
        raise InputError(f"{decimal!r} is no decimal mark: give a point or a comma.")


def plainly(text: str, decimal: str | None) -> str:
    """A number with a point and no marks of thousands, as `write_plainly` has it; or `text`."""
    if decimal is None:
        return text
    other = MARKS[decimal == ","]
    grouped = rf"\d{{1,3}}(?:[{other}{GROUPERS}]\d{{3}})+|\d+"
    pattern = rf"[+-]?(?=[^eE]*\d)(?:{grouped})?(?:\{decimal}\d*)?(?:[eE][+-]?\d+)?"
    if not re.fullmatch(pattern, text, re.ASCII):
        return text
    return re.sub(rf"[{other}{GROUPERS}]", "", text).replace(decimal, ".")


def write_plainly(fields: Fields, columns: list[int], decimal: str | None) -> None:
    """Write the numbers of some columns, in place, with a point and no marks of thousands.

    Thousands are set apart by the comma or the point that is not the decimal mark, by `GROUPERS`,
    in groups of three digits; what is no such number stays as it is.

    Raises
    ------
    InputError
        For a point that is none of these where the decimal mark is a comma: 1.5 would be 1.5.
    """
    if decimal is None:
        return
    places = np.array(columns, np.int64)
    row, f = _write(fields.buf, fields.starts, fields.ends, places, ord(decimal))
    if row >= 0:
        raise InputError(
            f"{fields.place(row, f)}: {fields.text(row, f)!r} has a point where no thousands are "
            "set apart, and decimals are said to stand behind a comma."
        )


@njit(cache=True, nogil=True)
def _grouper(buf: NDArray[np.uint8], i: int, stop: int, other: int) -> int:
    """Return the bytes of the mark of thousands at `i`, as UTF-8 (or Latin-1) has it; 0: none."""
    c = buf[i]
    if c in (other, APOSTROPHE, SPACE, NO_BREAK):
        return 1
    if c == 0xC2 and i + 1 < stop and buf[i + 1] == NO_BREAK:
        return 2
    if c == 0xE2 and i + 2 < stop and buf[i + 1] == 0x80:
        last = buf[i + 2]
        if last == 0xAF or last == 0x89 or last == 0x99:
            return 3
    return 0


@njit(cache=True, nogil=True)
def _write(
    buf: NDArray[np.uint8],
    starts: NDArray[np.int32],
    ends: NDArray[np.int32],
    columns: NDArray[np.int64],
    decimal: int,
) -> tuple[int, int]:
    """Returns row and column of the first number with a point that is out of place, or (-1, -1)."""
    other = COMMA + POINT - decimal
    wrong_row, wrong_column = -1, -1
    for r in range(starts.shape[0]):
        for f in columns:
            start, stop = starts[r, f], ends[r, f]
            digits, group, marks = 0, -1, 0  # group: digits since a mark of thousands
            last = 0  # where the exponent begins
            whole, power, point = True, False, False
            number, grouped = True, True
            i, size = start, 1
            while i < stop:
                c, size = buf[i], 1
                point = point or c == POINT
                if c >= 48 and c <= 57:
                    digits += 1
                    if group >= 0:
                        group += 1
                elif c == decimal and whole:
                    grouped = grouped and (group < 0 or group == 3)
                    whole, group = False, -1
                elif whole and _grouper(buf, i, stop, other):
                    size = _grouper(buf, i, stop, other)
                    grouped = grouped and (group == 3 or (marks == 0 and 0 < digits <= 3))
                    marks, group = marks + 1, 0
                elif (c == 101 or c == 69) and digits > 0 and not power:
                    grouped = grouped and (group < 0 or group == 3)
                    power, whole, group, last = True, False, -1, i + 1
                elif c in (43, 45) and (i == start or (power and i == last)):
                    last += i == last  # a digit is to follow
                else:
                    number = number and c in (other, decimal)
                    grouped = False
                i += size
            grouped = grouped and (group < 0 or group == 3) and digits > 0
            grouped = grouped and not (power and last == stop)
            if number and grouped:
                to = i = start
                while i < stop:
                    size = _grouper(buf, i, stop, other)
                    if not size:
                        buf[to] = POINT if buf[i] == decimal else buf[i]
                        to += 1
                    i += max(size, 1)
                ends[r, f] = to
            elif number and point and decimal == COMMA and digits > 0 and wrong_row < 0:
                wrong_row, wrong_column = r, f
    return wrong_row, wrong_column
