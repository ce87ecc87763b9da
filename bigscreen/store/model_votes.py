"""One against one: a score function for every pair of labels, and votes that decide.

Pairs come as (0, 1), (0, 2), ..., (1, 2), ...; a score above 0 is a vote for the second label.
A score of 0 says nothing: `decide` gives it to the second and `values` to the first, as LIBSVM
and scikit-learn have it.
"""

import numpy as np


def n_pairs(n_labels: int) -> int:
    return n_labels * (n_labels - 1) // 2


def votes(seconds: np.ndarray, n_labels: int) -> np.ndarray:
    """Votes for every label, (rows, n_labels) int64; ``seconds``, (rows, pairs): for the second."""
    first, second = np.triu_indices(n_labels, 1)
    out = np.zeros((len(seconds), n_labels), dtype=np.int64)
    for pair, won in enumerate(seconds.T):
        out[:, second[pair]] += won
        out[:, first[pair]] += ~won
    return out


def decide(scores: np.ndarray, n_labels: int) -> np.ndarray:
    """The label that each row is given, (rows,) int64: the first of those with most votes."""
    return np.argmax(votes(scores >= 0, n_labels), axis=1).astype(np.int64)


def values(scores: np.ndarray, n_labels: int) -> np.ndarray:
    """One decision value a label, (rows, n_labels): votes, and less than half a vote of scores.

    A label's pair scores are summed and squashed, so that they decide only between labels of as
    many votes: what scikit-learn's SVC calls the shape "ovr".
    """
    first, second = np.triu_indices(n_labels, 1)
    total = np.zeros((len(scores), n_labels))
    for pair, score in enumerate(scores.T):
        total[:, second[pair]] += score
        total[:, first[pair]] -= score
    return votes(scores > 0, n_labels) + total / (3 * (np.abs(total) + 1))
