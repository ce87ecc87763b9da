"""`NystroemSVC`: a kernel machine on Nystrom features, for more rows than fit in memory.

X may be an array, a scipy sparse array, a Dask array (read block by block), a data set, or the path
of a stored data set. A data set has its own labels and weights: y is left out then.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.metaestimators import available_if

from bigscreen.data.dask_rows import lazy_for_dask
from bigscreen.estimators.base import Classifier, check_components
from bigscreen.estimators.linear import HINGES, problem_of
from bigscreen.model.calibration import check_alpha
from bigscreen.model.model import Model
from bigscreen.options.train import TrainOptions
from bigscreen.options.tuning import Tuning


def _has_probability(machine: Any) -> bool:
    """Return True; AttributeError unless the machine has ``probability=True``."""
    if not machine.probability:
        raise AttributeError("probabilities need probability=True")
    return True


@dataclass(eq=False, repr=False)
class NystroemSVC(Classifier):
    """Kernel support vector machine on Nystrom features, for more rows than fit in memory.

    Minimises ``1/2 ||w||^2 + C sum_i weight_i max(0, 1 - y_i (<w, phi(x_i)> + b))``, or with
    squared losses, where ``phi(x) = T' k(x, Z)``, ``T T' = k(Z, Z)^+`` and Z are ``n_components``
    of the rows, until the duality gap, summed over all rows, is at most ``tol`` times the
    objective. More than two classes are fitted one against the rest, over the same features.

    Parameters
    ----------
    kernel : {"rbf", "polynomial", "laplacian", "sigmoid", "matern12", "matern32", "matern52", \
    "chi2", "linear"}, default="rbf"
        As in `SVC`; "linear" is a linear machine without landmarks.
    gamma : {"scale", "auto"} or float, default="scale"
        As in `SVC`.
    degree : int, default=3
    coef0 : float, default=0.0
        Constant of the polynomial and sigmoid kernels.
    n_components : int, default=1000
        Number m of landmarks; more is closer to the exact kernel, and costs m^2 per row.
    sampling : {"uniform", "rpcholesky", "leverage", "kmeans", "auto"}, default="uniform"
        How landmarks are drawn: uniformly at random, by randomly pivoted Cholesky, by approximate
        leverage scores, or as the rows nearest to cluster centres. "auto" uses pivoted Cholesky if
        many rows nearly repeat each other, when it needs fewer landmarks, else uniform draws.
    metric_learning : {"none", "diagonal", "full"}, default="none"
        "diagonal": learn from a first machine on landmarks a factor for each column; "full": a
        matrix that mixes columns (at most 1,000). The machine is fitted to the mapped rows, of
        which ``components_`` consists and the certificate speaks.
    loss : {"hinge", "squared_hinge"}, default="hinge"
    C : float, default=1.0
        Penalty of a row's margin violation.
    tol : float, default=1e-3
        Relative duality gap to prove: how far the objective may be above the optimum, as a
        fraction of itself.
    fit_intercept : {True, "penalized", False}, default="penalized"
        The unpenalised offset of `sklearn.svm.SVC`, which coordinate descent does not have; a
        constant feature 1, penalised with the rest, which every solver has; or no offset.
    class_weight : None, "balanced" or dict, default=None
        Multiplies C by class; "balanced" is ``n / (n_classes * n_class)``, counting weights.
    probability : bool, default=False
        Whether to calibrate scores with machines that are each fitted without a fifth of the rows,
        over the same features: needed by `predict_proba`, `predict_set` and
        ``model_.thresholded``. With three classes or more the most probable class can differ from
        the one that `predict` returns.
    max_iter : int, default=1000
        Largest number of passes over the rows.
    time_budget : float or None, default=None
        Seconds after which the best point so far is certified and kept.
    solver : {"auto", "newton", "dense", "cd", "interior", "snacks", "pegasos"}, default="auto"
        Smoothed Newton; its plain form on dense matrices; coordinate descent; an interior point
        method, for few rows; or stochastic steps ("snacks", "pegasos"), which come near the optimum
        in about one pass and certify the gap that they reach, but seldom reach ``tol``.
    screening : {"gap", "f-safe", "adaptive", "none"}, default="gap"
        Rule that recognises rows to leave out of further passes.
    device : {"auto", "cpu", "cuda"}, default="auto"
        What computes: "cuda" is a GPU, with CuPy or PyTorch, by the solver "dense"; "auto" is a GPU
        if there is one and the fit is large.
    random_state : int, RandomState or None, default=None
        Seed for the choice of landmarks.
    memory : int or None, default=None
        Bytes that the fit may use; None: 0.8 of the memory available to the process.
    n_jobs : int or None, default=None
        Number of threads; None and -1: one for each processor.
    scheduler : str, distributed.Client, Dask cluster or None, default=None
        Where to run instead: a Dask client or cluster, which is borrowed and left running, or the
        address of a scheduler, ``tcp://HOST:8786``. None: if X is a Dask collection and Dask has
        an active client, that one; else threads of this process.
    work : path or None, default=None
        Folder for what does not fit in memory (and, with a scheduler, for the rows: all its
        workers must share it); emptied after the fit. None: the system's temporary folder.
    warm_start : bool, default=False
        Whether another ``fit`` starts at the last machine, which saves time after a change of C,
        ``tol``, loss or some rows. The problem and its proof do not depend on the start: landmarks
        are drawn as ``random_state`` says, and the last machine is projected onto them. A fit
        starts cold with other labels or columns, with a parameter of the kernel changed by more
        than 5 %, by the solver "interior", and on a GPU.
    verbose : int, default=0
        Any value but 0 shows the gap during the fit.
    tuning : Tuning or None, default=None
        Whether phi is computed once and stored, or anew in every pass (``features``), which
        directions of the landmarks are dropped (``truncation``; ``certificate_`` has the remaining
        rank), how the fit starts, and more: see `bigscreen.Tuning`. None: its defaults.

    Attributes
    ----------
    classes_ : ndarray (n_classes,)
    n_features_in_ : int
    components_ : ndarray or csr_array (m, n_features)
        The landmarks Z; None for a linear machine.
    coef_ : float64 array (1, m), or (n_classes, m) with three classes or more
        The decision function is ``k(X, components_) @ coef_.T + intercept_``, for a linear machine
        ``X @ coef_.T + intercept_``.
    intercept_ : float64 array (1,) or (n_classes,)
    dual_gap_, relative_gap_ : float
        The gap ``P(w) - D(alpha)``, proved over all rows, and the gap divided by P; the largest
        over all classes.
    certificate_ : list of dict
        For every binary classifier: label, primal, dual, gap, relative_gap, rounding_bound, rank
        and cutoff of the landmarks, and so on.
    ledger_ : Ledger, or a list with a Ledger for every class
        Which rows are proved out (``alpha* = 0``), at their bound, or open: ``status``, ``counts``,
        ``margins`` and, for a data set, the rows' ``numbers()`` in the source.
    n_iter_ : int
        Number of entries of ``history_`` for the binary classifier that has the most.
    history_ : list of dict
        At every check of the solver: primal, best dual so far, relative_gap, rows alive, rows
        visited, seconds, and the passes so far: full_passes over all rows and partial_passes over
        a part (``certificate_`` counts the closing passes, too). P and D are by the solver's
        arithmetic; ``certificate_`` has what is proved, rounding included.
    model_ : Model
        The fitted machine, which needs no data; ``model_.save(path)`` writes it to a file.

    Examples
    --------
    >>> from bigscreen import NystroemSVC
    >>> machine = NystroemSVC(n_components=500, C=10).fit(X, y)  # doctest: +SKIP
    >>> machine.relative_gap_ <= machine.tol  # doctest: +SKIP
    True
    """

    kernel: str = "rbf"
    _: KW_ONLY
    gamma: float | str = "scale"
    degree: int = 3
    coef0: float = 0.0
    n_components: int = 1000
    sampling: str = "uniform"
    metric_learning: str = "none"
    loss: str = "hinge"
    C: float = 1.0
    tol: float = 1e-3
    fit_intercept: bool | str = "penalized"
    class_weight: str | Mapping[Any, float] | None = None
    probability: bool = False
    max_iter: int = 1000
    time_budget: float | None = None
    solver: str = "auto"
    screening: str = "gap"
    device: str = "auto"
    random_state: Any = None
    memory: int | None = None
    n_jobs: int | None = None
    scheduler: Any = None
    work: str | os.PathLike[str] | None = None
    warm_start: bool = False
    verbose: int = 0
    tuning: Tuning | None = None

    @available_if(_has_probability)  # type: ignore[untyped-decorator]  # scikit-learn has no types
    @lazy_for_dask(lambda machine: (np.float64, len(machine.classes_)))
    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Predict probabilities, float64 (n_samples, n_classes); X as in ``decision_function``.

        Requires ``probability=True``. The probabilities are calibrated scores of machines that were
        each fitted without one fold of the rows, calibrated on the held-out rows. With two classes
        the more probable one is the one that `predict` returns, unless ``class_weight`` shifts it.
        With three classes or more the most probable class can differ from the one that `predict`
        returns.
        """
        return self.model_.calibrated.probabilities(self._evidence(X))

    @available_if(_has_probability)  # type: ignore[untyped-decorator]  # scikit-learn has no types
    @lazy_for_dask(lambda machine: (np.bool_, len(machine.classes_)))
    def predict_set(self, X: Any, alpha: float = 0.1) -> NDArray[np.bool_]:
        """Predict conformal sets, bool (n_samples, n_classes); X as in ``decision_function``.

        Requires ``probability=True``. Of the rows of every class, a fraction of 1 - alpha has the
        class in its set (Mondrian conformal prediction), however accurate the machine is, if the
        rows are exchangeable with the training rows; ties between scores can increase the fraction.

        Parameters
        ----------
        alpha : float
            Fraction of rows whose set may lack their class, strictly between 0 and 1.

        Raises
        ------
        InputError
            If alpha is out of range.
        """
        check_alpha(alpha)
        return self.model_.calibrated.label_sets(self._evidence(X), alpha)

    def _options(self) -> TrainOptions:
        """Convert the estimator's parameters to training options."""
        options = self._shared_options(
            C=self.C,
            kernel=self.kernel,
            gamma=self.gamma,
            degree=self.degree,
            coef0=self.coef0,
            landmarks=check_components(self.n_components),
            sampling=self.sampling,
            metric_learning=self.metric_learning,
            probability=self.probability,
        )
        return replace(options, problem=problem_of(self.loss, HINGES))

    def _publish(self, model: Model, numbers: NDArray[np.int64] | None) -> None:
        """Set the fitted attributes; ``numbers``: the fitted rows' numbers in X, None for all."""
        super()._publish(model, numbers)
        self.components_ = model.landmarks
        self.coef_, self.intercept_ = model.coef, model.intercept
