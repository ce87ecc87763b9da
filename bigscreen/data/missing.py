"""What says in a source that a value is missing: texts, and numbers that stand for none."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.data.texts import exact_number

MISSING = ("", "?", "NA", "N/A", "n/a", "#N/A", "<NA>", "NULL", "null", "NaN", "nan")
"""Texts that say that a value is missing, in every source."""

ABSENT = "(missing)"
"""The category of texts that are missing, where they may be."""


@dataclass(frozen=True)
class Missing:
    """The marks of missing values in a source, and whether there may be any.

    ``text in missing`` says whether a text, or a number, is such a mark.

    Parameters
    ----------
    marks : tuple of str
        Beside `MISSING`. One that reads as a number is that number, however it is written.
    allowed : bool, default=False
        Whether a feature may be missing: a number is NaN then, a text the category `ABSENT`.
    """

    marks: tuple[str, ...] = ()
    allowed: bool = False

    @cached_property
    def numbers(self) -> tuple[float, ...]:
        """The marks that are numbers."""
        found = (exact_number(mark) for mark in self.marks)
        return tuple(number for number in found if number is not None and math.isfinite(number))

    @cached_property
    def _texts(self) -> frozenset[str]:
        return frozenset((*MISSING, *self.marks))

    def marked(self, value: Any) -> bool:
        """Whether a value is one of `marks`, those that every source has left aside."""
        if isinstance(value, str):
            value = value.strip()
            if value in self.marks:
                return True
            value = exact_number(value) if self.numbers else None
        return value is not None and value in self.numbers

    def __contains__(self, value: object) -> bool:
        return (isinstance(value, str) and value in self._texts) or self.marked(value)

    def holes(self, values: NDArray[Any]) -> NDArray[np.bool_]:
        """Where numbers are marks, of the shape of `values`."""
        out = np.zeros(values.shape, bool)
        with np.errstate(over="ignore"):
            for number in self.numbers:
                # (Tables of float32 may have come as float64.)
                out |= (values == number) | (values == float(np.float32(number)))
        return out


def as_marks(given: Sequence[Any]) -> list[str]:
    """Marks as texts, each once; they may be given as numbers, or as one text."""
    many = [given] if isinstance(given, (str, int, float)) else given
    return list(dict.fromkeys(str(mark).strip() for mark in many))
