"""What every dataset answers, wherever its rows are."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bigscreen.data.layout import Features, Label, Layout, csr_stack, take
from bigscreen.data.preparation import Preparation
from bigscreen.data.targets import describe, together
from bigscreen.files.remote import Place


class Rows(ABC):
    """Rows with features, label codes or targets, and weights, on a grid of shards and chunks.

    Attributes
    ----------
    layout : Layout
        Sizes, grid and labels; `n_rows`, `labels` and the like are also attributes here.
    preparation : Preparation
        How the source became these features.
    path : Path, RemotePath or None
        Where it is stored; None if in memory.
    sides : int
        The number of rows here that stand for one row of the source: 2 of `Mirrored` rows, else 1.
        Row ``k`` of the source is ``k``, ``n_sources + k``, ... here.
    """

    layout: Layout
    preparation: Preparation
    path: Place | None
    sides: ClassVar[int] = 1

    @property
    def n_rows(self) -> int:
        return self.layout.n_rows

    @property
    def n_sources(self) -> int:
        """The number of the source's rows."""
        return self.n_rows // self.sides

    @property
    def n_features(self) -> int:
        return self.layout.n_features

    @property
    def is_sparse(self) -> bool:
        return self.layout.is_sparse

    @property
    def row_bytes(self) -> float:
        """Bytes of an average row of features as it is stored."""
        size = np.dtype(self.layout.dtype).itemsize
        if not self.is_sparse:
            return float(size * self.n_features)
        sample: Any = self.X(*self.shard(0))
        return float((size + 4) * sample.nnz / max(1, sample.shape[0]) + 8.0)

    @property
    def shard_rows(self) -> int:
        return self.layout.shard_rows

    @property
    def chunk_rows(self) -> int:
        return self.layout.chunk_rows

    @property
    def n_shards(self) -> int:
        return self.layout.n_shards

    @property
    def n_chunks(self) -> int:
        return self.layout.n_chunks

    @property
    def labels(self) -> list[Label]:
        """The label of every code; none of regression data, nor of rows without labels."""
        return list(self.layout.labels or ())

    @property
    def n_labels(self) -> int:
        return len(self.layout.labels or ())

    @property
    def regression(self) -> bool:
        """Whether `y` gives targets, not label codes."""
        return self.layout.labels is None

    @property
    def has_weights(self) -> bool:
        return self.layout.has_weights

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Hash of the content, the layout and the preparation."""

    @property
    @abstractmethod
    def max_sqnorm(self) -> float:
        """Largest squared norm of a row."""

    @property
    @abstractmethod
    def label_counts(self) -> NDArray[np.int64]:
        """Rows of every label, shape (n_labels,); unlabelled rows are in none."""

    @property
    def targets(self) -> dict[str, Any]:
        """Of regression data how many rows have a target, and the range of these targets.

        Returns
        -------
        dict
            rows (int), low, high (float, None without any). Empty for rows with label codes.
        """
        if not self.regression:
            return {}
        chunks = (self.y(*self.chunk(k)) for k in range(self.n_chunks))
        return dict(together([describe(y, 0) for y in chunks])["targets"])

    @property
    def n_unlabelled(self) -> int:
        """Rows without a label, of regression data without a target."""
        known = self.targets["rows"] if self.regression else self.label_counts.sum()
        return self.n_rows - int(known)

    def shard(self, s: int) -> tuple[int, int]:
        """First row and one past the last row of shard `s`."""
        return self.layout.shard(s)

    def chunk(self, k: int) -> tuple[int, int]:
        """First row and one past the last row of chunk `k`; whole chunks read fastest."""
        return self.layout.chunk(k)

    @property
    def shared(self) -> "Rows":
        """Where the features are: the same object for all data sets that differ in outcomes."""
        return self

    def check_unchanged(self) -> None:  # noqa: B027 - rows in memory stay what they are
        """Raise InputError if what was opened is not there any more, or is another data set now."""

    @abstractmethod
    def X(self, start: int, stop: int) -> Features:
        """Features of rows start..stop.

        Returns
        -------
        float32 ndarray of shape (stop - start, n_features), C-contiguous, or csr_array
            The sparse one has float32 data, int32 sorted distinct indices and indptr. float64
            where the source has numbers that float32 does not hold, and they were kept.
        """

    @abstractmethod
    def y(self, start: int, stop: int) -> NDArray[Any]:
        """Label codes or targets of rows start..stop.

        Returns
        -------
        int32 ndarray of shape (stop - start,)
            Indices into `labels`, -1 if unlabelled.
        float64 ndarray of shape (stop - start,)
            Of regression data: targets, NaN where there is none.
        """

    @abstractmethod
    def weights(self, start: int, stop: int) -> NDArray[np.float64]:
        """Weights of rows start..stop, ones if none were given."""

    @abstractmethod
    def sqnorms(self, start: int, stop: int) -> NDArray[np.float64]:
        """Squared norms of rows start..stop."""

    @abstractmethod
    def row_ids(self, start: int, stop: int) -> NDArray[np.int64]:
        """Source row numbers of rows start..stop, from 0 over all sources in order."""

    def rows(self, ids: ArrayLike) -> Features:
        """Features of the given rows, in the given order.

        Parameters
        ----------
        ids : int array of shape (k,)
            Row numbers of this dataset, in any order, repeated or not. Every chunk they touch is
            read once, or a few rows of it alone.

        Returns
        -------
        Same type as `X`, k rows.

        Raises
        ------
        IndexError
            If an id is not a row.
        """
        ids = np.asarray(ids)
        if ids.size and not np.issubdtype(ids.dtype, np.integer):
            raise TypeError(f"row ids must be integers, got {ids.dtype}")
        ids = ids.astype(np.int64, copy=False)
        if len(ids) and (ids.min() < 0 or ids.max() >= self.n_rows):
            raise IndexError(f"a row id is outside 0..{self.n_rows - 1}")
        order = np.argsort(ids, kind="stable")
        chunks, firsts = np.unique(ids[order] // self.chunk_rows, return_index=True)
        dense: Any = None
        if not self.is_sparse:
            dense = np.empty((len(ids), self.n_features), self.X(0, 0).dtype)
        parts = []
        for k, group in zip(chunks.tolist(), np.split(order, firsts[1:]), strict=False):
            start = k * self.chunk_rows
            if dense is None:
                parts.append(take(self._chunk_rows(k), ids[group] - start))
            else:
                dense[group] = self._some_rows(k, ids[group] - start)
        if dense is not None:
            return dense
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        if not parts:
            return self.X(0, 0)
        return take(csr_stack(parts, self.n_features), place)

    def _some_rows(self, k: int, places: NDArray[np.int64]) -> Any:
        """The dense rows at some places of a chunk, ascending."""
        return take(self._chunk_rows(k), places)

    def _chunk_rows(self, k: int) -> Any:
        """All rows of a chunk, not to be written to."""
        return self.X(*self.chunk(k))
