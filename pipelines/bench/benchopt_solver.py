"""The linear machine as a solver of benchopt's `benchmark_linear_svm_binary_classif_no_intercept`.

Copy this file to ``solvers/bigscreen.py`` of the benchmark and run ``benchopt run . -s bigscreen``.
It ran under benchopt 1.10 after the benchmark's objective and data set, which are written for an
older benchopt, had been changed to take results by name (`evaluate_result(beta)`).
`python -m pipelines.bench.curves` draws its curve without benchopt and without a network.
"""

from typing import Any

import numpy as np

from bigscreen import LinearSVC

try:
    from benchopt import BaseSolver
    from benchopt.stopping_criterion import SufficientProgressCriterion
except ImportError:  # `pipelines.bench.curves` needs no more than the methods below
    BaseSolver, SufficientProgressCriterion = object, dict


class Solver(BaseSolver):  # type: ignore[misc]  # benchopt has no types
    """Fits to relative duality gaps, down to 1e-9, which bound the objective's distance."""

    name = "bigscreen"
    # A point can be far better than its tolerance, and stay for some: not yet the end.
    stopping_criterion = SufficientProgressCriterion(strategy="tolerance", patience=10)
    sampling_strategy = "tolerance"
    install_cmd = "conda"
    requirements = ("pip::bigscreen",)

    def set_objective(self, X: Any, y: Any, C: float) -> None:
        self.X, self.y = X, y
        self.machine = LinearSVC(loss="hinge", C=C, fit_intercept=False, max_iter=10_000)

    def run(self, tolerance: float) -> None:
        # benchopt's tolerances fall by half in each run; their cubes come to 1e-9 in ten.
        self.machine.set_params(tol=max(min(tolerance**3, 0.5), 1e-9)).fit(self.X, self.y)

    def get_result(self) -> dict[str, Any]:
        return {"beta": np.ravel(self.machine.coef_)}
