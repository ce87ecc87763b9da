"""Classifiers that choose their parameters by cross-validation, with paths over shared features."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import KW_ONLY, dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from bigscreen.data.other_arrays import on_host
from bigscreen.data.rows import Rows
from bigscreen.errors import InputError
from bigscreen.estimators.base import INTERCEPTS, Classifier, intercept_option, tuning_of
from bigscreen.estimators.path import cv_folds
from bigscreen.model.model import Model
from bigscreen.options.train import TrainOptions
from bigscreen.options.tuning import Tuning
from bigscreen.report.tune import TuneReport
from bigscreen.tune.options import TuneOptions, default_gammas
from bigscreen.tune.search import tune

PUBLISHED = {
    "mean_test_score": "mean",
    "std_test_score": "std",
    "n_resources": "rows",
    "iter": "rung",
    "relative_gap": "gap",
}
"""Columns of ``cv_results_``, with their names in the record of a search (`tune.search`)."""


@dataclass(eq=False, repr=False, kw_only=True)
class _Search(Classifier):
    """Base of the classifiers with a parameter search: common parameters and the search."""

    # Searches run on threads of this process only; `Machine` reads these attributes.
    scheduler = None
    work = None
    _exact = True
    _parameter = "C"

    cv: int | Sequence[Any] = 5
    elimination: str = "halving"
    scoring: str | Callable[..., float] | None = None
    kernel: str = "rbf"
    degree: int = 3
    coef0: float = 0.0
    class_weight: str | Mapping[Any, float] | None = None
    fit_intercept: bool | str = True
    tol: float = 1e-3
    time_budget: float | None = None
    random_state: Any = 0
    device: str = "auto"
    memory: int | None = None
    n_jobs: int | None = None
    verbose: int = 0

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Search the grid, and fit the best candidate to all rows.

        Parameters
        ----------
        X : array or sparse array (n_samples, n_features), data set or path of one
        y : array (n_samples,)
            Labels; left out if X is a data set.
        sample_weight : array (n_samples,), optional

        Returns
        -------
        self

        Raises
        ------
        InputError
            A ValueError: a grid with a repeated value, a class with fewer rows than folds,
            parameters or data that cannot be used.
        TimeOver
            If the time budget ends before any candidate has a score.
        """
        X, y, sample_weight = on_host(X, y, sample_weight)
        fit = self._options()
        with ExitStack() as owned:
            data, numbers = self._rows(X, y, sample_weight, owned)
            fit = self._adapt_options(fit, data)
            folds = cv_folds(self.cv, data, y, numbers)
            counts = self._counts(data)
            columns = data.n_rows if counts is None else max(counts)
            with self._fleet(data.n_rows * columns, X) as fleet:
                gammas = self.gammas
                if gammas is None:
                    gammas = default_gammas(data, fleet, str(fit.kernel))
                how = folds, self.elimination, self.scoring
                options = TuneOptions(fit, gammas, self._values(), counts, *how)
                report = owned.enter_context(TuneReport()) if self.verbose else None
                model = tune(data, options, fleet, report)
        self._publish(model, numbers)
        self._publish_results(model.provenance["search"])
        return self

    def _options(self) -> TrainOptions:
        """Convert the estimator's parameters to training options, without the searched ones."""
        own = {name: getattr(self, name) for name in ("degree", "coef0", "tol", "device", "memory")}
        return TrainOptions(
            problem=self._problem,
            kernel=self.kernel,
            exact=self._exact,
            seed=self._seed(),
            time_budget=self.time_budget,
            intercept=intercept_option(self.fit_intercept, INTERCEPTS),
            tuning=tuning_of(self),
            **own,
            **self._own_options(),
        )

    def _own_options(self) -> dict[str, Any]:
        """Return the training options of a subclass's own parameters, as keyword arguments."""
        return {}

    def _counts(self, data: Rows) -> list[int] | None:
        """Return the numbers of landmarks to try; None for the exact kernel."""
        return None

    def _values(self) -> Any:
        """Return the grid of C (a subclass: of nu)."""
        return self.Cs

    def _publish(self, model: Model, numbers: NDArray[np.int64] | None) -> None:
        """Set the fitted attributes; ``numbers``: the fitted rows' numbers in X, None for all."""
        super()._publish(model, numbers)
        if self._exact:
            support = np.asarray(model.support)
            self.support_ = support if numbers is None else numbers[support]
            self.support_vectors_ = model.landmarks
            self.dual_coef_ = model.coef
        else:
            self.components_, self.coef_ = model.landmarks, model.coef
        self.intercept_ = model.intercept

    def _publish_results(self, record: dict[str, Any]) -> None:
        """Set the search's attributes (``cv_results_``, ``best_params_``, ...) from its record.

        The record has "best" (parameters and score), "folds" (their number) and "candidates": for
        each its parameters, its scores and the last rung (number of rows) that it reached.
        """
        names = ["gamma", self._parameter]
        names += [] if self._exact else ["landmarks"]
        called = {"landmarks": "n_components"}
        self.search_ = record
        self.best_params_ = {called.get(name, name): record["best"][name] for name in names}
        self.best_score_ = float(record["best"]["score"])
        points = record["candidates"]
        columns: dict[str, NDArray[Any]] = {
            f"param_{called.get(name, name)}": np.array([point[name] for point in points])
            for name in names
        }
        for name, key in PUBLISHED.items():
            columns[name] = np.array([point.get(key, np.nan) for point in points], dtype=np.float64)
        for f in range(record["folds"]):
            scores = [point["scores"][f] if "scores" in point else np.nan for point in points]
            columns[f"split{f}_test_score"] = np.array(scores)
        rows, mean = columns["n_resources"], columns["mean_test_score"]
        # As in scikit-learn's halving: a candidate that reached a later rung ranks higher.
        order = np.lexsort((-mean, -rows))
        rank = np.empty(len(points), np.int32)
        for place, k in enumerate(order):
            before = order[place - 1]
            same = place and rows[k] == rows[before] and mean[k] == mean[before]
            rank[k] = rank[before] if same else place + 1
        columns["rank_test_score"] = rank
        columns["params"] = np.array(
            [{called.get(name, name): point[name] for name in names} for point in points]
        )
        self.cv_results_ = columns
        self.best_index_ = next(
            k
            for k, point in enumerate(points)
            if all(point[name] == record["best"][name] for name in names)
        )

    @property
    def best_estimator_(self) -> Self:
        """The object itself, which predicts with the best parameters' fit to all rows."""
        return self


@dataclass(eq=False, repr=False)
class NystroemSVCCV(_Search):
    """`NystroemSVC` that chooses gamma, C and the number of landmarks by cross-validation.

    The values of C are solved as a path, each from the solution before it; all folds and values of
    C share the landmarks and features of a gamma. The best candidate is then fitted to all rows,
    with a certificate, and this object predicts with it.

    Parameters
    ----------
    gammas : array or None, default=None
        Ascending values; None: nine values, by factors of two around "scale".
    Cs : array, default=(0.01, 0.1, 1.0, 10.0, 100.0)
        Ascending values.
    n_components : int or sequence of int, default=500
        Numbers of landmarks to try, ascending.
    cv : int or list of (rows to fit, rows to hold out), default=5
        Stratified folds, or the row numbers of each.
    elimination : {"halving", "none"}, default="halving"
        "halving": the best third goes on to three times as many rows, and the best candidate's
        neighbours in the grid to all rows (a heuristic); "none": all candidates get all rows.
    scoring : str, callable or None, default=None
        What candidates are judged by on held-out rows: a name that `bigscreen tune --metric` has,
        or one of scikit-learn's scorers, by name or as a function, that needs labels and decision
        values only (it gets decision values as rows). None: accuracy.
    kernel : {"rbf", "polynomial", "laplacian", "sigmoid", "matern12", "matern32", "matern52", \
    "chi2"}, default="rbf"
        As in `NystroemSVC`.
    degree, coef0, sampling, class_weight, fit_intercept
        As in `NystroemSVC`.
    tol : float, default=1e-3
        Relative duality gap to prove on all rows; it is 0.01 on a part of the rows.
    time_budget : float or None, default=None
        Seconds; three quarters are for the search, and the rest for the fit of its best candidate.
    random_state : int, RandomState or None, default=0
        Seed for folds, rungs and landmarks.
    device : {"auto", "cpu", "cuda"}, default="auto"
        As in `NystroemSVC`; a GPU solves all folds and values of C of a gamma at once.
    memory, n_jobs, verbose, tuning
        As in `NystroemSVC`.

    Attributes
    ----------
    best_params_ : dict
        gamma, C and n_components.
    best_score_ : float
        Mean score over the folds.
    cv_results_ : dict of arrays (candidates,)
        param_gamma, param_C, param_n_components, params, mean_test_score, std_test_score,
        split0_test_score and so on, rank_test_score, and for the last rung that a candidate reached
        (``iter``) the number of rows (``n_resources``) and the largest relative gap of its folds.
    best_index_ : int
    best_estimator_ : NystroemSVCCV
        This object.
    search_ : dict
        The whole record: which candidates were dropped at which rung, by which rule.
    classes_, n_features_in_, components_, coef_, intercept_, dual_gap_, relative_gap_, \
    certificate_, model_
        As in `NystroemSVC`, for the best machine.
    """

    _exact = False

    gammas: Any = None
    Cs: Any = (0.01, 0.1, 1.0, 10.0, 100.0)
    _: KW_ONLY
    n_components: int | Sequence[int] = 500
    sampling: str = "uniform"
    fit_intercept: bool | str = "penalized"
    tuning: Tuning | None = None

    def _own_options(self) -> dict[str, Any]:
        """Return the training options of this class's own parameters, as keyword arguments."""
        return {"sampling": self.sampling, "landmarks": 1}

    def _counts(self, data: Rows) -> list[int]:
        """Return the numbers of landmarks to try; a single one is at most the number of rows."""
        counts = np.atleast_1d(np.asarray(self.n_components))
        if counts.ndim > 1 or counts.dtype.kind not in "iu":
            raise InputError(
                f"n_components must be whole numbers of landmarks, got {self.n_components!r}"
            )
        # A single number larger than the number of rows means all rows.
        least = [min(int(counts[0]), data.n_rows)] if not np.ndim(self.n_components) else None
        return least or [int(m) for m in counts]


@dataclass(eq=False, repr=False)
class SVCCV(_Search):
    """`SVC` that chooses gamma and C by cross-validation, with the exact kernel.

    The values of C are solved as a path, each from the solution before it, over one kernel matrix
    for all folds of a gamma. The best candidate is then fitted to all rows, with a certificate, and
    this object predicts with it. More than two classes are fitted one against the rest.

    Parameters
    ----------
    gammas : array or None, default=None
        Ascending values; None: nine values, by factors of two around "scale".
    Cs : array, default=(0.01, 0.1, 1.0, 10.0, 100.0)
        Ascending values.
    cv, elimination, scoring, tol, time_budget, random_state
        As in `NystroemSVCCV`.
    kernel : {"rbf", "polynomial", "laplacian", "sigmoid", "matern12", "matern32", "matern52", \
    "chi2"}, default="rbf"
        As in `NystroemSVC`.
    degree, coef0, class_weight, fit_intercept
        As in `SVC`.
    device : {"auto", "cpu", "cuda"}, default="auto"
        As in `SVC`, for the fit of the best candidate; the search is solved on the CPU.
    memory, n_jobs, verbose
        As in `NystroemSVC`.

    Attributes
    ----------
    best_params_, best_score_, cv_results_, best_index_, best_estimator_, search_
        As in `NystroemSVCCV`.
    classes_, n_features_in_, support_, support_vectors_, dual_coef_, intercept_, dual_gap_, \
    relative_gap_, certificate_, model_
        Attributes of the best machine; ``dual_coef_`` has a row of coefficients for each score.
    """

    gammas: Any = None
    Cs: Any = (0.01, 0.1, 1.0, 10.0, 100.0)


@dataclass(eq=False, repr=False)
class NuSVCCV(_Search):
    """`NuSVC` that chooses gamma and nu by cross-validation, with the exact kernel.

    Parameters
    ----------
    gammas : array or None, default=None
        Ascending values; None: nine values, by factors of two around "scale".
    nus : array, default=(0.1, 0.2, 0.3, 0.4, 0.5)
        Ascending values in (0, 1], feasible for the weights of the classes in every fold.
    cv, elimination, scoring, kernel, degree, coef0, class_weight, fit_intercept, tol, time_budget
        As in `SVCCV`.
    random_state, device, memory, n_jobs, verbose
        As in `SVCCV`.

    Attributes
    ----------
    best_params_ : dict
        gamma and nu. All other attributes are as in `SVCCV`.
    """

    _problem = "nu-svc"
    _parameter = "nu"

    gammas: Any = None
    nus: Any = (0.1, 0.2, 0.3, 0.4, 0.5)

    def _values(self) -> Any:
        """Return the grid of nu."""
        return self.nus
