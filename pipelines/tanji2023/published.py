"""Snacks and Pegasos as the paper prints them, on features in memory, with its defaults.

Objective: ``mean_i max(0, 1 - y_i <w, x_i>) + lam ||w||^2``. One row a step, drawn uniformly.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from bigscreen.numerics.rows import njit


@dataclass(frozen=True)
class Defaults:
    """The defaults of the authors' code; omega, which the paper does not give, is 2."""

    step: float = 1.5
    radius: float = 1100.0
    stages: int = 10
    steps: int = 120_000
    omega: float = 2.0


PUBLISHED = Defaults()


def snacks(
    X: np.ndarray,
    y: np.ndarray,
    lam: float,
    seed: int,
    *,
    defaults: Defaults = PUBLISHED,
    literal: bool = False,
) -> Iterator[np.ndarray]:
    """Run algorithm 1 with the step of eq. (8); yield the w (r,) at the end of every stage.

    Kept as printed: the gradient ``lam w`` of a term ``lam ||w||^2`` (it solves twice the C), and
    line 6, which projects the average but not the iterate. Not kept, unless
    ``literal``: line 3, which starts the average at w, so that a stage ends at its start PLUS the
    average.
    """
    rng = np.random.default_rng([seed, 1])
    w = np.zeros(X.shape[1])
    inner = max(1, defaults.steps // defaults.stages)
    step, radius = defaults.step, defaults.radius
    for _ in range(defaults.stages):
        picks = rng.integers(0, len(y), inner)
        w = _stage(X, y, picks, w, lam, step, radius, literal)
        yield w
        step, radius = step / defaults.omega, radius / defaults.omega


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _stage(
    X: Any, y: Any, picks: Any, start: Any, lam: float, step: float, radius: float, literal: bool
) -> Any:
    w, average = start.copy(), np.zeros(len(start))
    for i in picks:
        row, score = X[i], 0.0
        for j in range(len(w)):
            score += w[j] * row[j]
        push = step * y[i] if y[i] * score < 1 else 0.0
        far = 0.0
        for j in range(len(w)):
            w[j] += push * row[j] - step * lam * w[j]
            far += (w[j] - start[j]) ** 2
        part = min(1.0, radius / np.sqrt(far)) if far > 0 else 1.0
        for j in range(len(w)):
            average[j] += start[j] + part * (w[j] - start[j])
    average /= len(picks)
    return start + average if literal else average


def pegasos(
    X: np.ndarray, y: np.ndarray, lam: float, steps: int, seed: int, looks: int = 10
) -> Iterator[np.ndarray]:
    """Run Pegasos (Shalev-Shwartz et al. 2011), projected, with the step ``1 / (2 lam t)``.

    Yield w at the given number of checks. The objective's ``lam`` is half of theirs; the ball that
    holds the optimum then has the radius ``1 / sqrt(2 lam)``.
    """
    rng = np.random.default_rng([seed, 2])
    w, done = np.zeros(X.shape[1]), 0
    for part in np.diff(np.linspace(0, steps, looks + 1).astype(int)):
        w = _pegasos(X, y, rng.integers(0, len(y), part), w, 2.0 * lam, done)
        done += part
        yield w


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _pegasos(X: Any, y: Any, picks: Any, start: Any, lam: float, done: int) -> Any:
    w = start.copy()
    radius = 1.0 / np.sqrt(lam)
    for t in range(len(picks)):
        i = picks[t]
        row, score = X[i], 0.0
        for j in range(len(w)):
            score += w[j] * row[j]
        step = 1.0 / (lam * (done + t + 1))
        push = step * y[i] if y[i] * score < 1 else 0.0
        length = 0.0
        for j in range(len(w)):
            w[j] += push * row[j] - step * lam * w[j]
            length += w[j] ** 2
        part = min(1.0, radius / np.sqrt(length)) if length > 0 else 1.0
        for j in range(len(w)):
            w[j] *= part
    return w
