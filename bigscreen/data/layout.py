"""Layout of a dataset: sizes, division into shards and chunks, fingerprints; helpers for rows."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from bigscreen.errors import InputError

Features: TypeAlias = NDArray[np.floating[Any]] | csr_array
"""Features of rows: a dense array or a CSR array (rows, n_features), float32 or float64."""

Label: TypeAlias = str | int | float
"""A label (class) as a model file can hold it."""

MAX_CHUNK_BYTES = 32 * 1024**2
"""Largest size in bytes of the features of a chunk (a file of consecutive rows), unless a single
row is larger; more rows go to further chunks."""

_LATER_FIELDS = {"wide": False, "n_targets": 1}
"""Fields of `Layout` that older stores lack, with the values that these stores have."""

SUMMARY = ("max_sqnorm", "label_counts", "targets")
"""Manifest fields that summarise all rows; regression data alone has "targets"."""


def row_grid(n_rows: int, row_bytes: int) -> tuple[int, int]:
    """Choose the rows per shard (unit of work) and per chunk (unit of storage), powers of two.

    Parameters
    ----------
    n_rows : int
        Rows of the dataset.
    row_bytes : int
        Bytes of one stored row of features.

    Returns
    -------
    shard_rows, chunk_rows : int
        `shard_rows` lies in 256..65536 and gives at least 8 shards if there are enough rows; it
        depends on `n_rows` alone. `chunk_rows` divides it and keeps a chunk within 32 MiB.
    """
    wanted = min(max(n_rows // 8, 256), 65536)
    shard_rows = 1 << (wanted.bit_length() - 1)
    fitting = max(MAX_CHUNK_BYTES // max(row_bytes, 1), 1)
    return shard_rows, min(shard_rows, 1 << (fitting.bit_length() - 1))


@dataclass(frozen=True)
class Layout:
    """Sizes, types, labels and row grid of a dataset, fixed before its first row is written.

    A shard is the unit of work (rows one task of a pass handles), a chunk the unit of storage (rows
    per file). `labels` has the label of every code, or is None if rows have regression targets,
    `n_targets` of them each. `wide` means that features are stored as float64, not float32.
    """

    n_rows: int
    n_features: int
    is_sparse: bool
    shard_rows: int
    chunk_rows: int
    labels: tuple[Label, ...] | None
    has_weights: bool
    wide: bool = False
    n_targets: int = 1

    @classmethod
    def of(  # noqa: PLR0913
        cls,
        *,
        n_rows: int,
        n_features: int,
        sparse: bool,
        labels: Iterable[Any] | None,
        weights: bool,
        shard_rows: int | None = None,
        chunk_rows: int | None = None,
        wide: bool = False,
        n_targets: int = 1,
    ) -> "Layout":
        """Make a layout from sizes, with the grid of `row_grid` unless a grid is given.

        Parameters
        ----------
        n_rows, n_features : int
        sparse : bool
            Whether X is given and stored as CSR.
        labels : sequence of str, int or float, or None
            The label of every code; None if rows have regression targets.
        weights : bool
            Whether rows have weights.
        shard_rows, chunk_rows : int, optional
            Rows per shard and per chunk; by default from `row_grid`, which assumes 128 nonzeros
            per sparse row.
        wide : bool
            Store features as float64; else they are rounded to float32.
        n_targets : int
            Number of regression targets of each row; 1 if rows have labels.

        Raises
        ------
        InputError
            If a size is out of range or the grid is not made of powers of two.
        """
        if n_rows < 1 or n_features < 1:
            raise InputError(
                f"a dataset needs at least one row and one feature, got {n_rows} rows "
                f"and {n_features} features"
            )
        if n_features > np.iinfo(np.int32).max:
            raise InputError(f"{n_features} features do not fit 32-bit column indices")
        row_bytes = 4 * n_features
        if sparse:
            row_bytes = min(2 * row_bytes, 128 * 8)  # nonzeros are not counted yet: assume 128
        shard, chunk = row_grid(n_rows, row_bytes)
        shard = shard_rows or shard
        chunk = chunk_rows or min(chunk, shard)
        if shard & (shard - 1) or chunk & (chunk - 1) or min(shard, chunk) < 1 or chunk > shard:
            raise InputError(
                f"shard_rows={shard} and chunk_rows={chunk} must be powers of two, "
                "chunk_rows not above shard_rows"
            )
        plain = None
        if labels is not None:
            plain = tuple(v.item() if isinstance(v, np.generic) else v for v in labels)
            if len(set(plain)) != len(plain) or any(v != v for v in plain):
                raise InputError(f"the labels {list(plain)} are not distinct values")
        sizes = int(n_rows), int(n_features), bool(sparse), shard, chunk
        return cls(*sizes, plain, bool(weights), wide, n_targets)

    @property
    def dtype(self) -> type[np.floating[Any]]:
        """Type in which features are stored: float64 or float32."""
        return np.float64 if self.wide else np.float32

    @property
    def n_shards(self) -> int:
        """Number of shards; the last one may have fewer rows."""
        return -(-self.n_rows // self.shard_rows)

    @property
    def n_chunks(self) -> int:
        """Number of chunks; the last one may have fewer rows."""
        return -(-self.n_rows // self.chunk_rows)

    def shard(self, s: int) -> tuple[int, int]:
        """Return the first row of shard `s` and one past its last row."""
        if not 0 <= s < self.n_shards:
            raise IndexError(f"shard {s} of {self.n_shards}")
        return s * self.shard_rows, min((s + 1) * self.shard_rows, self.n_rows)

    def chunk(self, k: int) -> tuple[int, int]:
        """Return the first row of chunk `k` and one past its last row."""
        if not 0 <= k < self.n_chunks:
            raise IndexError(f"chunk {k} of {self.n_chunks}")
        return k * self.chunk_rows, min((k + 1) * self.chunk_rows, self.n_rows)

    def check_range(self, start: int, stop: int) -> None:
        """Raise IndexError unless 0 <= start <= stop <= n_rows."""
        if not 0 <= start <= stop <= self.n_rows:
            raise IndexError(f"rows {start}:{stop} of a dataset of {self.n_rows}")

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON values, from which `from_dict` restores the layout."""
        record = {**self.__dict__, "labels": None if self.labels is None else list(self.labels)}
        for name, usual in _LATER_FIELDS.items():
            if record[name] == usual:
                del record[name]  # keeps the fingerprints of stores older than this field
        return record

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> "Layout":
        """Restore a layout from the record that `to_dict` made."""
        record = {**_LATER_FIELDS, **record}
        fields = {name: record[name] for name in cls.__dataclass_fields__}
        labels = fields["labels"]
        return cls(**{**fields, "labels": None if labels is None else tuple(labels)})

    def fingerprint(
        self, digests: Iterable[str], preparation: str, summary: dict[str, Any] | None
    ) -> str:
        """Hash everything about a dataset that a result depends on; return SHA-256 in hex.

        Parameters
        ----------
        digests : iterable of str
            Hashes of the chunks, in order.
        preparation : str
            The preparation's fingerprint.
        summary : dict or None
            The manifest's `SUMMARY` fields; None for stores of schema 1 and 2.
        """
        known: list[Any] = [self.to_dict(), preparation]
        known += [] if summary is None else [summary]
        head = json.dumps(known, sort_keys=True, allow_nan=False)
        state = hashlib.sha256(head.encode())
        for digest in digests:
            state.update(digest.encode())
        return state.hexdigest()


def csr(
    data: NDArray[Any], indices: NDArray[Any], indptr: NDArray[Any], n_features: int
) -> csr_array:
    """Make a CSR array (rows, n_features) of these arrays, without a copy if types allow.

    indices are int32, and so is indptr up to 2**31 - 1 nonzeros.

    If their types differed, scipy would widen the narrower one at every slice: this doubles the
    memory, and scikit-learn rejects int64 indices. With more nonzeros indptr alone is int64;
    slices of at most 2**31 - 1 nonzeros are int32 again.
    """
    narrow = len(data) <= np.iinfo(np.int32).max
    indptr = np.asarray(indptr, dtype=np.int32 if narrow else np.int64)
    indices = np.asarray(indices, dtype=np.int32)
    out = csr_array((data, indices, indptr), shape=(len(indptr) - 1, n_features), copy=False)
    out.indices = indices
    return out


def pad_columns(rows: Features, width: int) -> Features:
    """Append columns of zeros to the rows until they have `width` columns."""
    if isinstance(rows, csr_array):
        return csr(rows.data, rows.indices, rows.indptr, width)
    return np.pad(rows, ((0, 0), (0, width - rows.shape[1])))


def csr_slice(X: csr_array, start: int, stop: int) -> csr_array:
    """Return rows start..stop-1 of `X` as a view of its data."""
    first, last = X.indptr[start], X.indptr[stop]
    indptr = X.indptr[start : stop + 1] - first
    return csr(X.data[first:last], X.indices[first:last], indptr, X.shape[1])


def csr_stack(
    parts: list[csr_array], n_features: int, dtype: type[np.floating[Any]] = np.float32
) -> csr_array:
    """Stack CSR arrays vertically; `dtype` is the type of the values if `parts` is empty."""
    if len(parts) == 1:
        return parts[0]
    ends = np.cumsum([0] + [part.indptr[-1] for part in parts], dtype=np.int64)
    indptr = [np.zeros(1, np.int64)]
    indptr += [part.indptr[1:] + end for part, end in zip(parts, ends, strict=False)]
    data = np.concatenate([part.data for part in parts] or [np.empty(0, dtype)])
    indices = np.concatenate([np.empty(0, np.int32)] + [part.indices for part in parts])
    return csr(data, indices, np.concatenate(indptr), n_features)


def stack_rows(is_sparse: bool, parts: Sequence[Features]) -> Features:
    """Stack blocks of rows ``parts`` vertically, as CSR if ``is_sparse``, else dense.

    One float64 block makes the result float64.
    """
    if is_sparse:
        rows = [part if isinstance(part, csr_array) else csr_array(part) for part in parts]
        return csr_stack(rows, parts[0].shape[1])
    return np.concatenate([p if isinstance(p, np.ndarray) else p.toarray() for p in parts])


def take_rows(X: Features, rows: NDArray[np.int64]) -> Features:
    """Copy the given rows of `X`, in the given order, to a new array."""
    if not isinstance(X, csr_array):
        # `take` is ten times as fast, but would first copy a whole array that is not contiguous.
        return X.take(rows, axis=0) if X.flags.c_contiguous else X[rows]
    starts = X.indptr[rows]
    counts = X.indptr[rows + 1] - starts
    indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])
    source = np.arange(indptr[-1]) + np.repeat(starts - indptr[:-1], counts)
    return csr(X.data[source], X.indices[source], indptr, X.shape[1])


def sqnorms(X: Features) -> NDArray[np.float64]:
    """Compute the squared Euclidean norm of every row, summed in float64."""
    if isinstance(X, csr_array):
        row = np.repeat(np.arange(X.shape[0]), np.diff(X.indptr))
        squares = np.square(X.data, dtype=np.float64)
        # Without any nonzero, bincount returns integers.
        return np.bincount(row, squares, minlength=X.shape[0]).astype(np.float64, copy=False)
    norms: NDArray[np.float64] = np.einsum("ij,ij->i", X, X, dtype=np.float64)
    return norms


def chunk_digest(
    X: Features,
    y: NDArray[Any],
    weights: NDArray[np.float64] | None,
    row_ids: NDArray[np.int64],
    norms: NDArray[np.float64] | None = None,
) -> str:
    """Hash the content of one chunk of rows, before any compression; return SHA-256 in hex.

    Parameters
    ----------
    X : Features (rows, d)
    y : int32 codes or float64 targets (rows,), or float64 (rows, targets)
    weights : float64 (rows,) or None
        None if the dataset has no weights.
    row_ids : int64 (rows,)
        Source row numbers.
    norms : array or None
        Squared norms; None for stores of schema 1 and 2, whose digests left them out.
    """
    parts = [X]
    if isinstance(X, csr_array):
        # Hash the types that are stored on disk, which may differ from those in memory.
        parts = [X.indptr.astype(np.int64), X.indices.astype(np.int32, copy=False), X.data]
    state = hashlib.sha256(repr(X.shape).encode())
    for part in [*parts, y, row_ids, *(each for each in (weights, norms) if each is not None)]:
        state.update(np.ascontiguousarray(part).data)
    return state.hexdigest()
