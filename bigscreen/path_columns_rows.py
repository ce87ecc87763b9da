"""Rows of explicit features in memory, and the loops over them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.dual import FloatArray
from bigscreen.rows import as_rows, njit, row_axpy, row_dot, row_load, row_sqnorm

EPS = 2.0**-53
TILE = 32
"""Rows summed before their sum is added to the others': rounding grows with it, not with n."""


class Columns:
    """phi of every row: its columns, and perhaps a 1 behind them.

    Parameters
    ----------
    X : float32 or float64 (n, d), dense or CSR
    constant : bool
        Whether a 1 is appended.

    Raises
    ------
    InputError
        If X is neither dense nor CSR, or not floating point.
    """

    def __init__(self, X: Any, constant: bool) -> None:
        self.X, self.constant = as_rows(X), constant
        self.n_rows = X.shape[0]
        self.width = X.shape[1] + constant
        """Length of phi and w."""
        self.entries = X.size / max(1, self.n_rows)
        """Entries of a row that are stored."""
        self.sqnorms = np.empty(self.n_rows)
        _sqnorms(self.X, self.sqnorms)
        self.sqnorms += constant
        self.norms = np.sqrt(self.sqnorms) * (1 + (self.width + 4) * EPS)
        self.largest = float(np.max(self.norms, initial=0.0))
        # A tile costs as much as d entries: as many rows that this is an eighth of it.
        self._tile = max(TILE, int(8 * self.width / max(1.0, self.entries)))
        self._every = np.arange(self.n_rows)
        self._position = np.arange(X.shape[1])

    def sum(self, coef: FloatArray) -> tuple[FloatArray, float]:
        """``sum coef_i phi_i`` over all rows (d,), and a bound on the length of its error.

        Rows whose coefficient is 0 cost nothing.
        """
        w = np.zeros(self.width)
        size = _sum(self.X, coef, self.norms, self.constant, self._tile, w)
        return w, (self._tile + 4) * EPS * size

    def add(self, rows: NDArray[np.int64], coef: FloatArray, w: FloatArray) -> None:
        """``w += sum coef_k phi_k`` over some rows."""
        _add(self.X, rows, coef, self.constant, w)

    def scores(self, w: FloatArray, rows: NDArray[np.int64] | None = None) -> FloatArray:
        """``<w, phi_i>`` of some rows, or of all."""
        rows = self._every if rows is None else rows
        out = np.empty(len(rows))
        _dots(self.X, rows, w, self.constant, out)
        return out

    def dense(self, rows: NDArray[np.int64], scale: FloatArray) -> FloatArray:
        """``scale_k phi_k`` of some rows, float64 (rows, d)."""
        out = np.empty((len(rows), self.width))
        _load(self.X, rows, scale, self._position, self.constant, out)
        return out

    def score_error(self, w: FloatArray) -> float:
        """Bound on the rounding error of any score of this w."""
        return (self.width + 2) * EPS * self.largest * float(np.linalg.norm(w))


@njit(nogil=True, cache=True)
def _sqnorms(X, out):  # type: ignore[no-untyped-def]
    for i in range(len(out)):
        out[i] = row_sqnorm(X, i)


@njit(nogil=True, cache=True)
def _sum(X, coef, norms, constant, tile, w):  # type: ignore[no-untyped-def]
    part, lost = np.empty_like(w), np.zeros_like(w)
    size = 0.0
    for start in range(0, len(coef), tile):
        part[:] = 0.0
        for i in range(start, min(start + tile, len(coef))):
            if coef[i] != 0.0:
                size += abs(coef[i]) * norms[i]
                row_axpy(X, i, coef[i], part)
                if constant:
                    part[-1] += coef[i]
        # What an addition rounds off goes into the next one (Kahan).
        for j in range(len(w)):
            term = part[j] - lost[j]
            total = w[j] + term
            lost[j] = (total - w[j]) - term
            w[j] = total
    return size


@njit(nogil=True, cache=True)
def _add(X, rows, coef, constant, w):  # type: ignore[no-untyped-def]
    for k in range(len(rows)):
        row_axpy(X, rows[k], coef[k], w)
        if constant:
            w[-1] += coef[k]


@njit(nogil=True, cache=True)
def _dots(X, rows, w, constant, out):  # type: ignore[no-untyped-def]
    for k in range(len(rows)):
        out[k] = row_dot(X, rows[k], w)
        if constant:
            out[k] += w[-1]


@njit(nogil=True, cache=True)
def _load(X, rows, scale, position, constant, out):  # type: ignore[no-untyped-def]
    origin = np.zeros(out.shape[1])
    for k in range(len(rows)):
        row_load(X, rows[k], position, origin, out[k])
        if constant:
            out[k, -1] = 1.0
        for j in range(out.shape[1]):
            out[k, j] *= scale[k]
