"""Solve a machine for a grid of C or nu in one call: `svm_path`, `nu_path` and `SVCPathCV`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_array, check_X_y, column_or_1d
from sklearn.utils.multiclass import check_classification_targets

from bigscreen.data.memory import MemoryDataset
from bigscreen.data.other_arrays import on_host
from bigscreen.data.rows import Rows
from bigscreen.data.targets import check_weights
from bigscreen.errors import InputError
from bigscreen.estimators.base import (
    INTERCEPTS,
    MAX_SERIAL_ENTRIES,
    Classifier,
    check_components,
    intercept_option,
)
from bigscreen.estimators.inputs import Labelled, Targets, is_store, open_store, plain_labels
from bigscreen.files.scratch import scratch
from bigscreen.fleet.blas import blas_threads
from bigscreen.fleet.inline import Inline
from bigscreen.model.solved_path import SolvedPath
from bigscreen.options.train import PROBLEMS, TrainOptions
from bigscreen.path.folds import Folds, checked_folds
from bigscreen.path.options import PathOptions
from bigscreen.path.prepare import beyond_memory
from bigscreen.path.run import train_path
from bigscreen.report.path import PathBar


def svm_path(
    X: Any,
    y: Any = None,
    Cs: ArrayLike = (0.01, 0.1, 1.0, 10.0),
    *,
    problem: str = "c-svc",
    **how: Any,
) -> SolvedPath:
    """Solve a machine for every value of C in one call, each proved to a gap.

    Every point starts at the solution before it, and rows whose dual variable is provably at a
    bound are left out before and during the solve. Objectives equal those of separate fits, up to
    ``tol``.

    Parameters
    ----------
    X : array or sparse array (n_samples, n_features), data set, or path of one
    y : array (n_samples,)
        Labels, or targets of a regression; left out if X is a data set.
    Cs : array (points,)
        Strictly ascending.
    problem : {"c-svc", "lad", "svr", "quantile"}
    sample_weight : array (n_samples,), optional
    class_weight : None, "balanced" or dict
    kernel : str, default="linear"
        "precomputed", or the name of a kernel of `SVC`.
    gamma, degree, coef0
        As in `SVC`.
    n_components : int or None, default=None
        Landmarks of a Nystrom machine; None: the kernel itself.
    fit_intercept : {True, "penalized", False}, default="penalized"
        The unpenalised offset of LIBSVM, a penalised constant, or none.
    epsilon, tau : float
        Parameters of "svr" and of "quantile".
    tol : float, default=1e-3
        Relative gap to prove for every point.
    rules : sequence of {"dvi", "ssnsv", "essnsv", "srbo", "srbo-cut", "gap"} or None
        Screening rules that leave out rows before a solve; None: those that suit the problem, ():
        none. If the kernel is not positive semidefinite no rule is valid, and the points have a KKT
        violation instead of a gap.
    dynamic, warm : bool, default=True
        Whether to leave out rows during a solve, too (with an exact kernel only if the point starts
        from zero); whether to start at the solution before.
    folds : int, list of (rows to fit, rows to hold out), or None, default=None
        Number of folds of the cross-validation that scores every value, or the row numbers of each.
    random_state : int, default=0
    time_budget : float or None
        Seconds, divided among the folds and the fit to all rows; a point that is cut short reports
        the gap it reached.
    device : {"auto", "cpu", "cuda"}, default="auto"
        As in `NystroemSVC`; a GPU solves all points and folds at once, without rules. Paths of
        exact kernels are solved on the CPU, and "cuda" is refused.
    memory : int or None
        Bytes; None: 0.8 of the memory available to the process.
    n_jobs : int or None
        Number of threads.
    work : path or None, resume : bool
        A folder that keeps solved points until the path is complete, and features beyond memory (by
        default in a temporary folder); whether to resume from the points in it.
    verbose : bool

    Returns
    -------
    SolvedPath
        ``path.model(k)``, ``path.best``, ``path.points``, ``path.save(file)``.

    Raises
    ------
    InputError
        Before any kernel work: a grid that is not ascending, folds that would have one class only,
        parameters or data that cannot be used.
    """
    if problem not in ("c-svc", "lad", "svr", "quantile"):
        raise InputError(f"svm_path solves c-svc, lad, svr and quantile, not {problem!r}")
    return _path(X, y, Cs, problem, _Parameters(**how))


def nu_path(
    X: Any,
    y: Any = None,
    nus: ArrayLike = (0.1, 0.2, 0.3, 0.4, 0.5),
    *,
    problem: str = "nu-svc",
    **how: Any,
) -> SolvedPath:
    """Solve a machine for every value of nu in one call; all else is as in `svm_path`.

    Parameters
    ----------
    nus : array (points,)
        In (0, 1], strictly ascending, and feasible for the weights of the classes.
    problem : {"nu-svc", "one-class"}
        A one-class machine is fitted to the rows of positive weight. Labels, if given, score the
        folds: by the AUC of the second label over all held-out rows, including rows of weight 0.
    """
    if problem not in ("nu-svc", "one-class"):
        raise InputError(f"nu_path solves nu-svc and one-class, not {problem!r}")
    return _path(X, y, nus, problem, _Parameters(**how))


@dataclass(frozen=True, kw_only=True)
class _Parameters:
    """Keyword arguments of `svm_path` and `nu_path`, documented in `svm_path`."""

    sample_weight: Any = None
    class_weight: str | Mapping[Any, float] | None = None
    kernel: str = "linear"
    gamma: float | str = "scale"
    degree: int = 3
    coef0: float = 0.0
    n_components: int | None = None
    fit_intercept: bool | str = "penalized"
    epsilon: float = 0.1
    tau: float = 0.5
    tol: float = 1e-3
    rules: Sequence[str] | None = None
    dynamic: bool = True
    warm: bool = True
    folds: int | Sequence[Any] | None = None
    random_state: int = 0
    time_budget: float | None = None
    device: str = "auto"
    memory: int | None = None
    n_jobs: int | None = None
    work: str | os.PathLike[str] | None = None
    resume: bool = False
    verbose: bool = False


SAME_NAME = (
    *("class_weight", "kernel", "gamma", "degree", "coef0", "n_components", "fit_intercept"),
    *("epsilon", "tau", "tol", "time_budget", "device", "memory", "resume"),
)
"""Parameters that are passed to `fit_options` under the same name."""


def _path(X: Any, y: Any, values: Any, problem: str, how: _Parameters) -> SolvedPath:
    """Solve a path for `svm_path` or `nu_path`; ``values`` of C or nu, other arguments ``how``."""
    fit = fit_options(
        problem=problem,
        seed=how.random_state,
        work=None if how.work is None else Path(how.work),
        **{name: getattr(how, name) for name in SAME_NAME},
    )
    X, y, weights, values = on_host(X, y, how.sample_weight, values)
    data, numbers = _data(X, y, weights, problem, how.kernel == "precomputed")
    folds = renumber_folds(how.folds, data.n_rows if numbers is None else X.shape[0], numbers)
    options = PathOptions(fit, values, folds, rules_of(how.rules), how.dynamic, how.warm)
    path = solve_path(data, options, how.n_jobs, how.verbose)
    return path if numbers is None else renumber_path(path, numbers, X.shape[1])


def rules_of(rules: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return the requested screening rules as a tuple; None stands for the suitable ones."""
    if isinstance(rules, str):
        raise InputError(f"rules must be a sequence of names, such as ({rules!r},)")
    return None if rules is None else tuple(rules)


def fit_options(n_components: int | None, fit_intercept: Any, **given: Any) -> TrainOptions:
    """Make the options of a path's fits from parameters of `svm_path`.

    ``given`` are further fields of `TrainOptions`. The machine is exact if it has a kernel and
    ``n_components`` is None.
    """
    exact = given["kernel"] != "linear" and n_components is None
    if given["gamma"] == "auto":
        raise InputError("gamma must be 'scale' or a number")
    if n_components is not None:
        given["landmarks"] = check_components(n_components)
    return TrainOptions(intercept=intercept_option(fit_intercept, INTERCEPTS), exact=exact, **given)


def solve_path(data: Rows, options: PathOptions, n_jobs: int | None, verbose: Any) -> SolvedPath:
    """Solve the path on threads of this process.

    ``n_jobs``: their number; None or -1: one for each processor. ``verbose``: show a bar.
    """
    columns = data.n_rows if options.fit.exact else max(data.n_features, options.fit.landmarks)
    small = data.n_rows * columns <= MAX_SERIAL_ENTRIES
    threads = 1 if small else None if n_jobs in (None, -1) else n_jobs
    bar = PathBar() if verbose else nullcontext()
    with ExitStack() as owned, Inline(threads) as fleet, blas_threads(fleet.workers), bar as report:
        if options.fit.work is None and beyond_memory(data, options.fit, fleet):
            made = owned.enter_context(scratch("path"))
            options = replace(options, fit=replace(options.fit, work=made))
        return train_path(data, options, fleet, report)


def renumber_folds(folds: Any, n: int, numbers: NDArray[np.int64] | None) -> Folds | None:
    """Check folds of n rows; replace row numbers by positions among the kept rows, ``numbers``."""
    checked = checked_folds(folds, n)
    if numbers is None or checked is None or isinstance(checked, int):
        return checked
    place = np.full(n, -1)
    place[numbers] = np.arange(len(numbers))
    parts = [[place[rows] for rows in split] for split in checked]
    return [(fitted[fitted >= 0], held[held >= 0]) for fitted, held in parts]


def cv_folds(cv: Any, data: Rows, y: Any, numbers: NDArray[np.int64] | None) -> Folds:
    """Return the folds of an estimator's cross-validation, over the rows that were kept.

    Raises
    ------
    InputError
        If cv is None, or the folds are not valid.
    """
    folds = renumber_folds(cv, data.n_rows if numbers is None else len(y), numbers)
    if folds is None:
        raise InputError("cv must be a number of folds, or the rows of each, not None")
    return folds


def renumber_path(path: SolvedPath, numbers: NDArray[np.int64], width: int) -> SolvedPath:
    """Replace a path's row numbers by row numbers in X, which has `width` columns.

    Needed if rows of weight 0 were left out.
    """

    def array(name: str) -> NDArray[Any]:
        """Read an array of the path, the support as row numbers in X."""
        found = path.array(name)
        return numbers[found] if name == "support" else found

    return SolvedPath({**path.record, "n_features": width}, array)


def _data(
    X: Any, y: Any, sample_weight: Any, problem: str, square: bool
) -> tuple[Rows, NDArray[np.int64] | None]:
    """Return a path's rows as a data set, and their numbers in X if rows were left out.

    ``problem`` says whether y has labels or targets. ``square``: X is a precomputed kernel matrix.
    """
    if is_store(X):
        if y is not None or sample_weight is not None:
            raise InputError("a data set brings its own labels and weights; leave out the others")
        return open_store(X), None
    if problem == "one-class":
        X = check_array(X, accept_sparse="csr", dtype=[np.float64, np.float32])
        weights = check_weights(sample_weight, X.shape[0])
        if y is None:
            return MemoryDataset(X, None, [], weights), None
        classes, codes = np.unique(column_or_1d(y), return_inverse=True)
        return MemoryDataset(X, codes, plain_labels(classes), weights), None
    if y is None:
        raise InputError(f"{problem} needs y, a label or target for each row")
    if not PROBLEMS[problem].classifies:
        X = check_array(X, accept_sparse="csr", dtype=[np.float64, np.float32])
        given: Any = Targets.of(X, y, sample_weight, square)
    else:
        X, y = check_X_y(X, y, accept_sparse="csr", dtype=[np.float64, np.float32])
        check_classification_targets(y)
        given = Labelled.of(X, y, sample_weight, square)
    numbers = None if given.keep is None else np.flatnonzero(given.keep)
    return given.rows(np.inf, Path), numbers


@dataclass(eq=False, repr=False)
class SVCPathCV(Classifier):
    """Support vector classifier that chooses C from a grid by cross-validation.

    The fits of all folds share rows, features and kernel entries; each starts at the solution
    before it, and rows whose dual variable is provably at a bound are left out. The classifier is
    the fit of the best C to all rows, with its certificate.

    Parameters
    ----------
    Cs : array (points,) or int, default=10
        Strictly ascending values, or their number: spaced evenly in log scale from 1e-2 to 1e2.
    cv : int or list of (rows to fit, rows to hold out), default=5
        Stratified folds, or the row numbers of each.
    kernel : {"linear", "rbf", "poly", "sigmoid", "laplacian", "matern12", "matern32", "matern52", \
    "chi2"}, default="linear"
    gamma : "scale" or float, default="scale"
    degree : int, default=3
    coef0 : float, default=0.0
    n_components : int or None, default=None
        Landmarks of a Nystrom machine; None: the kernel itself.
    tol : float, default=1e-3
        Relative duality gap to prove for every fit.
    class_weight : None, "balanced" or dict, default=None
        Multiplies C by class; "balanced" uses the class counts of all rows.
    fit_intercept : {True, "penalized", False}, default="penalized"
        The unpenalised offset of LIBSVM, a penalised constant, or none.
    rules : sequence of str or None, default=None
        As in `svm_path`.
    random_state : int, RandomState or None, default=0
        Seed for folds and landmarks.
    device
        As in `svm_path`.
    memory, n_jobs, verbose
        As in `NystroemSVC`.

    Attributes
    ----------
    C_ : float
        The value with the highest mean accuracy, the smallest if tied.
    Cs_ : float64 array (points,)
    scores_ : float64 array (cv, points)
        Accuracy on held-out rows.
    path_ : SolvedPath
        ``path_.model(k)`` is the fit of ``Cs_[k]`` to all rows; ``path_.points`` has the gaps.
    cv_results_ : dict of arrays (points,)
        param_C, mean_test_score, std_test_score, rank_test_score, mean_fit_time.
    classes_, n_features_in_, dual_gap_, relative_gap_, certificate_, model_
        Of the best model, as in `NystroemSVC`.
    """

    # Paths run on threads of this process only; `Machine` reads these attributes.
    scheduler = None
    _runs_on_workers = False
    work = None

    Cs: Any = 10
    _: KW_ONLY
    cv: int | Sequence[Any] = 5
    kernel: str = "linear"
    gamma: float | str = "scale"
    degree: int = 3
    coef0: float = 0.0
    n_components: int | None = None
    tol: float = 1e-3
    class_weight: str | Mapping[Any, float] | None = None
    fit_intercept: bool | str = "penalized"
    rules: Sequence[str] | None = None
    random_state: Any = 0
    device: str = "auto"
    memory: int | None = None
    n_jobs: int | None = None
    verbose: int = 0

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Solve the path of every fold and of all rows, and keep the best model.

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
            A ValueError: a grid that is not ascending, a class with fewer rows than folds,
            parameters or data that cannot be used.
        """
        fit = fit_options(
            self.n_components,
            self.fit_intercept,
            kernel=self.kernel,
            gamma=self.gamma,
            degree=self.degree,
            coef0=self.coef0,
            tol=self.tol,
            seed=self._seed(),
            device=self.device,
            memory=self.memory,
        )
        X, y, sample_weight = on_host(X, y, sample_weight)
        Cs, rules = self._grid(), rules_of(self.rules)
        with ExitStack() as owned:
            data, numbers = self._rows(X, y, sample_weight, owned)
            fit = self._adapt_options(fit, data)
            folds = cv_folds(self.cv, data, y, numbers)
            options = PathOptions(fit, Cs, folds, rules, alone=False)
            path = solve_path(data, options, self.n_jobs, self.verbose)
        if numbers is not None:
            path = renumber_path(path, numbers, self.n_features_in_)
        self.path_, self.Cs_ = path, path.values
        self.scores_ = path.scores
        assert path.best is not None
        self.C_ = float(self.Cs_[path.best])
        self._publish(path.model(), numbers)
        self.cv_results_ = self._make_cv_results(path)
        return self

    def _grid(self) -> Any:
        """Return the values of C: ``Cs``, or if it is a number this many from 1e-2 to 1e2."""
        if np.ndim(self.Cs):
            return self.Cs
        if not isinstance(self.Cs, (int, np.integer)) or self.Cs < 1:
            raise InputError(f"Cs must be a list of values or how many, 1 or more, got {self.Cs!r}")
        return np.geomspace(1e-2, 1e2, int(self.Cs))

    def _make_cv_results(self, path: SolvedPath) -> dict[str, NDArray[Any]]:
        """Build ``cv_results_``, arrays (points,), from the folds' scores and times."""
        assert path.scores is not None
        mean = path.scores.mean(axis=0)
        seconds = [
            [sum(sum(part["seconds"].values()) for part in parts) for parts in fold]
            for fold in path.record["folds"]
        ]
        return {
            "param_C": self.Cs_,
            "mean_test_score": mean,
            "std_test_score": path.scores.std(axis=0),
            "rank_test_score": 1 + np.sum(mean[None, :] > mean[:, None], axis=1),
            "mean_fit_time": np.mean(seconds, axis=0),
        }
