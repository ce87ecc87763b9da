"""Screening rules that are applied during a solve, from the duality gap of the present point."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from bigscreen.errors import InputError
from bigscreen.problems.point import Point
from bigscreen.screening.regions import Ball


class Rule(Protocol):
    """A screening rule that is applied during a solve: a region for w* around the current w.

    ``name``: the rule's name in options and records. ``safe``: whether the region certainly holds
    w*, so that rows that it decides about are never removed wrongly.
    """

    @property
    def name(self) -> str: ...

    @property
    def safe(self) -> bool: ...

    def region(self, point: Point, rounding: float) -> Ball | None:
        """A region that holds w*, centred at the point's w; None if the gap is not finite.

        ``rounding`` bounds the error of the point's gap.
        """

    def after_restart(self, removed: int, false: int) -> Rule:
        """Return the rule to use after ``removed`` rows came back.

        ``false`` of them had been removed although their optimal alpha is elsewhere.
        """


class _FixedRule:
    """Base of rules that stay the same when screened rows are taken back."""

    def after_restart(self, removed: int, false: int) -> Rule:
        """Return the same rule, whatever the counts of rows that came back."""
        return self  # type: ignore[return-value]  # (those that inherit this are rules)


@dataclass(frozen=True)
class GapBall(_FixedRule):
    """The gap ball (Zimmert et al. 2015, cor. 4.2; maths.md 2.2): safe for any primal-dual pair.

    P is 1-strongly convex in w, so ``1/2 ||w - w*||^2 <= P(w) - D(alpha)`` for every pair. If w is
    w(alpha) itself the ball is smaller: ``||w - w*||^2 <= gap``. If the distance of w from w(alpha)
    is known, the radius lies between the two.
    """

    name: str = "gap"
    safe: bool = True

    def region(self, point: Point, rounding: float) -> Ball | None:
        """Return the ball of radius ``sqrt(gap)`` if w = w(alpha), else of up to ``sqrt(2 gap)``.

        ``rounding`` is added to the gap. None if the gap is not finite.
        """
        return _ball(1.0, point, rounding)


@dataclass(frozen=True)
class FSafe(_FixedRule):
    """f-safe screening (Zimmert et al. 2015, eq. 1): the gap ball shrunk by ``0 < f < 1``.

    Not safe: the closing pass over all rows finds out whether it removed rows wrongly.
    """

    f: float
    name: str = "f-safe"
    safe: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.f < 1:
            raise InputError(f"f of f-safe screening must lie strictly between 0 and 1: {self.f}")

    def region(self, point: Point, rounding: float) -> Ball | None:
        """Return the gap ball around the point's w, its radius multiplied by f."""
        return _ball(self.f, point, rounding)


@dataclass(frozen=True)
class Adaptive:
    """f-safe screening whose f follows the false removals that it causes (maths.md 2.3).

    It begins with a small f. Whenever rows come back and some of them had been removed wrongly, f
    grows, by a larger factor if they were many; at f = 1 the rule is the gap ball, and safe. If
    none had been removed wrongly, f falls.
    """

    f: float = 0.03
    name: str = "adaptive"

    @property
    def safe(self) -> bool:
        """Whether f has grown to 1: the rule is then the gap ball, which is safe."""
        return self.f >= 1.0

    def region(self, point: Point, rounding: float) -> Ball | None:
        """Return the gap ball around w of the point, its radius multiplied by the present f."""
        return _ball(self.f, point, rounding)

    def after_restart(self, removed: int, false: int) -> Rule:
        """Return the rule with a larger f if rows were removed wrongly, with a smaller one if not.

        ``removed``: rows that came back; ``false``: how many of them had been removed wrongly.
        """
        if self.safe:
            return self
        if false == 0:
            return replace(self, f=max(0.5 * self.f, 0.001))
        factor = 10.0 if false > 0.01 * removed else 3.0
        return replace(self, f=min(factor * self.f, 1.0))


@dataclass(frozen=True)
class Joachims(_FixedRule):
    """Shrinking as in SVMlight and LIBSVM: by the present gradient alone (the baseline).

    A row is removed once ``patience`` consecutive checks have found it at a bound that its gradient
    favours. Not safe: the closing pass over all rows finds out whether it removed rows wrongly.
    """

    patience: int = 3
    name: str = "joachims"
    safe: bool = False

    def __post_init__(self) -> None:
        if self.patience < 1:
            raise InputError(f"patience of shrinking must be at least 1 check: {self.patience}")

    def region(self, point: Point, rounding: float) -> Ball | None:
        """Return a ball of radius 0, the present w itself: the gradient alone then decides."""
        return Ball(0.0, self.patience)


def _ball(f: float, point: Point, rounding: float) -> Ball | None:
    """The gap ball of a point, its radius times f; None if the gap is not finite."""
    gap = max(point.gap, 0.0) + rounding
    if not np.isfinite(gap):
        return None
    if point.paired:
        return Ball(f * float(np.sqrt(gap)))
    return Ball(f * max_distance(gap, point.apart, rounding))


def max_distance(gap: float, apart: float | None, rounding: float) -> float:
    """An upper bound on ``||w - w*||`` if w is at the distance ``apart`` from w(alpha).

    ``gap``: P(w) - D(alpha), including ``rounding``, the bound on its error. ``apart``: None if the
    distance is not known.

    ``1/2 ||w - w*||^2 + 1/2 ||w(alpha) - w*||^2 <= gap``: with ``d = ||w - w(alpha)||``, the ball
    around the middle of both has ``r^2 = gap - d^2/4``, and w is ``d/2`` from its centre. The bound
    ``d/2 + r`` grows with d up to ``d^2 = 2 gap`` and falls beyond, so the d nearest to
    ``sqrt(2 gap)`` within the error of ``apart`` is used.
    """
    widest = float(np.sqrt(2.0 * gap))
    if apart is None or not np.isfinite(apart):
        return widest
    doubt = float(np.sqrt(rounding)) + 1e-12 * apart
    d = min(max(widest, apart - doubt), apart + doubt)
    inside = gap - 0.25 * d * d
    # (No pair is farther apart than 2 sqrt(gap): a larger d contradicts the gap and is not used.)
    return 0.5 * d + float(np.sqrt(inside)) if inside >= 0 else widest


GRADIENT_RULES = ("none", "joachims")
"""Names of screening rules that use gradients alone, which suits any kernel."""


def check_rule(name: str, definite: bool) -> None:
    """Raise InputError for a rule that uses the gap if the kernel has none (not ``definite``)."""
    if not definite and name not in GRADIENT_RULES:
        raise InputError(
            f"screening {name} rests on the gap, and a kernel that is not positive semidefinite "
            f"has none; use screening {' or '.join(GRADIENT_RULES)}"
        )


def make_rule(name: str, f: float = 0.1, patience: int = 3) -> Rule | None:
    """Make the screening rule of this name; parameters that it does not have are ignored.

    Parameters
    ----------
    name : {"gap", "f-safe", "adaptive", "joachims", "none"}
    f : float
        For f-safe screening: the factor of the radius, in (0, 1).
    patience : int
        For Joachims' shrinking: the number of checks at a bound before a row is removed.
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
