"""Screening in the block solver: rows are dropped where they live, and can all be taken back."""

from __future__ import annotations

from typing import Any

import numpy as np

from bigscreen.dual import AT_HI, AT_ZERO, FREE, Mu
from bigscreen.kernels import Side
from bigscreen.screening.regions import Ball
from bigscreen.solvers.block_solve import Solve


def screen(solve: Solve, region: Ball) -> None:
    """Drop rows that the region proves to stay at the bound they are at."""
    solve.screened = True
    message = {
        "kind": "screen",
        "region": region,
        "offset": solve.offset,
        "spread": solve.spread(),
        "since": len(solve.screenings),
    }
    message["mu"] = _multipliers(solve, message)
    stack, _ = solve.fleet.round(message)
    high, low = stack.sum(axis=0)
    solve.counts = (int(high), int(low))
    solve.fixed += int(high + low)
    if high or low:
        solve.screenings.append(solve.alpha.copy())
        solve.look()  # the block that was chosen may have rows that are gone


def _multipliers(solve: Solve, message: dict[str, Any]) -> tuple[Mu, Mu]:
    """An interval that holds the optimal multiplier."""
    if solve.dual.coupling is None:
        return 0.0, 0.0
    stack, _ = solve.fleet.round({**message, "kind": "bounds"})
    lower, upper, side = (part.ravel()[: len(solve.dual)] for part in np.split(stack, 3, axis=1))
    dual = solve.dual
    if np.any(side == AT_ZERO):  # they have no part in the total
        keep = np.flatnonzero(side != AT_ZERO)
        dual, lower, upper, side = dual[keep], lower[keep], upper[keep], side[keep]
    assert dual.coupling is not None
    # A fixed row's breakpoint (p - s u) / t lies on a known side of mu*, above it where
    # t alpha is at its upper end: as good as at infinity.
    fixed = side != FREE
    above = (side == AT_HI) == (dual.coupling > 0)
    far = np.where(above, -np.inf, np.inf) * np.sign(dual.sign * dual.coupling)
    ends = np.where(fixed, far, lower), np.where(fixed, far, upper)
    return dual.multiplier_interval(*ends)


def revive(solve: Solve) -> None:
    """Take all fixed rows back, brought up to date, and count those fixed wrongly."""
    if solve.screenings:
        past = np.stack(solve.screenings, axis=1)
        moved = np.flatnonzero(np.any(past != solve.alpha[:, None], axis=1))
        change = solve.dual.sign[moved, None] * (solve.alpha[moved, None] - past[moved])
        stack, _ = solve.fleet.round(
            {
                "kind": "revive",
                "since": list(range(past.shape[1])),
                "rows": Side(solve.data.rows(moved), moved),
                "change": change,
                "mu": solve.mu,
                "offset": solve.offset,
            }
        )
        solve.false_removals += int(stack.sum())
    solve.screenings, solve.counts, solve.fixed = [], (0, 0), 0
    solve.look()
