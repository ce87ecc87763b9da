"""The exact kernel machine as scikit-learn's `SVC` has it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from bigscreen.errors import InputError
from bigscreen.estimators_base import Machine
from bigscreen.store import Rows
from bigscreen.store.model import Model
from bigscreen.train import TrainOptions


class SVC(Machine):
    """Exact kernel support vector machine, a drop-in for `sklearn.svm.SVC`.

    Minimises ``1/2 ||w||^2 + C sum_i weight_i max(0, 1 - y_i (<w, phi(x_i)> + b))`` for the
    kernel's own phi, nothing approximated, until the duality gap, summed over all rows in float64,
    is at most ``tol`` times the objective. The kernel matrix is never held: its columns are
    computed when they are needed, and kept while there is room. Rows are float32. More than two
    classes are fitted one against one, as in scikit-learn.

    For probabilities wrap it: ``CalibratedClassifierCV(SVC(...)).fit(X, y)``.

    Parameters
    ----------
    C : float, default=1.0
        Penalty of a row's violation of the margin.
    kernel : str or callable, default="rbf"
        "rbf", "poly", "linear", "sigmoid" or "laplacian"; "precomputed", with X the square matrix
        of entries between rows; or ``f(A, B)``, which returns the entries between the rows of two
        float64 arrays (CSR arrays where X is sparse) and may be called from several threads.
    degree : int, default=3
    gamma : {"scale", "auto"} or float, default="scale"
        "scale" is ``1 / (n_features * X.var())``, "auto" is ``1 / n_features``.
    coef0 : float, default=0.0
        Of the polynomial and sigmoid kernels.
    tol : float, default=1e-3
        RELATIVE DUALITY GAP to prove: how far the objective may be above the optimum, as a part of
        itself (scikit-learn's is the violation of a KKT condition).
    class_weight : None, "balanced" or dict, default=None
        Multiplies C by class.
    fit_intercept : {False, True, "true"}, default="true"
        No offset; a constant feature 1, penalised with the rest; or the true, unpenalised offset
        of `sklearn.svm.SVC`.
    decision_function_shape : {"ovr", "ovo"}, default="ovr"
        Of three classes or more: a value for each class (its votes, and part of one more), or for
        each pair of classes.
    break_ties : bool, default=False
        With "ovr": of classes with as many votes predict that of the largest value, not the first.
    max_iter : int, default=10000
        Blocks of rows to solve.
    time_budget : float or None, default=None
        Seconds, after which the best point so far is certified and kept.
    screening : {"auto", "gap", "f-safe", "adaptive", "joachims", "none"}, default="auto"
        How rows are recognised that no longer need a look; "auto" is "none".
    f : float, default=0.1
        Of f-safe screening.
    start : {"auto", "cold", "divide", "nystrom"}, default="auto"
        Begin at 0 (also "auto"), at the solutions of parts of the rows, or at that of a Nystrom
        machine of few landmarks.
    parts : int or None, default=None
        Of ``start="divide"`` and of ``early``; None: about 5,000 rows each.
    levels : int, default=1
        Of divide and conquer, each with a quarter of the parts of the one before.
    early : bool, default=False
        Stop after the parts: fast, each row is scored by the machine of its part, and NOTHING IS
        PROVED.
    cache : int or None, default=None
        Bytes of kernel columns to keep; None: 0.3 of the memory at most.
    memory : int or None, default=None
        Bytes that the fit may use; None: 0.8 of the machine's.
    n_jobs : int or None, default=None
        Threads; None and -1: one for each processor.
    scheduler : str or None, default=None
        Address of a Dask scheduler to run on instead, ``tcp://HOST:8786``.
    work : path or None, default=None
        Folder that a scheduler's workers share, for the rows; emptied after the fit.
    random_state : int, RandomState or None, default=None
        Of the first block, landmarks and clusters; None is 0: the same fit every time.
    verbose : int, default=0
        Anything but 0 shows the gap as it falls.

    Attributes
    ----------
    classes_ : ndarray (n_classes,)
    n_features_in_ : int
    support_ : int32 array (n_SV,)
        Rows of X with alpha away from 0, by class.
    support_vectors_ : float32 array or csr_array (n_SV, n_features)
        Empty if the kernel is precomputed.
    n_support_ : int32 array (n_classes,)
    dual_coef_ : float64 array (n_classes - 1, n_SV)
        In scikit-learn's layout: with two classes ``y_i alpha_i``; with more, row j - 1 has the
        coefficients of class i's rows against class j, row i those of class j's against i < j.
    intercept_ : float64 array (1,) or (n_classes * (n_classes - 1) / 2,)
    dual_gap_, relative_gap_ : float
        ``P(w) - D(alpha)``, proved over all rows, and that over P; the largest of all pairs (NaN
        after ``early``).
    certificate_ : list of dict
        Of every pair: label, primal, dual, gap, relative_gap, rounding_bound, and so on; None
        after ``early``.
    n_iter_ : int
        Blocks; the most of all pairs.
    history_ : list of dict
        Primal, dual, relative_gap, rows alive, kernel entries, seconds of every block.
    model_ : Model
        The fitted machine, which needs no data; ``model_.save(path)`` writes it to a file.

    Examples
    --------
    >>> from bigscreen import SVC
    >>> machine = SVC(C=10, gamma=0.1).fit(X, y)  # doctest: +SKIP
    >>> machine.relative_gap_ <= machine.tol  # doctest: +SKIP
    True
    """

    def __init__(
        self,
        *,
        C: float = 1.0,
        kernel: str | Callable[[Any, Any], Any] = "rbf",
        degree: int = 3,
        gamma: float | str = "scale",
        coef0: float = 0.0,
        tol: float = 1e-3,
        class_weight: str | Mapping[Any, float] | None = None,
        fit_intercept: bool | str = "true",
        decision_function_shape: str = "ovr",
        break_ties: bool = False,
        max_iter: int = 10_000,
        time_budget: float | None = None,
        screening: str = "auto",
        f: float = 0.1,
        start: str = "auto",
        parts: int | None = None,
        levels: int = 1,
        early: bool = False,
        cache: int | None = None,
        memory: int | None = None,
        n_jobs: int | None = None,
        scheduler: str | None = None,
        work: str | os.PathLike[str] | None = None,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.C = C
        self.kernel = kernel
        self.degree = degree
        self.gamma = gamma
        self.coef0 = coef0
        self.tol = tol
        self.class_weight = class_weight
        self.fit_intercept = fit_intercept
        self.decision_function_shape = decision_function_shape
        self.break_ties = break_ties
        self.max_iter = max_iter
        self.time_budget = time_budget
        self.screening = screening
        self.f = f
        self.start = start
        self.parts = parts
        self.levels = levels
        self.early = early
        self.cache = cache
        self.memory = memory
        self.n_jobs = n_jobs
        self.scheduler = scheduler
        self.work = work
        self.random_state = random_state
        self.verbose = verbose

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Scores of rows.

        Parameters
        ----------
        X : as in ``fit``
            Rows of a data set are scored in the order of its source; with a precomputed kernel
            their entries to all training rows.

        Returns
        -------
        float64 array of shape (n_samples,); with three classes or more (n_samples, n_classes), or
        a column for each pair of classes
            Above 0 means ``classes_[1]``; the largest value wins; above 0 means the pair's first.
        """
        scores = self._scores(X)
        if scores.shape[1] == 1:
            return scores[:, 0]
        if self.decision_function_shape == "ovo":
            return -scores
        return self.model_.decision_values(scores)

    def predict(self, X: Any) -> NDArray[Any]:
        """Labels of rows: array of shape (n_samples,); X as in ``decision_function``."""
        scores = self._scores(X)
        if self.break_ties and scores.shape[1] > 1:
            return self.classes_[np.argmax(self.model_.decision_values(scores), axis=1)]
        return self.classes_[self.model_.decide(scores)]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = self.kernel == "precomputed"
        return tags

    # -- parameters ------------------------------------------------------------------------------
    def _options(self) -> TrainOptions:
        if self.decision_function_shape not in ("ovr", "ovo"):
            raise InputError(
                f"decision_function_shape must be ovr or ovo, got {self.decision_function_shape!r}"
            )
        if self.break_ties and self.decision_function_shape == "ovo":
            raise InputError("break_ties must be False when decision_function_shape is 'ovo'")
        if self.scheduler is not None and (callable(self.kernel) or self.kernel == "precomputed"):
            raise InputError(
                "a precomputed kernel, or one that is a function, needs rows in memory; give no "
                "scheduler"
            )
        return self._shared_options(
            exact=True,
            strategy="one",
            kernel=self.kernel,
            gamma="scale" if self.gamma == "auto" else self.gamma,
            degree=self.degree,
            coef0=self.coef0,
            f=self.f,
            start=self.start,
            parts=self.parts,
            levels=self.levels,
            early=self.early,
            cache=self.cache,
        )

    def _seed(self) -> int:
        return 0 if self.random_state is None else super()._seed()

    def _suited(self, options: TrainOptions, data: Rows) -> TrainOptions:
        return replace(options, gamma=1.0 / data.n_features) if self.gamma == "auto" else options

    def _columns(self, options: TrainOptions, data: Rows) -> int:
        return data.n_rows

    # -- what was found --------------------------------------------------------------------------
    def _publish(self, model: Model, numbers: NDArray[np.int64] | None) -> None:
        if numbers is not None:
            model = _renumbered(model, numbers, self.n_features_in_)
        super()._publish(model, numbers)
        assert model.support is not None and model.landmarks is not None
        code = _classes_of(model)
        order = np.lexsort((model.support, code))
        order = order[code[order] >= 0]
        code = code[order]
        self.support_ = model.support[order].astype(np.int32)
        self.n_support_ = np.bincount(code, minlength=len(self.classes_)).astype(np.int32)
        if self.kernel == "precomputed":
            self.support_vectors_ = np.empty((0, 0), np.float32)
        else:
            self.support_vectors_ = model.landmarks[order]
        self.dual_coef_ = _one_against_one(model.coef[:, order], code, len(self.classes_))
        # A pair's score is above 0 for its second class here, for its first in scikit-learn.
        self.intercept_ = model.intercept if len(model.coef) == 1 else -model.intercept


def _renumbered(model: Model, numbers: NDArray[np.int64], columns: int) -> Model:
    """The model with the rows' numbers in X, where some had no weight and were left out."""
    assert model.support is not None
    support = numbers[model.support]
    if model.kernel.name != "precomputed":
        return replace(model, support=support)
    nothing = sparse.csr_array((len(support), columns), dtype=np.float32)
    return replace(model, support=support, landmarks=nothing)


def _pairs(classes: int) -> list[tuple[int, int]]:
    return list(zip(*(part.tolist() for part in np.triu_indices(classes, 1)), strict=True))


def _classes_of(model: Model) -> NDArray[np.int64]:
    """The class of every support row, which the sign of any of its coefficients tells; -1: none."""
    code = np.full(model.coef.shape[1], -1)
    for (first, second), coef in zip(_pairs(len(model.labels)), model.coef, strict=True):
        code[coef > 0], code[coef < 0] = second, first
    return code


def _one_against_one(
    coef: NDArray[np.float64], code: NDArray[np.int64], classes: int
) -> NDArray[np.float64]:
    """Coefficients (pairs, n_SV) in scikit-learn's layout (classes - 1, n_SV)."""
    if classes == 2:
        return coef
    out = np.zeros((classes - 1, coef.shape[1]))
    for (first, second), own in zip(_pairs(classes), coef, strict=True):
        out[second - 1] -= np.where(code == first, own, 0.0)
        out[first] -= np.where(code == second, own, 0.0)
    return out
