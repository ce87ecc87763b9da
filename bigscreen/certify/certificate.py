"""Certificates: P, D and their gap over ALL rows, and how far rounding can have moved them.

Weak duality holds for every w, every multiplier mu and every feasible alpha:

    D(alpha) <= D* = P* <= P(w, mu),    gap = P(w, mu) - D(alpha).

So whatever a solver, a screening rule or a lazy pass left out, these two numbers, summed over all
rows, prove how far the machine is from the optimal one. There are two kinds of point:

* *paired*: alpha with its own ``w(alpha) = sum_i s_i alpha_i phi_i``. The scores u of w(alpha) are
  enough (``||w||^2 = sum s alpha u``), wherever they come from: tiles of a kernel matrix or entries
  in memory (`certify.scores`), scores that a path keeps, columns in memory. `prove` is the only
  function that makes a certificate of them.
* *separate*: w and an alpha whose w(alpha) is another vector, as a smoothed Newton method leaves
  them. P needs the scores of w, D the vector ``sum s alpha c`` over columns: `certify.explicit`,
  and `certify.incremental` if a dual point and its w(alpha) are known already.

A score comes with a *band*: how far it may be from the exact score. Bands move the gap less than P
and D: a row whose alpha is certainly the best one for its gradient moves P and D equally.
`can_explain_gap` says whether rounding could account for a gap; closing passes compute rows or
columns again, in float64, until it could not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bigscreen.model.ledger import DualPoint
from bigscreen.numerics.rows import FloatArray, njit
from bigscreen.problems.dual import Dual, Mu
from bigscreen.problems.dual_sums import (
    GRADIENT_ERROR,
    MAX_COMPILED_ROWS,
    Arrays,
    arrays,
    as_loop_array,
    multipliers,
    row_gap,
)
from bigscreen.problems.point import Certificate, relative_gap
from bigscreen.problems.violation import libsvm_scale, violation
from bigscreen.screening.dynamic import max_distance

UNIT_ROUNDOFF = 2.0**-53
"""Largest relative rounding error of one float64 operation."""


def can_explain_gap(rounding: float, gap: float, share: float) -> bool:
    """Whether errors up to ``rounding`` can make up more than the fraction ``share`` of ``gap``."""
    return rounding > share * max(gap, 0.0)


class Rounding(NamedTuple):
    """Upper bounds on the absolute rounding errors of the gap, P and D.

    ``sums``: the part of the gap's bound that comes from float64 summation alone.
    """

    gap: float
    primal: float
    dual: float
    sums: float = 0.0


def make_certificate(
    primal: float, dual: float, gap: float, rounding: Rounding, **how: Any
) -> Certificate:
    """Make a certificate of P, D, their gap and the bounds on their rounding errors.

    ``how``: the other fields of `Certificate`, by name.
    """
    return Certificate(
        primal=primal,
        dual=dual,
        gap=gap,
        relative_gap=relative_gap(gap, primal),
        rounding_bound=rounding.gap,
        primal_rounding=rounding.primal,
        dual_rounding=rounding.dual,
        **how,
    ).checked()


class SquaredNorm(NamedTuple):
    """``||w(alpha)||^2`` computed from w itself, and a bound on its error."""

    square: float
    error: float


@dataclass(frozen=True)
class Proof:
    """P, D and the gap of a paired point, from the scores of its w(alpha).

    Attributes
    ----------
    mu : float or float64 (groups,)
        The multiplier that is best for these scores; 0 without a coupling.
    w_sq : float
        ``||w(alpha)||^2``.
    primal, dual, gap : float
        ``P(w(alpha), mu)``, D(alpha) and the Frank-Wolfe gap; ``primal = dual + gap``.
    rounding : Rounding
    doubts : float64 (rows,)
        How far the error of each row's score can have moved the gap.
    """

    mu: Mu
    w_sq: float
    primal: float
    dual: float
    gap: float
    rounding: Rounding
    doubts: FloatArray


def prove(
    dual: Dual,
    alpha: FloatArray,
    scores: FloatArray,
    bands: FloatArray | float,
    norm: SquaredNorm | None = None,
    parts: Arrays | None = None,
) -> Proof:
    """Sum P, D and the gap of a feasible alpha from the scores of its w(alpha).

    Parameters
    ----------
    dual : Dual
        The dual of all rows, without a curve.
    alpha, scores : float64 (rows,)
    bands : float64 (rows,), or one number for all
        How far each score may be from the exact one.
    norm : SquaredNorm or None
        ``||w||^2`` if it is known from w itself. None: it follows from the scores.
    parts : Arrays or None
        The dual's arrays for compiled loops, ``arrays(dual)``, if the caller has them already.
    """
    assert dual.curve is None
    parts = arrays(dual) if parts is None else parts
    n, groups = len(alpha), len(parts.total)
    if not groups:
        mu = np.empty(0)
    elif n <= MAX_COMPILED_ROWS:
        mu = multipliers(parts, scores)
    else:
        mu = np.atleast_1d(dual.multiplier(scores))
    doubts = np.empty(n)
    sums, bounds = np.zeros(3 + groups), np.zeros(4)
    bands = np.full(n, bands) if isinstance(bands, float) else as_loop_array(bands)
    given = as_loop_array(alpha), as_loop_array(scores), bands
    _sum_rows(parts, mu, *given, doubts, sums, bounds)
    gap, linear, w_sq = sums[:3].tolist()
    doubt, primal_doubt, dual_doubt, terms = bounds.tolist()
    # The difference between ``sum t alpha`` and the coupling's total counts as rounding.
    missing = float(np.abs(mu) @ np.abs(parts.total - sums[3:]))
    # Rounding, in units of a term's size: four roundings of a term, two of a compensated sum,
    # and the roundings of the boxes, which matter if all rows are at an end of their box.
    summed = 16 * UNIT_ROUNDOFF * terms + missing
    if norm is not None:
        w_sq = norm.square
        dual_doubt = 0.5 * norm.error
        primal_doubt = doubt + dual_doubt
    value = linear - 0.5 * w_sq
    return Proof(
        mu=mu if dual.group is not None else float(mu.sum()),
        w_sq=w_sq,
        primal=value + gap,
        dual=value,
        gap=gap,
        rounding=Rounding(doubt + summed, primal_doubt + summed, dual_doubt + summed, summed),
        doubts=doubts,
    )


@dataclass(frozen=True)
class SeparatePair:
    """P(w, mu) and D(alpha) of a w that is not w(alpha); ``apart``: ``||w - w(alpha)||``.

    ``rounding``: bounds on the rounding errors of P, D and their gap.
    """

    primal: float
    dual: float
    rounding: Rounding
    apart: float

    @property
    def gap(self) -> float:
        """P - D."""
        return self.primal - self.dual

    @property
    def radius(self) -> float:
        """An upper bound on the distance from w to the optimal w*."""
        rounding = self.rounding.gap
        return max_distance(max(self.gap, 0.0) + rounding, self.apart, rounding)

    def dual_point(
        self, coef: FloatArray, offset: float, listed: list[tuple[NDArray[np.int64], FloatArray]]
    ) -> DualPoint:
        """Make the dual point that a ledger keeps (the record of what is proved of each row).

        ``coef``, ``offset``: w(alpha) as coefficients of columns and an offset. ``listed``: for
        each shard the positions and alpha of rows whose alpha is not the one of their side.
        """
        places, alpha = (np.concatenate(part) for part in zip(*listed, strict=True))
        return DualPoint(coef, offset, self.apart, places, alpha)


def kkt_violation(
    dual: Dual, alpha: FloatArray, scores: FloatArray, bands: FloatArray
) -> tuple[float, float]:
    """The violation of the KKT conditions, and a bound on its rounding error.

    ``scores``, ``bands`` (rows,): scores of w(alpha), and how far each may be from the exact score.
    The violation replaces the gap for a kernel that is not positive semidefinite, whose dual is not
    concave: the gap bounds nothing then.
    """
    band = float(np.max(bands[dual.reach > 0], initial=0.0))
    return violation(dual, alpha, scores), 2.0 * libsvm_scale(dual) * band


@njit(cache=True, nogil=True, fastmath={"contract"})
def _sum_rows(
    parts: Arrays,
    mu: FloatArray,
    alpha: FloatArray,
    scores: FloatArray,
    bands: FloatArray,
    doubts: FloatArray,
    sums: FloatArray,
    bounds: FloatArray,
) -> None:
    """Sum every row's contributions to P, D and the gap, with compensated addition.

    ``mu``: the multipliers (groups,); ``scores``, ``bands`` (rows,): scores of w(alpha), and how
    far each may be from the exact one. Adds to ``sums`` (3 + groups,): the gap, ``p alpha - e
    |alpha|``, ``s alpha u`` and, by group, ``t alpha``. Adds to ``bounds`` (4,): how far bands can
    move the gap, P and D, and the sizes of all terms. Sets ``doubts`` (rows,): how far each row's
    band can move the gap.
    """
    sign, lin, lo, hi, t, tube, group, _ = parts
    lost = np.zeros(len(sums))
    for i in range(len(alpha)):
        a, u, e, at = alpha[i], scores[i], tube[i], 0.0
        if len(mu):
            at = mu[group[i]]
            _add_compensated(sums, lost, 3 + group[i], t[i] * a)
        G = lin[i] - sign[i] * u - t[i] * at
        left, linear, signed = (
            row_gap(G, lo[i], hi[i], e, a),
            lin[i] * a - e * abs(a),
            sign[i] * a * u,
        )
        _add_compensated(sums, lost, 0, left)
        _add_compensated(sums, lost, 1, linear)
        _add_compensated(sums, lost, 2, signed)
        band = bands[i] + GRADIENT_ERROR * (abs(lin[i]) + abs(u) + abs(at) + e)
        low = _best_alpha(G - band, lo[i], hi[i], e) - a
        high = _best_alpha(G + band, lo[i], hi[i], e) - a
        doubts[i] = max(abs(low), abs(high)) * band
        bounds[0] += doubts[i]
        # With s = 1: dP / du is alpha / 2 less the best alpha, dD / du is alpha / 2.
        bounds[1] += max(abs(low + 0.5 * a), abs(high + 0.5 * a)) * band
        bounds[2] += 0.5 * abs(a) * band
        loss = left + abs(G * a - e * abs(a))
        bounds[3] += loss + (abs(lin[i]) + e + abs(at)) * abs(a) + abs(signed)


@njit(cache=True, nogil=True)
def _best_alpha(G: float, lo: float, hi: float, tube: float) -> float:
    """Return the alpha in the box [lo, hi] that maximises ``G alpha - tube |alpha|``."""
    if G > tube:
        return hi
    if G < -tube:
        return lo
    return hi if tube == 0.0 else 0.0


@njit(cache=True, nogil=True)
def _add_compensated(sums: FloatArray, lost: FloatArray, k: Any, term: float) -> None:
    """Add a term to ``sums[k]`` with Kahan's (1965) compensation for the rounding, in ``lost``."""
    part = term - lost[k]
    total = sums[k] + part
    lost[k] = (total - sums[k]) - part
    sums[k] = total
