"""Views of a dataset: other outcomes or weights, a subset of rows, shifted or mapped features.

A view does not copy features: it reads them from the underlying dataset at every call. Only `Held`
keeps features of its own in memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array, issparse

from bigscreen.data.layout import Features, Layout, csr, csr_slice, sqnorms
from bigscreen.data.rows import Rows
from bigscreen.data.targets import summarise_outcomes
from bigscreen.files.sealed import hash_arrays
from bigscreen.numerics.rows import FloatArray


class View(Rows):
    """All rows of another dataset, unchanged; subclasses override what they change.

    Parameters
    ----------
    base : Rows
    """

    def __init__(self, base: Rows) -> None:
        """Take over the layout, preparation and path of ``base``."""
        self.base = base
        self.layout, self.preparation, self.path = base.layout, base.preparation, base.path

    def X(self, start: int, stop: int) -> Features:
        """Return the features of rows start..stop-1 of ``base``."""
        return self.base.X(start, stop)

    def rows(self, ids: ArrayLike) -> Features:
        """Return the features of the given rows of ``base``, in the given order."""
        return self.base.rows(ids)

    def y(self, start: int, stop: int) -> NDArray[Any]:
        """Return the label codes or targets of rows start..stop-1 of ``base``."""
        return self.base.y(start, stop)

    def weights(self, start: int, stop: int) -> NDArray[np.float64]:
        """Return the weights of rows start..stop-1 of ``base``."""
        return self.base.weights(start, stop)

    def sqnorms(self, start: int, stop: int) -> NDArray[np.float64]:
        """Return the squared norms of rows start..stop-1 of ``base``."""
        return self.base.sqnorms(start, stop)

    def row_ids(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the source row numbers of rows start..stop-1 of ``base``."""
        return self.base.row_ids(start, stop)

    @property
    def max_sqnorm(self) -> float:
        """Largest squared norm of a row of ``base``."""
        return self.base.max_sqnorm

    @property
    def label_counts(self) -> NDArray[np.int64]:
        """Number of rows of ``base`` with each label, (n_labels,)."""
        return self.base.label_counts


class Recast(View):
    """The rows of another dataset with other outcomes or weights.

    Parameters
    ----------
    base : Rows
    outcomes : array (n_rows,) or None
        Label codes or targets in the order of ``base``, one for each row; None keeps the outcomes
        of ``base``.
    weights : array (n_rows,) or None
        Nonnegative numbers of any type; None keeps the weights of ``base``.
    """

    def __init__(
        self, base: Rows, outcomes: NDArray[Any] | None, weights: NDArray[Any] | None
    ) -> None:
        """Keep the replaced outcomes and weights; they are converted when read."""
        super().__init__(base)
        self._outcomes, self._weights = outcomes, weights
        if weights is not None:
            self.layout = replace(base.layout, has_weights=True)
        if outcomes is not None:
            self.layout = replace(self.layout, n_targets=1)

    @property
    def given(self) -> tuple[NDArray[Any] | None, NDArray[Any] | None]:
        """The outcomes and the weights that this view has instead of ``base``; None: the base's."""
        return self._outcomes, self._weights

    @property
    def shared(self) -> Rows:
        """The dataset that owns the features: that of ``base``."""
        return self.base.shared

    def y(self, start: int, stop: int) -> NDArray[Any]:
        """Return the replaced outcomes of rows start..stop-1: int32 codes or float64 targets."""
        if self._outcomes is None:
            return super().y(start, stop)
        return self._outcomes[start:stop].astype(np.float64 if self.regression else np.int32)

    def weights(self, start: int, stop: int) -> NDArray[np.float64]:
        """Return the replaced weights of rows start..stop-1, float64."""
        if self._weights is None:
            return super().weights(start, stop)
        return self._weights[start:stop].astype(np.float64)

    @property
    def label_counts(self) -> NDArray[np.int64]:
        """Number of rows with each of the replaced labels, int64 (n_labels,)."""
        found = summarise_outcomes(self.y(0, self.n_rows), self.n_labels)
        return np.array(found["label_counts"], dtype=np.int64)

    @property
    def fingerprint(self) -> str:
        """Hash of the base's fingerprint and of the replaced outcomes and weights."""
        return hash_arrays(self.base.fingerprint, self._outcomes, self._weights)


class Picked(Rows):
    """A subset of another dataset's rows, read from that dataset at every call.

    Only the row numbers, codes and weights are sent to the workers of a cluster.

    Parameters
    ----------
    base : Rows
        The other dataset.
    ids : int64 (k,), ascending
        Row numbers of the subset in ``base``.
    codes : int32 (k,), or float64 targets
        Label codes, or targets, of the rows of the subset.
    weights : float64 (k,)
        Weights of the rows of the subset.
    columns : bool
        Features are kernel entries with all rows (precomputed kernel): keep only the entries with
        the rows of the subset.
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
        """Take rows ``ids`` of ``base``, with their label codes (or targets) and weights.

        ``columns``: features are kernel entries with all rows, of which those with the chosen rows
        are kept. The rows get a grid of shards and chunks of their own.
        """
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
        """Read the features of rows start..stop-1 of the subset."""
        self.layout.check_range(start, stop)
        rows = self.base.rows(self.ids[start:stop])
        if not self.columns:
            return rows
        chosen = rows[:, self.ids]
        return np.ascontiguousarray(chosen) if isinstance(chosen, np.ndarray) else chosen

    def y(self, start: int, stop: int) -> NDArray[Any]:
        """Return the codes or targets of rows start..stop-1 of the subset."""
        self.layout.check_range(start, stop)
        return self._codes[start:stop]

    def weights(self, start: int, stop: int) -> NDArray[np.float64]:
        """Return the weights of rows start..stop-1 of the subset."""
        self.layout.check_range(start, stop)
        return self._weights[start:stop]

    def sqnorms(self, start: int, stop: int) -> NDArray[np.float64]:
        """Compute the squared norms of rows start..stop-1 of the subset."""
        return sqnorms(self.X(start, stop))

    def row_ids(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the source row numbers of rows start..stop-1 of the subset."""
        self.layout.check_range(start, stop)
        ids = self.ids[start:stop]
        if not len(ids):
            return ids
        first = int(ids.min())
        return self.base.row_ids(first, int(ids.max()) + 1)[ids - first]

    @property
    def max_sqnorm(self) -> float:
        """An upper bound: the largest squared norm of all rows of the underlying dataset."""
        return self.base.max_sqnorm

    @property
    def label_counts(self) -> NDArray[np.int64]:
        """Number of rows of the subset with each label, int64 (n_labels,)."""
        counts = summarise_outcomes(self._codes, self.n_labels)["label_counts"]
        return np.array(counts, dtype=np.int64)

    @property
    def fingerprint(self) -> str:
        """Hash of the base's fingerprint and of the chosen rows, their codes and weights."""
        known = [self.base.fingerprint, self.columns]
        return hash_arrays(known, self.ids, self._codes, self._weights)


class Held(Picked):
    """A subset of another dataset's rows with features in memory, as a single shard and chunk.

    Parameters
    ----------
    base : Rows
        The other dataset.
    ids : int64 (k,), in any order
        Row numbers of the subset in ``base``.
    codes : int32 (k,), or float64 targets
    weights : float64 (k,)
    X : Features
        Features of the rows (k, d), not checked again.
    sqnorms : float64 (k,)
        Squared norms of the rows of X.
    """

    def __init__(
        self,
        base: Rows,
        ids: NDArray[np.int64],
        codes: NDArray[Any],
        weights: FloatArray,
        X: Features,
        sqnorms: FloatArray,
    ) -> None:
        """Keep rows ``ids`` of ``base``: codes (or targets), weights, features X, squared norms."""
        self.base, self.ids, self.preparation = base, ids, base.preparation
        self._codes, self._weights, self._X, self._sqnorms = codes, weights, X, sqnorms
        grid = 1 << max(0, len(ids) - 1).bit_length()
        sizes = {"n_rows": len(ids), "n_features": X.shape[1]}
        self.layout = replace(base.layout, **sizes, shard_rows=grid, chunk_rows=grid)

    def X(self, start: int, stop: int) -> Any:
        """Return the features of rows start..stop-1 of the subset, a view of those in memory."""
        whole = start == 0 and stop == self.n_rows
        X: Any = self._X
        return X if whole else csr_slice(X, start, stop) if self.is_sparse else X[start:stop]

    def sqnorms(self, start: int, stop: int) -> NDArray[np.float64]:
        """Return the given squared norms of rows start..stop-1 of the subset."""
        return self._sqnorms[start:stop]

    @property
    def max_sqnorm(self) -> float:
        """Largest of the given squared norms."""
        return float(np.max(self._sqnorms))


@dataclass(frozen=True)
class Move:
    """The map ``x -> (x - origin) 2^exponent`` of rows, for accurate float32 kernel entries.

    ``origin``: float64 (d,), or None for 0.
    """

    origin: NDArray[np.float64] | None
    exponent: int

    def __call__(self, X: Any) -> Any:
        """Apply the map to rows; the result is dense float64 if an origin is subtracted."""
        if issparse(X) and self.origin is not None:
            X = X.toarray()  # e.g. sparse rows scored by a model with dense landmarks
        if issparse(X):
            X = csr_array(X)
            return csr(np.ldexp(X.data, self.exponent), X.indices, X.indptr, X.shape[1])
        if self.origin is None:
            return np.ldexp(X, self.exponent)
        out = X - self.origin
        return np.ldexp(out, self.exponent, out=out) if self.exponent else out


class Moved(View):
    """The rows of another dataset with a `Move` applied to their features at every read."""

    def __init__(self, base: Rows, move: Move) -> None:
        """Make a view of ``base`` whose features are mapped by ``move``."""
        super().__init__(base)
        self.move = move

    def X(self, start: int, stop: int) -> Features:
        """Return the mapped features of rows start..stop-1."""
        return self.move(super().X(start, stop))

    def rows(self, ids: ArrayLike) -> Features:
        """Return the mapped features of the given rows, in the given order."""
        return self.move(super().rows(ids))

    def sqnorms(self, start: int, stop: int) -> NDArray[np.float64]:
        """Compute the squared norms of rows start..stop-1 after the map."""
        return sqnorms(self.X(start, stop))

    def shift(self, w: NDArray[np.float64]) -> float:
        """Return ``<w, origin>``: add it to the offset of a linear machine w to score moved rows.

        ``w``, float64 (d,), has a coefficient per feature. The result is the machine's offset for
        mapped rows minus its offset for rows of ``base`` (the move's exponent must be 0).
        """
        assert self.move.exponent == 0
        return 0.0 if self.move.origin is None else float(w @ self.move.origin)

    @cached_property
    def max_sqnorm(self) -> float:
        """Largest squared norm of a row after the map, computed in one pass at first use."""
        chunks = (self.chunk(k) for k in range(self.n_chunks))
        return max(float(np.max(self.sqnorms(start, stop))) for start, stop in chunks)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the base's fingerprint and of the map."""
        return hash_arrays([self.base.fingerprint, self.move.exponent], self.move.origin)


class Mapped(View):
    """The rows of another dataset with a learned metric applied to their features at every read.

    Parameters
    ----------
    base : Rows
    metric : float64 (d,) or (d, d)
        As `Preparation.metric`; it becomes part of the preparation of these rows.
    """

    def __init__(self, base: Rows, metric: FloatArray) -> None:
        """Make a view of ``base`` whose features are mapped by ``metric``."""
        super().__init__(base)
        self.preparation = replace(base.preparation, metric=metric)
        if metric.ndim == 2:
            self.layout = replace(base.layout, is_sparse=False)

    def X(self, start: int, stop: int) -> Features:
        """Return the mapped features of rows start..stop-1."""
        return self.preparation.map(super().X(start, stop))

    def rows(self, ids: ArrayLike) -> Features:
        """Return the mapped features of the given rows, in the given order."""
        return self.preparation.map(super().rows(ids))

    def sqnorms(self, start: int, stop: int) -> NDArray[np.float64]:
        """Compute the squared norms of rows start..stop-1 after the map."""
        return sqnorms(self.X(start, stop))

    @cached_property
    def max_sqnorm(self) -> float:
        """Largest squared norm of a row after the map, computed in one pass at first use."""
        chunks = (self.chunk(k) for k in range(self.n_chunks))
        return max(float(np.max(self.sqnorms(start, stop))) for start, stop in chunks)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the base's fingerprint and of the metric."""
        return hash_arrays(self.base.fingerprint, self.preparation.metric)


def without_weight(data: Rows, held: NDArray[np.bool_]) -> Rows:
    """Return a view of the rows in which the rows marked in ``held``, bool (n,), have weight 0."""
    weights = np.where(held, 0.0, data.weights(0, data.n_rows))
    if isinstance(data, Moved):
        return Moved(Recast(data.base, None, weights), data.move)
    return Recast(data, None, weights)
