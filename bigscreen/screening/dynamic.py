"""Rules that screen during a solve, from the duality gap of the current point."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from bigscreen.errors import InputError
from bigscreen.problems.point import Point
from bigscreen.screening.regions import Ball


class Rule(Protocol):
    """A screening rule: a region for w* around the current w."""

    @property
    def name(self) -> str: ...

    @property
    def safe(self) -> bool: ...

    def region(self, point: Point, rounding: float) -> Ball | None:
        """The region, centred at the point's w; ``rounding`` bounds the error of its gap."""

    def learned(self, removed: int, false: int) -> Rule:
        """The rule to go on with after ``removed`` rows came back, ``false`` wrongly out."""


class _Unteachable:
    def learned(self, removed: int, false: int) -> Rule:
        """The rule as it is."""
        return self  # type: ignore[return-value]  # (those that inherit this are rules)


@dataclass(frozen=True)
class GapBall(_Unteachable):
    """The gap ball (Zimmert et al. 2015, cor. 4.2; maths.md 2.2): safe for any primal-dual pair.

    P is 1-strongly convex in w, so ``1/2 ||w - w*||^2 <= P(w) - D(alpha)`` for every pair. Where
    w is w(alpha) itself the ball is smaller: ``||w - w*||^2 <= gap``; between the two where it is
    known how far w is from w(alpha).
    """

    name: str = "gap"
    safe: bool = True

    def region(self, point: Point, rounding: float) -> Ball | None:
        """Ball of radius ``sqrt(gap)`` (paired), else up to ``sqrt(2 gap)``."""
        return _ball(1.0, point, rounding)


@dataclass(frozen=True)
class FSafe(_Unteachable):
    """f-safe screening (Zimmert et al. 2015, eq. 1): the gap ball shrunk by ``0 < f < 1``.

    Not safe: what it removes is checked against all rows in the closing pass.
    """

    f: float
    name: str = "f-safe"
    safe: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.f < 1:
            raise InputError(f"f of f-safe screening must lie strictly between 0 and 1: {self.f}")

    def region(self, point: Point, rounding: float) -> Ball | None:
        """The gap ball's, its radius times f."""
        return _ball(self.f, point, rounding)


@dataclass(frozen=True)
class Adaptive:
    """f-safe screening whose f follows the false removals that it causes (maths.md 2.3).

    It begins bold. Whenever rows come back and some of them had been removed wrongly, f grows, the
    more the larger their share; at 1 the rule is the gap ball, and safe. Where none had, it falls.
    """

    f: float = 0.03
    name: str = "adaptive"

    @property
    def safe(self) -> bool:
        """Whether it has become the gap ball."""
        return self.f >= 1.0

    def region(self, point: Point, rounding: float) -> Ball | None:
        """The gap ball's, its radius times f."""
        return _ball(self.f, point, rounding)

    def learned(self, removed: int, false: int) -> Rule:
        """A larger f if rows were removed wrongly, a smaller one if not."""
        if self.safe:
            return self
        if false == 0:
            return replace(self, f=max(0.5 * self.f, 0.001))
        factor = 10.0 if false > 0.01 * removed else 3.0
        return replace(self, f=min(factor * self.f, 1.0))


@dataclass(frozen=True)
class Joachims(_Unteachable):
    """Shrinking as SVMlight and LIBSVM do it: by the present gradient alone (the baseline).

    A row goes once ``patience`` checks running have found it at a bound where its gradient holds
    it. Not safe: what it removes is checked against all rows in the closing pass.
    """

    patience: int = 3
    name: str = "joachims"
    safe: bool = False

    def __post_init__(self) -> None:
        if self.patience < 1:
            raise InputError(f"patience of shrinking must be at least 1 check: {self.patience}")

    def region(self, point: Point, rounding: float) -> Ball | None:
        """The present w itself."""
        return Ball(0.0, self.patience)


def _ball(f: float, point: Point, rounding: float) -> Ball | None:
    gap = max(point.gap, 0.0) + rounding
    if not np.isfinite(gap):
        return None
    if point.paired:
        return Ball(f * float(np.sqrt(gap)))
    return Ball(f * farthest(gap, point.apart, rounding))


def farthest(gap: float, apart: float | None, rounding: float) -> float:
    """How far w* can be from a w that is ``apart`` from w(alpha).

    ``1/2 ||w - w*||^2 + 1/2 ||w(alpha) - w*||^2 <= gap``: the ball around the middle of both has
    ``r^2 = gap - d^2/4``, and w is ``d/2`` from its centre. That grows with d up to
    ``d^2 = 2 gap`` and falls beyond, so of all d that it can be the one nearest to there counts.
    """
    widest = float(np.sqrt(2.0 * gap))
    if apart is None or not np.isfinite(apart):
        return widest
    doubt = float(np.sqrt(rounding)) + 1e-12 * apart
    d = min(max(widest, apart - doubt), apart + doubt)
    inside = gap - 0.25 * d * d
    # (No pair is farther apart than 2 sqrt(gap): such a d is nothing to conclude from.)
    return 0.5 * d + float(np.sqrt(inside)) if inside >= 0 else widest


WITHOUT_GAP = ("none", "joachims")
"""Screening that looks at gradients alone, which suits any kernel."""


def check_rule(name: str, definite: bool) -> None:
    """Refuse a rule that rests on the gap for a kernel that has none (``Design.definite``)."""
    if not definite and name not in WITHOUT_GAP:
        raise InputError(
            f"screening {name} rests on the gap, and a kernel that is not positive semidefinite "
            f"has none; use screening {' or '.join(WITHOUT_GAP)}"
        )


def make_rule(name: str, f: float = 0.1, patience: int = 3) -> Rule | None:
    """The rule of this name; parameters it does not have are ignored.

    Parameters
    ----------
    name : {"gap", "f-safe", "adaptive", "joachims", "none"}
    f : float
        Of f-safe screening, in (0, 1).
    patience : int
        Of Joachims' shrinking: checks at a bound before a row goes.
    """
    if name == "none":
        return None
    if name == "gap":
        return GapBall()
    if name == "f-safe":
        return FSafe(f)
    if name == "adaptive":
        return Adaptive()
    if name == "joachims":
        return Joachims(patience)
    raise InputError(f"screening must be gap, f-safe, adaptive, joachims or none, got {name!r}")
