"""Which rows a certificate decides: the ledger, from the scores that the closing pass summed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.features.design import Design
from bigscreen.kernels.base import phi_norms
from bigscreen.kernels.given import Custom, Precomputed
from bigscreen.kernels.operand import Operand
from bigscreen.kernels.standard import Linear
from bigscreen.model.ledger import Ledger
from bigscreen.numerics.rows import FloatArray
from bigscreen.problems.dual import Dual, Mu
from bigscreen.problems.recipes import Problem

SINGLE = 2.0**-24
"""What a score is rounded by that is kept in float32."""


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
    mu : (low, high)
        Between them lie the multipliers that are best for the scores as they are, of each group;
        0 without a coupling.
    """

    scores: NDArray[Any]
    slack: FloatArray | float
    radius: float
    mu: tuple[Mu, Mu] = (0.0, 0.0)


def ledger(design: Design, problem: Problem, evidence: Evidence) -> Ledger | None:
    """What is certain of each row as long as w is no more than the radius away (maths.md 2.7).

    A score moves by at most ``r ||phi_i||``. With a coupling the multiplier moves by at most what
    the score does that moves most: it is an order statistic of numbers that move as scores do.

    Returns
    -------
    Ledger or None
        None where the multiplier is not known to lie anywhere.
    """
    data, (low, high) = design.data, np.broadcast_arrays(*evidence.mu)
    if not np.isfinite([low, high]).all():
        return None
    norms, slack = _norms(design, problem), np.broadcast_to(evidence.slack, data.n_rows)
    coupled = problem.dual(data.y(0, 1), data.weights(0, 1)).coupling is not None
    widest, loosest = (float(np.max(norms)), float(np.max(slack))) if coupled else (0.0, 0.0)
    reach, used = np.empty(data.n_rows), np.empty(data.n_rows, np.bool_)
    for s in range(data.n_shards):
        rows = slice(*data.shard(s))
        dual = problem.dual(data.y(rows.start, rows.stop), data.weights(rows.start, rows.stop))
        middle, half = (dual.spread_mu(mu) for mu in (0.5 * (low + high), 0.5 * (high - low)))
        distance, used[rows] = _margins(dual, evidence.scores[rows].astype(np.float64), middle)
        left = distance - (slack[rows] + loosest + half)
        with np.errstate(divide="ignore", invalid="ignore"):
            reach[rows] = np.where(left > 0, left / (norms[rows] + widest), 0.0)
    return Ledger.of(reach, used, evidence.radius)


def _norms(design: Design, problem: Problem) -> FloatArray:
    """Upper bounds of ``||phi_i||`` (n,), the constant's part included; no row is read for them."""
    data, kernel = design.data, design.kernel
    if kernel is None or (design.exact and isinstance(kernel, Linear)):
        norms: FloatArray = np.sqrt(data.sqnorms(0, data.n_rows))
    elif isinstance(kernel, (Precomputed, Custom)):
        norms = phi_norms(kernel, Operand(data.X(0, data.n_rows), np.arange(data.n_rows)))
    elif design.exact:
        norms = np.full(data.n_rows, np.sqrt(kernel.bound(data.max_sqnorm, data.max_sqnorm)))
    else:
        norms = np.full(data.n_rows, design.largest_norm)
    constant = problem.intercept_scaling if problem.intercept == "constant" else 0.0
    found: FloatArray = np.sqrt(norms**2 + constant**2)
    return found


def _margins(dual: Dual, scores: FloatArray, mu: Mu) -> tuple[FloatArray, NDArray[np.bool_]]:
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
    rounded = 2.0**-50 * (np.abs(dual.lin) + np.abs(scores) + np.abs(mu) + tube)
    over, under = gradient > tube, gradient < -tube
    end = np.where(over, dual.hi, np.where(under, dual.lo, 0.0))
    distance = np.abs(np.abs(gradient) - tube) - rounded
    distance = np.where(np.isfinite(end), distance, 0.0)
    fixed = dual.hi == dual.lo
    return np.where(fixed, np.inf, distance), np.where(fixed, dual.lo, end) != 0
