"""Decimal numbers from bytes: the compiled loops, and the exact path for whatever they refuse."""

from __future__ import annotations

import re

import numpy as np

from bigscreen.errors import InputError
from bigscreen.rows import njit

MISSING = ("", "?", "NA")

_NUMBER = re.compile(
    r"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|inf|infinity|nan)", re.ASCII | re.IGNORECASE
)
_POWERS = np.array([float(f"1e{k}") for k in range(291)])


def exact_number(text: str) -> float | None:
    """Return the number, correctly rounded (perhaps nan or inf), that `text` is, or None."""
    return float(text) if _NUMBER.fullmatch(text) else None


def finite_number(text: str, place: str) -> float:
    """Return the number that `text` is, or raise InputError naming `place`."""
    value = exact_number(text)
    if value is not None and np.isfinite(value):
        return value
    if text in MISSING:
        raise InputError(f"{place}: the value is missing; fill it in or remove the row.")
    kind = "a number" if value is None else "a finite number"
    raise InputError(f"{place}: {text[:40]!r} is not {kind}; correct it or remove the row.")


@njit(cache=True, nogil=True)
def scan_number(buf, start):
    """Read a decimal number at `start`; the byte after it must not be one of a number.

    Returns the value and the position after it, or `start` itself where no plain number stands
    (words, or exponents near the ends of float64's range: those go through `exact_number`).
    18 digits in an int64 times an exact power of ten: correct to an ulp or so of float64, hence
    after rounding to float32.
    """
    i = start
    first = buf[i]
    if first == 43 or first == 45:
        i += 1
    mantissa = np.int64(0)
    exponent = np.int64(0)
    digits = 0
    while True:
        c = np.int64(buf[i]) - 48
        if c < 0 or c > 9:
            break
        if mantissa < 100_000_000_000_000_000:
            mantissa = mantissa * 10 + c
        else:
            exponent += 1
        digits += 1
        i += 1
    if buf[i] == 46:
        i += 1
        while True:
            c = np.int64(buf[i]) - 48
            if c < 0 or c > 9:
                break
            if mantissa < 100_000_000_000_000_000:
                mantissa = mantissa * 10 + c
                exponent -= 1
            digits += 1
            i += 1
    if digits == 0:
        return 0.0, start
    if buf[i] == 101 or buf[i] == 69:
        i += 1
        sign = 1
        if buf[i] == 45:
            sign = -1
            i += 1
        elif buf[i] == 43:
            i += 1
        digits = 0
        shift = np.int64(0)
        while True:
            c = np.int64(buf[i]) - 48
            if c < 0 or c > 9:
                break
            if shift < 100_000:
                shift = shift * 10 + c
            digits += 1
            i += 1
        if digits == 0:
            return 0.0, start
        exponent += sign * shift
    value = float(mantissa)
    if exponent < 0:
        if exponent < -290:
            return 0.0, start
        value /= _POWERS[-exponent]
    elif exponent > 0:
        if exponent > 290:
            return 0.0, start
        value *= _POWERS[exponent]
    if first == 45:
        value = -value
    return value, i


@njit(cache=True, nogil=True)
def fill_numbers(buf, starts, ends, columns, out, row, column):
    """Parse fields into out[:, j] from field columns[j] (-1: leave out), from (row, column) on.

    Returns the row and column of the first field that is no plain number, or (len(out), 0).
    """
    for r in range(row, len(out)):
        for j in range(column, len(columns)):
            f = columns[j]
            if f >= 0:
                value, stop = scan_number(buf, starts[r, f])
                if stop != ends[r, f] or stop == starts[r, f]:
                    return r, j
                out[r, j] = value
        column = 0
    return len(out), 0


@njit(cache=True, nogil=True)
def mark_numbers(buf, starts, ends, out, plain):
    """Parse the tokens that are plain numbers into `out`; `plain` says which are."""
    for r in range(len(starts)):
        value, stop = scan_number(buf, starts[r])
        out[r] = value
        plain[r] = stop == ends[r] and stop != starts[r]
