"""Made-up data of the shape of SUSY, HIGGS and rcv1: for demonstrations, and for missing files.

Rows come in blocks of fixed size; a block follows from its number and the seed alone, so any of
them can be made by itself, anywhere, and memory holds one at a time. None of this is real data:
whatever prints a number measured on it says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.special import expit

from bigscreen.errors import InputError

SUSY_FEATURES = 18
STRAIGHT, CURVED = 2.08, 1.13
"""``P(y = 1 | x) = sigmoid(STRAIGHT x_0 + CURVED x_1 x_2)``: Bayes error 20 %."""

HIGGS_FEATURES = 28
HIGGS_RULE = 0.8, 1.6
"""The same two numbers of `higgs_like`: less of it is straight, and the Bayes error is 27 %."""

RCV1_FEATURES = 47_236
RCV1_NOISE = 0.02
"""Chance that a label is turned round: the Bayes error of `rcv1_like`."""

_LOW_LEVEL, _HIGGS_LOW_LEVEL = 8, 21
# The derived features are radii of these pairs. None of them tells the sign of x_1 x_2, so that
# a straight model learns nothing of it.
_PAIRS = ((0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 6), (6, 7), (7, 0), (1, 4), (2, 6))
_HIGGS_PAIRS = ((0, 1), (1, 2), (2, 3), (4, 9), (5, 14), (7, 18), (11, 20))
_RADIUS_MEAN = np.sqrt(np.pi / 2)
_RADIUS_DEVIATION = np.sqrt(2 - np.pi / 2)

# Words drawn for a row (some twice), how slowly Zipf's law begins, words with a say in the label
# and how much more a row of their topic has of them.
_MEAN_WORDS = 79
_ZIPF_SHIFT = 30.0
_TELLING_WORDS = 1000
_TILT = 0.5

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
        See `bayes_error` and `straight_error` for the best errors possible.
    """
    return Blocks(n, SUSY_FEATURES, 1 << 16, _Radii(seed, _LOW_LEVEL, _PAIRS, (STRAIGHT, CURVED)))


def higgs_like(n: int, seed: int = 0) -> Blocks:
    """Rows of the shape of HIGGS: 28 dense features, labels 0 and 1, Bayes error 27 %.

    As `susy_like`, of 21 normal features and seven radii:
    ``P(y = 1 | x) = sigmoid(0.8 x_0 + 1.6 x_1 x_2)``.

    Parameters
    ----------
    n : int
        Rows; a stand-in of more rows begins with the same ones.
    seed : int

    Returns
    -------
    Blocks
    """
    make = _Radii(seed, _HIGGS_LOW_LEVEL, _HIGGS_PAIRS, HIGGS_RULE)
    return Blocks(n, HIGGS_FEATURES, 1 << 16, make)


@dataclass(frozen=True)
class _Radii:
    """Makes blocks of normal features and radii of pairs of them."""

    seed: int
    low_level: int
    pairs: tuple[tuple[int, int], ...]
    rule: tuple[float, float]

    def __call__(self, k: int, rows: int) -> Block:
        values, chances = _streams(self.seed, k, 2)
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


def straight_error() -> float:
    """Error of ``sign(x_0)`` on `susy_like`, the best straight classifier, integrated numerically.

    x_1 x_2 has either sign with the same chance whatever x_0 and all radii are, and turning x_1
    and x_2 both round changes nothing else: a convex loss gives them no weight.
    """
    x, weight = _half_normal()
    straight = STRAIGHT * x[:, None, None]
    curved = CURVED * x[:, None] * x
    wrong = 0.5 * (expit(-straight - curved) + expit(-straight + curved))
    return float(np.einsum("i,j,k,ijk->", weight, weight, weight, wrong))


def _half_normal(points: int = 160) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Gauss-Legendre points and weights for the mean of a function of ``|N(0, 1)|``."""
    t, weight = np.polynomial.legendre.leggauss(points)
    x = 5.0 * (t + 1.0)
    density = 5.0 * weight * np.exp(-0.5 * x * x)
    return x, density / density.sum()


def rcv1_like(n: int, seed: int = 0) -> Blocks:
    """Rows of the shape of rcv1: 47,236 columns, about 75 non-zeros of unit norm, labels -1 and 1.

    Words by Zipf's law, weighted by ``(1 + log count) log(1 / chance)``. 1,000 words, picked by
    chance, make a linear rule; a row prefers words of either side of it, and its label is the
    rule's, turned round for 2 % of the rows.

    Parameters
    ----------
    n : int
        Rows; a stand-in of more rows begins with the same ones.
    seed : int

    Returns
    -------
    Blocks
        X is a csr_array with sorted int32 indices.
    """
    return Blocks(n, RCV1_FEATURES, 1 << 14, _Rcv1(seed))


@dataclass(frozen=True)
class _Rcv1:
    seed: int

    def __call__(self, k: int, rows: int) -> Block:
        lengths, words, chances = _streams(self.seed, k, 3)
        language = _language(self.seed)
        # Documents differ much in length: a log-normal of mean _MEAN_WORDS.
        spread = 0.5
        drawn = _MEAN_WORDS * np.exp(spread * lengths.standard_normal(rows) - spread**2 / 2)
        drawn = np.maximum(drawn.astype(np.int64), 4)
        topic, turned = chances.random((rows, 2)).T < [[0.5], [RCV1_NOISE]]
        of_topic = np.repeat(topic, drawn)
        word = words.random(len(of_topic))
        for side in (False, True):
            mine = of_topic == side
            word[mine] = np.searchsorted(language.below[int(side)], word[mine], side="right")
        key = np.repeat(np.arange(rows) * RCV1_FEATURES, drawn) + language.column[word.astype(int)]
        key, count = np.unique(key, return_counts=True)
        row, index = np.divmod(key, RCV1_FEATURES)
        data = (1.0 + np.log(count)) * language.weight[index]
        data /= np.sqrt(np.bincount(row, data * data, rows))[row]
        indptr = np.searchsorted(row, np.arange(rows + 1)).astype(np.int32)
        X = csr_array(
            (data.astype(np.float32), index.astype(np.int32), indptr), shape=(rows, RCV1_FEATURES)
        )
        return X, np.where((X @ language.rule > 0) != turned, 1, -1)


@dataclass(frozen=True)
class _Language:
    """What all rows share.

    ``below[t]``: cumulated chances of the words by rank, without the last, for rows of topic t;
    ``column`` of every rank; ``weight`` and ``rule`` of every column.
    """

    below: NDArray[np.float64]
    column: NDArray[np.int64]
    weight: NDArray[np.float64]
    rule: NDArray[np.float64]


@cache
def _language(seed: int) -> _Language:
    columns, picks, weights = _streams(seed, -1, 3)
    chance = 1.0 / (np.arange(RCV1_FEATURES) + _ZIPF_SHIFT)
    chance /= chance.sum()
    column = columns.permutation(RCV1_FEATURES)
    # Telling words are as often frequent as words in texts are: the rule must concern every row.
    telling = picks.choice(RCV1_FEATURES, _TELLING_WORDS, replace=False, p=chance)
    by_rank = np.zeros(RCV1_FEATURES)
    by_rank[telling] = weights.standard_normal(_TELLING_WORDS)
    tilted = chance * np.exp(_TILT * np.array([[-1.0], [1.0]]) * by_rank)
    below = np.cumsum(tilted / tilted.sum(axis=1, keepdims=True), axis=1)[:, :-1]
    weight, rule = np.empty(RCV1_FEATURES), np.empty(RCV1_FEATURES)
    weight[column], rule[column] = -np.log(chance), by_rank
    return _Language(below, column, weight, rule)


def _streams(seed: int, k: int, count: int) -> list[np.random.Generator]:
    """Independent generators of block `k` (-1: of what all blocks share)."""
    return np.random.default_rng([seed, k + 1]).spawn(count)
