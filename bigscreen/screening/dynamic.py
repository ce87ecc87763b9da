"""Rules that screen during a solve, from the duality gap of the current point."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from bigscreen.dual import Point
from bigscreen.errors import InputError
from bigscreen.screening.regions import Ball


class Rule(Protocol):
    """A screening rule: a region for w* around the current w."""

    @property
    def name(self) -> str: ...

    @property
    def safe(self) -> bool: ...

    def region(self, point: Point, rounding: float) -> Ball | None:
        """The region, centred at the point's w; ``rounding`` bounds the error of its gap."""


@dataclass(frozen=True)
class GapBall:
    """The gap ball (zimmert cor. 4.2; MATH sec. 2): safe for any primal-dual pair.

    P is 1-strongly convex in w, so ``1/2 ||w - w*||^2 <= P(w) - D(alpha)`` for every pair. Where
    w is w(alpha) itself the ball is smaller: ``||w - w*||^2 <= gap``.
    """

    name: str = "gap"
    safe: bool = True

    def region(self, point: Point, rounding: float) -> Ball | None:
        """Ball of radius ``sqrt(gap)`` (paired) or ``sqrt(2 gap)``."""
        squared = _squared_radius(point, rounding)
        return Ball(float(np.sqrt(squared))) if np.isfinite(squared) else None


@dataclass(frozen=True)
class FSafe:
    """f-safe screening (zimmert eq. 1): the gap ball shrunk by ``0 < f < 1``.

    Not safe: what it removes is checked against all rows in the closing pass.
    """

    f: float
    name: str = "f-safe"
    safe: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.f < 1:
            raise InputError(f"f of f-safe screening must lie strictly between 0 and 1: {self.f}")

    def region(self, point: Point, rounding: float) -> Ball | None:
        """Ball of radius ``f sqrt(gap)`` (``f sqrt(2 gap)`` where w is not w(alpha))."""
        squared = _squared_radius(point, rounding)
        return Ball(self.f * float(np.sqrt(squared))) if np.isfinite(squared) else None


def _squared_radius(point: Point, rounding: float) -> float:
    gap = max(point.gap, 0.0) + rounding
    return gap if point.paired else 2.0 * gap


def make_rule(name: str, f: float = 0.1) -> Rule | None:
    """The rule of this name: ``gap``, ``f-safe`` or ``none``."""
    if name == "none":
        return None
    if name == "gap":
        return GapBall()
    if name == "f-safe":
        return FSafe(f)
    raise InputError(f"screening must be gap, f-safe or none, got {name!r}")
