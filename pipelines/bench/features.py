"""Nystrom features of many rows: seconds and memory of `bigscreen.Nystroem` and scikit-learn's.

    python -m pipelines.bench.features [--rows 200000] [--columns 50] [--landmarks 500]

Rows are made up, standard normal, float32; the kernel is RBF with gamma 1 / columns. Each line is a
process of its own: it makes the rows, or opens their store, fits on them and transforms all. Peak
memory is the process's own, rows and features included, beyond that of its imports; features on
disk are not in memory. Error: the mean deviation of inner products of features from the kernel
among 500 rows; it differs between lines only as their landmarks and rows do.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

WAYS = {
    "scikit-learn, float64": "peer64",
    "scikit-learn, float32": "peer32",
    "ours, in memory": "ours",
    "ours, from a store to disk": "disk",
}
PROBED = 500
"""The number of rows whose kernel entries are compared."""


def make_rows(rows: int, columns: int) -> np.ndarray:
    """Make standard normal rows (rows, columns), float32."""
    return np.random.default_rng(0).standard_normal((rows, columns), np.float32)


def peak() -> float:
    """Return the largest memory that this process has held, in GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def measure(way: str, rows: int, columns: int, landmarks: int, folder: Path) -> dict[str, float]:
    """Fit and transform in one way; return seconds, GiB of memory, and the error of the kernel."""
    from sklearn.kernel_approximation import Nystroem as Peer

    from bigscreen import Nystroem
    from bigscreen.data.dataset import Dataset

    how: dict[str, Any] = {"gamma": 1 / columns, "n_components": landmarks, "random_state": 0}
    before = peak()
    if way == "disk":
        machine, X = Nystroem(work=folder / "work", **how), Dataset.open(folder / "rows.store")
    else:
        X = make_rows(rows, columns)
        if way == "peer64":
            X = X.astype(np.float64)
        machine = Nystroem(**how) if way == "ours" else Peer(**how)
    began = time.perf_counter()
    F = machine.fit(X).transform(X)
    seconds, most = time.perf_counter() - began, peak() - before
    F, X = (Z.X(0, PROBED) if way == "disk" else Z[:PROBED] for Z in (F, X))
    F, X = F.astype(np.float64), X.astype(np.float64)
    apart = ((X[:, None] - X[None]) ** 2).sum(axis=2)
    error = float(np.abs(F @ F.T - np.exp(-apart / columns)).mean())
    return {"seconds": seconds, "memory": most, "error": error}


def main() -> None:
    """Print a line for each way."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--columns", type=int, default=50)
    parser.add_argument("--landmarks", type=int, default=500)
    parser.add_argument("--one", choices=WAYS.values(), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    sizes = asked.rows, asked.columns, asked.landmarks
    if asked.one:
        print(json.dumps(measure(asked.one, *sizes, asked.folder)))
        return
    from bigscreen import ingest

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ingest(make_rows(*sizes[:2]), folder / "rows.store", unlabelled=True, scale="none")
        print(f"{'':<28}{'seconds':>9}{'GiB':>7}{'error':>8}   load {os.getloadavg()[0]:.1f}")
        given = [
            f"--{key}={n}" for key, n in zip(("rows", "columns", "landmarks"), sizes, strict=True)
        ]
        for title, way in WAYS.items():
            command = [sys.executable, "-m", "pipelines.bench.features", *given]
            done = subprocess.run(
                [*command, "--one", way, "--folder", name], capture_output=True, check=True
            )
            found = json.loads(done.stdout)
            print(
                f"{title:<28}{found['seconds']:>9.2f}{found['memory']:>7.2f}{found['error']:>8.4f}"
            )


if __name__ == "__main__":
    main()
