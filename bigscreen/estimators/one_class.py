"""The one-class machine `OneClassSVM`, a drop-in for scikit-learn's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import OutlierMixin
from sklearn.utils.validation import validate_data

from bigscreen.data.dask_rows import is_chunked, lazy_for_dask
from bigscreen.estimators.inputs import Given, Unlabelled
from bigscreen.estimators.kernel import KernelMachine
from bigscreen.model.model import Model


@dataclass(kw_only=True, eq=False, repr=False)
class OneClassSVM(OutlierMixin, KernelMachine):  # type: ignore[misc]  # scikit-learn has no types
    """Detects rows unlike the training rows; a drop-in for `sklearn.svm.OneClassSVM`.

    Minimises ``1/2 ||w||^2 - rho + 1 / nu sum_i c_i max(0, rho - <w, phi(x_i)>)``, where c are the
    rows' weights divided by their sum, until the duality gap, summed over all rows in float64, is
    at most ``tol`` times the objective's absolute value. Published coefficients are scaled as in
    LIBSVM: multiplied by nu and the sum of the weights.

    Parameters
    ----------
    nu : float, default=0.5
        In (0, 1]: at most this fraction of the rows' weight is outside the boundary, and at least
        this fraction are support vectors.
    kernel, degree, gamma, coef0, n_components, sampling, tol, shrinking, max_iter, time_budget, \
    solver, screening, device, cache_size, memory, n_jobs, scheduler, work, warm_start, \
    random_state, verbose, tuning
        As in `SVC`; a machine on landmarks is not fitted with ``warm_start``.
    metric_learning : {"none"}, default="none"
        Kept for the signature that kernel machines share: there are no labels to learn from.

    Attributes
    ----------
    support_, support_vectors_, n_support_, dual_coef_, intercept_, components_, n_features_in_, \
    dual_gap_, relative_gap_, certificate_, ledger_, n_iter_, history_, model_
        As in `SVR`.
    offset_ : float64 array (1,)
        ``-intercept_``: ``decision_function = score_samples - offset_``.

    Examples
    --------
    >>> from bigscreen import OneClassSVM
    >>> strange = OneClassSVM(nu=0.01).fit(X).predict(Z) < 0  # doctest: +SKIP
    """

    _problem = "one-class"
    fit_intercept = True

    nu: float = 0.5

    @lazy_for_dask(lambda machine: (np.float64, None))
    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Compute scores of rows, float64 (n_samples,): positive inside, negative for outliers.

        Parameters
        ----------
        X : as in ``fit``
            Rows of a data set are scored in the order of its source. Rows of a Dask array or data
            frame are scored later: the result is a lazy Dask array, with a task for each block.
        """
        return self._scores(X)[:, 0]

    def score_samples(self, X: Any) -> NDArray[np.float64]:
        """Compute scores without the offset: ``decision_function`` plus ``offset_``."""
        scores: NDArray[np.float64] = self.decision_function(X) + float(self.offset_[0])
        return scores

    @lazy_for_dask(lambda machine: (np.int64, None))
    def predict(self, X: Any) -> NDArray[np.int64]:
        """Predict 1 for inliers and -1 for outliers, an array of shape (n_samples,)."""
        return np.where(self._scores(X)[:, 0] > 0, 1, -1)

    def _own_options(self) -> dict[str, Any]:
        """Return the training options of this class's own parameters, as keyword arguments."""
        return {"nu": self.nu}

    def _check_input(self, X: Any, y: Any, sample_weight: Any, square: bool) -> Given:
        """Check X that is not in a store; y is ignored.

        ``square``: X is a matrix of kernel entries, (rows, rows).
        """
        if is_chunked(X):
            self.n_features_in_ = int(X.shape[1])
        else:
            X = validate_data(self, X, accept_sparse="csr")
        return Unlabelled.of(X, sample_weight, square)

    def _publish(self, model: Model, numbers: NDArray[np.int64] | None) -> None:
        """Set the fitted attributes; ``numbers``: the fitted rows' numbers in X, None for all."""
        super()._publish(model, numbers)
        self.offset_ = -self.intercept_
