"""`NystroemSVC`: a kernel machine on Nystrom features, for more rows than fit in memory.

X may be an array, a scipy sparse array, a Dask array (read block by block), a data set, or the path
of a stored one, which brings its own labels and weights: y is left out then.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.metaestimators import available_if

from bigscreen.estimators.base import Classifier, checked_components
from bigscreen.estimators.linear import HINGES, problem_of
from bigscreen.model.calibration import check_alpha
from bigscreen.model.model import Model
from bigscreen.options.train import TrainOptions
from bigscreen.options.tuning import Tuning


def _calibrated(machine: Any) -> bool:
    if not machine.probability:
        raise AttributeError("probabilities need probability=True")
    return True


@dataclass(eq=False, repr=False)
class NystroemSVC(Classifier):
    """Kernel support vector machine on Nystrom features, for more rows than fit in memory.

    Minimises ``1/2 ||w||^2 + C sum_i weight_i max(0, 1 - y_i (<w, phi(x_i)> + b))``, or with the
    squares of these losses, where ``phi(x) = T' k(x, Z)``, ``T T' = k(Z, Z)^+``, Z being
    ``n_components`` of the rows, until the duality gap, summed over all rows, is at most ``tol``
    times the objective. More than two classes are fitted one against the rest, over the same
    features.

    Parameters
    ----------
    kernel : {"rbf", "polynomial", "laplacian", "sigmoid", "linear"}, default="rbf"
        "linear" is a linear machine without landmarks.
    gamma : {"scale", "auto"} or float, default="scale"
        "scale" is ``1 / (n_features * X.var())``, "auto" is ``1 / n_features``.
    degree : int, default=3
    coef0 : float, default=0.0
        Of the polynomial and sigmoid kernels.
    n_components : int, default=1000
        Number m of landmarks; more is closer to the exact kernel, and costs m^2 a row.
    sampling : {"uniform", "rpcholesky", "leverage", "kmeans", "auto"}, default="uniform"
        How landmarks are drawn: by chance, by randomly pivoted Cholesky, by approximate leverage
        scores, as the rows nearest to the centres of clusters; auto: by pivots where rows repeat
        each other, which makes more of few there, else by chance.
    loss : {"hinge", "squared_hinge"}, default="hinge"
    C : float, default=1.0
        Penalty of a row's violation of the margin.
    tol : float, default=1e-3
        Relative duality gap to prove: how far the objective may be above the optimum, as a part
        of itself.
    fit_intercept : {True, "penalized", False}, default="penalized"
        The unpenalised offset of `sklearn.svm.SVC`, which coordinate descent does not have; a
        constant feature 1, penalised with the rest, which every solver has; or no offset.
    class_weight : None, "balanced" or dict, default=None
        Multiplies C by class; "balanced" is ``n / (n_classes * n_class)``, counting weights.
    probability : bool, default=False
        Whether to learn what scores mean, from machines that are each fitted without a fifth of the
        rows, over the same features: `predict_proba`, `predict_set`, and ``model_.thresholded``.
        With three classes or more the most probable class can differ from the one that `predict`
        gives.
    max_iter : int, default=1000
        Passes over the rows.
    time_budget : float or None, default=None
        Seconds, after which the best point so far is certified and kept.
    solver : {"auto", "newton", "cd", "interior", "snacks", "pegasos"}, default="auto"
        Smoothed Newton; an interior point, where rows are few; coordinate descent; or steps on rows
        drawn at random, which come near the optimum in about a pass, prove what they have reached
        and seldom reach ``tol``.
    screening : {"gap", "f-safe", "adaptive", "none"}, default="gap"
        How rows are recognised that no longer need a look.
    random_state : int, RandomState or None, default=None
        Of the choice of landmarks.
    memory : int or None, default=None
        Bytes that the fit may use; None: 0.8 of what the process may use.
    n_jobs : int or None, default=None
        Threads; None and -1: one for each processor.
    scheduler : str or None, default=None
        Address of a Dask scheduler to run on instead, ``tcp://HOST:8786``.
    work : path or None, default=None
        Folder for what does not fit in memory (and, with a scheduler, for the rows: all its
        workers must share it); emptied after the fit. None: the system's temporary one.
    verbose : int, default=0
        Anything but 0 shows the gap as it falls.
    tuning : Tuning or None, default=None
        Whether phi is computed once and kept, or afresh in every pass (``features``), which
        directions of the landmarks are dropped (``truncation``; ``certificate_`` says the rank that
        is left), where the fit begins, and more: see `bigscreen.Tuning`, whose defaults None stands
        for.

    Attributes
    ----------
    classes_ : ndarray (n_classes,)
    n_features_in_ : int
    components_ : ndarray or csr_array (m, n_features)
        The landmarks Z; None for a linear machine.
    coef_ : float64 array (1, m), or (n_classes, m) with three classes or more
        The decision function is ``k(X, components_) @ coef_.T + intercept_``; of a linear machine
        ``X @ coef_.T + intercept_``.
    intercept_ : float64 array (1,) or (n_classes,)
    dual_gap_, relative_gap_ : float
        ``P(w) - D(alpha)``, proved over all rows, and that over P; the largest of all classes.
    certificate_ : list of dict
        Of every classifier: label, primal, dual, gap, relative_gap, rounding_bound, rank and cutoff
        of the landmarks, and so on.
    ledger_ : Ledger, or a list of one for every class
        Which rows are proved out (``alpha* = 0``), at their bound, or open: ``status``, ``counts``,
        ``margins`` and, of a data set, their ``numbers()`` in the source.
    n_iter_ : int
        Points of ``history_``; the most of all classifiers.
    history_ : list of dict
        Primal, the best dual so far, relative_gap, rows alive and visited and seconds at every
        check of the solver, and the passes made until then, full_passes over all rows and
        partial_passes over some (``certificate_`` counts the closing ones, too). P and D are the
        solver's: what is proved, with its rounding, is in ``certificate_``.
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
    random_state: Any = None
    memory: int | None = None
    n_jobs: int | None = None
    scheduler: str | None = None
    work: str | os.PathLike[str] | None = None
    verbose: int = 0
    tuning: Tuning | None = None

    @available_if(_calibrated)  # type: ignore[untyped-decorator]  # scikit-learn has no types
    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Probabilities of classes, float64 (n_samples, n_classes); X as in ``decision_function``.

        With ``probability=True``. They come from machines that were each fitted without a part of
        the rows, and are what these machines' scores meant on the rows held out. Of two classes the
        more probable one is the one that `predict` gives, unless ``class_weight`` says otherwise.
        With three classes or more the most probable class can differ from the one that `predict`
        gives.
        """
        return self.model_.calibrated.probabilities(self._evidence(X))

    @available_if(_calibrated)  # type: ignore[untyped-decorator]  # scikit-learn has no types
    def predict_set(self, X: Any, alpha: float = 0.1) -> NDArray[np.bool_]:
        """Which classes rows may have, bool (n_samples, n_classes); X as in ``decision_function``.

        With ``probability=True``. Of the rows of every class a part of 1 - alpha has it in its set
        (Mondrian conformal sets), however good the machine is, if they come from where the rows did
        that were fitted; more have it where many rows have equal scores.

        Parameters
        ----------
        alpha : float
            Strictly between 0 and 1.

        Raises
        ------
        InputError
            If alpha is out of range.
        """
        check_alpha(alpha)
        return self.model_.calibrated.sets(self._evidence(X), alpha)

    def _options(self) -> TrainOptions:
        options = self._shared_options(
            C=self.C,
            kernel=self.kernel,
            gamma=self.gamma,
            degree=self.degree,
            coef0=self.coef0,
            landmarks=checked_components(self.n_components),
            sampling=self.sampling,
            probability=self.probability,
        )
        return replace(options, problem=problem_of(self.loss, HINGES))

    def _publish(self, model: Model, numbers: NDArray[np.int64] | None) -> None:
        super()._publish(model, numbers)
        self.components_ = model.landmarks
        self.coef_, self.intercept_ = model.coef, model.intercept
