"""The time left of a run, as a range: how long what is left to do takes at the speeds it had."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

RECORDS, DONE = 8, 0.03
"""So many records, and so much done of what there was to do: before that nothing is said."""
PARTS = (0.5, 0.25)
"""The latest parts of the time so far whose speeds are looked at."""
QUICKENS = 1.2
"""The power of the time with which what is done grows, from which on it is taken to quicken."""
SOONER, LATER, SLOWS = 0.5, 1.3, 2.0
"""What the ends of a range are multiplied with, the upper one by the last where speed falls."""
WIDEST = 8.0
"""A range whose ends differ by more says nothing."""
SHORTEST = 5.0
"""Seconds below which nobody asks."""
MOST = 512
"""Records of a run that are kept, from its first to its last."""
UNITS = ((1, 5, "s"), (60, 1, "min"), (3600, 1, "h"), (86400, 1, "days"))
"""Seconds of a unit, and how many of it are told apart."""


def remaining(records: Sequence[tuple[float, float]]) -> tuple[float, float] | None:
    """Seconds that are left, at least and at most; None while nobody can tell.

    What goes on evenly is done when the latest speed says. The gap of a solver does not: its
    logarithm falls ever faster, as an exponential at best, as a power of the time at least.

    Parameters
    ----------
    records : sequence of (seconds, left)
        When so much was left to do: parts, bytes, or the logarithm of the gap over the gap that is
        asked for. It is done when 0 are left. What is left may grow now and then: the least so far
        counts.
    """
    least, found = math.inf, []
    for when, left in records:
        least = min(least, left)
        found.append((when, least))
    if len(found) < RECORDS or least <= 0:
        return None
    (began, whole), (now, left) = found[0], found[-1]
    took, done = now - began, whole - left
    if took <= 0 or done < DONE * whole:
        return None
    lows, highs = [], []
    for part in PARTS:
        before = whole - _left_at(found, now - part * took)
        if not 0 < before < done:
            return None  # it stands still, or stood still
        growth, more = math.log(done / before), math.log(whole / done)
        power = -growth / math.log(1 - part)
        evenly = left * part * took / (done - before)
        as_power = took * math.expm1(min(more / power, 100.0))
        if power > QUICKENS:
            lows.append(more * part * took / growth)
            highs.append(as_power)
        else:
            lows.append(min(evenly, as_power))
            slower = SLOWS / LATER if power * QUICKENS < 1 else 1.0
            highs.append(slower * max(evenly, as_power))
    low, high = SOONER * min(lows), LATER * max(highs)
    return (low, high) if SHORTEST <= high <= WIDEST * low else None


def _left_at(records: Sequence[tuple[float, float]], when: float) -> float:
    """What was left at a time between the first record and the last."""
    before = records[0]
    for record in records:
        if record[0] >= when:
            share = (when - before[0]) / (record[0] - before[0]) if record[0] > before[0] else 1.0
            return before[1] + share * (record[1] - before[1])
        before = record
    return before[1]


class TimeLeft:
    """The ranges of `remaining` for the events of a run, each of the count or gap that it tells of.

    Of passes there is one if the run solves one problem: how long others take is not known.

    Parameters
    ----------
    clock : callable
        Seconds from some time on.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._records: dict[str, list[tuple[float, float]]] = {}
        self._parts = 0

    def __call__(self, event: Mapping[str, Any]) -> tuple[float, float] | None:
        """Take an event; seconds that are left, at least and at most, or None."""
        if event["event"] == "rung":
            self._parts = event["parts"]
        left = self._left(event)
        if left is None:
            return None
        anew = event.get("pass") == 1
        found = self._take(left, anew)
        if event["event"] == "pass":
            # It ends with the last pass that is allowed, too.
            end = self._take(("passes", float(event["max_iter"] - event["pass"])), anew)
            if found and end:
                found = min(found[0], end[0]), min(found[1], end[1])
        return found

    def _take(self, told: tuple[str, float], anew: bool) -> tuple[float, float] | None:
        """Take what is left of something; less than before, or it has begun anew."""
        of, left = told
        records = self._records.setdefault(of, [])
        if anew or (of != "gap" and records and left > records[-1][1]):
            records.clear()
        records.append((self._clock(), left))
        if len(records) > MOST:
            del records[1:-1:2]
        return remaining(records)

    def _left(self, event: Mapping[str, Any]) -> tuple[str, float] | None:
        """What an event tells of, and how much of it is left."""
        what = event["event"]
        if what == "pass":
            gap = event.get("violation") or event["relative_gap"]
            # (Rounding can leave a gap below 0.)
            if event.get("problems") != 1 or not 0 < gap < math.inf:
                return None
            return "gap", max(0.0, math.log(gap / event["tol"]))
        if what == "part":
            return f"rung {event['rung']}", self._parts - event["done"]
        if what == "ingest":
            unit = "bytes" if event["phase"] == "read" else "rows"
            whole = event[f"{unit}_total"]
            return (event["phase"], whole - event[unit]) if whole else None
        if "total" in event:
            return event.get("phase", what), event["total"] - event["done"]
        return None


def in_words(left: Sequence[float] | None, since: float = 0.0) -> str:
    """A range that was found some seconds ago for people, such as "2 to 5 min left"; "" of none."""
    if left is None or left[1] <= since:
        return ""
    low, high = max(0.0, left[0] - since), left[1] - since
    unit, step, name = next(one for one in UNITS if high < 100 * one[0] or one is UNITS[-1])
    ends = (step * math.floor(low / (unit * step)), step * math.ceil(high / (unit * step)))
    if not ends[0]:
        return f"up to {ends[1]} {name} left"
    same = ends[0] == ends[1]
    return f"about {ends[1]} {name} left" if same else f"{ends[0]} to {ends[1]} {name} left"


class Left:
    """The range of an event, in words that are of the moment at which they are asked for."""

    def __init__(self, event: Mapping[str, Any]) -> None:
        self._range, self._since = event.get("seconds_left"), time.monotonic()

    def after(self, line: str) -> str:
        """A line that ends with these words, if there are any."""
        return f"{line}  {self}".rstrip()

    def __str__(self) -> str:
        return in_words(self._range, time.monotonic() - self._since)
