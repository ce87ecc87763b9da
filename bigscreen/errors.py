"""What a user's mistake raises: one sentence that says what is wrong, where, and what to do."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any


class InputError(ValueError):
    """Bad input: a file, a parameter or a store that cannot be used as given.

    The message is one sentence for a person: what is wrong, where (file, line or row), what to do.
    The command line prints it and exits with code 2. Options stand between backticks as
    Python has them, alone (`` `drop` ``) or with a value (`` `decimal=','` ``); the command line
    prints its own for them (``--drop``, ``--decimal ,``).
    """


class NoRows(InputError):
    """A source without any row: next to other sources it is skipped."""


class TimeOver(InputError):
    """The time budget ended before there was a result: give more time, or resume.

    What is done until then stays in the work folder, if there is one.
    """


class Paused(KeyboardInterrupt):
    """Ctrl-C was heard within a pass: of several solves at once, the others still end theirs."""


def reason_of(error: BaseException) -> str:
    """Say why something failed, in words of one line that are never empty."""
    said = " ".join(str(getattr(error, "strerror", None) or error).split())
    if said:
        return said
    if isinstance(error, TimeoutError):
        return "no answer came in time; the machine may be too busy"
    if isinstance(error, MemoryError):
        return "there is not enough memory"
    return f"an error of the type {type(error).__name__}, which says nothing more"


def is_number(value: Any) -> bool:
    """Whether a parameter is one finite number: no text, array or None."""
    return isinstance(value, Real) and math.isfinite(value)


def in_units(count: float) -> str:
    """Bytes for a sentence: the parts of a sum have to add up as they are read."""
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
