"""The overhead of a round by a fleet's hosts (Dask actors), compared with Dask futures.

    python -m pipelines.scale.rounds [--workers 1 2 4 8] [--rounds 40] [--out FOLDER]

Every worker answers with one small vector, or with a matrix of 1,000 x 1,000. The matrices are sent
to the coordinator, or summed among the hosts, as on more than one machine. Futures are pinned to
their workers, which hold state. Nothing is computed: only communication is timed. Printed: medians
of wall time, and means of the coordinator's processor time.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client

from bigscreen.fleet.cluster import Cluster
from bigscreen.fleet.shards import Arrays, Totals
from pipelines.bench import common
from pipelines.scale.fleets import connect_sharing, workers_of_their_own

WIDE = (1000, 1000)


class Idle:
    """A shard that computes nothing: it answers a message with a vector, or with a matrix."""

    def open(self, shard: int) -> None:
        """No state."""

    def step(self, state: None, message: dict[str, Any], totals: Totals) -> np.ndarray:
        if message["wide"]:
            totals["moment"] = np.ones(WIDE, np.int64)
        return message["w"][:2]

    def save(self, state: None) -> Arrays:
        return {}

    def load(self, shard: int, arrays: Arrays) -> None:
        """No state."""


def idle(w: np.ndarray, wide: bool) -> tuple[np.ndarray, np.ndarray | None]:
    """Answer a message as a Dask task."""
    return w[:2], np.ones(WIDE, np.int64) if wide else None


def timed(one: Callable[[], object], rounds: int) -> dict[str, float]:
    """Measure a round: milliseconds of wall time, and of this process's processor time."""
    one()
    walls, own = [], time.process_time()
    for _ in range(rounds):
        began = time.perf_counter()
        one()
        walls.append(time.perf_counter() - began)
    spent = (time.process_time() - own) / rounds
    return {"wall_ms": 1e3 * statistics.median(walls), "coordinator_ms": 1e3 * spent}


def both(fleet: Cluster, rounds: int) -> dict[str, dict[str, float]]:
    """Time all four kinds of rounds."""
    w, found = np.ones(1000), {}
    with Client(fleet.address, security=fleet.security, set_as_default=False) as client:
        workers = list(client.nthreads())

        def futures(wide: bool) -> None:
            asked = [client.submit(idle, w, wide, workers=[at], pure=False) for at in workers]
            for _, part in client.gather(asked):
                if wide:
                    total[...] += part

        def hosts(machines: int, message: dict[str, Any]) -> dict[str, float]:
            with connect_sharing(fleet, machines) as connected:
                connected.start(Idle(), len(workers))
                return timed(lambda: connected.round(message), rounds)

        total = np.zeros(WIDE, np.int64)
        for wide in (False, True):
            what = "a matrix" if wide else "a vector"
            message = {"w": w, "wide": wide}
            found[f"hosts, {what}"] = hosts(1 << 30, message)
            if wide:
                found[f"hosts, {what}, shared"] = hosts(1, message)
            found[f"futures, {what}"] = timed(lambda v=wide: futures(v), rounds)
    return found


def main() -> None:
    """Time, print the table, write the record."""
    parser = common.arguments(__doc__.partition("\n")[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 8], metavar="N")
    parser.add_argument("--rounds", type=int, default=40, metavar="N")
    given = parser.parse_args()
    with common.work_folder(given.work) as work:
        record = measured(work, given.workers, given.rounds)
    rows = [
        (w, what, f"{found['wall_ms']:.1f}", f"{found['coordinator_ms']:.2f}")
        for w, kinds in record.items()
        for what, found in kinds.items()
    ]
    common.show("Rounds", ("workers", "round", "ms", "coordinator's cpu ms"), rows)
    common.save(given.out, "rounds", {"rounds": given.rounds, "workers": record})


def measured(work: Path, workers: list[int], rounds: int) -> dict[int, dict[str, dict[str, float]]]:
    """Time all rounds for every number of workers."""
    found = {}
    for w in workers:
        with workers_of_their_own(w, work) as fleet:
            found[w] = both(fleet, rounds)
    return found


if __name__ == "__main__":
    main()
