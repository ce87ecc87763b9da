"""Errors for users' mistakes, and helpers to word them."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any


class InputError(ValueError):
    """Bad input: a file, a parameter or a store that cannot be used as given.

    The message is one sentence for a person: what is wrong, where (file, line or row), what to do.
    The command line prints it and exits with code 2. Messages name options in backticks in their
    Python form, such as ``drop`` or ``decimal=','``; the command line replaces them by its own
    form (``--drop``, ``--decimal ,``).
    """


class NoRows(InputError):
    """A source has no rows; if there are other sources it is skipped."""


class NoLabels(InputError):
    """A source of numbers says nothing of labels: no file, column or array of them is named."""


class MissingValue(InputError):
    """A feature value is missing, and nothing says what stands for it.

    Attributes
    ----------
    place : str
        Where: file, line and column.
    """

    place = ""

    @classmethod
    def at(cls, place: str, advice: str) -> MissingValue:
        """Make the error for a value that is missing at ``place``; ``advice``: what to do."""
        error = cls(f"{place}: the value is missing; {advice}.")
        error.place = place
        return error


class TimeOver(InputError):
    """The time budget ended before there was a result.

    Finished work stays in the work folder, if there is one, for a fit that resumes.
    """


class DeviceFailed(InputError):
    """A device failed during a fit, or had too little memory left.

    Finished work stays in the work folder, if there is one, for a fit that resumes.
    """


class Paused(KeyboardInterrupt):
    """Ctrl-C arrived during a pass over the data, and its work so far was saved if possible.

    Of several concurrent solves the others still finish or save their passes.
    """


def reason_of(error: BaseException) -> str:
    """Describe an error in one line that is never empty."""
    said = " ".join(str(getattr(error, "strerror", None) or error).split())
    if said:
        return said
    if isinstance(error, TimeoutError):
        return "no answer came in time; the machine may be too busy"
    if isinstance(error, MemoryError):
        return "there is not enough memory"
    return f"an error of the type {type(error).__name__}, which says nothing more"


def is_number(value: Any) -> bool:
    """Whether a parameter is a single finite number, not a text, an array or None."""
    return isinstance(value, Real) and math.isfinite(value)


def in_units(count: float) -> str:
    """Format a number of bytes in GiB or MiB, fine enough that the terms of a sum add up."""
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
