"""The closing pass: P, D and the gap of a point over ALL rows, independent of the solver.

Nothing that a solver, a screening rule or lazy rows left out is left out here: every score is
computed again, alpha is read off (or handed in), and the sums are float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np

from bigscreen.design import Design, tiles
from bigscreen.dual import Dual, FloatArray
from bigscreen.point import Point
from bigscreen.problems import CSvc
from bigscreen.rows import as_rows, njit, row_axpy, row_dot

TILE = 1024
"""Rows whose columns are held at once: a tile and its columns stay in cache."""


class Throughput(Protocol):
    """The part of a fleet that runs independent tasks."""

    def each(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]: ...


@dataclass(frozen=True)
class Certificate:
    """What is proved about a point.

    Parameters
    ----------
    primal, dual, gap, relative_gap : float
        P(w), D(alpha), their difference, and that over P: P is at most ``gap`` above the optimum.
    rounding_bound : float
        Bound on the error that the sums' rounding can have put into ``gap``.
    certified_in : str
        Precision of the columns: float32 or float64 (the sums are always float64). In float32 the
        machine certified is the one whose columns are the float32 entries: P and D are summed from
        the very same numbers, so weak duality holds between them; float64 certifies the kernel's
        exact columns. An exact kernel machine has no columns: it is certified for the kernel
        itself, and this is the precision of the entries that most scores came from.
    rows : int
        Rows summed over: all of them.
    support : int
        Rows with alpha away from 0.
    intercept : float or None
        The offset of the certified machine where that is not the point's own.
    """

    primal: float
    dual: float
    gap: float
    relative_gap: float
    rounding_bound: float
    certified_in: str
    rows: int
    support: int
    intercept: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class _ShardSums:
    """Runs anywhere: one shard's part of P and, for every part of alpha, of p . alpha and V."""

    design: Design
    exact: Design
    problem: CSvc
    point: Point
    coef: FloatArray
    dtype: type

    def __call__(self, item: tuple[int, FloatArray | None]) -> tuple[FloatArray, FloatArray]:
        """Sums of shard ``item[0]`` whose dual point is ``item[1]`` (None: read off scores).

        Returns ([loss, box weight, rows, support], one row a part of alpha: [p . alpha by sign
        (2), sum |alpha|, V by sign (2 (m + 1))]).
        """
        shard, given = item
        data = self.exact.data
        start, stop = data.shard(shard)
        dual = self.problem.dual(data.y(start, stop), data.weights(start, stop))
        sums = np.zeros(4)
        parts = np.zeros((max(1, len(self.point.readings)), 3 + 2 * (self.exact.width + 1)))
        for a, b in tiles(stop - start, data.chunk_rows):
            X = data.X(start + a, start + b)
            other = X if self.exact is self.design else self.design.data.X(start + a, start + b)
            for c, d in tiles(b - a, TILE):
                rows = slice(a + c, a + d)
                columns = _columns(self.exact, X[c:d], self.dtype)
                # Alpha is read off the very columns that the solver read it off: any alpha in the
                # box is as good, but at a small h another reading is another alpha.
                same = self.exact is self.design and self.dtype is np.float32
                read = columns if same else _columns(self.design, other[c:d], np.float32)
                alphas = [given[rows]] if given is not None else self._alphas(dual[rows], read)
                self._tile(dual[rows], columns, alphas, sums, parts)
        return sums, parts

    def _tile(
        self,
        dual: Dual,
        columns: Any,
        alphas: Iterable[FloatArray],
        sums: FloatArray,
        parts: FloatArray,
    ) -> None:
        scores = np.empty(len(dual))
        _scores(columns, self.coef, self.point.intercept, scores)
        # The offset is in the scores already, so the multiplier of a coupling is not added again.
        gradient = dual.lin - dual.sign * scores
        sums[0] += np.maximum(dual.hi * gradient, dual.lo * gradient).sum()
        sums[1] += np.maximum(np.abs(dual.lo), np.abs(dual.hi)).sum()
        sums[2] += len(dual)
        used = np.zeros(len(dual), np.bool_)
        for k, alpha in enumerate(alphas):
            lin = dual.lin * alpha
            parts[k, 0] += lin[dual.sign > 0].sum()
            parts[k, 1] += lin[dual.sign < 0].sum()
            parts[k, 2] += np.abs(alpha).sum()
            _add_by_sign(columns, dual.sign * alpha, parts[k, 3:].reshape(2, -1))
            used |= alpha != 0
        sums[3] += np.count_nonzero(used)

    def _alphas(self, dual: Dual, columns: Any) -> Iterator[FloatArray]:
        scores = np.empty(len(dual))
        for reading in self.point.readings:
            _scores(columns, reading.coef, reading.intercept, scores)
            yield reading.alpha(dual, scores)


def _columns(design: Design, X: Any, dtype: type) -> Any:
    """Columns as compiled loops take them; raw features, dense or CSR, are their own."""
    return as_rows(X if design.kernel is None else design.columns(X, dtype))


def close(
    design: Design,
    problem: CSvc,
    point: Point,
    fleet: Throughput,
    certify: str = "float32",
    source: Design | None = None,
) -> Certificate:
    """Certify a point over all rows.

    Parameters
    ----------
    design, problem, point
        What was solved, and where the solver stands.
    fleet : Throughput
        Runs one task a shard; the result does not depend on how many workers it has.
    certify : {"float32", "float64"}
        Precision of the columns' entries; sums are float64 either way.
    source : Design or None
        The kernel design behind a design of stored features, with the same rows: float64
        certifies its exact columns in place of the features stored in float32.
    """
    dtype = np.float64 if certify == "float64" else np.float32
    exact = source if certify == "float64" and source is not None else design
    data, width = exact.data, exact.width
    items = (
        (s, None if point.alpha is None else point.alpha[slice(*data.shard(s))])
        for s in range(data.n_shards)
    )
    theta = [reading.weight for reading in point.readings] or [1.0]
    total, parts = np.zeros(4), np.zeros((len(theta), 3 + 2 * (width + 1)))
    for sums, shard_parts in fleet.each(
        _ShardSums(design, exact, problem, point, exact.coef(point.w), dtype), items
    ):
        total += sums
        parts += shard_parts
    loss, box, rows, support = total
    lin = size = b_alpha = 0.0
    w_alpha = np.zeros(exact.rank)
    for weight, part in zip(theta, parts, strict=True):
        # Each part of the mixture is made feasible by itself: so is their mixture.
        v = part[3:].reshape(2, -1)
        keep = problem.feasible(v[0, -1], -v[1, -1])
        lin += weight * float(keep @ part[:2])
        size += weight * float(part[2])
        w_alpha += weight * exact.features(keep @ v[:, :-1])
        b_alpha += weight * float(keep @ v[:, -1])
    constant = problem.intercept == "constant"
    primal = loss + 0.5 * float(point.w @ point.w) + 0.5 * constant * point.intercept**2
    dual = lin - 0.5 * float(w_alpha @ w_alpha) - 0.5 * constant * b_alpha**2
    # Float64 sums only: the features ARE their computed columns, the same numbers in P and D.
    largest, eps = max(exact.column_bound, 1.0), 2.0**-53
    terms, rows_summed = width + exact.rank, data.shard_rows + data.n_shards
    rounding = eps * (
        terms * box * largest * (exact.coef_size(point.w) + abs(point.intercept))
        + (terms + rows_summed) * size * largest * exact.coef_size(w_alpha)
        + rows_summed * (abs(primal) + abs(dual) + box)
    )
    gap = float(primal - dual)
    return Certificate(
        primal=float(primal),
        dual=float(dual),
        gap=gap,
        # A P that vanishes beside the box is 0: one side of the data has no weight.
        relative_gap=float(gap / max(abs(primal), 2.0**-52 * box)) if gap else 0.0,
        rounding_bound=float(rounding),
        certified_in=certify,
        rows=int(rows),
        support=int(support),
    )


@njit(cache=True, nogil=True)
def _scores(columns, coef, intercept, out):  # type: ignore[no-untyped-def]
    for i in range(len(out)):
        out[i] = row_dot(columns, i, coef) + intercept


@njit(cache=True, nogil=True)
def _add_by_sign(columns, coef, v):  # type: ignore[no-untyped-def]
    """``v[k] += sum coef_i [c_i, 1]`` over rows whose coefficient is > 0 (k = 0) or < 0 (1)."""
    for i in range(len(coef)):
        if coef[i] != 0.0:
            k = 0 if coef[i] > 0 else 1
            row_axpy(columns, i, coef[i], v[k])
            v[k, -1] += coef[i]
