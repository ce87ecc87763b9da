"""One fit of the exact machine's race, in a process of its own: its seconds and its memory.

Started by race.py, with what to do as JSON. The rows are in memory in the solver's own number
format and layout, and its code is loaded (and compiled) by a fit of 2,000 rows, before the clock
starts.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import threadpoolctl
from scipy import sparse

WARM_UP_ROWS = 2_000


def machine(solver: str, threads: int, **options: Any) -> Any:
    """Make a solver's estimator; all have the same names of options, and LIBSVM has one thread."""
    if solver == "sklearn":
        from sklearn.svm import SVC

        return SVC(**options)
    module = importlib.import_module("bigscreen" if solver == "bigscreen" else "sklearnex.svm")
    return module.SVC(n_jobs=threads, **options)


def native(X: np.ndarray, solver: str, layout: str) -> Any:
    """Convert the rows to the solver's own format, so that no conversion is timed."""
    X = X.astype(np.float64 if solver in ("sklearn", "intelex64") else np.float32)
    return sparse.csr_matrix(X) if layout == "csr" else X


def fitted(
    data: Path, solver: str, layout: str, threads: int, predict: bool, **options: Any
) -> dict[str, Any]:
    """Fit; return dual coefficients, test predictions if requested, seconds and bytes."""
    with np.load(data) as parts:
        X, X_test = (native(parts[name], solver, layout) for name in ("X", "X_test"))
        y = parts["y"]
    few = np.random.default_rng(0).permutation(X.shape[0])[:WARM_UP_ROWS]
    with threadpoolctl.threadpool_limits(threads), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        machine(solver, threads, **options).fit(X[few], y[few])
        said.clear()
        before = resident_bytes(reset=True)
        estimator = machine(solver, threads, **options)
        began = clocks()
        estimator.fit(X, y)
        seconds, processor, everyone = clocks() - began
        peak = resident_bytes(peak=True)
        predicted = estimator.predict(X_test) if predict else np.zeros(0)
    coef = estimator.dual_coef_
    return {
        "support": estimator.support_,
        "coef": np.ravel(coef.toarray() if sparse.issparse(coef) else coef),
        "predicted": predicted,
        "seconds": seconds,
        "processor_seconds": processor,
        "elsewhere_seconds": max(0.0, everyone - processor),
        "peak_bytes": peak,
        "fit_bytes": peak - before,
        "warnings": [str(warning.message) for warning in said],
    }


def clocks() -> np.ndarray:
    """Read the wall clock, and the processor seconds of this process and of the whole machine."""
    busy = psutil.cpu_times()
    everyone = sum(busy) - busy.idle - getattr(busy, "iowait", 0.0)
    return np.array([time.perf_counter(), time.process_time(), everyone])


def resident_bytes(peak: bool = False, reset: bool = False) -> int:
    """Return this process's resident memory, or its peak since the last reset, in bytes."""
    if reset:
        # 5 sets the high-water mark back to what is resident now.
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    line = status.split("VmHWM:" if peak else "VmRSS:")[1].split("\n")[0]
    return 1024 * int(line.split()[0])


def main() -> None:
    order = json.loads(sys.argv[1])
    out = order.pop("out")
    np.savez(out, **fitted(**order))


if __name__ == "__main__":
    main()
