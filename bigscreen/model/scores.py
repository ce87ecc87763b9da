"""Compute a kernel model's scores, with float64 where float32 is inaccurate, and label votes."""

import copy
from collections.abc import Callable
from typing import Self

import numpy as np
from numpy.typing import NDArray

from bigscreen.data.layout import Features, sqnorms
from bigscreen.data.views import Move
from bigscreen.kernels.base import FLOAT32_TINY, MAX_ROWS_IN_FLOAT64, Kernel
from bigscreen.kernels.moved import choose_move, move_kernel
from bigscreen.kernels.operand import Operand
from bigscreen.kernels.square import number_equal_rows, variance_weights
from bigscreen.kernels.standard import Compiled
from bigscreen.numerics.rows import FloatArray


class Scorer:
    """Computes scores ``sum_j coef[c, j] k(x, z_j) + intercept[c]`` over landmarks z_j.

    Parameters
    ----------
    kernel : Kernel
    side : Operand
        The m landmarks.
    coef : float64 (k, m)
    intercept : float64 (k,)
    move : Move or None
        Applied to rows before they are scored; the landmarks are moved already.
    single : bool
        Whether to try float32 kernel entries first; they are about twice as fast.
    """

    def __init__(
        self,
        kernel: Kernel,
        side: Operand,
        coef: FloatArray,
        intercept: FloatArray,
        move: Move | None = None,
        single: bool = True,
    ) -> None:
        """Choose the type of kernel entries, and weigh each landmark's rounding errors.

        ``size`` is the largest sum of absolute coefficients of a score function, ``longest`` the
        largest squared norm of a landmark. ``spread``, (m,), is the weight of each landmark in the
        variance of a score if the errors of kernel entries are independent (empty if entries are
        float64).
        """
        self.kernel, self.side, self.intercept, self.move = kernel, side, intercept, move
        self.coef = np.ascontiguousarray(coef.T)
        self.size = float(np.max(np.sum(np.abs(coef), axis=1)))
        self.longest = float(side.sqnorms.max(initial=0.0))
        width = side.X.shape[1]
        # The entries of other kernels are given in float64 or cost nothing.
        single = single and isinstance(kernel, Compiled)
        single = single and kernel.precision(self.longest, width) is np.float32
        self.entries: type = np.float32 if single else np.float64
        # A weight per landmark: how strongly errors of its entries affect any of the scores.
        group = number_equal_rows(side.X) if single else None
        weights = [variance_weights(each, group) for each in self.coef.T] if single else []
        self.spread = np.max(weights, axis=0) if single else np.zeros(0)

    def placed(self, place: Callable[[Kernel], Kernel]) -> Self:
        """Return a scorer whose kernel entries are computed on a device.

        ``place``: returns the kernel that computes there. Entries are float64 if this takes little
        more time there.
        """
        made = copy.copy(self)
        made.kernel = place(self.kernel)
        if made.kernel.fast_float64:
            made.entries = np.float64
        return made

    def scores(self, X: Features, max_error: float = 2.0**-12) -> FloatArray:
        """Compute scores of rows (rows, k), including the offset.

        ``max_error``: recompute a row's scores with float64 kernel entries if the error bound with
        float32 entries exceeds this fraction of the row's largest score.
        """
        X = X if self.move is None else self.move(X)
        if self.entries is np.float64:
            return self._dots(X, self.coef, np.float64) + self.intercept
        kernel, given = self.kernel, (sqnorms(X), self.longest, X.shape[1])
        error = kernel.relative_error(*given) if kernel.nonnegative else None
        columns = self.coef if error is None else np.column_stack([self.coef, self.spread])
        values = self._dots(X, columns, np.float32)
        sums = values[:, : len(self.intercept)]
        scores = sums + self.intercept
        largest = np.max(np.abs(scores), axis=1)
        if error is None:
            moved = kernel.entry_error(*given) * np.sqrt(self.spread.sum())
        else:
            # Entries in [0, 1] are at least their squares, so `values[:, -1]` bounds the sum of
            # squares for independent errors; the first term bounds their common error.
            moved = error * (np.max(np.abs(sums), axis=1) + np.sqrt(values[:, -1]))
        # Entries that underflow in float32 may be nonzero in float64.
        moved = moved + FLOAT32_TINY * self.size
        inaccurate = np.flatnonzero(~(moved <= max_error * largest))
        if len(inaccurate):
            again = self._dots(X[inaccurate], self.coef, np.float64)
            scores[inaccurate] = again + self.intercept
        return scores

    def _dots(self, X: Features, columns: FloatArray, entries: type) -> FloatArray:
        """Return kernel entries with the landmarks times ``columns`` (m, c): float64 (rows, c)."""
        return self.kernel.dots(X, self.side, columns, entries)


def make_scorer(
    kernel: Kernel,
    landmarks: Features,
    support: NDArray[np.int64] | None,
    coef: FloatArray,
    intercept: FloatArray,
    fine: bool,
) -> Scorer:
    """Make a scorer, with landmarks and rows shifted so that float32 entries are accurate.

    The scores are sums over ``landmarks`` (m, d) with the coefficients ``coef`` (k, m), plus
    ``intercept`` (k,). ``support``, (m,), are the landmarks' row numbers of an exact machine, else
    None. ``fine``: always use float64 entries.
    """
    longest = float(sqnorms(landmarks).max(initial=0.0))
    move = choose_move(kernel, landmarks, longest, False)
    if move is not None:
        landmarks, kernel = move(landmarks), move_kernel(move, kernel)
    # With few support rows the cost of float64 entries is negligible.
    fine = fine or (support is not None and landmarks.shape[0] <= MAX_ROWS_IN_FLOAT64)
    return Scorer(kernel, Operand(landmarks, support), coef, intercept, move, not fine)


def count_votes(seconds: NDArray[np.bool_], n_labels: int) -> NDArray[np.int64]:
    """Count the votes for every label, (rows, n_labels) int64.

    ``seconds``, (rows, pairs), is whether a pair's vote goes to its second label.
    """
    first, second = np.triu_indices(n_labels, 1)
    out = np.zeros((len(seconds), n_labels), dtype=np.int64)
    for pair, won in enumerate(seconds.T):
        out[:, second[pair]] += won
        out[:, first[pair]] += ~won
    return out


def vote_values(scores: FloatArray, n_labels: int) -> FloatArray:
    """Compute decision values of labels, (rows, n_labels): votes plus squashed pair scores.

    The sum of a label's pair scores is squashed to less than half a vote, so that it only breaks
    ties. This is scikit-learn's ``decision_function_shape="ovr"`` of SVC.
    """
    first, second = np.triu_indices(n_labels, 1)
    total = np.zeros((len(scores), n_labels))
    for pair, score in enumerate(scores.T):
        total[:, second[pair]] += score
        total[:, first[pair]] -= score
    values: FloatArray = count_votes(scores > 0, n_labels) + total / (3 * (np.abs(total) + 1))
    return values
