"""What each shard computes in a round of the smoothed Newton, next to its rows.

The dual point is read off the scores (`read_off`). Only rows in the smoothing band curve the loss.
Other rows stay at a side and need not be read (lazy rows, exact): row i was last scored at w_ref,
so ``|G_i(w) - G_i(w_ref)| <= ||w - w_ref|| ||phi_i|| + |b - b_ref|`` (b the extras). Their loss is
linear and follows from two sums kept for each shard, ``V = sum side_i s_i c_i`` and
``H = sum side_i p_i``.

A state is a pure fold over the messages, so a lost shard is rebuilt by replaying them. Handlers
yield requests for numbers of rows (`row_requests`): several runs can step together, and share the
answers (`fleet.lockstep`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, MutableMapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bigscreen.features.design import Design, column_dots, row_ranges
from bigscreen.fleet.lockstep import Work
from bigscreen.numerics import reproducible
from bigscreen.numerics.reproducible import Totals
from bigscreen.numerics.rows import FloatArray, as_rows
from bigscreen.problems.dual import FREE, Dual
from bigscreen.problems.point import SumLayout, Terms, add_rows, by_term, read_off
from bigscreen.problems.recipes import Problem
from bigscreen.solvers.kept_rows import KeptRows
from bigscreen.solvers.newton.algebra import entry_type
from bigscreen.solvers.newton.products import BandRows
from bigscreen.solvers.newton.row_requests import Columns, Dots, Moment, Rounding
from bigscreen.solvers.newton.sampled import pack_sample
from bigscreen.solvers.newton.state import (
    SAVED,
    UNSET,
    NewtonShard,
    as_slice,
    band_curvature,
    band_widths,
    compress_constant,
    find_sides,
    hinge_distance,
    segment_losses,
    side_value,
    tube_of,
)
from bigscreen.solvers.newton.tuning import NEWTON, NewtonTuning

Handler = Callable[[NewtonShard, dict[str, Any], Totals], Work | FloatArray]
"""A method of `NewtonProgram` that answers messages of one kind."""

HEAD = len(("G", "lo", "hi", "tube", "alpha"))
"""Numbers that stand before a row's features in the table of gathered rows."""


class GatheredRows(NamedTuple):
    """Rows whose features the coordinator holds: if x changes by d, G changes by ``-feature . d``.

    Parameters
    ----------
    feature : (rows, size)
        ``s [phi, border]``.
    G : float64 (rows,)
        Gradients at the current iterate.
    lo, hi, tube : float64 (rows,)
        The rows' box and tube.
    """

    feature: NDArray[Any]
    G: FloatArray
    lo: FloatArray
    hi: FloatArray
    tube: FloatArray

    @classmethod
    def none(cls, size: int) -> GatheredRows:
        """Return an empty table for features of this size."""
        return cls(np.empty((0, size), np.float32), *np.empty((4, 0)))

    def extend(self, rows: GatheredRows, room: NDArray[Any]) -> GatheredRows:
        """Append rows; ``room`` holds the features of these rows, then of the others, already."""
        pairs: Any = zip(self[1:], rows[1:], strict=True)
        heads = (np.concatenate(pair) for pair in pairs)
        return GatheredRows(room[: len(self.G) + len(rows.G)], *heads)

    @property
    def dual(self) -> Dual:
        """A dual with the rows' box and tube, of which G are the gradients."""
        one = np.broadcast_to(np.float64(1.0), len(self.G))
        tube = self.tube if self.tube.any() else None
        return Dual(one, 0.0 * one, self.lo, self.hi, tube=tube)

    @classmethod
    def unpacked(
        cls, stack: FloatArray, counts: NDArray[np.int64], room: NDArray[np.float32]
    ) -> tuple[GatheredRows, FloatArray]:
        """Unpack the answers of the shards to "gather": the rows, and alpha at their side.

        Parameters
        ----------
        stack : float64 (shards, numbers)
        counts : int64 (shards,)
            Rows of every shard.
        room : float32 (rows or more, size)
            Receives the features.
        """
        size, feature = room.shape[1], room[: int(counts.sum())]
        tables = [shard.reshape(-1, HEAD + -(-size // 2)) for shard in stack]
        parts = [table[:count] for table, count in zip(tables, counts, strict=True)]
        ends = np.cumsum(counts)
        for part, start, stop in zip(parts, ends - counts, ends, strict=True):
            feature[start:stop] = part[:, HEAD:].view(np.float32)[:, :size]
        *head, alpha = np.ascontiguousarray(np.concatenate([part[:, :HEAD] for part in parts]).T)
        return cls(feature, *head), alpha


@dataclass(frozen=True)
class NewtonProgram(KeptRows):
    """What every shard of the Newton runs (see ``fleet.Program``).

    Parameters
    ----------
    design : Design
    problem : Problem
    stride, scale : int, float
        Take one row in ``stride`` and multiply its box by ``scale``: a subsample's problem.
    resident : float
        Fraction of the rows that is kept in memory between passes: whole shards, spread evenly.
    lazy : bool
        Skip rows that provably stay on their side; False visits every row alive in every pass.
    weight_bound : float
        Upper bound of the sum of the rows' reach, by which exact sums are sized. (For squared
        losses, sums of alpha are sized by the ``alpha_sum`` of a message.)
    room : int
        Bytes of columns that each shard may keep while a step lasts.
    tuning : NewtonTuning
    """

    design: Design
    problem: Problem
    stride: int = 1
    scale: float = 1.0
    resident: float = 1.0
    lazy: bool = True
    weight_bound: float = 1.0
    room: int = 0
    tuning: NewtonTuning = NEWTON

    @cached_property
    def frame(self) -> SumLayout:
        """The problem's extras (constant and multipliers), and each row's entries for them."""
        return SumLayout.of(self.problem, self.design.data)

    @property
    def tile(self) -> int:
        """Rows whose columns are computed at once."""
        return self.design.rows_per_tile(self.tuning.column_rows)

    def open(self, shard: int, lent: MutableMapping[Any, Any] | None = None) -> NewtonShard:
        """Return the state before the first message: no row is scored, every sum is zero.

        Rows of weight 0, such as rows of classes outside a pair of classes, are left out.

        Parameters
        ----------
        shard : int
            Number of the shard.
        lent : dict or None
            The shard's rows and norms, which the states of several runs share: what it lacks is
            computed and added. None: this state shares nothing.
        """
        data, frame = self.design.data, self.frame
        start, stop = data.shard(shard)
        pick = slice(None, None, self.stride)
        known: Any = {} if lent is None else lent
        X, norms, sample = (known.get((what, self.stride)) for what in ("rows", "norms", "sample"))
        keeps, rounded = self.keeps(shard), self.design.kernel is not None
        if X is None and (keeps or (rounded and (norms is None or sample is None))):
            ids = np.arange(start, stop, dtype=np.int64)[pick]
            X = data.X(start, stop) if self.stride == 1 else data.rows(ids)
            known["rows", self.stride] = X
        if norms is None:
            norms = self.design.norms(X, data.sqnorms(start, stop)[pick])
            known["norms", self.stride] = norms
        if rounded and sample is None:
            sample = known["sample", self.stride] = self._rows_for_rounding(
                X, data.sqnorms(start, stop)[pick]
            )
        dual = self.problem.dual(
            data.y(start, stop)[pick], data.weights(start, stop)[pick], self.scale
        )
        ids = np.arange(start, stop, dtype=np.int64)[pick]
        counted = np.flatnonzero(dual.reach)
        if len(counted) < len(ids):
            dual, ids, norms = dual[counted], ids[counted], norms[counted]
            X = X if lent is not None or not keeps else X[counted]
        dual, norms = replace(dual, hi=compress_constant(dual.hi)), compress_constant(norms)
        n = len(dual)
        most = replace(dual, total=0.0 * frame.total).threshold if frame.groups else 0.0
        return NewtonShard(
            frame=frame,
            start=start,
            ids=ids,
            dual=dual,
            norms=norms,
            X=X if keeps else None,
            stride=self.stride,
            lent=lent is not None,
            scores=np.zeros(n),
            ref=np.full(n, -1, np.int32),
            side=np.full(n, UNSET),
            fixed=np.zeros(n, np.bool_),
            side_sum=np.zeros((frame.buckets, self.design.width + frame.extras)),
            side_lin=np.zeros(frame.buckets),
            most=np.atleast_1d(most),
            below=np.zeros(max(1, frame.groups)),
            sample=sample,
        )

    def _rows_for_rounding(self, X: Any, sqnorms: FloatArray) -> Any:
        """Sample rows of a shard, the longest among them, that show how float32 moves scores.

        ``X``: the shard's rows; ``sqnorms`` (rows,): the squares of their norms.
        """
        rows, least = self.tuning.rounding_sample_rows, self.tuning.rounding_sample_stride
        step = max(least, len(sqnorms) * self.design.data.n_shards // rows)
        longest = np.argsort(sqnorms)[-1:]
        return X[np.unique(np.concatenate([np.arange(0, len(sqnorms), step), longest]))]

    def bound_alpha_sum(self, message: dict[str, Any]) -> float:
        """Bound ``sum |alpha|`` over all rows; for squared losses the message has the bound."""
        return float(message["alpha_sum"]) if self.frame.curved else self.weight_bound

    def moment_bound(self, message: dict[str, Any]) -> float:
        """Bound every entry of the band's second moment, including rows near the band.

        Keys of ``message``: ``stride`` (each summed row stands for this many), ``h`` and ``wide``
        (half-widths of the band, and of the wider band whose rows are added).
        """
        largest = self.frame.largest(self.design.largest_norm)
        if self.frame.curved:
            return float(message["stride"] * self.weight_bound * largest**2)
        curvature = float(message["stride"] / (2 * message["h"]))
        if message["wide"] > message["h"]:
            thinned = max(1, self.design.data.shard_rows // self.max_near_rows)
            curvature += thinned / (2 * message["wide"])
        # A box is at most twice as wide as its further end is from 0.
        return 2 * self.weight_bound * largest**2 * curvature

    def add_moment(self, totals: Totals, message: dict[str, Any], moment: NDArray[Any]) -> None:
        """Add the second moment (size, size) of some rows to the exact sums of all shards."""
        reproducible.add(totals, "moment", moment, self.moment_bound(message))

    @property
    def max_near_rows(self) -> int:
        """How many rows near the band a shard adds to its second moment.

        All shards together add about two rows for each column.
        """
        return 1 + 2 * self.design.width // self.design.data.n_shards

    def step(self, state: NewtonShard, message: dict[str, Any], totals: Totals) -> FloatArray:
        """Answer one message, such as ``trial`` (score a step) or ``accept`` (take it).

        ``message["kind"]`` names the method, ``"_" + kind``, that answers. Sums that must be exact
        are added to ``totals``; the returned vector is summed by the coordinator.

        Other keys of most messages are ``h`` (smoothing), ``steps`` (step lengths), ``coefs`` and
        ``extras`` (both ends of a line search), ``w_moves`` and ``score_moves`` (see
        `Algebra.bound_moves`), ``slack`` (bound of a score's rounding error) and ``near`` (hold
        rows farther from their hinge point than this, by the pass that scored them).
        """
        work = self.work(state, message, totals)
        if isinstance(work, np.ndarray):
            return work
        try:
            request = next(work)
            while True:
                # Only one tile of columns exists at a time: they can share a buffer.
                is_tile = isinstance(request, Columns)
                answer = request.compute("asked") if is_tile else request.answers([request])[0]
                request = work.send(answer)
        except StopIteration as end:
            vector: FloatArray = end.value
            return vector

    def work(
        self, state: NewtonShard, message: dict[str, Any], totals: Totals
    ) -> Work | FloatArray:
        """Start to answer one message: a generator that yields requests, or the answer itself."""
        answer: Handler = getattr(self, "_" + message["kind"])
        return answer(state, message, totals)

    def _sizes(self, state: NewtonShard, message: dict[str, Any], totals: Totals) -> FloatArray:
        """Answer with sums and maxima by which rows are measured: `NewtonShard.sizes`."""
        return state.sizes()

    def _rounding(self, state: NewtonShard, message: dict[str, Any], totals: Totals) -> Work:
        """Measure the most that float32 columns move a score of the sample's rows.

        ``message["coefs"]`` (m, k): coefficients of k scores; returns (k,).
        """
        return (yield Rounding(self.design, state.sample, message["coefs"]))

    # -- the score pass ------------------------------------------------------------------------
    def _trial(self, state: NewtonShard, message: dict[str, Any], totals: Totals) -> Work:
        """Sum losses along the segment from one w to another, for a grid of step lengths.

        If the message says that the rows are ``scored`` already, on this segment, none is read.

        Returns [rows visited, rows alive, smoothed loss per step..., hinge loss per step...].
        """
        if not message.get("scored", False):
            yield from self._score(state, message)
        h, steps = message["h"], message["steps"]
        ends = state.side_loss(message["coefs"], message["extras"])
        losses = np.zeros((2, len(steps)))
        part = state.visited_dual
        segment_losses(
            part.lin - part.sign * state.trial[:, 0],
            part.sign * (state.trial[:, 0] - state.trial[:, 1]),
            part.lo,
            np.ascontiguousarray(part.hi),
            tube_of(part),
            h,
            steps,
            losses,
            part.curve,
        )
        losses += ends[0] + steps * (ends[1] - ends[0])
        counts = [len(state.visited), len(state.dual) - np.count_nonzero(state.fixed)]
        return np.concatenate([counts, losses.ravel()])

    def _score(
        self, state: NewtonShard, message: dict[str, Any]
    ) -> Generator[Dots | Columns, Any, None]:
        """Score the rows that may leave their side at either end of the message's segment.

        Sets the state's ``visited`` and ``trial``. Keys of ``message``: see ``step``.
        """
        h, coefs, extras = message["h"], message["coefs"], message["extras"]
        dual, state.curved = state.dual, None
        alive = ~state.fixed
        if self.lazy:
            # A bound at both ends of the segment, and so by convexity between them.
            moved = state.moved_since(message)
            distance = state.distance(state.scores)
            nearby = h + moved + message["slack"]
            if message.get("near") is not None:
                # All other rows are held to their side, whether or not they would stay there.
                nearby = message["near"][state.ref]
            near = (distance <= nearby) | (state.side == FREE)
            # (Gathered rows are always visited.)
            alive &= near | state.gathered if len(state.gathered) else near
        state.visited = np.flatnonzero(alive)
        # Rows scored in the last pass need only the far end; if w does not move, both ends are one.
        last = len(message["w_moves"]) - 2
        fresh = last >= 0 and bool(np.all(state.ref[state.visited] == last))
        still = len(message["steps"]) == 1
        ends = slice(1 if fresh or still else 0, 2)
        found = np.empty((len(state.visited), 2 - ends.start))
        if still and 2 * np.count_nonzero(state.side == UNSET) > len(state.visited):
            yield from self._enter(state, message, found)
            state.trial = np.broadcast_to(found, (len(found), 2))
            return
        for a, b in row_ranges(len(state.visited), 4 * self.tuning.column_rows):
            ids = state.visited[a:b]
            found[a:b] = yield Dots(self.design, state, ids, coefs[:, ends])
            if len(extras):
                found[a:b] += self.frame.border(dual[as_slice(ids)]) @ extras[:, ends]
        if fresh:
            found = np.stack([state.scores[state.visited], found[:, 0]], axis=1)
        state.trial = np.broadcast_to(found, (len(found), 2))

    def _enter(
        self, state: NewtonShard, message: dict[str, Any], scores: FloatArray
    ) -> Generator[Columns, Any, None]:
        """Score rows at w, most of them for the first time, and update V and H in the same pass.

        V and H are the sums over rows at a side, ``side_sum`` and ``side_lin`` of the state.
        ``scores`` (visited rows, 1) receives the scores; the last column of the message's
        ``coefs`` and ``extras`` is w.
        """
        coef, extras = (np.ascontiguousarray(message[name][:, -1]) for name in ("coefs", "extras"))
        for a, b in row_ranges(len(state.visited), self.tile):
            ids = state.visited[a:b]
            columns, part = (
                as_rows((yield Columns(self.design, state, ids))),
                state.dual[as_slice(ids)],
            )
            column_dots(columns, coef, scores[a:b, 0])
            scores[a:b, 0] += self.frame.border(part) @ extras
            side = find_sides(part, part.lin - part.sign * scores[a:b, 0], message["h"])
            before, after = side_value(part, state.side[ids]), side_value(part, side)
            state.side[ids] = side
            self._add_sides(state, part, columns, before, after)

    # -- the gradient pass ---------------------------------------------------------------------
    def _accept(self, state: NewtonShard, message: dict[str, Any], totals: Totals) -> Work:
        """Move to step length t of the last trial, then sum the gradient there.

        Keys of ``message``: ``t``; ``ref``, the number that the new x gets; and the keys that
        ``_gradient`` reads, whose answer is returned.
        """
        h, need = message["h"], state.visited
        old, new = state.trial[:, 0], state.trial[:, 1]
        state.scores[need] = old + message["t"] * (new - old)
        state.ref[need] = message["ref"]
        part = state.visited_dual
        z = part.lin - part.sign * state.scores[need]
        yield from self._move_sides(state, part, find_sides(part, z, h))
        # The trial is over: a checkpoint needs nothing of it.
        state.visited, state.trial = np.empty(0, np.int64), np.empty((0, 2))
        return (yield from self._gradient(state, message, totals))

    def _gradient(self, state: NewtonShard, message: dict[str, Any], totals: Totals) -> Work:
        """Add V and the band's second moment at the current scores to the totals.

        V, the sum of ``s alpha [c, border]``, has a row for each of the frame's terms. Its last row
        is V with alpha of band rows at the middle of the band: from both, the coordinator knows V
        of the same band at any other h.

        Keys of ``message``: ``h`` and ``wide``, half-widths of the band and of the wider band whose
        rows are added to the second moment; ``stride`` (the second moment is of one in ``stride``
        band rows; 0: of none) and ``turn`` (with which of them to begin); and ``alpha_sum`` for
        squared losses.

        Returns [the sums of `Terms`..., band rows, band weight].
        """
        h, wide, stride = message["h"], message["wide"], message["stride"]
        band = np.flatnonzero(state.side == FREE)
        rows = state.dual[band]
        z = rows.lin - rows.sign * state.scores[band]
        curvature, width, middle = band_curvature(rows, z, h)
        terms = Terms(self.frame, rows, read_off(rows, z, h))
        v = np.zeros((self.frame.terms + 1, state.side_sum.shape[1]))
        dtype = entry_type(len(band), len(state.dual))
        for a, b in row_ranges(len(band), self.tile):
            tile = slice(a, b)
            columns = yield Columns(self.design, state, band[tile], dtype)
            border = self.frame.border(rows[tile])
            terms.add(tile, columns, border, v)
            last = np.full(b - a, self.frame.terms)
            add_rows(columns, border, rows.sign[tile] * middle[tile], last, v)
            if not stride:
                continue
            # The stride counts band rows, so that tiles do not change the choice. Each pass takes
            # other rows.
            part = slice((message["turn"] - a) % stride, None, stride)
            weight = np.sqrt(curvature[tile][part]) * np.sqrt(stride)
            if len(weight):
                own = band[tile][part], columns[part], border[part]
                moment = yield Moment(self.design, state, *own, weight, self.tuning)
                self.add_moment(totals, message, moment)
        if stride and wide > h:
            yield from self._add_near(state, message, totals)
        v[: self.frame.buckets] += state.side_sum
        v[-1] += state.side_sum.sum(axis=0)
        largest = self.frame.largest(self.design.column_bound)
        reproducible.add(totals, "v", v, self.bound_alpha_sum(message) * largest)
        terms.sums[: self.frame.buckets] += state.side_lin
        return np.array([*terms.sums, len(band), float(np.sum(width))])

    def _product(self, state: NewtonShard, message: dict[str, Any], totals: Totals) -> Work:
        """Multiply the band's second moment by a vector, given as ``coef`` and ``extras``.

        Other keys of ``message``: one in ``stride`` rows stands for all; ``first`` marks the first
        product of a step, which picks the rows; ``h``; ``unit`` of columns kept in 16 bits (0: not
        in 16 bits). Returns
        ``sum curvature_i [c_i, border_i] (c_i . coef + border_i . extras)`` (m + extras,).
        """
        if message["first"] or state.curved is None:
            band, curvature, border = self._pick_band_rows(state, message)
            # (Rows in memory are columns already.)
            room = self.room if self.design.kernel or state.X is None else 0
            state.curved = BandRows(band, curvature, border, message["unit"], room)
        v = message["coef"], message["extras"]
        return (yield from state.curved.product(self.design, state, self.tile, *v))

    def _pick_band_rows(
        self, state: NewtonShard, message: dict[str, Any]
    ) -> tuple[NDArray[np.int64], FloatArray, FloatArray]:
        """Pick one in ``message["stride"]`` band rows; the stride need not be an integer.

        Returns their indices in the state (k,), the second derivatives of their losses times the
        stride (k,), and their entries for the extras (k, extras).
        """
        stride, band = message["stride"], np.flatnonzero(state.side == FREE)
        at = (stride * np.arange(-(-len(band) // stride))).astype(np.int64)
        band = band[at[at < len(band)]]  # rounded, the last can be one too far
        rows = state.dual[band]
        curvature, _, _ = band_curvature(
            rows, rows.lin - rows.sign * state.scores[band], message["h"]
        )
        return band, stride * curvature, self.frame.border(rows)

    def _sample(self, state: NewtonShard, message: dict[str, Any], totals: Totals) -> FloatArray:
        """Answer with one in ``stride`` rows of the band, for ``Sample.unpacked``.

        ``message["most"]``: lines of the answer's table, the same for all shards.
        """
        band, curvature, border = self._pick_band_rows(state, message)
        return pack_sample(state.ids[band], curvature, border, message["most"])

    def _middle(self, state: NewtonShard, message: dict[str, Any], totals: Totals) -> Work:
        """Add ``V = sum s alpha [c, border]`` of all rows, alpha in the middle of their box.

        It is added to ``totals``. The message has no other keys.

        Returns the sums of `Terms`.
        """
        dual = state.dual
        terms = Terms(self.frame, dual, 0.5 * (dual.lo + dual.hi))
        v = np.zeros((self.frame.terms + 1, state.side_sum.shape[1]))
        for a, b in row_ranges(len(dual), self.tile):
            columns = yield Columns(self.design, state, np.arange(a, b))
            terms.add(slice(a, b), columns, self.frame.border(dual[a:b]), v)
        reproducible.add(
            totals, "v", v, self.weight_bound * self.frame.largest(self.design.column_bound)
        )
        return terms.sums

    def _move_sides(
        self, state: NewtonShard, part: Dual, side: NDArray[np.int8]
    ) -> Generator[Columns, Any, None]:
        """Update V and H for the visited rows whose alpha at their side has changed.

        V and H are ``side_sum`` and ``side_lin`` of the state. ``part``: the dual of the visited
        rows; ``side`` (visited rows,): their new sides.
        """
        need = state.visited
        before, after = side_value(part, state.side[need]), side_value(part, side)
        state.side[need] = side
        moved = np.flatnonzero(before != after)
        part, before, after = part[moved], before[moved], after[moved]
        dtype = entry_type(len(moved), len(need))
        for a, b in row_ranges(len(moved), self.tile):
            columns = yield Columns(self.design, state, need[moved[a:b]], dtype)
            self._add_sides(state, part[a:b], columns, before[a:b], after[a:b])

    def _add_sides(
        self, state: NewtonShard, part: Dual, columns: Any, before: FloatArray, after: FloatArray
    ) -> None:
        """Subtract rows with alpha ``before`` from V and H, and add them with alpha ``after``.

        V and H are ``side_sum`` and ``side_lin`` of the state. ``part``: the rows' dual;
        ``columns`` (rows, m); ``before``, ``after`` (rows,).
        """
        frame, border = self.frame, self.frame.border(part)
        for factor, alpha in ((-1.0, before), (1.0, after)):
            bucket = frame.bucket(part, alpha)
            state.side_lin += factor * by_term(bucket, part.linear(alpha), frame.buckets)
            add_rows(columns, border, factor * part.sign * alpha, bucket, state.side_sum)

    def _add_near(
        self, state: NewtonShard, message: dict[str, Any], totals: Totals
    ) -> Generator[Columns | Moment, Any, None]:
        """Add rows near the band to its second moment, as if the band's half-width were ``wide``.

        ``message["wide"]`` is that half-width. ``totals`` gets the sum of x x' over a sample of the
        free rows within it, each weighted by the curvature that it would have there. The generator
        yields requests for features and for their products, and is sent the results.
        """
        z, wide = state.dual.lin - state.dual.sign * state.scores, message["wide"]
        inside = hinge_distance(state.dual, z) <= wide
        near = np.flatnonzero(inside & (state.side != FREE) & ~state.fixed)
        # These rows only steady the step: a few are enough.
        stride = max(1, len(near) // self.max_near_rows)
        near = near[::stride]
        part = state.dual[near]
        weight = np.sqrt(band_widths(part, z[near], wide)[0] * stride / (2 * wide))
        for a, b in row_ranges(len(near), self.tile):
            columns = yield Columns(self.design, state, near[a:b])
            own = near[a:b], columns, self.frame.border(part[a:b])
            moment = yield Moment(self.design, state, *own, weight[a:b], self.tuning)
            self.add_moment(totals, message, moment)

    # -- rows near their hinge point -----------------------------------------------------------
    def _count_within(
        self, state: NewtonShard, message: dict[str, Any], totals: Totals
    ) -> FloatArray:
        """Count the rows within each of the message's ``reaches`` (k,) of their hinge point.

        ``t``: count at this step length of the last trial; None: at the iterate.
        """
        scores, t = state.scores, message["t"]
        if t is not None:
            scores = scores.copy()
            scores[state.visited] = state.trial @ np.array([1 - t, t])
        distance = state.distance(scores)[~state.fixed]
        return np.array(
            [np.count_nonzero(distance <= reach) for reach in message["reaches"]], float
        )

    def _count_near(
        self, state: NewtonShard, message: dict[str, Any], totals: Totals
    ) -> FloatArray:
        """Count rows near their hinge point; the distance depends on the pass that scored a row.

        ``message["within"]`` (passes + 1,): the distance by the number of that pass; the last entry
        is for rows that no pass has scored.
        """
        inside = state.distance(state.scores) <= message["within"][state.ref]
        return np.array([np.count_nonzero(inside & ~state.fixed)], float)

    def _sides(self, state: NewtonShard, message: dict[str, Any], totals: Totals) -> FloatArray:
        """Answer with the sides of all rows, as int8 in the bytes of float64 (`Rounds.sides`)."""
        rows = np.full(-(-self.design.data.shard_rows // 8) * 8, FREE)
        rows[state.ids - state.start] = np.where(state.side == UNSET, FREE, state.side)
        return rows.view(np.float64)

    def _pick(self, state: NewtonShard, message: dict[str, Any], totals: Totals) -> FloatArray:
        """Pick rows to gather, that is, to send to the coordinator with their features.

        With a key ``reach``: all rows within this distance of their hinge point. With ``h``
        instead: rows that the far end of the last trial takes from their side. Sets the state's
        ``picked`` and ``gathered``. Returns [number of rows picked].
        """
        if "reach" in message:
            near = (state.distance(state.scores) <= message["reach"]) | (state.side == FREE)
            state.picked = np.flatnonzero(near & ~state.fixed)
            state.gathered = np.zeros(len(state.dual), np.bool_)
        else:
            part = state.visited_dual
            z = part.lin - part.sign * state.trial[:, 1]
            moved = find_sides(part, z, message["h"]) != state.side[state.visited]
            state.picked = state.visited[moved & ~state.gathered[state.visited]]
        state.gathered[state.picked] = True
        return np.array([len(state.picked)], float)

    def _gather(self, state: NewtonShard, message: dict[str, Any], totals: Totals) -> Work:
        """Answer with the picked rows, for ``GatheredRows.unpacked``.

        Keys of ``message``: ``most`` (the table has as many lines as this, the rest of them 0);
        ``coef`` and ``extras``, the x at which gradients are computed.
        """
        design, frame, picked = self.design, self.frame, state.picked
        coef, extras = message["coef"], message["extras"]
        size = design.rank + frame.extras
        out = np.zeros((message["most"], HEAD + -(-size // 2)))
        for a, b in row_ranges(len(picked), self.tile):
            ids = picked[a:b]
            dual = state.dual[ids]
            columns = yield Columns(design, state, ids)
            border, scores, side = frame.border(dual), np.empty(b - a), state.side[ids]
            column_dots(as_rows(columns), coef, scores)
            head = (
                dual.lin - dual.sign * (scores + border @ extras),
                dual.lo,
                dual.hi,
                tube_of(dual),
                np.where(side == FREE, np.nan, side_value(dual, side)),
            )
            out[a:b, :HEAD] = np.stack(head, axis=1)
            # float32 features in the bytes of float64 numbers: an answer has one type.
            feature = out[a:b, HEAD:].view(np.float32)
            rank = design.rank
            feature[:, :rank] = design.features_of(columns)
            feature[:, rank:size] = border
            feature[:, :size] *= dual.sign[:, None].astype(np.float32)
        return out.ravel()

    # -- screening -----------------------------------------------------------------------------
    def _screen(self, state: NewtonShard, message: dict[str, Any], totals: Totals) -> FloatArray:
        """Fix rows (see ``NewtonShard.fix``); drop fixed rows once they are more than half."""
        counts = state.fix(message)
        if 2 * np.count_nonzero(state.fixed) > len(state.fixed):
            state.compact()
        return counts

    def _quantiles(self, state: NewtonShard, message: dict[str, Any], totals: Totals) -> FloatArray:
        """Answer with the weights of breakpoints below candidates: `NewtonShard.quantiles`."""
        return state.quantiles(message)

    # -- checkpoints ---------------------------------------------------------------------------
    def save(self, state: NewtonShard) -> dict[str, NDArray[Any]]:
        """Return the arrays of a state that do not follow from the data."""
        return {key: getattr(state, name) for key, name in SAVED.items()}

    def load(
        self,
        shard: int,
        arrays: dict[str, NDArray[Any]],
        lent: MutableMapping[Any, Any] | None = None,
    ) -> NewtonShard:
        """Return the state whose ``arrays`` `save` returned; ``lent``: see ``open``."""
        state = self.open(shard, lent)
        keep = np.searchsorted(state.ids, arrays["ids"])
        if len(keep) < len(state.ids):
            state.fixed = np.ones(len(state.ids), np.bool_)
            state.fixed[keep] = False
            state.compact()
        for key, name in SAVED.items():
            setattr(state, name, arrays[key].copy())
        return state
