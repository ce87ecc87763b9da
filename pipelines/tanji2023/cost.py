"""Estimates what the paper's protocol takes on this machine: hours, and rows that fit in memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import psutil

from pipelines.tanji2023 import columns, sets

PROBE_ROWS, PROBE_LANDMARKS = 10_000, 400
"""Rows and landmarks of the trial run of every set, which measures this machine's speed."""

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


def that_fits(task: sets.Task, landmarks: int) -> sets.Task:
    """Draw as many rows of a task as have features that fit into the free memory."""
    room = MEMORY_SHARE * psutil.virtual_memory().available
    return task.first(max(PROBE_ROWS, int(room / (FEATURE_BYTES * landmarks))))


def cost(task: sets.Task, landmarks: int, exact_rows: int, solve: Solve) -> Cost:
    """Time a split of a few rows and landmarks, and extrapolate.

    Features and solvers on them take as long as rows times landmarks, the exact machine, which has
    no more than ``exact_rows``, as rows squared. An estimate: solvers that stop by their accuracy
    may go on for longer on more rows.
    """
    n = len(task.y)
    few, m = task.first(PROBE_ROWS), min(PROBE_LANDMARKS, landmarks)
    began = time.perf_counter()
    one = columns.split(few, m, 0, 5, 0)
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
        f"about {hours:.1f} hours of this machine, by a split of {PROBE_ROWS:,} rows of each "
        f"(a factor of 3 either way): {each}"
    )
