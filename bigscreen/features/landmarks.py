"""Choose landmarks from a pool of rows: by pivoted Cholesky, by leverage scores, or by k-means.

All choose distinct rows of the data, so landmarks have row numbers, and sparse ones stay sparse.
The features are whitened by the landmarks' own kernel matrix, however they were chosen: the weights
of leverage sampling are not used in it (maths.md 5.5).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, sparse

from bigscreen.data.layout import Features, csr
from bigscreen.data.rows import Rows
from bigscreen.data.views import Moved
from bigscreen.errors import InputError
from bigscreen.features.design import row_ranges
from bigscreen.files.sealed import hash_arrays
from bigscreen.kernels.base import Kernel
from bigscreen.kernels.given import Custom, Precomputed
from bigscreen.kernels.operand import Operand
from bigscreen.kernels.standard import Linear
from bigscreen.numerics.rows import FloatArray

OVERFLOW = "kernel entries between {} overflow; scale the data, or lower gamma, coef0 or degree"
"""The message if kernel entries are not finite; filled with the names of the rows."""

CHUNK_ROWS = 2048
"""Compute the kernel entries of this many rows with the landmarks, or their distances, at a time,
which bounds the memory."""


@dataclass(frozen=True, eq=False)
class GivenLandmarks:
    """Landmarks that are given, instead of chosen among the rows.

    Parameters
    ----------
    X : ndarray or csr_array (m, d)
        They are prepared as the rows of a data set are, but for a learned metric.
    """

    X: Features

    def __len__(self) -> int:
        return int(self.X.shape[0])

    @property
    def fingerprint(self) -> str:
        """Hash of the landmarks."""
        X: Any = self.X
        if isinstance(X, np.ndarray):
            return hash_arrays(None, X)
        return hash_arrays(list(X.shape), X.data, X.indices, X.indptr)

    def as_rows_of(self, data: Rows) -> Features:
        """Return the landmarks as rows of ``data``: mapped and shifted, sparse and typed alike.

        Raises
        ------
        InputError
            If they have another number of columns.
        """
        X: Any = self.X
        if isinstance(data, Moved):
            return data.move(self.as_rows_of(data.base))
        if X.shape[1] != data.layout.n_features:
            raise InputError(
                f"the landmarks have {X.shape[1]} columns and the rows have "
                f"{data.layout.n_features}; give both the same columns"
            )
        X = data.preparation.map(X)
        if sparse.issparse(X) and not data.is_sparse:
            X = X.toarray()
        if data.is_sparse and not sparse.issparse(X):
            X = sparse.csr_array(X)
        if data.is_sparse:
            return csr(X.data.astype(data.layout.dtype), X.indices, X.indptr, X.shape[1])
        return np.ascontiguousarray(X, data.layout.dtype)


def pool_rows(n: int, count: int, min_rows: int = 20_000, rows_per_landmark: int = 20) -> int:
    """Return how many of n rows form the pool from which ``count`` landmarks are chosen.

    The pool is drawn uniformly: ``rows_per_landmark`` for each, at least ``min_rows``, at most n.
    """
    return min(n, max(rows_per_landmark * count, min_rows))


def _proposals(count: int) -> int:
    """Return how many rows to propose at a time when drawing ``count`` rows with rejection."""
    return max(16, count // 10)


def choosing_bytes(sampling: str, n: int, count: int, row_bytes: float) -> int:
    """Estimate the bytes of memory that choosing ``count`` landmarks of n rows takes.

    ``sampling``: the name of the way to choose (see `CHOOSERS`), "uniform" or "auto".
    ``row_bytes``: bytes of one row.
    """
    if sampling == "uniform":
        return 0
    if sampling == "auto":
        sampling = "rpcholesky"
    pool, width = pool_rows(n, count), _proposals(count)
    if sampling == "rpcholesky":
        return int(pool * (row_bytes + 4 * count + 2 * 8 * width))
    if sampling == "leverage":
        most = min(pool, 2 * int(LEVERAGE.over * LEVERAGE.share * count))
        return int(pool * (row_bytes + 32) + 3 * 8 * most**2 + 16 * CHUNK_ROWS * most)
    return int(pool * (3 * row_bytes + 16) + 8 * CHUNK_ROWS * max(count, width))


def choose_pivots(
    kernel: Kernel, pool: Operand, count: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Choose pivots by randomly pivoted Cholesky, in blocks with rejection (Epperly et al. 2024).

    Pivots are drawn in proportion to the residual diagonal of the current low-rank approximation. A
    block of proposals is thinned: each is accepted with the fraction of its residual that the ones
    before it have left, so the distribution is that of one pivot at a time. If the residual is 0
    before ``count`` pivots, the rows with the largest residuals follow.

    Parameters
    ----------
    kernel : Kernel
        A positive semidefinite kernel.
    pool : Operand of n rows
    count : int
        At most n.
    rng : Generator

    Returns
    -------
    int64 (count,) : places of distinct rows of the pool
    """
    n = len(pool)
    left = kernel.diag(pool.X).astype(np.float64)
    largest = float(left.max())
    floor = 1e-7 * largest
    lower = np.empty((n, count), np.float32)
    chosen: list[int] = []
    block = _proposals(count)
    while len(chosen) < count and float(left.max()) > floor:
        k = len(chosen)
        proposals = np.unique(rng.choice(n, block, p=left / left.sum()))
        rng.shuffle(proposals)
        side = Operand(pool.X[proposals])
        known = lower[proposals, :k]
        residual = kernel.block(side, side, dtype=np.float64) - known @ known.T
        taken, factor = _thin(residual, left[proposals], rng, count - k, 1e-12 * largest)
        if not len(taken):
            # The float32 residual was too large: correct it, or they would be drawn forever.
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
    """Accept proposals, each with the fraction of its weight that the accepted ones have left.

    Sequential rejection sampling: equivalent to drawing one pivot at a time.

    Parameters
    ----------
    residual : float64 (q, q)
        Residual kernel matrix of the proposals.
    weight : float64 (q,)
        The residuals in proportion to which the proposals were drawn.
    most : int
        Accept at most this many.
    least : float
        Accept only proposals with a residual above this.

    Returns
    -------
    (places of the accepted proposals, Cholesky factor of their residual matrix)
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


# -- leverage --------------------------------------------------------------------------------------
@dataclass(frozen=True)
class LeverageTuning:
    """Tuned values of approximate ridge leverage scores (see `estimate_leverage`).

    Its stages compute scores for falling regularisation lambda. The effective dimension is the sum
    of all scores.

    Parameters
    ----------
    step : float
        Divide the regularisation lambda by this from each stage of the estimate to the next.
    over : float
        Sample this many rows in a stage for each unit of the effective dimension, the sum of all
        leverage scores (q2 of Rudi et al. 2018).
    share : float
        Stop lowering lambda once the effective dimension, the sum of all leverage scores, is at
        least this fraction of the number of landmarks.
    """

    step: float = 2.0
    over: float = 4.0
    share: float = 0.25


LEVERAGE = LeverageTuning()
"""The tuned values of leverage scores that are used."""

MIN_RIDGE: dict[type, float] = {np.float32: 1e-3, np.float64: 1e-8}
"""The least lambda n, as a fraction of the largest k(x, x), that entries of this type resolve."""
MIN_RESIDUAL: dict[type, float] = {np.float32: 1e-6, np.float64: 1e-13}
"""The smallest residual of a row, as a fraction of the largest k(x, x), that entries of this type
resolve: smaller residuals (k(x, x) less what a sample's features explain) are raised to it."""


class Leverage(NamedTuple):
    """Approximate ridge leverage scores of a pool.

    Attributes
    ----------
    scores : float64 (n,)
        Approximately ``(K (K + lambda n I)^-1)_ii`` for row i.
    ridge : float
        ``lambda n``.
    sample : int
        Number of rows of the weighted sample that they were computed from.
    """

    scores: FloatArray
    ridge: float
    sample: int

    @property
    def dimension(self) -> float:
        """The effective dimension at this lambda, approximately ``trace K (K + lambda n I)^-1``."""
        return float(self.scores.sum())


@dataclass(frozen=True)
class _Sample:
    """A weighted sample J of the pool, from which leverage scores are computed.

    ``l(x) = (k(x, x) - k_J(x)' (K_JJ + lambda n A)^-1 k_J(x)) / (lambda n)``, with A the diagonal
    of the probabilities (``chances``) with which the rows J were drawn. ``places``: the rows J of
    the pool; ``dtype``: type of the kernel entries.
    """

    kernel: Kernel
    pool: Operand
    places: NDArray[np.int64]
    chances: FloatArray
    dtype: type

    def scores(self, rows: NDArray[np.int64], ridge: float, diag: FloatArray) -> FloatArray:
        """Compute the leverage scores of these rows of the pool: float64 (rows,).

        ``ridge``: lambda n. ``diag`` (n,): k(x, x) of all rows of the pool.
        """
        left = diag[rows]
        if len(self.places):
            side = self.pool.part(self.places)
            gram = self.kernel.block(side, side, dtype=np.float64)
            if not np.isfinite(gram).all():
                raise InputError(OVERFLOW.format("rows"))
            gram.flat[:: len(gram) + 1] += ridge * self.chances
            lower = linalg.cholesky(gram, lower=True, overwrite_a=True, check_finite=False)
            lower = lower.astype(self.dtype)
            for a, b in row_ranges(len(rows), CHUNK_ROWS):
                entries = self.kernel.block(self.pool.X[rows[a:b]], side, dtype=self.dtype)
                known = linalg.solve_triangular(lower, entries.T, lower=True, check_finite=False)
                left[a:b] -= np.einsum("ij,ij->j", known, known, dtype=np.float64)
        # A residual below the noise is raised to it, so that such a row may still be drawn.
        return np.maximum(left, MIN_RESIDUAL[self.dtype] * float(diag.max())) / ridge


def estimate_leverage(
    kernel: Kernel,
    pool: Operand,
    rng: np.random.Generator,
    *,
    dimension: float = np.inf,
    ridge: float = 0.0,
    over: float = LEVERAGE.over,
) -> Leverage:
    """Approximate ridge leverage scores of a pool, bottom-up (Rudi et al. 2018, BLESS-R).

    lambda starts at the largest ``k(x, x)`` and falls from stage to stage. A stage draws rows of
    the pool uniformly, as many as the bound on scores at its lambda requires. It scores them with
    the weighted sample of the previous stage, and keeps each with a probability proportional to its
    score. The inverse probability is the row's weight in the next stage's sample.

    Parameters
    ----------
    kernel : Kernel
        A positive semidefinite kernel.
    pool : Operand of n rows
    rng : Generator
    dimension : float
        Stop when the effective dimension has reached this.
    ridge : float
        Stop when ``lambda n`` has fallen to this, or to the resolution of entries.
    over : float
        Sampled rows per unit of the effective dimension.

    Returns
    -------
    Leverage
        Scores of all rows of the pool, from the last sample at its lambda.
    """
    n, diag = len(pool), kernel.diag(pool.X).astype(np.float64)
    largest = float(diag.max(initial=0.0))
    if not np.isfinite(largest):
        raise InputError(OVERFLOW.format("rows"))
    if not largest > 0:
        return Leverage(np.zeros(n), ridge, 0)
    dtype = kernel.precision(float(pool.sqnorms.max()), pool.X.shape[1])
    least = max(ridge, MIN_RIDGE[dtype] * largest)
    at, found = n * largest, 0.0
    sample = _Sample(kernel, pool, np.empty(0, np.int64), np.empty(0), dtype)
    while at > least and found < dimension:
        at = max(at / LEVERAGE.step, least)
        # A score is at most k(x, x) / (lambda n), so no row's chance is above this one.
        looked = min(1.0, over * largest / at)
        rows = np.flatnonzero(rng.random(n) < looked)
        scores = sample.scores(rows, at, diag)
        found = float(scores.sum()) / looked
        chances = np.minimum(over * scores, 1.0)
        kept = rng.random(len(rows)) * looked < chances
        sample = _Sample(kernel, pool, rows[kept], chances[kept], dtype)
    return Leverage(sample.scores(np.arange(n), at, diag), at, len(sample.places))


def choose_by_leverage(
    kernel: Kernel, pool: Operand, count: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Draw ``count`` distinct rows of the pool in proportion to their leverage scores.

    Returns their places in the pool, int64 (count,). If fewer rows have a positive score, rows are
    drawn uniformly.
    """
    scores = estimate_leverage(kernel, pool, rng, dimension=LEVERAGE.share * count).scores
    total = scores.sum()
    chances = scores / total if total > 0 else None
    if chances is not None and np.count_nonzero(chances) < count:
        chances = None
    return rng.choice(len(pool), count, replace=False, p=chances)


# -- clusters --------------------------------------------------------------------------------------
def choose_medoids(
    kernel: Kernel, pool: Operand, count: int, rng: np.random.Generator, rounds: int = 5
) -> NDArray[np.int64]:
    """Cluster the pool into ``count`` clusters, and choose the row nearest to each centre.

    k-means on the columns of the pool's rows: k-means++ (in blocks with rejection, as for the
    pivots), then ``rounds`` of Lloyd's algorithm. Zhang, Tsang and Kwok (2008) also take 5 rounds,
    but use the centres themselves, which are not rows of the data, and are dense even if the rows
    are sparse. Returns places of distinct rows of the pool, int64 (count,).
    """
    if isinstance(kernel, (Custom, Precomputed)):
        raise InputError(
            "k-means looks at the columns of the rows, and the kernel that was given does not "
            "speak of those; use sampling uniform or rpcholesky"
        )
    rows = _Points(pool.X)
    seeds = _draw_seeds(rows, count, rng)
    centres = Operand(rows.side.X[seeds])
    for _ in range(rounds):
        owner, apart = rows.nearest(centres)
        owner = _fill_empty_clusters(owner, apart, count)
        sizes = np.bincount(owner, minlength=count)
        shape = (count, len(owner))
        member = sparse.csr_array((1.0 / sizes[owner], (owner, np.arange(len(owner)))), shape=shape)
        centres = Operand((member @ rows.side.X).astype(rows.side.X.dtype))
    owner, apart = rows.nearest(centres)
    owner = _fill_empty_clusters(owner, apart, count)
    # The row of each cluster with the smallest distance to its centre.
    order = np.lexsort((apart, owner))
    return order[np.searchsorted(owner[order], np.arange(count))]


class _Points:
    """Rows of a pool as points for k-means; dense rows are centred, which loses fewer digits."""

    def __init__(self, X: Any) -> None:
        """Centre dense rows, and choose the precision of products; InputError if they overflow.

        ``X``: dense or CSR rows of the pool from which landmarks are chosen.
        """
        if isinstance(X, np.ndarray):
            X = X - X.mean(axis=0, dtype=np.float64).astype(X.dtype)
        with np.errstate(over="ignore"):
            self.side = Operand(X)
            if not np.isfinite(self.side.sqnorms.sum()):
                raise InputError(
                    "the rows are so long that their products overflow; scale the data"
                )
        longest = float(self.side.sqnorms.max(initial=0.0))
        self.dtype = Linear().precision(longest, self.side.X.shape[1])

    def __len__(self) -> int:
        return len(self.side)

    def distances(self, centres: Operand) -> Iterator[tuple[slice, NDArray[Any]]]:
        """Yield (range of rows, squared distances (rows, centres)), piece by piece."""
        for a, b in row_ranges(len(self), CHUNK_ROWS):
            products = Linear().block(self.side.X[a:b], centres, dtype=self.dtype)
            apart = self.side.sqnorms[a:b, None] + centres.sqnorms - 2.0 * products
            yield slice(a, b), np.maximum(apart, 0.0)

    def nearest(self, centres: Operand) -> tuple[NDArray[np.int64], FloatArray]:
        """Return each row's nearest centre, int64 (n,), and the squared distance to it.

        ``centres``: an Operand of points.
        """
        owner, least = np.empty(len(self), np.int64), np.empty(len(self))
        for rows, apart in self.distances(centres):
            owner[rows] = np.argmin(apart, axis=1)
            least[rows] = np.min(apart, axis=1)
        return owner, least


def _draw_seeds(rows: _Points, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Choose initial centres by k-means++: places of ``count`` distinct rows, int64 (count,).

    Rows are drawn in proportion to the squared distance from the nearest chosen row, in blocks with
    rejection, so that the distribution is that of one row at a time.
    """
    n = len(rows)
    chosen = [int(rng.integers(n))]
    _, left = rows.nearest(rows.side.part(np.array(chosen)))
    left[chosen] = 0.0
    block = _proposals(count)
    while len(chosen) < count and left.max() > 0:
        proposals = np.unique(rng.choice(n, block, p=left / left.sum()))
        rng.shuffle(proposals)
        among = rows.side.part(proposals)
        products = Linear().block(among, among, dtype=np.float64)
        apart = among.sqnorms[:, None] + among.sqnorms - 2.0 * products
        now = left[proposals].copy()
        new: list[int] = []
        for i, row in enumerate(proposals):
            if rng.random() * left[row] < now[i] and len(chosen) + len(new) < count:
                new.append(int(row))
                now = np.minimum(now, np.maximum(apart[i], 0.0))
        if not new:
            continue
        _, close = rows.nearest(rows.side.part(np.array(new)))
        left = np.minimum(left, close)
        left[new] = 0.0
        chosen.extend(new)
    if len(chosen) < count:
        rest = np.setdiff1d(np.arange(n), chosen)
        chosen.extend(rng.choice(rest, count - len(chosen), replace=False).tolist())
    return np.array(chosen, dtype=np.int64)


def _fill_empty_clusters(
    owner: NDArray[np.int64], apart: FloatArray, count: int
) -> NDArray[np.int64]:
    """Move into each empty cluster a row that is far from the centre of its own cluster.

    ``owner`` (n,): each row's cluster, below ``count``. ``apart`` (n,): the squared distance to its
    centre. Returns the new owners. So each of the ``count`` clusters has a row.
    """
    sizes = np.bincount(owner, minlength=count)
    if sizes.all():
        return owner
    owner = owner.copy()
    far = iter(np.argsort(-apart, kind="stable"))
    for cluster in np.flatnonzero(sizes == 0):
        row = next(i for i in far if sizes[owner[i]] > 1)
        sizes[owner[row]] -= 1
        owner[row], sizes[cluster] = cluster, 1
    return owner


# -- the ways to choose ----------------------------------------------------------------------------
CHOOSERS = {"rpcholesky": choose_pivots, "leverage": choose_by_leverage, "kmeans": choose_medoids}
"""Functions (kernel, pool, count, rng) that return the places of landmarks in a pool, int64
(count,)."""

DEFINITE = {
    "rpcholesky": "randomly pivoted Cholesky steps",
    "leverage": "leverage scores",
}
"""Names of the `CHOOSERS` that require a positive semidefinite kernel, each with its name in error
messages."""


@dataclass(frozen=True)
class RepetitionTuning:
    """How ``sampling="auto"`` decides whether the data are redundant.

    Parameters
    ----------
    rows : int
        Number of sampled rows whose kernel matrix is computed to see whether the data are
        redundant.
    max_directions : float
        Treat the data as redundant if the rank of the sampled rows' kernel matrix is below this
        fraction of the number of rows (measured: .12 on KDD-99, .95 to 1 on a9a, ijcnn1, mnist,
        SUSY's shape).
    min_eigenvalue : float
        The rank counts the eigenvalues that are at least this fraction of the largest one.
    """

    rows: int = 500
    max_directions: float = 0.5
    min_eigenvalue: float = 1e-6


REPETITION = RepetitionTuning()
"""The tuned values of ``sampling="auto"`` that are used."""


def resolve_auto(kernel: Kernel, side: Operand) -> str:
    """Resolve ``sampling="auto"``: "rpcholesky" if the sampled rows are redundant, else "uniform".

    On data that are not redundant no other way had a lower test error than uniform landmarks
    (pipelines.tanji2023). ``side``: rows drawn uniformly.
    """
    if not kernel.psd:
        return "uniform"
    gram = kernel.block(side, side, dtype=np.float64)
    if not np.isfinite(gram).all():
        raise InputError(OVERFLOW.format("rows"))
    values = linalg.eigvalsh(0.5 * (gram + gram.T), check_finite=False)
    different = np.count_nonzero(values > REPETITION.min_eigenvalue * values[-1])
    return "rpcholesky" if different < REPETITION.max_directions * len(values) else "uniform"
