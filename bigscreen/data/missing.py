"""Recognise missing values in a source: texts such as "NA", and numbers declared as missing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.data.texts import parse_number

MISSING_TEXTS = ("", "?", "NA", "N/A", "n/a", "#N/A", "<NA>", "NULL", "null", "NaN", "nan")
"""Texts that mean "missing" in every source."""

MISSING_CATEGORY = "(missing)"
"""Name of the category that missing texts get if a source may have missing values."""


@dataclass(frozen=True)
class Missing:
    """The marks that mean "missing" in a source, and whether its features may be missing.

    ``value in missing`` is true for a text or number that is such a mark.

    Parameters
    ----------
    marks : tuple of str
        Marks in addition to `MISSING_TEXTS`. A mark that reads as a number matches every spelling
        of that number.
    allowed : bool, default=False
        Whether a feature may be missing. A missing number is NaN then, and a missing text gets the
        category `MISSING_CATEGORY`.
    """

    marks: tuple[str, ...] = ()
    allowed: bool = False

    @cached_property
    def numbers(self) -> tuple[float, ...]:
        """The marks that read as finite numbers."""
        found = (parse_number(mark) for mark in self.marks)
        return tuple(number for number in found if number is not None and math.isfinite(number))

    @cached_property
    def _texts(self) -> frozenset[str]:
        """All texts that mean "missing": `MISSING_TEXTS` and the marks."""
        return frozenset((*MISSING_TEXTS, *self.marks))

    def is_mark(self, value: Any) -> bool:
        """Whether a value is one of `marks`; the texts of `MISSING_TEXTS` do not count."""
        if isinstance(value, str):
            value = value.strip()
            if value in self.marks:
                return True
            value = parse_number(value) if self.numbers else None
        return value is not None and value in self.numbers

    def __contains__(self, value: object) -> bool:
        """Whether a text is in `MISSING_TEXTS`, or a text or number is one of the marks."""
        return (isinstance(value, str) and value in self._texts) or self.is_mark(value)

    def find_marks(self, values: NDArray[Any]) -> NDArray[np.bool_]:
        """Return a mask, of the shape of `values`, of the numbers that mean "missing"."""
        out = np.zeros(values.shape, bool)
        with np.errstate(over="ignore"):
            for number in self.numbers:
                # A float32 table may have been widened to float64: match the rounded mark, too.
                out |= (values == number) | (values == float(np.float32(number)))
        return out


def as_marks(given: Sequence[Any]) -> list[str]:
    """Convert marks to distinct texts; `given` is one text or number, or a sequence of them."""
    many = [given] if isinstance(given, (str, int, float)) else given
    return list(dict.fromkeys(str(mark).strip() for mark in many))
