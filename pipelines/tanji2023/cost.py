"""Estimates what the paper's protocol takes on this machine: hours, and rows that fit in memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import psutil

from pipelines.tanji2023 import columns, sets


class Probe(NamedTuple):
    """The trial run of every set, which measures this machine's speed."""

    rows: int = 10_000
    landmarks: int = 400


PROBE = Probe()


FEATURE_BYTES = 16
"""Bytes per row and landmark at most: float32 features, LIBLINEAR's float64 copy, and spare."""

MEMORY_SHARE = 0.7
"""Part of the free memory that a set may take."""

EIGEN_SECONDS = 6e-10
"""Seconds of the landmarks' eigendecomposition per m^3 (measured: m = 2,000 to 5,000)."""

Solve = Callable[[columns.Split], dict[str, dict[str, float]]]


class Cost(NamedTuple):
    """The cost of one set: rows and landmarks, seconds of a split, and bytes."""

    name: str
    rows: int
    landmarks: int
    seconds: float
    bytes: float


def that_fits(
    task: sets.Task, landmarks: int, free_bytes: float | None = None, least: int = PROBE.rows
) -> sets.Task:
    """Draw as many rows of a task as have features that fit into the free memory.

    ``free_bytes``: default, of this machine; ``least``: draw at least this many rows.
    """
    free = psutil.virtual_memory().available if free_bytes is None else free_bytes
    return task.first(max(least, int(MEMORY_SHARE * free / (FEATURE_BYTES * landmarks))))


def cost(
    task: sets.Task,
    landmarks: int,
    exact_rows: int,
    solve: Solve,
    probe: Probe = PROBE,
    split: Callable[..., Any] = columns.split,
) -> Cost:
    """Time a split of a few rows and landmarks, and extrapolate.

    Features and solvers on them take as long as rows times landmarks, the exact machine, which has
    no more than ``exact_rows``, as rows squared. An estimate: solvers that stop by their accuracy
    may go on for longer on more rows.
    """
    n = len(task.y)
    few, m = task.first(probe.rows), min(probe.landmarks, landmarks)
    began = time.perf_counter()
    one = split(few, m, 0, 5, 0)
    made = time.perf_counter() - began
    found = solve(one)
    rows, width = n / len(few.y), landmarks / m
    depth = (task.X.shape[1] + landmarks) / (task.X.shape[1] + m)
    seconds = made * rows * width * depth + EIGEN_SECONDS * landmarks**3
    for name, run in found.items():
        took = run["seconds"] + run.get("certify", 0.0)
        if not name.startswith("exact"):
            seconds += took * rows * width
        elif 0.8 * n <= exact_rows:
            seconds += took * rows**2
    data: Any = task.X
    held = data.nbytes if hasattr(data, "nbytes") else data.data.nbytes + data.indices.nbytes
    return Cost(task.name, n, landmarks, seconds, held + FEATURE_BYTES * n * landmarks)


def sentence(costs: list[Cost], splits: int) -> str:
    """Say in a sentence what the protocol will cost."""
    each = "; ".join(
        f"{one.name} {one.rows:,} rows, m = {one.landmarks:,}: {splits} x {one.seconds:,.0f} s, up "
        f"to {one.bytes / 2**30:.1f} GiB"
        for one in costs
    )
    hours = splits * sum(one.seconds for one in costs) / 3600
    return (
        f"about {hours:.1f} hours of this machine, by a split of {PROBE.rows:,} rows of each "
        f"(a factor of 3 either way): {each}"
    )
