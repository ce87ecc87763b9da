"""Where a Newton is, what it found there, and how that is written down."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from bigscreen.numerics.rows import FloatArray
from bigscreen.problems.point import Point, Reading
from bigscreen.solvers.newton.algebra import Average
from bigscreen.solvers.newton.sampled import Sample

SMALLEST = 2.0**-500
"""Smoothing is nothing long before: what h is divided by must be no 0."""

UNKNOWN = 1e300
"""Stands for how far scores have moved where that is not known."""

STEADY = 1e-6
"""Relative gap from which h follows the gap that there is, not the one that is asked for."""

AHEAD = 0.1
"""Then it is one for so much of that gap."""

ENOUGH = 0.7
"""Part of the gap asked for that is enough: h stays if it is all that the gradient leaves."""

SMALL = 0.3
"""Part of what smoothing costs that a step over a wide zone may promise before h is lowered: it
moves the zone's rows by less than a third of h then, and few leave or enter it."""


@dataclass(frozen=True)
class Trial:
    """A score pass: the grid of step lengths, the best of them, and P there.

    ``cost`` is what smoothing adds to P; ``error`` bounds the rounding of a score.
    """

    step: FloatArray
    steps: FloatArray
    best: int
    h: float
    primal: float
    cost: float
    error: float


@dataclass
class Zone:
    """The zone of the last gradient pass: its rows, how many were expected, and their weight.

    ``most``: rows of the shard that has most of them.
    """

    rows: int = 0
    most: int = 0
    expected: int = 0
    weight: float = 0.0


@dataclass
class Passed:
    """Rows of the last score pass, those alive then, and those fixed since at hi and elsewhere."""

    visited: int = 0
    alive: int = 0
    fixed: tuple[int, int] = (0, 0)


@dataclass
class Place:
    """Where the Newton is, x = (w, extras), what it found there, and how it got there."""

    x: FloatArray
    h: float  # 0: as wide as the rows' gradients are at w = 0; of squared losses always
    bundle: Bundle
    past: list[FloatArray] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    point: Point | None = None
    gradient: FloatArray | None = None
    step: FloatArray | None = None
    t: float = 1.0
    next_h: float = 1.0
    wide: float = 1.0
    decrement: float = 0.0
    expected: float = 0.0  # how far ``step`` moves scores of the zone's rows, root mean square
    moves: list[float] = field(default_factory=list)  # that of the steps to each of ``past``
    gradient_cost: float = 0.0
    zone: Zone = field(default_factory=Zone)
    passed: Passed = field(default_factory=Passed)
    stalled: int = 0
    local: bool = True  # whether steps over nearby rows may be worth a try
    holding: bool = True  # and steps with far rows held to their side
    seen: FloatArray | None = None  # where all rows were looked at, before some were held ...
    seen_primal: float = -np.inf  # and P there
    average: Average | None = None  # of moments over parts of the zone, this place's own ...
    before: Average | None = None  # ... included, and without it
    held: bool = False  # whether rows are at a side that no score says: alpha cannot be read off
    sample: Sample | None = None  # rows that the Hessian is about made of, which products refine
    worn: bool = False  # whether the next step wants another sample
    kept: float = 1.0  # what steps keep of the decrease that what preconditions them promises
    sums: tuple[FloatArray, FloatArray] | None = None  # V, and with the zone's alpha in its middle
    given: float | None = None  # D of the alpha that x was made of, until h suits its gap

    @property
    def known(self) -> Average | None:
        """The moment before the place's own, which is summed again where a run is resumed."""
        return self.average if self.step is None else self.before

    def to_dict(self) -> dict[str, Any]:
        """All the coordinator needs to go on, as JSON (Python floats survive it bit for bit).

        But for ``known.moment``.
        """
        return {
            "x": self.x.tolist(),
            "h": self.h,
            "wide": self.wide,
            "past": [past.tolist() for past in self.past],
            "errors": self.errors,
            "moves": self.moves,
            "bundle": self.bundle.to_dict(),
            "t": self.t,
            "known": None if self.known is None else [self.known.passes, self.known.h],
            "stepped": self.step is not None,
            "zone": self.zone.rows if self.step is None else self.zone.expected,
            "visited": self.passed.visited,
            "alive": self.passed.alive,
            "stalled": self.stalled,
            "local": self.local,
            "holding": self.holding,
            "held": self.held,
            "seen": self.seen.tolist() if self.held and self.seen is not None else None,
            "seen_primal": self.seen_primal if self.held else None,
            "worn": self.worn,
            "kept": self.kept,
        }

    @classmethod
    def from_dict(
        cls, metric: FloatArray, saved: dict[str, Any], moment: FloatArray | None
    ) -> Place:
        """The place that ``to_dict`` wrote, before its gradient round."""
        same = (
            "h",
            "errors",
            "moves",
            "t",
            "wide",
            "stalled",
            "local",
            "holding",
            "worn",
            "held",
            "kept",
        )
        # Checkpoints of before have neither: nobody knows how far those steps moved scores.
        saved = {"seen": None, "moves": [UNKNOWN] * len(saved["past"]), **saved}
        seen, seen_primal = saved["seen"], saved.get("seen_primal")
        return cls(
            x=np.array(saved["x"]),
            bundle=Bundle.from_dict(metric, saved["bundle"]),
            past=[np.array(past) for past in saved["past"]],
            average=None if moment is None else Average(moment, *saved["known"]),
            zone=Zone(saved["zone"]),
            passed=Passed(saved["visited"], saved["alive"]),
            seen=None if seen is None else np.array(seen),
            seen_primal=-np.inf if seen_primal is None else seen_primal,
            **{name: saved[name] for name in same if name in saved},
        )


def next_h(place: Place, tol: float, small: float = 1.0) -> float:
    """The smoothing of the next pass.

    ``P - D`` is about ``zone.weight h / 12`` (what smoothing costs; the weight is itself
    proportional to h) plus ``||gradient||^2 / 2``. h ends where the former is half of what is
    asked, and is lowered only when the decrease that the Newton step promises is no more than
    the part ``small`` of what smoothing costs: sooner, and steps become tiny and the dual point
    useless. So it does not run ahead of the gap either: a closer tol goes where a wider one went,
    and then on.
    """
    assert place.point is not None
    h, cost = place.h, place.zone.weight * place.h / 12
    # With no row in the zone smoothing costs nothing here, yet the closing pass reads alpha of
    # screened rows off their scores: h must go on down until they are out of its zone too.
    primal = abs(place.point.primal)
    if place.decrement > max(min(small * cost, primal), 1e-15 * primal):
        return h
    near = max(tol, min(STEADY, AHEAD * max(place.point.relative_gap, 0.0)))
    floor = h * float(np.sqrt(0.5 * near * primal / cost)) if cost else 0.0
    converged = place.decrement <= 0.1 * small * cost
    if floor >= 0.7 * h:
        # Converged at the last h and still not enough: the estimate was too rosy, unless the gap is
        # the gradient's. (Never creep up to the floor: every new h costs a step.)
        gap, enough = max(place.point.relative_gap, 0.0) * primal, ENOUGH * near * primal
        falls = gap > enough >= gap - place.gradient_cost
        return h / 2 if converged and place.gradient_cost < cost and not falls else h
    return max(h / (4 if converged else 2), floor, SMALLEST)


MOST_POINTS = 6
"""Dual points that a bundle holds."""


@dataclass
class Bundle:
    """The last dual points and the weights of their best mixture.

    ``readings`` say how to read each alpha off scores, ``lin`` holds ``p . alpha - e . |alpha|``,
    ``v`` the features ``w(alpha)`` of each, ``theta`` the weights (they sum to 1), ``dual`` their
    D.
    """

    metric: FloatArray
    readings: list[Reading] = field(default_factory=list)
    lin: list[float] = field(default_factory=list)
    v: list[FloatArray] = field(default_factory=list)
    theta: FloatArray = field(default_factory=lambda: np.empty(0))
    dual: float = -np.inf

    def add(self, reading: Reading, lin: float, v: FloatArray) -> None:
        """Take in a dual point, forget the least useful one, find the best mixture."""
        if len(self.lin) == MOST_POINTS:
            drop = int(np.argmin(self.theta))
            for kept in (self.readings, self.lin, self.v):
                del kept[drop]
            # What is dropped carries next to nothing; the rest is a mixture again.
            self.theta = np.delete(self.theta, drop)
            self.theta = self.theta / self.theta.sum()
        self.readings.append(reading)
        self.lin.append(lin)
        self.v.append(v)
        self.theta = np.append(self.theta, 0.0 if len(self.lin) > 1 else 1.0)
        self._mix()

    def mixture(self) -> tuple[Reading, ...]:
        """The readings of the best mixture, each with its weight."""
        parts = zip(self.readings, self.theta, strict=True)
        return tuple(replace(part, weight=float(weight)) for part, weight in parts if weight > 0)

    def features(self) -> FloatArray:
        """``w(alpha)`` of the best mixture, with the offset's entry where there is one."""
        return np.tensordot(self.theta, np.stack(self.v), 1)

    def to_dict(self) -> dict[str, Any]:
        """As JSON (Python floats survive it bit for bit)."""
        return {
            "readings": [r.to_dict() for r in self.readings],
            "lin": self.lin,
            "v": [v.tolist() for v in self.v],
            "theta": self.theta.tolist(),
            "dual": self.dual,
        }

    @classmethod
    def from_dict(cls, metric: FloatArray, saved: dict[str, Any]) -> Bundle:
        """The bundle that ``to_dict`` wrote."""
        return cls(
            metric,
            [Reading.from_dict(reading) for reading in saved["readings"]],
            list(saved["lin"]),
            [np.array(v) for v in saved["v"]],
            np.array(saved["theta"]),
            saved["dual"],
        )

    def _mix(self) -> None:
        """Pairwise Frank-Wolfe with exact steps on the simplex of a handful of points."""
        v = np.stack(self.v)
        gram, lin, theta = (v * self.metric) @ v.T, np.array(self.lin), self.theta
        for _ in range(300):
            slope = lin - gram @ theta
            up = int(np.argmax(slope))
            held = np.flatnonzero(theta > 0)
            down = int(held[np.argmin(slope[held])])
            rise = slope[up] - slope[down]
            if up == down or rise <= 1e-12 * float(np.abs(lin).max()):
                break
            curve = gram[up, up] + gram[down, down] - 2 * gram[up, down]
            move = theta[down] if curve <= 0 else min(theta[down], rise / curve)
            theta[up] += move
            # Exactly 0 when all of it moves, or the point would never leave the mixture.
            theta[down] = 0.0 if move == theta[down] else theta[down] - move
        self.theta = theta
        self.dual = float(lin @ theta - 0.5 * theta @ gram @ theta)
