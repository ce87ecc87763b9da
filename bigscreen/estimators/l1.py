"""The L1-regularised SVM as a scikit-learn estimator, of rows in memory."""

from __future__ import annotations

import time
import warnings
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from bigscreen.data.targets import check_weights
from bigscreen.errors import InputError
from bigscreen.estimators.inputs import is_chunked, is_store
from bigscreen.fleet.blas import blas_threads
from bigscreen.solvers.l1 import l1_svm


class L1SVC(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """The SVM with an L1 penalty and the hinge loss: few columns with a coefficient, and a proof.

    Minimises ``||w||_1 + C sum_i weight_i max(0, 1 - y_i (<w, x_i> + b))``, which is a linear
    program (the L1-SVM of Tanji et al. 2023, theorem 2), until the duality gap, summed over all
    rows as they were given, is at most ``tol`` times the objective. Of kernels it takes columns:
    ``make_pipeline(Nystroem(...), L1SVC())``. More than two labels: one against the rest.

    Parameters
    ----------
    C : float, default=1.0
    tol : float, default=1e-3
        Relative duality gap.
    fit_intercept : bool, default=True
        Whether there is a b, which is not penalised.
    max_iter : int, default=50000
        Steps, each of two products with X.
    time_budget : float or None, default=None
        Seconds, after which the best point so far is kept, with its gap.

    Attributes
    ----------
    classes_ : ndarray (n_classes,)
    coef_ : float64 array (1, n_features), or (n_classes, n_features) with three classes or more
    intercept_ : float64 array (1,) or (n_classes,)
    relative_gap_, dual_gap_ : float
        The largest of all classes, with a bound on what rounding can have hidden.
    points_ : list of L1Point
        P, D, the dual point, rounding and steps of every classifier.
    n_iter_ : int
        Steps, the most of all classifiers.
    n_features_in_ : int
    """

    def __init__(
        self,
        C: float = 1.0,
        *,
        tol: float = 1e-3,
        fit_intercept: bool = True,
        max_iter: int = 50_000,
        time_budget: float | None = None,
    ) -> None:
        self.C, self.tol, self.fit_intercept = C, tol, fit_intercept
        self.max_iter, self.time_budget = max_iter, time_budget

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit.

        Parameters
        ----------
        X : array or sparse array (n_samples, n_features)
        y : array (n_samples,)
        sample_weight : array (n_samples,), optional

        Raises
        ------
        InputError
            For a store or a dask array, a parameter out of its range, weights that are none, or
            fewer than two labels.
        """
        for name in ("C", "tol", "max_iter", "time_budget"):
            value = getattr(self, name)
            if value is not None and not 0 < value < np.inf:
                raise InputError(f"{name} must be a finite number above 0, got {value!r}")
        if is_chunked(X) or is_store(X):
            raise InputError(
                "an L1 penalty needs all rows in memory; give a numpy array or a sparse matrix"
            )
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=(np.float64, np.float32))
        check_classification_targets(y)
        weights = check_weights(sample_weight, len(y))
        weights = np.ones(len(y)) if weights is None else weights
        self.classes_ = np.unique(y)
        present = np.unique(y[weights > 0])
        if len(present) < 2 or len(present) < len(self.classes_):
            raise InputError(
                f"rows whose weight is not zero are needed of every label and of 2 classes, and "
                f"{len(present)} of {len(self.classes_)} class(es) have some"
            )
        end = None if self.time_budget is None else time.monotonic() + self.time_budget
        positives = self.classes_ if len(self.classes_) > 2 else self.classes_[1:]
        box, self.points_ = float(self.C) * weights, []
        with blas_threads(1):
            for label in positives:
                sign = np.where(y == label, 1.0, -1.0)
                given = bool(self.fit_intercept), float(self.tol), int(self.max_iter), end
                self.points_.append(l1_svm(X, sign, box, *given))
        self.coef_ = np.stack([one.coef for one in self.points_])
        self.intercept_ = np.array([one.intercept for one in self.points_])
        self.relative_gap_ = max(one.relative_gap for one in self.points_)
        self.dual_gap_ = max(one.gap + one.rounding for one in self.points_)
        self.n_iter_ = max(one.steps for one in self.points_)
        if self.relative_gap_ > self.tol:
            warnings.warn(
                f"the gap proved is {self.relative_gap_:.2g}, and {self.tol:g} was asked for; "
                "raise max_iter or time_budget, or scale the columns",
                ConvergenceWarning,
                stacklevel=2,
            )
        return self

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """``<w, x> + b``: (n_samples,), or (n_samples, n_classes) with three classes or more."""
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse="csr", dtype=(np.float64, np.float32), reset=False)
        scores = np.asarray(X @ self.coef_.T + self.intercept_, dtype=np.float64)
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict(self, X: Any) -> NDArray[Any]:
        """The label of every row (n_samples,)."""
        scores = self.decision_function(X)
        codes = (scores > 0).astype(int) if scores.ndim == 1 else np.argmax(scores, axis=1)
        return np.asarray(self.classes_[codes])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags
