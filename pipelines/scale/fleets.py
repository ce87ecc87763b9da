"""Worker processes for measurements of a fleet, and the counting of what a fit asks of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bigscreen.fleet.cluster import Cluster
from bigscreen.fleet.connecting import connect
from bigscreen.fleet.tuning import CLUSTER
from bigscreen.fleet.worker import WORKER_ENVIRONMENT
from bigscreen.solvers.newton.tuning import NEWTON


@contextmanager
def workers_of_their_own(n: int, work: Path) -> Iterator[Cluster]:
    """Start a scheduler and workers of one thread each, in other processes than this one."""
    file = work / f"scheduler-{n}.json"
    python = [sys.executable, "-m"]
    of = ["--scheduler-file", str(file), "--no-dashboard"]
    many = ["--nworkers", str(n), "--nthreads", "1", "--local-directory", str(work)]
    commands = [
        [*python, "distributed.cli.dask_scheduler", "--port", "0", *of],
        [*python, "distributed.cli.dask_worker", *of, *many],
    ]
    environment = os.environ | WORKER_ENVIRONMENT
    started = [
        subprocess.Popen(command, stderr=subprocess.DEVNULL, env=environment)
        for command in commands
    ]
    try:
        while not file.exists() and started[0].poll() is None:
            time.sleep(0.1)
        with connect(json.loads(file.read_text())["address"]) as fleet:
            while fleet.workers < n:
                time.sleep(0.1)
            yield fleet
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait()


def connect_sharing(fleet: Cluster, machines: int) -> Cluster:
    """Connect to the workers of a fleet; hosts share totals from this many machines on."""
    return connect(fleet.address, tuning=replace(CLUSTER, min_sharing_machines=machines))


@contextmanager
def count_requests(kind: type) -> Iterator[Counter[str]]:
    """Count what fits on a kind of fleet ask of it: the counts do not depend on its workers.

    Seconds of this process are counted separately: in starts, in rounds, and in passes of tasks.
    """
    counts: Counter[Any] = Counter()
    one_start, one_round, one_pass = kind.start, kind.round, kind.each  # type: ignore[attr-defined]
    band = 0

    def start(self: Any, program: Any, n_shards: int) -> None:
        began = time.process_time()
        one_start(self, program, n_shards)
        counts["seconds in starts"] += time.process_time() - began  # type: ignore[assignment]
        counts["starts"] += 1

    def run_round(self: Any, message: dict[str, Any]) -> Any:
        nonlocal band
        began = time.process_time()
        stack, totals = one_round(self, message)
        counts["seconds in rounds"] += time.process_time() - began  # type: ignore[assignment]
        band = _count_rows(counts, message, stack, totals, band)
        return stack, totals

    def run_pass(self: Any, function: Any, items: Any, in_flight: int | None = None) -> Any:
        answers = one_pass(self, function, items, in_flight)
        while True:
            began = time.process_time()
            answer = next(answers, counts)
            counts["seconds in tasks"] += time.process_time() - began  # type: ignore[assignment]
            if answer is counts:
                return
            counts["tasks"] += 1
            yield answer

    kind.start, kind.round, kind.each = start, run_round, run_pass  # type: ignore[attr-defined]
    try:
        yield counts
    finally:
        before = one_start, one_round, one_pass
        kind.start, kind.round, kind.each = before  # type: ignore[attr-defined]


def _count_rows(
    counts: Counter[str], message: dict[str, Any], stack: Any, totals: Any, band: int
) -> int:
    """Count one round of the Newton solver; return the rows in the smoothing band after it."""
    what, large = message["kind"], "moment" in totals
    counts["rounds"] += 1
    counts[f"rounds: {what}"] += 1
    counts["large rounds"] += large
    counts["vector bytes"] += stack.nbytes
    counts["total bytes"] += sum(total.nbytes for total in totals.values())
    counts["message bytes"] += sum(v.nbytes for v in message.values() if isinstance(v, np.ndarray))
    if what == "trial" and not message.get("scored"):
        counts["rows scored"] += int(stack[:, 0].sum())
    elif what in ("accept", "gradient"):
        band = int(stack[:, -2].sum())
        counts["rows scored"] += band
        counts["rows squared"] += band // message["stride"] if large else 0
    elif what == "product":
        m = len(message["coef"])
        counts["rows multiplied"] += min(band, int(NEWTON.hessian_rows(wide=False) * m))
    return band
