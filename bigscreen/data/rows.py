"""The interface of every dataset, on disk, remote or in memory."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bigscreen.data.layout import Features, Label, Layout, csr_stack, take_rows
from bigscreen.data.preparation import Preparation
from bigscreen.data.targets import merge_summaries, summarise_outcomes
from bigscreen.errors import InputError
from bigscreen.files.remote import Place


class Rows(ABC):
    """Rows with features, label codes or targets, and weights, on a grid of shards and chunks.

    Attributes
    ----------
    layout : Layout
        Sizes, grid and labels; `n_rows`, `labels`, ... are also attributes of the dataset.
    preparation : Preparation
        How source columns became these features.
    path : Path, RemotePath or None
        Where the dataset is stored; None if it is in memory.
    sides : int
        The number of copies of each source row in this dataset: 2 for `Mirrored` rows, else 1.
        Source row ``k`` is row ``k``, ``n_sources + k``, ... of the dataset.
    """

    layout: Layout
    preparation: Preparation
    path: Place | None
    sides: ClassVar[int] = 1

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return self.layout.n_rows

    @property
    def n_sources(self) -> int:
        """Number of distinct source rows: `n_rows` divided by `sides`."""
        return self.n_rows // self.sides

    @property
    def n_features(self) -> int:
        """Number of features of a row."""
        return self.layout.n_features

    @property
    def is_sparse(self) -> bool:
        """Whether features are a csr_array, not an ndarray."""
        return self.layout.is_sparse

    @property
    def row_bytes(self) -> float:
        """Average size in bytes of a row of features; estimated from shard 0 if sparse."""
        size = np.dtype(self.layout.dtype).itemsize
        if not self.is_sparse:
            return float(size * self.n_features)
        sample: Any = self.X(*self.shard(0))
        return float((size + 4) * sample.nnz / max(1, sample.shape[0]) + 8.0)

    @property
    def shard_rows(self) -> int:
        """Rows of a shard (the unit of work), a power of two; the last may have fewer."""
        return self.layout.shard_rows

    @property
    def chunk_rows(self) -> int:
        """Rows of a chunk (the unit of storage), a power of two; the last may have fewer."""
        return self.layout.chunk_rows

    @property
    def n_shards(self) -> int:
        """Number of shards, the units of work."""
        return self.layout.n_shards

    @property
    def n_chunks(self) -> int:
        """Number of chunks, the units of storage."""
        return self.layout.n_chunks

    @property
    def labels(self) -> list[Label]:
        """The label of every code; empty for regression data and for rows without labels."""
        return list(self.layout.labels or ())

    @property
    def n_labels(self) -> int:
        """Number of labels; 0 for regression data."""
        return len(self.layout.labels or ())

    @property
    def regression(self) -> bool:
        """Whether `y` returns regression targets, not label codes."""
        return self.layout.labels is None

    @property
    def n_targets(self) -> int:
        """Number of regression targets of each row; 0 for rows with label codes."""
        return self.layout.n_targets if self.regression else 0

    @property
    def target_names(self) -> list[str]:
        """The name of each target if rows have several; empty otherwise."""
        return self.preparation.name_targets(self.n_targets)

    @property
    def has_weights(self) -> bool:
        """Whether rows have weights; if not, `weights` returns ones."""
        return self.layout.has_weights

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Hash of the content, the layout and the preparation."""

    @property
    @abstractmethod
    def max_sqnorm(self) -> float:
        """Largest squared Euclidean norm of a row's features."""

    @property
    @abstractmethod
    def label_counts(self) -> NDArray[np.int64]:
        """Number of rows with each label, shape (n_labels,); unlabelled rows are not counted."""

    @property
    def targets(self) -> dict[str, Any]:
        """Number and range of the targets of regression data.

        Returns
        -------
        dict
            rows (int, the rows with a target), low and high (float; None if no row has a target).
            With several targets rows (which have all of them) and each, a list of a dict of rows,
            low and high for each target. Empty for rows with label codes.
        """
        if not self.regression:
            return {}
        chunks = (self.y(*self.chunk(k)) for k in range(self.n_chunks))
        return dict(merge_summaries([summarise_outcomes(y, 0) for y in chunks])["targets"])

    @property
    def n_unlabelled(self) -> int:
        """Number of rows without a label, or lacking a target if this is regression data."""
        known = self.targets["rows"] if self.regression else self.label_counts.sum()
        return self.n_rows - int(known)

    @property
    def is_unlabelled(self) -> bool:
        """Whether no row has a label, or any of its targets if this is regression data."""
        if not self.regression:
            return self.n_unlabelled == self.n_rows
        known = self.targets
        return not any(part["rows"] for part in known.get("each", [known]))

    def shard(self, s: int) -> tuple[int, int]:
        """Return the first row of shard `s` (a unit of work) and one past its last row."""
        return self.layout.shard(s)

    def chunk(self, k: int) -> tuple[int, int]:
        """Return the first row of chunk `k` (a unit of storage) and one past its last row."""
        return self.layout.chunk(k)

    @property
    def shared(self) -> "Rows":
        """The dataset that owns the features: this one, unless it is a view with other outcomes."""
        return self

    def check_unchanged(self) -> None:  # noqa: B027 - rows in memory stay what they are
        """Raise InputError if the opened dataset is gone, or replaced by another one."""

    @abstractmethod
    def X(self, start: int, stop: int) -> Features:
        """Return the features of rows start..stop-1.

        Returns
        -------
        float32 ndarray of shape (stop - start, n_features), C-contiguous, or csr_array
            The csr_array has float32 data, int32 sorted distinct indices and int32 indptr. Values
            are float64 if the layout is `wide`.
        """

    @abstractmethod
    def y(self, start: int, stop: int) -> NDArray[Any]:
        """Return the label codes or targets of rows start..stop-1.

        Returns
        -------
        int32 ndarray of shape (stop - start,)
            Indices into `labels`, -1 if unlabelled.
        float64 ndarray of shape (stop - start,)
            For regression data: targets, NaN for a row without a target.
        float64 ndarray of shape (stop - start, n_targets)
            For regression data with several targets; NaN for a missing target.
        """

    @abstractmethod
    def weights(self, start: int, stop: int) -> NDArray[np.float64]:
        """Return the weights of rows start..stop-1; ones if the dataset has no weights."""

    @abstractmethod
    def sqnorms(self, start: int, stop: int) -> NDArray[np.float64]:
        """Return the squared Euclidean norms of rows start..stop-1."""

    @abstractmethod
    def row_ids(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the source row numbers of rows start..stop-1, counted from 0 over all sources."""

    def rows(self, ids: ArrayLike) -> Features:
        """Return the features of the given rows, in the given order.

        Parameters
        ----------
        ids : int array of shape (k,)
            Row numbers of this dataset, in any order, perhaps repeated. Every chunk with one of
            these rows is read at most once.

        Returns
        -------
        Same type as `X`, k rows.

        Raises
        ------
        IndexError
            If a row number is out of range.
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
                parts.append(take_rows(self._read_whole_chunk(k), ids[group] - start))
            else:
                dense[group] = self._read_from_chunk(k, ids[group] - start)
        if dense is not None:
            return dense
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        if not parts:
            return self.X(0, 0)
        return take_rows(csr_stack(parts, self.n_features), place)

    def _read_from_chunk(self, k: int, places: NDArray[np.int64]) -> Any:
        """Return dense rows of chunk `k`, by their ascending positions ``places`` in the chunk."""
        return take_rows(self._read_whole_chunk(k), places)

    def _read_whole_chunk(self, k: int) -> Any:
        """Return all rows of chunk `k`; the caller must not write to them."""
        return self.X(*self.chunk(k))


def describe_ranges(targets: dict[str, Any], names: list[str]) -> dict[str, str]:
    """Say which values targets have, by "target" and the target's name, or by "targets" if one.

    Targets that no row has are left out.

    Parameters
    ----------
    targets : dict
        `Rows.targets`.
    names : list of str
        `Rows.target_names`.
    """
    each = zip(names, targets["each"], strict=True) if "each" in targets else ()
    ranges = [(f"target {name}", part) for name, part in each] or [("targets", targets)]
    return {
        name: f"{part['low']:g} to {part['high']:g}" for name, part in ranges if part.get("rows")
    }


def check_one_target(data: Rows, what: str) -> None:
    """Raise InputError if rows have several targets, of which ``what`` takes one.

    ``what``: the noun of a sentence that goes on with "takes at most one".
    """
    if data.n_targets > 1:
        names = data.target_names
        instead = "give one of them"
        if data.path is not None:
            instead = (
                "ingest its source again with one of them as `--label`, and leave out the others "
                "by `--drop`"
            )
        raise InputError(
            f"{data.path or 'the data'} has {len(names)} targets ({', '.join(names)}) and {what} "
            f"takes at most one; {instead}"
        )
