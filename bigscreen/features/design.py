"""The design: how the columns and the features of each row are computed from the data.

Row i has columns ``c_i`` (its raw features, or its kernel entries ``k(x_i, z_1..z_m)`` with the
landmarks) and the feature vector ``phi_i = T' c_i``, with the factor ``T`` (the identity for raw
features). A model has one coefficient per column: scores are ``u_i = c_i . coef`` with
``coef = T w``, so features need not be stored, and ``||w(alpha)|| = ||T' v||`` with
``v = sum_i s_i alpha_i c_i``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bigscreen.data.rows import Rows
from bigscreen.fleet.protocol import Fleet
from bigscreen.kernels.backend import HOST, KernelBackend
from bigscreen.kernels.base import FLOAT64_ERROR_FACTOR, Kernel
from bigscreen.kernels.operand import Operand, scratch
from bigscreen.kernels.square import Square
from bigscreen.kernels.standard import Linear
from bigscreen.numerics.rows import FloatArray, as_rows, njit, row_axpy, row_dot
from bigscreen.problems.dual import Dual
from bigscreen.problems.recipes import Problem

ROWS_PER_TILE = 1024
"""Compute the features of at most this many rows at a time, which bounds the memory."""


@dataclass(frozen=True)
class Design:
    """Rows, and how their columns are computed; picklable, shared by solver, certificate, model.

    Parameters
    ----------
    data : Rows
        The rows: the ingested data, or a store of features.
    kernel : Kernel or None
        None: the columns are the rows' own features (linear machine, stored features).
    landmarks : Operand or None
        The landmarks of a kernel design. A kernel without landmarks is the exact kernel machine. It
        has no columns: its solvers compute kernel entries between rows.
    factor : float64 (m, r) or None
        ``T``; None is the identity.
    ridge : float
        If positive, T is upper triangular, the inverse of a Cholesky factor, and
        ``T T' = (K_ZZ + ridge I)^-1``. If 0, T's columns are orthogonal.
    entries : type
        Type of the columns from which stored features are computed: float64 if T has directions
        that the rounding of float32 columns would drown.
    square : Square or None
        The kernel matrix of an exact kernel machine of few rows, shared by solver and closing pass;
        it is not pickled.
    backend : KernelBackend
        Where the block solver's kernel entries between rows are computed, and columns are cached.
    """

    data: Rows
    kernel: Kernel | None = None
    landmarks: Operand | None = None
    factor: FloatArray | None = None
    ridge: float = 0.0
    entries: type = np.float32
    square: Square | None = field(default=None, repr=False, compare=False)
    backend: KernelBackend = HOST

    def dual(self, problem: Problem) -> Dual:
        """Return the dual of all rows for a problem; callers must not write to it.

        With a `square` (few rows) it is cached until another problem is requested.
        """
        made = self._made
        if not made or made[0] is not problem:
            data = self.data
            made[:] = problem, problem.dual(data.y(0, data.n_rows), data.weights(0, data.n_rows))
        dual: Dual = made[1]
        if self.square is None:
            made.clear()
        return dual

    @cached_property
    def _made(self) -> list[Any]:
        """The problem and the dual that `dual` has cached; empty if none."""
        return []

    @property
    def column_key(self) -> tuple[int, ...]:
        """A key that is equal for two designs whose columns of every row are equal."""
        return tuple(map(id, (self.data.shared, self.kernel, self.landmarks, self.factor)))

    @property
    def exact(self) -> bool:
        """Whether this is the exact kernel machine, whose feature vectors are never computed."""
        return self.kernel is not None and self.landmarks is None

    @property
    def definite(self) -> bool:
        """Whether products of features are positive semidefinite, as gaps and screening require.

        True for every design with columns, whatever the kernel, because its features are vectors.
        """
        return not self.exact or self.kernel is None or self.kernel.psd

    @property
    def precision(self) -> type:
        """The type of kernel entries between these rows (see `Kernel.precision`)."""
        assert self.kernel is not None
        return self.kernel.precision(self.data.max_sqnorm, self.data.n_features)

    @property
    def side(self) -> Operand:
        """The landmarks of a kernel design, the right side of its kernel entries."""
        assert self.landmarks is not None
        return self.landmarks

    @property
    def width(self) -> int:
        """Number m of columns."""
        return self.data.n_features if self.landmarks is None else len(self.landmarks)

    @property
    def rank(self) -> int:
        """Dimension r of phi and w."""
        return self.width if self.factor is None else self.factor.shape[1]

    def coef(self, w: FloatArray) -> FloatArray:
        """Return the coefficients of the columns ``T w`` (m,) for w (r,)."""
        if self.factor is None:
            return w
        if not self.ridge:
            return self.factor @ w
        # T is upper triangular: half of a full product would multiply zeros.
        ranges = _factor_ranges(self.rank)
        return np.concatenate([self.factor[a:b, a:] @ w[a:] for a, b in ranges])

    def coef_size(self, w: FloatArray) -> float:
        """Return ``sum |T| |w|``; rounding errors of ``T w`` and scores are proportional to it."""
        if self.factor is None:
            return float(np.abs(w).sum())
        # In parts, since T is large if there are many landmarks.
        parts = (np.abs(self.factor[a:b]) @ np.abs(w) for a, b in _factor_ranges(self.width))
        return float(sum(part.sum() for part in parts))

    def features(self, v: FloatArray) -> FloatArray:
        """Return ``T' v`` (r,) of a weighted sum of columns v (m,)."""
        if self.factor is None:
            return v
        if not self.ridge:
            return self.factor.T @ v
        ranges = _factor_ranges(self.rank)
        return np.concatenate([self.factor[:b, a:b].T @ v[:b] for a, b in ranges])

    def multiply_by_landmark_kernel(self, coef: FloatArray) -> FloatArray:
        """Return ``(K_ZZ + ridge I) coef`` (m,) in float64; K_ZZ: the landmarks' kernel matrix.

        `features` of the result are the w (r,) that has these coefficients of the columns.
        """
        assert self.kernel is not None
        side = self.side
        found = self.kernel.dots(side, side, coef[:, None], np.float64)[:, 0]
        return found + self.ridge * coef if self.ridge else found

    def features_of(
        self, columns: NDArray[Any], out: NDArray[np.float32] | None = None
    ) -> NDArray[Any]:
        """Compute the features (rows, r) of rows from their columns (rows, m), of the same type.

        ``out``: an array to which float32 features are written, and which is returned.
        """
        if self.factor is None:
            return columns
        if self.ridge:
            found = np.empty(columns.shape, columns.dtype) if out is None else out
            for a, b in _factor_ranges(self.rank):
                part = self.factor[:b, a:b].astype(columns.dtype, copy=False)
                found[:, a:b] = columns[:, :b] @ part
            return found
        if columns.dtype == np.float32:
            return Linear().block(columns, self._factor_side, out=out)
        return columns @ self.factor

    @cached_property
    def _factor_side(self) -> Operand:
        """T' (r, m) in float32, as the right side of a product (see `Operand`)."""
        assert self.factor is not None
        return Operand(self.factor.T.astype(np.float32))

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields to pickle: caches are left out, and the `square` is None."""
        known = {each.name: getattr(self, each.name) for each in fields(self)}
        return {**known, "square": None}

    def rows_per_tile(self, most: int) -> int:
        """Choose how many rows' columns to compute at once.

        ``most`` rows, or fewer of them if their kernel entries would not fit a core's cache.
        """
        if self.kernel is None:
            return most
        # 2^21 entries fit a core's cache; with fewer than 64 rows the call itself costs more.
        return max(64, min(most, (1 << 21) // self.width))

    def columns(self, X: Any, dtype: type = np.float32, passing: str = "") -> NDArray[Any]:
        """Return the columns of rows X: dense (len X, m), float32 or float64.

        Raw float64 features stay float64. ``passing``: write kernel columns to this thread's buffer
        of this name, which the next call overwrites (new memory costs more than the entries).
        """
        if self.kernel is not None:
            shape = X.shape[0], self.width
            out = scratch(passing, shape, dtype) if passing else None
            return self.kernel.block(X, self.side, out=out, dtype=dtype)
        dense = X if isinstance(X, np.ndarray) else X.toarray()
        return dense.astype(np.result_type(dense, dtype), copy=False)

    def dots(self, X: Any, coefs: FloatArray, dtype: type = np.float32) -> FloatArray:
        """Return ``columns(X) @ coefs`` (len X, k) in float64, without all columns in memory."""
        if self.kernel is None:
            return _raw_dots(X, coefs)
        return self.kernel.dots(X, self.side, coefs, dtype)

    def norms(self, X: Any, sqnorms: FloatArray) -> FloatArray:
        """Return upper bounds of ``||phi_i||`` (len X,) for rows X with these ``||x||^2``."""
        if self.kernel is None:
            return np.asarray(np.sqrt(sqnorms))
        if not self.kernel.psd:
            # Without a Cauchy-Schwarz bound only the factor limits the norm.
            return np.full(len(sqnorms), self._stretch * self.column_bound)
        # ||T' k_i||^2 <= k_ii for exact columns; T can amplify the errors of float32 columns.
        lengths: FloatArray = np.sqrt(self.kernel.diag(X))
        return lengths * (1 + 1e-6) + self.feature_error()

    def length_errors(self, w: FloatArray) -> FloatArray:
        """Bound how far ``||w||^2`` of each column of w (r, k) differs from the published model's.

        The model's is ``c' (K_ZZ + ridge I) c`` with ``c = T w``; they differ by the rounding of T.
        The result (k,) is the difference computed in float64, plus a bound on the rounding of this
        computation.
        """
        if self.factor is None:
            return np.zeros(w.shape[1])
        assert self.kernel is not None
        coefs = self.factor @ w
        seen = np.einsum("ik,ik->k", coefs, self.dots(self.side.X, coefs, np.float64))
        entry = FLOAT64_ERROR_FACTOR * self._entry_error + 2.0**-52 * self.column_bound
        size = np.einsum("ik,ik->k", coefs, coefs)
        seen += self.ridge * size
        return np.asarray(np.abs(seen - np.einsum("ik,ik->k", w, w)) + entry * size)

    def feature_error(self, dtype: type = np.float32) -> float:
        """Bound the norm of the change of a feature vector by errors of its column entries.

        ``dtype``: the type in which the entries are computed.
        """
        return (
            self._stretch
            * self._entry_error
            * (FLOAT64_ERROR_FACTOR if dtype is np.float64 else 1.0)
        )

    @cached_property
    def longest(self) -> float:
        """Upper bound of the spectral norm ``||T||``."""
        assert self.factor is not None
        if self.ridge:
            # Up to rounding, no eigenvalue of K_ZZ + ridge I is below the ridge. And no eigenvalue
            # of T T' is above the sum of them all.
            root = float(np.sqrt((1 + 1e-3) / self.ridge))
            return min(root, float(np.linalg.norm(self.factor)))
        # T's columns are orthogonal: its spectral norm is the norm of the longest one.
        return float(np.max(np.linalg.norm(self.factor, axis=0)))

    @property
    def _stretch(self) -> float:
        """Upper bound of ``||T' c|| / max |c_j|`` over all vectors c of a row's m columns.

        Errors of column entries change a feature vector by at most this times the largest error.
        """
        return self.longest * float(np.sqrt(self.width))

    @property
    def largest_norm(self) -> float:
        """Upper bound of ``||phi_i||`` over all rows."""
        if self.kernel is None:
            return float(np.sqrt(self.data.max_sqnorm))
        if not self.kernel.psd:
            return self._stretch * self.column_bound
        longest = float(np.sqrt(self.kernel.bound(self.data.max_sqnorm, self.data.max_sqnorm)))
        return longest * (1 + 1e-6) + self.feature_error()

    @property
    def column_bound(self) -> float:
        """Upper bound of the absolute value of any column entry."""
        if self.kernel is None:
            return float(np.sqrt(self.data.max_sqnorm))
        return float(self.kernel.bound(self.data.max_sqnorm, float(np.max(self.side.sqnorms))))

    def score_error(self, coef: FloatArray, dtype: type = np.float32) -> float:
        """Bound the rounding error of one score (maths.md 4): entry error x ``||coef||_1``.

        ``coef`` (m,): coefficients of the columns. ``dtype``: type of the kernel entries.
        """
        weight = float(np.sum(np.abs(coef)))
        if self.kernel is None:
            return 2.0**-52 * float(np.sqrt(self.width)) * self.column_bound * weight
        entry = self._entry_error * (FLOAT64_ERROR_FACTOR if dtype is np.float64 else 1.0)
        return min(entry, 2 * self.column_bound) * weight

    @property
    def _entry_error(self) -> float:
        """Bound on the error of one float32 column entry of a kernel design."""
        # The longest row does not have the largest error: far from every landmark an RBF entry and
        # its error vanish. The bound for rows and landmarks of one length covers all.
        assert self.kernel is not None
        longest = max(self.data.max_sqnorm, float(np.max(self.side.sqnorms)))
        return float(self.kernel.entry_error(longest, longest, self.data.n_features))


def row_ranges(n: int, size: int) -> list[tuple[int, int]]:
    """Split [0, n) into ranges (start, stop) of at most ``size`` rows."""
    return [(a, min(a + size, n)) for a in range(0, n, size)]


def _factor_ranges(size: int) -> list[tuple[int, int]]:
    """Split the rows or columns of a factor T into ranges of 1,024, for one matrix product each.

    So parts that are 0 (T can be triangular) are skipped, and no copy of all of T is needed.
    """
    return row_ranges(size, 1024)


def _raw_dots(X: Any, coefs: FloatArray) -> FloatArray:
    """Multiply dense or CSR rows X with coefficients (d, k): float64 (len X, k)."""
    if not isinstance(X, np.ndarray):
        return np.asarray(X @ coefs)
    out = np.empty((len(X), coefs.shape[1]))
    _dense_dots(X, np.ascontiguousarray(coefs.T), out)
    return out


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _dense_dots(X: NDArray[Any], coefs: FloatArray, out: FloatArray) -> None:
    """Write the products of dense rows X with coefficient vectors (k, d) to `out` (rows, k).

    Sums are float64, whatever the type of X.
    """
    for i in range(X.shape[0]):
        for k in range(coefs.shape[0]):
            total = 0.0
            for j in range(X.shape[1]):
                total += X[i, j] * coefs[k, j]
            out[i, k] = total


def with_constant(design: Design, sums: FloatArray, constant: float) -> FloatArray:
    """Return w from ``sums = sum_i coef_i [c_i, 1]`` (m + 1,) over rows i with columns c_i.

    ``constant``: the value of a feature that is appended to every phi; 0: none is. w is float64
    (r,), with the constant feature (r + 1,). ``design`` turns sums of columns into features (r,).
    """
    w = design.features(sums[:-1])
    return np.append(w, constant * sums[-1]) if constant else w


def weighted_columns(design: Design, coef: FloatArray, fleet: Fleet) -> FloatArray:
    """Sum ``coef_i [c_i, 1]`` over all rows: float64 (m + 1,), columns in float32.

    Parameters
    ----------
    design : Design
        A design with columns (not the exact kernel machine).
    coef : float64 (n,)
        Rows whose coefficient is 0 cost nothing.
    fleet : Fleet
    """
    data = design.data
    items = ((s, coef[slice(*data.shard(s))]) for s in range(data.n_shards))
    # Added in shard order: the same bits for any number of workers.
    total = np.zeros(design.width + 1)
    for part in fleet.each(_ColumnSum(design), items):
        total += part
    return total


def compute_scores(design: Design, coef: FloatArray, fleet: Fleet) -> FloatArray:
    """Compute the score ``c_i . coef`` of each row: float64 (n,), columns in float32."""
    parts = fleet.each(_Scores(design, coef), range(design.data.n_shards))
    return np.concatenate(list(parts))


class RowsAtBounds(NamedTuple):
    """Gradients of rows, and a sum over these rows with each alpha at a bound.

    ``G`` (n,): the dual gradients. ``sums`` (m + 1,): ``sum_i s_i alpha_i [c_i, 1]``, c_i the
    columns of row i; alpha_i is the upper bound if G_i is positive, else 0.
    """

    G: FloatArray
    sums: FloatArray


def put_rows_at_bounds(
    design: Design, problem: Problem, coef: FloatArray, offset: float, fleet: Fleet
) -> RowsAtBounds:
    """Put alpha of each row at the bound that its gradient points to; one pass over the data.

    Parameters
    ----------
    design : Design
        A design with columns (not the exact kernel machine); they are computed in float32.
    problem : Problem
        A problem whose boxes begin at 0.
    coef : float64 (m,)
        Coefficients of the columns, which give the scores.
    offset : float
        Added to the scores.
    fleet : Fleet
    """
    gradients, total = [], np.zeros(design.width + 1)
    # Added in shard order: the same bits for any number of workers.
    for part in fleet.each(
        _PutAtBounds(design, problem, coef, offset), range(design.data.n_shards)
    ):
        gradients.append(part.G)
        total += part.sums
    return RowsAtBounds(np.concatenate(gradients), total)


@dataclass(frozen=True)
class _PutAtBounds:
    """The task of `put_rows_at_bounds` for one shard, called with the shard's number."""

    design: Design
    problem: Problem
    coef: FloatArray
    offset: float

    def __call__(self, shard: int) -> RowsAtBounds:
        """Return one shard's gradients, and its sum over rows with alpha at bounds."""
        design, data = self.design, self.design.data
        start, stop = data.shard(shard)
        dual = self.problem.dual(data.y(start, stop), data.weights(start, stop))
        G, total = np.empty(len(dual)), np.zeros(design.width + 1)
        for a, b in row_ranges(stop - start, data.chunk_rows):
            X = data.X(start + a, start + b)
            for c, d in row_ranges(b - a, design.rows_per_tile(ROWS_PER_TILE)):
                columns = design.columns(X[c:d], passing="summed") if design.kernel else X[c:d]
                tile, rows, own = slice(a + c, a + d), as_rows(columns), np.empty(d - c)
                column_dots(rows, self.coef, own)
                part = dual[tile]
                G[tile] = part.gradient(own + self.offset)
                _add(rows, part.sign * np.where(G[tile] > 0, part.hi, 0.0), total)
        return RowsAtBounds(G, total)


@dataclass(frozen=True)
class _ColumnSum:
    """The task of `weighted_columns` for one shard, called with (its number, its coefficients)."""

    design: Design

    def __call__(self, item: tuple[int, FloatArray]) -> FloatArray:
        """Return one shard's sum of ``coef_i [c_i, 1]``, c_i the columns of row i: (m + 1,).

        ``item``: the shard's number, and the coefficients of its rows.
        """
        shard, coef = item
        design, data = self.design, self.design.data
        start, stop = data.shard(shard)
        total = np.zeros(design.width + 1)
        for a, b in row_ranges(stop - start, data.chunk_rows):
            used = np.flatnonzero(coef[a:b])
            if not len(used):
                continue
            X = data.X(start + a, start + b)
            for c, d in row_ranges(len(used), design.rows_per_tile(ROWS_PER_TILE)):
                rows = X[used[c:d]]
                columns = design.columns(rows, passing="summed") if design.kernel else rows
                _add(as_rows(columns), coef[a:b][used[c:d]], total)
        return total


@dataclass(frozen=True)
class _Scores:
    """The task of `compute_scores` for one shard, called with the shard's number."""

    design: Design
    coef: FloatArray

    def __call__(self, shard: int) -> FloatArray:
        """Return the scores ``c_i . coef`` of one shard's rows, c_i their columns: (rows,)."""
        data = self.design.data
        start, stop = data.shard(shard)
        found = [
            self.design.dots(data.X(start + a, start + b), self.coef[:, None])[:, 0]
            for a, b in row_ranges(stop - start, data.chunk_rows)
        ]
        return np.concatenate(found)


@njit(cache=True, nogil=True)
def column_dots(columns: Any, coef: FloatArray, out: FloatArray) -> None:
    """Write the scores ``c_i . coef`` to `out` (rows,), c_i the columns of row i, dense or CSR."""
    for i in range(len(out)):
        out[i] = row_dot(columns, i, coef)


@njit(cache=True, nogil=True)
def _add(columns: Any, coef: FloatArray, total: FloatArray) -> None:
    """Add ``sum_i coef_i [c_i, 1]`` to `total` (m + 1,), c_i the columns of row i, dense or CSR."""
    for i in range(len(coef)):
        row_axpy(columns, i, coef[i], total)
        total[-1] += coef[i]
