"""Which rows a certificate decides: the ledger, from the scores that the closing pass summed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.features.design import Design
from bigscreen.kernels.base import phi_norms
from bigscreen.kernels.given import Custom, Precomputed
from bigscreen.kernels.operand import Operand
from bigscreen.kernels.standard import Linear
from bigscreen.model.ledger import DualPoint, Ledger, rounded
from bigscreen.numerics.rows import FloatArray
from bigscreen.problems.dual import Dual, Mu
from bigscreen.problems.recipes import Problem

SINGLE = 2.0**-24
"""What a score is rounded by that is kept in float32."""


SNAPPED = 2.0**-45
"""Part of its box that an alpha may be off its end by and count as there: the rounding of a mix of
several."""


@dataclass(frozen=True)
class Evidence:
    """What a closing pass knows of the rows, of which a ledger is made once the fit has ended.

    Parameters
    ----------
    scores : float32 or float64 (n,)
        Of the certified w, without a multiplier.
    slack : float64 (n,), or one number for all
        How far each may be from the exact one.
    radius : float
        Of the ball around w that holds w*.
    mu : (low, high) or None
        Between them lie the multipliers that are best for the scores as they are, of each group.
        None: without a coupling, and where the scores of all rows say it.
    dual : DualPoint or None
        Of all rows in their order, where a ledger can hold it.
    shortened : bool
        Whether the scores have been rounded to float32, which comes on top of the slack.
    """

    scores: NDArray[Any]
    slack: FloatArray | float
    radius: float
    mu: tuple[Mu, Mu] | None = None
    dual: DualPoint | None = None
    shortened: bool = False


def ledger(design: Design, problem: Problem, evidence: Evidence) -> Ledger:
    """What is certain of each row as long as w is no more than the radius away (maths.md 2.7).

    A score moves by at most ``r ||phi_i||``. With a coupling the multiplier moves by at most what
    the score does that moves most: it is an order statistic of numbers that move as scores do.
    """
    data, norms = design.data, _norms(design, problem)
    slack: FloatArray = np.atleast_1d(evidence.slack)
    part = SINGLE if evidence.shortened else 0.0
    highest = max(np.max(evidence.scores, initial=0.0), -np.min(evidence.scores, initial=0.0))
    most = float(np.max(norms)), float(np.max(slack)) + part * float(highest)
    if evidence.mu is None:
        # Of few rows only when somebody asks: it takes a tenth of a fit of 200.
        rows = design.dual(problem), evidence.scores, norms, slack
        later = partial(_margins, *rows, most, evidence.radius)
        return Ledger(later if design.square is not None else later(), evidence.radius)
    norms, slack = (np.broadcast_to(each, data.n_rows) for each in (norms, slack))
    margins = np.empty(data.n_rows, np.float16)
    for s in range(data.n_shards):
        start, stop = data.shard(s)
        dual, own = problem.dual(data.y(start, stop), data.weights(start, stop)), slice(start, stop)
        scores = evidence.scores[own].astype(np.float64)
        rows = dual, scores, norms[own], slack[own] + part * np.abs(scores)
        margins[own] = _margins(*rows, most, evidence.radius, evidence.mu)
    return Ledger(margins, evidence.radius, dual=evidence.dual)


def listed(dual: Dual, scores: NDArray[Any], alpha: FloatArray) -> NDArray[np.bool_]:
    """Rows whose alpha is not what the side of their score says (rows,), as `Ledger` has sides.

    ``scores`` are those that a ledger is made of.
    """
    _, used = _distances(dual, scores.astype(np.float64), 0.0)
    off: NDArray[np.bool_] = np.abs(alpha - np.where(used, dual.hi, 0.0)) > SNAPPED * dual.hi
    return off


def _margins(
    dual: Dual,
    scores: FloatArray,
    norms: FloatArray,
    slack: FloatArray,
    most: tuple[float, float],
    radius: float,
    mu: tuple[Mu, Mu] | None = None,
) -> NDArray[np.float16]:
    """A ledger's margins of rows (rows,); ``most``: the largest norm and slack of all rows."""
    length, doubt = norms, slack
    middle: Mu = 0.0
    if dual.coupling is not None:
        low, high = dual.multiplier_interval(scores, scores) if mu is None else mu
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            return np.zeros(len(scores), np.float16)
        middle, half = dual.spread_mu(0.5 * (low + high)), dual.spread_mu(0.5 * (high - low))
        length, doubt = norms + most[0], slack + most[1] + half
    distance, used = _distances(dual, scores, middle)
    with np.errstate(divide="ignore", invalid="ignore"):
        left = distance - doubt
        return rounded(np.where(left > 0, left / length, 0.0) / radius, used)


def in_float32(scores: FloatArray) -> NDArray[np.float32]:
    """Scores as a ledger has them: infinite, and their rows open, where float32 holds none such."""
    with np.errstate(over="ignore"):
        return scores.astype(np.float32)


def _norms(design: Design, problem: Problem) -> FloatArray:
    """Upper bounds of ``||phi_i||``, the constant's part included: (n,), or (1,) for all rows.

    No row is read for them.
    """
    data, kernel = design.data, design.kernel
    if kernel is None or (design.exact and isinstance(kernel, Linear)):
        norms: FloatArray = np.sqrt(data.sqnorms(0, data.n_rows))
    elif isinstance(kernel, (Precomputed, Custom)):
        norms = phi_norms(kernel, Operand(data.X(0, data.n_rows), np.arange(data.n_rows)))
    elif design.exact:
        norms = np.array([np.sqrt(kernel.bound(data.max_sqnorm, data.max_sqnorm))])
    else:
        norms = np.array([design.largest_norm])
    constant = problem.intercept_scaling if problem.intercept == "constant" else 0.0
    found: FloatArray = np.sqrt(norms**2 + constant**2)
    return found


def _distances(dual: Dual, scores: FloatArray, mu: Mu) -> tuple[FloatArray, NDArray[np.bool_]]:
    """How far each row's gradient is from its next kink, and whether alpha is not 0 on its side.

    ``mu``: the multiplier of every row.
    Where alpha has no end on that side (squared losses) the distance is 0, as nothing is decided;
    of a row that cannot move it is infinite.
    """
    gradient = dual.lin - dual.sign * scores
    if dual.coupling is not None:
        gradient -= dual.coupling * mu
    tube = np.zeros(1) if dual.tube is None else dual.tube
    # A gradient is rounded as the terms that it is summed from are.
    noise = 2.0**-50 * (np.abs(dual.lin) + np.abs(scores) + np.abs(mu) + tube)
    over, under = gradient > tube, gradient < -tube
    end = np.where(over, dual.hi, np.where(under, dual.lo, 0.0))
    with np.errstate(invalid="ignore"):  # of infinite scores
        distance = np.abs(np.abs(gradient) - tube) - noise
    distance = np.where(np.isfinite(end) & np.isfinite(distance), distance, 0.0)
    fixed = dual.hi == dual.lo
    return np.where(fixed, np.inf, distance), np.where(fixed, dual.lo, end) != 0
