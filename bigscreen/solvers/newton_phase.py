"""Newton steps over the rows nearby, between passes over all rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.dual import FloatArray
from bigscreen.solvers.newton_local import Local
from bigscreen.solvers.newton_near import Rows, unpack

if TYPE_CHECKING:
    from bigscreen.solvers.newton_place import Place
    from bigscreen.solvers.newton_solve import Solve

LEAST_SIZE = 64
"""Below so many features the algebra costs less than it takes to hand rows over."""

ENTRIES = 16_000_000
"""Features of the rows at hand, at most."""

PART = 0.4
"""Part of all rows that may be at hand: of more, a pass costs hardly more than a step."""

REACHES = np.array([1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0])
"""How far the rows at hand may be from their kink, in units of h."""

LEAST_TOL = 1e-6
"""Closer than this the float32 features of the rows at hand lead astray."""

GROWTH = 1.5
"""How many times as many rows there is room for as are taken in at first."""

SHORT = 0.1
"""A step that has to be cut to less than this had too few rows at hand: better one over all."""

LOWER = 2.0
"""By how much h may fall between two passes while rows leave their side in many places."""

FEW = 0.02
"""So many rows that left their side, as a part of those at hand, are few."""

ROUNDS = 8
"""Passes before rows are picked anew."""

GRID = np.array([0.0, 1.0, 0.85, 0.7, 0.55, 0.4, 0.28, 0.18, 0.1, 0.05, 0.02, 0.005])


def approach(solve: Solve, place: Place) -> bool:
    """Minimise over the rows nearby, taking in those that every pass finds to have moved.

    Returns False, with the place as it was, where that is not worth it.
    """
    reach = within_reach(solve, place, place.h)
    if not reach:
        return False
    assert place.point is not None and place.gradient is not None
    local = Local(solve.algebra, place.x, place.gradient, place.h)
    counts = _pick(solve, reach=reach)
    if _sent(solve, counts) > 2 * ENTRIES:
        place.local = False
        return False
    local.add(_gather(solve, place, counts))
    gap, lowest = solve.options.tol * abs(place.point.primal), place.h / LOWER
    most, trial = _most(solve, place), None
    for _ in range(ROUNDS):
        taken = local.solve(gap, lowest)
        if taken == 0 and trial is None:
            # The place was thought to be the end, and is not: what smoothing costs was too rosy.
            taken = local.solve(gap / 4, 0.0)
        if taken <= 0 and trial is None:
            break
        trial = solve.seek(place, local.x - place.x, GRID, local.h)
        gap = solve.options.tol * abs(trial.primal)
        counts = _pick(solve, h=local.h)
        found = int(counts.sum())
        room = len(local.G) + found <= most and _sent(solve, counts) <= 2 * ENTRIES
        if not room or not (found or lowest):
            break
        # Many rows that moved make another place of this one: no use in a small h as yet.
        lowest = 0.0 if found <= FEW * len(local.G) else local.h
        if found:
            local.add(_gather(solve, place, counts))
    if trial is None or trial.steps[trial.best] < SHORT:
        place.local = False
        return False
    place.decrement = local.decrement
    solve.take(place, trial, moment=False)
    return True


def within_reach(solve: Solve, place: Place, h: float, t: float | None = None) -> float:
    """How far from their kink the rows may be that are taken in; 0 where that is not worth it.

    ``t``: at that step of the trial that has just been made.
    """
    if not place.local or solve.algebra.size < LEAST_SIZE:
        return 0.0
    # Squared losses bend everywhere above their kink: no few rows are all that matter.
    if solve.algebra.frame.curved:
        return 0.0
    # Features are float32 here; a subsample is left early, and a start has its h to find first.
    if solve.options.tol < LEAST_TOL:
        return 0.0
    if solve.program.stride > 1 or place.given is not None:
        return 0.0
    counts = _ask(solve, "within", reaches=REACHES * h, t=t).sum(axis=0)
    fit = np.flatnonzero(counts * GROWTH <= _most(solve, place))
    return float(REACHES[fit[-1]] * h) if len(fit) else 0.0


def _most(solve: Solve, place: Place) -> int:
    """Rows at hand, at most."""
    return min(ENTRIES // solve.algebra.size, int(PART * place.alive))


def _ask(solve: Solve, ask: str, **what: Any) -> FloatArray:
    return solve.fleet.round({"kind": "nearby", "ask": ask, **what})[0]


def _sent(solve: Solve, counts: NDArray[np.int64]) -> int:
    """Numbers that come for so many rows: every shard sends as much as the one with most."""
    return int(counts.max()) * len(counts) * solve.algebra.size


def _pick(solve: Solve, **what: Any) -> NDArray[np.int64]:
    """How many rows every shard has picked."""
    return _ask(solve, "pick", **what)[:, 0].astype(np.int64)


def _gather(solve: Solve, place: Place, counts: NDArray[np.int64]) -> Rows:
    """The rows just picked, with their G at the place."""
    coef, extras = solve.algebra.coef(place.x)
    stack = _ask(solve, "gather", coef=coef, extras=extras, most=int(counts.max()))
    return unpack(stack, counts, solve.algebra.size)
