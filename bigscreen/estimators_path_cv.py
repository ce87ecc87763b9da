"""The classifier that chooses its C by a path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from bigscreen.errors import InputError
from bigscreen.estimators_kinds import Classifier
from bigscreen.estimators_path import (
    fit_options,
    renumbered,
    renumbered_folds,
    rules_of,
    solved,
)
from bigscreen.store.path_file import SolvedPath
from bigscreen.train_path_options import PathOptions


class SVCPathCV(Classifier):
    """Support vector classifier that chooses its C among a grid by cross-validation.

    All fits of all folds are one path: they share rows, features and kernel entries, each starts
    at the one before, and rows that provably stand at a bound are left out. The classifier is then
    that of the best C on all rows, proved to its gap.

    Parameters
    ----------
    Cs : array (points,) or int, default=10
        Strictly ascending; a number stands for so many from 1e-2 to 1e2 by equal factors.
    cv : int or list of (rows to fit, rows to hold out), default=5
        Stratified folds, or the row numbers of each.
    kernel : {"linear", "rbf", "poly", "sigmoid", "laplacian"}, default="linear"
    gamma : "scale" or float, default="scale"
    degree : int, default=3
    coef0 : float, default=0.0
    n_components : int or None, default=None
        Landmarks of a Nystrom machine; None: the kernel itself.
    tol : float, default=1e-3
        Relative duality gap to prove for every fit.
    class_weight : None, "balanced" or dict, default=None
        "balanced" by the classes of all rows.
    fit_intercept : {False, True, "true"}, default=True
        None, a penalised constant, or the unpenalised offset.
    rules : sequence of str or None, default=None
        As in `svm_path`.
    random_state : int, RandomState or None, default=0
        Of folds and landmarks.
    memory, n_jobs, verbose
        As in `NystroemSVC`.

    Attributes
    ----------
    C_ : float
        The value with the highest mean accuracy, the smallest of equals.
    Cs_ : float64 array (points,)
    scores_ : float64 array (cv, points)
        Accuracy on held-out rows.
    path_ : SolvedPath
        ``path_.model(k)`` is that of ``Cs_[k]`` on all rows; ``path_.points`` says what was proved.
    cv_results_ : dict of arrays (points,)
        param_C, mean_test_score, std_test_score, rank_test_score, mean_fit_time.
    classes_, n_features_in_, dual_gap_, relative_gap_, certificate_, model_
        Of the best model, as in `NystroemSVC`.
    """

    # Threads of this process; `Machine` asks.
    scheduler = None
    work = None

    def __init__(
        self,
        Cs: Any = 10,
        *,
        cv: int | Sequence[Any] = 5,
        kernel: str = "linear",
        gamma: float | str = "scale",
        degree: int = 3,
        coef0: float = 0.0,
        n_components: int | None = None,
        tol: float = 1e-3,
        class_weight: str | Mapping[Any, float] | None = None,
        fit_intercept: bool | str = True,
        rules: Sequence[str] | None = None,
        random_state: Any = 0,
        memory: int | None = None,
        n_jobs: int | None = None,
        verbose: int = 0,
    ) -> None:
        self.Cs = Cs
        self.cv = cv
        self.kernel = kernel
        self.gamma = gamma
        self.degree = degree
        self.coef0 = coef0
        self.n_components = n_components
        self.tol = tol
        self.class_weight = class_weight
        self.fit_intercept = fit_intercept
        self.rules = rules
        self.random_state = random_state
        self.memory = memory
        self.n_jobs = n_jobs
        self.verbose = verbose

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
            memory=self.memory,
        )
        Cs, rules = self._grid(), rules_of(self.rules)
        with ExitStack() as owned:
            data, numbers = self._rows(X, y, sample_weight, owned)
            fit = self._suited(fit, data)
            n = data.n_rows if numbers is None else len(y)
            folds = renumbered_folds(self.cv, n, numbers)
            if folds is None:
                raise InputError("cv must be a number of folds, or the rows of each, not None")
            options = PathOptions(fit, Cs, folds, rules, alone=False)
            path = solved(data, options, self.n_jobs, self.verbose)
        if numbers is not None:
            path = renumbered(path, numbers, self.n_features_in_)
        self.path_, self.Cs_ = path, path.values
        self.scores_ = path.scores
        assert path.best is not None
        self.C_ = float(self.Cs_[path.best])
        self._publish(path.model(), numbers)
        self.cv_results_ = self._results(path)
        return self

    def _grid(self) -> Any:
        if np.ndim(self.Cs):
            return self.Cs
        if not isinstance(self.Cs, (int, np.integer)) or self.Cs < 1:
            raise InputError(f"Cs must be a list of values or how many, 1 or more, got {self.Cs!r}")
        return np.geomspace(1e-2, 1e2, int(self.Cs))

    def _results(self, path: SolvedPath) -> dict[str, NDArray[Any]]:
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
