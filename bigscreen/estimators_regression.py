"""The regressions: `SVR`, `LADRegressor`, `QuantileRegressor` and `LinearSVR`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.estimators_kernel import KernelMachine
from bigscreen.estimators_kinds import Regressor
from bigscreen.store.model import Model
from bigscreen.train import TrainOptions


@dataclass(kw_only=True, eq=False, repr=False)
class _KernelRegressor(Regressor, KernelMachine):
    """What the kernel regressions share: C and the offset."""

    C: float = 1.0
    fit_intercept: bool | str = "true"

    def _own(self) -> dict[str, Any]:
        return {"C": self._penalty(self.C)}


@dataclass(kw_only=True, eq=False, repr=False)
class SVR(_KernelRegressor):
    """epsilon-support vector regression, a drop-in for `sklearn.svm.SVR`.

    Minimises ``1/2 ||w||^2 + C sum_i weight_i max(0, |y_i - <w, phi(x_i)> - b| - epsilon)`` until
    the duality gap, summed over all rows in float64, is at most ``tol`` times the objective.

    Parameters
    ----------
    C : float, default=1.0
        Penalty of an error beyond epsilon.
    epsilon : float, default=0.1
        Errors up to this cost nothing.
    fit_intercept : {False, True, "true"}, default="true"
        As in `SVC`: none, a penalised constant, or the unpenalised offset of scikit-learn.
    kernel, degree, gamma, coef0, n_components, sampling, truncation, tol, max_iter, \
    time_budget, solver, \
    screening, start, cache, memory, n_jobs, scheduler, work, random_state, verbose
        As in `SVC`.

    Attributes
    ----------
    support_ : int32 array (n_SV,)
        Rows of X whose coefficient is not 0, ascending.
    support_vectors_ : array or csr_array (n_SV, n_features)
    n_support_ : int32 array (1,)
    dual_coef_ : float64 array (1, n_SV)
    intercept_ : float64 array (1,)
    components_ : ndarray or csr_array (n_components, n_features)
        The landmarks, where ``n_components`` is a number, in place of the four above.
    n_features_in_, dual_gap_, relative_gap_, certificate_, n_iter_, history_, model_
        As in `SVC`; there is one certificate.

    Examples
    --------
    >>> from bigscreen import SVR
    >>> machine = SVR(epsilon=0.05, n_components=500).fit(X, y)  # doctest: +SKIP
    """

    _problem = "svr"

    epsilon: float = 0.1

    def _own(self) -> dict[str, Any]:
        return {**super()._own(), "epsilon": self.epsilon}


@dataclass(kw_only=True, eq=False, repr=False)
class LADRegressor(_KernelRegressor):
    """Least absolute deviations: regression of the median, with a kernel.

    Minimises ``1/2 ||w||^2 + C sum_i weight_i |y_i - <w, phi(x_i)> - b|`` until the duality gap,
    summed over all rows in float64, is at most ``tol`` times the objective.

    Parameters
    ----------
    C : float, default=1.0
        Penalty of an error.
    fit_intercept : {False, True, "true"}, default="true"
        As in `SVR`.
    kernel, degree, gamma, coef0, n_components, sampling, truncation, tol, max_iter, \
    time_budget, solver, \
    screening, start, cache, memory, n_jobs, scheduler, work, random_state, verbose
        As in `SVC`.

    Attributes
    ----------
    support_, support_vectors_, n_support_, dual_coef_, intercept_, components_, n_features_in_, \
    dual_gap_, relative_gap_, certificate_, n_iter_, history_, model_
        As in `SVR`.
    """

    _problem = "lad"


@dataclass(kw_only=True, eq=False, repr=False)
class QuantileRegressor(_KernelRegressor):
    """Regression of a quantile, with a kernel.

    Minimises ``1/2 ||w||^2 + C sum_i weight_i q(y_i - <w, phi(x_i)> - b)`` with the pinball loss
    ``q(e) = max(quantile e, (quantile - 1) e)`` until the duality gap, summed over all rows in
    float64, is at most ``tol`` times the objective. (`sklearn.linear_model.QuantileRegressor` has
    the same loss, a linear model and an L1 penalty.)

    Parameters
    ----------
    quantile : float, default=0.5
        Strictly between 0 and 1: this part of the rows' weight will lie below the prediction.
    C : float, default=1.0
        Penalty of an error.
    fit_intercept : {False, True, "true"}, default="true"
        As in `SVR`.
    kernel, degree, gamma, coef0, n_components, sampling, truncation, tol, max_iter, \
    time_budget, solver, \
    screening, start, cache, memory, n_jobs, scheduler, work, random_state, verbose
        As in `SVC`.

    Attributes
    ----------
    support_, support_vectors_, n_support_, dual_coef_, intercept_, components_, n_features_in_, \
    dual_gap_, relative_gap_, certificate_, n_iter_, history_, model_
        As in `SVR`.
    """

    _problem = "quantile"

    quantile: float = 0.5

    def _own(self) -> dict[str, Any]:
        return {**super()._own(), "tau": self.quantile}


@dataclass(kw_only=True, eq=False, repr=False)
class LinearSVR(Regressor):
    """Linear epsilon-support vector regression for more rows than fit in memory.

    Minimises ``1/2 ||w||^2 + C sum_i weight_i max(0, |y_i - <w, x_i> - b| - epsilon)`` until the
    duality gap, summed over all rows, is at most ``tol`` times the objective.

    Parameters
    ----------
    epsilon : float, default=0.0
        Errors up to this cost nothing.
    fit_intercept : {False, True, "true"}, default=True
        As in `LinearSVC`; True is that of scikit-learn's LinearSVR.
    C, tol, max_iter, time_budget, solver, screening, random_state, memory, n_jobs, scheduler, \
    work, verbose
        As in `LinearSVC`.

    Attributes
    ----------
    coef_ : float64 array (n_features,)
        Of the rows as the data set holds them (scaled, if it was scaled).
    intercept_ : float64 array (1,)
    n_features_in_, dual_gap_, relative_gap_, certificate_, n_iter_, history_, model_
        As in `SVR`.
    """

    _problem = "svr"

    epsilon: float = 0.0
    C: float = 1.0
    tol: float = 1e-3
    fit_intercept: bool | str = True
    max_iter: int = 1000
    time_budget: float | None = None
    solver: str = "auto"
    screening: str = "gap"
    random_state: Any = None
    memory: int | None = None
    n_jobs: int | None = None
    scheduler: str | None = None
    work: str | os.PathLike[str] | None = None
    verbose: int = 0

    def _options(self) -> TrainOptions:
        return self._shared_options(C=self.C, epsilon=self.epsilon, kernel="linear")

    def _publish(self, model: Model, numbers: NDArray[np.int64] | None) -> None:
        super()._publish(model, numbers)
        self.coef_, self.intercept_ = model.coef[0], model.intercept
