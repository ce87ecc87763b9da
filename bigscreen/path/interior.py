"""The interior point method on a path's kernel matrix, for points that take pair steps too long."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.data.memory import MemoryDataset
from bigscreen.features.design import Design
from bigscreen.fleet.inline import Inline
from bigscreen.numerics.cholesky import cholesky_features
from bigscreen.numerics.rows import FloatArray
from bigscreen.path.gram_matrix import FullGram
from bigscreen.problems.dual import Dual
from bigscreen.problems.point import Point
from bigscreen.solvers.block.messages import FixedDual
from bigscreen.solvers.interior import (
    InteriorCosts,
    InteriorPoint,
    KernelFeatures,
    factor_terms,
    pair_terms,
)
from bigscreen.solvers.protocol import Run, Save, Verdict


class GramInterior:
    """The interior point method over features whose inner products are a kernel matrix's entries.

    All stages on a matrix share it: the features (a Cholesky factor) are computed once, when first
    needed.

    Parameters
    ----------
    gram : FullGram
    room : int
        Bytes of memory left next to the matrix and the copies of its rows.
    costs : InteriorCosts
        What the method costs next to pair steps.
    """

    def __init__(self, gram: FullGram, room: int, costs: InteriorCosts) -> None:
        """Decide whether the method is usable on this matrix; compute no features yet."""
        self.gram = gram
        # (With float32 entries the interior point method proves no smaller gap than pair steps do.)
        # Its features and the linear systems of its steps take up to five matrices as large as K.
        self.usable = gram.psd and gram.wide and 5 * gram.K.nbytes <= room
        self.features = KernelFeatures(
            lambda: cholesky_features(np.array(gram.K, np.float64)),
            factor_terms(len(gram), costs),
            costs,
        )

    def should_try(self, steps: int, rows: int) -> bool:
        """Whether ``steps`` pair steps over ``rows`` rows took longer than this method would take.

        Always False if the method is not usable on this matrix.
        """
        return self.usable and self.features.should_use(pair_terms(steps, rows), rows)

    def alpha(
        self, dual: Dual, rows: NDArray[np.int64], tol: float, late: Callable[[], bool]
    ) -> FloatArray:
        """Solve the dual of ``rows`` to a relative gap of ``tol``; return its best alpha, (rows,).

        ``late`` returns whether the deadline has passed; the solve then stops at its best point.
        """
        data = MemoryDataset(self.features.made[rows], None, None)
        with Inline(1) as fleet:
            run = Run(Design(data, None), FixedDual("none", dual), fleet)
            check = _KeepBest(tol, late)
            InteriorPoint().solve(run, check)
        assert check.best is not None and check.best.alpha is not None
        return check.best.alpha


@dataclass
class _KeepBest:
    """The check that an interior point solve calls after each step; it keeps the best point.

    A call returns None if the solve is to stop. ``target``: the relative gap at which the solve
    stops; ``is_late``: says whether the deadline has passed; ``max_steps``: stop after this many
    calls; ``best``: the point with the smallest gap; ``made``: the number of calls.
    """

    target: float
    is_late: Callable[[], bool]
    max_steps: int = 100
    best: Point | None = None
    made: int = 0

    def __call__(self, point: Point, stats: dict[str, Any], save: Save) -> Verdict | None:
        """Keep ``point`` if its gap is the smallest; return None if the solve is to stop.

        ``stats``: the solver's report, of which "stalled" is read.
        """
        self.made += 1
        if self.best is None or point.gap < self.best.gap:
            self.best = point
        over = stats["stalled"] or self.is_late() or self.made >= self.max_steps
        return None if over or point.relative_gap <= self.target else Verdict()

    def expired(self) -> bool:
        """Whether the deadline has passed."""
        return self.is_late()

    def pause(self, save: Save | None = None) -> None:
        """Do nothing: an interrupted point of a path is solved again from its start."""

    def restored(self, meta: dict[str, Any]) -> None:
        """Raise AssertionError: these solves write no checkpoints that could be restored."""
        raise AssertionError
