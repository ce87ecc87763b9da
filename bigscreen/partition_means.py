"""Kernel k-means of a sample in memory, and what keeps parts from growing too large."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.dual import FloatArray

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
