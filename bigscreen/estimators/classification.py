"""The classifiers `SVC` and `NuSVC` as scikit-learn has them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from bigscreen.errors import InputError
from bigscreen.estimators.base import Classifier
from bigscreen.estimators.kernel import KernelMachine
from bigscreen.estimators.probability import Probable
from bigscreen.model.model import Model
from bigscreen.model.pairs import classes_of, one_against_one


@dataclass(kw_only=True, eq=False, repr=False)
class _Voting(Probable, Classifier, KernelMachine):
    """Classifiers whose classes are fitted one against one."""

    probability: bool | str = "deprecated"
    class_weight: str | Mapping[Any, float] | None = None
    fit_intercept: bool | str = True
    decision_function_shape: str = "ovr"
    break_ties: bool = False

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
            return self._outward(scores)
        return self.model_.decision_values(scores)

    def predict(self, X: Any) -> NDArray[Any]:
        """Labels of rows: array of shape (n_samples,); X as in ``decision_function``.

        With ``probability=True`` the most probable class can differ from the label.
        """
        check_is_fitted(self)
        if self.break_ties and self.decision_function_shape == "ovo":
            raise InputError("break_ties must be False when decision_function_shape is 'ovo'")
        scores = self._scores(X)
        codes = self.model_.decide(scores)
        if self.break_ties and scores.shape[1] > 1:
            codes = np.argmax(self.model_.decision_values(scores), axis=1)
        labels: NDArray[Any] = self.classes_[codes]
        return labels

    def _own(self) -> dict[str, Any]:
        if self.decision_function_shape not in ("ovr", "ovo"):
            raise InputError(
                f"decision_function_shape must be ovr or ovo, got {self.decision_function_shape!r}"
            )
        asked = self.probability
        if not (isinstance(asked, (bool, np.bool_)) or asked == "deprecated"):
            raise InputError(f"probability must be True or False, got {asked!r}")
        return {"strategy": "one"}

    def _outward(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        # A pair's score is above 0 for its second class here, for its first in scikit-learn.
        return values if len(self.classes_) == 2 else -values

    def _publish(self, model: Model, numbers: NDArray[np.int64] | None) -> None:
        super()._publish(model, numbers)
        made = Counter(event["class"] for event in self.history_)
        names = [part["label"] for part in self.certificate_ or [{"label": None}] * len(model.coef)]
        self.n_iter_ = np.array([made[name] for name in names], np.int32)

    def _publish_support(self, model: Model) -> None:
        assert model.support is not None
        code = classes_of(model)
        order = np.lexsort((model.support, code))
        order = order[code[order] >= 0]
        code = code[order]
        self._support_of(model, order)
        self.n_support_ = np.bincount(code, minlength=len(self.classes_)).astype(np.int32)
        self._coefficients(one_against_one(model.coef[:, order], code, len(self.classes_)))


@dataclass(kw_only=True, eq=False, repr=False)
class SVC(_Voting):
    """Exact kernel support vector machine, a drop-in for `sklearn.svm.SVC`.

    Minimises ``1/2 ||w||^2 + C sum_i weight_i max(0, 1 - y_i (<w, phi(x_i)> + b))`` for the
    kernel's own phi, nothing approximated (but see ``n_components``), until the duality gap,
    summed over all rows in float64, is at most ``tol`` times the objective. The kernel matrix is
    never held, but of few rows: its columns are computed when they are needed, and kept while there
    is room. Rows of float64 stay that where float32 does not hold them. More than two classes are
    fitted one against one, as in scikit-learn.

    For probabilities wrap it: ``CalibratedClassifierCV(SVC(...)).fit(X, y)``. Of parameters that
    scikit-learn has, only ``tol`` and ``max_iter`` mean something else here; rows of weight 0 or
    below are left out, as LIBSVM has it, and ``support_`` has the numbers that the others have in
    X.

    Parameters
    ----------
    C : float, default=1.0
        Penalty of a row's violation of the margin; infinite: none may violate it (as C = 1e10).
    kernel : str or callable, default="rbf"
        "rbf", "poly", "linear", "sigmoid" or "laplacian"; "precomputed", with X the square matrix
        of entries between rows; or ``f(A, B)``, which returns the entries between the rows of two
        float64 arrays (CSR arrays where X is sparse) and may be called from several threads; of
        rows that are no numbers between those of X and others.
    degree : int, default=3
    gamma : {"scale", "auto"} or float, default="scale"
        "scale" is ``1 / (n_features * X.var())``, "auto" is ``1 / n_features``.
    coef0 : float, default=0.0
        Of the polynomial and sigmoid kernels.
    n_components : int or None, default=None
        None: the kernel itself. A number: Nystrom features of as many landmarks, for more rows
        than the exact machine can take (with the linear kernel: the rows as they are).
    sampling : {"uniform", "rpcholesky", "leverage", "kmeans", "auto"}, default="uniform"
        How landmarks are drawn.
    tol : float, default=1e-3
        RELATIVE DUALITY GAP to prove: how far the objective may be above the optimum, as a part of
        itself (scikit-learn's is the violation of a KKT condition, and so is this one where the
        kernel is not positive semidefinite: sigmoid, poly with ``coef0`` below 0, a matrix or
        function that the rows prove to be none).
    shrinking : bool, default=True
        Taken because scikit-learn takes it: ``screening`` is what leaves rows out here.
    probability : bool, default=False
        Deprecated, as scikit-learn has deprecated it: adds ``predict_proba``, at the price of five
        more fits. The most probable class can differ from the one that ``predict`` gives.
    class_weight : None, "balanced" or dict, default=None
        Multiplies C by class.
    fit_intercept : {True, "penalized", False}, default=True
        The unpenalised offset of `sklearn.svm.SVC`; a constant feature 1, penalised with the rest;
        or no offset.
    decision_function_shape : {"ovr", "ovo"}, default="ovr"
        Of three classes or more: a value for each class (its votes, and part of one more), or for
        each pair of classes.
    break_ties : bool, default=False
        With "ovr": of classes with as many votes predict that of the largest value, not the first.
    max_iter : int, default=-1
        Blocks of rows to solve, or looks at the gap between hundreds of pairs; passes over the rows
        with ``n_components``. -1: as many as it takes.
    time_budget : float or None, default=None
        Seconds, after which the best point so far is certified and kept.
    solver : {"auto", "block", "pairs", "newton", "cd", "interior"}, default="auto"
        Of the exact machine blocks of rows or pairs; else smoothed Newton, coordinate descent, an
        interior point method or pairs.
    screening : {"auto", "gap", "f-safe", "adaptive", "joachims", "none"}, default="auto"
        How rows are recognised that no longer need a look; "auto" is "none", with ``n_components``
        "gap".
    early : bool, default=False
        Fit parts of the rows and stop there: fast, each row is scored by the machine of its part,
        and NOTHING IS PROVED.
    cache_size : float or None, default=None
        Megabytes of kernel columns to keep; None: 0.3 of the memory at most.
    memory : int or None, default=None
        Bytes that the fit may use; None: 0.8 of what the process may use.
    n_jobs : int or None, default=None
        Threads; None and -1: one for each processor.
    scheduler : str or None, default=None
        Address of a Dask scheduler to run on instead, ``tcp://HOST:8786``.
    work : path or None, default=None
        Folder that a scheduler's workers share, for the rows; emptied after the fit.
    random_state : int, RandomState or None, default=None
        Of the first block, landmarks and clusters; None is 0: the same fit every time.
    verbose : bool or int, default=False
        Shows the gap as it falls.
    tuning : Tuning or None, default=None
        Where the fit begins (``start``, ``parts``, ``levels``), precision of the certificate
        (``certify``) and how bold screening is (``f``, ``patience``): see `bigscreen.Tuning`,
        whose defaults None stands for.

    Attributes
    ----------
    classes_ : ndarray (n_classes,)
    n_features_in_ : int
    support_ : int32 array (n_SV,)
        Rows of X with alpha away from 0, by class.
    support_vectors_ : array or csr_array (n_SV, n_features)
        Empty if the kernel is precomputed.
    n_support_ : int32 array (n_classes,)
    dual_coef_ : float64 array, or csr_array if X is sparse, (n_classes - 1, n_SV)
        In scikit-learn's layout: with two classes ``y_i alpha_i``; with more, row j - 1 has the
        coefficients of class i's rows against class j, row i those of class j's against i < j.
    intercept_ : float64 array (1,) or (n_classes * (n_classes - 1) / 2,)
    coef_ : array or csr_array (n_classes * (n_classes - 1) / 2, n_features)
        Of a linear kernel: weights of the features, (1, n_features) of two classes.
    dual_gap_, relative_gap_ : float
        ``P(w) - D(alpha)``, proved over all rows, and that over P; the largest of all pairs (NaN
        after ``early``, and where the kernel is not positive semidefinite: the fit then ends at
        a stationary point, and nothing is proved).
    certificate_ : list of dict
        Of every pair: label, primal, dual, gap, relative_gap, rounding_bound, proved, violation (of
        the KKT conditions, where nothing is proved), and so on; None after ``early``.
    ledger_ : Ledger, or a list of one for every pair
        Which rows of X are proved out (``alpha* = 0``), at their bound, or open: ``status``,
        ``counts``, ``margins``; None where nothing is proved.
    n_iter_ : int32 array (n_classes * (n_classes - 1) / 2,)
        What ``max_iter`` counts, of every pair.
    fit_status_ : int
        0, or 1 where the fit ended before ``tol`` was met.
    history_ : list of dict
        Primal, dual, relative_gap, rows alive, kernel entries, seconds of every block, as the
        solver has them: what is proved, with its rounding, is in ``certificate_``.
    components_ : ndarray or csr_array (n_components, n_features)
        The landmarks, in place of ``support_``, ``support_vectors_``, ``n_support_`` and
        ``dual_coef_``, where ``n_components`` is a number; None for the linear kernel.
    model_ : Model
        The fitted machine, which needs no data; ``model_.save(path)`` writes it to a file.

    Examples
    --------
    >>> from bigscreen import SVC
    >>> machine = SVC(C=10, gamma=0.1).fit(X, y)  # doctest: +SKIP
    >>> machine.relative_gap_ <= machine.tol  # doctest: +SKIP
    True
    """

    C: float = 1.0
    early: bool = False

    def _own(self) -> dict[str, Any]:
        return {**super()._own(), "C": self._penalty(self.C), "early": self.early}


@dataclass(kw_only=True, eq=False, repr=False)
class NuSVC(_Voting):
    """The nu-support vector classifier, a drop-in for `sklearn.svm.NuSVC`.

    Minimises ``1/2 ||w||^2 - nu rho + sum_i c_i max(0, rho - y_i (<w, phi(x_i)> + b))``, ``c`` the
    rows' weights as parts of their sum, over w, b and rho, until the duality gap, summed over all
    rows in float64, is at most ``tol`` times the objective's absolute value. What is published is
    scaled as LIBSVM scales it: divided by rho, so that the margin is 1. With the penalised offset
    or none (``fit_intercept``) it is the bounded machine of Yang et al. (2024), which any nu suits.

    Parameters
    ----------
    nu : float, default=0.5
        In (0, 1]: at most this part of the rows' weight is inside the margin or wrong, and at least
        this part supports it. Classes as uneven as to make it infeasible are refused before any
        kernel entry is computed, with the largest feasible nu.
    class_weight : None, "balanced" or dict, default=None
        Multiplies the weights by class (LIBSVM looks away).
    kernel, degree, gamma, coef0, n_components, sampling, tol, shrinking, probability, \
    fit_intercept, decision_function_shape, break_ties, max_iter, time_budget, solver, screening, \
    cache_size, memory, n_jobs, scheduler, work, random_state, verbose, tuning
        As in `SVC`.

    Attributes
    ----------
    classes_, n_features_in_, support_, support_vectors_, n_support_, components_, model_, \
    dual_gap_, relative_gap_, n_iter_, fit_status_, history_
        As in `SVC`.
    dual_coef_, intercept_, coef_ : arrays
        As in `SVC`, divided by rho.
    certificate_ : list of dict
        As in `SVC`: of the problem above, before anything is divided.

    Examples
    --------
    >>> from bigscreen import NuSVC
    >>> machine = NuSVC(nu=0.2).fit(X, y)  # doctest: +SKIP
    """

    _problem = "nu-svc"

    nu: float = 0.5

    def _own(self) -> dict[str, Any]:
        return {**super()._own(), "nu": self.nu}
