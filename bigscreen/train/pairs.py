"""Make data sets of the rows of two labels, on which one-against-one problems are solved.

The rows are sorted by label once; the data set of two labels then consists of two slices.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from bigscreen.data.layout import csr_slice, csr_stack
from bigscreen.data.views import Held
from bigscreen.features.design import Design
from bigscreen.kernels.given import Precomputed
from bigscreen.kernels.operand import Operand
from bigscreen.kernels.square import Recipe, Square, number_equal_rows
from bigscreen.kernels.standard import Compiled
from bigscreen.plan.tuning import PLAN


def share_kernel_matrix(design: Design) -> Design:
    """Add a kernel matrix in memory, for solver and closing pass, to a design of few rows.

    A design of many rows, or with a user's kernel, is returned as it is.
    """
    data, kernel = design.data, design.kernel
    if data.n_rows > PLAN.few_rows or not isinstance(kernel, Compiled):
        return design
    n = data.n_rows
    return replace(design, square=Square(kernel, Operand(data.X(0, n), np.arange(n))))


class RowsByLabel:
    """The rows of a design, sorted by label.

    Parameters
    ----------
    design : Design
        The design of an exact kernel machine, whose rows all have a label.
    most : int
        Pairs of labels that are requested have at most this many rows together.

    Attributes
    ----------
    order : int64 (n,)
        Row numbers, sorted by label; ``codes``, ``weights`` and ``X`` are in this order.
    ends : int64 (labels + 1,)
        Rows of label k are from ``ends[k]`` to ``ends[k + 1]``.
    given : bool
        Whether the kernel is precomputed: rows are then rows of the kernel matrix.
    alike : int array or None
        Equal rows have equal numbers, see `number_equal_rows`.
    room : float64 (most * most,)
        The memory of each pair's kernel matrix.
    recipe : Recipe or None
        What kernel entries of all rows have in common, if the kernel is compiled.
    """

    def __init__(self, design: Design, most: int) -> None:
        """Sort the design's rows by label; see the class for parameters."""
        self.design, data = design, design.data
        codes = data.y(0, data.n_rows)
        self.order = np.argsort(codes, kind="stable")
        self.codes = codes[self.order]
        self.ends = np.searchsorted(self.codes, np.arange(data.n_labels + 1))
        self.weights = data.weights(0, data.n_rows)[self.order]
        self.X = data.rows(self.order)
        self.given = isinstance(design.kernel, Precomputed)
        self.alike = number_equal_rows(self.X)
        self.room = np.empty(most * most)
        self.recipe: Recipe | None = None
        if isinstance(design.kernel, Compiled):
            self.recipe = Recipe.of(design.kernel, self.X)

    def pair(self, codes: Iterable[int]) -> tuple[Design, NDArray[np.int64]]:
        """Return the design (rows and kernel) of the rows of two labels, and their row numbers.

        ``codes``: the two label codes. The next call overwrites the memory of this design.
        """
        slices = [slice(self.ends[code], self.ends[code + 1]) for code in codes]
        ids, own, weights = (
            np.concatenate([part[rows] for rows in slices])
            for part in (self.order, self.codes, self.weights)
        )
        X: Any
        if sparse.issparse(self.X):
            X = csr_stack([csr_slice(self.X, s.start, s.stop) for s in slices], self.X.shape[1])
        else:
            X = np.concatenate([self.X[rows] for rows in slices])
        if self.given:
            X = X[:, ids]  # of the entries with all rows, those with the pair's rows
        side = Operand(X, np.arange(len(ids)))
        data = Held(self.design.data, ids, own, weights, side.X, side.sqnorms)
        kernel, numbers, square = self.design.kernel, self.alike, None
        if isinstance(kernel, Compiled):
            if numbers is not None:
                numbers = np.concatenate([numbers[rows] for rows in slices])
            known = None if self.recipe is None else self.recipe.part(slices)
            square = Square(kernel, side, self.room, known)
            square.alike = numbers
        return Design(data, kernel, square=square), ids
