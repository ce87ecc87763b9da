"""Numbers as people of other places write them: decimal commas, and marks of thousands."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow
import pyarrow.compute

from bigscreen.errors import InputError

MARKS = (",", ".")

GROUPERS = " '\u2019\u00a0\u2009\u202f"
"""What sets thousands apart besides commas and points: blanks, narrow or not, and apostrophes."""

_WITH_POINT = r"^[+-]?(?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?$"


def check_decimal(decimal: str | None) -> None:
    """Refuse what stands before no decimals.

    Raises
    ------
    InputError
    """
    if decimal not in (None, *MARKS):
        raise InputError(f"{decimal!r} is no decimal mark: give a point or a comma.")


def _written(decimal: str) -> str:
    """Return the pattern of a number with this decimal mark, perhaps with marks of thousands."""
    other = MARKS[decimal == ","]
    whole = rf"(?:[0-9]{{1,3}}(?:[{other}{GROUPERS}][0-9]{{3}})+|[0-9]+)"
    return rf"[+-]?(?:{whole}(?:\{decimal}[0-9]*)?|\{decimal}[0-9]+)(?:[eE][+-]?[0-9]+)?"


def plainly(text: str, decimal: str | None) -> str:
    """Return a number with a point and without marks of thousands; or `text` if it is none."""
    if decimal is None or not re.fullmatch(_written(decimal), text):
        return text
    return re.sub(rf"[{MARKS[decimal == ',']}{GROUPERS}]", "", text).replace(decimal, ".")


def written_plainly(texts: Any, decimal: str | None) -> Any:
    """Return an Arrow array of texts with its numbers as `plainly` has them."""
    if decimal is None:
        return texts
    compute = pyarrow.compute
    number = compute.match_substring_regex(texts, f"^{_written(decimal)}$")
    plain = compute.replace_substring_regex(texts, f"[{MARKS[decimal == ',']}{GROUPERS}]", "")
    if decimal == ",":
        plain = compute.replace_substring(plain, ",", ".")
    return compute.if_else(number, plain, texts)


def check_points(texts: Any, decimal: str | None, places: Callable[[int], str]) -> None:
    """Refuse numbers with a decimal point in an Arrow array where the decimal mark is a comma.

    Raises
    ------
    InputError
    """
    if decimal != ",":
        return
    compute = pyarrow.compute
    number = compute.match_substring_regex(texts, f"^{_written(decimal)}$")
    wrong = compute.and_not(compute.match_substring_regex(texts, _WITH_POINT), number)
    if compute.any(wrong).as_py():
        row = int(np.argmax(wrong.fill_null(False).to_numpy(zero_copy_only=False)))
        raise InputError(
            f"{places(row)}: {texts[row].as_py()!r} has a point where no thousands are set apart, "
            "and decimals are said to stand behind a comma."
        )
