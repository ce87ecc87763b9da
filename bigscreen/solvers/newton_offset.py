"""The interval of an unpenalised offset, by rounds over the shards."""

from __future__ import annotations

from typing import Any

import numpy as np

from bigscreen.solvers.protocol import Fleet


def multiplier_interval(
    fleet: Fleet, message: dict[str, Any], widest: float
) -> tuple[float, float]:
    """An interval that holds mu*: bisection on the weighted order statistics (MATH sec. 3).

    Every round counts weight below 65 candidates; four rounds leave 1e-7 of the range
    ``[-widest, widest]``, and both ends are rounded outwards.
    """
    ends = []
    for k, outward in enumerate((-1, 1)):
        low, high = -widest, widest
        for _ in range(4):
            grid = np.linspace(low, high, 65)
            stack, _ = fleet.round({**message, "kind": "quantiles", "grid": grid})
            found = stack.sum(axis=0)
            below, threshold = found[65 * k : 65 * (k + 1)], found[-2]
            # found[-1] is the total weight: slack for the rounding of the sums.
            enough = below >= threshold + outward * 1e-9 * found[-1]
            if not enough[-1] or enough[0]:
                low, high = (-np.inf, -widest) if enough[0] else (widest, np.inf)
                break
            first = int(np.argmax(enough))
            low, high = float(grid[first - 1]), float(grid[first])
        ends.append(low if outward < 0 else high)
    return ends[0], ends[1]
