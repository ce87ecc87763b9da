"""Machines of the folds: each was fitted without its fold's rows; calibration uses them all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from bigscreen.data.layout import Features, pad_columns
from bigscreen.model.file import pack_rows, unpack_rows
from bigscreen.numerics.rows import FloatArray


class Machine(Protocol):
    """The fields of a fold's fitted machine that `FoldMachines` stores; a `Model` has them."""

    @property
    def coef(self) -> FloatArray:
        """Coefficients of the landmarks or, of a linear machine, of the features (k, m)."""

    @property
    def intercept(self) -> FloatArray:
        """Offsets (k,)."""

    @property
    def landmarks(self) -> Features | None:
        """Landmarks (m, d); None for a linear machine."""

    @property
    def support(self) -> NDArray[np.int64] | None:
        """Row numbers of the landmarks in the training data."""


@dataclass(eq=False)
class FoldMachines:
    """Score functions of the folds' machines, each fitted without one fold of the rows.

    They have the kernel of the published machine, which was fitted to all rows.

    Attributes
    ----------
    coef : float64 (machines, k, m) or (machines, k, d)
        Coefficients of the landmarks or, of linear machines, of the features.
    intercept : float64 (machines, k)
        Offsets of the k score functions of each machine.
    landmarks : (m, d) ndarray or csr_array, or None
        The rows that the coefficients belong to; None: the published machine's landmarks, or of
        a linear machine the features.
    support : int64 (m,) or None
        Row numbers of the landmarks in the training data, for exact machines.
    """

    coef: FloatArray
    intercept: FloatArray
    landmarks: Features | None = None
    support: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        """Convert the arrays; ValueError if shapes disagree or a coefficient is not finite."""
        self.coef = np.ascontiguousarray(self.coef, np.float64)
        self.intercept = np.ascontiguousarray(self.intercept, np.float64)
        if self.coef.ndim != 3 or self.intercept.shape != self.coef.shape[:2]:
            raise ValueError("the coefficients and offsets of the folds' machines do not match")
        if self.landmarks is not None and self.landmarks.shape[0] != self.coef.shape[2]:
            raise ValueError("the folds' machines have another number of landmarks")
        if not (np.isfinite(self.coef).all() and np.isfinite(self.intercept).all()):
            raise ValueError("the coefficients of the folds' machines are not all finite")

    @classmethod
    def joined(cls, machines: Sequence[Machine]) -> FoldMachines:
        """Combine the folds' machines; exact machines share the union of their support rows."""
        intercept = np.stack([machine.intercept for machine in machines])
        own = [machine.support for machine in machines if machine.support is not None]
        if not own:
            return cls(np.stack([machine.coef for machine in machines]), intercept)
        support, first = np.unique(np.concatenate(own), return_index=True)
        coef = np.zeros((*intercept.shape, len(support)))
        for machine, ids, out in zip(machines, own, coef, strict=True):
            out[:, np.searchsorted(support, ids)] = machine.coef
        rows: list[Any] = [machine.landmarks for machine in machines]
        whole = sparse.vstack(rows, "csr") if sparse.issparse(rows[0]) else np.concatenate(rows)
        return cls(coef, intercept, whole[first], support)

    def check_match(self, machines: int, coef: FloatArray, width: int) -> None:
        """Raise ValueError unless there are `machines` machines that fit the model's shapes.

        ``coef`` are the model's coefficients and ``width`` is its number of features.
        """
        own, scorers, columns = self.coef.shape
        if own != machines or scorers != len(coef):
            raise ValueError("the calibration is not of the folds' machines")
        same = (
            columns == coef.shape[1] if self.landmarks is None else width == self.landmarks.shape[1]
        )
        if not same:
            raise ValueError("the machines of the folds have another number of columns")

    def widened(self, width: int, linear: bool) -> FoldMachines:
        """Return the machines for rows with more columns, which were 0 in every training row.

        ``width``: their number of columns. ``linear``: the coefficients belong to columns, not to
        landmarks.
        """
        if linear:
            added = width - self.coef.shape[2]
            return replace(self, coef=np.pad(self.coef, ((0, 0), (0, 0), (0, added))))
        if self.landmarks is None:
            return self
        return replace(self, landmarks=pad_columns(self.landmarks, width))

    def to_arrays(self) -> tuple[str, dict[str, NDArray[Any]]]:
        """Convert to the storage of the landmarks and named arrays.

        The storage is "dense" or "csr", or "shared": the landmarks are those of the model.
        """
        arrays: dict[str, NDArray[Any]] = {"fold_coef": self.coef, "fold_intercept": self.intercept}
        kind = "shared"
        if self.landmarks is not None:
            kind, rows = pack_rows("fold_landmarks", self.landmarks)
            arrays |= rows
        if self.support is not None:
            arrays["fold_support"] = self.support
        return kind, arrays

    @classmethod
    def from_arrays(
        cls, kind: str, width: int, supported: bool, array: Callable[[str], NDArray[Any]]
    ) -> FoldMachines:
        """Restore the machines from the arrays of `to_arrays`, which ``array`` reads by name.

        ``kind``: storage of the landmarks; ``width``: their number of features; ``supported``:
        whether ``fold_support`` is stored.
        """
        rows = None if kind == "shared" else unpack_rows("fold_landmarks", kind, width, array)
        support = array("fold_support") if supported else None
        return cls(array("fold_coef"), array("fold_intercept"), rows, support)
