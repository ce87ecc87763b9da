"""Divide the rows into parts by kernel k-means: rows of a part are close in feature space.

Kernel k-means clusters a random sample in memory; then every row goes to the part with the nearest
centre, shard by shard (Hsieh, Si and Dhillon 2014). A centre is the mean of its sample rows in the
kernel's feature space, so the distance of a row to it needs kernel entries with the sample alone.

No part may have more rows than fit in memory. Parts that are too large on the sample get a price,
which is added to the distances to them, until none is too large: the parts are then the cells of a
power diagram, which also assigns new rows. Rows that still do not fit (sampling error, equal rows)
move to their next nearest part, at the coordinator. Splitting large parts instead would take more
passes over the rows, and would increase the number of parts.
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
from bigscreen.kernels.standard import Linear, clustering_kernel
from bigscreen.model.gate import Gate
from bigscreen.numerics.rows import FloatArray


@dataclass(frozen=True)
class PartitionTuning:
    """Tuned values of the partition of rows into parts (clusters) by kernel k-means."""

    # Run k-means on a sample of at least this many rows (all rows of smaller data); the other rows
    # then join the part with the nearest centre.
    min_sample_rows: int = 1024
    # Run k-means on a sample with at least this many rows for each part, if ``max_sample_rows``
    # allows it.
    sample_rows_per_part: int = 32
    # Run k-means on a sample of at most this many rows: their kernel matrix takes 256 MB.
    max_sample_rows: int = 8192
    # Store this many nearest parts for each row: if the nearest is full, the row joins the next.
    choices: int = 4
    # Compute the distances of this many rows to all centres at a time, which bounds the memory.
    block_rows: int = 2048
    # Stop k-means after this many iterations, even if rows still change their cluster.
    max_iterations: int = 25
    # An auction raises the prices (added to distances) of parts with too many rows, in at most this
    # many rounds; then surplus rows are moved to other parts one by one.
    max_price_rounds: int = 25


PARTITION = PartitionTuning()


@dataclass(frozen=True)
class Centres:
    """The centres of the parts: the rule that assigns every row, old or new, to a part.

    The squared distance of a row x to part p is ``k(x, x) + offset_p - 2 mean of k(x, z)`` over the
    part's landmarks z. ``offset_p`` is the squared norm of the centre, plus the price of the part.

    Parameters
    ----------
    kernel : Kernel
    landmarks : Operand of m rows
    owner : int32 (m,)
        The part of each landmark, ascending; each part has at least one landmark.
    offset : float64 (parts,)
    dtype : type
        The type of the kernel entries.
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
        """The rule that assigns rows to parts, as a model keeps it (without the kernel)."""
        coef = np.zeros((len(self.owner), len(self)))
        counts = np.bincount(self.owner, minlength=len(self))
        coef[np.arange(len(self.owner)), self.owner] = 1.0 / counts[self.owner]
        return Gate(self.landmarks.X, coef, self.offset, self.landmarks.ids)

    def distances(self, X: Any, ids: NDArray[np.int64] | None = None) -> FloatArray:
        """Return squared distances to all parts without the term k(x, x), float64 (rows, parts).

        ``X``: rows; ``ids``: their numbers, which a precomputed kernel needs.
        """
        block = self.kernel.block(Operand(X, ids), self.landmarks, dtype=self.dtype)
        if len(self.owner) > len(self):
            # Landmarks are sorted by part, so that one pass over the block sums it by part.
            starts = np.searchsorted(self.owner, np.arange(len(self)))
            block = np.add.reduceat(block, starts, axis=1) / np.bincount(self.owner)
        return self.offset - 2.0 * block

    def nearest(self, X: Any, block_rows: int = PARTITION.block_rows) -> NDArray[np.int32]:
        """Return the nearest part of each row of X, int32 (rows,)."""
        found = [
            np.argmin(self.distances(X[a:b]), axis=1) for a, b in row_ranges(X.shape[0], block_rows)
        ]
        return np.concatenate(found).astype(np.int32) if found else np.empty(0, np.int32)

    def only(self, keep: NDArray[np.int64]) -> Centres:
        """Return the centres of the parts ``keep`` (ascending) alone, renumbered from 0."""
        rows = np.flatnonzero(np.isin(self.owner, keep))
        ids = None if self.landmarks.ids is None else self.landmarks.ids[rows]
        owner = np.searchsorted(keep, self.owner[rows]).astype(np.int32)
        side = Operand(self.landmarks.X[rows], ids)
        return Centres(self.kernel, side, owner, self.offset[keep], self.dtype)


@dataclass(frozen=True)
class Partition:
    """The assignment of all rows to parts, and the rule that made it.

    Parameters
    ----------
    assign : int32 (n,)
        The part of each row. Parts are numbered from 0 and none is empty.
    centres : Centres
        The rule for new rows. Old rows have another part than by this rule if theirs was full.
    entries : int
        Number of kernel entries computed; 0 if the rows themselves were clustered.
    """

    assign: NDArray[np.int32]
    centres: Centres
    entries: int

    @property
    def sizes(self) -> NDArray[np.int64]:
        """The number of rows of each part, int64 (parts,)."""
        return np.bincount(self.assign, minlength=len(self.centres))

    def nearest(self, X: Any) -> NDArray[np.int32]:
        """Return the part with the nearest centre for each row of X, int32 (rows,)."""
        return self.centres.nearest(X)


def partition(
    design: Design,
    fleet: Fleet,
    parts: int,
    *,
    largest: int | None = None,
    seed: int = 0,
    pool: NDArray[np.int64] | None = None,
    tuning: PartitionTuning = PARTITION,
) -> Partition:
    """Cluster the rows into parts; the result does not depend on the number of workers.

    Parameters
    ----------
    design : Design
        Its rows are clustered in its kernel's feature space. The rows themselves are clustered if
        there is no kernel, or if the kernel is a function of the distance between rows.
    fleet : Fleet
    parts : int
        The requested number of parts; there are fewer if rows are equal.
    largest : int or None
        A part has at most this many rows; None: no bound.
    seed : int
    pool : int64 array or None
        Ascending row numbers. The sample is drawn from them if they are enough for all parts.
        Support vectors, for instance: similar ones should be in the same part.
    tuning : PartitionTuning

    Raises
    ------
    InputError
        If there are more parts than rows or than the largest sample, or too few for ``largest``.
    """
    n = design.data.n_rows
    largest = n if largest is None else min(largest, n)
    most = min(n, tuning.max_sample_rows)
    if not 1 <= parts <= most:
        raise InputError(f"{parts} parts were asked for and there can be 1 to {most} of {n} rows")
    if parts * largest < n:
        raise InputError(
            f"{parts} parts of at most {largest} rows do not hold {n} rows; "
            f"ask for at least {-(-n // largest)} parts"
        )
    (centres,) = fleet.each(_Clustering(design, parts, largest / n, seed, tuning), [pool])
    choices, losses = [], []
    for choice, loss in fleet.each(_Nearest(design, centres, tuning), range(design.data.n_shards)):
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
    """The function that finds the nearest parts of each row of a shard, nearest first.

    The loss of a row is how much farther its second nearest part is than its nearest.
    """

    design: Design
    centres: Centres
    tuning: PartitionTuning

    def __call__(self, shard: int) -> tuple[NDArray[np.int16], FloatArray]:
        """Return a shard's nearest parts, int16 (rows, choices), and losses, float64 (rows,)."""
        data, centres = self.design.data, self.centres
        start, stop = data.shard(shard)
        choice = np.empty((stop - start, min(self.tuning.choices, len(centres))), np.int16)
        loss = np.zeros(stop - start)
        for a, b in row_ranges(stop - start, data.chunk_rows):
            X = data.X(start + a, start + b)
            ids = np.arange(start + a, start + b)
            for c, d in row_ranges(b - a, self.tuning.block_rows):
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
    """The function that clusters a sample by kernel k-means.

    ``share``: the largest fraction of all rows that a part may have (1: no bound). Clustering runs
    as an item of a fleet, so that BLAS has one thread, as in `_Nearest`.
    """

    design: Design
    parts: int
    share: float
    seed: int
    tuning: PartitionTuning

    def __call__(self, pool: NDArray[np.int64] | None) -> Centres:
        """Cluster a sample of ``pool`` (row ids; None: all rows), and return the centres."""
        data, parts, tuning = self.design.data, self.parts, self.tuning
        rng = np.random.default_rng([self.seed, 0x70617274])
        enough = tuning.sample_rows_per_part * parts
        size = min(data.n_rows, tuning.max_sample_rows, max(tuning.min_sample_rows, enough))
        if pool is None or len(pool) < enough:
            pool = np.arange(data.n_rows)
        ids = np.sort(rng.choice(pool, min(size, len(pool)), replace=False))
        limit = len(ids) if len(pool) < data.n_rows else _sample_limit(self.share, size, parts)
        centres = self._centres(ids, limit, rng)
        if self.share == 1.0:
            return centres
        # Prices need a second sample: the first is biased, as the centres are fitted to it, and
        # a pool says nothing about how many of all rows each part will have.
        ids = np.sort(rng.choice(data.n_rows, size, replace=False))
        limit = _sample_limit(self.share, size, parts)
        distances = centres.distances(data.rows(ids), ids)
        price = auction_prices(distances, limit, tuning.max_price_rounds)
        return replace(centres, offset=centres.offset + price)

    def _centres(self, ids: NDArray[np.int64], limit: int, rng: np.random.Generator) -> Centres:
        """Cluster the sample rows ``ids``, at most ``limit`` to a part, and return the centres."""
        X = self.design.data.rows(ids)
        kernel = clustering_kernel(self.design.kernel)
        dtype = kernel.precision(self.design.data.max_sqnorm, X.shape[1])
        with np.errstate(over="ignore", invalid="ignore"):
            gram = kernel.block(Operand(X, ids), Operand(X, ids), dtype=dtype)
        if not np.isfinite(gram).all():
            raise InputError("the rows are so long that their products overflow; scale the data")
        owner, offset = kernel_k_means(gram, self.parts, limit, rng, self.tuning)
        if isinstance(kernel, Linear):
            # With a linear kernel the mean of rows is a row: no need to keep the sample.
            member = np.zeros((self.parts, len(ids)))
            member[owner, np.arange(len(ids))] = 1.0 / np.bincount(owner)[owner]
            mean = Operand((sparse.csr_array(member) @ X).astype(X.dtype))
            return Centres(kernel, mean, np.arange(self.parts, dtype=np.int32), offset, dtype)
        order = np.argsort(owner, kind="stable")
        side = Operand(X[order], ids[order])
        return Centres(kernel, side, owner[order].astype(np.int32), offset, dtype)


def _sample_limit(share: float, size: int, parts: int) -> int:
    """Return how many of ``size`` sample rows a part may have, at least ``size / parts``.

    A part may have the fraction ``share`` of all rows; a tenth less leaves room for sampling error.
    """
    return max(int(0.9 * share * size), -(-size // parts))


def kernel_k_means(
    gram: NDArray[Any],
    parts: int,
    limit: int,
    rng: np.random.Generator,
    tuning: PartitionTuning = PARTITION,
) -> tuple[NDArray[np.int64], FloatArray]:
    """Cluster rows by kernel k-means, given their Gram matrix.

    Parameters
    ----------
    gram : float32 or float64 (rows, rows)
        The Gram matrix; its diagonal is set to 0 in place.
    parts : int
        Number of parts, at most the number of rows.
    limit : int
        A part has at most this many rows, if prices alone can achieve it.

    Returns
    -------
    owner : int64 (rows,)
        The part of each row; no part is empty.
    offset : float64 (parts,)
        The squared norm of each part's mean.

    Notes
    -----
    The distance of a row to its own part uses the mean of the OTHER rows of that part, and norms of
    means are averages over pairs of different rows: the sample rows are treated as new rows will
    be. With a narrow kernel, a row's k(x, x) in the mean of its own part would otherwise keep it
    there, and small parts would seem far away from all rows.
    """
    size = len(gram)
    diag = np.diag(gram).astype(np.float64)
    seeds = _choose_seeds(gram, parts, rng)
    np.fill_diagonal(gram, 0.0)
    offset = diag[seeds]
    distances = diag[:, None] + offset - 2.0 * gram[:, seeds]
    distances[seeds, np.arange(parts)] = 0.0
    owner = np.full(size, -1)
    for _ in range(tuning.max_iterations):
        before = owner
        price = auction_prices(distances, limit, tuning.max_price_rounds)
        owner = _fill_empty_parts(np.argmin(distances + price, axis=1), distances)
        if np.array_equal(owner, before):
            break
        member = np.zeros((size, parts))
        member[np.arange(size), owner] = 1
        others = np.bincount(owner, minlength=parts) - member
        # The matrix is symmetric, so sum rows: a product with `member` would cost (parts) times as
        # much.
        products = np.stack([gram[owner == p].sum(axis=0) for p in range(parts)], axis=1)
        alone = others == 0
        products = np.where(alone, diag[:, None], products / np.maximum(others, 1))
        offset = np.einsum("ip,ip->p", products, member) / np.bincount(owner)
        distances = diag[:, None] + offset - 2.0 * products
    return owner, offset


def auction_prices(
    distances: FloatArray, limit: int, max_rounds: int = PARTITION.max_price_rounds
) -> FloatArray:
    """Return prices (parts,) to add to distances: no part is then nearest to over ``limit`` rows.

    ``distances``: (rows, parts). An auction of at most ``max_rounds`` rounds: each part with too
    many rows raises its price until its surplus prefers another part. Some parts may stay too
    large: no price separates equal rows.
    """
    parts = distances.shape[1]
    price = np.zeros(parts)
    for _ in range(max_rounds):
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
            # Half-way between the last row that leaves and the first row that stays.
            price[part] += 0.5 * (regret[last - 1] + regret[min(last, len(regret) - 1)])
    return price


def spill(
    choice: NDArray[np.integer[Any]], loss: FloatArray, largest: int, parts: int
) -> NDArray[np.int64]:
    """Assign each row to its nearest part that has room.

    The rows that leave a full part are those with the smallest loss; of equal losses the first.

    Parameters
    ----------
    choice : int (n, k)
        The k nearest parts of each row, nearest first.
    loss : float64 (n,)
        How much farther the second nearest part is than the nearest.

    Returns
    -------
    int64 (n,)
        No part occurs more than ``largest`` times. (``parts * largest >= n``.)
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
            else:  # all choices were full: any part that has room
                wanted = np.repeat(np.arange(parts), room)[: len(leaving)]
            for target in np.unique(wanted):
                assign[leaving[wanted == target][: room[target]]] = target
            counts = np.bincount(assign, minlength=parts)
    return assign


def _choose_seeds(gram: NDArray[Any], parts: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Choose sample rows as the first centres by greedy k-means++, int64 (parts,).

    ``gram``: the rows' Gram matrix. For each centre a few candidates are drawn, with probabilities
    proportional to their squared distance from the centres so far. The candidate that leaves the
    smallest sum of squared distances is chosen.
    """
    diag = np.diag(gram).astype(np.float64)
    trials = 2 + int(np.log(parts))
    apart = np.ones(len(gram))
    seeds = np.empty(parts, np.int64)
    for k in range(parts):
        left = apart.copy()
        left[seeds[:k]] = 0.0
        if not left.any():  # all other rows equal a centre: draw any of them
            left[:] = 1.0
            left[seeds[:k]] = 0.0
        drawn = rng.choice(len(gram), trials, p=left / left.sum())
        new = np.maximum(diag[:, None] + diag[drawn] - 2.0 * gram[:, drawn], 0.0)
        if k:
            new = np.minimum(apart[:, None], new)
        best = int(np.argmin(new.sum(axis=0)))
        seeds[k], apart = drawn[best], new[:, best]
    return seeds


def _fill_empty_parts(owner: NDArray[np.int64], distances: FloatArray) -> NDArray[np.int64]:
    """Give each empty part the row that is farthest from the mean of its present part.

    ``owner`` (rows,): the part of each row; ``distances`` (rows, parts). Returns the new owners.
    """
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
