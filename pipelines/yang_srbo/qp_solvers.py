"""Two solvers to compare with: a dense interior point method, and the paper's DCDM as printed.

Both minimise ``1/2 a'Qa + f'a`` over ``0 <= a <= upper``, ``sum a >= total``.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from bigscreen.numerics.rows import njit

ITERATIONS = 100
STEP = 0.995
"""An iteration goes this part of the way to the nearest bound."""


LEAST = 1e-4
"""Stop if complementarity is below this part of the tolerance: nothing is left to gain."""


def interior_point(
    Q: np.ndarray, f: np.ndarray, upper: np.ndarray, total: float, tol: float = 1e-8
) -> tuple[np.ndarray, int]:
    """Minimise the QP by a primal-dual interior point method (Mehrotra's predictor-corrector).

    It stands in for MATLAB's quadprog ("interior-point-convex"), whose tolerance is 1e-8, too: a
    factor of a matrix (n, n) in every iteration.

    Parameters
    ----------
    Q : float64 (n, n), positive semidefinite
    f, upper : float64 (n,)
    total : float
        Less than ``sum upper``.
    tol : float
        Tolerance of mean complementarity and of residuals, for a box and Q of size 1; the
        gradient's residual is relative to its largest value so far.

    Returns
    -------
    a : float64 (n,)
        Within the box.
    iterations : int
    """
    n, unit = len(f), float(np.mean(upper))
    size = unit * float(np.max(np.diagonal(Q)))
    Q, f = Q * (unit / size), f / size
    # Constraints A x >= b: x >= 0, -x >= -upper, sum x >= total.
    b = np.concatenate([np.zeros(n), -upper / unit, [total / unit]])
    x = upper / unit * min(max(total / float(np.sum(upper)), 0.05), 0.95)
    s = np.maximum(_constraints(x) - b, 1e-3)
    z = np.ones(2 * n + 1)
    count, scale = 0, 1.0
    while count < ITERATIONS:
        dual = Q @ x + f - _transposed(z)
        primal = _constraints(x) - b - s
        mu = float(s @ z) / len(s)
        far = float(np.max(np.abs(dual)))
        scale = max(scale, far)
        done = max(mu, far / scale, float(np.max(np.abs(primal))) / n) <= tol
        if done or mu <= LEAST * tol:
            break
        H = Q + z[-1] / s[-1]
        H[np.diag_indices(n)] += (z / s)[:n] + (z / s)[n:-1]
        now = _factor(H), dual, primal, s, z
        dx, ds, dz = _newton(now, s * z)
        a = min(_longest(s, ds), _longest(z, dz))
        sigma = (float((s + a * ds) @ (z + a * dz)) / len(s) / mu) ** 3
        dx, ds, dz = _newton(now, s * z + ds * dz - sigma * mu)
        a = min(1.0, STEP * min(_longest(s, ds), _longest(z, dz)))
        x, s, z = x + a * dx, s + a * ds, z + a * dz
        count += 1
    return unit * np.clip(x, 0.0, upper / unit), count


def _factor(H: np.ndarray) -> tuple[np.ndarray, bool]:
    """Compute the Cholesky factor, with as small a diagonal shift as rounding requires."""
    size, ridge = float(np.max(np.diagonal(H))), 0.0
    while True:
        try:
            return cho_factor(H, lower=True, check_finite=False)
        except LinAlgError:
            more = max(1e-14 * size, 100 * ridge)
            H[np.diag_indices(len(H))] += more - ridge
            ridge = more


def _constraints(x: np.ndarray) -> np.ndarray:
    return np.concatenate([x, -x, [np.sum(x)]])


def _transposed(v: np.ndarray) -> np.ndarray:
    n = len(v) // 2
    return v[:n] - v[n:-1] + v[-1]


def _newton(now: tuple, product: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compute the step after which the linearised s z falls by ``product``."""
    factor, dual, primal, s, z = now
    right = _transposed((-product - z * primal) / s) - dual
    dx = cho_solve(factor, right, check_finite=False)
    ds = _constraints(dx) + primal
    return dx, ds, (-product - z * ds) / s


def _longest(v: np.ndarray, dv: np.ndarray) -> float:
    """Return the largest fraction of a step, at most 1, that keeps all of v positive."""
    falls = dv < 0
    return float(min(1.0, np.min(-v[falls] / dv[falls], initial=1.0)))


@njit(cache=True)
def dcdm(Q, upper, nu, eps, sweeps):  # type: ignore[no-untyped-def]
    """Run DCDM, algorithm 2 as printed: coordinates in turn, each kept above what nu requires.

    The step, which the paper does not define, is the exact one, ``1 / Q_ii``; the start, which may
    be any feasible point, is the uniform one.

    Returns
    -------
    a : float64 (n,)
    sweeps : int
        Sweeps until no coordinate moved, or the most allowed.
    """
    n = len(Q)
    a = np.full(n, nu / n)
    gradient = Q @ a
    total = np.sum(a)
    for sweep in range(sweeps):
        moved = False
        for i in range(n):
            floor = max(0.0, nu - (total - a[i]))
            g = gradient[i]
            if a[i] - floor < eps:
                g = min(g, 0.0)
            elif upper - a[i] < eps:
                g = max(g, 0.0)
            if abs(g) > eps:
                new = min(upper, max(a[i] - g / Q[i, i], floor))
                change = new - a[i]
                if change != 0.0:
                    moved = True
                    gradient += change * Q[i]
                    total += change
                    a[i] = new
        if not moved:
            return a, sweep + 1
    return a, sweeps
