"""Parse texts: numbers, truth values, dates and times as days, names hashed into buckets."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.errors import InputError

ISO = ""
"""The date format that stands for ISO 8601: 2024-02-29, 2024-02-29T23:59:59.5Z."""

ISO_DATE = re.compile(
    r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d{1,9})?)?\s?(?:Z|[+-]\d\d:?\d\d)?)?", re.ASCII
)
"""Matches an ISO 8601 date, perhaps with a time and its offset from UTC."""

DATE_LIKE = re.compile(
    r"\d{1,4}([./-])\d{1,2}\1\d{1,4}(?:[ T,]+\d{1,2}:\d\d(?::\d\d(?:\.\d+)?)?(?: ?[AaPp][Mm])?)?"
    r"|\d{1,2}:\d\d(?::\d\d(?:\.\d+)?)?(?: ?[AaPp][Mm])?",
    re.ASCII,
)
"""Matches a date or a time; the order of day and month may be ambiguous."""

_EPOCH, _NO_DAY = datetime(1970, 1, 1, tzinfo=UTC), datetime(1900, 1, 1, tzinfo=UTC)
"""Day 0 of dates, and the date that `strptime` gives to a time without a date."""

_DAY = timedelta(days=1)
"""The unit in which times are features."""

MAX_HASH_BITS = 20
"""Largest number of bits b to which the values of a column may be hashed, which gives 2**b
features; more are refused."""

_NUMBER = re.compile(
    r"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|inf|infinity|nan)", re.ASCII | re.IGNORECASE
)
"""Matches a decimal number, infinity or nan; unlike `float` no "_", spaces or other digits."""


DECIMAL_MARKS = (",", ".")
"""Marks that may stand before decimals; the other one may then separate thousands."""

THOUSANDS_SEPARATORS = " '\u2019\u00a0\u2009\u202f"
"""Thousands separators in addition to commas and points: blanks of any width, apostrophes."""


def parse_number(text: str) -> float | None:
    """Parse a number, correctly rounded (perhaps nan or inf); None if `text` is not a number."""
    return float(text) if _NUMBER.fullmatch(text) else None


def number_pattern(decimal: str) -> str:
    """Return a pattern of numbers with this decimal mark, with or without thousands separators.

    `decimal` is "," or "."; the other one may separate thousands.
    """
    other = DECIMAL_MARKS[decimal == ","]
    whole = rf"(?:[0-9]{{1,3}}(?:[{other}{THOUSANDS_SEPARATORS}][0-9]{{3}})+|[0-9]+)"
    return rf"[+-]?(?:{whole}(?:\{decimal}[0-9]*)?|\{decimal}[0-9]+)(?:[eE][+-]?[0-9]+)?"


def normalise_number(text: str, decimal: str | None) -> str:
    """Return a number with a decimal point and no thousands separators; other texts unchanged.

    `decimal` is the decimal mark of the source ("," or "."); None: the text is not changed.
    """
    if decimal is None or not re.fullmatch(number_pattern(decimal), text):
        return text
    return re.sub(rf"[{DECIMAL_MARKS[decimal == ',']}{THOUSANDS_SEPARATORS}]", "", text).replace(
        decimal, "."
    )


def find_untrue(values: NDArray[Any]) -> int | None:
    """Return the index of the first value that is neither 0, 1 nor nan; None if there is none."""
    fine = (values == 0) | (values == 1) | np.isnan(values)
    return None if fine.all() else int(np.argmin(fine))


def normalise_for_hash(text: str) -> str:
    """Normalise a text before hashing: all spellings of a number or truth value become one.

    Whole numbers of any length lose leading zeros and decimals: 007, 7, 7.0 and 7e0 become "7". A
    number that float32 represents exactly gets its shortest float32 text, so that 0.1 rounded to
    float32 and widened again is "0.1". True and TRUE become "true".
    """
    text = text.strip()
    if text.isascii() and text.lstrip("+-").isdigit() and parse_number(text) is not None:
        return ("-" if text[0] == "-" and text.strip("-0") else "") + (text.lstrip("+-0") or "0")
    number = parse_number(text)
    if number is not None and math.isfinite(number):
        if number.is_integer():
            return str(int(number))
        with np.errstate(over="ignore"):
            narrow = np.float32(number)
        return str(narrow if narrow == number else number)
    return text.lower() if parse_truth(text) is not None else text


def parse_days(text: str, form: str = ISO) -> float:
    """Parse a date and time into days since the start of 1970, UTC.

    A time without a date becomes the fraction of a day since midnight.

    Parameters
    ----------
    text : str
    form : str
        Format as `datetime.strptime` takes it; "" is ISO 8601.

    Raises
    ------
    ValueError
        If the text does not have this format.
    """
    when = datetime.strptime(text, form) if form else datetime.fromisoformat(text)
    return to_days(when, timed=bool(form) and not re.search(r"%[YyGcxjDFs]", form))


def to_days(value: date | time | timedelta, timed: bool = False) -> float:
    """Convert a date, time or duration to days; dates count from the start of 1970, UTC.

    ``timed``: `value` was parsed from a time without a date, so only its time of day counts.
    """
    if isinstance(value, timedelta):
        return value / _DAY
    if isinstance(value, time):
        value, timed = datetime.combine(_NO_DAY, value), True
    if not isinstance(value, datetime):
        value = datetime.combine(value, time())
    if value.tzinfo is None:
        value = value.replace(tzinfo=UTC)
    return (value - (_NO_DAY if timed else _EPOCH)) / _DAY


def array_to_days(values: NDArray[Any]) -> NDArray[np.float64]:
    """Convert numpy dates (from 1970) and durations to days; NaN for NaT."""
    if values.dtype.kind == "M":
        values = values.astype("M8[us]") - np.datetime64(0, "us")
    return np.asarray(values.astype("m8[us]") / np.timedelta64(1, "D"), np.float64)


def hash_bucket(text: str, bits: int) -> int:
    """Hash a name to a bucket in 0..2**bits-1: 64-bit FNV-1a of its UTF-8, high bits folded in."""
    h = 14695981039346656037
    for byte in text.encode():
        h = ((h ^ byte) * 1099511628211) & 0xFFFFFFFFFFFFFFFF
    return (h ^ (h >> 29)) & ((1 << bits) - 1)


def match_truth(text: str, known: Sequence[str]) -> str | None:
    """Return the text in ``known`` that equals ``text`` up to case, if ``text`` is true or false.

    None if there is no such text, or ``text`` is not a truth value.
    """
    bare = text.casefold()
    if bare not in ("true", "false"):
        return None
    return next((name for name in known if name.casefold() == bare), None)


def parse_truth(value: Any) -> int | None:
    """Return 1 or 0 for a truth value (true, False, 1, 0.0, ...), None for any other value."""
    if isinstance(value, str):
        return {"true": 1, "false": 0}.get(value.casefold())
    return int(value) if value in (0, 1) else None


def bucket_names(bits: int) -> list[str]:
    """Return the category names of the 2**bits hash buckets, in order: "#0", "#1", ..., padded."""
    width = len(str((1 << bits) - 1))
    return [f"#{bucket:0{width}d}" for bucket in range(1 << bits)]


def parse_dates(asked: Sequence[str]) -> dict[str, str]:
    """Parse texts COLUMN or COLUMN=FORMAT into a mapping of columns to formats ("": ISO 8601).

    Raises
    ------
    InputError
        If a format is not valid.
    """
    out = {}
    for one in asked:
        column, _, form = one.partition("=")
        if form:
            try:
                sample = datetime(2001, 2, 3, 4, 5, 6).strftime(form)
                datetime.strptime(sample, form)
            except ValueError as error:
                raise InputError(
                    f"{form!r} is no format of dates ({error}): write one such as %d/%m/%Y."
                ) from None
        out[column] = form
    return out


def parse_hashes(asked: Sequence[str]) -> dict[str, int]:
    """Parse texts COLUMN:BITS, ``asked``, into a mapping of columns to bits of their hash.

    Raises
    ------
    InputError
        If BITS is not a number from 1 to `MAX_HASH_BITS`.
    """
    out = {}
    for one in asked:
        column, _, bits = one.rpartition(":")
        if not column or not bits.isdecimal() or not 1 <= int(bits) <= MAX_HASH_BITS:
            raise InputError(
                f"{one!r} does not say how a column is hashed: write COLUMN:BITS, with 1 to "
                f"{MAX_HASH_BITS} bits, which make 2**BITS features."
            )
        out[column] = int(bits)
    return out


def by_column(record: Mapping[str, Any] | None) -> dict[int, Any]:
    """Convert the keys of a JSON mapping, which are texts, back to column numbers; {} for None."""
    return {int(column): value for column, value in (record or {}).items()}
