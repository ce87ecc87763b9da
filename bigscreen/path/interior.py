"""The interior point of a path's kernel matrix: for points that pair steps do not come to."""

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
from bigscreen.solvers.interior import InteriorPoint, KernelFeatures, factor_terms, pair_terms
from bigscreen.solvers.protocol import Run, Save, Verdict

MATRICES = 5
"""Float64 matrices as large as K that it takes beside K at most: features, and its systems'."""

MOST_STEPS = 100
"""Steps of a solve at most."""


class GramInterior:
    """An interior point over features whose products are the entries of a kernel matrix.

    One for all stages on a matrix: the features are made once, when somebody first needs them.

    Parameters
    ----------
    gram : FullGram
    room : int
        Bytes there are beside the matrix and copies of its rows.
    """

    def __init__(self, gram: FullGram, room: int) -> None:
        self.gram = gram
        # (Of float32 entries nothing would be proved that pair steps cannot.)
        self.usable = gram.psd and gram.wide and MATRICES * gram.K.nbytes <= room
        self.features = KernelFeatures(
            lambda: cholesky_features(np.array(gram.K, np.float64)), factor_terms(len(gram))
        )

    def worth(self, steps: int, rows: int) -> bool:
        """Whether so many pair steps over some rows have taken longer than it would."""
        return self.usable and self.features.should_use(pair_terms(steps, rows), rows)

    def alpha(
        self, dual: Dual, rows: NDArray[np.int64], tol: float, late: Callable[[], bool]
    ) -> FloatArray:
        """The best alpha of some rows (rows,) whose problem this is, to a relative gap."""
        data = MemoryDataset(self.features.made[rows], None, None)
        with Inline(1) as fleet:
            run = Run(Design(data, None), FixedDual("none", dual), fleet)
            check = _Nearest(tol, late)
            InteriorPoint().solve(run, check)
        assert check.best is not None and check.best.alpha is not None
        return check.best.alpha


@dataclass
class _Nearest:
    """The check of a solve that keeps the point of the smallest gap."""

    target: float
    late: Callable[[], bool]
    best: Point | None = None
    made: int = 0

    def __call__(self, point: Point, stats: dict[str, Any], save: Save) -> Verdict | None:
        self.made += 1
        if self.best is None or point.gap < self.best.gap:
            self.best = point
        over = stats["stalled"] or self.late() or self.made >= MOST_STEPS
        return None if over or point.relative_gap <= self.target else Verdict()

    def expired(self) -> bool:
        """See ``Check``."""
        return self.late()

    def pause(self, save: Save | None = None) -> None:
        """See ``Check``: a point of a path is begun anew."""

    def restored(self, meta: dict[str, Any]) -> None:
        """There are no checkpoints of it."""
        raise AssertionError
