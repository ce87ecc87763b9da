"""Rows near their kink: as a shard hands them to the coordinator, and what they curve."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bigscreen import exact
from bigscreen.design import tiles
from bigscreen.dual import FREE, Dual, FloatArray
from bigscreen.rows import as_rows, njit, row_dot
from bigscreen.solvers.newton_loss import off_kink, sides, tube_of, zone_widths

if TYPE_CHECKING:
    from bigscreen.solvers.newton_shard import NewtonProgram
    from bigscreen.solvers.newton_state import State

HEAD = 4
"""Numbers that stand before a row's feature: G, lo, hi, tube."""

TILE = 2048
"""Rows whose columns are held at once."""


class Rows(NamedTuple):
    """Rows in the coordinator's hands: a change of x by d changes G by ``-feature . d``.

    ``feature`` float32 (rows, size) is ``s [phi, border]``; ``G`` float64 (rows,) at the w that the
    shards stand at.
    """

    feature: NDArray[np.float32]
    G: FloatArray
    lo: FloatArray
    hi: FloatArray
    tube: FloatArray

    def and_more(self, rows: Rows) -> Rows:
        """These rows, and others after them."""
        pairs: Any = zip(self, rows, strict=True)
        return Rows(*(np.concatenate(pair) for pair in pairs))


def nearby(program: NewtonProgram, state: State, message: dict[str, Any]) -> FloatArray:
    """Answer one question about rows near their kink: how many, which are new, their features."""
    return _ASKED[message["ask"]](program, state, message)


def _within(program: NewtonProgram, state: State, message: dict[str, Any]) -> FloatArray:
    """How many rows are within each of some distances from their kink, at step t of a trial."""
    scores, t = state.scores, message["t"]
    if t is not None:
        scores = scores.copy()
        scores[state.need] = state.trial @ np.array([1 - t, t])
    distance = _distance(state, scores)[~state.fixed]
    return np.array([np.count_nonzero(distance <= reach) for reach in message["reaches"]], float)


def _pick(program: NewtonProgram, state: State, message: dict[str, Any]) -> FloatArray:
    """Pick all rows within reach, or, after a trial, those that its far end finds elsewhere.

    Returns [rows picked].
    """
    if "reach" in message:
        near = (_distance(state, state.scores) <= message["reach"]) | (state.side == FREE)
        state.picked = np.flatnonzero(near & ~state.fixed)
        state.held = np.zeros(len(state.dual), np.bool_)
    else:
        part = state.visited
        z = part.lin - part.sign * state.trial[:, 1]
        moved = sides(part, z, message["h"]) != state.side[state.need]
        state.picked = state.need[moved & ~state.held[state.need]]
    state.held[state.picked] = True
    return np.array([len(state.picked)], float)


def _gather(program: NewtonProgram, state: State, message: dict[str, Any]) -> FloatArray:
    """The picked rows, filled up to ``most`` of them: what ``unpack`` reads."""
    design, frame, picked = program.design, program.frame, state.picked
    coef, extras = message["coef"], message["extras"]
    size = design.rank + frame.extras
    out = np.zeros((message["most"], HEAD + -(-size // 2)))
    for a, b in tiles(len(picked), TILE):
        ids = picked[a:b]
        dual = state.dual[ids]
        columns = design.columns(program.rows(state, ids))
        border, scores = frame.border(dual), np.empty(b - a)
        _scores(as_rows(columns), coef, scores)
        head = (dual.lin - dual.sign * (scores + border @ extras), dual.lo, dual.hi, tube_of(dual))
        out[a:b, :HEAD] = np.stack(head, axis=1)
        # float32 numbers in float64's bytes: answers are of one type.
        feature = out[a:b, HEAD:].view(np.float32)
        rank = design.rank
        feature[:, :rank] = design.features_of(columns)
        feature[:, rank:size] = border
        feature[:, :size] *= dual.sign[:, None].astype(np.float32)
    return out.ravel()


_ASKED = {"within": _within, "pick": _pick, "gather": _gather}


def add_near(
    program: NewtonProgram, state: State, message: dict[str, Any], totals: exact.Totals
) -> None:
    """Add to the zone's moment the rows near it, curved as if the zone were ``wide``."""
    z, wide = state.dual.lin - state.dual.sign * state.scores, message["wide"]
    inside = off_kink(state.dual, z) <= wide
    near = np.flatnonzero(inside & (state.side != FREE) & ~state.fixed)
    # They only steady the step: a few are enough.
    stride = max(1, len(near) // program.most_near)
    near = near[::stride]
    part = state.dual[near]
    weight = np.sqrt(zone_widths(part, z[near], wide)[0] * stride / (2 * wide))
    for a, b in tiles(len(near), TILE):
        columns = program.design.columns(program.rows(state, near[a:b]))
        border = program.frame.border(part[a:b])
        program.add_moment(totals, message, columns, border, weight[a:b])


def unpack(stack: FloatArray, counts: NDArray[np.int64], size: int) -> Rows:
    """The rows that ``_gather`` packed, in the order of the shards."""
    table = stack.reshape(len(counts), -1, HEAD + -(-size // 2))
    parts = [shard[:count] for shard, count in zip(table, counts, strict=True)]
    feature = np.concatenate([part[:, HEAD:].view(np.float32)[:, :size] for part in parts])
    head = np.concatenate([part[:, :HEAD] for part in parts]).T
    return Rows(feature, *np.ascontiguousarray(head))


def dual_of(rows: Rows) -> Dual:
    """The box and the tube of the rows; G takes the place of their scores."""
    one = np.broadcast_to(np.float64(1.0), len(rows.G))
    tube = rows.tube if rows.tube.any() else None
    return Dual(one, 0.0 * one, rows.lo, rows.hi, tube=tube)


def _distance(state: State, scores: FloatArray) -> FloatArray:
    """How far every row's G is from a kink."""
    return off_kink(state.dual, state.dual.lin - state.dual.sign * scores)


@njit(cache=True, nogil=True)
def _scores(columns, coef, out):  # type: ignore[no-untyped-def]
    for i in range(len(out)):
        out[i] = row_dot(columns, i, coef)
