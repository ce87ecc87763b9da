"""Starts of a solve compared: zero, divide and conquer by kernel k-means, a Nystrom machine.

    python -m pipelines.bench.divide [--only TASK] [--rows N] [--out FOLDER]

ijcnn1 in 10 parts and mnist 7-vs-rest in parts as large as memory allows, on the exact kernel, and
the Nystrom job of SUSY's shape (made-up rows): seconds, kernel entries and error of early (the
parts alone, no global certificate), warm (divide and conquer, then the whole), Nystrom and cold.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from bigscreen.data.memory import MemoryDataset
from bigscreen.data.synthetic import susy_like
from bigscreen.fleet.inline import Inline
from bigscreen.options.train import TrainOptions
from bigscreen.report import report
from bigscreen.train.run import train
from pipelines.bench import common
from pipelines.bench.exact.tasks import TASKS

STARTS: dict[str, dict[str, Any]] = {
    "cold": {"start": "cold"},
    "divide": {"start": "divide"},
    "nystrom": {"start": "nystrom"},
    "early": {"early": True},
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Cold, divide and conquer, early, Nystrom.")
    parser.add_argument("--only", nargs="+", choices=["ijcnn1", "mnist-7", "susy"], metavar="TASK")
    parser.add_argument("--rows", type=int, default=200_000, help="of SUSY's shape [200,000]")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="write divide.json there")
    given = parser.parse_args()
    record = {"machine": common.machine()}
    with Inline(2) as fleet:
        for task in given.only or ["ijcnn1", "mnist-7", "susy"]:
            runs = susy(given.rows, fleet) if task == "susy" else exact(task, fleet)
            record[task] = runs
            show(task, runs)
    if given.out:
        given.out.mkdir(parents=True, exist_ok=True)
        report.write_json(given.out / "divide.json", record)


def exact(name: str, fleet: Any) -> list[dict[str, Any]]:
    """Fit the exact machine of a task from every start."""
    task = TASKS[name]
    X, y, X_test, y_test = task.load()
    data = MemoryDataset(X, (y > 0).astype(np.int32), [-1, 1])
    parts = {"parts": 10} if name == "ijcnn1" else {}
    common = {
        "exact": True,
        "kernel": "rbf",
        "gamma": task.gamma,
        "C": task.C,
        "intercept": "true",
    }
    runs = []
    for start, options in STARTS.items():
        more = parts if start in ("divide", "early") else {}
        runs.append(one(start, data, {**common, **options, **more}, fleet, X_test, y_test))
    return runs


def susy(n: int, fleet: Any) -> list[dict[str, Any]]:
    """Run the Nystrom job with stored features from every start except early stopping."""
    parts = list(susy_like(n + n // 10, 0))
    X = np.concatenate([part for part, _ in parts])
    y = np.concatenate([codes for _, codes in parts])
    data = MemoryDataset(X[:n], y[:n].astype(np.int32), [0, 1])
    common = {"landmarks": 500, "gamma": 1 / 32, "C": 1.0, "features": "stored"}
    return [
        one(start, data, {**common, **STARTS[start]}, fleet, X[n:], 2.0 * y[n:] - 1)
        for start in ("cold", "divide", "nystrom")
    ]


def one(
    start: str, data: MemoryDataset, options: dict[str, Any], fleet: Any, X: Any, y: Any
) -> dict[str, Any]:
    began = time.monotonic()
    model = train(data, TrainOptions.from_record(options), fleet)
    seconds = time.monotonic() - began
    known = model.provenance
    history = known["history"]
    certificates = known["certificates"]
    scores = model.scores(np.ascontiguousarray(X, np.float32))[:, 0]
    return {
        "start": start,
        "seconds": seconds,
        "seconds_of_start": known["seconds"].get("start", 0.0),
        "passes": len(history),
        "entries_after_start": history[-1].get("kernel_entries") if history else None,
        "relative_gap": None if certificates is None else certificates[0]["relative_gap"],
        "error": float(np.mean((scores > 0) != (y > 0))),
    }


def show(task: str, runs: list[dict[str, Any]]) -> None:
    table = Table(title=task)
    for head in runs[0]:
        table.add_column(head.replace("_", " "), justify="right")
    for run in runs:
        table.add_row(*(f"{v:.3g}" if isinstance(v, float) else str(v) for v in run.values()))
    Console(highlight=False, width=130).print(table)


if __name__ == "__main__":
    main()
