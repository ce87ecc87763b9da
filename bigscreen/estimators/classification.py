"""The classifiers `SVC` and `NuSVC`, drop-ins for scikit-learn's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from bigscreen.data.dask_rows import lazy_for_dask
from bigscreen.errors import InputError
from bigscreen.estimators.base import Classifier
from bigscreen.estimators.kernel import KernelMachine
from bigscreen.estimators.probability import Probable
from bigscreen.model.model import Model
from bigscreen.model.pairs import infer_classes, to_libsvm_layout


@dataclass(kw_only=True, eq=False, repr=False)
class _Voting(Probable, Classifier, KernelMachine):
    """Base of the classifiers that fit classes one against one."""

    probability: bool | str = "deprecated"
    class_weight: str | Mapping[Any, float] | None = None
    fit_intercept: bool | str = True
    decision_function_shape: str = "ovr"
    break_ties: bool = False

    @property
    def _n_values(self) -> int | None:
        """The number of columns of ``decision_function``; None: it has one value for each row."""
        if len(self.classes_) == 2:
            return None
        pairs = self.decision_function_shape == "ovo"
        return len(self.model_.coef) if pairs else len(self.classes_)

    @lazy_for_dask(lambda machine: (np.float64, machine._n_values))
    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Compute the scores of rows.

        Parameters
        ----------
        X : as in ``fit``
            Rows of a data set are scored in the order of its source. Rows of a Dask array or data
            frame are scored later: the result is a lazy Dask array, with a task for each block.
            With a precomputed kernel X holds the kernel entries between the rows and all training
            rows.

        Returns
        -------
        float64 array of shape (n_samples,); with three classes or more (n_samples, n_classes), or
        a column for each pair of classes
            With two classes a score above 0 means ``classes_[1]``. With "ovr" the class with the
            largest value wins; with "ovo" a score above 0 means the pair's first class.
        """
        scores = self._scores(X)
        if scores.shape[1] == 1:
            return scores[:, 0]
        if self.decision_function_shape == "ovo":
            return self._to_sklearn_sign(scores)
        return self.model_.decision_values(scores)

    @lazy_for_dask(lambda machine: (machine.classes_.dtype, None))
    def predict(self, X: Any) -> NDArray[Any]:
        """Predict labels of rows, an array of shape (n_samples,); X as in ``decision_function``.

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

    def _own_options(self) -> dict[str, Any]:
        """Check the parameters of one-against-one machines; return their training options."""
        if self.decision_function_shape not in ("ovr", "ovo"):
            raise InputError(
                f"decision_function_shape must be ovr or ovo, got {self.decision_function_shape!r}"
            )
        asked = self.probability
        if not (isinstance(asked, (bool, np.bool_)) or asked == "deprecated"):
            raise InputError(f"probability must be True or False, got {asked!r}")
        return {"strategy": "one"}

    def _to_sklearn_sign(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Convert values, one per score, to scikit-learn's signs, opposite beyond two classes."""
        # A positive score means a pair's second class here, and its first class in scikit-learn.
        return values if len(self.classes_) == 2 else -values

    def _publish(self, model: Model, numbers: NDArray[np.int64] | None) -> None:
        """Set the fitted attributes; ``n_iter_`` has the iterations of each pair of classes."""
        super()._publish(model, numbers)
        made = Counter(event["class"] for event in self.history_)
        names = [part["label"] for part in self.certificate_ or [{"label": None}] * len(model.coef)]
        self.n_iter_ = np.array([made[name] for name in names], np.int32)

    def _publish_support(self, model: Model) -> None:
        """Set ``support_`` and related attributes, support rows grouped by class as in LIBSVM."""
        assert model.support is not None
        code = infer_classes(model)
        order = np.lexsort((model.support, code))
        order = order[code[order] >= 0]
        code = code[order]
        self._publish_rows(model, order)
        self.n_support_ = np.bincount(code, minlength=len(self.classes_)).astype(np.int32)
        self._publish_coefficients(to_libsvm_layout(model.coef[:, order], code, len(self.classes_)))


@dataclass(kw_only=True, eq=False, repr=False)
class SVC(_Voting):
    """Exact kernel support vector machine, a drop-in for `sklearn.svm.SVC`.

    Minimises ``1/2 ||w||^2 + C sum_i weight_i max(0, 1 - y_i (<w, phi(x_i)> + b))`` for the
    kernel's own phi, without approximation (but see ``n_components``), until the duality gap,
    summed over all rows in float64, is at most ``tol`` times the objective. The kernel matrix is
    held in memory only for few rows; otherwise its columns are computed when needed, and cached
    while there is room. Rows stay float64 if float32 cannot represent them exactly. More than two
    classes are fitted one against one, as in scikit-learn.

    For probabilities wrap it: ``CalibratedClassifierCV(SVC(...)).fit(X, y)``. Of scikit-learn's
    parameters only ``tol`` and ``max_iter`` have another meaning here. Rows with a weight of 0 or
    less are left out, as in LIBSVM; ``support_`` has the numbers of rows in X.

    Parameters
    ----------
    C : float, default=1.0
        Penalty of a row's margin violation; infinity forbids violations (it acts as C = 1e10).
    kernel : str or callable, default="rbf"
        "rbf", "poly", "linear", "sigmoid", "laplacian", "matern12", "matern32", "matern52" or
        "chi2"; "precomputed", with X the square matrix of entries between rows; or a function
        ``f(A, B)``, which returns the entries between the rows of two float64 arrays (CSR arrays if
        X is sparse) and may be called from several threads. If rows of X are not numeric (texts,
        graphs), A and B are lists of rows. The Matern kernels of the orders 1/2, 3/2 and 5/2 have
        the length scale ``1 / gamma``; "matern12" is ``exp(-gamma ||a - b||_2)``. "chi2" is
        ``exp(-gamma sum (a - b)^2 / (a + b))``, for values of at least 0.
    degree : int, default=3
    gamma : {"scale", "auto"} or float, default="scale"
        "scale" is ``1 / (n_features * X.var())``, with a Matern kernel its root, with "chi2" its
        product with the mean of X; "auto" is ``1 / n_features``.
    coef0 : float, default=0.0
        Constant of the polynomial and sigmoid kernels.
    n_components : int or None, default=None
        None: the exact kernel. A number: Nystrom features of this many landmarks, for more rows
        than the exact machine can take (with the linear kernel: the features themselves).
    sampling : {"uniform", "rpcholesky", "leverage", "kmeans", "auto"}, default="uniform"
        How landmarks are drawn.
    metric_learning : {"none", "diagonal", "full"}, default="none"
        "diagonal": learn from a first machine on landmarks a factor for each column; "full": a
        matrix that mixes columns (at most 1,000). The machine is fitted to the mapped rows, of
        which ``support_vectors_`` consists and the certificate speaks.
    tol : float, default=1e-3
        RELATIVE DUALITY GAP to prove: how far the objective may be above the optimum, as a
        fraction of itself. (In scikit-learn ``tol`` bounds the violation of the KKT conditions. So
        it does here if the kernel is not positive semidefinite: sigmoid, poly with ``coef0`` below
        0, or a matrix or function that the rows show to be indefinite.)
    shrinking : bool, default=True
        Accepted for compatibility with scikit-learn, without effect: see ``screening``.
    probability : bool, default=False
        Deprecated, as in scikit-learn: adds ``predict_proba``, at the cost of five more fits. The
        most probable class can differ from the one that ``predict`` returns.
    class_weight : None, "balanced" or dict, default=None
        Multiplies C by class.
    fit_intercept : {True, "penalized", False}, default=True
        The unpenalised offset of `sklearn.svm.SVC`; a constant feature 1, penalised with the rest;
        or no offset.
    decision_function_shape : {"ovr", "ovo"}, default="ovr"
        With three classes or more: a value per class (its votes, plus a fraction of a vote from
        the scores), or a score per pair of classes.
    break_ties : bool, default=False
        With "ovr": among classes tied in votes predict the one with the largest value, not the
        first.
    max_iter : int, default=-1
        Limit of the number of blocks solved, or of gap checks (every few hundred pair steps); with
        ``n_components`` of the passes over the rows. -1: no limit.
    time_budget : float or None, default=None
        Seconds after which the best point so far is certified and kept.
    solver : {"auto", "block", "pairs", "newton", "dense", "cd", "interior"}, default="auto"
        The exact machine is solved by blocks of rows or by pairs; with ``n_components`` by smoothed
        Newton ("dense": its plain form), coordinate descent, an interior point method or pairs.
    screening : {"auto", "gap", "f-safe", "adaptive", "joachims", "none"}, default="auto"
        Rule that recognises rows to leave out of further passes; "auto" is "none", with
        ``n_components`` "gap".
    device : {"auto", "cpu", "cuda"}, default="auto"
        What computes a machine with ``n_components``: "cuda" is a GPU, with CuPy or PyTorch; "auto"
        is a GPU if there is one and the fit is large.
    early : bool, default=False
        Fit a machine to each of several parts of the rows and stop: fast, each row is scored by the
        machine of its part, and NOTHING IS PROVED.
    cache_size : float or None, default=None
        Megabytes of kernel columns to keep; None: at most 0.3 of the memory.
    memory : int or None, default=None
        Bytes that the fit may use; None: 0.8 of the memory available to the process.
    n_jobs : int or None, default=None
        Number of threads; None and -1: one for each processor.
    scheduler : str, distributed.Client, Dask cluster or None, default=None
        Where to run instead: a Dask client or cluster, which is borrowed and left running, or the
        address of a scheduler, ``tcp://HOST:8786``. None: if X is a Dask collection and Dask has
        an active client, that one; else threads of this process.
    work : path or None, default=None
        Folder that a scheduler's workers share, for the rows; emptied after the fit.
    warm_start : bool, default=False
        Whether another ``fit`` starts at the last machine: at the alpha of the support vectors that
        are still the rows of their numbers, scaled as C is. The proof is the same, and it takes
        less time after a change of C, ``tol`` or gamma, and with rows appended; with up to 4,096
        rows little, as computing the kernel matrix takes most of it. A fit with other labels,
        columns or another kernel starts cold. With ``n_components`` as in `NystroemSVC`.
    random_state : int, RandomState or None, default=None
        Seed for the first block, landmarks and clusters; None is 0, so every fit is the same.
    verbose : bool or int, default=False
        Show the gap during the fit.
    tuning : Tuning or None, default=None
        How the fit starts (``start``, ``parts``, ``levels``), the precision of the certificate
        (``certify``) and how aggressive screening is (``f``, ``patience``): see
        `bigscreen.Tuning`. None: its defaults.

    Attributes
    ----------
    classes_ : ndarray (n_classes,)
    n_features_in_ : int
    support_ : int32 array (n_SV,)
        Numbers of the rows of X with a nonzero alpha, ordered by class.
    support_vectors_ : array or csr_array (n_SV, n_features)
        Empty if the kernel is precomputed.
    n_support_ : int32 array (n_classes,)
    dual_coef_ : float64 array, or csr_array if X is sparse, (n_classes - 1, n_SV)
        In scikit-learn's layout: with two classes ``y_i alpha_i``; with more, row j - 1 has the
        coefficients of class i's rows against class j, row i those of class j's against i < j.
    intercept_ : float64 array (1,) or (n_classes * (n_classes - 1) / 2,)
    coef_ : array or csr_array (n_classes * (n_classes - 1) / 2, n_features)
        Weights of the features, if the kernel is linear; (1, n_features) with two classes.
    dual_gap_, relative_gap_ : float
        The gap ``P(w) - D(alpha)``, proved over all rows, and the gap divided by P; the largest
        over all pairs. NaN after ``early``, and if the kernel is not positive semidefinite: the fit
        then ends at a stationary point, and nothing is proved.
    certificate_ : list of dict
        For every pair: label, primal, dual, gap, relative_gap, rounding_bound, proved, violation
        (of the KKT conditions, if nothing is proved), and so on; None after ``early``.
    ledger_ : Ledger, or a list with a Ledger for every pair
        Which rows of X are proved out (``alpha* = 0``), at their bound, or open: ``status``,
        ``counts``, ``margins``; None if nothing is proved.
    n_iter_ : int32 array (n_classes * (n_classes - 1) / 2,)
        Number of iterations for every pair, as ``max_iter`` counts them.
    fit_status_ : int
        0, or 1 if the fit ended before ``tol`` was met.
    history_ : list of dict
        Primal, dual, relative_gap, rows alive, kernel entries and seconds of every block, by the
        solver's arithmetic; ``certificate_`` has what is proved, rounding included.
    components_ : ndarray or csr_array (n_components, n_features)
        If ``n_components`` is a number: the landmarks, instead of ``support_``,
        ``support_vectors_``, ``n_support_`` and ``dual_coef_``; None for the linear kernel.
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

    def _own_options(self) -> dict[str, Any]:
        """Return the training options of this class's own parameters, as keyword arguments."""
        return {**super()._own_options(), "C": self._penalty(self.C), "early": self.early}


@dataclass(kw_only=True, eq=False, repr=False)
class NuSVC(_Voting):
    """The nu-support vector classifier, a drop-in for `sklearn.svm.NuSVC`.

    Minimises ``1/2 ||w||^2 - nu rho + sum_i c_i max(0, rho - y_i (<w, phi(x_i)> + b))`` over w, b
    and rho, where c are the rows' weights divided by their sum, until the duality gap, summed over
    all rows in float64, is at most ``tol`` times the objective's absolute value. Published
    coefficients are scaled as in LIBSVM: divided by rho, so that the margin is 1. With a penalised
    offset or none (``fit_intercept``) it is the bounded machine of Yang et al. (2024), for which
    every nu is feasible.

    Parameters
    ----------
    nu : float, default=0.5
        In (0, 1]: at most this fraction of the rows' weight is inside the margin or misclassified,
        and at least this fraction are support vectors. If the classes are too uneven for nu, the
        fit is refused before any kernel entry is computed, with the largest feasible nu.
    class_weight : None, "balanced" or dict, default=None
        Multiplies the weights by class (LIBSVM ignores it here).
    kernel, degree, gamma, coef0, n_components, sampling, metric_learning, tol, shrinking, \
    fit_intercept, decision_function_shape, break_ties, max_iter, time_budget, solver, screening, \
    device, cache_size, memory, n_jobs, scheduler, work, warm_start, random_state, verbose, tuning
        As in `SVC`; a machine on landmarks is not fitted with ``warm_start``.

    Attributes
    ----------
    classes_, n_features_in_, support_, support_vectors_, n_support_, components_, model_, \
    dual_gap_, relative_gap_, n_iter_, fit_status_, history_
        As in `SVC`.
    dual_coef_, intercept_, coef_ : arrays
        As in `SVC`, divided by rho.
    certificate_ : list of dict
        As in `SVC`, for the problem above, before the division by rho.

    Examples
    --------
    >>> from bigscreen import NuSVC
    >>> machine = NuSVC(nu=0.2).fit(X, y)  # doctest: +SKIP
    """

    _problem = "nu-svc"

    nu: float = 0.5

    def _own_options(self) -> dict[str, Any]:
        """Return the training options of this class's own parameters, as keyword arguments."""
        return {**super()._own_options(), "nu": self.nu}
