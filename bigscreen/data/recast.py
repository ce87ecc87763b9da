"""The rows of another data set with labels, or targets, and weights of their own."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bigscreen.data.layout import Features
from bigscreen.data.rows import Rows
from bigscreen.data.targets import describe


class Recast(Rows):
    """Another data set's rows, whose features are not copied, with other outcomes.

    Parameters
    ----------
    base : Rows
    outcomes : array (n_rows,) or None
        Label codes or targets in the order of ``base``; None: its own.
    weights : array (n_rows,) or None
        Not negative, of any type of numbers; None: those of ``base``.
    """

    def __init__(
        self, base: Rows, outcomes: NDArray[Any] | None, weights: NDArray[Any] | None
    ) -> None:
        self.base, self._outcomes, self._weights = base, outcomes, weights
        self.layout = base.layout
        if weights is not None:
            self.layout = replace(base.layout, has_weights=True)
        self.preparation, self.path = base.preparation, base.path

    @property
    def given(self) -> tuple[NDArray[Any] | None, NDArray[Any] | None]:
        """The outcomes and the weights that are not the other data set's."""
        return self._outcomes, self._weights

    @property
    def shared(self) -> Rows:
        return self.base.shared

    def X(self, start: int, stop: int) -> Features:
        return self.base.X(start, stop)

    def rows(self, ids: ArrayLike) -> Features:
        return self.base.rows(ids)

    def y(self, start: int, stop: int) -> NDArray[Any]:
        if self._outcomes is None:
            return self.base.y(start, stop)
        return self._outcomes[start:stop].astype(np.float64 if self.regression else np.int32)

    def weights(self, start: int, stop: int) -> NDArray[np.float64]:
        if self._weights is None:
            return self.base.weights(start, stop)
        return self._weights[start:stop].astype(np.float64)

    def sqnorms(self, start: int, stop: int) -> NDArray[np.float64]:
        return self.base.sqnorms(start, stop)

    def row_ids(self, start: int, stop: int) -> NDArray[np.int64]:
        return self.base.row_ids(start, stop)

    @property
    def max_sqnorm(self) -> float:
        return self.base.max_sqnorm

    @property
    def label_counts(self) -> NDArray[np.int64]:
        found = describe(self.y(0, self.n_rows), self.n_labels)
        return np.array(found["label_counts"], dtype=np.int64)

    @property
    def fingerprint(self) -> str:
        """That of the rows themselves."""
        return self.base.fingerprint
