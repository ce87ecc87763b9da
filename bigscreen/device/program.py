"""What every shard computes for the textbook Newton: sums over its rows, for k problems at once."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.device.features import Features
from bigscreen.device.losses import Losses
from bigscreen.device.place import CPU, Place
from bigscreen.features.design import Design
from bigscreen.numerics import reproducible
from bigscreen.numerics.reproducible import Totals
from bigscreen.numerics.rows import FloatArray
from bigscreen.problems.point import SumLayout
from bigscreen.solvers.protocol import Case

_ONE_AT_A_TIME = threading.Lock()
"""Held while a shard uses a device, so that threads do not take memory for several tiles."""


@dataclass
class Shard:
    """A shard's rows on a device, for the problems that are not solved yet.

    ``problems``: their numbers, ascending, int64 (k,) on the host. ``G``: the gradients of all rows
    and problems, and ``change``: theirs along a step of length 1, float64 (rows, k). ``reach``:
    the sums of the rows' reach, see `Dual.reach`, and ``zero``: whether alpha = 0 is within all
    boxes, (problems at the start,) on the host.
    """

    problems: NDArray[np.int64]
    features: Features
    losses: Losses
    G: Any
    change: Any
    reach: FloatArray
    zero: FloatArray


@dataclass(frozen=True)
class DenseProgram:
    """What every shard computes (see `fleet.Program`); answers are summed by the coordinator.

    Every message has ``kind`` (the method ``"_" + kind`` answers) and ``left``: the numbers of the
    problems that are not solved yet. Arrays of messages and answers are on the host, and have a row
    for each of these problems.

    Parameters
    ----------
    design : Design
    cases : tuple of Case
    frame : SumLayout
        The layout of any of the problems: they differ in totals only.
    place : Place
        Where arrays live; each worker has its own device of this name.
    dtype : type
        float32 or float64, of features.
    room : float
        Bytes that the features of all rows may take, in all workers together.
    ranges : tuple of (int, int)
        The first row and the end of each shard.
    """

    design: Design
    cases: tuple[Case, ...]
    frame: SumLayout
    place: Place
    dtype: type
    room: float
    ranges: tuple[tuple[int, int], ...]

    def open(self, shard: int) -> Shard:
        """Return the state at x = 0."""
        with self._turn():
            return self._open(shard, self.dtype)

    def _open(self, shard: int, dtype: type) -> Shard:
        """Return the state at x = 0, with features of this type."""
        rows, k = self.ranges[shard], len(self.cases)
        reach, zero = np.zeros(k), np.zeros(k)

        def duals() -> Any:
            """Yield the dual of each problem's rows, and note its reach."""
            for j, (problem, data) in enumerate(self.cases):
                dual = problem.dual(data.y(*rows), data.weights(*rows))
                reach[j] = dual.reach.sum()
                zero[j] = np.all(dual.lo <= 0) and np.all(dual.hi >= 0)
                yield dual

        losses = Losses(self.place, duals(), k, self.frame)
        zeros = self.place.zeros((rows[1] - rows[0], k))
        state = self._features(rows, dtype)
        return Shard(np.arange(k), state, losses, losses.gradients(zeros), zeros, reach, zero)

    def _features(self, rows: tuple[int, int], dtype: type) -> Features:
        """Make the features of a shard's rows; each shard has its rows' part of the room."""
        part = (rows[1] - rows[0]) / max(self.design.data.n_rows, 1)
        return Features(self.design, rows, self.place, dtype, self.room * part)

    def step(self, state: Shard, message: dict[str, Any], totals: Totals) -> FloatArray:
        """Answer one message; numbers of problems come first, see the methods."""
        with self._turn():
            left = message["left"]
            if len(left) < len(state.problems):
                keep = self.place.put(np.searchsorted(state.problems, left), np.int64)
                state.losses.narrow(keep)
                state.G, state.change = (
                    self.place.xp.take(a, keep, axis=1) for a in (state.G, state.change)
                )
                state.problems = left
            answer: FloatArray = getattr(self, "_" + message["kind"])(state, message, totals)
            return answer.ravel()

    def _turn(self) -> Any:
        """Return the lock of a device; threads of the CPU need none."""
        return nullcontext() if self.place == CPU else _ONE_AT_A_TIME

    def _sizes(self, state: Shard, message: dict[str, Any], totals: Totals) -> FloatArray:
        """Answer with each problem's sums of reach and of ``up + down``, and how G weighs there.

        (k, 4): reach, ``up + down``, ``(up + down) |G|``, and 0 if alpha = 0 is within all boxes.
        """
        weight = state.losses.weight + 0.0 * state.G
        found = self._sums(weight, weight * self.place.xp.abs(state.G))
        return np.column_stack([state.reach, *found, 1.0 - state.zero])

    def _take(self, state: Shard, message: dict[str, Any], totals: Totals) -> FloatArray:
        """Move G by step lengths ``t`` along the last directions, and read alpha off it.

        Keys of ``message``: ``h`` and ``t``, (k,) each; or instead of ``t`` a machine ``x`` (k,
        size) to score all rows with anew, and the type ``dtype`` of features to do it with; and
        ``read`` (k,), the h with which the dual point is read off.

        Returns (k, 4 + ...): the losses, ``sum alpha G - e |alpha|``, the curvature of all rows and
        the rows in the band, then the dual point's sums of `SumLayout.value`, and its ``sum s alpha
        [phi, border]`` of each term; then, if ``read`` is not h, this sum for the alpha of h.
        """
        xp, losses = self.place.xp, state.losses
        if "x" in message:
            dtype = np.dtype(message["dtype"]).type
            if state.features.dtype is not dtype:
                start, rows = state.features.start, state.features.n
                del state.features
                state.features = self._features((start, start + rows), dtype)
            state.G = losses.gradients(self._scores(state, message["x"]))
        else:
            state.G = state.G + self._per_problem(message["t"]) * state.change
        h, read = (self._per_problem(message[name]) for name in ("h", "read"))
        alpha, curvature = losses.alpha(state.G, h), losses.curvature(state.G, h)
        terms, sums = losses.terms(losses.alpha(state.G, read))
        if not np.array_equal(message["h"], message["read"]):
            terms.append(losses.of_rows["sign"] * alpha)
        V = state.features.sums(xp.concat(terms, axis=1))
        V = self.place.take_back(V).reshape(len(terms), alpha.shape[1], -1)
        borders = [self._sums(*(entry * term for entry in losses.border)) for term in terms]
        head = [losses.plain(state.G), losses.slopes(state.G, alpha)]
        band = xp.astype(curvature > 0, alpha.dtype)
        head = [self.place.take_back(each) for each in [*head, *self._sums(curvature, band), *sums]]
        parts = [np.column_stack(head)]
        for v, border in zip(V, borders, strict=True):
            parts += [v, np.column_stack(border)] if border else [v]
        return np.concatenate(parts, axis=1)

    def _alpha(self, state: Shard, message: dict[str, Any], totals: Totals) -> FloatArray:
        """Answer with the feasible alpha that some problems' rows have now (problems, longest).

        Keys of ``message``: ``of``, the positions of these problems among the k; ``read`` (k,);
        ``scales`` (problems, terms), see `SumLayout.scales`; ``longest``, the number of entries,
        which are NaN where the shard has no more rows.
        """
        losses, (of, scales) = state.losses, (message[name].tolist() for name in ("of", "scales"))
        terms, _ = losses.terms(losses.alpha(state.G, self._per_problem(message["read"])))
        sign, answer = losses.of_rows["sign"], np.full((len(of), message["longest"]), np.nan)
        for i, j in enumerate(of):
            parts = zip(scales[i], terms, strict=True)
            signed = sum(scale * term[:, j] for scale, term in parts)
            alpha = signed * sign[:, j if sign.shape[1] > 1 else 0]
            answer[i, : alpha.shape[0]] = self.place.take_back(alpha)
        return answer

    def _along(self, state: Shard, message: dict[str, Any], totals: Totals) -> FloatArray:
        """Find the change of G along steps ``d`` (k, size); returns ``sum (up + down) |dG|``."""
        state.change = -state.losses.of_rows["sign"] * self._scores(state, message["d"])
        return self._sums(state.losses.weight * self.place.xp.abs(state.change))[0]

    def _slope(self, state: Shard, message: dict[str, Any], totals: Totals) -> FloatArray:
        """Answer with the losses' first and second derivative at lengths ``t`` of a step (k, 2).

        Keys of ``message``: ``t`` and ``h``, (k,) each.
        """
        losses, h = state.losses, self._per_problem(message["h"])
        G = state.G + self._per_problem(message["t"]) * state.change
        slope = losses.alpha(G, h) * state.change
        return np.column_stack(self._sums(slope, losses.curvature(G, h) * state.change**2))

    def _hessian(self, state: Shard, message: dict[str, Any], totals: Totals) -> FloatArray:
        """Add the losses' Hessian of some problems to the totals, by evenly spread band rows.

        Keys of ``message``: ``h`` (k,); ``of``, the positions of these problems among the k;
        ``strides`` and ``turn``, see `_moment`; ``bounds`` of any entry of each sum. The totals
        are named "hessian 0", "hessian 1", ... in the order of ``of``.
        """
        curvature = state.losses.curvature(state.G, self._per_problem(message["h"]))
        of, bounds = message["of"].tolist(), message["bounds"].tolist()
        for i, (j, bound) in enumerate(zip(of, bounds, strict=True)):
            moment = self.place.take_back(self._moment(state, message, curvature, j))
            reproducible.add(totals, f"hessian {i}", moment, bound)
        return np.zeros(0)

    def _newton(self, state: Shard, message: dict[str, Any], totals: Totals) -> FloatArray:
        """Answer with Newton's directions (k, size), if this shard has all rows.

        Then no Hessian leaves the device. Keys of ``message``: ``h``, ``strides`` and ``turn``, see
        `moment`; ``g`` (k, size), the gradients, and ``ridge`` (k, size), see `newton_direction`.
        """
        curvature = state.losses.curvature(state.G, self._per_problem(message["h"]))
        found = []
        for j, (g, ridge) in enumerate(zip(message["g"], message["ridge"], strict=True)):
            moment = self._moment(state, message, curvature, j)
            found.append(newton_direction(self.place, moment, g, ridge))
        return np.stack(found)

    def _moment(self, state: Shard, message: dict[str, Any], curvature: Any, j: int) -> Any:
        """Return the Hessian of the losses of the j-th problem (size, size), on the device.

        Of the rows in the smoothing band, it takes each ``strides[j]``-th, beginning with a row
        that ``turn`` chooses, and multiplies their curvatures by the stride. ``curvature``: of all
        rows and problems (rows, k).
        """
        xp, stride, own = self.place.xp, int(message["strides"][j]), curvature[:, j]
        (band,) = xp.nonzero(own > 0)
        ids = band[message["turn"] % stride :: stride]
        border = self.place.zeros((ids.shape[0], len(state.losses.border)))
        for e, entry in enumerate(state.losses.border):
            if isinstance(entry, float):
                border[:, e] = entry
            else:
                border[:, e] = xp.take(entry[:, j if entry.shape[1] > 1 else 0], ids)
        return state.features.moment(ids, border, stride * xp.take(own, ids))

    def save(self, state: Shard) -> dict[str, NDArray[Any]]:
        """Return the arrays of a state that do not follow from the data and the problems."""
        found = {name: self.place.take_back(getattr(state, name)) for name in ("G", "change")}
        wide = np.array(state.features.dtype is np.float64)
        return {**found, "problems": state.problems, "wide": wide}

    def load(self, shard: int, arrays: dict[str, NDArray[Any]]) -> Shard:
        """Return the state of a shard whose ``arrays`` `save` returned."""
        with self._turn():
            state = self._open(shard, np.float64 if arrays["wide"] else np.float32)
        keep = self.place.put(arrays["problems"], np.int64)
        state.losses.narrow(keep)
        state.problems = arrays["problems"]
        state.G, state.change = self.place.put(arrays["G"]), self.place.put(arrays["change"])
        return state

    def _scores(self, state: Shard, x: FloatArray) -> Any:
        """Return the products ``[phi, border] . x`` of all rows, for machines x (k, size)."""
        X, rank = self.place.put(x.T), self.design.rank
        scores = state.features.dot(X[:rank, :])
        for e, entry in enumerate(state.losses.border):
            scores = scores + entry * X[rank + e, :][None, :]
        return scores

    def _per_problem(self, values: FloatArray) -> Any:
        """Move one number for each problem to the device, as a row (1, k)."""
        return self.place.put(values[None, :])

    def _sums(self, *arrays: Any) -> list[FloatArray]:
        """Sum each array (rows, k) over the rows: (k,) on the host."""
        return [self.place.take_back(self.place.xp.sum(array, axis=0)) for array in arrays]


def newton_direction(place: Place, hessian: Any, g: FloatArray, ridge: FloatArray) -> FloatArray:
    """Return the Newton direction (size,), on the host.

    ``hessian`` (size, size): of the losses, on the device; ``g`` (size,): the gradient of P_h, and
    ``ridge`` (size,): what is added to the diagonal, on the host.
    """
    xp = place.xp
    diagonal = place.put(ridge) + 1e-15 * xp.max(hessian)
    whole = hessian + xp.eye(len(g), dtype=xp.float64, device=place.device) * diagonal
    return -place.take_back(xp.linalg.solve(whole, place.put(g[:, None])))[:, 0]
