"""Kernel entries, compiled: one scalar function per kernel, and the loops that apply it to a tile.

The constants of a kernel travel as a named tuple whose type chooses the function (an overload of
`entry`), so the loops exist once and are specialised, vectorised and cached for every kernel.
"""

from typing import NamedTuple

import numpy as np

from bigscreen.rows import exp2_negative, njit, overload, tanh


class LinearTerms(NamedTuple):
    pass


class RbfTerms(NamedTuple):
    scale: float


class PolynomialTerms(NamedTuple):
    scale: float
    shift: float
    factors: tuple[int, ...]  # its LENGTH is degree - 1: a constant of the compiled type


class LaplacianTerms(NamedTuple):
    scale: float


class SigmoidTerms(NamedTuple):
    scale: float
    shift: float


def entry(terms, value, half_a, half_b):
    """One kernel entry from the value of a pair of rows (see `tiles.tiles`)."""


def _entry_for(constants: type):
    """Register a compiled function as `entry` for these constants."""

    def register(function):
        def choose(terms, value, half_a, half_b):
            return function if getattr(terms, "instance_class", None) is constants else None

        overload(entry, jit_options={"fastmath": {"contract"}})(choose)
        return function

    return register


@_entry_for(LinearTerms)
def _linear(terms, value, half_a, half_b):
    return value


@_entry_for(RbfTerms)
def _rbf(terms, value, half_a, half_b):
    # value - half_a - half_b = -||a - b||^2 / 2; exp2_negative clips what rounding made positive.
    return exp2_negative(terms.scale * ((value - half_b) - half_a))


@_entry_for(PolynomialTerms)
def _polynomial(terms, value, half_a, half_b):
    x = terms.scale * value + terms.shift
    power = x
    for _ in range(len(terms.factors)):
        power *= x
    return power


@_entry_for(LaplacianTerms)
def _laplacian(terms, value, half_a, half_b):
    return exp2_negative(terms.scale * value)


@_entry_for(SigmoidTerms)
def _sigmoid(terms, value, half_a, half_b):
    return tanh(terms.scale * value + terms.shift)


@njit(nogil=True, cache=True, fastmath={"contract"})
def _finish_row(terms, row, half_a, half_b):
    for j in range(len(row)):
        row[j] = entry(terms, row[j], half_a, half_b[j])


@njit(nogil=True, cache=True, fastmath={"contract"})
def finish(terms, values, first, half_a, half_b):
    """Values to kernel entries, in place."""
    for i in range(len(values)):
        _finish_row(terms, values[i, first : first + len(half_b)], half_a[i], half_b)


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract", "nsz"})
def dot(row, v):
    """float32 entries, float64 products and sum: 0.04 ns an entry over float32 sums, worth it."""
    total = 0.0
    for j in range(len(row)):
        total += np.float64(row[j]) * v[j]
    return total


@njit(nogil=True, cache=True)
def finish_dots(terms, values, first, half_a, half_b, VT, column, out):
    """out += entries @ V, each row of entries read back while it is in the first-level cache."""
    width = len(half_b)
    for i in range(len(values)):
        row = values[i, first : first + width]
        _finish_row(terms, row, half_a[i], half_b)
        for c in range(len(VT)):
            out[i, c] += dot(row, VT[c, column : column + width])
