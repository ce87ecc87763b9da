"""The end of a close block solve: all rows that could still move at once, in float64.

Where they are few, blocks that take turns until each is a tenth as far off cost more than the
optimum itself: their scores are computed from float64 entries, and kept so while they move; their
problem, all other rows fixed, is solved exactly (`face`); rows that then violate join them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bigscreen.fleet.blas import blas_threads
from bigscreen.solvers.block.face import Faces
from bigscreen.solvers.block.gram import BlockGram
from bigscreen.solvers.block.mending import sharpen
from bigscreen.solvers.block.messages import received
from bigscreen.solvers.block.records import Stretch
from bigscreen.solvers.block.working_set import free

if TYPE_CHECKING:
    from bigscreen.solvers.block.coordinator import BlockRun

START = 1e-3
"""Relative gap from which on the end is tried: rows that will move are about those that do."""

WORTH, CLOSE = 10.0, 1e-7
"""Rounds to the gap that is asked for, if it goes on falling as it does, that the end costs as much
as (measured: 4 to 10); and the gap that asks for scores of float64 entries in any case."""

LATER = 0.1
"""Part of the gap at which the end is tried again where it has not halved the gap."""

WIDE = 0.25
"""Rows so many times as near to their kink as the furthest violates join the others: of those that
violate once these have moved most are among them."""

STEADY = 1.25
"""Rows that are free or violate, as a part of the free ones, above which there is no face to end on
yet: of a9a's at a gap of 1e-3 less than half were free, and the try cost a 12th of the fit."""

FEW, MOST, SHARE = 512, 3072, 300
"""Rows that can always move, at most, and at most for the square of so many there are n / SHARE:
a factor costs the cube of them, and the blocks that it saves about n times as many entries."""


@dataclass
class Ending:
    """From which relative gap on the end is tried, and how blocks alone do.

    ``fall``: by what part a round lowers the gap, of late; ``last``: the gap before it.
    """

    start: float = START
    fall: float = 1.0
    last: float = 1.0

    def note(self, gap: float) -> None:
        """Count a round that has come to this relative gap."""
        now = gap if 0.0 < gap < 1.0 else 1.0  # (a P near 0 has any, or none)
        self.fall, self.last = float(np.sqrt(self.fall * min(now / self.last, 1.0))), now

    def worth(self, gap: float, target: float) -> bool:
        """Whether to try it at this gap: blocks would not soon come to what is asked for."""
        return gap <= self.start and (target <= CLOSE or gap * self.fall**WORTH > target)


def finished(run: BlockRun, target: float) -> bool:
    """Go to the optimum of all rows that could move, if they are few; whether alpha has moved.

    Not where blocks come to the relative gap ``target`` before that is worth it.
    """
    before = run.point().relative_gap
    run.ending.note(before)
    if not run.ending.worth(before, target) or not run.design.definite:
        return False
    ids = _open(run)
    if ids is None:
        return False
    none, fine = np.empty(0, np.int64), run.fine
    if not fine:
        near = sharpen(run, ids, WIDE * run.violation)
        run.mending.drift = 0.0
        ids = near if _few(run, near) else ids
    run.move(none, np.empty(0), run.data.X(0, 0), ids)
    G = run.survey.watched * run.dual.ways[ids]
    X = received(run.fleet, run.data, ids)
    gram = BlockGram(run.gram.kernel, run.constant, run.gram.threads, np.float64)
    gram.enter(none, ids, X, len(ids))
    run.gram.entries += gram.entries
    part, alpha = run.dual[ids], run.alpha[ids]
    faces = Faces(gram.K, part, alpha, G, run.mu, run.noise)
    with blas_threads(1):  # bits are to be the same wherever the coordinator is
        faces.solve()
    found = part.sign * faces.c + 0.0
    if np.array_equal(found, alpha):
        run.ending.start = LATER * before
        run.look()
        return False
    end = Stretch(found, G, part.sign * faces.g)
    run.take(part, ids, X, end, run.gram.ids[run.next.stay], exact=not fine)
    if not run.point().relative_gap <= 0.5 * before:
        run.ending.start = LATER * before
    return True


def _open(run: BlockRun) -> NDArray[np.int64] | None:
    """Rows that are free or violate, ascending, if all are known, few, and mostly free."""
    if not run.survey.complete:
        return None
    inside = np.flatnonzero(free(run.dual, run.alpha))
    ids = np.unique(np.concatenate([inside, run.survey.ups.ids, run.survey.downs.ids]))
    steady = len(ids) <= max(FEW, STEADY * len(inside))
    return ids if len(ids) and steady and _few(run, ids) else None


def _few(run: BlockRun, ids: NDArray[np.int64]) -> bool:
    most = max(FEW, (SHARE * len(run.dual)) ** 0.5)
    return len(ids) <= min(MOST, most)
