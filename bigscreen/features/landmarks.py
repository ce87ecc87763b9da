"""Which rows of a pool are landmarks: pivots, rows of high leverage, the middles of clusters.

All choose distinct rows, so that landmarks are rows of the data and have row numbers; sparse ones
stay sparse. The factor of the landmarks' matrix makes whitened features of whatever was chosen: the
weights that leverage sampling needs while it estimates play no part in it (maths.md 5.5).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, sparse

from bigscreen.errors import InputError
from bigscreen.features.design import row_ranges
from bigscreen.kernels.base import Kernel
from bigscreen.kernels.given import Custom, Precomputed
from bigscreen.kernels.operand import Operand
from bigscreen.kernels.standard import Linear
from bigscreen.numerics.rows import FloatArray

POOL_ROWS, POOL_A_LANDMARK = 20_000, 20
"""Rows of the pool, drawn uniformly, that landmarks are chosen from: at least, and for each."""

OVERFLOW = "kernel entries between {} overflow; scale the data, or lower gamma, coef0 or degree"

PIECE = 2048
"""Rows whose entries or distances are held at once."""


def pool_rows(n: int, count: int) -> int:
    """Rows of the pool that so many landmarks of n rows are chosen from."""
    return min(n, max(POOL_A_LANDMARK * count, POOL_ROWS))


def choosing_bytes(sampling: str, n: int, count: int, row_bytes: float) -> int:
    """Memory that it takes to choose: the pool, and what is kept of it or of the landmarks."""
    if sampling == "uniform":
        return 0
    if sampling == "auto":
        sampling = "rpcholesky"
    pool, width = pool_rows(n, count), max(BLOCK, count // 10)
    if sampling == "rpcholesky":
        return int(pool * (row_bytes + 4 * count + 2 * 8 * width))
    if sampling == "leverage":
        most = min(pool, 2 * int(LEVERAGE.over * LEVERAGE.share * count))
        return int(pool * (row_bytes + 32) + 3 * 8 * most**2 + 16 * PIECE * most)
    return int(pool * (3 * row_bytes + 16) + 8 * PIECE * max(count, width))


BLOCK = 16
"""Rows proposed at once, at least."""


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


# -- leverage --------------------------------------------------------------------------------------
@dataclass(frozen=True)
class LeverageTuning:
    """Tuned values of approximate leverage scores.

    Parameters
    ----------
    step : float
        lambda falls by this factor from stage to stage.
    over : float
        Rows of a stage's sample for each unit of the effective dimension (the paper's q2).
    share : float
        lambda is small enough once the effective dimension is this part of the landmarks.
    """

    step: float = 2.0
    over: float = 4.0
    share: float = 0.25


LEVERAGE = LeverageTuning()

FLOOR: dict[type, float] = {np.float32: 1e-3, np.float64: 1e-8}
"""The least lambda n, as a part of the largest k(x, x): entries of this type carry no less."""
NOISE: dict[type, float] = {np.float32: 1e-6, np.float64: 1e-13}
"""What is left of a row that entries of this type cannot tell from nothing, as such a part."""


class Leverage(NamedTuple):
    """Approximate ridge leverage scores of a pool.

    Attributes
    ----------
    scores : float64 (n,)
        Of row i about ``(K (K + lambda n I)^-1)_ii``.
    ridge : float
        ``lambda n``.
    sample : int
        Rows of the weighted sample that they were computed with.
    """

    scores: FloatArray
    ridge: float
    sample: int

    @property
    def dimension(self) -> float:
        """The effective dimension at this lambda, about ``trace K (K + lambda n I)^-1``."""
        return float(self.scores.sum())


@dataclass(frozen=True)
class _Sample:
    """A weighted sample of the pool: scores are what it leaves of a row.

    ``l(x) = (k(x, x) - k_J(x)' (K_JJ + lambda n A)^-1 k_J(x)) / (lambda n)``, A being the chances
    that the rows J had of being taken.
    """

    kernel: Kernel
    pool: Operand
    places: NDArray[np.int64]
    chances: FloatArray
    dtype: type

    def scores(self, rows: NDArray[np.int64], ridge: float, diag: FloatArray) -> FloatArray:
        """Scores of these rows of the pool, a piece at a time."""
        left = diag[rows]
        if len(self.places):
            side = self.pool.part(self.places)
            gram = self.kernel.block(side, side, dtype=np.float64)
            if not np.isfinite(gram).all():
                raise InputError(OVERFLOW.format("rows"))
            gram.flat[:: len(gram) + 1] += ridge * self.chances
            lower = linalg.cholesky(gram, lower=True, overwrite_a=True, check_finite=False)
            lower = lower.astype(self.dtype)
            for a, b in row_ranges(len(rows), PIECE):
                entries = self.kernel.block(self.pool.X[rows[a:b]], side, dtype=self.dtype)
                known = linalg.solve_triangular(lower, entries.T, lower=True, check_finite=False)
                left[a:b] -= np.einsum("ij,ij->j", known, known, dtype=np.float64)
        # Too little left to be seen is not nothing: its row may be drawn, and weighs what it says.
        return np.maximum(left, NOISE[self.dtype] * float(diag.max())) / ridge


def leverage(
    kernel: Kernel,
    pool: Operand,
    rng: np.random.Generator,
    *,
    dimension: float = np.inf,
    ridge: float = 0.0,
    over: float = LEVERAGE.over,
) -> Leverage:
    """Approximate ridge leverage scores, bottom-up (Rudi et al. 2018, BLESS-R).

    lambda begins at the largest ``k(x, x)``, where no row is like another, and falls. A stage draws
    rows of the pool uniformly, as many as can matter at its lambda, scores them by the weighted
    sample of the stage before, and keeps each with a chance in proportion, whose inverse is its
    weight in the next sample.

    Parameters
    ----------
    kernel : Kernel
        A positive semidefinite one.
    pool : Operand of n rows
    rng : Generator
    dimension : float
        Ends where the effective dimension has reached this ...
    ridge : float
        ... or where ``lambda n`` has fallen to this, or to what entries can carry.
    over : float
        Rows of a sample for every one of the effective dimension.

    Returns
    -------
    Leverage
        Of all rows of the pool, by the last sample at its own lambda.
    """
    n, diag = len(pool), kernel.diag(pool.X).astype(np.float64)
    largest = float(diag.max(initial=0.0))
    if not np.isfinite(largest):
        raise InputError(OVERFLOW.format("rows"))
    if not largest > 0:
        return Leverage(np.zeros(n), ridge, 0)
    dtype = kernel.precision(float(pool.sqnorms.max()), pool.X.shape[1])
    least = max(ridge, FLOOR[dtype] * largest)
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


def leveraged(
    kernel: Kernel, pool: Operand, count: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Places of distinct rows, drawn one by one in proportion to their leverage scores."""
    scores = leverage(kernel, pool, rng, dimension=LEVERAGE.share * count).scores
    total = scores.sum()
    chances = scores / total if total > 0 else None
    if chances is not None and np.count_nonzero(chances) < count:
        chances = None
    return rng.choice(len(pool), count, replace=False, p=chances)


# -- clusters --------------------------------------------------------------------------------------
ROUNDS = 5
"""Rounds of Lloyd's algorithm (as in Zhang, Tsang and Kwok 2008)."""


def medoids(
    kernel: Kernel, pool: Operand, count: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Places of the rows nearest to the centres of as many clusters, each in its own cluster.

    k-means on the columns of the pool's rows: k-means++ (in blocks with rejection, as the pivots),
    then rounds of Lloyd's. Zhang, Tsang and Kwok (2008) take the centres themselves; these are no
    rows, and of sparse rows they are dense.
    """
    if isinstance(kernel, (Custom, Precomputed)):
        raise InputError(
            "k-means looks at the columns of the rows, and the kernel that was given does not "
            "speak of those; use sampling uniform or rpcholesky"
        )
    rows = _Points(pool.X)
    seeds = _seeds(rows, count, rng)
    centres = Operand(rows.side.X[seeds])
    for _ in range(ROUNDS):
        owner, apart = rows.nearest(centres)
        owner = _filled(owner, apart, count)
        sizes = np.bincount(owner, minlength=count)
        shape = (count, len(owner))
        member = sparse.csr_array((1.0 / sizes[owner], (owner, np.arange(len(owner)))), shape=shape)
        centres = Operand((member @ rows.side.X).astype(rows.side.X.dtype))
    owner, apart = rows.nearest(centres)
    owner = _filled(owner, apart, count)
    # The first row of every cluster in the order of the distance to its centre.
    order = np.lexsort((apart, owner))
    return order[np.searchsorted(owner[order], np.arange(count))]


class _Points:
    """Rows of a pool as points, dense ones moved to their mean: what is alike is compared best."""

    def __init__(self, X: Any) -> None:
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
        """Squared distances of a piece of the rows after the other to points."""
        for a, b in row_ranges(len(self), PIECE):
            products = Linear().block(self.side.X[a:b], centres, dtype=self.dtype)
            apart = self.side.sqnorms[a:b, None] + centres.sqnorms - 2.0 * products
            yield slice(a, b), np.maximum(apart, 0.0)

    def nearest(self, centres: Operand) -> tuple[NDArray[np.int64], FloatArray]:
        """Every row's nearest point, int64 (n,), and the squared distance to it."""
        owner, least = np.empty(len(self), np.int64), np.empty(len(self))
        for rows, apart in self.distances(centres):
            owner[rows] = np.argmin(apart, axis=1)
            least[rows] = np.min(apart, axis=1)
        return owner, least


def _seeds(rows: _Points, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """k-means++: rows drawn in proportion to the squared distance from the nearest before."""
    n = len(rows)
    chosen = [int(rng.integers(n))]
    _, left = rows.nearest(rows.side.part(np.array(chosen)))
    left[chosen] = 0.0
    block = max(BLOCK, count // 10)
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


def _filled(owner: NDArray[np.int64], apart: FloatArray, count: int) -> NDArray[np.int64]:
    """The same, but every empty cluster has a row that is far from the centre of its own."""
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


# -- the choice of a choice ------------------------------------------------------------------------
CHOOSERS = {"rpcholesky": pivots, "leverage": leveraged, "kmeans": medoids}
"""How places of landmarks in a pool are found: (kernel, pool, count, rng) to int64 (count,)."""

DEFINITE = {
    "rpcholesky": "randomly pivoted Cholesky steps",
    "leverage": "leverage scores",
}
"""Those that a kernel has to be positive semidefinite for, as sentences call them."""


@dataclass(frozen=True)
class RepetitionTuning:
    """How ``sampling="auto"`` tells whether rows repeat each other.

    Parameters
    ----------
    rows : int
        Rows whose kernel matrix is looked at.
    max_directions : float
        Rows repeat each other if they have fewer directions than this part of their number
        (measured: .12 on KDD-99, .95 to 1 on a9a, ijcnn1, mnist, SUSY's shape).
    min_eigenvalue : float
        Eigenvalues below this part of the largest are no directions.
    """

    rows: int = 500
    max_directions: float = 0.5
    min_eigenvalue: float = 1e-6


REPETITION = RepetitionTuning()


def automatic(kernel: Kernel, side: Operand) -> str:
    """What sampling auto is, by some rows drawn uniformly: pivots where these repeat each other.

    Elsewhere nothing was better than uniform for what a machine gets wrong (pipelines.tanji2023).
    """
    if not kernel.psd:
        return "uniform"
    gram = kernel.block(side, side, dtype=np.float64)
    if not np.isfinite(gram).all():
        raise InputError(OVERFLOW.format("rows"))
    values = linalg.eigvalsh(0.5 * (gram + gram.T), check_finite=False)
    different = np.count_nonzero(values > REPETITION.min_eigenvalue * values[-1])
    return "rpcholesky" if different < REPETITION.max_directions * len(values) else "uniform"
