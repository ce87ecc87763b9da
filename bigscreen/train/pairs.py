"""The rows of two labels as a data set of their own: what one of many small problems is solved on.

Rows are brought into the order of their labels once; a pair of labels then is two slices of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from bigscreen.data.layout import Features, csr_slice, csr_stack
from bigscreen.data.rows import Rows
from bigscreen.features.design import Design
from bigscreen.kernels.given import Precomputed
from bigscreen.kernels.operand import Operand
from bigscreen.kernels.square import Recipe, Square, alike
from bigscreen.kernels.standard import Compiled
from bigscreen.numerics.rows import FloatArray
from bigscreen.plan.tuning import PLAN


def squared(design: Design) -> Design:
    """The design with its kernel matrix shared by solver and closing pass, where rows are few."""
    data, kernel = design.data, design.kernel
    if data.n_rows > PLAN.few_rows or not isinstance(kernel, Compiled):
        return design
    n = data.n_rows
    return replace(design, square=Square(kernel, Operand(data.X(0, n), np.arange(n))))


class Slices(Rows):
    """Some rows of another data set, in memory, which was checked when that was made.

    Parameters
    ----------
    base : Rows
    X, codes, weights
        Features, label codes and weights of the rows.
    ids : int64 (k,)
        Their numbers in ``base``.
    """

    path = None

    def __init__(
        self,
        base: Rows,
        X: Features,
        codes: NDArray[Any],
        weights: FloatArray,
        ids: NDArray[np.int64],
    ) -> None:
        self.base, self.ids, self.side = base, ids, Operand(X, np.arange(len(ids)))
        self._codes, self._weights = codes, weights
        grid = 1 << max(0, len(ids) - 1).bit_length()  # one shard
        sizes = {"n_rows": len(ids), "n_features": X.shape[1]}
        self.layout = replace(base.layout, **sizes, shard_rows=grid, chunk_rows=grid)
        self.preparation = base.preparation

    def X(self, start: int, stop: int) -> Any:
        whole = start == 0 and stop == self.n_rows
        X = self.side.X
        return X if whole else csr_slice(X, start, stop) if self.is_sparse else X[start:stop]

    def y(self, start: int, stop: int) -> NDArray[Any]:
        return self._codes[start:stop]

    def weights(self, start: int, stop: int) -> NDArray[np.float64]:
        return self._weights[start:stop]

    def sqnorms(self, start: int, stop: int) -> NDArray[np.float64]:
        norms: FloatArray = self.side.sqnorms[start:stop]
        return norms

    def row_ids(self, start: int, stop: int) -> NDArray[np.int64]:
        ids = self.ids[start:stop]
        if not len(ids):
            return ids
        first = int(ids.min())
        return self.base.row_ids(first, int(ids.max()) + 1)[ids - first]

    def without(self, held: NDArray[np.bool_]) -> Slices:
        """The same rows, of which some, a bool (k,), have no weight."""
        out = copy(self)
        out._weights = np.where(held, 0.0, self._weights)
        return out

    @property
    def max_sqnorm(self) -> float:
        return float(np.max(self.side.sqnorms))

    @property
    def label_counts(self) -> NDArray[np.int64]:
        return np.bincount(self._codes, minlength=self.n_labels)

    @property
    def fingerprint(self) -> str:
        raise NotImplementedError("rows of two labels are solved on, and never looked up again")


class ByLabel:
    """The rows of a design in the order of their labels.

    Parameters
    ----------
    design : Design
        Of an exact kernel machine; every row has a label.
    most : int
        Rows that two labels have together, at most, of those that are asked for.
    """

    def __init__(self, design: Design, most: int) -> None:
        self.design, data = design, design.data
        codes = data.y(0, data.n_rows)
        self.order = np.argsort(codes, kind="stable")
        self.codes = codes[self.order]
        self.ends = np.searchsorted(self.codes, np.arange(data.n_labels + 1))
        self.weights = data.weights(0, data.n_rows)[self.order]
        self.X = data.rows(self.order)
        self.given = isinstance(design.kernel, Precomputed)
        self.alike = alike(self.X)
        self.room = np.empty(most * most)
        self.recipe: Recipe | None = None
        if isinstance(design.kernel, Compiled):
            self.recipe = Recipe.of(design.kernel, self.X)

    def pair(self, codes: Iterable[int]) -> Design:
        """The design of the rows of two labels; it may be used until the next one is asked for."""
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
            X = X[:, ids]  # columns are entries to all rows: those to these
        data = Slices(self.design.data, X, own, weights, ids)
        kernel, numbers, square = self.design.kernel, self.alike, None
        if isinstance(kernel, Compiled):
            if numbers is not None:
                numbers = np.concatenate([numbers[rows] for rows in slices])
            known = None if self.recipe is None else self.recipe.part(slices)
            square = Square(kernel, data.side, self.room, known)
            square.alike = numbers
        return Design(data, kernel, square=square)
