"""A shard's rows during a block solve, and the pass over them that finds violators."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.dual import Dual, FloatArray
from bigscreen.rows import njit
from bigscreen.solvers.block_columns import Columns


@dataclass
class Frozen:
    """Rows that a screening round fixed at a bound, and the round's number."""

    local: NDArray[np.int64]
    side: NDArray[np.int8]
    since: int


@dataclass
class State:
    """A shard's rows; arrays of shape (rows,) of ALL rows, ``alive`` names those still looked at.

    ``scores`` of rows that are not alive are those of the round they were fixed in.
    ``decided`` counts how many screening rounds running have decided about a row.

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
    frozen: list[Frozen] = field(default_factory=list)


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


@njit(cache=True, nogil=True, fastmath={"contract"})
def survey(
    alive,
    sign,
    lin,
    lo,
    hi,
    t,
    coupled,
    alpha,
    scores,
    mu,
    offset,
    relative,
    errors,
    spread,
    v,
    moves,
):  # type: ignore[no-untyped-def]
    """v and the moves (1 up, 2 down) of the rows alive; sums of s alpha u, the gap,
    and what rounding can have moved it by."""
    w_sq, gap, rounding, highest, lowest = 0.0, 0.0, 0.0, -np.inf, np.inf
    for k in range(len(alive)):
        i = alive[k]
        u = scores[i] + offset
        G = lin[i] - sign[i] * u
        w_sq += sign[i] * alpha[i] * u
        r = t[i] if coupled else 1.0
        v[k] = G / r
        rest = G - r * mu if coupled else G
        gap += rest * (hi[i] - alpha[i]) if rest > 0 else rest * (lo[i] - alpha[i])
        # A row certainly at its bound moves P and D alike; any other moves the gap by its room.
        band = relative[i] * abs(scores[i]) + errors[i] * spread
        above, below = hi[i] - alpha[i], alpha[i] - lo[i]
        room = above if rest > band else (below if rest < -band else max(above, below))
        rounding += room * band
        more, less = alpha[i] < hi[i], alpha[i] > lo[i]
        up, down = (more, less) if r > 0 else (less, more)
        moves[k] = up + 2 * down
        if up:
            highest = max(highest, v[k])
        if down:
            lowest = min(lowest, v[k])
    return w_sq, gap, rounding, highest, lowest
