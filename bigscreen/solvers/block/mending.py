"""Scores put right where float32 kernel columns have moved them: of rows near their kink.

The end of a close solve costs little but for rounding: what float32 entries do to the scores is a
gap that no step can close. Only rows near their kink tell in it, and only what alpha *is* has to be
computed in float64 there: the steps that follow are small, and go on with float32 columns, whose
rounding is as much smaller (iterative refinement, with a box).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.kernels.operand import Operand

if TYPE_CHECKING:
    from bigscreen.solvers.block.coordinator import BlockRun

PIECE = 4096
"""Support rows that are sent at once."""

ROUGH = 1e-4
"""Part of the bound on the gap's rounding that rounding has moved it by: 1/200 to 1/50,000 were
seen. Where it was more the closing pass says so."""

MOST_MENDS = 8
"""Times that scores are mended before all kernel entries are computed in float64 instead."""


@dataclass
class Mending:
    """What float32 columns have done to the scores.

    ``drift``: how far alpha has moved by them since scores were mended, in sum. ``noise``: by how
    much a unit of it moves the gap, as the last mending found; nan: nothing is known yet.
    ``times``: scores have been mended, for this problem.
    """

    drift: float = 0.0
    noise: float = np.nan
    times: int = 0


def mendable(run: BlockRun) -> bool:
    """Whether there is something to mend; an indefinite kernel has no gap that it tells in."""
    some = run.mending.drift > 0 and run.mending.times < MOST_MENDS
    return some and not run.fine and run.design.definite


def rough(run: BlockRun, target: float) -> bool:
    """Whether the gap is as small as asked for, but perhaps by rounding."""
    point = run.point()
    if not (mendable(run) and point.relative_gap <= target):
        return False
    noise = run.mending.noise * run.mending.drift
    if np.isnan(noise):
        stack, _ = run.fleet.round({**_about(run), "kind": "doubt"})
        noise = ROUGH * float(stack.sum())
    return bool(noise > target * abs(point.primal))


def mend(run: BlockRun) -> None:
    """Compute the scores of rows near their kink again, from float64 entries.

    Rows that are certainly at their bound keep the scores they have, as these do not tell in the
    gap.
    """
    before, mending = run.survey.gap, run.mending
    sharpen(run, np.empty(0, np.int64))
    run.still = False
    run.look()
    mending.noise = max(run.survey.gap - before, 0.0) / mending.drift
    mending.drift = 0.0
    mending.times += 1


def sharpen(run: BlockRun, ids: NDArray[np.int64], margin: float = 0.0) -> NDArray[np.int64]:
    """Have the shards compute scores of rows near their kink, and of these, from float64 entries.

    Of those whose scores are not such already, that is. ``margin``: how near they are, if that is
    more than rounding could tell. Returns all rows that have such scores now.
    """
    support, about = np.flatnonzero(run.alpha), _about(run)
    near = ids
    for a in range(0, max(1, len(support)), PIECE):
        some = support[a : a + PIECE]
        stack, _ = run.fleet.round(
            {
                **about,
                "kind": "mend",
                "first": a == 0,
                "margin": margin,
                "rows": Operand(run.data.rows(some), some),
                "change": run.dual.sign[some] * run.alpha[some],
                "watch": ids,
            }
        )
        if a == 0:
            near = np.sort(stack[stack >= 0].astype(np.int64))
    return near


def _about(run: BlockRun) -> dict[str, Any]:
    """Where the run stands, for messages about rounding."""
    return {"mu": run.multiplier, "offset": run.offset, "spread": run.spread(close=True)}
