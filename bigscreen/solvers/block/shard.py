"""A shard of the block solver: it stores scores and alpha of its rows, and finds violators.

A round sends the rows whose alpha has changed, and the changes. Each shard adds their kernel
columns to its scores, and reports its rows that violate optimality most. Kernel columns never leave
the shard. Let ``v_i = G_i / t_i`` (t is s without a coupling). A row can move up if ``t_i alpha_i``
has room above, and down if it has room below. At the optimum each row that can move up has
``v <= mu``, and each row that can move down ``v >= mu``, with mu the multiplier of the row's group
(0 without a coupling). With a tube of half-width e, v is e less in directions away from 0 and e
more in directions towards 0.

A state depends on the messages only, so a lost shard is rebuilt by replaying them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bigscreen.features.design import Design
from bigscreen.kernels.backend import Columns
from bigscreen.kernels.entry_errors import EntryErrors
from bigscreen.kernels.operand import Operand
from bigscreen.numerics.reproducible import Totals
from bigscreen.numerics.rows import FloatArray, njit
from bigscreen.problems.dual import AT_HI, AT_LO, FREE, Dual
from bigscreen.problems.recipes import Problem
from bigscreen.screening.regions import Ball

Handler = Callable[["BlockShard", dict[str, Any]], FloatArray]
"""A method (state, message) of a shard's program that answers messages of one kind."""

NOTES = ("w_sq", "gap", "rounding", "alive", "entries")
"""Names of a survey's first numbers: a shard's parts of ||w||^2 and of the Frank-Wolfe gap at the
message's mu, a bound on the gap's rounding, its rows not screened, kernel entries computed so far.
Then follow, per group, the largest v of rows that can move up, and the smallest v of rows that can
move down. Screened rows are excluded: they have no gap."""


@dataclass(frozen=True)
class BlockProgram:
    """The program that each shard of the block solver runs (see ``fleet.Program``).

    Parameters
    ----------
    design : Design
        A design of the exact kernel machine.
    problem : Problem
    capacity : int
        Kernel columns that each shard can cache.
    named : int
        Violators that a shard reports in each direction.
    fine : bool
        Compute kernel entries in float64.
    """

    design: Design
    problem: Problem
    capacity: int
    named: int
    fine: bool = False

    def open(self, shard: int) -> BlockShard:
        """Return the state at alpha = 0, even if 0 is outside the box.

        ``shard``: its number. The state has the shard's rows, their dual, scores 0 and an empty
        cache.
        """
        data = self.design.data
        kernel = self.design.kernel
        assert kernel is not None
        start, stop = data.shard(shard)
        dual = copy_dual(self.problem.dual(data.y(start, stop), data.weights(start, stop)))
        X = data.X(start, stop)
        ids = np.arange(start, stop, dtype=np.int64)
        alive = find_movable(dual)
        side = Operand(X, ids)
        constant = self.problem.intercept == "constant"
        return BlockShard(
            start=start,
            dual=dual,
            alpha=np.zeros(stop - start),
            scores=np.zeros(stop - start),
            alive=alive,
            decided=np.zeros(stop - start, np.int32),
            errors=EntryErrors.of(
                self.design.backend.kernel(kernel), side, constant, data.max_sqnorm
            ),
            X=X,
            columns=self._columns(side if len(alive) == len(ids) else side.part(alive)),
            held=alive,
            places=np.arange(len(alive)),
        )

    def _columns(self, side: Operand, capacity: int | None = None) -> Columns:
        """Make an empty cache of kernel columns with entries for the rows of ``side``.

        ``capacity``: how many columns; None: the program's.
        """
        design = self.design
        assert design.kernel is not None
        room = self.capacity if capacity is None else capacity
        dtype = np.float64 if self.fine else np.float32
        return design.backend.columns(design.kernel, side, room, dtype)

    def step(self, state: BlockShard, message: dict[str, Any], totals: Totals) -> FloatArray:
        """Answer one message, by the method ``"_" + message["kind"]``; ``totals`` is not used."""
        answer: Handler = getattr(self, "_" + message["kind"])
        return answer(state, message)

    # -- moves and violators -------------------------------------------------------------------
    def _move(self, state: BlockShard, message: dict[str, Any]) -> FloatArray:
        """Add the moved rows' columns to the scores, set their alpha, and survey the rows.

        Returns the numbers that NOTES names, then numbers and v of the rows furthest above mu that
        can move up, then of the rows furthest below mu that can move down (row number -1: no more),
        then v of this shard's rows of ``watch``. (v = G / t: the dual gradient of a row, divided by
        its coupling factor; mu: the multiplier of its group.)

        Keys of ``message``: ``ids``, ``alpha`` and ``change`` (the moved rows' numbers, new alpha
        and change of ``s alpha``); ``rows`` (their features); ``slots`` (where the cache keeps
        their columns); ``exact`` (whether scores from float64 entries are updated by float64
        columns, so that they stay exact); and the keys of ``_survey``.
        """
        if len(message["ids"]):
            near = state.near if message["exact"] else state.near[:0]
            scores = state.scores[near]
            self._add(state, message)
            state.scores[near] = scores
            state.near = near
            self._add_exact(state, near, message)
            here = message["ids"] - state.start
            own = (here >= 0) & (here < len(state.alpha))
            state.alpha[here[own]] = message["alpha"][own]
        return self._survey(state, message)

    def _add(self, state: BlockShard, message: dict[str, Any]) -> None:
        """Add ``sum_j change_j k(x_j, .)`` to the scores of the rows not screened.

        Keys of ``message``: ``rows``, the x_j; ``change``; and ``slots``, where the cache keeps
        their columns.
        """
        scores = state.scores[state.held]
        state.columns.accumulate(message["rows"], message["slots"], message["change"], scores)
        state.scores[state.alive] = scores[state.places]

    def _add_exact(
        self, state: BlockShard, rows: NDArray[np.int64], message: dict[str, Any]
    ) -> None:
        """Add ``sum_j change_j k(x_j, .)`` to the scores of ``rows``, from float64 entries.

        ``rows``: places in this shard. Keys of ``message``: ``rows``, the x_j, and ``change``.
        """
        if not len(rows):
            return
        side = Operand(state.X[rows], state.start + rows)
        columns = replace(self, fine=True)._columns(side, 0)
        scores, change = state.scores[rows], message["change"]
        columns.accumulate(message["rows"], np.full(len(change), -1), change, scores)
        state.scores[rows] = scores
        state.columns.entries += columns.entries

    def _survey(self, state: BlockShard, message: dict[str, Any]) -> FloatArray:
        """Survey the rows not screened: sums, extremes of v, and the worst violators.

        Returns the array that `_move` describes. Keys of ``message``: ``mu`` (groups,), the
        multipliers; ``offset``, which is added to all scores; ``spread``, which scales the bounds
        of scores' errors; ``watch``, row numbers whose v is wanted; and ``width``, the length to
        which the answers for them are padded with -1.
        """
        alive = state.alive
        sums, ends, (v, over, under) = state.survey_rows(alive, message)
        named = [
            pad(x, self.named)
            for k in (furthest_places(over, self.named), furthest_places(under, self.named))
            for x in (state.start + alive[k], v[k])
        ]
        places = np.searchsorted(alive, local_places(state, message["watch"]))
        watched = pad(v[places], message["width"])
        notes = [*sums, len(alive), state.columns.entries]
        return np.concatenate([notes, ends.ravel(), *named, watched])

    def _read(self, state: BlockShard, message: dict[str, Any]) -> FloatArray:
        """Return the scores of this shard's rows under a subsample's solution, padded with -1.

        The message has the subsample's rows, their coefficients (``change``), and the offset, which
        alone is returned for screened rows and rows that cannot move.
        """
        scores = np.zeros(len(state.held))
        change = message["change"]
        state.columns.accumulate(message["rows"], np.full(len(change), -1), change, scores)
        every = np.zeros(len(state.alpha))
        every[state.alive] = scores[state.places]
        return pad(every + message["offset"], self.design.data.shard_rows)

    def _doubt(self, state: BlockShard, message: dict[str, Any]) -> FloatArray:
        """Return [a bound on the rounding error of this shard's part of the gap].

        Keys of ``message``: the multipliers ``mu``; ``offset``, which is added to all scores; and
        ``spread``, which scales the bounds on scores' errors.
        """
        sums, _, _ = state.survey_rows(state.alive, {**message, "mu": np.atleast_1d(message["mu"])})
        return np.array([sums[2]])

    def _mend(self, state: BlockShard, message: dict[str, Any]) -> FloatArray:
        """Recompute scores from float64 entries, of rows that rounding could move across a bound.

        Also of rows within ``margin`` of their hinge point, and of the rows in ``watch``. Rows that
        have scores from float64 entries are not recomputed. Messages bring the support piece by
        piece (``rows`` and ``change``). The first one (``first``) selects the rows; its answer is
        the numbers of all rows that then have scores from float64 entries, padded with -1; later
        answers are -1 only. ``mu``, ``offset`` and ``spread``: see `_survey`.
        """
        if message["first"]:
            alive = state.alive
            dual, u = state.dual[alive], state.scores[alive]
            slack = state.errors.of_scores(u, message["spread"], alive)
            u, mu = u + message["offset"], message["mu"]
            slack = np.maximum(slack, message["margin"])
            decided = dual.decide(u - slack, u + slack, (mu, mu))
            rough = alive[dual.decisions_in_place(decided, state.alpha[alive]) == FREE]
            wanted = np.union1d(rough, local_places(state, message["watch"]))
            state.mending = np.setdiff1d(wanted, state.near)
            state.near = np.union1d(state.near, wanted)
            state.scores[state.mending] = 0.0
        self._add_exact(state, state.mending, message)
        near = state.start + state.near if message["first"] else state.near[:0]
        return pad(near, self.design.data.shard_rows)

    def _rows(self, state: BlockShard, message: dict[str, Any]) -> FloatArray:
        """Return the features of this shard's rows among ``ids``, as float64 numbers.

        If ``message["words"]`` is 0, returns [the number of words needed]; else that many words:
        the rows' features one after the other (dense), or counts, columns and values (sparse).
        ``state``: the shard's rows. ``message['ids']``: row numbers in the data.
        """
        X = state.X[local_places(state, message["ids"])]
        dense = isinstance(X, np.ndarray)
        parts = [X.ravel()] if dense else [np.diff(X.indptr), X.indices, X.data]
        words = np.concatenate(parts, dtype=np.float64)
        return pad(words, message["words"]) if message["words"] else np.array([len(words)], float)

    # -- screening -----------------------------------------------------------------------------
    def _intervals(
        self, state: BlockShard, message: dict[str, Any]
    ) -> tuple[FloatArray, FloatArray]:
        """Return lower and upper bounds of the optimal scores of the rows not screened.

        Keys of ``message``: ``region`` (a ball around w that contains the optimum); ``offset``,
        which is added to the scores; ``spread``, which scales the bounds of scores' errors.
        """
        alive = state.alive
        ball: Ball = message["region"]
        scores = state.scores[alive]
        slack = state.errors.of_scores(scores, message["spread"], alive)
        return ball.intervals(scores + message["offset"], state.errors.norms[alive], slack)

    def _bounds(self, state: BlockShard, message: dict[str, Any]) -> FloatArray:
        """Return bounds of all rows' optimal scores, and at which end of its box each row is fixed.

        Three arrays of a full shard's length, one after the other: lower bounds, upper bounds (0
        for fixed rows), and AT_HI, AT_LO or AT_ZERO for fixed rows, FREE for others. Keys of
        ``message``: see `_intervals`.
        """
        n = self.design.data.shard_rows
        lower, upper = np.zeros(n), np.zeros(n)
        lower[state.alive], upper[state.alive] = self._intervals(state, message)
        fixed = np.full(n, FREE, np.float64)
        for event in state.frozen:
            fixed[event.local] = event.side
        return np.concatenate([lower, upper, fixed])

    def _screen(self, state: BlockShard, message: dict[str, Any]) -> FloatArray:
        """Drop rows that the region proves to be at a bound (or 0), and whose alpha is there.

        Returns [rows newly fixed at their upper bound, rows newly fixed elsewhere]. Keys of
        ``message``: those of `_intervals`; ``mu``, the ends of an interval that contains the
        optimal multiplier; and ``since``, the round's number. A row must be decided in
        ``region.patience`` rounds in succession.
        """
        alive = state.alive
        dual = state.dual[alive]
        decided = dual.decide(*self._intervals(state, message), message["mu"])
        decided = dual.decisions_in_place(decided, state.alpha[alive])
        state.decided[alive] = np.where(decided == FREE, 0, state.decided[alive] + 1)
        drop = state.decided[alive] >= message["region"].patience
        if np.any(drop):
            state.frozen.append(Frozen(alive[drop], decided[drop], message["since"]))
            self._look_at(state, np.flatnonzero(~drop))
        high = np.count_nonzero(drop & (decided == AT_HI))
        return np.array([high, np.count_nonzero(drop) - high], np.float64)

    def _look_at(self, state: BlockShard, keep: NDArray[np.int64]) -> None:
        """Mark all rows but ``keep``, ascending places in ``state.alive``, as screened."""
        state.alive, state.places = state.alive[keep], state.places[keep]
        state.near = np.intersect1d(state.near, state.alive)
        if 2 * len(state.alive) < len(state.held):
            self._hold(state, state.places)

    def _hold(self, state: BlockShard, keep: NDArray[np.int64]) -> None:
        """Shorten the cached kernel columns to the entries of some rows.

        ``keep``: the rows' places in ``state.held``.
        """
        state.held = state.held[keep]
        state.columns.compact(Operand(state.X[state.held], state.start + state.held), keep)
        state.places = np.searchsorted(state.held, state.alive)

    def _revive(self, state: BlockShard, message: dict[str, Any]) -> FloatArray:
        """Bring the scores of screened rows up to date, and free all these rows.

        ``change`` of the message has one column for each screening round: the change of alpha since
        that round.

        Other keys of ``message``: ``since``, the rounds' numbers, one for each column; ``rows``,
        the rows whose alpha has changed; ``mu`` and ``offset``, the multipliers and what is added
        to all scores. A screened row has the score of the round that screened it. Returns [number
        of rows whose gradient shows that they were fixed at the wrong end].
        """
        wrong = 0
        for event in state.frozen:
            change = message["change"][:, message["since"].index(event.since)]
            side = Operand(state.X[event.local], state.start + event.local)
            columns = self._columns(side, 0)
            scores = state.scores[event.local]
            columns.accumulate(message["rows"], np.full(len(change), -1), change, scores)
            state.scores[event.local] = scores
            state.columns.entries += columns.entries
            dual = state.dual[event.local]
            G = dual.gradient(scores + message["offset"], message["mu"])
            e = 0.0 if dual.tube is None else dual.tube
            held = [event.side == AT_HI, event.side == AT_LO]
            wrong += int(np.count_nonzero(np.select(held, [G < e, G > -e], np.abs(G) > e)))
        if state.frozen:
            state.frozen = []
            state.decided[:] = 0
            state.alive = find_movable(state.dual)
            entries = state.columns.entries
            side = Operand(state.X[state.alive], state.start + state.alive)
            state.columns = self._columns(side)
            state.columns.entries = entries
            state.held, state.places = state.alive, np.arange(len(state.alive))
        return np.array([float(wrong)])

    def _scores(self, state: BlockShard, message: dict[str, Any]) -> FloatArray:
        """Return the scores of all rows without the offset, padded to the rows of a full shard.

        ``message`` says nothing more than its kind.
        """
        return pad(state.scores, self.design.data.shard_rows)

    # -- checkpoints ---------------------------------------------------------------------------
    def save(self, state: BlockShard) -> dict[str, NDArray[Any]]:
        """Return the state's arrays; kernel columns are not saved but recomputed."""
        rounds = [np.full(len(e.local), e.since) for e in state.frozen]
        return {
            "alpha": state.alpha,
            "scores": state.scores,
            "alive": state.alive,
            "held": state.held,
            "decided": state.decided,
            "frozen": np.concatenate([np.empty(0, np.int64), *(e.local for e in state.frozen)]),
            "sides": np.concatenate([np.empty(0, np.int8), *(e.side for e in state.frozen)]),
            "since": np.concatenate([np.empty(0, np.int64), *rounds]),
            "near": state.near,
            "entries": np.array(state.columns.entries),
        }

    def load(self, shard: int, arrays: dict[str, NDArray[Any]]) -> BlockShard:
        """Restore the state that ``save`` returned.

        ``shard``: its number; ``arrays``: what ``save`` returned, by name.
        """
        state = self.open(shard)
        for name in ("alpha", "scores", "decided"):
            setattr(state, name, arrays[name].copy())
        for since in np.unique(arrays["since"]).tolist():
            pick = arrays["since"] == since
            state.frozen.append(Frozen(arrays["frozen"][pick], arrays["sides"][pick], since))
        state.alive = arrays["alive"].copy()
        # (Older checkpoints lack these arrays.)
        held, state.near = arrays.get("held", state.alive), arrays.get("near", state.near)
        if len(held) < len(state.held):
            self._hold(state, np.searchsorted(state.held, held))
        state.places = np.searchsorted(state.held, state.alive)
        state.columns.entries = int(arrays["entries"])
        return state


class Terms(NamedTuple):
    """The dual of a shard's rows as arrays (rows,) for compiled code, without group and tube.

    Signs s, linear part p, box [lo, hi], and t: the coupling's +-1, or s without a coupling.
    """

    sign: FloatArray
    lin: FloatArray
    lo: FloatArray
    hi: FloatArray
    t: FloatArray


class At(NamedTuple):
    """The point of a survey for compiled code: alpha and scores (rows,), multipliers, offset.

    The offset is added to each score.
    """

    alpha: FloatArray
    scores: FloatArray
    mu: FloatArray
    offset: float


class Errors(NamedTuple):
    """The terms of the bound on a score's error, for compiled code.

    The bound is ``relative |score| + errors spread``, see `EntryErrors.of_scores`.
    """

    relative: FloatArray
    errors: FloatArray
    spread: float


class Found(NamedTuple):
    """Output arrays of a survey: v, its distance beyond mu, and its extremes in each group.

    ``v`` (rows,): dual gradients. ``over``, ``under`` (rows,): how far a row that can move up is
    above mu, and one that can move down below mu; 0 if it cannot. ``highest`` (groups,): the
    largest v of rows that can move up, ``lowest`` the smallest of rows that can move down.
    """

    v: FloatArray
    over: FloatArray
    under: FloatArray
    highest: FloatArray
    lowest: FloatArray


@dataclass
class Frozen:
    """Rows that a screening round fixed at a bound, or at 0.

    ``local``: their places in the shard. ``side``: AT_HI, AT_LO or AT_ZERO for each. ``since``: the
    number of the round.
    """

    local: NDArray[np.int64]
    side: NDArray[np.int8]
    since: int


@dataclass
class BlockShard:
    """The state of one shard of the block solver; arrays of shape (rows,) cover all its rows.

    Attributes
    ----------
    start : int
        Number of the shard's first row.
    dual, X
        The dual of the shard's rows, and their features.
    alpha, scores : float64 (rows,)
        Scores are without the offset.
    frozen : list of Frozen
        The screened rows, by screening round.
    alive : int64
        Places of the rows that are not screened. The scores of all other rows are those of the
        round in which they were fixed.
    decided : int32 (rows,)
        Consecutive screening rounds that have proved a row to be at a bound.
    columns, held, places
        Cached kernel columns, whose entries belong to the rows ``held``; the rows ``alive`` are
        ``held[places]``. Entries of screened rows are dropped once they are more than half of all,
        since copying costs more than their updates before that.
    near : int64
        Rows whose scores come from float64 entries.
    mending : int64
        Rows whose scores are being recomputed from float64 entries.
    errors : EntryErrors
        Bounds on the errors of kernel entries, and (`of_scores`) of the scores.
    """

    start: int
    dual: Dual
    alpha: FloatArray
    scores: FloatArray
    alive: NDArray[np.int64]
    decided: NDArray[np.int32]
    errors: EntryErrors
    X: Any
    columns: Columns
    held: NDArray[np.int64]
    places: NDArray[np.int64]
    frozen: list[Frozen] = field(default_factory=list)
    near: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    mending: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))

    def survey_rows(
        self, rows: NDArray[np.int64], message: dict[str, Any]
    ) -> tuple[tuple[float, float, float], FloatArray, FloatArray]:
        """Survey these rows at a message's multipliers.

        Returns
        -------
        sums : their parts of ``||w||^2``, of the Frank-Wolfe gap, and of the bound on its rounding
        ends : float64 (2, groups), the extremes of v over rows that can move up, and down
        about : float64 (3, rows), v, how far v is above mu if the row can move up, and how far
            below mu if it can move down (0 if it cannot)
        """
        dual, mu = self.dual, message["mu"]
        about, ends = np.empty((3, len(rows))), np.empty((2, len(mu)))
        sums = _survey(
            rows,
            Terms(dual.sign, dual.lin, dual.lo, dual.hi, dual.step_signs),
            dual.group,
            dual.tube,
            At(self.alpha, self.scores, mu, message["offset"]),
            Errors(self.errors.relative, self.errors.absolute, message["spread"]),
            Found(about[0], about[1], about[2], ends[0], ends[1]),
        )
        return sums, ends, about


def copy_dual(dual: Dual) -> Dual:
    """Copy the arrays of a dual, so that compiled code sees contiguous, writable arrays only."""
    arrays = {
        f.name: np.array(value)
        for f in fields(dual)
        if isinstance(value := getattr(dual, f.name), np.ndarray)
    }
    return Dual(**{**vars(dual), **arrays})


def find_movable(dual: Dual) -> NDArray[np.int64]:
    """Find the rows that a solver needs: those that can move, or are fixed away from 0."""
    return np.flatnonzero((dual.hi > dual.lo) | (dual.lo != 0))


def local_places(state: BlockShard, ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the places in this shard of its rows among the row numbers ``ids``, in their order."""
    here = ids - state.start
    return here[(here >= 0) & (here < len(state.alpha))]


def furthest_places(distance: FloatArray, count: int) -> NDArray[np.int64]:
    """Return the places of the ``count`` largest positive distances, the largest first."""
    there = np.flatnonzero(distance > 0)
    if len(there) > count:
        there = there[np.argpartition(-distance[there], count)[:count]]
    return there[np.argsort(-distance[there], kind="stable")]


def pad(values: NDArray[Any], length: int) -> FloatArray:
    """Convert the values to float64, and append -1 up to this length."""
    out = np.full(length, -1.0)
    out[: len(values)] = values
    return out


@njit(cache=True, nogil=True, fastmath={"contract"})
def _survey(
    rows: NDArray[np.int64],
    terms: Terms,
    group: NDArray[np.int8] | None,
    tube: FloatArray | None,
    at: At,
    off: Errors,
    found: Found,
) -> tuple[float, float, float]:
    """Survey these rows: write v and distances to `found`, return ||w||^2, gap and rounding.

    The three sums are the rows' parts of ``||w||^2``, of the Frank-Wolfe gap at the multipliers,
    and of a bound on the gap's rounding error. ``rows``: places in the shard. ``group``, ``tube``:
    None if the dual has none. ``off``: the terms of the bound on scores' errors.
    """
    sign, lin, lo, hi, t = terms
    alpha, scores, mu, offset = at
    relative, errors, spread = off
    v, over, under, highest, lowest = found
    w_sq, gap, rounding = 0.0, 0.0, 0.0
    highest[:], lowest[:] = -np.inf, np.inf
    for k in range(len(rows)):
        i = rows[k]
        u = scores[i] + offset
        G = lin[i] - sign[i] * u
        w_sq += sign[i] * alpha[i] * u
        r = t[i]
        g = 0 if group is None else group[i]
        v[k] = G / r
        rest = G - r * mu[g]
        band = relative[i] * abs(scores[i]) + errors[i] * spread
        above, below = hi[i] - alpha[i], alpha[i] - lo[i]
        more, less = alpha[i] < hi[i], alpha[i] > lo[i]
        can_up, can_down = (more, less) if r > 0 else (less, more)
        # If a row is certainly at its bound, its error changes P and D equally. Any other row's
        # error changes the gap by at most its room times the error.
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
