"""Where a Newton begins that is handed a dual point: at w(alpha), on all rows at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bigscreen import design_sums
from bigscreen.dual import FloatArray

if TYPE_CHECKING:
    from bigscreen.solvers.newton_solve import Place, Solve


def start_at(solve: Solve, alpha: FloatArray) -> Place:
    """The place of w(alpha); multipliers are those that minimise P there."""
    design, problem, fleet = solve.design, solve.problem, solve.fleet
    frame = solve.algebra.frame
    data = design.data
    dual = problem.dual(data.y(0, data.n_rows), data.weights(0, data.n_rows))
    sums = design_sums.weighted_columns(design, dual.sign * alpha, fleet)
    w, constant = design.features(sums[:-1]), frame.constant * sums[-1:][: frame.first]
    mu = np.empty(0)
    if frame.groups:
        scores = design_sums.scores(design, design.coef(w), fleet) + frame.constant * float(
            np.sum(constant)
        )
        mu = np.atleast_1d(dual.multiplier(scores))
    x = np.concatenate([w, constant, mu])
    place = solve.origin()
    place.given = dual.value(alpha, 2 * solve.algebra.quadratic(x))
    place.x = x
    return place


def suit(solve: Solve, place: Place, cost: float, gap: float) -> float:
    """The smoothing h that costs a tenth of ``gap``, where h = unit costs ``cost``.

    What smoothing costs grows with h^2 while margins are spread evenly. (A tenth: from a third to
    a hundredth take as many passes, wider ones leave the start behind.)
    """
    place.given = None
    unit = solve.algebra.unit
    h = unit * (1.0 if cost <= 0 else float(np.clip(np.sqrt(0.1 * gap / cost), 1e-6, 1.0)))
    # So many rows of average weight, their margins spread evenly, cost that at h = unit.
    share = 12 * h * cost / unit**2 / max(solve.program.weight_bound, 1e-300)
    place.zone = int(min(1.0, share) * solve.design.data.n_rows)
    return h
