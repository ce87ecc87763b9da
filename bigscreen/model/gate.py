"""Assign rows to the parts of a model that has a machine for each part of the rows."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.data.layout import Features
from bigscreen.kernels.base import Kernel
from bigscreen.kernels.operand import Operand
from bigscreen.numerics.rows import FloatArray


@dataclass(eq=False)
class Gate:
    """Assigns a row to its nearest centre of kernel k-means.

    The part of x is ``argmin_p offset_p - 2 sum_j coef[j, p] k(x, z_j)``. A centre is a weighted
    mean of landmarks z_j in the kernel's feature space; the term ``k(x, x)`` of the distance is
    left out, because it is the same for all centres.

    Attributes
    ----------
    landmarks : (g, d) float32 ndarray or csr_array
        The rows z_j.
    coef : (g, parts) float64 ndarray
        The weights of the landmarks in the centres.
    offset : (parts,) float64 ndarray
        The centres' squared norms.
    ids : (g,) int64 ndarray or None
        Row numbers of the landmarks in the training data; a precomputed kernel needs them.
    """

    landmarks: Features
    coef: FloatArray
    offset: FloatArray
    ids: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        """Convert the arrays; ValueError if shapes disagree or a number is not finite."""
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
        """Number of parts."""
        return len(self.offset)

    @cached_property
    def side(self) -> Operand:
        """The landmarks as an operand of kernel products."""
        return Operand(self.landmarks, self.ids)

    def nearest(self, kernel: Kernel, rows: Features) -> NDArray[np.int64]:
        """Return the number of every row's part, (rows,) int64: that of its nearest centre."""
        distance: FloatArray = self.offset - 2.0 * kernel.dots(rows, self.side, self.coef)
        parts: NDArray[np.int64] = np.argmin(distance, axis=1).astype(np.int64)
        return parts


def row_numbers(given: NDArray[Any], size: int, what: str) -> NDArray[np.int64]:
    """Convert row numbers to int64 (size,); ValueError unless they are nonnegative integers.

    ``what`` names the numbers in the message.
    """
    given = np.asarray(given)
    if given.shape != (size,) or not np.issubdtype(given.dtype, np.integer):
        raise ValueError(f"{what} must be {size} whole numbers")
    if size and given.min() < 0:
        raise ValueError(f"{what} must not be negative")
    numbers: NDArray[np.int64] = np.ascontiguousarray(given, dtype=np.int64)
    return numbers
