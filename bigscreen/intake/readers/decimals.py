"""Numbers with decimal commas and thousands separators, as many countries write them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow
import pyarrow.compute

from bigscreen.errors import InputError

DECIMAL_MARKS = (",", ".")
"""Marks that may stand before decimals; the other one may then separate thousands."""

THOUSANDS_SEPARATORS = " '\u2019\u00a0\u2009\u202f"
"""Thousands separators in addition to commas and points: blanks of any width, apostrophes."""

_WITH_POINT = r"^[+-]?(?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?$"
"""Matches a number with a decimal point."""


def check_decimal(decimal: str | None) -> None:
    """Refuse a decimal mark that is neither a point nor a comma; None means it was not given.

    Raises
    ------
    InputError
    """
    if decimal not in (None, *DECIMAL_MARKS):
        raise InputError(f"{decimal!r} is no decimal mark: give a point or a comma.")


def _number_pattern(decimal: str) -> str:
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
    if decimal is None or not re.fullmatch(_number_pattern(decimal), text):
        return text
    return re.sub(rf"[{DECIMAL_MARKS[decimal == ',']}{THOUSANDS_SEPARATORS}]", "", text).replace(
        decimal, "."
    )


def normalise_numbers(texts: Any, decimal: str | None) -> Any:
    """Return an Arrow array of texts in which `normalise_number` was applied to each text.

    `decimal` is the decimal mark of the source ("," or "."); None: the texts are not changed.
    """
    if decimal is None:
        return texts
    compute = pyarrow.compute
    number = compute.match_substring_regex(texts, f"^{_number_pattern(decimal)}$")
    plain = compute.replace_substring_regex(
        texts, f"[{DECIMAL_MARKS[decimal == ',']}{THOUSANDS_SEPARATORS}]", ""
    )
    if decimal == ",":
        plain = compute.replace_substring(plain, ",", ".")
    return compute.if_else(number, plain, texts)


def check_points(texts: Any, decimal: str | None, places: Callable[[int], str]) -> None:
    """Refuse numbers with a decimal point in an Arrow array if the decimal mark is a comma.

    Points that separate thousands are accepted.

    Parameters
    ----------
    texts : pyarrow.Array
        Texts, perhaps null.
    decimal : {".", ","} or None
        The decimal mark of the source.
    places : callable
        ``places(i)`` names the i-th row in the error.

    Raises
    ------
    InputError
    """
    if decimal != ",":
        return
    compute = pyarrow.compute
    number = compute.match_substring_regex(texts, f"^{_number_pattern(decimal)}$")
    wrong = compute.and_not(compute.match_substring_regex(texts, _WITH_POINT), number)
    if compute.any(wrong).as_py():
        row = int(np.argmax(wrong.fill_null(False).to_numpy(zero_copy_only=False)))
        raise InputError(
            f"{places(row)}: {texts[row].as_py()!r} has a point where no thousands are set apart, "
            "and decimals are said to stand behind a comma."
        )
