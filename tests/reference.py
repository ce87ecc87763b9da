"""A slow, plain oracle in float64: explicit matrices, formulas as MATH writes them, n <= some 200.

Shares no code with the package: where the two agree, they agree by the mathematics alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Problem:
    """``min 1/2 ||phi' (s alpha)||^2 - p . alpha``, box ``[lo, hi]``, ``t . alpha = total``.

    ``t`` is None without a coupling. ``phi`` has one row a variable.
    """

    phi: np.ndarray
    s: np.ndarray
    p: np.ndarray
    lo: np.ndarray
    hi: np.ndarray
    t: np.ndarray | None = None
    total: float = 0.0


@dataclass(frozen=True)
class Optimum:
    """alpha*, w*, mu*, the scores ``u* = phi w*``, ``G*`` and both objectives."""

    alpha: np.ndarray
    w: np.ndarray
    mu: float
    scores: np.ndarray
    gradient: np.ndarray
    primal: float
    dual: float


def c_svc(phi, codes, hi, intercept="none") -> Problem:
    """The C-SVC of features phi; code 1 is class +1; ``hi`` is the box, one number a row."""
    s = np.where(codes == 1, 1.0, -1.0)
    if intercept == "constant":
        phi = np.hstack([phi, np.ones((len(phi), 1))])
    t = s if intercept == "true" else None
    return Problem(phi, s, np.ones(len(s)), np.zeros(len(s)), hi, t)


def w_of(q: Problem, alpha):
    return q.phi.T @ (q.s * alpha)


def gradient(q: Problem, scores, mu=0.0):
    g = q.p - q.s * scores
    return g if q.t is None else g - q.t * mu


def primal(q: Problem, w, mu=0.0):
    g = gradient(q, q.phi @ w, mu)
    return 0.5 * w @ w + mu * q.total + np.sum(np.where(g > 0, q.hi * g, q.lo * g))


def dual(q: Problem, alpha):
    w = w_of(q, alpha)
    return q.p @ alpha - 0.5 * w @ w


def best_multiplier(q: Problem, scores) -> float:
    """argmin of P over mu: P is piecewise linear in mu, so try every breakpoint."""
    candidates = (q.p - q.s * scores) / q.t
    values = []
    for mu in candidates:
        g = gradient(q, scores, mu)
        values.append(mu * q.total + np.sum(np.where(g > 0, q.hi * g, q.lo * g)))
    return float(candidates[int(np.argmin(values))])


def linear_maximum(q: Problem, alpha, scores) -> float:
    """The Frank-Wolfe gap by its definition: max over feasible a of <grad, a - alpha>.

    With a coupling: the continuous knapsack, filled greedily in the order of gain per unit.
    """
    g = q.p - q.s * scores
    if q.t is None:
        best = np.where(g > 0, q.hi, q.lo)
        return float(g @ (best - alpha))
    # Write a = e + x with e the end of the box where t a is least, and x spends what is left.
    least = np.where(q.t > 0, q.lo, q.hi)
    left = q.total - q.t @ least
    best = least.astype(float)
    for i in np.argsort(-g / q.t, kind="stable"):
        room = min(left, abs(q.t[i]) * (q.hi[i] - q.lo[i]))
        best[i] += room / q.t[i]
        left -= room
    return float(g @ (best - alpha))


def solve(q: Problem, rounds: int = 200) -> Optimum:
    """Interior point (Mehrotra) to the last digits that float64 gives.

    Converges to the analytic centre of the optimal set, so a variable that may leave its bound in
    any optimum does so in this one.
    """
    live = q.hi > q.lo
    n = int(live.sum())
    alpha = np.array(q.lo, dtype=float)
    mu = 0.0
    if n:
        alpha[live], mu = _interior(q, live, rounds)
    w = w_of(q, alpha)
    scores = q.phi @ w
    if q.t is not None:
        mu = min((mu, best_multiplier(q, scores)), key=lambda one: primal(q, w, one))
    g = gradient(q, scores, mu)
    return Optimum(alpha, w, mu, scores, g, primal(q, w, mu), dual(q, alpha))


def _interior(q: Problem, live, rounds):
    Z = q.phi[live] * q.s[live, None]
    Q, p = Z @ Z.T, q.p[live]
    lo, hi = q.lo[live], q.hi[live]
    t = None if q.t is None else q.t[live]
    x = 0.5 * (lo + hi)
    mu, n = 0.0, len(x)
    z1, z2 = np.ones(n), np.ones(n)
    best, kept = np.inf, (x, mu)
    for _ in range(rounds):
        s1, s2 = x - lo, hi - x
        dual_rest = Q @ x - p - z1 + z2 + (0.0 if t is None else mu * t)
        rest = 0.0 if t is None else t @ x - q.total
        average = (z1 @ s1 + z2 @ s2) / (2 * n)
        size = 1.0 + np.abs(p).sum()
        error = average * 2 * n + np.abs(dual_rest).max() * (hi - lo).max() + abs(rest)
        if error < best:
            best, kept = error, (x, mu)
        if error < 1e-15 * size:
            break
        d = z1 / s1 + z2 / s2
        M = Q + np.diag(d)

        def direction(r1, r2, M=M, s1=s1, s2=s2, z1=z1, z2=z2, dr=dual_rest, rest=rest):
            rhs = -dr + r1 / s1 - r2 / s2
            if t is None:
                dx, dmu = np.linalg.solve(M, rhs), 0.0
            else:
                both = np.linalg.solve(M, np.stack([rhs, t], axis=1))
                dmu = (t @ both[:, 0] + rest) / (t @ both[:, 1])
                dx = both[:, 0] - dmu * both[:, 1]
            return dx, dmu, (r1 - z1 * dx) / s1, (r2 + z2 * dx) / s2

        def longest(dx, d1, d2, s1=s1, s2=s2, z1=z1, z2=z2):
            pairs = [(s1, dx), (s2, -dx), (z1, d1), (z2, d2)]
            return min(
                1.0,
                *(
                    float(np.min(np.where(v < 0, -a / np.where(v < 0, v, 1), np.inf)))
                    for a, v in pairs
                ),
            )

        try:
            dx, dmu, d1, d2 = direction(-z1 * s1, -z2 * s2)
        except np.linalg.LinAlgError:  # no digit is left to gain
            break
        step = longest(dx, d1, d2)
        after = ((z1 + step * d1) @ (s1 + step * dx) + (z2 + step * d2) @ (s2 - step * dx)) / (
            2 * n
        )
        sigma = (after / average) ** 3
        dx, dmu, d1, d2 = direction(
            sigma * average - z1 * s1 - dx * d1, sigma * average - z2 * s2 + dx * d2
        )
        step = 0.995 * longest(dx, d1, d2)
        x, mu, z1, z2 = x + step * dx, mu + step * dmu, z1 + step * d1, z2 + step * d2
        if not np.all(np.isfinite(x)) or np.any(x <= lo) or np.any(x >= hi):
            break
    return kept


# -- the slides' two listings, their slips mended, for every box, sign and coupling ----------------
def smo(K, s, p, lo, hi, t, alpha, eps, second_order=False, most=100_000):
    """The slides' SMO (Keerthi et al. 2001): the worst violating pair until F_i - F_j <= eps.

    Mended: the slides clip the step (line 8) between limits that are printed in the wrong order,
    upper first where y_i y_j = -1; their second-order choice (Fan et al. 2005) minimises where it
    has to maximise, writes -F_i + F_k with two different signs, and has K_ij for K_jj below.
    """
    alpha = np.array(alpha, dtype=float)
    u = K @ (s * alpha)
    steps = 0
    while True:
        F = t * (p - s * u)
        can_up = np.where(t > 0, alpha < hi, alpha > lo)
        can_down = np.where(t > 0, alpha > lo, alpha < hi)
        if not can_up.any() or not can_down.any():
            return alpha, steps
        i = int(np.argmax(np.where(can_up, F, -np.inf)))
        j = int(np.argmin(np.where(can_down, F, np.inf)))
        if F[i] - F[j] <= eps or steps >= most:
            return alpha, steps
        # Along t_i alpha_i up, t_j alpha_j down the curvature is that of a difference.
        f = s * t
        curvature = np.maximum(K[i, i] + np.diag(K) - 2 * f[i] * f * K[i], 1e-12)
        if second_order:
            gain = np.where(can_down & (F < F[i]), (F[i] - F) ** 2 / curvature, -np.inf)
            j = int(np.argmax(gain))
        room_i = hi[i] - alpha[i] if t[i] > 0 else alpha[i] - lo[i]
        room_j = alpha[j] - lo[j] if t[j] > 0 else hi[j] - alpha[j]
        step = min((F[i] - F[j]) / curvature[j], room_i, room_j)
        for k, towards in ((i, t[i]), (j, -t[j])):
            new = min(max(alpha[k] + towards * step, lo[k]), hi[k])
            u += K[:, k] * s[k] * (new - alpha[k])
            alpha[k] = new
        steps += 1


def coordinate_descent(phi, s, p, lo, hi, eps, seed=0, most=20_000):
    """The slides' dual coordinate descent (Hsieh et al. 2008), w maintained.

    Mended: the step is clipped to [lo - alpha, hi - alpha] (line 7 prints the limits the other way
    round and without brackets), and a row of zeros moves to the bound its gradient points to.
    """
    rng = np.random.default_rng(seed)
    alpha = np.array(np.clip(0.0, lo, hi))
    w = phi.T @ (s * alpha)
    for _ in range(most):
        largest = 0.0
        for i in rng.permutation(len(phi)):
            g, square = p[i] - s[i] * (phi[i] @ w), phi[i] @ phi[i]
            step = g / square if square > 0 else np.sign(g) * np.inf if g else 0.0
            new = min(max(alpha[i] + step, lo[i]), hi[i])
            w += s[i] * (new - alpha[i]) * phi[i]
            largest = max(largest, abs(new - alpha[i]))
            alpha[i] = new
        if largest <= eps:
            break
    return alpha
