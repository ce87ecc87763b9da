"""Landmarks, their factor, and features: how a kernel machine becomes one of m columns.

The feature of x is ``phi(x) = T' k(x, Z)`` with landmarks Z and ``T T' = K_ZZ^+`` truncated, so
``<phi(x), phi(z)>`` is the Nystrom approximation of the kernel (Tanji et al. 2023, sec. II-A;
maths.md 5.5).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from bigscreen.data.dataset import Dataset
from bigscreen.data.layout import Layout, row_grid
from bigscreen.data.memory import MemoryDataset
from bigscreen.data.rows import Rows
from bigscreen.data.writer import DatasetWriter
from bigscreen.errors import InputError
from bigscreen.features.design import Design, row_ranges
from bigscreen.fleet.protocol import Fleet
from bigscreen.kernels.base import FLOAT64, Kernel
from bigscreen.kernels.operand import Operand
from bigscreen.numerics.rows import FloatArray

CARRIED = 1e-6
"""The smallest eigenvalues of K_ZZ, as a part of the largest, that float32 columns carry: a noise
of about 1e-7, which T amplifies by the root of this number's inverse."""

FULL = 1e-12
"""The same of float64 columns, which stored features are made of where it takes them."""

OVERFLOW = "kernel entries between {} overflow; scale the data, or lower gamma, coef0 or degree"

ROOM = 10.0
"""An eigenvalue of K_ZZ is believed from so many times the rounding of its entries."""


def landmarks(
    data: Rows, kernel: Kernel, count: int, sampling: str, seed: int
) -> tuple[Operand, NDArray[np.int64]]:
    """Choose landmarks among the stored rows.

    Parameters
    ----------
    count : int
        m, at most the number of rows.
    sampling : {"uniform", "rpcholesky"}
        Uniform without replacement; or randomly pivoted Cholesky (Chen et al. 2025; maths.md
        5.5) on a seeded uniform pool of max(20 m, 20,000) rows.

    Returns
    -------
    (Side of m rows, their stored row numbers, int64, ascending)
    """
    rng = np.random.default_rng([seed, 0x6C616E64])
    if count > data.n_rows:
        raise InputError(
            f"{count} landmarks were asked for and the data has {data.n_rows} rows; ask for fewer"
        )
    if sampling == "uniform":
        ids = np.sort(rng.choice(data.n_rows, count, replace=False))
    elif sampling == "rpcholesky":
        if not kernel.psd:
            raise InputError(
                "randomly pivoted Cholesky needs a positive semidefinite kernel, and this one is "
                "not; use sampling uniform"
            )
        size = min(data.n_rows, max(20 * count, 20_000))
        pool = np.sort(rng.choice(data.n_rows, size, replace=False))
        ids = np.sort(pool[pivots(kernel, Operand(data.rows(pool)), count, rng)])
    else:
        raise InputError(f"sampling must be uniform or rpcholesky, got {sampling!r}")
    return Operand(data.rows(ids)), ids


def pivots(
    kernel: Kernel, pool: Operand, count: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Randomly pivoted Cholesky in blocks with rejection (same law as one pivot at a time).

    Pivots are drawn in proportion to what the current low-rank approximation leaves of the
    diagonal; a block of proposals is thinned so that each is accepted with the probability that
    the ones before it have left (Epperly et al. 2024). Stops early where nothing is
    left, and fills up with further rows in the order of what is left.
    """
    n = len(pool)
    left = kernel.diag(pool.X).astype(np.float64)
    largest = float(left.max())
    floor = 1e-7 * largest
    lower = np.empty((n, count), np.float32)
    chosen: list[int] = []
    block = max(16, count // 10)
    while len(chosen) < count and float(left.max()) > floor:
        k = len(chosen)
        proposals = np.unique(rng.choice(n, block, p=left / left.sum()))
        rng.shuffle(proposals)
        side = Operand(pool.X[proposals])
        known = lower[proposals, :k]
        residual = kernel.block(side, side, dtype=np.float64) - known @ known.T
        taken, factor = _thin(residual, left[proposals], rng, count - k, 1e-12 * largest)
        if not len(taken):
            # What float32 steps have left of them is more than there is: else drawn for ever.
            left[proposals] = np.minimum(left[proposals], np.maximum(np.diag(residual), 0.0))
            continue
        new = proposals[taken]
        columns = kernel.block(pool, Operand(pool.X[new])) - lower[:, :k] @ lower[new, :k].T
        step = linalg.solve_triangular(factor, columns.T, lower=True, check_finite=False).T
        lower[:, k : k + len(new)] = step
        left = np.maximum(left - np.einsum("ij,ij->i", step, step), 0.0)
        left[new] = 0.0
        chosen.extend(int(i) for i in new)
    if len(chosen) < count:
        rest = np.setdiff1d(np.arange(n), chosen)
        chosen.extend(int(i) for i in rest[np.argsort(-left[rest], kind="stable")])
    return np.array(chosen[:count], dtype=np.int64)


def _thin(
    residual: FloatArray, weight: FloatArray, rng: np.random.Generator, most: int, least: float
) -> tuple[NDArray[np.int64], FloatArray]:
    """Accept proposals one by one with what is left of them, more than ``least``.

    The second result is the Cholesky factor of those taken.
    """
    size = len(residual)
    factor = np.zeros((size, size))
    left = np.diag(residual).copy()
    taken: list[int] = []
    for i in range(size):
        if len(taken) == most:
            break
        if rng.random() * weight[i] < left[i] and left[i] > least:
            k = len(taken)
            column = (residual[:, i] - factor[:, :k] @ factor[i, :k]) / np.sqrt(left[i])
            factor[:, k] = column
            left -= column**2
            taken.append(i)
    kept = np.array(taken, dtype=np.int64)
    return kept, factor[np.ix_(kept, np.arange(len(kept)))]


class Factor(NamedTuple):
    """``T``, and the part of the largest eigenvalue below which directions were dropped."""

    matrix: FloatArray
    cutoff: float

    @property
    def entries(self) -> type:
        """Type of the columns that carry all directions that are left."""
        return entries(self.matrix)

    def record(self) -> dict[str, Any]:
        """What models and certificates say of it; JSON-able."""
        m, r = self.matrix.shape
        of = {"landmarks": m, "rank": r, "cutoff": self.cutoff}
        return {**of, "entries": "float64" if self.entries is np.float64 else "float32"}


def factored(kernel: Kernel, side: Operand, cutoff: float = CARRIED) -> Factor:
    """``T`` (m, r) with ``T' K_ZZ T = I``, r the directions whose eigenvalue is above the cutoff.

    All in float64. Negative eigenvalues, of kernels that are not positive semidefinite, are dropped
    with the small ones. What they all could change of P is not known: nobody has computed it.
    """
    gram = kernel.block(side, side, dtype=np.float64)
    if not np.isfinite(gram).all():
        raise InputError(OVERFLOW.format("landmarks"))
    # Divide and conquer: half the time of LAPACK's default here.
    values, vectors = linalg.eigh(0.5 * (gram + gram.T), driver="evd", check_finite=False)
    largest = float(values[-1])
    if largest > 0:
        longest = float(np.max(side.sqnorms))
        error = FLOAT64 * float(kernel.entry_error(longest, longest, side.X.shape[1]))
        cutoff = max(cutoff, min(CARRIED, ROOM * error * len(values) ** 0.5 / largest))
    keep = values > cutoff * largest
    if not keep.any():
        raise InputError(
            "the kernel of the landmarks is zero everywhere; choose another gamma or scaling"
        )
    return Factor(np.ascontiguousarray(vectors[:, keep] / np.sqrt(values[keep])), cutoff)


def factor(kernel: Kernel, side: Operand, cutoff: float = CARRIED) -> FloatArray:
    """The matrix of ``factored``."""
    return factored(kernel, side, cutoff).matrix


def entries(factor: FloatArray) -> type:
    """Type of the columns that carry all directions of this ``T``."""
    lengths = np.einsum("ij,ij->j", factor, factor)  # inverses of the eigenvalues
    return np.float64 if lengths.min() < CARRIED * lengths.max() else np.float32


def feature_fingerprint(design: Design) -> str:
    """Identifies stored features: data, kernel, landmarks and factor."""
    digest = hashlib.sha256()
    assert design.kernel is not None and design.landmarks is not None
    X = design.landmarks.X
    parts = [X]
    if not isinstance(X, np.ndarray):
        parts = [X.data, X.indices.astype(np.int32), X.indptr.astype(np.int64)]
    digest.update(json.dumps([design.data.fingerprint, design.kernel.to_dict()]).encode())
    for part in [*parts, design.factor]:
        digest.update(np.ascontiguousarray(part).tobytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class _Block:
    """Computes (and, with a writer, stores) the features of one chunk."""

    design: Design
    writer: DatasetWriter | None

    def __call__(self, bounds: tuple[int, int, int]) -> Any:
        k, start, stop = bounds
        if self.writer is not None and self.writer.done(k):
            return k
        data, design = self.design.data, self.design
        out = np.empty((stop - start, design.rank), np.float32)
        assert design.factor is not None
        X, dtype = data.X(start, stop), entries(design.factor)
        for a, b in row_ranges(stop - start, 2048):
            columns = design.columns(X[a:b], dtype)
            if dtype is np.float32:
                design.features_of(columns, out[a:b])
            else:
                # A feature is rounded after it is summed: float32 carries even a tiny one.
                out[a:b] = design.features_of(columns)
            if not np.isfinite(np.sum(out[a:b])):
                raise InputError(OVERFLOW.format("rows and landmarks"))
        if self.writer is None:
            return out
        self.writer.write(
            k, out, data.y(start, stop), data.weights(start, stop), data.row_ids(start, stop)
        )
        return k


def stored_features(
    design: Design,
    fleet: Fleet,
    folder: Path | None,
    progress: Callable[[int, int], None] | None = None,
) -> Design:
    """The same machine with ``phi`` stored: a design of raw columns over a store of features.

    Parameters
    ----------
    folder : Path or None
        Where features live, under their own fingerprint: never reused for other parameters, and
        an unfinished store is gone on with. None keeps them in memory.
    progress : callable or None
        Called with (chunks done, chunks).
    """
    data = design.data
    assert design.factor is not None
    shard_rows = data.shard_rows
    _, chunk_rows = row_grid(data.n_rows, 4 * design.rank)
    chunk_rows = min(chunk_rows, shard_rows)
    bounds = [(k, a, b) for k, (a, b) in enumerate(row_ranges(data.n_rows, chunk_rows))]
    if folder is None:
        rows = np.empty((data.n_rows, design.rank), np.float32)
        for (_, a, b), out in zip(bounds, fleet.each(_Block(design, None), bounds), strict=True):
            rows[a:b] = out
            if progress:
                progress(b, data.n_rows)
        y, weights = data.y(0, data.n_rows), data.weights(0, data.n_rows)
        return Design(
            MemoryDataset(
                rows, y, data.layout.labels, weights, shard_rows=shard_rows, chunk_rows=chunk_rows
            )
        )
    fingerprint = feature_fingerprint(design)
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
        ),
        data.preparation,
        extra={"features_of": fingerprint},
    )
    for done, _ in enumerate(fleet.each(_Block(design, writer), bounds)):
        if progress:
            progress(done + 1, len(bounds))
    return Design(writer.finish())
