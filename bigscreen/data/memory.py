"""Datasets whose rows are arrays in memory."""

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array, issparse, vstack

from bigscreen.data.layout import Features, Layout, chunk_digest, csr_slice, sqnorms
from bigscreen.data.other_arrays import on_host
from bigscreen.data.preparation import Preparation
from bigscreen.data.rows import Rows
from bigscreen.data.targets import as_features, as_stored, check_weights, summarise_outcomes


class MemoryDataset(Rows):
    """A dataset over arrays in memory; every method returns what a stored dataset's would.

    Parameters
    ----------
    X : array or sparse array of shape (n_rows, d)
        float64 input stays float64 if float32 cannot represent all its values exactly; all other
        input is converted to float32 once. C-contiguous input of the right type is not copied.
    y : array of shape (n_rows,) or None
        Indices into `labels`, -1 for an unlabelled row; or regression targets, NaN for a row
        without a target, (n_rows, targets) if there are several for each row. None if no row has a
        label or target.
    labels : sequence of str, int or float, or None
        The label of every code; None if `y` holds regression targets.
    weights : array of shape (n_rows,), optional
        Not negative.
    preparation : Preparation, optional
    shard_rows, chunk_rows : int, optional
        Rows per shard and per chunk; by default from `row_grid`.

    Raises
    ------
    InputError
        If a feature or target is not finite, a code is not an index into `labels`, or the lengths
        differ.
    """

    path = None

    def __init__(
        self,
        X: ArrayLike | csr_array,
        y: ArrayLike | None,
        labels: Any,
        weights: ArrayLike | None = None,
        *,
        preparation: Preparation | None = None,
        shard_rows: int | None = None,
        chunk_rows: int | None = None,
    ) -> None:
        """Check and convert the arrays of features, outcomes and weights.

        ``labels``: the label of every code in ``y``; None if ``y`` holds regression targets.
        """
        X, y, weights = on_host(X, y, weights)
        self._X = as_features(X, lambda row: f"row {row}", wide=True)
        n_rows, n_features = self._X.shape
        several = labels is None and np.ndim(y) == 2
        self.layout = Layout.of(
            n_rows=n_rows,
            n_features=n_features,
            sparse=issparse(self._X),
            labels=labels,
            weights=weights is not None,
            shard_rows=shard_rows,
            chunk_rows=chunk_rows,
            wide=self._X.dtype == np.float64,
            n_targets=max(1, np.shape(y)[1]) if several else 1,
        )
        self.preparation = preparation or Preparation.none()
        self._y = as_stored(y, n_rows, self.layout.labels, self.layout.n_targets)
        self._weights = check_weights(weights, n_rows)

    def X(self, start: int, stop: int) -> Features:
        """Return the features of rows start..stop-1, as a view of the array in memory."""
        self.layout.check_range(start, stop)
        return csr_slice(self._X, start, stop) if self.is_sparse else self._X[start:stop]

    def y(self, start: int, stop: int) -> NDArray[Any]:
        """Return the label codes (int32) or targets (float64) of rows start..stop-1: see `Rows`."""
        self.layout.check_range(start, stop)
        return self._y[start:stop]

    def weights(self, start: int, stop: int) -> NDArray[np.float64]:
        """Return the weights of rows start..stop-1; ones if the dataset has none."""
        self.layout.check_range(start, stop)
        return np.ones(stop - start) if self._weights is None else self._weights[start:stop]

    def sqnorms(self, start: int, stop: int) -> NDArray[np.float64]:
        """Return the squared Euclidean norms of rows start..stop-1, float64."""
        self.layout.check_range(start, stop)
        return self._sqnorms[start:stop]

    def row_ids(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return start..stop-1: rows in memory are in the order of their source."""
        self.layout.check_range(start, stop)
        return np.arange(start, stop, dtype=np.int64)

    @property
    def max_sqnorm(self) -> float:
        """Largest squared Euclidean norm of a row's features."""
        return float(self._sqnorms.max())

    @property
    def label_counts(self) -> NDArray[np.int64]:
        """Number of rows with each label, int64 (n_labels,); unlabelled rows are not counted."""
        return np.array(summarise_outcomes(self._y, self.n_labels)["label_counts"], dtype=np.int64)

    @cached_property
    def _sqnorms(self) -> NDArray[np.float64]:
        """Squared Euclidean norms of all rows, float64 (n_rows,), computed at first use."""
        chunks = (self.chunk(k) for k in range(self.n_chunks))
        return np.concatenate([sqnorms(self.X(start, stop)) for start, stop in chunks])

    @cached_property
    def fingerprint(self) -> str:
        """Hash of content, layout and preparation; a stored dataset of equal rows has the same."""
        digests = []
        for k in range(self.n_chunks):
            start, stop = self.chunk(k)
            weights = self.weights(start, stop) if self.has_weights else None
            ids, norms = self.row_ids(start, stop), self.sqnorms(start, stop)
            digests.append(
                chunk_digest(self.X(start, stop), self.y(start, stop), weights, ids, norms)
            )
        summary = {"max_sqnorm": self.max_sqnorm, **summarise_outcomes(self._y, self.n_labels)}
        return self.layout.fingerprint(digests, self.preparation.fingerprint, summary)


class Mirrored(MemoryDataset):
    """Every row of a regression dataset twice, because the dual has two variables per row.

    ``y`` has two columns, the target and the side: 1 in the first ``n_rows / 2`` rows, -1 in the
    second copies. A fitted model has one coefficient per original row, the difference of its two
    dual variables; its ledger has what is proved of both (`Ledger.fold_sides`).

    Parameters
    ----------
    data : MemoryDataset
        The rows to duplicate.
    """

    sides = 2

    def __init__(self, data: MemoryDataset) -> None:
        """Copy every row of ``data`` twice, with its target and weight."""
        X, n = data.X(0, data.n_rows), data.n_rows
        twice = vstack([X, X], format="csr") if data.is_sparse else np.concatenate([X, X])
        weights = np.tile(data.weights(0, n), 2) if data.has_weights else None
        super().__init__(twice, np.tile(data.y(0, n), 2), None, weights)

    @cached_property
    def targets(self) -> dict[str, Any]:
        """Number and range of the targets, as `Rows.targets`; both copies of a row count."""
        return dict(summarise_outcomes(self._y, 0)["targets"])

    def y(self, start: int, stop: int) -> NDArray[Any]:
        """Return target and side (1 or -1) of rows start..stop-1, float64 (rows, 2)."""
        side = np.where(np.arange(start, stop) < self.n_rows // 2, 1.0, -1.0)
        return np.stack([super().y(start, stop), side], axis=1)
