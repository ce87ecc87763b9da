"""Screening rounds of a Newton: the multipliers' intervals, and what a region proves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bigscreen.dual import Mu
from bigscreen.screening.regions import Ball

if TYPE_CHECKING:
    from bigscreen.solvers.newton_solve import Place, Solve


def screen(solve: Solve, place: Place, region: Ball) -> tuple[int, int]:
    """Let every shard fix what the region proves; w, and so every score, stays as it is.

    Returns the rows newly fixed at hi, and elsewhere.
    """
    frame, design = solve.algebra.frame, solve.design
    if frame.curved and frame.groups:
        return 0, 0  # no interval of scores bounds the multiplier: P has no kinks in it
    coef, extras = solve.algebra.coef(place.x)
    message: dict[str, Any] = {
        "region": region,
        "slack": design.score_error(coef),
        "multipliers": np.where(np.arange(len(extras)) < frame.first, 0.0, extras),
        **solve.algebra.travel(place.past, place.errors, [place.x]),
    }
    reach = float(np.linalg.norm(place.x)) + region.radius + float(np.max(message["travel"][:-1]))
    widest = 2.0 * (solve.largest + reach * design.largest_norm)
    ends = np.array([_interval(solve, message, g, widest) for g in range(frame.groups)])
    low, high = ends.reshape(-1, 2).T
    message["mu"] = _as_mu(low), _as_mu(high)
    stack, _ = solve.fleet.round({**message, "kind": "screen"})
    return int(stack[:, 0].sum()), int(stack[:, 1].sum())


def _as_mu(values: np.ndarray) -> Mu:
    return values if len(values) > 1 else float(np.sum(values))


def _interval(
    solve: Solve, message: dict[str, Any], group: int, widest: float
) -> tuple[float, float]:
    """An interval that holds mu*: bisection on the weighted order statistics (MATH sec. 3).

    Every round counts weight below 65 candidates; four rounds leave 1e-7 of the range
    ``[-widest, widest]``, and both ends are rounded outwards.
    """
    total = float(solve.algebra.frame.total[group])
    ends = []
    for k, outward in enumerate((-1, 1)):
        low, high = -widest, widest
        for _ in range(4):
            grid = np.linspace(low, high, 65)
            asked = {**message, "kind": "quantiles", "grid": grid, "group": group}
            stack, _ = solve.fleet.round(asked)
            found = stack.sum(axis=0)
            below, threshold = found[65 * k : 65 * (k + 1)], found[-2] - total
            # found[-1] is the total weight: slack for the rounding of the sums.
            enough = below >= threshold + outward * 1e-9 * found[-1]
            if not enough[-1] or enough[0]:
                low, high = (-np.inf, -widest) if enough[0] else (widest, np.inf)
                break
            first = int(np.argmax(enough))
            low, high = float(grid[first - 1]), float(grid[first])
        ends.append(low if outward < 0 else high)
    return ends[0], ends[1]
