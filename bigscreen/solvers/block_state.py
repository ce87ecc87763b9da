"""A shard's rows during a block solve, and the pass over them that finds violators."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.dual import Dual, FloatArray
from bigscreen.rows import njit
from bigscreen.solvers.block_columns import Columns


@dataclass
class Frozen:
    """Rows that a screening round fixed at a bound, or at 0, and the round's number."""

    local: NDArray[np.int64]
    side: NDArray[np.int8]
    since: int


@dataclass
class State:
    """A shard's rows; arrays of shape (rows,) of ALL rows, ``alive`` names those still looked at.

    ``scores`` of rows that are not alive are those of the round they were fixed in.
    ``decided`` counts how many screening rounds running have decided about a row. ``columns`` are
    of the rows ``held``, of which those alive have the numbers ``places``: copying columns costs
    more than rows that are not looked at any more, until these are half of them.

    A score may be off by ``relative |score| + errors spread``: what its entries' errors have in
    common moves it as a whole, the others add up at random. ``spread`` is the root of the sum of
    squared coefficients, those of equal rows, whose entries err alike, taken together.
    """

    start: int
    dual: Dual
    alpha: FloatArray
    scores: FloatArray
    alive: NDArray[np.int64]
    decided: NDArray[np.int32]
    relative: FloatArray
    errors: FloatArray
    norms: FloatArray
    X: Any
    columns: Columns
    held: NDArray[np.int64]
    places: NDArray[np.int64]
    frozen: list[Frozen] = field(default_factory=list)


def solid(dual: Dual) -> Dual:
    """The same with arrays that lie in memory: compiled code then has one kind to be made for."""
    arrays = {
        f.name: np.array(value)
        for f in fields(dual)
        if isinstance(value := getattr(dual, f.name), np.ndarray)
    }
    return Dual(**{**vars(dual), **arrays})


def moving(dual: Dual) -> NDArray[np.int64]:
    """The rows that a solver has to look at: those that can move, or cannot but are not 0."""
    return np.flatnonzero((dual.hi > dual.lo) | (dual.lo != 0))


def mine(state: State, ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """The places here of those of these rows that live here, in their order."""
    here = ids - state.start
    return here[(here >= 0) & (here < len(state.alpha))]


def furthest(distance: FloatArray, count: int) -> NDArray[np.int64]:
    """At most ``count`` places of the largest distances above 0, the largest first."""
    there = np.flatnonzero(distance > 0)
    if len(there) > count:
        there = there[np.argpartition(-distance[there], count)[:count]]
    return there[np.argsort(-distance[there], kind="stable")]


def padded(values: NDArray[Any], length: int) -> FloatArray:
    out = np.full(length, -1.0)
    out[: len(values)] = values
    return out


def look(
    state: State,
    rows: NDArray[np.int64],
    mu: FloatArray,
    offset: float,
    spread: float,
) -> tuple[tuple[float, float, float], FloatArray, FloatArray]:
    """What there is to say of some rows at this multiplier.

    Returns
    -------
    sums : their parts of ``||w||^2``, of the Frank-Wolfe gap, and of what rounding can have moved
        it by
    ends : float64 (2, groups), the extremes of v over rows that can move up and down
    about : float64 (3, rows): v, and how far it is beyond mu where a row can move up, and down
    """
    dual = state.dual
    about, ends = np.empty((3, len(rows))), np.empty((2, len(mu)))
    t = dual.sign if dual.coupling is None else dual.coupling
    box = dual.sign, dual.lin, dual.lo, dual.hi, t, dual.coupling is not None
    errors = state.relative, state.errors, spread
    terms = dual.group, dual.tube, state.alpha, state.scores, mu, offset
    sums = _survey(rows, *box, *terms, *errors, about[0], about[1], about[2], ends[0], ends[1])
    return sums, ends, about


@njit(cache=True, nogil=True, fastmath={"contract"})
def _survey(
    rows,
    sign,
    lin,
    lo,
    hi,
    t,
    coupled,
    group,
    tube,
    alpha,
    scores,
    mu,
    offset,
    relative,
    errors,
    spread,
    v,
    over,
    under,
    highest,
    lowest,
):  # type: ignore[no-untyped-def]
    w_sq, gap, rounding = 0.0, 0.0, 0.0
    highest[:], lowest[:] = -np.inf, np.inf
    for k in range(len(rows)):
        i = rows[k]
        u = scores[i] + offset
        G = lin[i] - sign[i] * u
        w_sq += sign[i] * alpha[i] * u
        r = t[i] if coupled else 1.0
        g = 0 if group is None else group[i]
        v[k] = G / r
        rest = G - r * mu[g] if coupled else G
        band = relative[i] * abs(scores[i]) + errors[i] * spread
        above, below = hi[i] - alpha[i], alpha[i] - lo[i]
        more, less = alpha[i] < hi[i], alpha[i] > lo[i]
        can_up, can_down = (more, less) if r > 0 else (less, more)
        # A row certainly at its bound moves P and D alike; any other moves the gap by its room.
        if tube is None:
            gap += rest * above if rest > 0 else -rest * below
            room = above if rest > band else (below if rest < -band else max(above, below))
            up = down = v[k]
        else:
            e, a = tube[i], max(alpha[i], 0.0)
            one, other = rest - e, -rest - e
            gap += one * (hi[i] - a) if one > 0 else -one * a
            a = max(-alpha[i], 0.0)
            gap += other * (-lo[i] - a) if other > 0 else -other * a
            room = max(above, below)
            if one > band or other > band:
                room = above if one > band else below
            elif max(one, other) < -band:
                room = abs(alpha[i])
            x = r * alpha[i]
            up = v[k] - e if x >= 0 else v[k] + e
            down = v[k] - e if x > 0 else v[k] + e
        rounding += room * band
        over[k] = up - mu[g] if can_up else 0.0
        under[k] = mu[g] - down if can_down else 0.0
        if can_up:
            highest[g] = max(highest[g], up)
        if can_down:
            lowest[g] = min(lowest[g], down)
    return w_sq, gap, rounding
