"""Classifiers, regressions: what a machine is given, and what its scores say."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils import column_or_1d
from sklearn.utils.multiclass import check_classification_targets

from bigscreen.errors import InputError
from bigscreen.estimators_base import Machine
from bigscreen.estimators_rows import Given, Labelled, Targets, is_store
from bigscreen.store import Rows
from bigscreen.train import TrainOptions


class Classifier(ClassifierMixin, Machine):
    """Machines that tell labels apart."""

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Scores of rows.

        Parameters
        ----------
        X : as in ``fit``
            Rows of a data set are scored in the order of its source.

        Returns
        -------
        float64 array of shape (n_samples,), or (n_samples, n_classes) with three classes or more
            Above 0 means ``classes_[1]``; with more classes the largest score wins.
        """
        scores = self._scores(X)
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict(self, X: Any) -> NDArray[Any]:
        """Labels of rows: array of shape (n_samples,); X as in ``decision_function``."""
        scores = self._scores(X)
        return self.classes_[self.model_.decide(scores)]

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Accuracy; X as in ``fit`` (every labelled row of a data set counts once)."""
        if is_store(X):
            return self._store_score(X, y, sample_weight, "accuracy")
        return float(super().score(X, _given_outcome(y), sample_weight))

    def _rows(
        self, X: Any, y: Any, sample_weight: Any, owned: ExitStack
    ) -> tuple[Rows, NDArray[np.int64] | None]:
        data, numbers = super()._rows(X, y, sample_weight, owned)
        if is_store(X):
            self.classes_ = np.array(data.labels)
        return data, numbers

    def _given(self, X: Any, y: Any, sample_weight: Any, square: bool) -> Given:
        X, y = self._checked(X, y)
        check_classification_targets(y)
        given = Labelled.of(X, y, sample_weight, square)
        self.classes_ = given.classes
        return given

    def _suited(self, options: TrainOptions, data: Rows) -> TrainOptions:
        """Class weights by the label that the data set has for a class."""
        weights = self.class_weight
        if isinstance(weights, Mapping):
            labels = dict(zip(self.classes_.tolist(), data.labels, strict=True))
            weights = {labels.get(key, key): weight for key, weight in weights.items()}
        if weights is not None:
            options = replace(options, class_weight=weights)
        return super()._suited(options, data)


class Regressor(RegressorMixin, Machine):
    """Machines that predict numbers."""

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """R^2; X as in ``fit`` (every row of a data set that has a target counts once)."""
        if is_store(X):
            return self._store_score(X, y, sample_weight, "r2")
        return float(super().score(X, _given_outcome(y), sample_weight))

    def predict(self, X: Any) -> NDArray[np.float64]:
        """Predictions: float64 array of shape (n_samples,).

        Parameters
        ----------
        X : as in ``fit``
            Those of a data set come in the order of its source.
        """
        return self._scores(X)[:, 0]

    def _given(self, X: Any, y: Any, sample_weight: Any, square: bool) -> Given:
        X, y = self._checked(X, y, y_numeric=True)
        return Targets.of(X, column_or_1d(y, warn=True), sample_weight, square)


def _given_outcome(y: Any) -> NDArray[Any]:
    if y is None:
        raise InputError("score compares predictions with y; give y, or a data set that has it")
    return np.asarray(y)
