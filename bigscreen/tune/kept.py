"""The work folder of a search: a file for each fold of each group of every rung."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bigscreen.data.rows import Rows
from bigscreen.files.sealed import Arrays, digest, read_sealed, write_sealed
from bigscreen.files.work import owned
from bigscreen.fleet.protocol import Fleet
from bigscreen.train.job import rely_on
from bigscreen.tune.options import TuneOptions

Pair = tuple[int | None, float]
"""Landmarks and gamma."""

Unit = tuple[Pair, int]
"""A fold of these."""

Solved = tuple[list[dict[str, Any]], Arrays]
"""Records of a fold's points, and their machines."""


class KeptParts:
    """What a search has solved, kept for a run that resumes it; nothing without a work folder."""

    def __init__(self, options: TuneOptions, data: Rows) -> None:
        self.work, self.resume, self.data = options.fit.work, options.fit.resume, data
        self._known = {**options.record, "data": data.fingerprint} if self.work else {}
        self._of = digest(self._known)

    @contextmanager
    def held(self, fleet: Fleet) -> Iterator[None]:
        """Hold the folder against other processes, and have those workers alone that see it."""
        if self.work is None:
            rely_on(fleet, self.data, None)
            yield
            return
        with owned(self.work, self._known, self.resume, "search", "rung-*"):
            rely_on(fleet, self.data, self.work)
            yield

    def write(
        self,
        r: int,
        unit: Unit,
        values: list[float],
        records: list[dict[str, Any]],
        arrays: Arrays,
    ) -> None:
        """Keep a fold of a group."""
        if self.work is None:
            return
        of, path = self._place(self.work, r, unit)
        path.parent.mkdir(exist_ok=True)
        write_sealed(path, of, {"values": values, "points": records}, arrays, durable=False)

    def read(self, r: int, unit: Unit, values: list[float]) -> Solved | None:
        """What the run that is resumed has kept of a fold of a group."""
        if self.work is None or not self.resume:
            return None
        of, path = self._place(self.work, r, unit)
        found = read_sealed(path, of)
        if found is None or found[0]["values"] != values:
            return None
        return found[0]["points"], found[1]

    def _place(self, work: Path, r: int, unit: Unit) -> tuple[str, Path]:
        (landmarks, gamma), f = unit
        name = f"{landmarks or 'exact'}-{gamma!r}-fold-{f}"
        return f"{self._of}/{r}/{name}", work / f"rung-{r}" / f"{name}.kept"


def worst_of(records: list[dict[str, Any]]) -> dict[str, Any]:
    """The largest relative gap of points' records, None where one has none."""
    gaps = [one["relative_gap"] for one in records]
    return {"relative_gap": None if None in gaps else max(gaps)}
