"""The gate of an early divide and conquer: which part's machine scores a row."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from bigscreen.kernels import Kernel, Side
from bigscreen.store.layout import Features

NO_CERTIFICATE = (
    "no global certificate: every part of the rows was solved by itself, and the whole never was"
)
"""What the provenance of a gated model says as ``no_certificate``; its ``certificates`` is None."""


@dataclass(eq=False)
class Gate:
    """The nearest centre of kernel k-means: ``argmin_p offset_p - 2 sum_j coef[j, p] k(x, z_j)``.

    A centre is a weighted mean of landmarks z in the kernel's feature space; the distance to it
    lacks ``k(x, x)``, which is the same for all centres.

    Attributes
    ----------
    landmarks : (g, d) float32 ndarray or csr_array
    coef : (g, parts) float64 ndarray
        The weights of the landmarks in the centres.
    offset : (parts,) float64 ndarray
        The centres' squared norms.
    ids : (g,) int64 ndarray or None
        The landmarks' numbers in the training data; a precomputed kernel needs them.
    """

    landmarks: Features
    coef: np.ndarray
    offset: np.ndarray
    ids: np.ndarray | None = None

    def __post_init__(self) -> None:
        self.coef = np.ascontiguousarray(self.coef, dtype=np.float64)
        self.offset = np.ascontiguousarray(self.offset, dtype=np.float64)
        size = self.landmarks.shape[0]
        if self.coef.shape != (size, len(self.offset)) or len(self.offset) == 0:
            raise ValueError(
                f"the gate's coef has shape {self.coef.shape} for {size} landmarks and "
                f"{len(self.offset)} parts"
            )
        if not (np.isfinite(self.coef).all() and np.isfinite(self.offset).all()):
            raise ValueError("the gate's numbers are not all finite")
        if self.ids is not None:
            self.ids = row_numbers(self.ids, size, "the gate's ids")

    @property
    def n_parts(self) -> int:
        return len(self.offset)

    @cached_property
    def side(self) -> Side:
        return Side(self.landmarks, self.ids)

    def nearest(self, kernel: Kernel, rows: Features) -> np.ndarray:
        """The part of every row, (rows,) int64."""
        distance = self.offset - 2.0 * kernel.dots(rows, self.side, self.coef)
        return np.argmin(distance, axis=1).astype(np.int64)


def row_numbers(given: np.ndarray, size: int, what: str) -> np.ndarray:
    """`given` as int64 of shape (size,), not negative; ValueError if it is something else."""
    given = np.asarray(given)
    if given.shape != (size,) or not np.issubdtype(given.dtype, np.integer):
        raise ValueError(f"{what} must be {size} whole numbers")
    if size and given.min() < 0:
        raise ValueError(f"{what} must not be negative")
    return np.ascontiguousarray(given, dtype=np.int64)
