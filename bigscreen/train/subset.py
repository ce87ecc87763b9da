"""Some rows of a data set, as a data set: what a part, or the support rows, are solved on."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.data.layout import Layout, sqnorms
from bigscreen.data.memory import MemoryDataset
from bigscreen.data.rows import Rows
from bigscreen.data.targets import describe
from bigscreen.features.design import Design
from bigscreen.kernels.given import Precomputed
from bigscreen.numerics.rows import FloatArray


class Picked(Rows):
    """Rows of another data set that are read where they lie, each time they are asked for.

    Only their numbers, codes and weights travel to the workers of a cluster.

    Parameters
    ----------
    base : Rows
    ids : int64 (k,), ascending
    codes : int32 (k,), or float64 targets
    weights : float64 (k,)
    columns : bool
        Features are entries to all rows (a precomputed kernel): take those to these rows.
    """

    path = None

    def __init__(
        self,
        base: Rows,
        ids: NDArray[np.int64],
        codes: NDArray[Any],
        weights: FloatArray,
        columns: bool = False,
    ) -> None:
        self.base, self.ids, self.columns = base, ids, columns
        self._codes, self._weights = codes, weights
        self.preparation = base.preparation
        self.layout = Layout.of(
            n_rows=len(ids),
            n_features=len(ids) if columns else base.n_features,
            sparse=base.is_sparse,
            labels=base.layout.labels,
            weights=base.has_weights,
            wide=base.layout.wide,
        )

    def X(self, start: int, stop: int) -> Any:
        self.layout.check_range(start, stop)
        rows = self.base.rows(self.ids[start:stop])
        if not self.columns:
            return rows
        chosen = rows[:, self.ids]
        return np.ascontiguousarray(chosen) if isinstance(chosen, np.ndarray) else chosen

    def y(self, start: int, stop: int) -> NDArray[Any]:
        self.layout.check_range(start, stop)
        return self._codes[start:stop]

    def weights(self, start: int, stop: int) -> NDArray[np.float64]:
        self.layout.check_range(start, stop)
        return self._weights[start:stop]

    def sqnorms(self, start: int, stop: int) -> NDArray[np.float64]:
        return sqnorms(self.X(start, stop))

    def row_ids(self, start: int, stop: int) -> NDArray[np.int64]:
        self.layout.check_range(start, stop)
        ids = self.ids[start:stop]
        if not len(ids):
            return ids
        first = int(ids[0])
        return self.base.row_ids(first, int(ids[-1]) + 1)[ids - first]

    @property
    def max_sqnorm(self) -> float:
        """That of the whole data set: an upper bound."""
        return self.base.max_sqnorm

    @property
    def label_counts(self) -> NDArray[np.int64]:
        counts = describe(self._codes, self.n_labels)["label_counts"]
        return np.array(counts, dtype=np.int64)

    @property
    def fingerprint(self) -> str:
        digest = hashlib.sha256(self.base.fingerprint.encode())
        for part in (self.ids, self._codes, self._weights):
            digest.update(np.ascontiguousarray(part).data)
        return digest.hexdigest()


def pick(
    design: Design, ids: NDArray[np.int64], codes: NDArray[Any], weights: FloatArray
) -> Design:
    """The design of these rows alone, read where they lie."""
    columns = isinstance(design.kernel, Precomputed)
    data = Picked(design.data, ids, codes, weights, columns)
    return replace(design, data=data, square=None)  # (that of all rows)


def load(design: Design) -> Design:
    """The same design with its rows in memory."""
    data = design.data
    n = data.n_rows
    rows = MemoryDataset(data.X(0, n), data.y(0, n), data.layout.labels, data.weights(0, n))
    return replace(design, data=rows, square=None)
