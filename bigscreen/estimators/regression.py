"""The kernel regressions: `SVR`, `NuSVR`, `LADRegressor` and `QuantileRegressor`."""

from __future__ import annotations

import warnings
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from bigscreen.data.dask_rows import lazy_for_dask
from bigscreen.data.memory import MemoryDataset, Mirrored
from bigscreen.data.rows import Rows
from bigscreen.errors import InputError
from bigscreen.estimators.base import Regressor
from bigscreen.estimators.kernel import KernelMachine
from bigscreen.model.calibration import check_alpha
from bigscreen.options.train import TrainOptions


@dataclass(kw_only=True, eq=False, repr=False)
class _KernelRegressor(Regressor, KernelMachine):
    """Base of the kernel regressions, with the parameters C and ``fit_intercept``."""

    C: float = 1.0
    fit_intercept: bool | str = True

    @property
    def _takes_targets(self) -> bool:
        """Whether y may have several columns: machines on landmarks share their features."""
        return self._landmarks is not None

    def _own_options(self) -> dict[str, Any]:
        """Return the training options of this class's own parameters, as keyword arguments."""
        return {"C": self._penalty(self.C)}


@dataclass(kw_only=True, eq=False, repr=False)
class _IntervalRegressor(_KernelRegressor):
    """Base of the kernel regressions that can predict intervals, with ``probability``."""

    probability: bool = False

    @property
    def _takes_targets(self) -> bool:
        """Whether y may have several columns, whose machines share features and have no folds."""
        return super()._takes_targets and not self.probability

    def _own_options(self) -> dict[str, Any]:
        """Return the training options of this class's own parameters, as keyword arguments."""
        return {**super()._own_options(), "probability": self.probability}

    @lazy_for_dask(lambda machine: (np.float64, 2))
    def predict_interval(
        self, X: Any, alpha: float = 0.1, *, cross: bool = False
    ) -> NDArray[np.float64]:
        """Predict the interval that each row's target lies in, float64 (n_samples, 2).

        Requires ``probability=True``. Of rows drawn as the training rows were a fraction of at
        least 1 - alpha has its target in the interval (conformal prediction), whatever the machine
        is like, on average over draws of all rows. The ends are infinite if a fold has fewer than
        ``1 / alpha - 1`` rows.

        Parameters
        ----------
        X : as in ``predict``
        alpha : float, default=0.1
            Fraction of rows whose target may lie outside, strictly between 0 and 1.
        cross : bool, default=False
            Whether to lay each interval over the machines of all folds (CV+), not over that of one
            fold which a hash of the row chooses: steadier with few rows, and guaranteed to hold a
            fraction of about 1 - 2 alpha, though 1 - alpha as a rule.

        Raises
        ------
        InputError
            If the machine was fitted without ``probability``, or alpha is out of range.
        """
        check_alpha(alpha)
        check_is_fitted(self)
        if why := self.model_.held_out.explain_infinite(alpha, cross):
            warnings.warn(why, UserWarning, stacklevel=2)
        return self.model_.held_out.intervals(self._evidence(X), alpha, cross)


@dataclass(kw_only=True, eq=False, repr=False)
class SVR(_IntervalRegressor):
    """epsilon-support vector regression, a drop-in for `sklearn.svm.SVR`.

    Minimises ``1/2 ||w||^2 + C sum_i weight_i max(0, |y_i - <w, phi(x_i)> - b| - epsilon)`` until
    the duality gap, summed over all rows in float64, is at most ``tol`` times the objective.

    Parameters
    ----------
    C : float, default=1.0
        Penalty of an error beyond epsilon.
    epsilon : float, default=0.1
        Errors up to this cost nothing.
    fit_intercept : {True, "penalized", False}, default=True
        As in `SVC`: the unpenalised offset of scikit-learn, a penalised constant, or none.
    probability : bool, default=False
        Whether to fit five more machines, each without a fifth of the rows: `predict_interval`
        needs them.
    kernel, degree, gamma, coef0, n_components, sampling, metric_learning, tol, shrinking, \
    max_iter, time_budget, solver, screening, device, cache_size, memory, n_jobs, scheduler, work, \
    warm_start, random_state, verbose, tuning
        As in `SVC`; several targets are not fitted with ``warm_start``.

    Attributes
    ----------
    support_ : int32 array (n_SV,)
        Rows of X whose coefficient is not 0, ascending.
    support_vectors_ : array or csr_array (n_SV, n_features)
    n_support_ : int32 array (1,)
    dual_coef_ : float64 array, or csr_array if X is sparse, (1, n_SV)
    coef_ : array or csr_array (1, n_features)
        Weights of the features, if the kernel is linear.
    intercept_ : float64 array (1,)
    n_iter_ : int
        Number of iterations, as ``max_iter`` counts them.
    components_ : ndarray or csr_array (n_components, n_features)
        If ``n_components`` is a number: the landmarks, instead of ``support_``,
        ``support_vectors_``, ``n_support_`` and ``dual_coef_``.
    n_features_in_, dual_gap_, relative_gap_, certificate_, ledger_, fit_status_, history_, model_
        As in `SVC`; there is one certificate.

    Examples
    --------
    >>> from bigscreen import SVR
    >>> machine = SVR(epsilon=0.05, n_components=500).fit(X, y)  # doctest: +SKIP
    """

    _problem = "svr"

    epsilon: float = 0.1

    def _own_options(self) -> dict[str, Any]:
        """Return the training options of this class's own parameters, as keyword arguments."""
        return {**super()._own_options(), "epsilon": self.epsilon}


@dataclass(kw_only=True, eq=False, repr=False)
class NuSVR(_KernelRegressor):
    """nu-support vector regression, a drop-in for `sklearn.svm.NuSVR`.

    Minimises ``1/2 ||w||^2 + C sum_i weight_i (nu epsilon + max(0, |y_i - <w, phi(x_i)> - b| -
    epsilon))`` over w, b and epsilon, until the duality gap, summed over all rows in float64, is at
    most ``tol`` times the objective. Rows are held in memory, twice.

    Parameters
    ----------
    nu : float, default=0.5
        In (0, 1]: at most this fraction of the rows' weight is outside of the tube, and at least
        this fraction are support vectors.
    C : float, default=1.0
        Penalty of an error beyond epsilon.
    fit_intercept : {True, "penalized", False}, default=True
        As in `SVR`.
    kernel, degree, gamma, coef0, tol, shrinking, max_iter, time_budget, solver, screening, \
    device, cache_size, memory, n_jobs, work, warm_start, random_state, verbose, tuning
        As in `SVC`; the kernel has a name or is a function of rows.
    n_components, sampling, metric_learning, scheduler
        Ignored or refused: the machine is exact, and its rows are in memory.

    Attributes
    ----------
    support_, support_vectors_, n_support_, dual_coef_, intercept_, n_features_in_, dual_gap_, \
    relative_gap_, certificate_, ledger_, n_iter_, history_, model_
        As in `SVR`.
    """

    _problem = "nu-svr"

    nu: float = 0.5

    _landmarks = None
    _runs_on_workers = False  # its rows are in memory, each twice

    def _own_options(self) -> dict[str, Any]:
        """Return the training options of this class's own parameters, as keyword arguments."""
        return {**super()._own_options(), "nu": self.nu}

    def _options(self) -> TrainOptions:
        """Convert the parameters to training options; refuse those of machines on landmarks."""
        if self.n_components is not None:
            warnings.warn(
                "NuSVR is exact: n_components is not looked at", UserWarning, stacklevel=3
            )
        if self.scheduler is not None:
            raise InputError("NuSVR has its rows in memory; give no scheduler, or use SVR")
        if isinstance(self.kernel, str) and self.kernel == "precomputed":
            raise InputError(
                "NuSVR takes its rows twice, and a precomputed matrix has each once; give a kernel "
                "with a name or a function, or use SVR"
            )
        return super()._options()

    def _rows(
        self, X: Any, y: Any, sample_weight: Any, owned: ExitStack
    ) -> tuple[Rows, NDArray[np.int64] | None]:
        """Return the rows to fit, each twice (two dual variables per row), and the rows' numbers.

        The numbers are those in X of the rows with weight; None for all.
        """
        data, numbers = super()._rows(X, y, sample_weight, owned)
        if self._objects is not None:
            raise InputError("NuSVR takes rows of numbers; use SVR for a kernel of other things")
        if not isinstance(data, MemoryDataset) or not data.regression:
            raise InputError(
                "NuSVR needs rows with targets as arrays in memory; use SVR for a stored data set"
            )
        return Mirrored(data), numbers


@dataclass(kw_only=True, eq=False, repr=False)
class LADRegressor(_IntervalRegressor):
    """Least absolute deviations: regression of the median, with a kernel.

    Minimises ``1/2 ||w||^2 + C sum_i weight_i |y_i - <w, phi(x_i)> - b|`` until the duality gap,
    summed over all rows in float64, is at most ``tol`` times the objective.

    Parameters
    ----------
    C : float, default=1.0
        Penalty of an error.
    fit_intercept, probability
        As in `SVR`.
    kernel, degree, gamma, coef0, n_components, sampling, metric_learning, tol, shrinking, \
    max_iter, time_budget, solver, screening, device, cache_size, memory, n_jobs, scheduler, work, \
    warm_start, random_state, verbose, tuning
        As in `SVC`; several targets are not fitted with ``warm_start``.

    Attributes
    ----------
    support_, support_vectors_, n_support_, dual_coef_, intercept_, components_, n_features_in_, \
    dual_gap_, relative_gap_, certificate_, ledger_, n_iter_, history_, model_
        As in `SVR`.
    """

    _problem = "lad"


@dataclass(kw_only=True, eq=False, repr=False)
class QuantileRegressor(_IntervalRegressor):
    """Regression of a quantile, with a kernel.

    Minimises ``1/2 ||w||^2 + C sum_i weight_i q(y_i - <w, phi(x_i)> - b)`` with the pinball loss
    ``q(e) = max(quantile e, (quantile - 1) e)`` until the duality gap, summed over all rows in
    float64, is at most ``tol`` times the objective. (`sklearn.linear_model.QuantileRegressor` has
    the same loss, a linear model and an L1 penalty.)

    Parameters
    ----------
    quantile : float, default=0.5
        Strictly between 0 and 1: this fraction of the rows' weight lies below the predictions.
        The intervals of `predict_interval` have an upper end alone if it is above 0.5, and a lower
        end alone if it is below: two machines, of quantiles a and 1 - a, make conformalised
        quantile regression.
    C : float, default=1.0
        Penalty of an error.
    fit_intercept, probability
        As in `SVR`.
    kernel, degree, gamma, coef0, n_components, sampling, metric_learning, tol, shrinking, \
    max_iter, time_budget, solver, screening, device, cache_size, memory, n_jobs, scheduler, work, \
    warm_start, random_state, verbose, tuning
        As in `SVC`; several targets are not fitted with ``warm_start``.

    Attributes
    ----------
    support_, support_vectors_, n_support_, dual_coef_, intercept_, components_, n_features_in_, \
    dual_gap_, relative_gap_, certificate_, ledger_, n_iter_, history_, model_
        As in `SVR`.
    """

    _problem = "quantile"

    quantile: float = 0.5

    def _own_options(self) -> dict[str, Any]:
        """Return the training options of this class's own parameters, as keyword arguments."""
        return {**super()._own_options(), "tau": self.quantile}
