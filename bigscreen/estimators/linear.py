"""The linear machines `LinearSVC` and `LinearSVR`, drop-ins for scikit-learn's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.utils.validation import check_is_fitted

from bigscreen.errors import InputError
from bigscreen.estimators.base import Classifier, Regressor
from bigscreen.model.model import Model
from bigscreen.options.train import TrainOptions

HINGES = {"hinge": "c-svc", "squared_hinge": "squared-svc"}
"""The problem of `TrainOptions` for each classification loss."""

TUBES = {"epsilon_insensitive": "svr", "squared_epsilon_insensitive": "squared-svr"}
"""The problem of `TrainOptions` for each regression loss."""

INTERCEPTS = {
    True: "penalized",
    "penalized": "penalized",
    "unpenalized": "true",
    False: "none",
}
"""Values of ``fit_intercept`` and of ``TrainOptions.intercept``: True is LIBLINEAR's offset."""

LIBLINEAR = {
    ("l2", "hinge"): (True,),
    ("l2", "squared_hinge"): (True, False),
    ("l1", "squared_hinge"): (False,),
    ("l2", "epsilon_insensitive"): (True,),
    ("l2", "squared_epsilon_insensitive"): (True, False),
}
"""Values of ``dual`` that LIBLINEAR supports for each penalty and loss."""


@dataclass(eq=False, repr=False)
class LinearSVC(Classifier):
    """Linear support vector machine, a drop-in for `sklearn.svm.LinearSVC` on data of any size.

    Minimises ``1/2 ||w||^2 + 1/2 (b / intercept_scaling)^2 + C sum_i weight_i loss(y_i (<w, x_i> +
    b))``, with ``loss(z) = max(0, 1 - z)^2`` or, with "hinge", ``max(0, 1 - z)``, until the duality
    gap, summed over all rows, is at most ``tol`` times the objective. More than two classes are
    fitted one against the rest.

    Parameters
    ----------
    penalty : {"l2"}, default="l2"
        "l1" is refused.
    loss : {"squared_hinge", "hinge"}, default="squared_hinge"
    dual : {"auto", True, False}, default="auto"
        Without effect on the result, which is proved by primal and dual; combinations that
        scikit-learn refuses are refused.
    tol : float, default=1e-4
        Relative duality gap to prove: how far the objective may be above the optimum, as a
        fraction of itself. (LIBLINEAR's tol bounds gradients.)
    C : float, default=1.0
        Penalty of a row's margin violation.
    multi_class : {"ovr"}, default="ovr"
        "crammer_singer" is refused.
    fit_intercept : {True, "penalized", "unpenalized", False}, default=True
        True and "penalized" are the offset of `sklearn.svm.LinearSVC`: a constant feature
        ``intercept_scaling``, penalised with the rest. "unpenalized" is the offset of `SVC` with
        ``kernel="linear"``.
    intercept_scaling : float, default=1.0
        Value of the constant feature; the larger, the less the offset is penalised.
    class_weight, time_budget, solver, screening, device, memory, n_jobs, scheduler, work
        As in `NystroemSVC`.
    warm_start : bool, default=False
        Whether another ``fit`` starts at the last machine. The proof is the same, and it takes less
        time after a change of C, ``tol``, loss or some rows. A fit with other labels or columns
        starts cold, as do the solvers "interior" and, with the hinge loss, "cd", which "auto"
        chooses if columns are many.
    verbose : int, default=0
        Any value but 0 shows the gap during the fit.
    random_state : int, RandomState or None, default=None
        Seed for the order in which coordinate descent visits rows.
    max_iter : int, default=1000
        Largest number of passes over the rows.

    Attributes
    ----------
    coef_ : float64 array (1, n_features), or (n_classes, n_features) with three classes or more
        Weights of the features as the data set holds them (scaled, if it was scaled).
    intercept_ : float64 array (1,) or (n_classes,)
    classes_, n_features_in_, dual_gap_, relative_gap_, certificate_, n_iter_, history_, \
    ledger_, model_
        As in `NystroemSVC`.

    Examples
    --------
    >>> from bigscreen import LinearSVC
    >>> machine = LinearSVC(loss="hinge", C=10).fit(X, y)  # doctest: +SKIP
    """

    penalty: str = "l2"
    loss: str = "squared_hinge"
    _: KW_ONLY
    dual: bool | str = "auto"
    tol: float = 1e-4
    C: float = 1.0
    multi_class: str = "ovr"
    fit_intercept: bool | str = True
    intercept_scaling: float = 1.0
    class_weight: str | Mapping[Any, float] | None = None
    verbose: int = 0
    random_state: Any = None
    max_iter: int = 1000
    time_budget: float | None = None
    solver: str = "auto"
    screening: str = "gap"
    device: str = "auto"
    memory: int | None = None
    n_jobs: int | None = None
    scheduler: Any = None
    work: str | os.PathLike[str] | None = None
    warm_start: bool = False

    _intercepts = INTERCEPTS

    def _options(self) -> TrainOptions:
        """Check the parameters and convert them to training options."""
        problem = problem_of(self.loss, HINGES)
        if self.multi_class not in ("ovr", "crammer_singer"):
            raise InputError(
                f"multi_class must be 'ovr' or 'crammer_singer', got {self.multi_class!r}"
            )
        if self.multi_class == "crammer_singer":
            raise InputError(
                "multi_class='crammer_singer' is one problem over all classes, which is not solved "
                "here; use 'ovr'"
            )
        _check_dual(self.penalty, self.loss, self.dual)
        scaling = self.intercept_scaling
        options = self._shared_options(C=self.C, kernel="linear", intercept_scaling=scaling)
        return replace(options, problem=problem)

    def _publish(self, model: Model, numbers: NDArray[np.int64] | None) -> None:
        """Set the fitted attributes; ``numbers``: the fitted rows' numbers in X, None for all."""
        super()._publish(model, numbers)
        self.coef_, self.intercept_ = model.coef, model.intercept

    def densify(self) -> Self:
        """Convert ``coef_`` to an array, as after ``fit``; predictions do not depend on it."""
        check_is_fitted(self)
        coef: Any = self.coef_
        self.coef_ = coef.toarray() if sparse.issparse(coef) else coef
        return self

    def sparsify(self) -> Self:
        """Convert ``coef_`` to a sparse matrix; predictions do not depend on it."""
        check_is_fitted(self)
        self.coef_ = sparse.csr_matrix(self.coef_)
        return self


@dataclass(kw_only=True, eq=False, repr=False)
class LinearSVR(Regressor):
    """Linear support vector regression, a drop-in for `sklearn.svm.LinearSVR` on data of any size.

    Minimises ``1/2 ||w||^2 + 1/2 (b / intercept_scaling)^2 + C sum_i weight_i loss(y_i - <w, x_i> -
    b)``, with ``loss(z) = max(0, |z| - epsilon)`` or its square, until the duality gap, summed over
    all rows, is at most ``tol`` times the objective.

    Parameters
    ----------
    epsilon : float, default=0.0
        Errors up to this cost nothing.
    loss : {"epsilon_insensitive", "squared_epsilon_insensitive"}, default="epsilon_insensitive"
    tol, C, fit_intercept, intercept_scaling, dual, verbose, random_state, max_iter, time_budget, \
    solver, screening, device, memory, n_jobs, scheduler, work, warm_start
        As in `LinearSVC`; several targets are not fitted with ``warm_start``.

    Attributes
    ----------
    coef_ : float64 array (n_features,), or (n_targets, n_features) with several targets
        Weights of the features as the data set holds them (scaled, if it was scaled).
    intercept_ : float64 array (1,) or (n_targets,)
    n_features_in_, dual_gap_, relative_gap_, certificate_, n_iter_, history_, \
    ledger_, model_
        As in `SVR`.
    """

    epsilon: float = 0.0
    tol: float = 1e-4
    C: float = 1.0
    loss: str = "epsilon_insensitive"
    fit_intercept: bool | str = True
    intercept_scaling: float = 1.0
    dual: bool | str = "auto"
    verbose: int = 0
    random_state: Any = None
    max_iter: int = 1000
    time_budget: float | None = None
    solver: str = "auto"
    screening: str = "gap"
    device: str = "auto"
    memory: int | None = None
    n_jobs: int | None = None
    scheduler: Any = None
    work: str | os.PathLike[str] | None = None
    warm_start: bool = False

    _problem = "svr"
    _intercepts = INTERCEPTS

    def _options(self) -> TrainOptions:
        """Check the parameters and convert them to training options."""
        problem = problem_of(self.loss, TUBES)
        _check_dual("l2", self.loss, self.dual)
        own = {"epsilon": self.epsilon, "intercept_scaling": self.intercept_scaling}
        return replace(self._shared_options(C=self.C, kernel="linear", **own), problem=problem)

    def _publish(self, model: Model, numbers: NDArray[np.int64] | None) -> None:
        """Set the fitted attributes; ``numbers``: the fitted rows' numbers in X, None for all."""
        super()._publish(model, numbers)
        self.coef_ = model.coef if model.n_targets > 1 else model.coef[0]
        self.intercept_ = model.intercept


def problem_of(loss: Any, problems: Mapping[str, str]) -> str:
    """Return ``TrainOptions.problem`` for a loss, a key of `problems`; InputError if it is none."""
    if not (isinstance(loss, str) and loss in problems):
        raise InputError(f"loss must be {' or '.join(map(repr, problems))}, got {loss!r}")
    return problems[loss]


def _check_dual(penalty: Any, loss: str, dual: Any) -> None:
    """Refuse combinations of ``penalty``, ``loss`` and ``dual`` that scikit-learn refuses.

    InputError with scikit-learn's message; the penalty "l1" is always refused.
    """
    if penalty not in ("l1", "l2"):
        raise InputError(f"penalty must be 'l1' or 'l2', got {penalty!r}")
    if not (isinstance(dual, (bool, np.bool_)) or (isinstance(dual, str) and dual == "auto")):
        raise InputError(f"dual must be 'auto', True or False, got {dual!r}")
    known = LIBLINEAR.get((penalty, loss))
    which = f"The combination of penalty='{penalty}' and loss='{loss}'"
    why = None
    if known is None:
        why = f"{which} is not supported"
    elif dual != "auto" and bool(dual) not in known:
        why = f"{which} are not supported when dual={dual}"
    if why is not None:
        raise InputError(
            f"Unsupported set of arguments: {why}, Parameters: penalty={penalty!r}, loss={loss!r}, "
            f"dual={dual!r}"
        )
    if penalty == "l1":
        raise InputError("penalty='l1' is another problem, which is not solved here; use 'l2'")
