"""Starts of a solve compared: at 0, and at the machines of parts of the rows.

    python -m pipelines.bench.divide [--only DATA ...] [--starts START ...] [--repeat N]
                                     [--rows N] [--C C] [--tol TOL] [--out FOLDER]

Exact machines of the exact race, of two other tables and of rows of SUSY's shape (made up) are
fitted in turns from 0 ("cold"), from parts of about 5,000 rows ("divide"), and from these after
a level of four times as many ("2 levels"). "optimum" begins at the alpha of the cold fit: no start
can save more. Further starts: a Nystrom machine, and "early", which stops after the parts.

Each fit runs on one thread, which records the processor seconds of every step of a shard and of
every item (a part, a block of rows), and then on two threads. The rest of the processor seconds is
the coordinator's. From these follows the wall time on 1, 2, 4 and 8 workers of one core each: the
coordinator's seconds and, for each call of the fleet, the time until its last task ends if a worker
that is free takes the next task in the order of submission (the largest parts first). In this model
a part has one worker, messages take no time, and tasks of different workers do not slow each other.
The measured seconds of two threads stand next to it.
"""

from __future__ import annotations

import argparse
import gzip
import heapq
import lzma
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from bigscreen.data.memory import MemoryDataset
from bigscreen.data.synthetic import susy_like
from bigscreen.features.design import Design
from bigscreen.fit.loop import fit as solve
from bigscreen.fit.monitor import Limits, Report
from bigscreen.fleet.inline import Inline
from bigscreen.kernels.standard import make_kernel
from bigscreen.numerics.rows import FloatArray
from bigscreen.options.train import TrainOptions
from bigscreen.plan.tuning import PLAN
from bigscreen.problems.recipes import CSvc
from bigscreen.solvers.block.solver import Block
from bigscreen.solvers.protocol import Run
from bigscreen.train.divide import DIVIDE
from bigscreen.train.run import train
from pipelines.bench import common
from pipelines.bench.exact.tasks import TASKS, Parts

STARTS: dict[str, dict[str, Any]] = {
    "cold": {"start": "cold"},
    "divide": {"start": "divide"},
    "2 levels": {"start": "divide", "levels": 2},
    "optimum": {},
    "nystrom": {"start": "nystrom"},
    "early": {"early": True},
}
USUAL = ["cold", "divide", "2 levels", "optimum"]
WORKERS = (1, 2, 4, 8)
STAGES = {"partition": ["partition"], "parts": ["divide"], "refine": ["scale", "refine"]}
"""Columns of the table, and the phases of divide and conquer in each; the rest is "solve"."""
EXACT = {"exact": True, "kernel": "rbf", "intercept": "true"}
SUSY_ROWS, KDD99_ROWS = 50_000, 60_000
HELD_OUT = 1000
"""Rows of MAGIC and KDD-99 that are held out."""
TEST_ROWS = 20_000
"""At most this many test rows are scored."""


class Traced(Inline):
    """A fleet of one thread that records the processor seconds of a fit and of its tasks.

    ``calls``: for each call of the fleet the seconds of its tasks, in the order of submission.
    ``spent``: the processor seconds of the fit by phase, tasks included.
    """

    def __init__(self) -> None:
        super().__init__(1)
        self.calls: list[list[float]] = []
        self.spent: dict[str, float] = {}
        self._phase, self._since = "", time.process_time()

    def hear(self, event: dict[str, Any]) -> None:
        """Notice the beginning of a phase."""
        if event["event"] == "phase":
            now = time.process_time()
            self.spent[self._phase] = self.spent.get(self._phase, 0.0) + now - self._since
            self._phase, self._since = event["phase"], now

    def wall(self, workers: int) -> float:
        """Model the wall seconds of the fit on this many workers of one core each."""
        alone = sum(self.spent.values()) - sum(map(sum, self.calls))
        return alone + sum(makespan(tasks, workers) for tasks in self.calls)

    def start(self, program: Any, n_shards: int) -> None:
        super().start(TimedProgram(program, self._call()), n_shards)

    def round(self, message: dict[str, Any]) -> Any:
        self._program.tasks = self._call()
        return super().round(message)

    def each(
        self, function: Callable[[Any], Any], items: Iterable[Any], in_flight: int | None = None
    ) -> Iterator[Any]:
        tasks = self._call()
        return super().each(lambda item: timed(tasks, function, item), items, in_flight)

    def _call(self) -> list[float]:
        self.calls.append([])
        return self.calls[-1]


class TimedProgram:
    """A program whose steps append their processor seconds to ``tasks``."""

    def __init__(self, program: Any, tasks: list[float]) -> None:
        self.program, self.tasks = program, tasks

    def __getattr__(self, name: str) -> Any:
        return getattr(self.program, name)

    def open(self, shard: int) -> Any:
        return timed(self.tasks, self.program.open, shard)

    def step(self, *args: Any) -> Any:
        return timed(self.tasks, self.program.step, *args)


def timed(tasks: list[float], function: Callable[..., Any], *args: Any) -> Any:
    """Call a function, and append the processor seconds of this thread to ``tasks``."""
    began = time.thread_time()
    try:
        return function(*args)
    finally:
        tasks.append(time.thread_time() - began)


def makespan(tasks: Sequence[float], workers: int) -> float:
    """Return when the last task ends, if a worker that is free takes the next task in order."""
    free = [0.0] * workers
    for seconds in tasks:
        heapq.heapreplace(free, free[0] + seconds)
    return max(free)


def main() -> None:
    sets = {**dict.fromkeys(TASKS, raced), "magic": magic, "kdd99": kdd99}
    sets |= {"susy": susy, "susy-landmarks": susy_landmarks}
    usual = ["a9a", "ijcnn1", "mnist-7", "covtype", "susy", "magic", "kdd99"]
    parser = argparse.ArgumentParser(description="Where a solve begins, and what its start costs.")
    parser.add_argument("--only", nargs="+", choices=sets, default=usual, metavar="DATA")
    parser.add_argument("--starts", nargs="+", choices=STARTS, default=USUAL, metavar="START")
    parser.add_argument("--repeat", type=int, default=3, help="fits, of which medians are shown")
    parser.add_argument("--rows", type=int, help="at most [all; susy 50,000, kdd99 60,000]")
    parser.add_argument("--C", type=float, help="[the race's; susy: 1, magic and kdd99: 10]")
    parser.add_argument("--tol", type=float, default=1e-3, help="relative gap of all fits [1e-3]")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="write divide.json there")
    given = parser.parse_args()
    record = {}
    starts = {"cold", *given.starts}
    for name in given.only:
        rows, options = sets[name](name, given.rows)
        options |= {"tol": given.tol} | ({} if given.C is None else {"C": given.C})
        record[name] = race(name, rows, options, starts, given.repeat)
    show(record)
    common.save(given.out, "divide", record)


def raced(name: str, most: int | None) -> tuple[Parts, dict[str, Any]]:
    """Load a task of the exact race, or ``most`` rows of it, and its options."""
    task = TASKS[name]
    X, y, X_test, y_test = task.load()
    if most is not None and most < len(X):
        some = np.sort(np.random.default_rng(0).permutation(len(X))[:most])
        X, y = X[some], y[some]
    return (X, y, X_test, y_test), {**EXACT, "gamma": task.gamma, "C": task.C}


def magic(name: str, most: int | None) -> tuple[Parts, dict[str, Any]]:
    """Load the MAGIC telescope's rows, columns standardised, 1,000 held out."""
    with lzma.open(common.file("magic/magic04.data.xz"), "rt") as lines:
        table = [line.rstrip().split(",") for line in lines if line.strip()]
    X = np.array([row[:-1] for row in table], np.float64)
    return held_out((X - X.mean(axis=0)) / X.std(axis=0), [row[-1] == "g" for row in table], most)


def kdd99(name: str, most: int | None) -> tuple[Parts, dict[str, Any]]:
    """Draw 60,000 rows of KDD-99 without its texts, columns scaled to [0, 1], and 1,000 more."""
    with gzip.open(common.file("kddcup99/kddcup.data_10_percent.gz"), "rt") as file:
        lines = file.read().splitlines()
    some = np.random.default_rng(0).permutation(len(lines))[: (most or KDD99_ROWS) + HELD_OUT]
    table = [lines[i].split(",") for i in some]
    X = np.array([row[:1] + row[4:-1] for row in table], np.float64)
    low, high = X.min(axis=0), X.max(axis=0)
    X = (X - low) / np.where(high > low, high - low, 1.0)
    return held_out(X, [row[-1] == "normal." for row in table], most)


def held_out(X: FloatArray, positive: list[bool], most: int | None) -> tuple[Parts, dict[str, Any]]:
    """Draw training rows, and 1,000 test rows; the machine has C = 10 and gamma = .1."""
    order = np.random.default_rng(0).permutation(len(X))
    test, some = order[:HELD_OUT], order[HELD_OUT:][:most]
    X, y = X.astype(np.float32), np.where(positive, 1, -1).astype(np.int8)
    return (X[some], y[some], X[test], y[test]), {**EXACT, "C": 10.0, "gamma": 0.1}


def susy(name: str, most: int | None) -> tuple[Parts, dict[str, Any]]:
    """Make rows of SUSY's shape, and the options of an exact machine on them."""
    n = most or SUSY_ROWS
    X, codes = (np.concatenate(some) for some in zip(*susy_like(n + n // 10, 0), strict=True))
    y = np.where(codes > 0, 1, -1).astype(np.int8)
    return (X[:n], y[:n], X[n:], y[n:]), {**EXACT, "gamma": 1 / 32, "C": 1.0}


def susy_landmarks(name: str, most: int | None) -> tuple[Parts, dict[str, Any]]:
    """Make rows of SUSY's shape, and the options of a machine on stored features of landmarks."""
    rows, _ = susy(name, most)
    return rows, {"landmarks": 500, "gamma": 1 / 32, "C": 1.0, "features": "stored"}


def race(
    name: str, rows: Parts, options: dict[str, Any], starts: set[str], repeat: int
) -> dict[str, dict[str, Any]]:
    """Fit a machine from every start in turns; return medians of the figures, and all runs."""
    n = len(rows[0])
    fits = {start: {**options, **STARTS[start]} for start in STARTS if start in starts}
    if not options.get("exact"):
        fits = {start: how for start, how in fits.items() if start not in ("2 levels", "optimum")}
    elif "2 levels" in fits:  # the last level has as many parts as a single level
        fits["2 levels"]["parts"] = DIVIDE.parts_factor * max(2, -(-n // DIVIDE.part_rows))
    few = tuple(part[:6000] for part in rows)
    for start, how in fits.items():  # compiles
        if start != "optimum":
            fit(few, {**how, "tol": 0.1})
    runs: dict[str, list[dict[str, Any]]] = {start: [] for start in fits}
    alpha = np.zeros(n)
    for _ in range(repeat):
        for start, how in fits.items():
            figures, model = fit(rows, how, alpha if start == "optimum" else None)
            if start == "cold" and "optimum" in fits:
                alpha[model.support] = np.abs(model.coef[0])
            runs[start].append(figures)
            print(f"{name}, {start}: {figures['processor']:.2f} processor seconds", flush=True)
    return {start: {**medians(some), "runs": some} for start, some in runs.items()}


def fit(
    rows: Parts, options: dict[str, Any], alpha: FloatArray | None = None
) -> tuple[dict[str, Any], Any]:
    """Fit on one thread, traced, and on two; return the figures and the model.

    ``alpha``: solve from there, as a fit does whose start took no time; the model is then None.
    """
    X, y, X_test, y_test = rows
    data = MemoryDataset(X, (y > 0).astype(np.int32), [-1, 1])

    def once(fleet: Inline, hear: Report) -> tuple[dict[str, Any], Any]:
        """Fit on a fleet; return what the fit records of itself, and its model."""
        if alpha is not None:
            return solve_from(alpha, data, options, fleet, hear), None
        model = train(data, TrainOptions.from_record(options), fleet, hear)
        return model.provenance, model

    with Traced() as fleet:
        began = time.monotonic()
        known, model = once(fleet, fleet.hear)
        one = time.monotonic() - began
        fleet.hear({"event": "phase", "phase": "ended"})
    with Inline(2) as pair:
        began = time.monotonic()
        once(pair, lambda event: None)
        two = time.monotonic() - began
    error = None
    if model is not None:
        scores = model.scores(np.ascontiguousarray(X_test[:TEST_ROWS], np.float32))[:, 0]
        error = float(np.mean((scores > 0) != (y_test[:TEST_ROWS] > 0)))
    stages = {
        name: sum(fleet.spent.get(phase, 0.0) for phase in phases)
        for name, phases in STAGES.items()
    }
    processor = sum(fleet.spent.values())
    proofs, history = known["certificates"], known["history"]
    return {
        "processor": processor,
        "coordinator": processor - sum(map(sum, fleet.calls)),
        "stages": {**stages, "solve": processor - sum(stages.values())},
        "measured": {"1": one, "2": two},
        "walls": {str(k): fleet.wall(k) for k in WORKERS},
        "calls": len(fleet.calls),
        "passes": len(history),
        "entries": history[-1].get("kernel_entries") if history else None,
        "relative_gap": None if proofs is None else proofs[0]["relative_gap"],
        "error": error,
        "start": known.get("start"),
    }, model


def solve_from(
    alpha: FloatArray, data: MemoryDataset, options: dict[str, Any], fleet: Inline, hear: Report
) -> dict[str, Any]:
    """Solve an exact machine from alpha; return the history and the certificate, as a model's."""
    hear({"event": "phase", "phase": "solve"})
    problem = CSvc(options["C"], 1, (), options["intercept"])
    design = Design(data, make_kernel("rbf", options["gamma"]))
    run = Run(design, problem, fleet, start=alpha)
    fitted = solve(run, Block(cache=PLAN.cheap_cache_bytes), Limits(options["tol"]))
    proof = {"relative_gap": fitted.certificate.relative_gap}
    return {"history": fitted.history, "certificates": [proof]}


def medians(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the median of each figure of several runs, of figures within dicts too."""
    found: dict[str, Any] = {}
    for key, first in runs[0].items():
        values = [run[key] for run in runs]
        if isinstance(first, dict):
            found[key] = medians(values)
        elif isinstance(first, int | float):
            found[key] = median(values)
        else:
            found[key] = first
    return found


def show(record: dict[str, dict[str, Any]]) -> None:
    """Print one table: the seconds of each start, and how many times as fast as cold it is."""
    title = "processor seconds; measured wall; modelled wall (how many times as fast as cold)"
    table = Table(title=title, title_justify="left")
    for head in ("data", "start", "partition", "parts", "refine", "solve", "all", "coordinator"):
        table.add_column(head, justify="left" if head in ("data", "start") else "right")
    for head in ("1 thread", "2 threads", *(f"{k} workers" for k in WORKERS), "calls", "gap"):
        table.add_column(head, justify="right")
    for name, starts in record.items():
        cold = starts["cold"]["walls"]
        for start, run in starts.items():
            gap = run["relative_gap"]
            table.add_row(
                *(name if start == "cold" else "", start),
                *(f"{seconds:.2f}" for seconds in run["stages"].values()),
                *(f"{run[key]:.2f}" for key in ("processor", "coordinator")),
                *(f"{seconds:.2f}" for seconds in run["measured"].values()),
                *(f"{wall:.2f} ({cold[k] / wall:.2f})" for k, wall in run["walls"].items()),
                *(str(run["calls"]), "none" if gap is None else f"{gap:.0e}"),
            )
        table.add_section()
    Console(width=170, highlight=False).print(table)


if __name__ == "__main__":
    main()
