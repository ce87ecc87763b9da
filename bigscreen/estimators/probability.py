"""LIBSVM's probabilities of classes: a sigmoid of every pair's scores, and pairwise coupling.

scikit-learn has deprecated them in favour of `CalibratedClassifierCV`, so they warn here, too.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.special import expit
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils import check_random_state, deprecated
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from bigscreen.data.dask_rows import is_lazy, lazy_for_dask
from bigscreen.errors import InputError
from bigscreen.estimators.inputs import is_store
from bigscreen.model.calibration import MIN_PROBABILITY, couple_pairs, fit_sigmoid
from bigscreen.numerics.rows import FloatArray

DEPRECATION = (
    "Attribute `{}` was deprecated in scikit-learn 1.9: take CalibratedClassifierCV in place of "
    "probability=True"
)
"""Warning for an attribute, whose name is filled in."""


def _has_probability(machine: Any) -> bool:
    """Return True; AttributeError unless the machine has ``probability=True``."""
    if machine.probability == "deprecated" or not machine.probability:
        raise AttributeError("predict_proba is not available when probability=False")
    return True


class Probable:
    """Mixin that adds LIBSVM's probabilities to a one-against-one machine."""

    probability: bool | str
    random_state: Any
    classes_: NDArray[Any]
    _gamma: float
    _scores: Callable[[Any], FloatArray]

    def _fit_more(self, X: Any, y: Any, sample_weight: Any) -> None:
        """Fit the sigmoids of probabilities if they are requested, with a deprecation warning."""
        self._probA = self._probB = np.empty(0)
        if self.probability == "deprecated":
            return
        name = type(self).__name__
        warnings.warn(
            "The `probability` parameter is deprecated, as scikit-learn 1.9 has deprecated it: "
            f"use `CalibratedClassifierCV({name}(), ensemble=False)` instead of "
            f"`{name}(probability=True)`",
            FutureWarning,
            stacklevel=3,
        )
        if self.probability:
            self._fit_sigmoids(X, y, sample_weight)

    @available_if(_has_probability)  # type: ignore[untyped-decorator]  # scikit-learn has no types
    @lazy_for_dask(lambda machine: (np.float64, len(machine.classes_)))
    def predict_proba(self, X: Any) -> FloatArray:
        """Predict probabilities of classes, float64 array of shape (n_samples, n_classes).

        Requires ``probability=True``. The sigmoids are fitted to cross-fitted scores of five folds,
        as in LIBSVM and scikit-learn. The most probable class can differ from the one that
        `predict` returns, even with two classes.
        """
        check_is_fitted(self)
        if not self._probA.size:
            raise NotFittedError(
                "predict_proba is not available when fitted with probability=False, nor after "
                "`amend`, which drops what was learnt from the rows as they were"
            )
        scores = -self._scores(X)
        first = expit(-(self._probA * scores + self._probB)).clip(
            MIN_PROBABILITY, 1 - MIN_PROBABILITY
        )
        return couple_pairs(first, len(self.classes_))

    @available_if(_has_probability)  # type: ignore[untyped-decorator]  # scikit-learn has no types
    @lazy_for_dask(lambda machine: (np.float64, len(machine.classes_)))
    def predict_log_proba(self, X: Any) -> FloatArray:
        """Predict logarithms of probabilities; see `predict_proba`."""
        logs: FloatArray = np.log(self.predict_proba(X))
        return logs

    @deprecated(DEPRECATION.format("probA_"))  # type: ignore[prop-decorator, untyped-decorator]  # as above
    @property
    def probA_(self) -> FloatArray:
        """Slopes of the sigmoids of all pairs; empty without ``probability``."""
        return self._probA

    @deprecated(DEPRECATION.format("probB_"))  # type: ignore[prop-decorator, untyped-decorator]  # as above
    @property
    def probB_(self) -> FloatArray:
        """Offsets of the sigmoids of all pairs; empty without ``probability``."""
        return self._probB

    def _fit_sigmoids(self, X: Any, y: Any, sample_weight: Any) -> None:
        """Fit a sigmoid for each pair of classes to scores cross-fitted with five folds.

        Sets ``_probA`` and ``_probB``, (pairs,). InputError if X is a data set or a Dask array.
        """
        if is_store(X) or is_lazy(X):
            raise InputError(
                "probability=True fits on parts of the rows and needs them in memory; use "
                "CalibratedClassifierCV on arrays"
            )
        machine: Any = clone(self)
        machine.set_params(probability="deprecated")
        if not callable(machine.kernel) and machine.kernel != "precomputed":
            machine.set_params(gamma=self._gamma or "scale")
        square = machine.kernel == "precomputed"
        X, y = sparse.csr_array(X) if sparse.issparse(X) else np.asarray(X), np.asarray(y)
        weights = None if sample_weight is None else np.asarray(sample_weight, np.float64)
        rows = np.flatnonzero(np.ones(len(y)) if weights is None else weights > 0)
        codes: Any = np.searchsorted(self.classes_, y[rows])
        random = check_random_state(0 if self.random_state is None else self.random_state)
        pairs = list(combinations(range(len(self.classes_)), 2))
        scores = np.empty((len(rows), len(pairs)))
        fold = _folds(codes, 5, random)
        for held in (fold == k for k in range(5)):
            if not held.any():
                continue
            kept, left = rows[~held], np.unique(codes[~held])
            found = np.zeros((np.count_nonzero(held), 0))
            if len(left) > 1:
                parts = (kept, rows[held])
                fitted, scored = (X[np.ix_(r, kept)] if square else X[r] for r in parts)
                machine.fit(fitted, y[kept], None if weights is None else weights[kept])
                found = -machine._scores(scored)
            scores[held] = _extend_to_all_pairs(found, left, pairs)
        made = []
        for (first, second), column in zip(pairs, scores.T, strict=True):
            own = (codes == first) | (codes == second)
            made.append(fit_sigmoid(column[own], codes[own] == first))
        self._probA, self._probB = np.array(made).T


def _folds(
    codes: NDArray[np.int64], count: int, random: np.random.RandomState
) -> NDArray[np.int64]:
    """Assign every row to one of ``count`` folds; return their numbers (rows,).

    The rows of each class are dealt out in turn, in a random order.
    """
    fold = np.empty(len(codes), np.int64)
    for code in np.unique(codes):
        own = random.permutation(np.flatnonzero(codes == code))
        fold[own] = (np.arange(len(own)) + random.randint(count)) % count
    return fold


def _extend_to_all_pairs(
    found: FloatArray, left: NDArray[np.int64], pairs: Sequence[tuple[int, ...]]
) -> FloatArray:
    """Extend scores ``found`` of the pairs of the classes ``left`` to all pairs, (rows, pairs).

    A positive score means a pair's first class, as in LIBSVM. If only one class of a pair is left
    its score is 1 or -1, in favour of that class; if none is left it is 0.
    """
    known = {pair: k for k, pair in enumerate(combinations(left.tolist(), 2))}
    out = np.zeros((len(found), len(pairs)))
    for k, pair in enumerate(pairs):
        if pair in known:
            out[:, k] = found[:, known[pair]]
        else:
            out[:, k] = np.sum(left == pair[0]) - np.sum(left == pair[1])
    return out
