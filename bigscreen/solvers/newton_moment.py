"""The second moment of features, which is what rows in a zone curve P by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.design import Design
from bigscreen.dual import FloatArray
from bigscreen.kernels import Linear, Side, on_matrix_unit

NARROW = 256
"""Of fewer features products are float64: they cost little, and raw features can be nearly the same
number in all rows."""

ROUGH = 2.0**22
"""Trace from which on rounding in float32 products could outweigh what the penalty curves P by."""


def entries(rows: int, of: int) -> type:
    """Of few rows float64 entries; of many, which take time, those that scores are made of.

    Sums over rows are float64 either way.
    """
    return np.float64 if 64 * rows < of else np.float32


def second_moment(
    design: Design, columns: NDArray[Any], border: FloatArray, weight: FloatArray
) -> NDArray[Any]:
    """``sum weight_i^2 [phi_i, border_i] [phi_i, border_i]'``: (size, size).

    Parameters
    ----------
    columns : (rows, m), float32 or float64
    border : float64 (rows, extras)
    weight : float64 (rows,)
    """
    phi = design.features_of(columns)
    rank, size = phi.shape[1], phi.shape[1] + border.shape[1]
    squares = np.einsum("ij,ij->i", phi, phi, dtype=np.float64) + np.sum(border**2, axis=1)
    # (What is not a number goes the exact way, too.)
    exact = size < NARROW or not weight**2 @ squares <= ROUGH
    scaled = np.empty((len(phi), size), np.float64 if exact else np.float32)
    np.multiply(phi, weight[:, None], out=scaled[:, :rank], casting="same_kind")
    np.multiply(border, weight[:, None], out=scaled[:, rank:], casting="same_kind")
    return scaled.T @ scaled


def rough_moment(scaled: NDArray[np.float32]) -> NDArray[np.float32]:
    """``scaled' scaled`` (size, size) of rows (rows, size), whose numbers may lose all but 8 bits.

    A matrix unit multiplies those six times as fast as float32 ones. For what only preconditions.
    """
    if not on_matrix_unit("linear", len(scaled)):
        return scaled.T @ scaled
    bits = np.array(scaled.T, order="C").view(np.uint32)  # a copy, of a single row too
    bits += np.uint32(1 << 15)
    bits &= np.uint32(0xFFFF0000)
    rough = bits.view(np.float32)
    return Linear().block(rough, Side(rough))


@dataclass(frozen=True)
class Average:
    """The mean of the moments of some passes at one h, each over other rows of the zone."""

    moment: FloatArray
    passes: int
    h: float


def averaged(before: Average | None, moment: FloatArray, h: float, stride: int) -> Average:
    """The mean with one more pass, which took one in ``stride`` rows of the zone.

    Of as many passes as go through the zone once: w moves, and older ones are of another zone.
    """
    if before is None or before.h != h:
        return Average(moment, 1, h)
    share = 1 / min(before.passes + 1, stride)
    return Average(before.moment + share * (moment - before.moment), before.passes + 1, h)
