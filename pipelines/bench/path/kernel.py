"""A path of 20 values of C with an RBF kernel, against 20 cold fits of scikit-learn-intelex.

    python -m pipelines.bench.path.kernel [--repeat 3] [--threads 2] [--out FOLDER] [--quick]

a9a, gamma=1/123, C from .1 to 10, unpenalised offset. Every run is a process of its own, in turns,
with the same rows and threads. The peer stops at its tol of 1e-3; ours must reach the smallest of
the peer's gaps at every point. All gaps are computed here, in float64 over all rows, from each
solver's dual coefficients. Ours solves the path four times: each point starts at the point before
or at zero (warm, cold), with and without screening. --quick: 1,000 rows and 4 values.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.bench import common
from pipelines.bench.exact.proof import feasible, proof
from pipelines.bench.exact.race import MARGIN, QUIET, TOL
from pipelines.bench.exact.tasks import TASKS

PEERS = ("intelex64", "sklearn")
WAYS = {
    "warm, screening": {"warm": True, "screening": True},
    "warm": {"warm": True, "screening": False},
    "cold, screening": {"warm": False, "screening": True},
    "cold": {"warm": False, "screening": False},
}
MOST = 0.25
QUICK_ROWS, QUICK_VALUES = 1_000, 4


class Track:
    """The race's rows, and runs on them."""

    def __init__(self, work: Path, threads: int, quick: bool) -> None:
        task = TASKS["a9a"]
        with np.load(task.prepared(work)) as parts:
            X, y = parts["X"], parts["y"]
        if quick:
            X, y = X[:QUICK_ROWS], y[:QUICK_ROWS]
        self.X, self.y, self.gamma, self.threads = X, y, task.gamma, threads
        self.values = np.logspace(-1, 1, QUICK_VALUES if quick else 20)
        self.file = work / "path-kernel.npz"
        np.savez(self.file, X=X, y=y)

    def run(self, prove: bool, **order: Any) -> dict[str, Any]:
        """Run once; ``prove``: compute the relative gap of every point as well."""
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "run.npz"
            order |= {"data": str(self.file), "out": str(out), "values": self.values.tolist()}
            order |= {"gamma": self.gamma, "threads": self.threads}
            done = subprocess.run(
                [sys.executable, "-m", "pipelines.bench.path.kernel_run", json.dumps(order)],
                capture_output=True,
                text=True,
            )
            if done.returncode:
                sys.exit(f"error: {order['solver']} failed:\n{done.stderr}")
            with np.load(out) as found:
                arrays = {name: found[name] for name in found}
        coefs = arrays.pop("coef")
        record = {name: value.tolist() for name, value in arrays.items()}
        if prove:
            record["gaps"] = [self._gap(*each) for each in zip(coefs, self.values, strict=True)]
        return record

    def _gap(self, coef: np.ndarray, C: float) -> float:
        alpha = feasible(coef, np.arange(len(coef)), self.y, C)
        return proof(self.X, self.y, alpha, C, self.gamma, self.threads)["relative_gap"]


def raced(track: Track, peer: str, ways: list[str], repeat: int) -> dict[str, Any]:
    """Run all in turns; the peer's first run sets the gap that ours must reach."""
    runs: dict[str, list[dict[str, Any]]] = {peer: [], **{way: [] for way in ways}}
    aim = 0.0
    for k in range(repeat):
        for name, own in runs.items():
            order: dict[str, Any] = {"solver": peer, "tol": TOL}
            if name != peer:
                order = {"solver": "bigscreen", "tol": aim, **WAYS[name]}
            own.append(track.run(k == 0, **order))
            if k == 0 and name == peer:
                aim = MARGIN * min(own[0]["gaps"])
            print(f"{name}: {own[-1]['seconds']:.2f} s", flush=True)
    return {name: {**medians(own), "runs": own} for name, own in runs.items()}


def medians(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Compute the medians of the runs of one way."""
    seconds = [run["seconds"] for run in runs]
    return {
        "seconds": float(np.median(seconds)),
        "range": [min(seconds), max(seconds)],
        "processor_seconds": float(np.median([run["processor_seconds"] for run in runs])),
        "elsewhere": max(run["elsewhere_seconds"] / run["seconds"] for run in runs),
        "peak_bytes": max(run["peak_bytes"] for run in runs),
        **{name: runs[0][name] for name in ("gaps", "screened", "entries", "rounds")},
    }


def compared(results: dict[str, Any], peer: str) -> dict[str, Any]:
    """Compute each way's ratio of times, and whether all its gaps are at most the peer's."""
    theirs = results[peer]
    return {
        name: {
            "ratio": part["seconds"] / theirs["seconds"],
            "gaps_no_larger": bool(np.all(np.array(part["gaps"]) <= np.array(theirs["gaps"]))),
        }
        for name, part in results.items()
        if name != peer
    }


def show(results: dict[str, Any], summary: dict[str, Any], threads: int, repeat: int) -> None:
    rows = []
    for name, part in results.items():
        ratio = summary.get(name)
        met = ratio and common.verdict(ratio["ratio"] <= MOST and ratio["gaps_no_larger"])
        rows.append(
            (
                name,
                f"{part['seconds']:.2f} ({part['range'][0]:.2f}-{part['range'][1]:.2f})",
                f"{part['processor_seconds']:.1f}",
                f"{min(part['gaps']):.1e}-{max(part['gaps']):.1e}",
                f"{part['screened']:.1%}" if ratio else "",
                f"{part['entries']:.1e}" if ratio else "",
                f"{part['peak_bytes'] / 2**20:.0f}",
                f"{ratio['ratio']:.3f}" if ratio else "",
                f"<= {MOST:g}: {met}" if name == next(iter(WAYS)) else "",
            )
        )
    heads = ("way", "seconds", "processor", "relative gaps", "screened beforehand", "entries")
    title = f"a path of a9a, {threads} threads, medians (range) of {repeat}"
    common.show(title, (*heads, "peak MB", "ratio", "asked"), rows)
    busy = max(part["elsewhere"] for part in results.values())
    if busy > QUIET:
        print(f"NOT QUIET: other processes took up to {busy:.0%} of a core while a run was timed")


def main() -> None:
    parser = common.arguments("A path with an RBF kernel beside cold fits.", list(WAYS))
    parser.add_argument("--repeat", type=int, default=3, help="[3]")
    parser.add_argument("--threads", type=int, help="of everyone [all cores]")
    parser.add_argument("--peer", choices=PEERS, default=PEERS[0], help=f"[{PEERS[0]}]")
    parser.add_argument("--quick", action="store_true", help="few rows and values")
    given = parser.parse_args()
    if given.peer == "intelex64" and not importlib.util.find_spec("sklearnex"):
        sys.exit(
            "error: scikit-learn-intelex is not installed; pip install 'bigscreen[bench]', or "
            "choose --peer sklearn"
        )
    threads = given.threads or common.machine()["cores"]
    with common.work_folder(given.work) as work:
        track = Track(work, threads, given.quick)
        results = raced(track, given.peer, given.only, given.repeat)
    summary = compared(results, given.peer)
    show(results, summary, threads, given.repeat)
    record = {"threads": threads, "values": track.values.tolist(), "results": results}
    common.save(given.out, "path_kernel", {**record, "summary": summary})


if __name__ == "__main__":
    main()
