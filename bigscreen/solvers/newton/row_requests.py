"""Requests of a Newton shard for numbers of its rows, answered once for runs that share them.

Several runs can step together (`fleet.lockstep`). Requests with one ``key`` are answered by one
call of ``answers``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.features.design import Design
from bigscreen.numerics.rows import FloatArray
from bigscreen.solvers.newton.algebra import second_moment
from bigscreen.solvers.newton.state import NewtonShard
from bigscreen.solvers.newton.tuning import NEWTON, NewtonTuning


@dataclass(frozen=True)
class Columns:
    """Request for kernel columns or raw features (rows, m), which must not be written to.

    ``local`` (rows,) are ascending indices of rows in the state.
    """

    design: Design
    state: NewtonShard
    local: NDArray[np.int64]
    dtype: Any = np.float32

    @property
    def key(self) -> Any:
        """Equal for requests for the same rows and type."""
        return "columns", self.dtype, self.state.ids[self.local].tobytes()

    def answers(self, alike: list[Columns]) -> list[Any]:
        """The same columns for each of the requests ``alike``, which have one key."""
        return [self.compute()] * len(alike)

    def compute(self, passing: str = "") -> NDArray[Any]:
        """Compute the columns; kernel columns use the buffer of this name (`Design.columns`)."""
        rows = self.state.rows(self.design.data, self.local)
        return self.design.columns(rows, self.dtype, passing)


@dataclass(frozen=True)
class Dots:
    """Request for products of columns with ``coefs`` (m, k): float64 (rows, k).

    ``local`` (rows,) are ascending indices of rows in the state.
    """

    design: Design
    state: NewtonShard
    local: NDArray[np.int64]
    coefs: FloatArray

    @property
    def key(self) -> Any:
        """Equal for requests for the same rows, whatever the coefficients."""
        return "dots", self.state.ids[self.local].tobytes()

    def answers(self, alike: list[Dots]) -> list[Any]:
        """The products of each of the requests ``alike``, from one pass over their rows."""
        rows = self.state.rows(self.design.data, self.local)
        if len(alike) == 1:
            return [self.design.dots(rows, self.coefs)]
        found = self.design.dots(rows, np.concatenate([ask.coefs for ask in alike], axis=1))
        ends = np.cumsum([ask.coefs.shape[1] for ask in alike])
        return np.split(found, ends[:-1], axis=1)


@dataclass(frozen=True)
class Rounding:
    """Request for the largest change of any row's score by float32 columns: float64 (k,).

    ``X``: the rows; ``coefs`` (m, k): coefficients of k scores.
    """

    design: Design
    X: Any
    coefs: FloatArray

    @property
    def key(self) -> Any:
        """Equal for requests with the same array of rows."""
        return "rounding", id(self.X)

    def answers(self, alike: list[Rounding]) -> list[Any]:
        """The largest changes (k,) of scores for each request, from one pass over the rows.

        ``alike``: requests with the same rows, each with its own coefficients.
        """
        coefs = np.concatenate([ask.coefs for ask in alike], axis=1)
        both = (self.design.dots(self.X, coefs, dtype) for dtype in (np.float32, np.float64))
        found = np.max(np.abs(np.subtract(*both)), axis=0, initial=0.0)
        ends = np.cumsum([ask.coefs.shape[1] for ask in alike])
        return np.split(found, ends[:-1])


@dataclass(frozen=True)
class Moment:
    """Request for a second moment of rows (size, size), which must not be written to.

    ``local`` (rows,): indices of the rows in the state; ``columns``, ``border``, ``weight``: see
    `second_moment`.
    """

    design: Design
    state: NewtonShard
    local: NDArray[np.int64]
    columns: NDArray[Any]
    border: FloatArray
    weight: FloatArray
    tuning: NewtonTuning = NEWTON

    @property
    def key(self) -> Any:
        """Equal for requests with the same rows, types, borders and weights."""
        own = self.border.tobytes(), self.weight.tobytes(), self.columns.dtype
        return "moment", self.state.ids[self.local].tobytes(), *own

    def answers(self, alike: list[Moment]) -> list[Any]:
        """The same second moment for each of the requests ``alike``, which have one key."""
        found = second_moment(self.design, self.columns, self.border, self.weight, self.tuning)
        return [found] * len(alike)
