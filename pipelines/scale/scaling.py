"""Costs of a fit on 1, 2, 4 and 8 worker processes, and a prediction for 64 and 1,000.

    python -m pipelines.scale.scaling [--workers 1 2 4 8] [--rows 200000] [--landmarks 1000]
                                      [--out FOLDER]

Strong scaling: the same rows for any number of workers; weak: rows in proportion to the workers, as
many as asked for with the most of them. Rows of SUSY's shape, made up. Every fit runs twice: large
totals (second moments of m x m) sent to the coordinator by every host, and added up by the hosts
themselves, a part of everybody's each. The machines are compared bit for bit.

More workers than cores take turns, so that what counts is processor seconds (of all workers, and of
the coordinator; the scheduler is a process of its own), bytes that the coordinator receives, and
calls. What the coordinator's part of a round costs, by round, by call and by byte, is fitted to all
of these fits (least squares, nothing negative), and so are the workers' seconds by row and by
worker. From these and a network of 10 Gbit/s follows the time of the same fit of 5,000,000 rows on
more workers than are here.
"""

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
from distributed import Client
from scipy.optimize import nnls

from bigscreen.data.dataset import Dataset
from bigscreen.data.synthetic import susy_like
from bigscreen.fleet import hosts
from bigscreen.fleet.cluster import Cluster
from bigscreen.fleet.connecting import connect
from bigscreen.fleet.tuning import CLUSTER
from bigscreen.fleet.worker import WORKER_ENVIRONMENT
from bigscreen.intake.ingest import ingest
from bigscreen.options.train import TrainOptions
from bigscreen.options.tuning import Tuning
from bigscreen.report import certificate
from bigscreen.train.run import train
from pipelines.bench import common

NETWORK = 1.25e9
"""Bytes per second that a machine sends or receives: 10 Gbit/s."""

FULL_ROWS = 5_000_000
PREDICTED = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000)
TOLD = (8, 64, 1000)
SHARED = "shared by the hosts"
WAYS = {"each to the coordinator": 1 << 30, SHARED: 1}
"""The ways to add up totals, and `ClusterTuning.min_sharing_machines` for each."""


def size(answer: Any) -> int:
    """Count the bytes of the arrays in an answer."""
    if isinstance(answer, np.ndarray):
        return answer.nbytes
    if isinstance(answer, dict):
        return sum(map(size, answer.values()))
    return sum(map(size, answer)) if isinstance(answer, list | tuple) else 0


@contextmanager
def workers_of_their_own(n: int, work: Path) -> Iterator[Cluster]:
    """Start a scheduler and workers of one thread each, in other processes than this one."""
    file = work / f"scheduler-{n}.json"
    start = [sys.executable, "-m"]
    of = ["--scheduler-file", str(file), "--no-dashboard"]
    many = ["--nworkers", str(n), "--nthreads", "1", "--local-directory", str(work)]
    commands = [
        [*start, "distributed.cli.dask_scheduler", "--port", "0", *of],
        [*start, "distributed.cli.dask_worker", *of, *many],
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


def sharing(fleet: Cluster, machines: int) -> Cluster:
    """Connect to the workers of a fleet; hosts share totals from this many machines on."""
    return connect(fleet.address, tuning=replace(CLUSTER, min_sharing_machines=machines))


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Count rounds, calls, bytes and the coordinator's seconds."""
    counts: Counter[str] = Counter()
    ask_each, one_round = hosts.Seats.ask_each, Cluster.round

    def asked(self: Any, calls: Any, method: str) -> Any:
        answers = ask_each(self, calls, method)
        counts["calls"] += len(calls)
        counts["shared"] += method == "add_share"
        counts["bytes"] += sum(map(size, answers.values()))
        return answers

    def timed(self: Any, message: Any) -> Any:
        wall, own = time.perf_counter(), time.process_time()
        found = one_round(self, message)
        counts["rounds"] += 1
        counts["wall"] += time.perf_counter() - wall  # type: ignore[assignment]
        counts["own"] += time.process_time() - own  # type: ignore[assignment]
        return found

    hosts.Seats.ask_each, Cluster.round = asked, timed  # type: ignore[method-assign]
    try:
        yield counts
    finally:
        hosts.Seats.ask_each, Cluster.round = ask_each, one_round  # type: ignore[method-assign]


def fitted(
    fleet: Cluster, store: Dataset, landmarks: int, machines: int
) -> tuple[dict[str, Any], bytes]:
    """Run one fit; return its costs and its machine."""
    how = {"kernel": "rbf", "gamma": 1 / 32, "C": 1.25, "tuning": Tuning(features="recomputed")}
    with Client(fleet.address, security=fleet.security, set_as_default=False) as client:
        before, own, began = client.run(time.process_time), time.process_time(), time.perf_counter()
        with sharing(fleet, machines) as connected, counted() as counts:
            model = train(store, TrainOptions(landmarks=landmarks, **how), connected)
        took, own = time.perf_counter() - began, time.process_time() - own
        after = client.run(time.process_time)
    return {
        "rows": store.n_rows,
        "seconds": took,
        "worker_seconds": sum(after[address] - before[address] for address in before),
        "coordinator_seconds": own,
        "coordinator_seconds_in_rounds": counts["own"],
        "rounds": counts["rounds"],
        "rounds_shared": counts["shared"],
        "seconds_a_round": counts["wall"] / counts["rounds"],
        "calls": counts["calls"],
        "bytes_received": counts["bytes"],
        "relative_gap": certificate.fit_record(model)["relative_gap"],
    }, model.coef.tobytes() + model.intercept.tobytes()


def costs_of(fits: list[dict[str, Any]], names: tuple[str, ...], spent: str) -> dict[str, float]:
    """Fit processor seconds to counts by least squares; return costs and the unexplained part."""
    units = np.array([[fit[name] for name in names] for fit in fits], dtype=float)
    seconds, scale = np.array([fit[spent] for fit in fits]), units.max(axis=0)
    found, rest = nnls(units / scale, seconds)
    costs = dict(zip(names, (found / scale).tolist(), strict=True))
    return {**costs, "unexplained": float(rest / np.linalg.norm(seconds))}


def predicted(
    strong: list[dict[str, Any]], costs: dict[str, Any], workers: int, shared: bool
) -> dict[str, float]:
    """Predict the seconds of a fit of `FULL_ROWS` rows, by who spends them."""
    alone, coordinator, hands = strong[0], costs["coordinator"], costs["workers"]
    large = max(fit["rounds_shared"] for fit in strong)  # rounds with large totals
    adding = min(workers, CLUSTER.max_sharing_hosts) if shared and workers > 2 else 0
    each = alone["bytes_received"]  # of every host, if it sends all
    received = each if adding else each * workers
    spent = (
        alone["rounds"] * coordinator["rounds"]
        + (alone["calls"] * workers + large * adding) * coordinator["calls"]
        + received * coordinator["bytes_received"]
    )
    return {
        "workers' sums": hands["rows"] * FULL_ROWS / workers + hands["workers"],
        "coordinator's algebra": alone["coordinator_seconds"]
        - alone["coordinator_seconds_in_rounds"],
        "coordinator's calls and sums": spent,
        "network": (received + (each * workers / adding if adding else 0)) / NETWORK,
    }


def main() -> None:
    """Fit, print the tables, write the record and a plot."""
    parser = common.arguments(__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 8], metavar="N")
    parser.add_argument("--rows", type=int, default=200_000, metavar="N")
    parser.add_argument("--landmarks", type=int, default=1000, metavar="M")
    given = parser.parse_args()
    with common.work_folder(given.work) as work:
        record = measured(work, given.workers, given.rows, given.landmarks)
    shown(record)
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
        plot(record).savefig(given.out / "scaling.png", dpi=120)
    common.save(given.out, "scaling", record)


def measured(work: Path, workers: list[int], rows: int, landmarks: int) -> dict[str, Any]:
    """Run all fits; return them, the model of costs, and its predictions."""
    most = max(workers)
    sizes = {"strong": dict.fromkeys(workers, rows), "weak": {w: rows * w // most for w in workers}}
    stores = {
        n: ingest(susy_like(n, 0), work / f"rows-{n}.store").store
        for n in {4 * landmarks, *sizes["strong"].values(), *sizes["weak"].values()}
    }
    fits: list[dict[str, Any]] = []
    machines: dict[int, set[bytes]] = {}
    for w in workers:
        with workers_of_their_own(w, work) as fleet:
            fitted(fleet, stores[4 * landmarks], landmarks, 1)  # what is compiled is read
            for kind, of in sizes.items():
                for way, least in WAYS.items():
                    found, machine = fitted(fleet, stores[of[w]], landmarks, least)
                    fits.append({"kind": kind, "way": way, "workers": w, **found})
                    machines.setdefault(of[w], set()).add(machine)
    costs = {
        "coordinator": costs_of(
            fits, ("rounds", "calls", "bytes_received"), "coordinator_seconds_in_rounds"
        ),
        "workers": costs_of(fits, ("rows", "workers"), "worker_seconds"),
    }
    strong = sorted((f for f in fits if f["kind"] == "strong"), key=lambda fit: fit["workers"])
    return {
        "landmarks": landmarks,
        "fits": fits,
        "same_bits": all(len(found) == 1 for found in machines.values()),
        "costs": costs,
        "predicted": {
            way: {w: predicted(strong, costs, w, way == SHARED) for w in PREDICTED} for way in WAYS
        },
    }


def shown(record: dict[str, Any]) -> None:
    """Print the tables."""
    heads = ("", "workers", "rows", "large totals", "s", "workers' cpu s", "coordinator's")
    rows = [
        (
            fit["kind"],
            fit["workers"],
            f"{fit['rows']:,}",
            fit["way"],
            f"{fit['seconds']:.1f}",
            f"{fit['worker_seconds']:.1f}",
            f"{fit['coordinator_seconds']:.2f}",
            fit["rounds"],
            f"{1e3 * fit['seconds_a_round']:.0f}",
            f"{fit['bytes_received'] / fit['rounds'] / 2**20:.2f}",
        )
        for fit in record["fits"]
    ]
    common.show("Measured", (*heads, "rounds", "ms each", "MiB received each"), rows)
    print("the same machine bit for bit, however many workers:", record["same_bits"])
    own, hands = record["costs"]["coordinator"], record["costs"]["workers"]
    print(
        f"the coordinator's processor: {1e3 * own['rounds']:.2f} ms a round, "
        f"{1e3 * own['calls']:.2f} ms a call, {1e9 * own['bytes_received']:.2f} ns a byte "
        f"({own['unexplained']:.0%} unexplained)\n"
        f"the workers': {1e6 * hands['rows']:.1f} us a row, {hands['workers']:.2f} s a worker "
        f"({hands['unexplained']:.0%} unexplained)"
    )
    parts = list(record["predicted"][next(iter(WAYS))][TOLD[0]])
    rows = [
        (w, way, *(f"{found[w][part]:.2f}" for part in parts), max(parts, key=found[w].get))
        for w in TOLD
        for way, found in record["predicted"].items()
    ]
    title = f"Predicted: {FULL_ROWS:,} rows, seconds of"
    common.show(title, ("workers", "large totals", *parts, "most"), rows)


def plot(record: dict[str, Any]) -> Any:
    """Plot the predicted seconds by who spends them, for both ways."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    for axes, (way, found) in zip(
        figure.subplots(1, 2, sharey=True), record["predicted"].items(), strict=True
    ):
        for part in found[PREDICTED[0]]:
            axes.loglog(PREDICTED, [found[w][part] for w in PREDICTED], label=part)
        axes.set(title=f"large totals: {way}", xlabel="workers", ylabel="seconds")
    axes.legend()
    return figure


if __name__ == "__main__":
    main()
