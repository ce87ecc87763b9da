"""Nystrom features: choose landmarks, factor their kernel matrix, and store features.

The feature of x is ``phi(x) = T' k(x, Z)`` with landmarks Z and ``T T' = K_ZZ^+`` truncated, so
``<phi(x), phi(z)>`` is the Nystrom approximation of the kernel (Tanji et al. 2023, sec. II-A;
maths.md 5.5).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from bigscreen.data.dataset import Dataset
from bigscreen.data.layout import Features, Layout, row_grid
from bigscreen.data.memory import MemoryDataset
from bigscreen.data.preparation import Preparation
from bigscreen.data.rows import Rows
from bigscreen.data.writer import DatasetWriter
from bigscreen.errors import InputError
from bigscreen.features.design import Design, row_ranges
from bigscreen.features.landmarks import (
    CHOOSERS,
    DEFINITE,
    OVERFLOW,
    REPETITION,
    pool_rows,
    resolve_auto,
)
from bigscreen.files.sealed import hash_arrays
from bigscreen.fleet.protocol import Fleet
from bigscreen.kernels.base import FLOAT64_ERROR_FACTOR, Kernel
from bigscreen.kernels.moved import move_rows
from bigscreen.kernels.operand import Operand
from bigscreen.numerics.cholesky import factorise_in_parallel, invert_in_parallel
from bigscreen.numerics.rows import FloatArray

FLOAT32_CUTOFF = 1e-6
"""With float32 kernel columns, drop the eigenvectors of the landmarks' kernel matrix whose
eigenvalue is below this fraction of the largest. Features divide by the root of an eigenvalue,
which amplifies the columns' rounding of about 1e-7."""

FLOAT64_CUTOFF = 1e-12
"""With float64 kernel columns, as for features that are stored, drop the eigenvectors of the
landmarks' kernel matrix whose eigenvalue is below this fraction of the largest."""

ZERO = "the kernel of the landmarks is zero everywhere; choose another gamma or scaling"
"""The error message for a kernel matrix of landmarks that is 0."""

MAX_EIGH_LANDMARKS = 2048
"""Factor the kernel matrix of at most this many landmarks by its eigenvectors, and of more by
Cholesky: eigenvectors would then take approximately thirty times as long, and several times the
memory."""


def resolve_sampling(data: Rows, kernel: Kernel, sampling: str, seed: int) -> str:
    """Resolve sampling "auto" to "rpcholesky" or "uniform" for these rows; return other names.

    "auto" looks at the kernel matrix of sampled rows (see `resolve_auto`).
    """
    if sampling != "auto":
        return sampling
    # From a random stream of its own, so that "auto" and "uniform" draw the same landmarks.
    rng = np.random.default_rng([seed, 0x6C6F6F6B])
    some = rng.choice(data.n_rows, min(REPETITION.rows, data.n_rows), replace=False)
    return resolve_auto(kernel, Operand(data.rows(np.sort(some))))


def choose_landmarks(
    data: Rows, kernel: Kernel, count: int, sampling: str, seed: int
) -> tuple[Operand, NDArray[np.int64]]:
    """Choose landmarks among the stored rows.

    Landmarks are rows with which kernel entries are computed as features.

    Parameters
    ----------
    count : int
        m, at most the number of rows.
    sampling : {"uniform", "rpcholesky", "leverage", "kmeans", "auto"}
        Uniform without replacement; or on a seeded uniform pool of max(20 m, 20,000) rows by
        randomly pivoted Cholesky (Chen et al. 2025), by approximate ridge leverage scores (Rudi et
        al. 2018), or the rows nearest to the centres of m clusters (maths.md 5.5). "auto":
        see ``resolve_sampling``.

    Returns
    -------
    (Operand of m rows, their row numbers in the store, int64, ascending)
    """
    rng = np.random.default_rng([seed, 0x6C616E64])
    if count > data.n_rows:
        raise InputError(
            f"{count} landmarks were asked for and the data has {data.n_rows} rows; ask for fewer"
        )
    sampling = resolve_sampling(data, kernel, sampling, seed)
    if sampling == "uniform":
        ids = np.sort(rng.choice(data.n_rows, count, replace=False))
    elif sampling in CHOOSERS:
        if not kernel.psd and sampling in DEFINITE:
            raise InputError(
                f"{DEFINITE[sampling]} need a positive semidefinite kernel, and this one is not; "
                "use sampling uniform or kmeans"
            )
        size = pool_rows(data.n_rows, count)
        pool = np.sort(rng.choice(data.n_rows, size, replace=False))
        ids = np.sort(pool[CHOOSERS[sampling](kernel, Operand(data.rows(pool)), count, rng)])
    else:
        known = ", ".join(("uniform", *CHOOSERS))
        raise InputError(f"sampling must be one of {known} or auto, got {sampling!r}")
    return Operand(data.rows(ids)), ids


class Factor(NamedTuple):
    """The factor ``T`` of the landmarks' kernel matrix, and how small eigenvalues were handled.

    ``matrix`` is T, float64 (m, r), with ``T' (K_ZZ + ridge I) T = I``. Features: ``T' k(x, Z)``.

    ``cutoff``: directions with an eigenvalue below this fraction of the largest are dropped. With
    more than ``MAX_EIGH_LANDMARKS`` landmarks none is dropped; ``ridge`` is added to the diagonal
    instead. It is ``cutoff`` times the largest row sum of the kernel matrix, which bounds all
    eigenvalues.
    """

    matrix: FloatArray
    cutoff: float
    ridge: float = 0.0

    @property
    def entries(self) -> type:
        """The type of kernel entries precise enough for all directions of T: float32 or float64."""
        lengths = np.einsum("ij,ij->j", self.matrix, self.matrix)
        # Squared lengths of T's orthogonal columns are the inverse eigenvalues.
        smallest, largest = 1 / lengths.max(), 1 / lengths.min()
        if self.ridge:
            smallest = 1 / _stretch(self.matrix, int(np.argmax(lengths)))
            # (With repeated landmarks the smallest is the ridge itself, up to rounding.)
            largest = (1 - 1e-3) * self.ridge / self.cutoff
        return np.float64 if smallest < FLOAT32_CUTOFF * largest else np.float32

    def of(self, design: Design, landmarks: Operand) -> Design:
        """Return the design with these landmarks and this factor."""
        return replace(
            design,
            landmarks=landmarks,
            factor=self.matrix,
            ridge=self.ridge,
            entries=self.entries,
        )

    def record(self) -> dict[str, Any]:
        """JSON-able record for models and certificates: sizes, cutoff, ridge, type."""
        m, r = self.matrix.shape
        of = {"landmarks": m, "rank": r, "cutoff": self.cutoff}
        if self.ridge:
            of["ridge"] = self.ridge
        return {**of, "entries": "float64" if self.entries is np.float64 else "float32"}


def factor_by_eigenvectors(kernel: Kernel, side: Operand, cutoff: float = FLOAT32_CUTOFF) -> Factor:
    """Compute ``T`` (m, r) with ``T' K_ZZ T = I`` from the r eigenvalues above the cutoff.

    K_ZZ is the kernel matrix of the landmarks ``side``. All is computed in float64. ``cutoff``:
    drop eigenvalues below this fraction of the largest.

    Negative eigenvalues (of kernels that are not positive semidefinite) are dropped
    with the small ones; no bound is known on how much dropping these changes P.
    """
    gram = kernel.block(side, side, dtype=np.float64)
    if not np.isfinite(gram).all():
        raise InputError(OVERFLOW.format("landmarks"))
    # Divide and conquer: half the time of LAPACK's default here.
    values, vectors = linalg.eigh(0.5 * (gram + gram.T), driver="evd", check_finite=False)
    largest = float(values[-1])
    if largest > 0:
        longest = float(np.max(side.sqnorms))
        error = FLOAT64_ERROR_FACTOR * float(kernel.entry_error(longest, longest, side.X.shape[1]))
        # An eigenvalue counts only if it exceeds ten times the rounding of the matrix.
        cutoff = max(cutoff, min(FLOAT32_CUTOFF, 10.0 * error * len(values) ** 0.5 / largest))
    keep = values > cutoff * largest
    if not keep.any():
        raise InputError(ZERO)
    return Factor(np.ascontiguousarray(vectors[:, keep] / np.sqrt(values[keep])), cutoff)


def factor_landmarks(kernel: Kernel, side: Operand, cutoff: float = FLOAT32_CUTOFF) -> Factor:
    """Factor the kernel matrix of the landmarks ``side``: by eigenvectors, or if large by Cholesky.

    ``cutoff``: see `Factor`.
    """
    if len(side) > MAX_EIGH_LANDMARKS and kernel.psd:
        return factor_by_cholesky(kernel, side, cutoff)
    return factor_by_eigenvectors(kernel, side, cutoff)


def factor_by_cholesky(
    kernel: Kernel, side: Operand, cutoff: float, min_cutoff: float = 1e-11
) -> Factor:
    """Compute an upper triangular ``T`` (m, m) with ``T' (K_ZZ + ridge I) T = I`` by Cholesky.

    The ridge is ``cutoff`` times the largest row sum of K_ZZ. It replaces the dropping of small
    eigenvalues: a feature amplifies errors of columns at most by the inverse root of the ridge. It
    is part of the problem: ``||w||^2 = c' (K_ZZ + ridge I) c``. With a cutoff below ``min_cutoff``
    Cholesky might fail. One matrix is in memory, and is factored and inverted in place.
    """
    m = len(side)
    with ThreadPoolExecutor(os.cpu_count()) as pool:

        def at_once(function: Callable[[int], Any], items: Iterable[int]) -> list[Any]:
            """Map a function over items in the threads of the pool."""
            return list(pool.map(function, items))

        gram, strip = np.empty((m, m)), 256  # rows that one thread computes at a time

        def entries_of(start: int) -> float:
            """Compute ``strip`` rows of the matrix; return their largest absolute row sum."""
            rows = slice(start, start + strip)
            own = kernel.block(side.X[rows], side, out=gram[rows], dtype=np.float64)
            return float(np.max(np.sum(np.abs(own), axis=1)))

        cutoff = max(cutoff, min_cutoff)
        # (Tiles have few rows, so that the sums need no second matrix.)
        kernel.prepare(side)
        largest = max(at_once(entries_of, range(0, m, strip)))
        if not np.isfinite(largest):
            raise InputError(OVERFLOW.format("landmarks"))
        if not largest > 0:
            raise InputError(ZERO)
        ridge = cutoff * largest
        gram[np.diag_indices(m)] += ridge
        if not factorise_in_parallel(gram, at_once):
            raise InputError(
                f"the kernel of the {m} landmarks is not positive semidefinite as far as float64 "
                "can tell; scale the data, or take fewer landmarks"
            )
        invert_in_parallel(gram, at_once)
    return Factor(gram, cutoff, ridge)


def factor_matrix(kernel: Kernel, side: Operand, cutoff: float = FLOAT32_CUTOFF) -> FloatArray:
    """Return the matrix T (m, r) with ``T' K_ZZ T = I`` for landmarks ``side``, by eigenvectors.

    Eigenvalues of their kernel matrix K_ZZ below ``cutoff`` times the largest are dropped.
    """
    return factor_by_eigenvectors(kernel, side, cutoff).matrix


def _stretch(T: FloatArray, start: int) -> float:
    """Estimate the squared spectral norm ``||T||^2`` from below.

    By power iteration on ``T T'`` that begins with column number ``start`` of T (m, r).
    """
    v = T[:, start]
    for _ in range(10):  # its order of magnitude is enough
        v = T @ (T.T @ v)
        v /= np.linalg.norm(v)
    return float(np.sum((T.T @ v) ** 2))


def feature_fingerprint(
    design: Design, dtype: type = np.float32, preparation: Preparation | None = None
) -> str:
    """Hash what a store of features depends on; stores with equal hashes are equal.

    Parameters
    ----------
    design : Design
        Its rows (with how they were prepared and moved, their outcomes and weights), kernel,
        landmarks, factor, and type of kernel entries.
    dtype : type
        The type in which features are stored.
    preparation : Preparation or None
        What the store says of its preparation. None: that of the design's rows.

    Returns
    -------
    str
        Hexadecimal digits.
    """
    assert design.kernel is not None and design.landmarks is not None
    X = design.landmarks.X
    parts = [X]
    if not isinstance(X, np.ndarray):
        parts = [X.data, X.indices.astype(np.int32), X.indptr.astype(np.int64)]
    known = {
        "rows": design.data.fingerprint,
        "kernel": design.kernel.to_dict(),
        "types": [np.dtype(kind).name for kind in (design.entries, dtype)],
        "preparation": (preparation or design.data.preparation).fingerprint,
    }
    return hash_arrays(known, *parts, design.factor)


@dataclass(frozen=True)
class _Block:
    """A task that computes the features of one chunk of rows, and stores them if it has a writer.

    Called with (number of the chunk, first row, last row + 1). It returns the features (rows, r) of
    type ``dtype``, or with a writer the number of the chunk.
    """

    design: Design
    writer: DatasetWriter | None
    dtype: type

    def __call__(self, bounds: tuple[int, int, int]) -> Any:
        """Compute one chunk's features, and store or return them; skip it if it is stored.

        ``bounds``: the number of the chunk, its first row, and the row after its last one.
        """
        k, start, stop = bounds
        if self.writer is not None and self.writer.is_written(k):
            return k
        data, design = self.design.data, self.design
        out = compute_features(design, data.X(start, stop), self.dtype)
        if self.writer is None:
            return out
        self.writer.write(
            k, out, data.y(start, stop), data.weights(start, stop), data.row_ids(start, stop)
        )
        return k


def compute_features(design: Design, X: Any, dtype: type) -> NDArray[Any]:
    """Compute the features of rows, with the columns of a few of them in memory at a time.

    Parameters
    ----------
    design : Design
        A design with a factor.
    X : ndarray or csr_array (rows, d)
        Rows like those of the design.
    dtype : type
        Type of the features, float32 or float64; that of the columns may be wider (`Factor`).

    Returns
    -------
    ndarray (rows, r) of ``dtype``

    Raises
    ------
    InputError
        If kernel entries overflow.
    """
    out: NDArray[Any] = np.empty((X.shape[0], design.rank), dtype)
    entries = np.promote_types(design.entries, dtype).type
    for a, b in row_ranges(len(out), 2048):
        columns = design.columns(X[a:b], entries, "stored")
        if entries is np.float32:
            design.features_of(columns, out[a:b])
        else:
            # A feature is rounded after its sum, so even a tiny one keeps its digits.
            out[a:b] = design.features_of(columns)
        if not np.isfinite(np.sum(out[a:b])):
            raise InputError(OVERFLOW.format("rows and landmarks"))
    return out


def design_of_record(kernel: Kernel, landmarks: Features, record: Mapping[str, Any]) -> Design:
    """Make the design of a fitted model again, with its landmarks as the rows.

    Parameters
    ----------
    kernel : Kernel
    landmarks : ndarray or csr_array (m, d)
    record : mapping
        `Factor.record` of the fit, which the model's provenance has under "nystrom".

    Returns
    -------
    Design
        Of the rank that the fit had. Which directions are above the cutoff is a matter of rounding
        for those close to it, so directions that are too many are dropped and those that are
        missing are 0. Its rows are `Moved` if float32 entries need it.
    """
    rows, kernel = move_rows(MemoryDataset(landmarks, None, []), kernel, False)
    side = Operand(rows.X(0, rows.n_rows))
    made = factor_again(kernel, side, record).of(Design(rows, kernel), side)
    rank, found = record["rank"], made.factor
    assert found is not None
    if found.shape[1] != rank:  # (columns have ascending eigenvalues)
        found = np.pad(found, ((0, 0), (max(0, rank - found.shape[1]), 0)))[:, -rank:]
    entries = np.float64 if record["entries"] == "float64" else np.float32
    return replace(made, factor=found, entries=entries)


def factor_again(kernel: Kernel, side: Operand, record: Mapping[str, Any]) -> Factor:
    """Factor the kernel matrix of landmarks ``side`` as an earlier fit did.

    ``record``: that fit's `Factor.record`, which says whether by Cholesky, and with which cutoff.
    """
    made = factor_by_cholesky if "ridge" in record else factor_by_eigenvectors
    return made(kernel, side, record["cutoff"])


def store_features(
    design: Design,
    fleet: Fleet,
    folder: Path | None,
    progress: Callable[[int, int], None] | None = None,
    dtype: type = np.float32,
    preparation: Preparation | None = None,
) -> Design:
    """Compute and store the features of a design; return a linear design with them as its rows.

    Parameters
    ----------
    design : Design
        A design with a factor.
    fleet : Fleet
    folder : Path or None
        Where to store them, in a folder named by their fingerprint: they are never reused for other
        parameters, and an unfinished store is continued. None keeps them in memory.
    progress : callable or None
        Called with (chunks done, chunks).
    dtype : type
        Type of the stored features, float32 or float64.
    preparation : Preparation or None
        What the stored features say of their own preparation. None: that of the design's rows.

    Raises
    ------
    InputError
        If the folder holds features of another fit, or kernel entries overflow.
    """
    data = design.data
    assert design.factor is not None
    shard_rows = data.shard_rows
    _, chunk_rows = row_grid(data.n_rows, np.dtype(dtype).itemsize * design.rank)
    chunk_rows = min(chunk_rows, shard_rows)
    bounds = [(k, a, b) for k, (a, b) in enumerate(row_ranges(data.n_rows, chunk_rows))]
    if folder is None:
        rows: NDArray[Any] = np.empty((data.n_rows, design.rank), dtype)
        made = fleet.each(_Block(design, None, dtype), bounds)
        for (_, a, b), out in zip(bounds, made, strict=True):
            rows[a:b] = out
            if progress:
                progress(b, data.n_rows)
        y, weights = data.y(0, data.n_rows), data.weights(0, data.n_rows)
        return Design(
            MemoryDataset(
                rows, y, data.layout.labels, weights, shard_rows=shard_rows, chunk_rows=chunk_rows
            )
        )
    preparation = preparation or data.preparation
    fingerprint = feature_fingerprint(design, dtype, preparation)
    path = folder / f"features-{fingerprint[:16]}"
    if path.exists():
        store = Dataset.open(path)
        if store.manifest["extra"].get("features_of") == fingerprint:
            return Design(store)
        raise InputError(f"{path} holds features of another fit; remove it and run again")
    folder.mkdir(parents=True, exist_ok=True)
    writer = DatasetWriter(
        path,
        Layout.of(
            n_rows=data.n_rows,
            n_features=design.rank,
            sparse=False,
            labels=data.layout.labels,
            weights=True,
            shard_rows=shard_rows,
            chunk_rows=chunk_rows,
            wide=dtype is np.float64,
            n_targets=data.layout.n_targets,
        ),
        preparation,
        extra={"features_of": fingerprint},
    )
    for done, _ in enumerate(fleet.each(_Block(design, writer, dtype), bounds)):
        if progress:
            progress(done + 1, len(bounds))
    return Design(writer.finish())
