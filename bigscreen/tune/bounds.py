"""What the gap of an unfinished point says of the exact machine's score on held-out rows.

With ``w = w(alpha)`` and a gap G, ``||w - w*||^2 <= G`` (maths.md 2.2), so that every optimal
score, of rows that were held out too, lies within ``sqrt(G) ||phi(x)||`` of the one at hand, and
the intervals of the fitted rows' scores bound the multiplier (maths.md 3). A held-out row on which
all of the region agrees is judged for certain; the others may go either way (maths.md 2.8).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.numerics.rows import FloatArray
from bigscreen.path.walk import Step
from bigscreen.problems.recipes import NuSvc
from bigscreen.screening.regions import Ball


def decisions(step: Step, norms: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Bounds on the exact machine's decision function of every row, two float64 arrays (n,).

    Of an offset that is not unique the exact machine has the middle, as those have that are fitted.

    Parameters
    ----------
    step : Step
        With a gap.
    norms : float64 (n,)
        Upper bounds of ``||phi_i||``.
    """
    solved, dual = step.solved, step.dual
    radius = float(np.sqrt(max(solved.gap, 0.0) + solved.rounding)) * (1 + 1e-12)
    values, slack = solved.scores
    lower, upper = Ball(radius).intervals(values, norms, slack)
    if dual.coupling is None:
        return lower, upper
    # (Rows whose box is a point have no weight among the breakpoints.)
    low, high = _offsets(step, *dual.middle_interval(lower, upper))
    return lower + low, upper + high


def _offsets(step: Step, least: Any, most: Any) -> tuple[float, float]:
    """The least and the largest offset of any multiplier between two."""
    if isinstance(step.problem, NuSvc):
        if step.problem.intercept != "true":
            return 0.0, 0.0
        # Half the difference of the two: which of them counts negative is the recipe's affair.
        ends = [np.array([a, b]) for a in (least[0], most[0]) for b in (least[1], most[1])]
    else:
        ends = [least, most]
    offsets = [step.problem.offset(end) for end in ends]
    room = 4 * np.finfo(float).eps * max(map(abs, offsets))
    return min(offsets) - room, max(offsets) + room


def accuracy(
    y: NDArray[Any], lower: FloatArray, upper: FloatArray, weights: FloatArray
) -> tuple[float, float]:
    """The least and the largest accuracy of any machine with decision functions between these.

    Parameters
    ----------
    y : int array (rows,)
        Label codes.
    lower, upper : float64 (rows, machines)
        One machine: above 0 means code 1. Several: each code has its own, and the largest wins.
    weights : float64 (rows,)
    """
    if lower.shape[1] == 1:
        sure = np.where(y == 1, lower[:, 0] > 0, upper[:, 0] <= 0)
        possible = np.where(y == 1, upper[:, 0] > 0, lower[:, 0] <= 0)
    else:
        rows = np.arange(len(y))
        others = np.ones(lower.shape, np.bool_)
        others[rows, y] = False
        sure = lower[rows, y] > np.max(np.where(others, upper, -np.inf), axis=1)
        possible = upper[rows, y] >= np.max(np.where(others, lower, -np.inf), axis=1)
    total = float(np.sum(weights))
    return float(np.sum(weights[sure])) / total, float(np.sum(weights[possible])) / total
