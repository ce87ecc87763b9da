"""A path of 100 values of C of a linear machine, against 100 cold fits of scikit-learn.

    python -m pipelines.bench.path.linear [--only ijcnn1 covtype] [--repeat 3] [--quick] [--out DIR]

ijcnn1 (49,990 x 22, CSR) and covtype (the first 20,000 rows, class 2 against the rest, columns
scaled to [0, 1]), 100 values of C log-spaced in [.01, 10], no offset. Ours is proved to a relative
gap of 1e-4 over all rows at every value, and once more of 1e-6; scikit-learn's are LIBLINEAR's
dual coordinate descent, tol 1e-4 and 30,000 epochs at most, one cold fit a value. All run on one
thread, in turns, from float arrays in memory; figures are medians of the turns. The gap of each
LIBLINEAR fit is computed afterwards in float64: its objective less the dual value of a path proved
to 1e-8.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import threadpoolctl
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.svm import LinearSVC

from bigscreen.path.explicit import ColumnsStage
from bigscreen.path.walk import PathSettings, Step, Walk
from bigscreen.problems.recipes import CSvc
from bigscreen.screening.sequential import Dvi
from pipelines.bench import common
from pipelines.bench.exact import tasks

TOL = 1e-4
FINER = 1e-6
SHARE = 0.2
"""Goal: the path takes at most this part of LIBLINEAR's time."""
EPOCHS = 30_000
SCREENING = {
    "none": ((), False),
    "gap ball": ((), True),
    "DVI": ((Dvi(),), False),
    "DVI, gap ball": ((Dvi(),), True),
}
USUAL = ("DVI, gap ball", True)


def ijcnn1() -> tuple[Any, np.ndarray]:
    X, y, *_ = tasks.ijcnn1()
    return sparse.csr_array(X), y


def covtype() -> tuple[Any, np.ndarray]:
    X, y, X_test, y_test = tasks.covtype()
    X = np.vstack([X, X_test])
    low, high = X.min(axis=0), X.max(axis=0)
    return (X - low) / np.where(high > low, high - low, 1), np.concatenate([y, y_test])


DATA: dict[str, Callable[[], tuple[Any, np.ndarray]]] = {"ijcnn1": ijcnn1, "covtype": covtype}


def walked(
    X: Any, y: np.ndarray, values: np.ndarray, tol: float, screening: str, warm: bool
) -> tuple[list[Step], np.ndarray]:
    """Solve a path from arrays; return its points, and its seconds (wall, processor)."""
    rules, dynamic = SCREENING[screening]
    began = _clocks()
    stage = ColumnsStage(X)
    manner = PathSettings(tol, rules, dynamic, warm)
    walk = Walk(stage, CSvc(values[0], 1), y > 0, np.ones(len(y)), values, manner)
    steps = [walk.step(k) for k in range(len(values))]
    return steps, _clocks() - began


def cold_fits(X: Any, y: np.ndarray, values: np.ndarray) -> tuple[list[tuple], np.ndarray]:
    """Fit LIBLINEAR at every value; return (w, converged) of each, and the total seconds."""
    found = []
    began = _clocks()
    for C in values:
        machine = LinearSVC(
            C=C, loss="hinge", fit_intercept=False, tol=1e-4, max_iter=EPOCHS, random_state=0
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            machine.fit(X, y)
        found.append((machine.coef_[0], machine.n_iter_ < EPOCHS))
    return found, _clocks() - began


def compared(name: str, values: np.ndarray, repeat: int) -> dict[str, Any]:
    """Run both in turns on one data set, and measure the effect of screening and warm starts."""
    X, y = DATA[name]()
    theirs = sparse.csr_array(X).astype(np.float64)  # the rows as LIBLINEAR keeps them
    seconds: dict[str, list[np.ndarray]] = {"path": [], "finer": [], "fits": []}
    for _ in range(repeat):
        steps, own = walked(X, y, values, TOL, *USUAL)
        finer, longer = walked(X, y, values, FINER, *USUAL)
        fits, other = cold_fits(theirs, y, values)
        for key, took in zip(seconds, (own, longer, other), strict=True):
            seconds[key].append(took)
    best, _ = walked(X, y, values, 1e-8, *USUAL)
    gaps = [
        _primal(theirs, y, C, w) / step.solved.dual - 1
        for (w, _), step, C in zip(fits, best, values, strict=True)
    ]
    medians = {key: np.median(runs, axis=0).tolist() for key, runs in seconds.items()}
    return {
        "name": name,
        "shape": list(X.shape),
        "values": len(values),
        "seconds": medians,
        "path_gaps": _proved(steps),
        "finer_gaps": _proved(finer),
        "fit_gaps": gaps,
        "not_converged": sum(not converged for _, converged in fits),
        "parts": {
            f"{screening}, {'warm' if warm else 'cold'}": _part(
                *walked(X, y, values, TOL, screening, warm)
            )
            for screening in SCREENING
            for warm in (False, True)
        },
    }


def _proved(steps: list[Step]) -> list[float]:
    """Compute the relative gaps of a path's points, including rounding."""
    return [(own.gap + own.rounding) / own.primal for own in (step.solved for step in steps)]


def _timed(seconds: list[float]) -> tuple[str, str]:
    return f"{seconds[0]:.2f}", f"{seconds[1]:.2f}"


def _part(steps: list[Step], seconds: np.ndarray) -> dict[str, float]:
    records = [step.record for step in steps]
    return {
        "seconds": float(seconds[0]),
        "rules": sum(r["seconds"]["rules"] for r in records),
        "solver": sum(r["seconds"]["solver"] for r in records),
        "left": float(np.mean([r["left"] / r["rows"] for r in records])),
        "screened_later": sum(r["counts"]["screened"] for r in records) / len(records),
        "steps": sum(r["counts"]["steps"] for r in records) / len(records),
        "largest_gap": max(r["relative_gap"] for r in records),
    }


def _primal(X: Any, y: np.ndarray, C: float, w: np.ndarray) -> float:
    return 0.5 * float(w @ w) + C * float(np.maximum(1 - y * (X @ w), 0).sum())


def _clocks() -> np.ndarray:
    return np.array([time.perf_counter(), time.process_time()])


def tables(sets: list[dict[str, Any]]) -> None:
    rows = []
    for s in sets:
        fits = s["seconds"]["fits"]
        shape = f"{s['name']} {s['shape'][0]:,} x {s['shape'][1]}"
        worst = f"{max(s['fit_gaps']):.1e}"
        rows.append((shape, "LinearSVC", *_timed(fits), s["not_converged"], worst, "", ""))
        for key, tol in (("path", TOL), ("finer", FINER)):
            share = s["seconds"][key][0] / fits[0]
            proved = max(s[f"{key}_gaps"])
            met = common.verdict(share <= SHARE and proved <= tol)
            missed = sum(gap > tol for gap in s[f"{key}_gaps"])
            timed = _timed(s["seconds"][key])
            rows.append(
                ("", f"path, {tol:.0e}", *timed, missed, f"{proved:.1e}", f"{share:.3f}", met)
            )
    common.show(
        f"{sets[0]['values']} values of C, cold fits and paths: medians",
        ["data", "", "seconds", "processor", "not conv.", "worst gap", "share", f"<= {SHARE:g}"],
        rows,
    )
    for s in sets:
        common.show(
            f"{s['name']}: what screening and warm starts bring (one run each)",
            ["screening, start", "seconds", "rules", "solver", "rows left", "later", "steps"],
            [
                (
                    name,
                    f"{part['seconds']:.2f}",
                    f"{part['rules']:.2f}",
                    f"{part['solver']:.2f}",
                    f"{part['left']:.1%}",
                    f"{part['screened_later'] / s['shape'][0]:.1%}",
                    f"{part['steps']:.1f}",
                )
                for name, part in s["parts"].items()
            ],
        )
    print("rows left: after DVI, of all; later: taken out by the gap ball; steps of Newton a value")


def main() -> None:
    parser = common.arguments(__doc__.splitlines()[0], list(DATA))
    parser.add_argument("--repeat", type=int, default=3, help="turns [3]")
    parser.add_argument("--quick", action="store_true", help="10 values, one turn")
    options = parser.parse_args()
    values = np.logspace(-2, 1, 10 if options.quick else 100)
    with threadpoolctl.threadpool_limits(1):
        for name in options.only:  # compiles, so that no path pays for it
            X, y = DATA[name]()
            walked(X[:500], y[:500], values[::3], TOL, *USUAL)
        repeat = 1 if options.quick else options.repeat
        sets = [compared(name, values, repeat) for name in options.only]
    tables(sets)
    common.save(options.out, "path_linear", {"tol": TOL, "sets": sets})


if __name__ == "__main__":
    main()
