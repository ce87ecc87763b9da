"""Made-up data of the shape of HIGGS and rcv1, whose files are too large to distribute.

None of this is real data: every output of a number measured on it says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from bigscreen.data.synthetic import Block, Blocks, Radii, streams

HIGGS_FEATURES = 28
HIGGS_RULE = 0.8, 1.6
"""``P(y = 1 | x) = sigmoid(0.8 x_0 + 1.6 x_1 x_2)``: Bayes error 27 %."""

RCV1_FEATURES = 47_236
RCV1_NOISE = 0.02
"""Chance that a label is flipped: the Bayes error of `rcv1_like`."""

_HIGGS_LOW_LEVEL = 21
_HIGGS_PAIRS = ((0, 1), (1, 2), (2, 3), (4, 9), (5, 14), (7, 18), (11, 20))

# Words drawn for a row (some twice), how slowly Zipf's law begins, words with a say in the label
# and how much more a row of their topic has of them.
_MEAN_WORDS = 79
_ZIPF_SHIFT = 30.0
_TELLING_WORDS = 1000
_TILT = 0.5


def higgs_like(n: int, seed: int = 0) -> Blocks:
    """Make rows of the shape of HIGGS: 28 dense features, labels 0 and 1, Bayes error 27 %.

    As `bigscreen.data.synthetic.susy_like`, of 21 normal features and seven radii:
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
    make = Radii(seed, _HIGGS_LOW_LEVEL, _HIGGS_PAIRS, HIGGS_RULE)
    return Blocks(n, HIGGS_FEATURES, 1 << 16, make)


def rcv1_like(n: int, seed: int = 0) -> Blocks:
    """Make rows of the shape of rcv1: 47,236 columns, about 75 non-zeros, unit norm, labels +-1.

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
        lengths, words, chances = streams(self.seed, k, 3)
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
    """The made-up language from which all rows of `rcv1_like` are drawn.

    ``below[t]``: cumulated chances of the words by rank, without the last, for rows of topic t;
    ``column`` of every rank; ``weight`` and ``rule`` of every column.
    """

    below: NDArray[np.float64]
    column: NDArray[np.int64]
    weight: NDArray[np.float64]
    rule: NDArray[np.float64]


@cache
def _language(seed: int) -> _Language:
    columns, picks, weights = streams(seed, -1, 3)
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
