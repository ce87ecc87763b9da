"""Made-up data of the shape of SUSY, for demonstrations and tests.

Rows come in blocks of fixed size; a block follows from its number and the seed alone, so any of
them can be made by itself, anywhere, and memory holds one at a time. None of this is real data:
whatever prints a number measured on it says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.special import expit

from bigscreen.errors import InputError

SUSY_FEATURES = 18
STRAIGHT, CURVED = 2.08, 1.13
"""``P(y = 1 | x) = sigmoid(STRAIGHT x_0 + CURVED x_1 x_2)``: Bayes error 20 %."""

_LOW_LEVEL = 8
# The derived features are radii of these pairs. None of them tells the sign of x_1 x_2, so that
# a straight model learns nothing of it.
_PAIRS = ((0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 6), (6, 7), (7, 0), (1, 4), (2, 6))
_RADIUS_MEAN = np.sqrt(np.pi / 2)
_RADIUS_DEVIATION = np.sqrt(2 - np.pi / 2)

Block = tuple[NDArray[np.float32] | csr_array, NDArray[np.int64]]


@dataclass(frozen=True)
class Blocks:
    """Rows that are made when asked for; iterate over it for all of them.

    Attributes
    ----------
    n_rows, n_features : int
    block_rows : int
        Rows of every block but the last.
    make : callable
        ``make(k, rows)``: the first `rows` rows of block `k`.
    """

    n_rows: int
    n_features: int
    block_rows: int
    make: Callable[[int, int], Block]

    def __post_init__(self) -> None:
        if self.n_rows < 1:
            raise InputError(f"a stand-in needs at least 1 row, not {self.n_rows}")

    def __len__(self) -> int:
        return -(-self.n_rows // self.block_rows)

    def __iter__(self) -> Iterator[Block]:
        return (self.block(k) for k in range(len(self)))

    def block(self, k: int) -> Block:
        """Make block `k` alone.

        Returns
        -------
        X : (rows, n_features) float32 ndarray or csr_array
        y : (rows,) int64 ndarray

        Raises
        ------
        IndexError
            If there is no such block.
        """
        if not 0 <= k < len(self):
            raise IndexError(f"there is no block {k} among {len(self)}")
        return self.make(k, min(self.block_rows, self.n_rows - k * self.block_rows))


def susy_like(n: int, seed: int = 0) -> Blocks:
    """Rows of the shape of SUSY: 18 dense features, labels 0 and 1, Bayes error 20 %.

    Eight independent standard normal features x_0 .. x_7, and ten standardised radii of pairs of
    them; ``P(y = 1 | x) = sigmoid(2.08 x_0 + 1.13 x_1 x_2)``. A straight model can use x_0 alone,
    the product takes a curved one.

    Parameters
    ----------
    n : int
        Rows; a stand-in of more rows begins with the same ones.
    seed : int

    Returns
    -------
    Blocks
        `bayes_error` is the least error possible.
    """
    return Blocks(n, SUSY_FEATURES, 1 << 16, Radii(seed, _LOW_LEVEL, _PAIRS, (STRAIGHT, CURVED)))


@dataclass(frozen=True)
class Radii:
    """Make blocks of normal features and of radii of pairs of them, all standardised.

    ``P(y = 1 | x) = sigmoid(a x_0 + b x_1 x_2)`` with ``rule`` = (a, b).
    """

    seed: int
    low_level: int
    pairs: tuple[tuple[int, int], ...]
    rule: tuple[float, float]

    def __call__(self, k: int, rows: int) -> Block:
        values, chances = streams(self.seed, k, 2)
        low, pairs = values.standard_normal((rows, self.low_level)), np.array(self.pairs)
        X = np.empty((rows, self.low_level + len(pairs)), np.float32)
        X[:, : self.low_level] = low
        radii = np.hypot(low[:, pairs[:, 0]], low[:, pairs[:, 1]])
        X[:, self.low_level :] = (radii - _RADIUS_MEAN) / _RADIUS_DEVIATION
        straight, curved = self.rule
        likely = expit(straight * low[:, 0] + curved * low[:, 1] * low[:, 2])
        return X, (chances.random(rows) < likely).astype(np.int64)


def bayes_error(rule: tuple[float, float] = (STRAIGHT, CURVED)) -> float:
    """Smallest error that any classifier can have on `susy_like`, or with another rule.

    Integrated numerically: given x_2, the exponent g is normal of variance ``a^2 + b^2 x_2^2``, and
    the error of the best guess is ``E sigmoid(-|g|)``.
    """
    x, weight = _half_normal()
    straight, curved = rule
    deviation = np.hypot(straight, curved * x)[:, None]
    return float(weight @ expit(-deviation * x) @ weight)


def _half_normal(points: int = 160) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Gauss-Legendre points and weights for the mean of a function of ``|N(0, 1)|``."""
    t, weight = np.polynomial.legendre.leggauss(points)
    x = 5.0 * (t + 1.0)
    density = 5.0 * weight * np.exp(-0.5 * x * x)
    return x, density / density.sum()


def streams(seed: int, k: int, count: int) -> list[np.random.Generator]:
    """Return `count` independent generators of block `k` (-1: of what all blocks share)."""
    return np.random.default_rng([seed, k + 1]).spawn(count)
