"""A slow reference solver in float64: explicit matrices, the formulas of maths.md, n up to 200.

It shares no code with the package: if the two agree, they agree by the mathematics alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import linalg
from threadpoolctl import ThreadpoolController

# Threads cost more than they gain at these sizes, most of all next to other tests.
_BLAS = ThreadpoolController().select(user_api="blas")


@dataclass(frozen=True)
class Problem:
    """``min 1/2 ||phi' (s alpha)||^2 - p . alpha + e . |alpha| + 1/2 q . alpha^2`` in a box.

    One row of phi a variable. ``t . alpha = total``, over each group if there are groups; ``t`` is
    None without a coupling, ``tube`` (e) without a tube, ``curve`` (q) without squared losses,
    whose box is ``[0, inf)`` or all numbers; a row that does not count has the box ``[0, 0]``.
    """

    phi: np.ndarray
    s: np.ndarray
    p: np.ndarray
    lo: np.ndarray
    hi: np.ndarray
    t: np.ndarray | None = None
    total: float | np.ndarray = 0.0
    group: np.ndarray | None = None
    tube: np.ndarray | None = None
    curve: np.ndarray | None = None


@dataclass(frozen=True)
class Optimum:
    """alpha*, w*, mu* (one a group), the scores ``u* = phi w*``, ``G*`` and both objectives."""

    alpha: np.ndarray
    w: np.ndarray
    mu: float | np.ndarray
    scores: np.ndarray
    gradient: np.ndarray
    primal: float
    dual: float


def features(gram: np.ndarray) -> np.ndarray:
    """Rows (n, n) whose inner products are the entries of a kernel matrix."""
    with _BLAS.limit(limits=1):
        values, vectors = np.linalg.eigh(gram)
    return vectors * np.sqrt(np.maximum(values, 0.0))


def c_svc(phi, codes, hi, intercept="none") -> Problem:
    """The C-SVC of features phi; code 1 is class +1; ``hi`` is the box, one number a row."""
    s = np.where(codes == 1, 1.0, -1.0)
    if intercept == "constant":
        phi = np.hstack([phi, np.ones((len(phi), 1))])
    t = s if intercept == "true" else None
    return Problem(phi, s, np.ones(len(s)), np.zeros(len(s)), hi, t)


def squared(q: Problem) -> Problem:
    """The problem with squared losses: the end of the box becomes the curve."""
    most = np.maximum(q.hi, -q.lo)
    curve = 1 / (2 * np.where(most > 0, most, 0.5))
    ends = [np.where(end < 0, -np.inf, np.where(end > 0, np.inf, 0.0)) for end in (q.lo, q.hi)]
    return Problem(q.phi, q.s, q.p, *ends, q.t, q.total, q.group, q.tube, curve)


def split(q: Problem) -> Problem:
    """The problem without a tube: two variables a row, the first of all rows first.

    alpha of a row is the difference of its two variables.
    """
    twice = lambda one: None if one is None else np.concatenate([one, one])  # noqa: E731
    return Problem(
        np.vstack([q.phi, q.phi]),
        np.concatenate([q.s, -q.s]),
        np.concatenate([q.p - q.tube, -q.p - q.tube]),
        np.zeros(2 * len(q.s)),
        np.concatenate([q.hi, -q.lo]),
        None if q.t is None else np.concatenate([q.t, -q.t]),
        q.total,
        twice(q.group),
    )


def couplings(q: Problem) -> list[tuple[np.ndarray, float]]:
    """The rows of every coupling, and its total."""
    if q.t is None:
        return []
    if q.group is None:
        return [(np.arange(len(q.t)), float(q.total))]
    return [(np.flatnonzero(q.group == g), float(one)) for g, one in enumerate(q.total)]


def w_of(q: Problem, alpha):
    return q.phi.T @ (q.s * alpha)


def gradient(q: Problem, scores, mu=0.0):
    g = q.p - q.s * scores
    if q.t is None:
        return g
    return g - q.t * (mu if np.ndim(mu) == 0 else np.asarray(mu)[q.group])


def losses(q: Problem, scores, mu=0.0):
    """max over a in the box of G a - e |a| - q a^2 / 2."""
    g = gradient(q, scores, mu)
    if q.curve is not None:
        e = 0.0 if q.tube is None else q.tube
        above = np.where(q.hi > 0, np.maximum(g - e, 0), 0)
        below = np.where(q.lo < 0, np.maximum(-g - e, 0), 0)
        return (above**2 + below**2) / (2 * q.curve)
    if q.tube is None:
        return np.where(g > 0, q.hi * g, q.lo * g)
    ends = [q.hi * g - q.tube * q.hi, q.lo * g + q.tube * q.lo, 0 * g]
    return np.max(ends, axis=0)


def primal(q: Problem, w, mu=0.0):
    return 0.5 * w @ w + np.sum(mu * np.asarray(q.total)) + np.sum(losses(q, q.phi @ w, mu))


def dual(q: Problem, alpha):
    w = w_of(q, alpha)
    tube = 0.0 if q.tube is None else q.tube @ np.abs(alpha)
    curve = 0.0 if q.curve is None else 0.5 * q.curve @ alpha**2
    return q.p @ alpha - tube - curve - 0.5 * w @ w


def best_multiplier(q: Problem, scores):
    """argmin of P over mu: P is piecewise linear in mu, so try every breakpoint."""
    tube = np.zeros(len(q.s)) if q.tube is None else q.tube
    found = []
    for own, total in couplings(q):
        part = Problem(q.phi[own], q.s[own], q.p[own], q.lo[own], q.hi[own], q.t[own], total,
                       None, None if q.tube is None else q.tube[own])  # fmt: skip
        rest = part.p - part.s * scores[own]
        candidates = np.concatenate([rest - tube[own], rest + tube[own]]) / np.tile(part.t, 2)
        values = [mu * total + losses(part, scores[own], mu).sum() for mu in candidates]
        found.append(float(candidates[int(np.argmin(values))]) if len(own) else 0.0)
    return found[0] if q.group is None else np.array(found)


def linear_maximum(q: Problem, alpha, scores) -> float:
    """The Frank-Wolfe gap by its definition: max over feasible a of <grad, a - alpha>.

    With a coupling: the continuous knapsack, filled greedily in the order of gain per unit.
    """
    if q.tube is not None:
        both = np.concatenate([np.maximum(alpha, 0), np.maximum(-alpha, 0)])
        return linear_maximum(split(q), both, np.concatenate([scores, scores]))
    g = q.p - q.s * scores
    return float(g @ (vertex(q, g) - alpha))


def vertex(q: Problem, g) -> np.ndarray:
    """The feasible alpha that maximises ``g . alpha``."""
    if q.t is None:
        return np.where(g > 0, q.hi, q.lo)
    # Write a = e + x with e the end of the box where t a is least, and x spends what is left.
    best = np.where(q.t > 0, q.lo, q.hi).astype(float)
    for own, total in couplings(q):
        left = total - q.t[own] @ best[own]
        for i in own[np.argsort(-g[own] / q.t[own], kind="stable")]:
            room = min(left, abs(q.t[i]) * (q.hi[i] - q.lo[i]))
            best[i] += room / q.t[i]
            left -= room
    return best


def solve(q: Problem, rounds: int = 200) -> Optimum:
    """Interior point (Mehrotra) to the last digits that float64 gives.

    Converges to the analytic centre of the optimal set, so a variable that may leave its bound in
    any optimum does so in this one.
    """
    if q.curve is not None:
        with _BLAS.limit(limits=1):
            alpha, mu = _curved(q, rounds)
    elif q.tube is not None:
        both = solve(split(q), rounds)
        n = len(q.s)
        alpha, mu = both.alpha[:n] - both.alpha[n:], both.mu
    else:
        live = q.hi > q.lo
        alpha = np.array(q.lo, dtype=float)
        mu = 0.0 if q.group is None else np.zeros(len(q.total))
        if live.any():
            # Its last steps, to the last digits, may overflow; the best point before is kept.
            quiet = np.errstate(over="ignore", divide="ignore", invalid="ignore")
            with quiet, _BLAS.limit(limits=1):
                alpha[live], mu = _interior(q, live, rounds)
    w = w_of(q, alpha)
    scores = q.phi @ w
    if q.t is not None and q.curve is None:
        mu = min((mu, best_multiplier(q, scores)), key=lambda one: primal(q, w, one))
    g = gradient(q, scores, mu)
    return Optimum(alpha, w, mu, scores, g, primal(q, w, mu), dual(q, alpha))


def _curved(q: Problem, rounds):
    """alpha and mu of squared losses, by Newton's steps on P, halved until P falls.

    P is quadratic except for rows that cross their hinge point.
    """
    Z = q.phi * q.s[:, None]
    if q.t is not None:
        Z = np.hstack([Z, q.t[:, None]])
    flat = np.ones(Z.shape[1])
    flat[q.phi.shape[1] :] = 0.0
    e = 0.0 if q.tube is None else q.tube

    def at(x):
        g = q.p - Z @ x
        bent = np.where(((q.hi > 0) & (g > e)) | ((q.lo < 0) & (g < -e)), 1 / q.curve, 0)
        alpha = bent * np.sign(g) * (np.abs(g) - e)
        return alpha, bent, 0.5 * flat @ x**2 + 0.5 * q.curve @ alpha**2

    x = np.zeros(Z.shape[1])
    for _ in range(rounds):
        alpha, bent, value = at(x)
        slope = flat * x - Z.T @ alpha
        H = np.diag(flat) + (Z * bent[:, None]).T @ Z
        step = -np.linalg.lstsq(H, slope, rcond=1e-15)[0]
        length = 1.0
        while at(x + length * step)[2] > value and length > 1e-12:
            length /= 2
        x = x + length * step
        if length * np.abs(step).max() <= 1e-15 * np.abs(x).max():
            break
    return at(x)[0], 0.0 if q.t is None else float(x[-1])


def _interior(q: Problem, live, rounds):
    Z = q.phi[live] * q.s[live, None]
    # Rows that cannot move add to w all the same.
    fixed = q.phi[~live].T @ (q.s[~live] * q.lo[~live])
    Q, p = Z @ Z.T, q.p[live] - Z @ fixed
    lo, hi = q.lo[live], q.hi[live]
    # One row of T a coupling; what a row that cannot move adds to a total is a constant.
    T, totals = np.zeros((0, len(q.p))), np.zeros(0)
    if q.t is not None:
        T = np.array([np.where(np.isin(np.arange(len(q.t)), own), q.t, 0.0)
                      for own, _ in couplings(q)])  # fmt: skip
        totals = np.array([total for _, total in couplings(q)]) - T[:, ~live] @ q.lo[~live]
    T = T[:, live]
    used = np.abs(T).sum(axis=1) > 0
    T, totals = T[used], totals[used]
    # Distances from both ends are kept themselves: x - lo has no digits left where lo is not 0.
    s1, s2 = 0.5 * (hi - lo), 0.5 * (hi - lo)
    x = lo + s1
    mu, n = np.zeros(len(T)), len(x)
    z1, z2 = np.ones(n), np.ones(n)
    best, kept, last, circles = np.inf, (x, mu), np.inf, False
    for _ in range(rounds):
        dual_rest = Q @ x - p - z1 + z2 + mu @ T
        rest = T @ x - totals
        average = (z1 @ s1 + z2 @ s2) / (2 * n)
        size = 1.0 + np.abs(p).sum()
        error = average * 2 * n + np.abs(dual_rest).max() * (hi - lo).max() + np.abs(rest).sum()
        if error < best:
            best, kept = error, (x, mu)
        if error < 1e-15 * size:
            break
        d = z1 / s1 + z2 / s2
        # (The same solution as numpy's solve, the factors found once for both steps of a round.)
        factors, swaps, code = linalg.lapack.dgetrf(Q + np.diag(d))
        if code:  # no digit is left to gain
            break

        def direction(r1, r2, factors=factors, swaps=swaps, s1=s1, s2=s2, z1=z1, z2=z2,
                      dr=dual_rest, rest=rest):  # fmt: skip
            rhs = -dr + r1 / s1 - r2 / s2
            both = linalg.lapack.dgetrs(factors, swaps, np.column_stack([rhs, T.T]))[0]
            dmu = np.linalg.solve(T @ both[:, 1:], T @ both[:, 0] + rest)
            dx = both[:, 0] - both[:, 1:] @ dmu
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
        # Mehrotra's correction can run in circles; plain steps, well centred, cannot.
        circles = circles or average >= 0.9 * last
        sigma, bent = (0.2, 0.0) if circles else ((after / average) ** 3, 1.0)
        last = average
        dx, dmu, d1, d2 = direction(
            sigma * average - z1 * s1 - bent * dx * d1, sigma * average - z2 * s2 + bent * dx * d2
        )
        step = 0.995 * longest(dx, d1, d2)
        s1, s2, mu = s1 + step * dx, s2 - step * dx, mu + step * dmu
        z1, z2 = z1 + step * d1, z2 + step * d2
        x = np.where(s1 < s2, lo + s1, hi - s2)
        if not np.all(np.isfinite(x)) or np.any(s1 <= 0) or np.any(s2 <= 0):
            break
    x, mu = kept
    every = np.zeros(len(used))
    every[used] = mu
    return x, 0.0 if q.t is None else float(every[0]) if q.group is None else every


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
