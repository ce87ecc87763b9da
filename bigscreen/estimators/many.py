"""`fit_many`: one machine fitted to many label or weight vectors of the same rows."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from bigscreen.data.other_arrays import on_host
from bigscreen.data.targets import check_weights
from bigscreen.errors import InputError
from bigscreen.estimators.base import Classifier, Machine
from bigscreen.train.many import Outcomes
from bigscreen.train.run import train_many

Fitted = TypeVar("Fitted", bound=Machine)
"""Class of the estimators that `fit_many` takes and returns."""


def fit_many(machine: Fitted, X: Any, y: Any, sample_weight: Any = None) -> list[Fitted]:
    """Fit a machine to many label or weight vectors of the same rows, each to a proved gap.

    For bootstraps, permutation tests, cross-validation and multi-label problems. Landmarks and
    features are computed once, from all rows whatever their weights, and every pass over them
    serves all fits; each fit has its own certificate. A machine is not identical to that of
    ``fit``, but both are proved to be within ``tol`` of the same optimum (if ``random_state``,
    landmarks and gamma are the same).

    Parameters
    ----------
    machine : estimator
        A machine on features: `NystroemSVC`, `LinearSVC` or `LinearSVR`. It is not modified.
    X : array or sparse array of shape (n_samples, n_features)
    y : array of shape (n_samples,) or (n_samples, k)
        Labels or targets: one vector for all fits, or a column for each fit. All columns of labels
        must have the same set of labels.
    sample_weight : array of shape (n_samples,) or (n_samples, k), optional
        Weights: one vector for all fits, or a column for each fit; 0 leaves a row out of a fit.

    Returns
    -------
    list of k estimators
        Fitted estimators with the class and parameters of ``machine``, one per column.

    Raises
    ------
    InputError
        If shapes do not match, a column lacks a label that others have, a fit has rows of one class
        only, or the machine is exact or has ``probability=True``; and for the reasons of ``fit``.

    Warns
    -----
    ConvergenceWarning
        If ``max_iter`` or ``time_budget``, which hold for all fits together, ended a fit early.

    Examples
    --------
    >>> import numpy as np
    >>> from bigscreen import NystroemSVC, fit_many  # doctest: +SKIP
    >>> draws = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), 100).T  # doctest: +SKIP
    >>> machines = fit_many(NystroemSVC(), X, y, draws)  # 100 bootstraps  # doctest: +SKIP
    """
    if not isinstance(machine, Machine):
        raise InputError(
            f"fit_many fits estimators of this library, and {type(machine).__name__} is none"
        )
    X, y, sample_weight = on_host(X, y, sample_weight)
    many, given = np.asarray(y), None if sample_weight is None else np.asarray(sample_weight)
    k = _count(many, given)
    one = many if many.ndim == 1 else many[:, 0]
    machine = clone(machine)
    options = machine._options()
    with ExitStack() as owned:
        data, _ = machine._rows(X, one, None, owned)
        options = machine._adapt_options(options, data)
        if given is not None and len(given) != data.n_rows:
            raise InputError(f"X has {data.n_rows} rows and sample_weight has {len(given)}")
        y_of = [_outcome(machine, many, j) for j in range(k)]
        outcomes = [Outcomes(y_of[j], _weights(machine, given, j, y_of[j], one)) for j in range(k)]
        with machine._fleet(data.n_rows * machine._columns(options, data), X) as fleet:
            scratch = partial(machine._folder, owned)
            models = train_many(data, options, fleet, outcomes, scratch)
    fitted = []
    for model in models:
        each = clone(machine)
        for name in ("n_features_in_", "feature_names_in_", "classes_"):
            if hasattr(machine, name):
                setattr(each, name, getattr(machine, name))
        each._publish(model, None)
        fitted.append(each)
    return fitted


def _count(y: NDArray[Any], weights: NDArray[Any] | None) -> int:
    """Return the number of fits: the columns of y or of the weights, whichever has columns.

    Raises
    ------
    InputError
        If neither has more than one dimension, or both have and disagree.
    """
    for what, given in (("y", y), ("sample_weight", weights)):
        if given is not None and (given.ndim not in (1, 2) or (given.ndim == 2 and not given.size)):
            raise InputError(
                f"{what} must be a vector, or have a column for each fit, got the shape "
                f"{given.shape}"
            )
    columns = {each.shape[1] for each in (y, weights) if each is not None and each.ndim == 2}
    if len(columns) > 1:
        raise InputError(
            f"y has {y.shape[1]} columns and sample_weight has another number of them; give one of "
            "each for every fit, or one vector for all"
        )
    if not columns:
        raise InputError(
            "neither y nor sample_weight has more than one column, so there is one fit; use fit"
        )
    return int(columns.pop())


def _outcome(machine: Machine, y: NDArray[Any], j: int) -> NDArray[Any] | None:
    """Return label codes or targets of fit j, (n_samples,), from column j of y.

    None if y is one vector, which all fits share. InputError if a target is not finite, or the
    column has other labels than column 0.
    """
    if y.ndim == 1:
        return None
    own = y[:, j]
    if not isinstance(machine, Classifier):
        targets = np.asarray(own, np.float64)
        if not np.isfinite(targets).all():
            raise InputError(f"column {j} of y has a target that is missing or not finite")
        return targets
    found = np.unique(own)
    if not np.array_equal(found, machine.classes_):
        raise InputError(
            f"column {j} of y has the labels {found[:5].tolist()} and column 0 "
            f"{machine.classes_[:5].tolist()}; all columns need the same"
        )
    codes: NDArray[Any] = np.searchsorted(machine.classes_, own).astype(
        np.min_scalar_type(len(machine.classes_))
    )
    return codes


def _weights(
    machine: Machine, weights: NDArray[Any] | None, j: int, codes: Any, y: NDArray[Any]
) -> NDArray[Any] | None:
    """Return the weights of fit j, (n_samples,); None if there are no weights.

    ``codes``, (n_samples,), are the label codes of fit j; None: the labels are ``y``. InputError
    unless a row has weight and, for a classifier, rows of two classes do.
    """
    if weights is None:
        return None
    own = weights if weights.ndim == 1 else weights[:, j]
    checked = check_weights(own, len(own))
    assert checked is not None
    labels = y if codes is None else codes
    if not checked.any():
        raise InputError(f"fit {j}: every row has the weight zero, and a fit needs rows that count")
    if isinstance(machine, Classifier) and len(np.unique(labels[checked > 0])) < 2:
        raise InputError(f"fit {j}: all rows that have any weight are of one class")
    return np.ascontiguousarray(own) if np.issubdtype(own.dtype, np.integer) else checked
