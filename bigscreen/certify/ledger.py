"""Makes the ledger: which rows a certificate decides, from the scores of the closing pass."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.features.design import Design
from bigscreen.kernels.base import U32, phi_norms
from bigscreen.kernels.given import Custom, Precomputed
from bigscreen.kernels.operand import Operand
from bigscreen.kernels.standard import Linear
from bigscreen.model.ledger import DualPoint, Ledger, round_margins
from bigscreen.numerics.rows import FloatArray
from bigscreen.problems.dual import Dual, Mu
from bigscreen.problems.recipes import Problem


@dataclass(frozen=True)
class Evidence:
    """The scores of a closing pass with error bounds, from which a ledger of the rows is made.

    A closing pass certifies a point over all rows; a ledger says what is then proved of each row.

    Parameters
    ----------
    scores : float32 or float64 (n,)
        Scores of the certified w, without a multiplier.
    slack : float64 (n,), or one number for all
        How far each score may be from the exact score.
    radius : float
        Radius of the ball around w that holds w*.
    mu : (low, high) or None
        An interval that holds the best multipliers for these scores, by group. None: there is no
        coupling, or the interval follows from the scores of all rows.
    dual : DualPoint or None
        The dual point of all rows in their order, if a ledger can hold it.
    in_float32 : bool
        Whether the scores have been rounded to float32, an error in addition to the slack.
    """

    scores: NDArray[Any]
    slack: FloatArray | float
    radius: float
    mu: tuple[Mu, Mu] | None = None
    dual: DualPoint | None = None
    in_float32: bool = False


def make_ledger(design: Design, problem: Problem, evidence: Evidence) -> Ledger:
    """Make the ledger: what is proved of each row while w* is in the ball around w (maths.md 2.7).

    A score moves by at most ``r ||phi_i||``. With a coupling the multiplier moves by at most the
    largest move of any score, since it is an order statistic of numbers that move as scores do.
    """
    data, norms = design.data, _norms(design, problem)
    slack: FloatArray = np.atleast_1d(evidence.slack)
    part = U32 if evidence.in_float32 else 0.0
    highest = max(np.max(evidence.scores, initial=0.0), -np.min(evidence.scores, initial=0.0))
    most = float(np.max(norms)), float(np.max(slack)) + part * float(highest)
    if evidence.mu is None:
        # (For few rows it is computed on first use: it takes a tenth of a fit to 200 rows.)
        rows = design.dual(problem), evidence.scores, norms, slack
        later = partial(_compute_margins, *rows, most, evidence.radius)
        return Ledger(later if design.square is not None else later(), evidence.radius)
    norms, slack = (np.broadcast_to(each, data.n_rows) for each in (norms, slack))
    margins = np.empty(data.n_rows, np.float16)
    for s in range(data.n_shards):
        start, stop = data.shard(s)
        dual, own = problem.dual(data.y(start, stop), data.weights(start, stop)), slice(start, stop)
        scores = evidence.scores[own].astype(np.float64)
        rows = dual, scores, norms[own], slack[own] + part * np.abs(scores)
        margins[own] = _compute_margins(*rows, most, evidence.radius, evidence.mu)
    return Ledger(margins, evidence.radius, dual=evidence.dual)


def is_off_side(
    dual: Dual, scores: NDArray[Any], alpha: FloatArray, tol: float = 2.0**-45
) -> NDArray[np.bool_]:
    """Whether each row's alpha differs from the one that the side of its score implies (rows,).

    ``scores`` are the scores that the ledger is made of; `Ledger` records the sides. ``tol``: the
    difference that counts as rounding, as a fraction of the box (a mixture of alphas has some).
    """
    _, used = _distances(dual, scores.astype(np.float64), 0.0)
    off: NDArray[np.bool_] = np.abs(alpha - np.where(used, dual.hi, 0.0)) > tol * dual.hi
    return off


def _compute_margins(
    dual: Dual,
    scores: FloatArray,
    norms: FloatArray,
    slack: FloatArray,
    most: tuple[float, float],
    radius: float,
    mu: tuple[Mu, Mu] | None = None,
) -> NDArray[np.float16]:
    """Compute the ledger's margins (rows,): how far w can move before a row changes sides.

    They are in units of ``radius``, the radius of the ball around w that holds w*; negative for
    rows on the side where alpha is not 0. A row changes sides at its hinge point. ``norms``,
    ``slack``: the rows' ``||phi||`` and errors of scores; ``most``: the largest of both over all
    rows; ``mu``: see `Evidence`.
    """
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
        return round_margins(np.where(left > 0, left / length, 0.0) / radius, used)


def round_to_float32(scores: FloatArray) -> NDArray[np.float32]:
    """Round scores to float32; scores beyond its range become infinite: their rows stay open."""
    with np.errstate(over="ignore"):
        return scores.astype(np.float32)


def _norms(design: Design, problem: Problem) -> FloatArray:
    """Upper bounds of ``||phi_i||``, the constant's part included: (n,), or (1,) for all rows.

    Most kernels need no row for it.
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
    """The distance of each gradient from its hinge point, and whether alpha is nonzero on its side.

    ``mu``: the multiplier of each row. If the box has no end on that side (squared losses) the
    distance is 0, as nothing is decided; if the box is a single point, it is infinite.
    """
    gradient = dual.lin - dual.sign * scores
    if dual.coupling is not None:
        gradient -= dual.coupling * mu
    tube = np.zeros(1) if dual.tube is None else dual.tube
    # The rounding error of a gradient is relative to the terms that it is summed from.
    noise = 2.0**-50 * (np.abs(dual.lin) + np.abs(scores) + np.abs(mu) + tube)
    over, under = gradient > tube, gradient < -tube
    end = np.where(over, dual.hi, np.where(under, dual.lo, 0.0))
    with np.errstate(invalid="ignore"):  # of infinite scores
        distance = np.abs(np.abs(gradient) - tube) - noise
    distance = np.where(np.isfinite(end) & np.isfinite(distance), distance, 0.0)
    fixed = dual.hi == dual.lo
    return np.where(fixed, np.inf, distance), np.where(fixed, dual.lo, end) != 0
