"""Writes a smaller store that provably has the same optimal machine (maths.md 2.9)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from bigscreen.amend.edits import labels_and_weights, places_of
from bigscreen.amend.request import check_amendable
from bigscreen.amend.store import Block, write_store
from bigscreen.data.dataset import Dataset
from bigscreen.data.layout import Layout, take_rows
from bigscreen.data.preparation import Preparation
from bigscreen.data.rows import Rows
from bigscreen.data.writer import DatasetWriter
from bigscreen.errors import InputError
from bigscreen.features import nystrom
from bigscreen.features.design import row_ranges
from bigscreen.fleet.protocol import Fleet
from bigscreen.kernels.operand import Operand
from bigscreen.model.ledger import BOUND, OPEN
from bigscreen.model.model import Model
from bigscreen.numerics.rows import FloatArray

WHY_SAME_OPTIMUM = (
    "losses that are left out are 0 at the optimum, and each class's rows at their bound have the "
    "loss of their weighted mean there; nowhere is either more than what it stands for, so that "
    "both problems have the same minimum, at the same w"
)
"""The argument in words that a compressed store's manifest keeps next to the certificate."""


@dataclass(frozen=True)
class _KeptRows:
    """Function that workers call for each chunk: its rows that stay, and sums over rows at a bound.

    ``data``, ``model``: the rows, and the machine fitted on them whose ledger gave ``status``.
    ``status``: for each place 0 (out), 1 (at its bound) or 2 (open). ``factor``: maps columns of
    landmarks to features; None: the rows are written as they are. ``merge``: whether rows at their
    bound are replaced by a mean. ``block_rows``: how many rows' columns are in memory at once.
    """

    data: Rows
    status: NDArray[np.int8]
    model: Model
    factor: FloatArray | None
    merge: bool
    block_rows: int = 2048

    def __call__(self, k: int) -> tuple[Block, FloatArray, FloatArray]:
        """Return the rows of chunk k that stay, and two sums over its rows that are merged.

        Open rows stay, and rows at their bound if these are not merged: their features, labels,
        weights and row numbers. The sums are over the chunk's rows at their bound, by label:
        ``sum c phi`` (labels, r) and ``sum c`` (labels,), with c a row's weight and phi its
        features; 0 if nothing is merged.
        """
        data = self.data
        start, stop = data.chunk(k)
        status, X = self.status[start:stop], data.X(start, stop)
        y, weights = data.y(start, stop), data.weights(start, stop)
        keep = np.flatnonzero((status == 2) | ((status == 1) & (not self.merge)))
        own = take_rows(X, keep) if data.is_sparse else X[keep]
        width = data.n_features if self.factor is None else self.factor.shape[1]
        sums, sizes = np.zeros((data.n_labels, width)), np.zeros(data.n_labels)
        for label in range(data.n_labels if self.merge else 0):
            rows = np.flatnonzero((status == 1) & (y == label))
            part = take_rows(X, rows) if data.is_sparse else X[rows]
            columns = self._columns_sum(part, weights[rows])
            sums[label] = columns if self.factor is None else self.factor.T @ columns
            sizes[label] = weights[rows].sum()
        features = own if self.factor is None else self._features(own)
        return (features, y[keep], weights[keep], data.row_ids(start, stop)[keep]), sums, sizes

    def _columns_sum(self, X: Any, weights: FloatArray) -> FloatArray:
        """Sum the columns of the rows X times ``weights``: kernel columns (m,) or features (d,)."""
        if self.factor is None:
            return np.asarray(X.T.astype(np.float64) @ weights)
        total = np.zeros(len(self.factor))
        for a, b in row_ranges(X.shape[0], self.block_rows):
            total += self._columns(X[a:b]).T @ weights[a:b]
        return total

    def _features(self, X: Any) -> FloatArray:
        """Nystrom features of rows X (rows, r), computed in blocks of rows."""
        assert self.factor is not None
        out = np.empty((X.shape[0], self.factor.shape[1]))
        for a, b in row_ranges(X.shape[0], self.block_rows):
            out[a:b] = self._columns(X[a:b]) @ self.factor
        return out

    def _columns(self, X: Any) -> FloatArray:
        """Kernel entries of rows X with the model's landmarks, float64 (rows, m)."""
        side = Operand(self.model.landmarks)
        found: FloatArray = self.model.kernel.block(X, side, dtype=np.float64)
        return found


def compress(
    model: Model,
    data: Rows,
    path: str | os.PathLike[str],
    fleet: Fleet,
    overwrite: bool = False,
) -> tuple[Dataset, dict[str, Any]]:
    """Write a store of only the rows that a fit needs, as a model's ledger proves them.

    Rows that are proved to be out are not written. Rows at their bound are merged into one row a
    class: their weighted mean, with the sum of their weights. For a machine with landmarks it is
    the mean of Nystrom features, and the store has these features in place of the rows'. An exact
    machine's rows at their bound are written as they are, as the mean of its features is no row.

    Returns
    -------
    (Dataset, dict)
        The store, float64, and the record that its manifest keeps ("compressed"): the numbers of
        rows out, merged and left, how to fit it, the certificate that proves it, and the
        fingerprint of the original rows.

    Raises
    ------
    InputError
        For a model of several scores or of another problem, or other rows than it was fitted on.
    """
    problems = check_amendable(model, data, "has no smaller store with its optimum")
    if len(problems) > 1:
        raise InputError(
            f"{len(problems)} scores do without {len(problems)} different sets of rows: compress a "
            "model of two labels"
        )
    assert model.ledger is not None
    (book,), exact = model.ledger, model.support is not None
    status = np.zeros(data.n_rows, np.int8)
    found = book.status
    numbers = book.numbers()
    for value, name in ((1, BOUND), (2, OPEN)):
        status[places_of(data, numbers[found == name])[0]] = value
    factor = None
    if model.landmarks is not None and not exact:
        known, side = model.provenance["nystrom"], Operand(model.landmarks)
        factor = nystrom.factor_again(model.kernel, side, known).matrix
    kept = int(np.count_nonzero(status == 2))
    at_bound = np.flatnonzero(status == 1)
    means, merge = 0, not exact
    if merge:
        codes, weights = labels_and_weights(data, at_bound)
        means = len(np.unique(codes[weights > 0]))
    left = kept + (means if merge else len(at_bound))
    asked = model.provenance["parameters"]
    record = {
        "of": data.fingerprint,
        "rows": data.n_rows,
        "out": int(np.count_nonzero(status == 0)),
        "bound": len(at_bound),
        "open": kept,
        "left": left,
        "features": "nystrom" if factor is not None else "as they were",
        "fit": {
            "kernel": {"name": "linear"} if merge else model.kernel.to_dict(),
            **{name: asked[name] for name in ("C", "intercept", "class_weight", "exact")},
        },
        "why": WHY_SAME_OPTIMUM,
        "certificate": model.provenance["certificates"][0],
        "radius": book.radius,
    }
    layout = Layout.of(
        n_rows=max(left, 1),
        n_features=data.n_features if factor is None else factor.shape[1],
        sparse=data.is_sparse and factor is None,
        labels=data.layout.labels,
        weights=True,
        wide=merge or data.layout.wide,
    )
    preparation = data.preparation if factor is None else Preparation.none()
    extra = {"compressed": record}
    writer = DatasetWriter(path, layout, preparation, extra=extra, overwrite=overwrite)
    blocks = _blocks(_KeptRows(data, status, model, factor, merge), fleet)
    return write_store(writer, blocks), record


def _blocks(part: _KeptRows, fleet: Fleet) -> Iterator[Block]:
    """Iterate over the blocks of the compressed store: kept rows by chunk, then one mean a class.

    A mean stands for all rows of its class at their bound, with their total weight.
    """
    data = part.data
    sums: Any = 0.0
    sizes: Any = 0.0
    top = -1
    for block, own, weight in fleet.each(part, range(data.n_chunks)):
        sums, sizes = sums + own, sizes + weight
        top = max(top, int(block[3].max(initial=-1)))
        if len(block[1]):
            yield block
    classes = np.flatnonzero(sizes > 0)
    if len(classes):
        means: Any = sums[classes] / sizes[classes, None]
        if data.is_sparse and part.factor is None:
            means = csr_array(means)
        ids = np.arange(top + 1, top + 1 + len(classes))
        yield means, classes.astype(np.int32), sizes[classes], ids
