"""SMO's working sets: which variables a step moves, in steps and in kernel entries.

    python -m pipelines.zimmert2015.working_sets [--rows N] [--C C] [--gamma G] [--eps E] [--json F]

On made-up rows of the shape of SUSY (no real data), every selection (by the gain in the dual, or
the worst violation) with every working set (one variable, two), without an offset and with
LIBSVM's; all stop by LIBSVM's rule, so scikit-learn's SVC is comparable with the last.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.svm import SVC

from bigscreen.data.memory import MemoryDataset
from bigscreen.data.synthetic import susy_like
from bigscreen.features.design import Design
from bigscreen.fit.loop import fit
from bigscreen.fit.monitor import Limits
from bigscreen.fleet.inline import Inline
from bigscreen.kernels.standard import Rbf
from bigscreen.problems.recipes import CSvc
from bigscreen.report import report
from bigscreen.solvers.protocol import Run
from bigscreen.solvers.smo.solver import Pairs

CASES = [
    (offset, selection, size)
    for offset in ("none", "true")
    for selection in ("first", "second")
    for size in (1, 2)
    if (offset, size) != ("true", 1)  # one variable alone cannot keep the coupling's sum
]


def main() -> None:
    parser = argparse.ArgumentParser(description="SMO's working sets, compared.")
    parser.add_argument("--rows", type=int, default=3000, metavar="N", help="[3000]")
    parser.add_argument("--C", type=float, default=1.0, help="[1]")
    parser.add_argument("--gamma", type=float, default=1 / 18, help="[1/18]")
    parser.add_argument("--eps", type=float, default=1e-3, help="LIBSVM's stopping rule [1e-3]")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the record as JSON")
    given = parser.parse_args()
    parts = list(susy_like(given.rows, 0))
    X = np.concatenate([rows for rows, _ in parts])
    y = np.concatenate([labels for _, labels in parts]).astype(np.int32)
    data = MemoryDataset(X, y, [0, 1])
    title = f"{given.rows:,} made-up rows of the shape of SUSY, C {given.C:g}, eps {given.eps:g}"
    print(title, flush=True)
    runs = [one(data, given, *case) for case in CASES]
    runs.append(libsvm(X, y, given))
    table = Table()
    heads = ("offset", "selection", "working set", "steps", "kernel entries", "relative gap")
    for head in (*heads, "time"):
        table.add_column(head, justify="right" if head not in heads[:2] else "left")
    for run in runs:
        entries, gap = run["kernel_entries"], run["relative_gap"]
        table.add_row(
            run["offset"],
            run["selection"],
            str(run["working_set"]),
            f"{run['steps']:,}",
            "" if entries is None else f"{entries:,}",
            "" if gap is None else f"{gap:.1e}",
            report.seconds(run["seconds"]),
        )
    Console(highlight=False).print(table)
    if given.json:
        report.write_json(given.json, {"data": title, "runs": runs})


def one(
    data: MemoryDataset, given: argparse.Namespace, offset: str, selection: str, size: int
) -> dict[str, Any]:
    """Solve once, certified over all rows."""
    design, problem = Design(data, Rbf(given.gamma)), CSvc(given.C, 1, (), offset)
    # Entries are counted: those that steps ask for, not the matrix at once.
    solver = Pairs(selection, size, whole=0, eps=given.eps)
    with Inline(1) as fleet:
        # (No target gap: LIBSVM's rule ends the solve.)
        found = fit(Run(design, problem, fleet), solver, Limits(0.0, 1_000_000))
    last = found.history[-1]
    return {
        "offset": offset,
        "selection": selection,
        "working_set": size,
        "steps": last["steps"],
        "kernel_entries": last["kernel_entries"],
        "relative_gap": found.certificate.relative_gap,
        "seconds": found.seconds["solve"],
    }


def libsvm(X: np.ndarray, y: np.ndarray, given: argparse.Namespace) -> dict[str, Any]:
    """Fit scikit-learn's SVC to the rows."""
    machine = SVC(C=given.C, gamma=given.gamma, tol=given.eps, shrinking=False)
    began = time.monotonic()
    machine.fit(X, y)
    return {
        "offset": "true",
        "selection": "LIBSVM",
        "working_set": 2,
        "steps": int(machine.n_iter_[0]),
        "kernel_entries": None,
        "relative_gap": None,
        "seconds": time.monotonic() - began,
    }


if __name__ == "__main__":
    main()
