"""Independent items, compared with a graph that adds up their results on the workers.

    python -m pipelines.scale.items [--workers 2 8] [--items 300] [--out FOLDER]

Each item returns a vector of 1,001 numbers, as a shard does in a closing pass over 1,000 landmarks;
the function has 8 MB of data. Two ways to the sum in a fixed order: `Cluster.each`, whose tasks
depend on nothing and whose results the coordinator adds; and a graph whose tasks depend on the task
that makes the function, and whose results are added on workers, eight at a time to the sum before
them. Printed: wall time and the coordinator's processor time for each item, and the wall time of 5
items of 0.2 s for each worker, with and without.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from distributed import Client

from bigscreen.fleet.cluster import Cluster
from pipelines.bench import common
from pipelines.scale.fleets import workers_of_their_own

WIDTH, FAN_IN, LONG_SECONDS = 1001, 8, 0.2


class Vector:
    """The function of the items: it waits, and returns a vector."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.data = seconds, np.zeros(2**20)

    def __call__(self, item: int) -> np.ndarray:
        time.sleep(self.seconds)
        return np.full(WIDTH, float(item))


def load(function: Vector) -> Vector:
    """Return the function, as the task on which others depend."""
    return function


def call(function: Vector, item: int) -> np.ndarray:
    """Return the function of an item, as a task."""
    return function(item)


def add(total: Any, *parts: np.ndarray) -> Any:
    """Add parts to a total from left to right, as a task or here."""
    return sum(parts, total)


def by_items(fleet: Cluster, client: Client, function: Vector, items: int) -> Any:
    """Sum an item at a time, in the coordinator."""
    return add(0.0, *fleet.each(function, range(items)))


def by_graph(fleet: Cluster, client: Client, function: Vector, items: int) -> Any:
    """Sum eight items at a time, on workers."""
    made, total = client.submit(load, function, pure=False), 0.0
    for start in range(0, items, FAN_IN):
        part = range(start, min(start + FAN_IN, items))
        parts = client.map(call, [made] * len(part), part, pure=False)
        total = client.submit(add, total, *parts, pure=False)
    return total.result()


WAYS: dict[str, Callable[..., Any]] = {"items": by_items, "graph": by_graph}


def main() -> None:
    """Time both ways alternately, print the table, write the record."""
    parser = common.arguments(__doc__.partition("\n")[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 8], metavar="N")
    parser.add_argument("--items", type=int, default=300, metavar="N")
    given = parser.parse_args()
    record = {}
    with common.work_folder(given.work) as work:
        for w in given.workers:
            with workers_of_their_own(w, work) as fleet:
                record[w] = compared(fleet, given.items)
    rows = [
        (w, way, f"{one['wall_ms']:.2f}", f"{one['coordinator_ms']:.2f}", f"{one['long_s']:.2f}")
        for w, ways in record.items()
        for way, one in ways.items()
    ]
    long = f"s for {5 * LONG_SECONDS:g} s of work"
    common.show("Items", ("workers", "way", "ms", "coordinator's cpu ms", long), rows)
    common.save(given.out, "items", {"items": given.items, "workers": record})


def compared(fleet: Cluster, items: int) -> dict[str, dict[str, float]]:
    """Time both ways, the best of three rounds by turns."""
    found: dict[str, dict[str, float]] = {way: {} for way in WAYS}
    with Client(fleet.address, security=fleet.security, set_as_default=False) as client:
        for _ in range(3):
            for way, run in WAYS.items():
                began, own = time.perf_counter(), time.process_time()
                run(fleet, client, Vector(0.0), items)
                now = {
                    "wall_ms": 1e3 * (time.perf_counter() - began) / items,
                    "coordinator_ms": 1e3 * (time.process_time() - own) / items,
                }
                began = time.perf_counter()
                run(fleet, client, Vector(LONG_SECONDS), 5 * fleet.workers)
                now["long_s"] = time.perf_counter() - began
                found[way] = {k: min(v, found[way].get(k, v)) for k, v in now.items()}
    return found


if __name__ == "__main__":
    main()
