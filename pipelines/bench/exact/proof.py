"""The duality gap of any solver's dual coefficients: float64, over all rows, true offset.

Shares no code with bigscreen, so that our gaps and the peers' gaps are computed independently.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import threadpoolctl


def feasible(coef: np.ndarray, support: np.ndarray, sign: np.ndarray, C: float) -> np.ndarray:
    """Compute a feasible alpha, float64 (n,), from rounded dual coefficients.

    It is clipped to the box, and the class with the larger sum is scaled down so that
    ``sum y alpha = 0``. (Single precision coefficients are off by about 1e-7.)
    """
    alpha = np.zeros(len(sign))
    alpha[support] = np.clip(coef.astype(np.float64) * sign[support], 0.0, C)
    sums = {side: alpha[sign == side].sum() for side in (1, -1)}
    large = max(sums, key=lambda side: sums[side])
    if sums[large] > 0:
        alpha[sign == large] *= sums[-large] / sums[large]
    return alpha


def scores(X: np.ndarray, v: np.ndarray, gamma: float, threads: int) -> np.ndarray:
    """Compute ``sum_j v_j exp(-gamma ||x_i - x_j||^2)`` for every row, in float64."""
    support = np.flatnonzero(v)
    B, v = X[support].astype(np.float64), v[support]
    norms = np.einsum("ij,ij->i", B, B)
    step = max(1, 2**23 // max(1, len(support)))

    def block(start: int) -> np.ndarray:
        A = X[start : start + step].astype(np.float64)
        K = A @ B.T
        K *= 2.0
        K -= norms
        K -= np.einsum("ij,ij->i", A, A)[:, None]
        K *= gamma
        return np.exp(np.minimum(K, 0.0, out=K), out=K) @ v

    with threadpoolctl.threadpool_limits(1), ThreadPoolExecutor(threads) as pool:
        return np.concatenate(list(pool.map(block, range(0, len(X), step))))


def proof(
    X: np.ndarray, sign: np.ndarray, alpha: np.ndarray, C: float, gamma: float, threads: int
) -> dict[str, float]:
    """Compute both objectives of w(alpha) with its best offset, and their gap."""
    u = scores(X, alpha * sign, gamma, threads)
    # In the offset b the hinges' slope climbs by C at every y_i - u_i, from -C x positives.
    positives = int(np.count_nonzero(sign > 0))
    b = np.partition(sign - u, positives - 1)[positives - 1]
    w_sq = float((alpha * sign) @ u)
    primal = 0.5 * w_sq + C * float(np.maximum(0.0, 1.0 - sign * (u + b)).sum())
    dual = float(alpha.sum()) - 0.5 * w_sq
    return {"primal": primal, "dual": dual, "relative_gap": (primal - dual) / primal}
