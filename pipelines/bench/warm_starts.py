"""What ``warm_start=True`` saves: a fit that starts at the last machine, and a cold one.

    python -m pipelines.bench.warm_starts [--only linear landmarks exact] [--repeat 3] [--quick]

Four data sets, each with C 1, the gap 1e-3 and one thread. Each line is a change after which the
machine is fitted again: C doubled or halved, a hundredth of the gap, a tenth more rows, or gamma
changed. Seconds are of the processor, the least of ``--repeat`` fits; both fits are certified.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.preprocessing import StandardScaler

from bigscreen import SVC, LinearSVC, NystroemSVC
from pipelines.bench import common
from pipelines.bench.exact import tasks
from pipelines.bench.tables import table

COMMON: dict[str, Any] = {"C": 1.0, "tol": 1e-3, "n_jobs": 1}
MACHINES = {
    "linear": {
        "squared hinge": LinearSVC(**COMMON),
        "hinge": LinearSVC(loss="hinge", **COMMON),
    },
    "landmarks": {"500 landmarks": NystroemSVC(n_components=500, random_state=0, **COMMON)},
    "exact": {"exact": SVC(**COMMON), "exact, 2,500 rows": SVC(**COMMON)},
}
CHANGES: dict[str, dict[str, float]] = {
    "C x 2": {"C": 2.0},
    "C / 2": {"C": 0.5},
    "gap / 100": {"tol": 1e-5},
    "a tenth more rows": {},
    "gamma x 1.5": {"gamma": 1.5},
}


def rows_of(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Load a data set in a random order: scaled rows, float32, and labels."""
    X, y = (getattr(tasks, name)() if name in ("a9a", "ijcnn1") else table(name))[:2]
    if name not in ("a9a", "ijcnn1"):
        X = StandardScaler().fit_transform(X)
    order = np.random.default_rng(0).permutation(len(y))
    return X[order].astype(np.float32), y[order]


def seconds(machine: Any, X: np.ndarray, y: np.ndarray) -> tuple[float, int]:
    """Fit; return processor seconds, and the full passes (blocks, if exact)."""
    began = time.process_time()
    machine.fit(X, y)
    took = time.process_time() - began
    assert machine.relative_gap_ <= machine.tol
    last = machine.history_[-1]
    return took, int(last.get("full_passes", len(machine.history_)))


def compare(
    machine: Any, change: dict[str, float], X: np.ndarray, y: np.ndarray, most: int, repeat: int
) -> tuple[tuple[float, int], tuple[float, int]]:
    """Fit after a change, cold and warm, in turns; return the least seconds of each, with passes.

    The first fit has at most ``most`` rows.
    """
    change = dict(change)
    if "gamma" in change:
        base = 1.0 / (X.shape[1] * float(X.var()))
        machine, change = clone(machine).set_params(gamma=base), {"gamma": base * change["gamma"]}
    cold, warm = [], []
    for _ in range(repeat):
        cold.append(seconds(clone(machine).set_params(**change), X, y))
        again = clone(machine).set_params(warm_start=True).fit(X[:most], y[:most])
        warm.append(seconds(again.set_params(**change), X, y))
        assert again.model_.provenance.get("start") or "gamma" in change
    return min(cold), min(warm)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=MACHINES, default=list(MACHINES))
    parser.add_argument("--repeat", type=int, default=3, help="fits of each kind, in turns [3]")
    parser.add_argument("--quick", action="store_true", help="2,000 rows of one data set")
    given = parser.parse_args()
    lines = []
    for data in ("magic",) if given.quick else ("a9a", "ijcnn1", "covtype", "magic"):
        X, y = rows_of(data)
        for kind in given.only:
            for name, machine in MACHINES[kind].items():
                n = 2500 if "2,500" in name else 2000 if given.quick else len(y)
                for what, change in CHANGES.items():
                    if "gamma" in change and kind == "linear":
                        continue
                    most = n * 10 // 11 if not change else n
                    cold, warm = compare(machine, change, X[:n], y[:n], most, given.repeat)
                    saved = f"{100 * (1 - warm[0] / cold[0]):.0f} %"
                    cells = (f"{each[0]:.3f} s, {each[1]}" for each in (cold, warm))
                    lines.append((data, name, what, *cells, saved))
                    print(*lines[-1], sep=" | ", flush=True)
    heads = ("data", "machine", "change", "cold: seconds, passes", "warm", "saved")
    common.show("Fits after a change", heads, lines)


if __name__ == "__main__":
    main()
