"""What each shard computes for stochastic steps: subgradients of drawn rows, and P of all rows.

A pass visits every row once. Its order depends only on the seed, the pass and the shard, and goes
chunk by chunk, so that rows on disk are read in the order of the file. A state is a cache: every
message says all that it needs, so a lost shard is simply opened again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.features.design import Design, row_ranges
from bigscreen.fleet.shards import Arrays
from bigscreen.numerics import reproducible
from bigscreen.numerics.reproducible import Totals
from bigscreen.numerics.rows import FloatArray, as_rows, njit, row_axpy, row_dot
from bigscreen.problems.dual import Dual
from bigscreen.problems.point import SumLayout, Terms, read_off
from bigscreen.problems.recipes import Problem
from bigscreen.solvers.kept_rows import KeptRows

Handler = Callable[["DrawnShard", dict[str, Any], Totals], FloatArray]
"""A method of `DrawProgram` that answers messages of one kind."""


@dataclass
class DrawnShard:
    """The state of a shard during a stochastic solve.

    Parameters
    ----------
    shard : int
    dual : Dual
    parts : tuple of float64 (rows,)
        sign, lin, lo, hi and tube of the dual, for compiled loops.
    X : array or None
        The rows; None if they are read again in every pass.
    epoch : int
        Number of the pass that ``order`` is for.
    order : int64 (rows,)
        Indices of the rows in the order of the pass.
    chunk : (int, array)
        Number and rows of the chunk that was read last, if X is None.
    """

    shard: int
    dual: Dual
    parts: tuple[FloatArray, ...]
    X: Any
    epoch: int = -1
    order: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    chunk: tuple[int, Any] = (-1, None)


@dataclass(frozen=True)
class DrawProgram(KeptRows):
    """What every shard of a stochastic solve runs (see ``fleet.Program``).

    Parameters
    ----------
    design : Design
    problem : Problem
    seed : int
        Seed of the orders of rows.
    resident : float
        1 if the rows are kept in memory, 0 if not.
    weight_bound : float
        Upper bound of the sum of the rows' reach, by which exact sums are sized.
    column_rows : int
        Rows whose columns are computed at once.
    """

    design: Design
    problem: Problem
    seed: int
    resident: float
    weight_bound: float
    column_rows: int = 1024

    @cached_property
    def frame(self) -> SumLayout:
        """The problem's extras (constant and multipliers), and each row's entries for them."""
        return SumLayout.of(self.problem, self.design.data)

    @property
    def bound(self) -> float:
        """Upper bound of every entry of ``sum s alpha [c, 1]`` over any rows (c: a row's columns).

        Exact sums over shards are sized by it.
        """
        return self.weight_bound * self.frame.largest(self.design.column_bound)

    @property
    def square_bound(self) -> float:
        """Upper bound of every entry of ``sum reach phi^2``, by which exact sums are sized.

        (phi^2: the squares of a row's features; reach: the row's largest ``|alpha|``.)
        """
        return self.weight_bound * self.frame.largest(self.design.largest_norm) ** 2

    def open(self, shard: int) -> DrawnShard:
        """Return the state before the first message: no row is drawn."""
        data = self.design.data
        start, stop = data.shard(shard)
        dual = self.problem.dual(data.y(start, stop), data.weights(start, stop))
        tube = np.zeros(len(dual)) if dual.tube is None else dual.tube
        given = dual.sign, dual.lin, dual.lo, dual.hi, tube
        parts = tuple(np.ascontiguousarray(part, np.float64) for part in given)
        return DrawnShard(shard, dual, parts, data.X(start, stop) if self.keeps(shard) else None)

    def step(self, state: DrawnShard, message: dict[str, Any], totals: Totals) -> FloatArray:
        """Answer one message of kind ``sample``, ``step``, ``estimate`` or ``measure``.

        The first three are about drawn rows, which the keys ``epoch``, ``lanes``, ``first``,
        ``last`` and ``parts`` name (see `Draws.ahead`). Exact sums are added to ``totals``; the
        returned vector is summed by the caller.
        """
        answer: Handler = getattr(self, "_" + message["kind"])
        return answer(state, message, totals)

    # -- rows that are drawn -----------------------------------------------------------------------
    def _sample(self, state: DrawnShard, message: dict[str, Any], totals: Totals) -> FloatArray:
        """Add second moments of the features of drawn rows, weighted by reach, to the totals.

        A row's reach is its largest ``|alpha|``. Returns [sum of reach and sum of reach |p| over
        drawn rows; sum of losses at w = 0 over all rows, and the largest distance of alpha = 0 from
        a row's box].
        """
        squares = np.zeros(self.design.rank)
        mass = unit = 0.0
        for X, at, ids in self._pieces(state, self._picks(state, message)):
            for a, b in row_ranges(len(at), self.column_rows):
                rows = X[at[a:b]]
                part = state.dual[ids[a:b]]
                reach = part.reach
                mass += float(np.sum(reach))
                unit += float(np.sum(reach * np.abs(part.lin)))
                if self.design.kernel is not None or isinstance(rows, np.ndarray):
                    phi = self.design.features_of(self.design.columns(rows))
                    squares += reach @ np.square(phi, dtype=np.float64)
                else:
                    squares += rows.power(2).T @ reach
        reproducible.add(totals, "squares", squares, self.square_bound)
        _, _, lo, hi, _ = state.parts
        nothing = float(np.sum(state.dual.losses(np.zeros(len(state.dual)))))
        return np.array([mass, unit, nothing, np.max(np.maximum(lo, -hi), initial=0.0)])

    def _step(self, state: DrawnShard, message: dict[str, Any], totals: Totals) -> FloatArray:
        """Add ``sum s alpha [c, 1]`` over drawn rows to the totals: a subgradient, for each w.

        Keys of ``message``: ``coefs`` (k, m) and ``offsets`` (k,) of the machines w; and those that
        name the drawn rows. Returns [number of drawn rows].
        """
        coefs, offsets = message["coefs"], message["offsets"]
        v = np.zeros((len(coefs), coefs.shape[1] + 1))
        picks = self._picks(state, message)
        for X, at, ids in self._pieces(state, picks):
            for columns, here, rows in self._tiles(X, at, ids):
                for k in range(len(coefs)):
                    _add_subgradient(columns, here, rows, state.parts, coefs[k], offsets[k], v[k])
        if len(picks):
            reproducible.add(totals, "v", v, self.bound)
        return np.array([float(len(picks))])

    def _estimate(self, state: DrawnShard, message: dict[str, Any], totals: Totals) -> FloatArray:
        """Sum the losses of drawn rows at each w.

        Keys of ``message``: ``coefs`` (k, m) and ``offsets`` (k,) of the machines w; and those that
        name the drawn rows. Returns [number of drawn rows, loss at each w...].
        """
        coefs, offsets = message["coefs"], message["offsets"]
        out = np.zeros(1 + len(coefs))
        for X, at, ids in self._pieces(state, self._picks(state, message)):
            dual = state.dual[ids]
            scores = self.design.dots(X[at], np.ascontiguousarray(coefs.T))
            out[0] += len(ids)
            for k in range(len(coefs)):
                out[1 + k] += float(np.sum(dual.losses(scores[:, k] + offsets[k])))
        return out

    def _picks(self, state: DrawnShard, message: dict[str, Any]) -> NDArray[np.int64]:
        """Return the indices in the shard of its rows in the message's batches (see `Draws.ahead`).

        Empty if the shard is not in the current group of shards.
        """
        lane = np.flatnonzero(message["lanes"] == state.shard)
        if not len(lane):
            return np.empty(0, np.int64)
        n, parts, lanes = len(state.dual), message["parts"], len(message["lanes"])
        if state.epoch != message["epoch"]:
            rng = np.random.default_rng([self.seed, message["epoch"], state.shard])
            rows = self.design.data.chunk_rows
            chunks = row_ranges(n, rows)
            drawn = [chunks[c] for c in rng.permutation(len(chunks))]
            state.order = np.concatenate([a + rng.permutation(b - a) for a, b in drawn])
            state.epoch = message["epoch"]
        # If a batch has fewer rows than there are lanes, lanes take turns to give a row.
        ends = [message["first"], message["last"]]
        first, last = ((n * lanes * end + int(lane[0]) * parts) // (parts * lanes) for end in ends)
        return state.order[first:last]

    def _pieces(
        self, state: DrawnShard, picks: NDArray[np.int64]
    ) -> Iterator[tuple[Any, NDArray[np.int64], NDArray[np.int64]]]:
        """Iterate over arrays with picked rows: array, row indices in it, indices in the shard."""
        if not len(picks):
            return
        data = self.design.data
        start, stop = data.shard(state.shard)
        ends = np.flatnonzero(np.diff(picks // data.chunk_rows)) + 1
        # Chunk by chunk also if rows are in memory, so that columns have the same bits.
        for ids in np.split(picks, ends):
            if state.X is not None:
                yield state.X, ids, ids
                continue
            number = int(ids[0] // data.chunk_rows)
            first = number * data.chunk_rows
            if state.chunk[0] != number:
                last = min(start + first + data.chunk_rows, stop)
                state.chunk = number, data.X(start + first, last)
            yield state.chunk[1], ids - first, ids

    def _tiles(
        self, X: Any, at: NDArray[np.int64], ids: NDArray[np.int64]
    ) -> Iterator[tuple[Any, NDArray[np.int64], NDArray[np.int64]]]:
        """Iterate over tiles of columns of rows ``X[at]``, whose indices in the shard are ``ids``.

        Yields the columns, the rows' indices in them, and the rows' indices in the shard.
        """
        if self.design.kernel is None:
            yield as_rows(X), at, ids
            return
        for a, b in row_ranges(len(at), self.column_rows):
            yield as_rows(self.design.columns(X[at[a:b]])), np.arange(b - a), ids[a:b]

    # -- all rows ----------------------------------------------------------------------------------
    def _measure(self, state: DrawnShard, message: dict[str, Any], totals: Totals) -> FloatArray:
        """Sum losses over all rows, and the terms of D for alpha read off at each smoothing.

        Keys of ``message``: ``coef`` (m,) and ``offset`` of one machine; ``smoothings``, the
        half-widths h of smoothed losses. ``sum s alpha [c, border]`` of each alpha is added to the
        totals.

        Returns [loss, the sums of `Terms` of every alpha...].
        """
        coef, offset, smoothings = message["coef"], message["offset"], message["smoothings"]
        data, frame = self.design.data, self.frame
        loss = 0.0
        sums = np.zeros((len(smoothings), frame.terms))
        v = np.zeros((len(smoothings), frame.terms, self.design.width + frame.extras))
        start, stop = data.shard(state.shard)
        for a, b in row_ranges(stop - start, data.chunk_rows):
            X = data.X(start + a, start + b) if state.X is None else state.X[a:b]
            for c, d in row_ranges(b - a, self.column_rows):
                part = state.dual[a + c : a + d]
                rows = X[c:d]
                columns = as_rows(rows if self.design.kernel is None else self.design.columns(rows))
                scores = np.empty(d - c)
                _scores(columns, coef, offset, scores)
                loss += float(np.sum(part.losses(scores)))
                gradient, border = part.gradient(scores), frame.border(part)
                for k, h in enumerate(smoothings):
                    terms = Terms(frame, part, read_off(part, gradient, h))
                    sums[k] += terms.sums
                    terms.add(slice(None), columns, border, v[k])
        reproducible.add(totals, "v", v, self.bound)
        return np.concatenate([[loss], sums.ravel()])

    # -- checkpoints -------------------------------------------------------------------------------
    def save(self, state: DrawnShard) -> Arrays:
        """Return no arrays: messages say all that a state needs."""
        return {}

    def load(self, shard: int, arrays: Arrays) -> DrawnShard:
        """Open the state of a shard again; ``arrays`` is empty."""
        return self.open(shard)


@njit(cache=True, nogil=True)
def _add_subgradient(
    columns: Any,
    at: NDArray[np.int64],
    ids: NDArray[np.int64],
    parts: tuple[FloatArray, ...],
    coef: FloatArray,
    offset: float,
    v: FloatArray,
) -> None:
    """Add ``s alpha [c, 1]`` of rows to v, with alpha at the end that the gradient points to.

    ``columns``: the columns c of rows ``at``, whose indices in the shard are ``ids``; ``parts``:
    sign, lin, lo, hi and tube of the shard's rows; ``coef`` (m,), ``offset``: the machine; ``v``
    (m + 1,): receives the sum.
    """
    sign, lin, lo, hi, tube = parts
    for k in range(len(at)):
        i = ids[k]
        gradient = lin[i] - sign[i] * (row_dot(columns, at[k], coef) + offset)
        alpha = 0.0
        if gradient > tube[i]:
            alpha = hi[i]
        elif gradient < -tube[i]:
            alpha = lo[i]
        if alpha != 0.0:
            row_axpy(columns, at[k], sign[i] * alpha, v)
            v[-1] += sign[i] * alpha


@njit(cache=True, nogil=True)
def _scores(columns: Any, coef: FloatArray, offset: float, out: FloatArray) -> None:
    """Compute the scores ``columns . coef + offset`` of all rows into ``out`` (rows,)."""
    for i in range(len(out)):
        out[i] = row_dot(columns, i, coef) + offset
