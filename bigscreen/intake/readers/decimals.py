"""Numbers with decimal commas and thousands separators, as many countries write them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow
import pyarrow.compute

from bigscreen.data.texts import DECIMAL_MARKS, THOUSANDS_SEPARATORS, number_pattern
from bigscreen.errors import InputError

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


def normalise_numbers(texts: Any, decimal: str | None) -> Any:
    """Return an Arrow array of texts in which `normalise_number` was applied to each text.

    `decimal` is the decimal mark of the source ("," or "."); None: the texts are not changed.
    """
    if decimal is None:
        return texts
    compute = pyarrow.compute
    number = compute.match_substring_regex(texts, f"^{number_pattern(decimal)}$")
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
    number = compute.match_substring_regex(texts, f"^{number_pattern(decimal)}$")
    wrong = compute.and_not(compute.match_substring_regex(texts, _WITH_POINT), number)
    if compute.any(wrong).as_py():
        row = int(np.argmax(wrong.fill_null(False).to_numpy(zero_copy_only=False)))
        raise InputError(
            f"{places(row)}: {texts[row].as_py()!r} has a point where no thousands are set apart, "
            "and decimals are said to stand behind a comma."
        )
