"""A model of the time of a fit on many workers: fitted on 1 to 8 processes, checked, extrapolated.

    python -m pipelines.scale.scaling [--workers 1 2 4 8] [--rows 30000 120000]
                                      [--landmarks 300 800] [--full 1.0] [--out FOLDER]

Every row is made up, in SUSY's shape. What a fit asks for (rounds, rows, bytes) does not depend on
the workers and is counted. What each costs is measured in processor seconds, of the workers and of
the coordinator separately: with more processes than cores, wall times would show only that the
processes take turns. The constants are found by least squares of relative errors over fits of two
numbers of rows, two of landmarks, two sizes of shards and all numbers of workers; each has a
standard error, and a constant that is not twice its error is left out. Fits of other sizes, which
the constants have not seen, check the model.

A fit is then modelled as the sum of: the steps of the worker with most shards, ceil(shards /
workers) of them; what each worker does once or for each call; the coordinator's rounds, calls and
bytes; its algebra; the tasks of passes, which coordinator and scheduler deal out one by one; the
network; and the waiting in a round. The requests of the predicted fits are counted in fits on the
threads of this machine. `--full` multiplies their rows.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client

from bigscreen.data.dataset import Dataset
from bigscreen.data.layout import Layout, row_grid
from bigscreen.data.synthetic import susy_like
from bigscreen.data.writer import DatasetWriter
from bigscreen.fleet.cluster import Cluster
from bigscreen.fleet.inline import Inline
from bigscreen.options.train import TrainOptions
from bigscreen.options.tuning import Tuning
from bigscreen.train.run import train
from pipelines.bench import common
from pipelines.scale.fleets import connect_sharing, count_requests, workers_of_their_own
from pipelines.scale.model import Costs, Model, Requests
from pipelines.scale.rounds import Idle

SHAPES = ((5_000_000, 1000), (1_000_000, 300))
"""The predicted fits: rows, and landmarks."""
PREDICTED = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000)
SHOWN = (8, 64, 1000)
COORDINATOR = ("starts", "rounds", "algebra", "tasks")
"""Kinds of seconds that the coordinating process spends, one after the other."""
NEVER = 1 << 30
"""`ClusterTuning.min_sharing_machines` with which hosts never add totals up themselves."""


def write_rows(folder: Path, n: int, shard_rows: int | None = None) -> Dataset:
    """Write rows of SUSY's shape, in shards of this many rows (None: by the size of the data)."""
    shard_rows = shard_rows or row_grid(n, 4 * 18)[0]
    path = folder / f"rows-{n}-{shard_rows}.store"
    if not path.exists():
        layout = Layout.of(
            n_rows=n, n_features=18, sparse=False, labels=[0, 1], weights=False,
            shard_rows=shard_rows,
        )  # fmt: skip
        writer, k = DatasetWriter(path, layout, None), 0
        for X, y in susy_like(n, 0):  # blocks of a power of two, as chunks are
            for a in range(0, len(y), layout.chunk_rows):
                part = slice(a, a + layout.chunk_rows)
                writer.write(k, X[part], y[part])
                k += 1
        writer.finish()
    return Dataset.open(path)


def make_options(landmarks: int) -> TrainOptions:
    """Return the options of every fit: recomputed features, SUSY's usual kernel."""
    how = {"kernel": "rbf", "gamma": 1 / 32, "C": 1.25, "tuning": Tuning(features="recomputed")}
    return TrainOptions(landmarks=landmarks, **how)


def run_fit(fleet: Cluster, store: Dataset, landmarks: int, shared: bool) -> dict[str, Any]:
    """Run one fit on workers; return its requests, what was spent, and its machine."""
    with Client(fleet.address, security=fleet.security, set_as_default=False) as client:

        def spent() -> tuple[float, float, float]:
            workers = sum(client.run(time.process_time).values())
            return workers, client.run_on_scheduler(time.process_time), time.process_time()

        connecting = connect_sharing(fleet, 1 if shared else NEVER)
        with connecting as connected, count_requests(Cluster) as counts:
            before, began = spent(), time.perf_counter()
            model = train(store, make_options(landmarks), connected)
            own, took = time.process_time() - before[2], time.perf_counter() - began
            workers, scheduler = (b - a for a, b in zip(before[:2], spent()[:2], strict=True))
    spent_by = {who: counts.pop(f"seconds in {who}") for who in ("starts", "rounds", "tasks")}
    spent_by["algebra"] = own - sum(spent_by.values())
    spent_by |= {"workers": workers, "scheduler": scheduler}
    requests = Requests(store.n_rows, landmarks, store.n_shards, Counter(counts))
    bits = model.coef.tobytes() + model.intercept.tobytes()
    return {
        "requests": requests,
        "shared": shared,
        "spent": spent_by,
        "seconds": took,
        "bits": bits,
    }


def count_inline(store: Dataset, landmarks: int) -> tuple[Requests, float]:
    """Count what a fit asks for on the threads of this process; return processor seconds, too."""
    with Inline() as fleet, count_requests(Inline) as counts:
        began = time.process_time()
        train(store, make_options(landmarks), fleet)
        spent = time.process_time() - began
    for who in ("starts", "rounds", "tasks"):
        del counts[f"seconds in {who}"]
    return Requests(store.n_rows, landmarks, store.n_shards, Counter(counts)), spent


def measure_waiting(fleet: Cluster, rounds: int = 20, blocks: int = 20) -> float:
    """Measure the seconds of a round of one idle worker in which no processor works for it.

    The quietest tenth of some blocks of rounds counts, as others use the machine.
    """
    with (
        Client(fleet.address, security=fleet.security, set_as_default=False) as client,
        connect_sharing(fleet, NEVER) as connected,
    ):

        def processors() -> float:
            return sum(client.run(time.process_time).values()) + time.process_time()

        connected.start(Idle(), 1)
        found = []
        for _ in range(blocks):
            before, began = processors(), time.perf_counter()
            for _ in range(rounds):
                connected.round({"w": np.ones(1000), "wide": False})
            took = time.perf_counter() - began
            found.append((took - processors() + before) / rounds)
    return max(statistics.quantiles(found, n=10)[0], 0.0)


def measure(
    work: Path, workers: list[int], rows: list[int], landmarks: list[int], full: float = 1.0
) -> dict[str, Any]:
    """Run all fits; return them, the model, its check on other fits, and the predicted fits."""
    sizes = [(n, m, part) for n in rows for m in landmarks for part in (1, 4)]
    middle = int(math.sqrt(rows[0] * rows[-1])), (landmarks[0] + landmarks[-1]) // 2, 1
    fits: list[dict[str, Any]] = []
    waiting = 0.0
    for w in workers:
        with workers_of_their_own(w, work) as fleet:
            small = write_rows(work, 4 * landmarks[-1])
            run_fit(
                fleet, small, landmarks[-1], shared=False
            )  # compiles, or reads what is compiled
            if w == 1:
                waiting = measure_waiting(fleet)
            for n, m, part in [*sizes, middle]:
                store = write_rows(work, n, row_grid(n, 72)[0] // part)
                for shared in (False, True) if part == 1 and w > 2 else (part > 1,):
                    found = run_fit(fleet, store, m, shared)
                    fits.append({"workers": w, "seen": (n, m, part) != middle, **found})
    seen = [fit for fit in fits if fit["seen"]]
    units = [units_of(fit) for fit in seen]
    costs = {
        who: Costs.of([each[who] for each in units], [fit["spent"][who] for fit in seen])
        for who in units[0]
    }
    targets = [count_inline(write_rows(work, int(full * n)), m) for n, m in SHAPES]
    return {"fits": fits, "model": Model(costs, waiting), "targets": targets}


def units_of(fit: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Return the units of a measured fit, by who spends the seconds."""
    return fit["requests"].units(fit["workers"], fit["shared"], fit["seconds"])


def have_same_bits(fits: list[dict[str, Any]]) -> bool:
    """Whether fits of the same rows in the same shards gave the same machine on any workers."""
    machines: dict[Any, set[bytes]] = {}
    for fit in fits:
        requests = fit["requests"]
        key = requests.rows, requests.landmarks, requests.shards
        machines.setdefault(key, set()).add(fit["bits"])
    return all(len(found) == 1 for found in machines.values())


def check_unseen_fits(record: dict[str, Any]) -> list[tuple[dict[str, Any], float, float]]:
    """Compare the model with fits it has not seen: relative errors, workers' and coordinator's."""
    costs, found = record["model"].costs, []
    for fit in record["fits"]:
        if fit["seen"]:
            continue
        units = units_of(fit)
        off = {who: costs[who].total(units[who]) for who in costs}
        spent = sum(fit["spent"][who] for who in COORDINATOR)
        coordinator = sum(off[who] for who in COORDINATOR) / spent - 1
        found.append((fit, off["workers"] / fit["spent"]["workers"] - 1, coordinator))
    return found


def show(record: dict[str, Any]) -> None:
    """Print the constants, the check, and the predictions."""
    model = record["model"]
    rows = [
        (who, name, f"{s:.3g}", f"{e:.1g}", f"{costs.spread:.0%}")
        for who, costs in model.costs.items()
        for name, s, e in zip(costs.names, costs.seconds, costs.errors, strict=True)
    ]
    rows.append(("waiting", "round", f"{model.waiting:.3g}", "", ""))
    heads = ("processor seconds of", "for each", "s", "standard error", "left unexplained")
    common.show(f"Constants, from {sum(f['seen'] for f in record['fits'])} fits", heads, rows)
    print("the same machine bit for bit, however many workers:", have_same_bits(record["fits"]))
    rows = [
        (
            fit["workers"],
            f"{fit['requests'].rows:,}",
            fit["requests"].landmarks,
            "hosts" if fit["shared"] else "coordinator",
            *(f"{fit['seconds']:.1f}", f"{fit['spent']['workers']:.1f}", f"{off:+.0%}"),
            f"{sum(fit['spent'][who] for who in COORDINATOR):.2f}",
            f"{own:+.0%}",
        )
        for fit, off, own in check_unseen_fits(record)
    ]
    heads = ("workers", "rows", "m", "totals added by", "wall s", "workers' s", "model")
    common.show("Fits that the constants have not seen", (*heads, "coordinator's s", "model"), rows)
    for requests, spent in record["targets"]:
        show_prediction(model, requests, spent)


def show_prediction(model: Model, requests: Requests, spent: float) -> None:
    """Print the predictions for one fit, and what changes would gain."""
    units = requests.units(1, False)
    alone = {who: model.costs[who].total(units[who]) for who in ("workers", "algebra")}
    calls = model.cost("workers", {name: units["workers"][name] for name in ("call", "host begun")})
    guess = sum(alone.values()) - calls[0]
    title = f"{requests.rows:,} rows, m = {requests.landmarks:,}: {requests.shards} shards, "
    title += f"{requests.counts['rounds']} rounds; on threads here {spent:.0f} processor s "
    title += f"(model {guess / spent - 1:+.0%})"
    names = list(model.parts(requests, 1))
    rows = []
    for w in PREDICTED:
        parts, (total, half) = model.parts(requests, w), model.seconds(requests, w)
        row = (w, *(f"{parts[name][0]:.2f}" for name in names), f"{total:.1f} +- {half:.1f}")
        rows += [row] if w in SHOWN else []
    common.show(title, ("workers", *names, "s"), rows)
    print("workers:", model.most_useful(requests))
    for w in SHOWN[1:]:
        took = model.changes(requests, w)
        print(f"with {w:,} workers:", {name: f"{s:.2f} s" for name, s in took.items()})


def as_json(record: dict[str, Any]) -> dict[str, Any]:
    """Return the record as JSON values: fits, constants, predictions."""
    model = record["model"]
    fits = [
        {name: value for name, value in fit.items() if name not in ("bits", "requests")}
        | {"rows": fit["requests"].rows, "landmarks": fit["requests"].landmarks}
        | {"shards": fit["requests"].shards, "counts": dict(fit["requests"].counts)}
        for fit in record["fits"]
    ]
    costs = {
        who: {
            name: [float(s), float(e)]
            for name, s, e in zip(c.names, c.seconds, c.errors, strict=True)
        }
        for who, c in model.costs.items()
    }
    predicted = [
        {
            "rows": requests.rows,
            "landmarks": requests.landmarks,
            "shards": requests.shards,
            "counts": dict(requests.counts),
            "seconds": {w: model.seconds(requests, w) for w in PREDICTED},
            **model.most_useful(requests),
        }
        for requests, _ in record["targets"]
    ]
    return {
        "same_bits": have_same_bits(record["fits"]),
        "fits": fits,
        "costs": costs,
        "waiting": model.waiting,
        "predicted": predicted,
    }


def main() -> None:
    """Fit, check, predict; print the tables and write the record."""
    parser = common.arguments(__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 8], metavar="N")
    parser.add_argument("--rows", type=int, nargs=2, default=[30_000, 120_000], metavar="N")
    parser.add_argument("--landmarks", type=int, nargs=2, default=[300, 800], metavar="M")
    parser.add_argument("--full", type=float, default=1.0, metavar="S", help="rows times S [1]")
    given = parser.parse_args()
    with common.work_folder(given.work) as work:
        record = measure(work, given.workers, given.rows, given.landmarks, given.full)
    show(record)
    common.save(given.out, "scaling", as_json(record))


if __name__ == "__main__":
    main()
