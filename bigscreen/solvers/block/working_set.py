"""Choose the rows of the next block: the working set."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bigscreen.numerics.rows import FloatArray
from bigscreen.problems.dual import Dual
from bigscreen.problems.violation import one_sided_gradients


class Violators(NamedTuple):
    """Rows that violate optimality, the furthest first, and their dual gradients v.

    ``ids``: row numbers. ``v``: ``(p - s u) / t``, t the coupling's +-1, or s without it. At the
    optimum v is at most the multiplier if t alpha can rise, and at least if it can fall.
    """

    ids: NDArray[np.int64]
    v: FloatArray

    @classmethod
    def none(cls) -> Violators:
        """Return an empty list."""
        return cls(np.empty(0, np.int64), np.empty(0))

    def without(self, others: NDArray[np.int64]) -> Violators:
        """Return the violators that are not among the row numbers ``others``."""
        keep = ~np.isin(self.ids, others)
        return Violators(self.ids[keep], self.v[keep])

    def at(self, places: NDArray[np.int64]) -> Violators:
        """Select the violators at these places."""
        return Violators(self.ids[places], self.v[places])


class Standing(NamedTuple):
    """The state of a block solve: the dual and alpha of all rows, and the multipliers (groups,)."""

    dual: Dual
    alpha: FloatArray
    mu: FloatArray


def is_free(dual: Dual, alpha: FloatArray) -> NDArray[np.bool_]:
    """Return which rows are free, bool (rows,).

    A free row is strictly between its bounds and, if the loss has a tube, not at 0.
    """
    inside = (alpha > dual.lo) & (alpha < dual.hi)
    return inside if dual.tube is None else inside & (alpha != 0)


def merge_violators(
    ids: NDArray[np.float64],
    values: NDArray[np.float64],
    at: Standing,
) -> Violators:
    """Merge the shards' lists of violators into one, the furthest from its multiplier first.

    Parameters
    ----------
    ids, values : float64 (shards, rows named by a shard)
        Row numbers, -1 behind the last one, and v of these rows. Ties alternate between shards.
    at : Standing
    """
    flat, v = ids.T.ravel(), values.T.ravel()
    there = np.flatnonzero(flat >= 0)
    rows, v = flat[there].astype(np.int64), v[there]
    order = np.argsort(-distance_from_mu(at, rows, v), kind="stable")
    return Violators(rows[order], v[order])


def distance_from_mu(at: Standing, rows: NDArray[np.int64], v: FloatArray) -> FloatArray:
    """Return how far each row's v is from its multiplier, (rows,): how much it violates optimality.

    ``rows``: row numbers; ``v``: their dual gradients. With a tube, 0 for rows that no move
    improves. Whether a bound of the box stops a row is not considered.
    """
    dual, alpha, mu = at
    own = mu[0] if dual.group is None else mu[dual.group[rows]]
    if dual.tube is None:
        return np.abs(v - own)
    up, down = one_sided_gradients(dual[rows], alpha[rows], v)
    return np.maximum(np.maximum(up - own, own - down), 0.0)


def choose_rows(
    at: Standing,
    held: Violators,
    inside: NDArray[np.bool_],
    ups: Violators,
    downs: Violators,
    size: int,
    whole: int,
) -> tuple[NDArray[np.int64], Violators]:
    """Choose the next block: rows of the last one that stay, and violators that join.

    Free rows stay. If they are more than half a block, then all of them and all violators form the
    block if they are at most ``whole`` rows, because otherwise they would only take turns; else the
    half block of them with the largest violations stays.

    Parameters
    ----------
    at : Standing
    held : Violators
        The rows of the last block.
    inside : bool (len held,)
        Which of them are free.
    ups, downs : Violators
        Violators that can move up and down.
    size : int
        Rows of a block.
    whole : int
        Form a block of all free rows and violators if they are at most this many; 0 if not all
        violators are known.

    Returns
    -------
    (places in ``held`` of the rows that stay, ascending; the violators that join)
    """
    stay = np.flatnonzero(inside)
    up, down = (named.without(held.ids[stay]) for named in (ups, downs))
    if len(stay) > size // 2:
        if size < len(stay) + len(up.ids) + len(down.ids) <= whole:
            return stay, _join([up, down])
        far = distance_from_mu(at, held.ids[stay], held.v[stay])
        stay = np.sort(stay[np.argsort(-far, kind="stable")[: size // 2]])
        up, down = (named.without(held.ids[stay]) for named in (ups, downs))
    return stay, _join([*balance_kinds(up, down, size - len(stay), at.dual.group, len(at.mu))])


def balance_kinds(
    up: Violators, down: Violators, room: int, group: NDArray[np.int8] | None, groups: int
) -> tuple[Violators, Violators]:
    """Select up to ``room`` violators, equally many up and down in each group, to pair them.

    ``up``, ``down``: violators that can move up and down. ``group``: each row's group, None: one.
    If one direction or a group has few rows, others get its share. Returns (ups, downs).
    """
    if group is None:
        kinds = [(up, down)]
    else:
        kinds = []
        for g in range(groups):
            own = (each.at(np.flatnonzero(group[each.ids] == g)) for each in (up, down))
            kinds.append((next(own), next(own)))
        kinds.sort(key=lambda pair: len(pair[0].ids) + len(pair[1].ids))
    ups, downs = [], []
    for left, (more, less) in zip(range(len(kinds), 0, -1), kinds, strict=True):
        share = room // left
        most = max(share // 2, share - len(less.ids))
        ups.append(more.at(np.arange(min(most, len(more.ids)))))
        rest = share - len(ups[-1].ids)
        downs.append(less.at(np.arange(min(rest, len(less.ids)))))
        room -= len(ups[-1].ids) + len(downs[-1].ids)
    return _join(ups), _join(downs)


def _join(parts: list[Violators]) -> Violators:
    """Concatenate lists of violators."""
    if len(parts) == 1:
        return parts[0]
    return Violators(*(np.concatenate(each) for each in zip(*parts, strict=True)))


def choose_multipliers(lowest: FloatArray, highest: FloatArray, other: FloatArray) -> FloatArray:
    """Choose multipliers (groups,) between ``lowest`` and ``highest``, the extremes of v.

    The midpoint; if only one extreme is finite, that one; if none is, ``other``.
    """
    low, high = np.isfinite(lowest), np.isfinite(highest)
    with np.errstate(invalid="ignore"):
        middle = 0.5 * (lowest + highest)
    return np.select([low & high, low, high], [middle, lowest, highest], other)
