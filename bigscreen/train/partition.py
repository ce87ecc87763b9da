"""Parts of the rows that are close to each other, as their kernel sees it: two-step k-means.

A seeded sample is clustered in memory, then every row goes to the nearest centre, shard by shard
(Hsieh, Si and Dhillon 2014). A centre is the mean of its sample rows in the kernel's feature
space, so a row's distance to it needs kernel entries to the sample alone.

No part may have more rows than fit in memory. Parts that would are made dearer, on the sample,
until none holds more than its share there: cells of a power diagram, found where it costs nothing,
and a rule for new rows as well. What is left over (sampling error, equal rows) is moved by one pass
over ``CHOICES`` numbers a row at the coordinator. Splitting overfull parts instead would need more
passes over the rows, and as many more parts as the worst of them asks for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from bigscreen.errors import InputError
from bigscreen.features.design import Design, row_ranges
from bigscreen.fleet.protocol import Fleet
from bigscreen.kernels.base import Kernel
from bigscreen.kernels.operand import Operand
from bigscreen.kernels.standard import Linear, geometry
from bigscreen.model.gate import Gate
from bigscreen.numerics.rows import FloatArray

SAMPLE = 1024
"""Sample rows at least (all rows of smaller data), and ..."""
SAMPLE_A_PART = 32
"""... so many for every part, but ..."""
SAMPLE_MOST = 8192
"""... no more than this: their kernel matrix takes 256 MB."""
CHOICES = 4
"""Nearest parts of a row that are remembered in case the nearest is full."""
DISTANCE_ROWS = 2048
"""Rows whose distances are held at once."""


@dataclass(frozen=True)
class Centres:
    """Where the parts are: the rule that gives every row, old or new, a part.

    The distance of a row x to part p is ``k(x, x) + offset_p - 2 mean of k(x, z)`` over the
    part's landmarks z, plus what makes a part dearer that would be too large.

    Parameters
    ----------
    kernel : Kernel
    landmarks : Side of m rows
    owner : int32 (m,)
        The part of every landmark, ascending; every part has one at least.
    offset : float64 (parts,)
    dtype : type
        Of the kernel entries.
    """

    kernel: Kernel
    landmarks: Operand
    owner: NDArray[np.int32]
    offset: FloatArray
    dtype: type = np.float32

    def __len__(self) -> int:
        return len(self.offset)

    @property
    def gate(self) -> Gate:
        """The same rule as a model keeps it; it has to be asked with this ``kernel``."""
        coef = np.zeros((len(self.owner), len(self)))
        counts = np.bincount(self.owner, minlength=len(self))
        coef[np.arange(len(self.owner)), self.owner] = 1.0 / counts[self.owner]
        return Gate(self.landmarks.X, coef, self.offset, self.landmarks.ids)

    def distances(self, X: Any, ids: NDArray[np.int64] | None = None) -> FloatArray:
        """Distances less the row's own k(x, x), float64 (rows, parts)."""
        block = self.kernel.block(Operand(X, ids), self.landmarks, dtype=self.dtype)
        if len(self.owner) > len(self):
            # Landmarks are in the order of their parts: an addition an entry, for all parts.
            starts = np.searchsorted(self.owner, np.arange(len(self)))
            block = np.add.reduceat(block, starts, axis=1) / np.bincount(self.owner)
        return self.offset - 2.0 * block

    def nearest(self, X: Any) -> NDArray[np.int32]:
        """The part of every row of X, int32 (rows,)."""
        found = [
            np.argmin(self.distances(X[a:b]), axis=1)
            for a, b in row_ranges(X.shape[0], DISTANCE_ROWS)
        ]
        return np.concatenate(found).astype(np.int32) if found else np.empty(0, np.int32)

    def only(self, keep: NDArray[np.int64]) -> Centres:
        """These parts alone, numbered in this (ascending) order."""
        rows = np.flatnonzero(np.isin(self.owner, keep))
        ids = None if self.landmarks.ids is None else self.landmarks.ids[rows]
        owner = np.searchsorted(keep, self.owner[rows]).astype(np.int32)
        side = Operand(self.landmarks.X[rows], ids)
        return Centres(self.kernel, side, owner, self.offset[keep], self.dtype)


@dataclass(frozen=True)
class Partition:
    """Every row's part.

    Parameters
    ----------
    assign : int32 (n,)
        Parts are numbered from 0 and none is empty.
    centres : Centres
        What new rows are given a part by; of the old ones it differs for those that found their
        part full.
    entries : int
        Kernel entries that it took: none where rows were clustered as they are.
    """

    assign: NDArray[np.int32]
    centres: Centres
    entries: int

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Rows of every part."""
        return np.bincount(self.assign, minlength=len(self.centres))

    def nearest(self, X: Any) -> NDArray[np.int32]:
        """The part of every row of X by its nearest centre, int32 (rows,)."""
        return self.centres.nearest(X)


def partition(
    design: Design,
    fleet: Fleet,
    parts: int,
    *,
    largest: int | None = None,
    seed: int = 0,
    pool: NDArray[np.int64] | None = None,
) -> Partition:
    """Cluster the rows into parts; the same on any number of workers.

    Parameters
    ----------
    design : Design
        Its rows are clustered in its kernel's feature space, or as they are: without a kernel,
        and where the kernel is one of the distance between rows.
    fleet : Fleet
    parts : int
        As many as asked for, or fewer where rows are equal.
    largest : int or None
        Rows of a part at most; None: no bound.
    seed : int
    pool : int64 array or None
        Row numbers, ascending, that the sample is taken from where they are enough for all parts:
        the support rows, say, as it is they that the parts should keep together.

    Raises
    ------
    InputError
        More parts than rows or than can be told apart, or too few for ``largest``.
    """
    n = design.data.n_rows
    largest = n if largest is None else min(largest, n)
    if not 1 <= parts <= min(n, SAMPLE_MOST):
        raise InputError(
            f"{parts} parts were asked for and there can be 1 to {min(n, SAMPLE_MOST)} of {n} rows"
        )
    if parts * largest < n:
        raise InputError(
            f"{parts} parts of at most {largest} rows do not hold {n} rows; "
            f"ask for at least {-(-n // largest)} parts"
        )
    (centres,) = fleet.each(_Clustering(design, parts, largest / n, seed), [pool])
    choices, losses = [], []
    for choice, loss in fleet.each(_Nearest(design, centres), range(design.data.n_shards)):
        choices.append(choice)
        losses.append(loss)
    assign = spill(np.concatenate(choices), np.concatenate(losses), largest, len(centres))
    full = np.bincount(assign, minlength=len(centres)) > 0
    if not full.all():
        assign, centres = (np.cumsum(full) - 1)[assign], centres.only(np.flatnonzero(full))
    m = 0 if isinstance(centres.kernel, Linear) else len(centres.landmarks)
    return Partition(assign.astype(np.int32), centres, m * (m + n))


@dataclass(frozen=True)
class _Nearest:
    """Runs anywhere: the nearest parts of a shard's rows, and how much farther the second is."""

    design: Design
    centres: Centres

    def __call__(self, shard: int) -> tuple[NDArray[np.int16], FloatArray]:
        data, centres = self.design.data, self.centres
        start, stop = data.shard(shard)
        choice = np.empty((stop - start, min(CHOICES, len(centres))), np.int16)
        loss = np.zeros(stop - start)
        for a, b in row_ranges(stop - start, data.chunk_rows):
            X = data.X(start + a, start + b)
            ids = np.arange(start + a, start + b)
            for c, d in row_ranges(b - a, DISTANCE_ROWS):
                distances = centres.distances(X[c:d], ids[c:d])
                rows = slice(a + c, a + d)
                each = np.arange(d - c)
                for rank in range(choice.shape[1]):
                    best = np.argmin(distances, axis=1)
                    choice[rows, rank] = best
                    found = distances[each, best]
                    if rank < 2:
                        loss[rows] = found - loss[rows] if rank else found
                    distances[each, best] = np.inf
        return choice, loss


@dataclass(frozen=True)
class _Clustering:
    """Runs anywhere: kernel k-means on a sample.

    It is an item of a fleet so that BLAS runs on one thread, as the rows' assignment does.
    """

    design: Design
    parts: int
    share: float
    seed: int

    def __call__(self, pool: NDArray[np.int64] | None) -> Centres:
        data, parts = self.design.data, self.parts
        rng = np.random.default_rng([self.seed, 0x70617274])
        size = min(data.n_rows, SAMPLE_MOST, max(SAMPLE, SAMPLE_A_PART * parts))
        if pool is None or len(pool) < SAMPLE_A_PART * parts:
            pool = np.arange(data.n_rows)
        ids = np.sort(rng.choice(pool, min(size, len(pool)), replace=False))
        limit = len(ids) if len(pool) < data.n_rows else _limit(self.share, size, parts)
        centres = self._centres(ids, limit, rng)
        if self.share == 1.0:
            return centres
        # Other rows say how many of all each part will have: those of the sample are biased, and
        # how large a part is is not for the pool to say.
        ids = np.sort(rng.choice(data.n_rows, size, replace=False))
        price = prices(centres.distances(data.rows(ids), ids), _limit(self.share, size, parts))
        return replace(centres, offset=centres.offset + price)

    def _centres(self, ids: NDArray[np.int64], limit: int, rng: np.random.Generator) -> Centres:
        X = self.design.data.rows(ids)
        kernel = geometry(self.design.kernel)
        dtype = kernel.precision(self.design.data.max_sqnorm, X.shape[1])
        with np.errstate(over="ignore", invalid="ignore"):
            gram = kernel.block(Operand(X, ids), Operand(X, ids), dtype=dtype)
        if not np.isfinite(gram).all():
            raise InputError("the rows are so long that their products overflow; scale the data")
        owner, offset = means(gram, self.parts, limit, rng)
        if isinstance(kernel, Linear):
            # Means of rows are rows themselves: no need to keep the sample.
            member = np.zeros((self.parts, len(ids)))
            member[owner, np.arange(len(ids))] = 1.0 / np.bincount(owner)[owner]
            mean = Operand((sparse.csr_array(member) @ X).astype(X.dtype))
            return Centres(kernel, mean, np.arange(self.parts, dtype=np.int32), offset, dtype)
        order = np.argsort(owner, kind="stable")
        side = Operand(X[order], ids[order])
        return Centres(kernel, side, owner[order].astype(np.int32), offset, dtype)


def _limit(share: float, size: int, parts: int) -> int:
    """Rows of a sample that a part may hold: a little less than its share of all rows."""
    return max(int(0.9 * share * size), -(-size // parts))


ROUNDS = 25
"""Iterations of k-means at most."""
AUCTION = 25
"""Rounds of asking prices at most: what is overfull then is left to ``spill``."""


def means(
    gram: NDArray[Any], parts: int, limit: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64], FloatArray]:
    """Cluster the rows of a Gram matrix.

    Parameters
    ----------
    gram : float32 or float64 (rows, rows)
        Its diagonal is set to 0.
    parts : int
        At most as many as rows.
    limit : int
        Rows of a part at most, where prices alone can do it.

    Returns
    -------
    owner : int64 (rows,)
        Every row's part; no part is empty.
    offset : float64 (parts,)
        The squared norms of the parts' means.

    Notes
    -----
    A row's part is chosen for what the OTHER rows say, and norms of means are averages over pairs
    of different rows: both as for rows that are not in the sample. Where a kernel is narrow, a
    row's k(x, x) in the mean of its own part would keep it there for ever, and small parts would
    seem far away from everything.
    """
    size = len(gram)
    diag = np.diag(gram).astype(np.float64)
    seeds = _seeds(gram, parts, rng)
    np.fill_diagonal(gram, 0.0)
    offset = diag[seeds]
    distances = diag[:, None] + offset - 2.0 * gram[:, seeds]
    distances[seeds, np.arange(parts)] = 0.0
    owner = np.full(size, -1)
    for _ in range(ROUNDS):
        before = owner
        owner = _filled(np.argmin(distances + prices(distances, limit), axis=1), distances)
        if np.array_equal(owner, before):
            break
        member = np.zeros((size, parts))
        member[np.arange(size), owner] = 1
        others = np.bincount(owner, minlength=parts) - member
        # Sums over rows, the matrix being symmetric: a product with `member` works for every part.
        products = np.stack([gram[owner == p].sum(axis=0) for p in range(parts)], axis=1)
        alone = others == 0
        products = np.where(alone, diag[:, None], products / np.maximum(others, 1))
        offset = np.einsum("ip,ip->p", products, member) / np.bincount(owner)
        distances = diag[:, None] + offset - 2.0 * products
    return owner, offset


def prices(distances: FloatArray, limit: int) -> FloatArray:
    """What to add to the distances to every part so that no part is nearest to more than ``limit``.

    An auction: every overfull part asks so much more that just its excess turns to another part.
    It may end with parts still overfull; equal rows no price can tell apart.
    """
    parts = distances.shape[1]
    price = np.zeros(parts)
    for _ in range(AUCTION):
        cost = distances + price
        owner = np.argmin(cost, axis=1)
        counts = np.bincount(owner, minlength=parts)
        if counts.max() <= limit or parts == 1:
            break
        for part in np.flatnonzero(counts > limit):
            rows = cost[owner == part]
            own = rows[:, part].copy()
            rows[:, part] = np.inf
            regret = np.sort(rows.min(axis=1) - own)
            last = counts[part] - limit
            # Half-way between the last that leaves and the first that stays.
            price[part] += 0.5 * (regret[last - 1] + regret[min(last, len(regret) - 1)])
    return price


def spill(
    choice: NDArray[np.integer[Any]], loss: NDArray[np.float32], largest: int, parts: int
) -> NDArray[np.int64]:
    """Every row's first choice, or the next one that has room where a part is overfull.

    Of an overfull part those rows leave that lose least by it, of equal ones the first.

    Parameters
    ----------
    choice : int (n, k)
        The k best parts of every row, best first.
    loss : float32 (n,)
        How much farther the second is.

    Returns
    -------
    int64 (n,), no part more than ``largest`` times; ``parts * largest >= n``.
    """
    assign = choice[:, 0].astype(np.int64)
    counts = np.bincount(assign, minlength=parts)
    for rank in range(1, choice.shape[1] + 1):
        for part in np.flatnonzero(counts > largest):
            members = np.flatnonzero(assign == part)
            members = members[np.argsort(loss[members], kind="stable")]
            leaving = members[: counts[part] - largest]
            room = np.maximum(largest - counts, 0)
            if rank < choice.shape[1]:
                wanted = choice[leaving, rank].astype(np.int64)
            else:  # every choice was full: whatever part has room
                wanted = np.repeat(np.arange(parts), room)[: len(leaving)]
            for target in np.unique(wanted):
                assign[leaving[wanted == target][: room[target]]] = target
            counts = np.bincount(assign, minlength=parts)
    return assign


def _seeds(gram: NDArray[Any], parts: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """First centres: greedy k-means++.

    Rows are drawn in proportion to their distance from those taken, a few at a time, and the one
    is taken that leaves the least to all.
    """
    diag = np.diag(gram).astype(np.float64)
    trials = 2 + int(np.log(parts))
    apart = np.ones(len(gram))
    seeds = np.empty(parts, np.int64)
    for k in range(parts):
        left = apart.copy()
        left[seeds[:k]] = 0.0
        if not left.any():  # equal rows: any that is not yet taken
            left[:] = 1.0
            left[seeds[:k]] = 0.0
        drawn = rng.choice(len(gram), trials, p=left / left.sum())
        new = np.maximum(diag[:, None] + diag[drawn] - 2.0 * gram[:, drawn], 0.0)
        if k:
            new = np.minimum(apart[:, None], new)
        best = int(np.argmin(new.sum(axis=0)))
        seeds[k], apart = drawn[best], new[:, best]
    return seeds


def _filled(owner: NDArray[np.int64], distances: FloatArray) -> NDArray[np.int64]:
    """The same, but every empty part has the row that is farthest from the mean of its own."""
    counts = np.bincount(owner, minlength=distances.shape[1])
    if counts.all():
        return owner
    owner = owner.copy()
    far = distances[np.arange(len(owner)), owner]
    order = iter(np.argsort(-far, kind="stable"))
    for part in np.flatnonzero(counts == 0):
        row = next(i for i in order if counts[owner[i]] > 1)
        counts[owner[row]] -= 1
        owner[row], counts[part] = part, 1
    return owner
