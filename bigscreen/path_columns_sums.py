"""The sums of a certificate over rows, compiled: one loop in place of a dozen passes."""

from __future__ import annotations

import numpy as np

from bigscreen.dual import Dual, FloatArray
from bigscreen.path_columns_rows import EPS
from bigscreen.rows import njit


def certificate(dual: Dual, alpha: FloatArray, scores: FloatArray, error: float) -> FloatArray:
    """What a point proves, from the scores of w(alpha), each off by no more than ``error``.

    Returns
    -------
    float64 (3,)
        The Frank-Wolfe gap; a bound on what rounding has put into it; p . alpha - e . |alpha|.
    """
    tube = np.zeros(len(alpha)) if dual.tube is None else dual.tube
    problem = tuple(map(np.ascontiguousarray, (dual.sign, dual.lin, dual.lo, dual.hi, tube)))
    out = np.zeros(3)
    _certificate(problem, alpha, scores, error, out)
    out[1] += (len(alpha) + 8) * EPS * out[0]
    return out


@njit(nogil=True, cache=True)
def slack(G, lo, hi, tube, alpha):  # type: ignore[no-untyped-def]
    """A row's part of the gap (see ``Dual.slacks``)."""
    if tube == 0.0:
        return G * (hi - alpha) if G > 0 else -G * (alpha - lo)
    up, down = max(alpha, 0.0), max(-alpha, 0.0)
    gap = (G - tube) * (hi - up) if G > tube else (tube - G) * up
    return gap + ((-G - tube) * (-lo - down) if -G > tube else (tube + G) * down)


@njit(nogil=True, cache=True)
def _certificate(problem, alpha, scores, error, out):  # type: ignore[no-untyped-def]
    sign, lin, lo, hi, tube = problem
    for i in range(len(alpha)):
        G = lin[i] - sign[i] * scores[i]
        out[0] += slack(G, lo[i], hi[i], tube[i], alpha[i])
        out[2] += lin[i] * alpha[i] - tube[i] * abs(alpha[i])
        # A row that is where its gradient certainly wants it moves P and D alike.
        off = error + 4 * EPS * (abs(lin[i]) + abs(scores[i]) + tube[i])
        if G > tube[i] + off:
            room = hi[i] - alpha[i]
        elif G < -tube[i] - off:
            room = alpha[i] - lo[i]
        elif abs(G) < tube[i] - off:
            room = abs(alpha[i])
        else:
            room = max(hi[i] - alpha[i], alpha[i] - lo[i])
        out[1] += room * off
