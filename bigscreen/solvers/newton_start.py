"""Where a Newton begins that is handed a dual point: at w(alpha), on all rows at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bigscreen import design_sums
from bigscreen.dual import FloatArray

if TYPE_CHECKING:
    from bigscreen.solvers.newton_solve import Place, Solve


def start_at(solve: Solve, alpha: FloatArray) -> Place:
    """The place of w(alpha); an unpenalised b is the one that minimises P there."""
    design, problem, fleet = solve.design, solve.problem, solve.fleet
    data = design.data
    dual = problem.dual(data.y(0, data.n_rows), data.weights(0, data.n_rows))
    x = solve.algebra.features(design_sums.weighted_columns(design, dual.sign * alpha, fleet))
    place = solve.origin()
    place.given = dual.value(alpha, 2 * solve.algebra.quadratic(x))
    if problem.intercept == "true":
        coef, _ = solve.algebra.coef(x)
        x[-1] = dual.multiplier(design_sums.scores(design, coef, fleet))
    place.x = x
    return place


def suit(solve: Solve, place: Place, cost: float, gap: float) -> float:
    """The smoothing h that costs a tenth of ``gap``, where h = 1 costs ``cost``.

    What smoothing costs grows with h^2 while margins are spread evenly. (A tenth: from a third to
    a hundredth take as many passes, wider ones leave the start behind.)
    """
    place.given = None
    h = 1.0 if cost <= 0 else float(np.clip(np.sqrt(0.1 * gap / cost), 1e-6, 1.0))
    # So many rows of average weight, their margins spread evenly, cost that at h = 1.
    share = 12 * h * cost / max(solve.program.weight_bound, 1e-300)
    place.zone = int(min(1.0, share) * solve.design.data.n_rows)
    return h
