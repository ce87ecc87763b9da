"""Objective over time of linear hinge machines without an offset, the benchmark of benchopt.

    python -m pipelines.bench.curves [--quick]

The solver file for benchopt, scikit-learn's LinearSVC (LIBLINEAR) and, if it is installed, skglm's,
each as benchopt runs them: a fit from the start for each limit (tolerance or passes). Rows are made
up, dense and sparse; no network is needed. The number is (P - D) / D, where D is the largest dual
objective that a certificate proves: but for rounding no solver can come below 0.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.svm import LinearSVC as Peer

from pipelines.bench.benchopt_solver import Solver
from pipelines.bench.common import show

TOLERANCES = (0.5, 1e-2, 1e-4, 1e-6, 1e-9)
PASSES = (1, 10, 100, 1000, 10_000)


def made(n: int, d: int, density: float) -> tuple[Any, np.ndarray]:
    """Make rows (n, d), dense or CSR, and labels -1 and 1 by a noisy hyperplane."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d))
    if density < 1:
        X = sparse.random(n, d, density, "csr", rng=rng, data_rvs=rng.standard_normal)
    scores = X @ rng.normal(size=d)
    return X, np.where(scores + scores.std() * rng.normal(size=n) > 0, 1.0, -1.0)


def peers(X: Any, y: np.ndarray, C: float) -> Iterator[tuple[str, Callable[[int], np.ndarray]]]:
    """Yield each peer's name and the function that fits with a number of passes and gives w."""

    def liblinear(passes: int) -> np.ndarray:
        own = {"loss": "hinge", "C": C, "fit_intercept": False, "random_state": 0}
        return Peer(tol=1e-12, max_iter=passes, **own).fit(X, y).coef_[0]

    yield "LIBLINEAR", liblinear
    if find_spec("skglm") is not None:
        from skglm import LinearSVC

        def skglm(passes: int) -> np.ndarray:
            own = {"C": C, "fit_intercept": False, "tol": 1e-12}
            return LinearSVC(max_iter=passes, **own).fit(X, y).coef_.ravel()

        skglm(1)  # compiles
        yield "skglm", skglm


def curves(X: Any, y: np.ndarray, C: float, most: int) -> dict[str, list[tuple[float, float]]]:
    """Fit with every solver; return its points (seconds, (P - D) / D) by the solver's name."""

    def objective(w: np.ndarray) -> float:
        return 0.5 * float(w @ w) + C * float(np.maximum(0.0, 1.0 - y * (X @ w)).sum())

    def timed(run: Callable[[Any], np.ndarray], limits: tuple[Any, ...]) -> Any:
        for limit in limits:
            began = time.perf_counter()
            w = run(limit)
            yield time.perf_counter() - began, objective(w)

    solver = Solver()
    solver.set_objective(X, y, C)

    def ours(tolerance: float) -> np.ndarray:
        solver.run(tolerance ** (1 / 3))
        return solver.get_result()["beta"]

    ours(0.5)  # compiles
    found = {"bigscreen": list(timed(ours, TOLERANCES))}
    D = solver.machine.certificate_[0]["dual"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for name, run in peers(X, y, C):
            found[name] = list(timed(run, tuple(k for k in PASSES if k <= most)))
    return {
        name: [(seconds, (value - D) / D) for seconds, value in points]
        for name, points in found.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few rows and passes")
    quick = parser.parse_args().quick
    shapes = {"dense": (20_000, 100, 1.0), "sparse": (20_000, 5_000, 0.01)}
    for name, (n, d, density) in shapes.items():
        X, y = made(n // 20 if quick else n, d // 20 if quick else d, density)
        for C in (0.01, 1.0):
            points = curves(X, y, C, 100 if quick else PASSES[-1])
            cells = [
                (one, *(f"{seconds:.2f} s: {far:.0e}" for seconds, far in line))
                for one, line in points.items()
            ]
            width = max(map(len, cells))
            title = f"{name}, {X.shape[0]:,} x {X.shape[1]:,}, C = {C:g}"
            heads = ("solver", *["to the optimum"] * (width - 1))
            show(title, heads, [(*row, *[""] * (width - len(row))) for row in cells])


if __name__ == "__main__":
    main()
