"""Scores of held-out rows by scikit-learn's scorers, computed from decision values alone."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.metrics import get_scorer

from bigscreen.errors import InputError
from bigscreen.numerics.rows import FloatArray


class _ScoredRows(BaseEstimator):  # type: ignore[misc] # scikit-learn has no types
    """An estimator whose rows are their own decision values."""


class _ScoredLabels(ClassifierMixin, _ScoredRows):  # type: ignore[misc]
    """A classifier of rows that are their own decision values, (rows,) or (rows, labels)."""

    def __init__(self, classes: Any = None) -> None:
        """Take the labels in the order of their codes."""
        self.classes = classes
        self.classes_ = classes

    def decision_function(self, X: FloatArray) -> FloatArray:
        """Return the decision values ``X``."""
        return X

    def predict(self, X: FloatArray) -> NDArray[Any]:
        """Return the label of each row of decision values."""
        codes = (X > 0).astype(np.int64) if X.ndim == 1 else np.argmax(X, axis=1)
        return np.asarray(self.classes_[codes])


class _ScoredTargets(RegressorMixin, _ScoredRows):  # type: ignore[misc]
    """A regressor of rows that are their own predictions, (rows,)."""

    def predict(self, X: FloatArray) -> FloatArray:
        """Return the predictions ``X``."""
        return X


class HeldOutScorer:
    """Scores held-out rows by a scorer of scikit-learn.

    Parameters
    ----------
    scorer : str or callable
        The name of one of scikit-learn's scorers, or a function of an estimator, rows and outcomes
        (and ``sample_weight`` if rows have unequal weights). The rows that it gets are decision
        values. By name it gets codes of labels (1 is the second of two), else the labels.
    labels : list or None
        The label of each code; None if rows have targets.

    Raises
    ------
    InputError
        If there is no such scorer, or it cannot score rows by decision values alone.
    """

    def __init__(self, scorer: str | Callable[..., float], labels: list[Any] | None) -> None:
        """Find the scorer, and try it on two made-up rows of each label, or on two targets."""
        self.name = scorer if isinstance(scorer, str) else getattr(scorer, "__name__", str(scorer))
        try:
            self._scorer = get_scorer(scorer)
        except ValueError as error:
            raise InputError(
                f"there is no metric {self.name!r}; name one of scikit-learn's "
                "(sklearn.metrics.get_scorer_names()), or give a scorer"
            ) from error
        self._classes = None
        if labels is not None:
            named = np.array(labels, object if len({type(x) for x in labels}) > 1 else None)
            self._classes = np.arange(len(labels)) if isinstance(scorer, str) else named
        codes = np.repeat(np.arange(2 if labels is None else len(labels)), 2)
        scores = 2.0 * (codes[:, None] == np.arange(len(labels or "t"))) - 1
        two = self._classes is not None and len(self._classes) == 2
        try:
            self(codes, scores[:, 1:] if two else scores, np.ones(len(codes)))
        except Exception as error:
            what = "predictions" if labels is None else "scores of labels"
            raise InputError(
                f"the metric {self.name} cannot judge held-out rows, of which a search has {what} "
                f"alone: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
            ) from error

    def __call__(self, y: NDArray[Any], scores: FloatArray, weights: FloatArray) -> float:
        """Score rows; larger is better.

        Parameters
        ----------
        y : array (rows,)
            Codes of labels, or targets.
        scores : float64 (rows, machines)
            Decision values: one machine for two labels, else one for each.
        weights : float64 (rows,)
        """
        values = scores[:, 0] if scores.shape[1] == 1 else scores
        classes = self._classes
        rows = _ScoredTargets() if classes is None else _ScoredLabels(classes)
        truth = y if classes is None else classes[y]
        own = {} if np.all(weights == weights[0]) else {"sample_weight": weights}
        with warnings.catch_warnings():
            # (A candidate that finds no row of a label is judged by the score 0.)
            warnings.simplefilter("ignore")
            return float(self._scorer(rows, values, truth, **own))
