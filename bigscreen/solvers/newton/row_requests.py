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
    """Request for columns (rows, m), which must not be written to.

    ``local`` (rows,) are ascending indices of rows in the state.
    """

    design: Design
    state: NewtonShard
    local: NDArray[np.int64]
    dtype: Any = np.float32

    @property
    def key(self) -> Any:
        return "columns", self.dtype, self.state.ids[self.local].tobytes()

    def answers(self, alike: list[Columns]) -> list[Any]:
        return [self.compute()] * len(alike)

    def compute(self, passing: str = "") -> NDArray[Any]:
        """Compute the columns; kernel columns use the buffer of this name (`Design.columns`)."""
        rows = self.state.rows(self.design.data, self.local)
        return self.design.columns(rows, self.dtype, passing)


@dataclass(frozen=True)
class Dots:
    """Request for products of columns with ``coefs`` (m, k): float64 (rows, k)."""

    design: Design
    state: NewtonShard
    local: NDArray[np.int64]
    coefs: FloatArray

    @property
    def key(self) -> Any:
        return "dots", self.state.ids[self.local].tobytes()

    def answers(self, alike: list[Dots]) -> list[Any]:
        rows = self.state.rows(self.design.data, self.local)
        if len(alike) == 1:
            return [self.design.dots(rows, self.coefs)]
        found = self.design.dots(rows, np.concatenate([ask.coefs for ask in alike], axis=1))
        ends = np.cumsum([ask.coefs.shape[1] for ask in alike])
        return np.split(found, ends[:-1], axis=1)


@dataclass(frozen=True)
class Rounding:
    """Request for the largest change of any row's score by float32 columns, for each coef (k,)."""

    design: Design
    X: Any
    coefs: FloatArray

    @property
    def key(self) -> Any:
        return "rounding", id(self.X)

    def answers(self, alike: list[Rounding]) -> list[Any]:
        coefs = np.concatenate([ask.coefs for ask in alike], axis=1)
        both = (self.design.dots(self.X, coefs, dtype) for dtype in (np.float32, np.float64))
        found = np.max(np.abs(np.subtract(*both)), axis=0, initial=0.0)
        ends = np.cumsum([ask.coefs.shape[1] for ask in alike])
        return np.split(found, ends[:-1])


@dataclass(frozen=True)
class Moment:
    """Request for the second moment of rows with these columns; it must not be written to."""

    design: Design
    state: NewtonShard
    local: NDArray[np.int64]
    columns: NDArray[Any]
    border: FloatArray
    weight: FloatArray
    tuning: NewtonTuning = NEWTON

    @property
    def key(self) -> Any:
        own = self.border.tobytes(), self.weight.tobytes(), self.columns.dtype
        return "moment", self.state.ids[self.local].tobytes(), *own

    def answers(self, alike: list[Moment]) -> list[Any]:
        found = second_moment(self.design, self.columns, self.border, self.weight, self.tuning)
        return [found] * len(alike)
