"""One run of the kernel path's race, in a process of its own: seconds, memory, coefficients.

Started by kernel.py, with what to do as JSON. Rows are in memory in the solver's own number
format, and its code is loaded (and compiled) by a short path of 2,000 rows before the clock starts.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import threadpoolctl

from pipelines.bench.exact.one_fit import WARM_UP_ROWS, clocks, machine, native, resident_bytes

CACHE = 256 << 20
"""Bytes of cached kernel columns: a plan's choice for rows of flags, whose entries are cheap."""


def walked(
    X: Any, y: np.ndarray, values: list[float], gamma: float, threads: int, tol: float,
    warm: bool, screening: bool,
) -> dict[str, Any]:  # fmt: skip
    """Solve a path by ours; return its points."""
    from bigscreen.data.memory import MemoryDataset
    from bigscreen.features.design import Design
    from bigscreen.fleet.blas import blas_threads
    from bigscreen.fleet.inline import Inline
    from bigscreen.kernels.standard import Rbf
    from bigscreen.path.kernel import KernelStage
    from bigscreen.path.walk import PathSettings, Walk
    from bigscreen.problems.recipes import CSvc
    from bigscreen.screening.sequential import make_path_rule
    from bigscreen.solvers.block.solver import Block

    n = len(y)
    data = MemoryDataset(X, (y > 0).astype(np.int32), [-1, 1])
    rules = [make_path_rule("dvi")] if screening and warm else []
    manner = PathSettings(tol, rules, dynamic=screening, warm=warm, alone=False)
    design, problem = Design(data, Rbf(gamma)), CSvc(1.0, 1, (), "true")
    steps = []
    with blas_threads(1), Inline(threads) as fleet:  # as every fit of ours
        # (A cold fit keeps nothing of the fit before.)
        grids = [values] if warm else [[value] for value in values]
        for grid in grids:
            stage = KernelStage(design, fleet, options=Block(cache=CACHE))
            walk = Walk(stage, problem, data.y(0, n), data.weights(0, n), np.array(grid), manner)
            for k in range(len(grid)):
                step = walk.step(k)
                coef = step.dual.sign * step.solved.alpha
                steps.append((coef, step.record))
    counts = [record["counts"] for _, record in steps]
    left = sum(record["left"] for _, record in steps)
    return {
        "coef": np.stack([coef for coef, _ in steps]),
        "screened": 1 - left / (n * len(values)),
        **{name: sum(c[f] for c in counts) for name, f in
           (("entries", "kernel_entries"), ("rounds", "rounds"))},
    }  # fmt: skip


def fitted(
    X: Any, y: np.ndarray, values: list[float], gamma: float, threads: int, tol: float,
    solver: str,
) -> dict[str, Any]:  # fmt: skip
    """Fit a peer cold at every value."""
    coefs = np.zeros((len(values), len(y)))
    for own, C in zip(coefs, values, strict=True):
        found = machine(solver, threads, C=C, gamma=gamma, tol=tol, cache_size=2000).fit(X, y)
        coef = found.dual_coef_
        own[found.support_] = np.ravel(coef.toarray() if hasattr(coef, "toarray") else coef)
    return {"coef": coefs, "screened": 0.0, "entries": 0, "rounds": 0}


def main() -> None:
    order = json.loads(sys.argv[1])
    out, solver, values = order.pop("out"), order.pop("solver"), order.pop("values")
    with np.load(order.pop("data")) as parts:
        # The layout in which each is faster on rows of mostly zeros.
        X, y = native(parts["X"], solver, "csr"), parts["y"]
    run = walked
    if solver != "bigscreen":
        run, order["solver"] = fitted, solver  # type: ignore[assignment]
    few = np.random.default_rng(0).permutation(X.shape[0])[:WARM_UP_ROWS]
    with threadpoolctl.threadpool_limits(order["threads"]):
        run(X[few], y[few], values[:2], **order)
        before = resident_bytes(reset=True)
        began = clocks()
        found = run(X, y, values, **order)
        seconds, processor, everyone = clocks() - began
        peak = resident_bytes(peak=True)
    found |= {"seconds": seconds, "processor_seconds": processor}
    found |= {"elsewhere_seconds": max(0.0, everyone - processor)}
    np.savez(out, **found, peak_bytes=peak, run_bytes=peak - before)


if __name__ == "__main__":
    main()
