"""Hard machines on few rows: each bigscreen solver and LIBLINEAR, each for some seconds.

    python -m pipelines.bench.hard [--seconds 6] [--quick]

First, made-up rows (`make_classification` with a tenth of the labels flipped and half of the
columns sums of others; and Gaussian rows), C from 1 to 100, to a relative gap of 1e-6, with an
appended constant for an offset. Our solvers stop at the given seconds. LIBLINEAR (scikit-learn's
``LinearSVC``) stops after the passes that fit into about this time, or at its tol of 1e-3 (a
smaller one makes it slower); its gap is its P minus the best D that our solvers prove. Second,
machines on landmarks of rows that no plane separates, by Newton and the interior point, to the
usual gap and to 1e-6. Third, exact machines on unscaled rows, or with a large C, to the usual gap:
our default, our steps on alpha alone, and LIBSVM (scikit-learn's ``SVC``, tol 1e-3) for about the
given time.
"""

from __future__ import annotations

import argparse
import time
import warnings

import numpy as np
from sklearn.datasets import load_breast_cancer, make_classification
from sklearn.svm import SVC as KernelPeer
from sklearn.svm import LinearSVC as Peer

from bigscreen import SVC, LinearSVC, NystroemSVC
from pipelines.bench import common

TASKS = ((700, 400, 1.0), (700, 400, 100.0), (1000, 400, 100.0), (2000, 800, 10.0))
GAUSSIAN = ((1500, 784, 1.0), (3000, 1200, 100.0))
SOLVERS = ("interior", "newton", "pairs", "cd")
TOL = 1e-6
LANDMARKS = ((150, 100), (450, 300), (900, 300), (1500, 1000), (2900, 1000))
CURVED = ((0.05, 1.0), (0.05, 1000.0), (0.5, 1000.0))
"""Cases of machines on landmarks: gamma and C of each."""
TABLE: tuple[dict[str, object], ...] = (
    {"kernel": "linear", "C": 1.0},
    {"kernel": "linear", "C": 1000.0},
    {"kernel": "poly", "gamma": 1e-3, "C": 1.0},
)
MADE: tuple[tuple[int, int, dict[str, object]], ...] = (
    (2000, 5, {"kernel": "linear", "C": 1e4}),
    (2000, 5, {"kernel": "poly", "gamma": 1.0, "coef0": 1.0, "C": 1e3}),
    (2000, 5, {"kernel": "rbf", "gamma": 0.01, "C": 1e6}),
    (20000, 20, {"kernel": "linear", "C": 1e3}),
)
"""Exact machines: on the unscaled breast cancer table, and on rows of `curved`."""


def alike(n: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    """Make rows (n, d) half of whose columns are sums of an eighth of the columns; labels (n,)."""
    how = {"n_informative": d // 8, "n_redundant": d // 2, "flip_y": 0.1, "random_state": 0}
    found: tuple[np.ndarray, np.ndarray] = make_classification(n, d, **how)
    return found


def gaussian(n: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    """Make rows (n, d) of independent columns, and labels (n,) by a noisy sum of five columns."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d))
    return X, (0.3 * X[:, :5].sum(axis=1) + rng.normal(size=n) > 0).astype(int)


def curved(n: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    """Make Gaussian rows (n, d), and labels (n,) by a curved border with a tenth flipped."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d)).astype(np.float32)
    y = (np.sin(2 * X[:, 0]) + X[:, 1] * X[:, -1] > 0) ^ (rng.random(n) < 0.1)
    return X, y.astype(int)


def objective(machine: Peer, X: np.ndarray, y: np.ndarray, C: float) -> float:
    """Compute P of a fitted machine with a penalised offset."""
    w, b = machine.coef_[0], machine.intercept_[0]
    losses = np.maximum(0.0, 1.0 - np.where(y > 0, 1.0, -1.0) * (X @ w + b))
    return 0.5 * float(w @ w + b * b) + C * float(losses.sum())


def ours(solver: str, X: np.ndarray, y: np.ndarray, C: float, budget: float) -> tuple[float, ...]:
    """Fit with one of our solvers; return seconds, relative gap and D."""
    machine = LinearSVC(loss="hinge", C=C, tol=TOL, solver=solver, time_budget=budget)
    began = time.perf_counter()
    machine.fit(X, y)
    (proof,) = machine.model_.provenance["certificates"]
    return time.perf_counter() - began, proof["relative_gap"], proof["dual"]


def on_landmarks(budget: float, quick: bool) -> list[tuple[str, ...]]:
    """Make the lines of the table of machines on landmarks."""
    lines = []
    for n, m in LANDMARKS[: 1 if quick else None]:
        X, y = curved(n, 8)
        for gamma, C in CURVED[: 1 if quick else None]:
            cells = []
            for tol in (1e-3, TOL):
                for solver in ("interior", "newton"):
                    of = {"n_components": m, "gamma": gamma, "C": C, "random_state": 0}
                    machine = NystroemSVC(**of, tol=tol, solver=solver, time_budget=budget)
                    machine.fit(X[:m], y[:m])
                    began = time.perf_counter()
                    machine.fit(X, y)
                    took = time.perf_counter() - began
                    cells.append(f"{took:.2f} s, {max(machine.relative_gap_, 0.0):.0e}")
            lines.append((f"{n:,}, {m:,} landmarks", f"{gamma:g}", f"{C:g}", *cells))
    return lines


def exact(budget: float, quick: bool) -> list[tuple[str, ...]]:
    """Make the lines of the table of exact machines."""
    table = load_breast_cancer(return_X_y=True)
    tasks = [("569 x 30, unscaled", *table, machine) for machine in TABLE]
    tasks += [(f"{n:,} x {d}", *curved(n, d), machine) for n, d, machine in MADE]
    lines = []
    for rows, X, y, machine in tasks[: 1 if quick else None]:
        runs, D = [], 0.0
        for solver in ("auto", "block" if len(X) > 5000 else "pairs"):
            own = SVC(**machine, solver=solver, time_budget=budget)
            own.fit(X[:100], y[:100])  # compiled functions are read from the disk
            began = time.perf_counter()
            own.fit(X, y)
            (proof,) = own.certificate_
            runs.append((time.perf_counter() - began, proof["relative_gap"]))
            D = max(D, proof["dual"])
        steps, took = 20_000, 0.0
        for _ in range(3):
            peer = KernelPeer(**machine, max_iter=steps)
            began = time.perf_counter()
            peer.fit(X, y)
            took = time.perf_counter() - began
            steps = int(steps * max(1.0, budget / max(took, 1e-4)))
        P = exact_objective(peer, X, y)
        runs.append((took, (P - D) / P))
        cells = [f"{run[0]:.2f} s, {max(run[1], 0.0):.0e}" for run in runs]
        lines.append((rows, ", ".join(f"{k}={v}" for k, v in machine.items()), *cells))
    return lines


def exact_objective(machine: KernelPeer, X: np.ndarray, y: np.ndarray) -> float:
    """Compute P of a fitted kernel machine."""
    scores = machine.decision_function(X)
    square = float(machine.dual_coef_[0] @ (scores[machine.support_] - machine.intercept_[0]))
    losses = np.maximum(0.0, 1.0 - np.where(y > 0, 1.0, -1.0) * scores)
    return 0.5 * square + machine.C * float(losses.sum())


def peers(X: np.ndarray, y: np.ndarray, C: float, budget: float) -> tuple[float, float]:
    """Run LIBLINEAR for 200 passes, then twice for the allowed time; return seconds and P."""
    passes, took = 200, 0.0
    for _ in range(3):
        machine = Peer(loss="hinge", C=C, tol=1e-3, max_iter=passes, random_state=0)
        began = time.perf_counter()
        machine.fit(X, y)
        took = time.perf_counter() - began
        passes = max(passes, int(passes * budget / max(took, 1e-4)))
    return took, objective(machine, X, y, C)


def main() -> None:
    parser = argparse.ArgumentParser(description="Hard machines on few rows.")
    parser.add_argument("--seconds", type=float, default=6.0, help="for each solver [6]")
    parser.add_argument("--quick", action="store_true", help="the first task of each table")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    tasks = [(alike, *task) for task in TASKS] + [(gaussian, *task) for task in GAUSSIAN]
    table = []
    for made, n, d, C in tasks[: 1 if given.quick else None]:
        X, y = made(n, d)
        for solver in SOLVERS:
            ours(solver, X[:50], y[:50], C, 1.0)  # compiled functions are read from the disk
        runs = [ours(solver, X, y, C, given.seconds) for solver in SOLVERS]
        took, P = peers(X, y, C, given.seconds)
        runs.append((took, (P - max(run[2] for run in runs)) / P, 0.0))
        cells = [f"{run[0]:.2f} s, {max(run[1], 0.0):.0e}" for run in runs]
        table.append((f"{n:,} x {d} {made.__name__}", f"{C:g}", *cells))
    heads = ("rows", "C", *SOLVERS, "LIBLINEAR")
    title = f"Seconds and relative gap; at most {given.seconds:g} s each"
    common.show(title, heads, table)
    heads = ("rows", "gamma", "C", *(f"{s}, to {t:g}" for t in (1e-3, TOL) for s in SOLVERS[:2]))
    common.show(title, heads, on_landmarks(given.seconds, given.quick))
    heads = ("rows", "machine", "auto", "steps on alpha", "LIBSVM")
    common.show(title, heads, exact(given.seconds, given.quick))


if __name__ == "__main__":
    main()
