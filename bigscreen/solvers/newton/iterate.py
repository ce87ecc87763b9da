"""An iterate of the smoothed Newton: x, what is known at x, and the choice of the next h."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from bigscreen.numerics.rows import FloatArray
from bigscreen.problems.point import Point, Reading
from bigscreen.solvers.newton.algebra import Average
from bigscreen.solvers.newton.sampled import Sample
from bigscreen.solvers.newton.tuning import NEWTON, NewtonTuning


@dataclass(frozen=True)
class Trial:
    """The result of a line search: the step lengths that were compared, and the best of them.

    Parameters
    ----------
    step : float64 (size,)
        Direction and unit length of the line search.
    steps : float64 (k,)
        Step lengths that were compared.
    best : int
        Index of the step length at which P, smoothed by h, is least.
    h : float
        Half the width of the smoothing band.
    primal : float
        P (not smoothed) at the best step length.
    cost : float
        What smoothing adds to P there.
    error : float
        Bound of the rounding error of every score along the step.
    """

    step: FloatArray
    steps: FloatArray
    best: int
    h: float
    primal: float
    cost: float
    error: float


@dataclass
class Band:
    """Counts of the rows in the smoothing band ``|G| <= h`` at the last gradient pass.

    Parameters
    ----------
    rows, most : int
        Rows in the band: of all shards, and of the shard that has most.
    expected : int
        Rows that the pass before it found, by which the stride of the gradient pass was chosen.
    weight : float
        Sum over the band of ``hi_i - lo_i``.
    """

    rows: int = 0
    most: int = 0
    expected: int = 0
    weight: float = 0.0


@dataclass
class PassCounts:
    """Rows visited by the last score pass, rows alive then, and rows fixed since (at hi, else)."""

    visited: int = 0
    alive: int = 0
    fixed: tuple[int, int] = (0, 0)


@dataclass
class Iterate:
    """The current x = (w, extras) of a Newton run, with what is known there and of earlier x.

    Parameters
    ----------
    x : float64 (size,)
    h : float
        Half the width of the smoothing band. 0 stands for as wide as all gradients at w = 0, and,
        for squared losses, for no smoothing.
    bundle : Bundle
        Recent dual points and their best mixture.
    past : list of float64 (size,)
        Every x at which rows were scored, oldest first; a row's ``ref`` is an index of this list.
    score_errors : list of float
        Bound of the rounding error of scores computed at each ``past``.
    moves : list of float
        Root mean square by which the step to each ``past`` moved scores of band rows.
    point : Point or None
        The point handed to ``check``.
    gradient : float64 (size,) or None
        Gradient of P smoothed by h.
    step : float64 (size,) or None
        The next Newton step; None if it has not been computed.
    step_length : float
        Length of the step that led here, as a multiple of the Newton step.
    next_h : float
        h of the next step.
    widening : float
        Rows within this multiple of h steady the second moment; grows if steps are shortened.
    decrement : float
        Decrease of P that the next Newton step promises.
    expected_move : float
        Root mean square by which ``step`` moves scores of the band's rows.
    gradient_cost : float
        ``||gradient||^2 / 2``, the part of the gap that the gradient makes.
    band : Band
    counts : PassCounts
    stalled_steps : int
        Consecutive steps of length 0 at one h.
    may_step_locally : bool
        False after local steps failed, until h falls.
    may_hold : bool
        False after held rows turned out to be on the wrong side.
    full_pass_x, full_pass_primal : float64 (size,) or None, float
        x and P at the last full pass before local or held steps.
    average, average_before : Average or None
        Mean of second moments over parts of the band: with this iterate's own, and without it.
    has_held_rows : bool
        Whether some rows stand at a side that their score does not show: alpha cannot be read off.
    sample : Sample or None
        Rows that the preconditioner of conjugate gradients is made of.
    needs_resample : bool
        Whether the next step needs another ``sample``.
    kept_decrease : float
        Decrease of the last step divided by what its preconditioner promised.
    band_sums : pair of float64 (m + extras,) or None
        ``V = sum s alpha [c, border]``, and V with alpha of band rows in the middle of their box.
    start_dual : float or None
        D of the alpha that the run started from, until h has been chosen for its gap.
    """

    x: FloatArray
    h: float
    bundle: Bundle
    past: list[FloatArray] = field(default_factory=list)
    score_errors: list[float] = field(default_factory=list)
    moves: list[float] = field(default_factory=list)
    point: Point | None = None
    gradient: FloatArray | None = None
    step: FloatArray | None = None
    step_length: float = 1.0
    next_h: float = 1.0
    widening: float = 1.0
    decrement: float = 0.0
    expected_move: float = 0.0
    gradient_cost: float = 0.0
    band: Band = field(default_factory=Band)
    counts: PassCounts = field(default_factory=PassCounts)
    stalled_steps: int = 0
    may_step_locally: bool = True
    may_hold: bool = True
    full_pass_x: FloatArray | None = None
    full_pass_primal: float = -np.inf
    average: Average | None = None
    average_before: Average | None = None
    has_held_rows: bool = False
    sample: Sample | None = None
    needs_resample: bool = False
    kept_decrease: float = 1.0
    band_sums: tuple[FloatArray, FloatArray] | None = None
    start_dual: float | None = None

    @property
    def average_to_save(self) -> Average | None:
        """The mean moment without this iterate's own, which a resumed run sums again."""
        return self.average if self.step is None else self.average_before

    def to_dict(self) -> dict[str, Any]:
        """Return all that the coordinator needs to continue, as JSON.

        (Python floats survive JSON bit for bit.) The matrix ``average_to_save.moment`` is left out.
        """
        average, held = self.average_to_save, self.has_held_rows
        return {
            "x": self.x.tolist(),
            "past": [past.tolist() for past in self.past],
            "bundle": self.bundle.to_dict(),
            "known": None if average is None else [average.passes, average.h],
            "stepped": self.step is not None,
            "zone": self.band.rows if self.step is None else self.band.expected,
            "visited": self.counts.visited,
            "alive": self.counts.alive,
            "seen": self.full_pass_x.tolist() if held and self.full_pass_x is not None else None,
            "seen_primal": self.full_pass_primal if held else None,
            **{key: getattr(self, name) for key, name in _SAVED.items()},
        }

    @classmethod
    def from_dict(
        cls, metric: FloatArray, saved: dict[str, Any], moment: FloatArray | None
    ) -> Iterate:
        """Return the iterate that ``to_dict`` wrote, before its gradient pass.

        ``metric``: see `Algebra`; ``moment`` (size, size): the moment of ``average_to_save``, None
        if there was none.
        """
        # Older checkpoints have no "seen", and no "moves": 1e300 stands for any distance.
        saved = {"seen": None, "moves": [1e300] * len(saved["past"]), **saved}
        x, primal = saved["seen"], saved.get("seen_primal")
        return cls(
            x=np.array(saved["x"]),
            bundle=Bundle.from_dict(metric, saved["bundle"]),
            past=[np.array(past) for past in saved["past"]],
            average=None if moment is None else Average(moment, *saved["known"]),
            band=Band(saved["zone"]),
            counts=PassCounts(saved["visited"], saved["alive"]),
            full_pass_x=None if x is None else np.array(x),
            full_pass_primal=-np.inf if primal is None else primal,
            **{name: saved[key] for key, name in _SAVED.items() if key in saved},
        )


_SAVED = {
    "h": "h",
    "errors": "score_errors",
    "moves": "moves",
    "t": "step_length",
    "wide": "widening",
    "stalled": "stalled_steps",
    "local": "may_step_locally",
    "holding": "may_hold",
    "worn": "needs_resample",
    "held": "has_held_rows",
    "kept": "kept_decrease",
}
"""Keys of checkpoints, and the attributes of `Iterate` that they save as they are."""


def choose_h(
    iterate: Iterate, tol: float, promise: float = 1.0, tuning: NewtonTuning = NEWTON
) -> float:
    """Return the smoothing h of the next step: the same, or a smaller one.

    ``P - D`` is about ``band.weight h / 12`` (the cost of smoothing; the weight is itself
    proportional to h) plus ``||gradient||^2 / 2``. h ends where smoothing costs half of ``tol``. It
    is lowered only if the decrease that the Newton step promises is at most ``promise`` times the
    cost of smoothing: if lowered sooner, steps become tiny and the dual point useless. While the
    gap is wide, h does not fall below what a tenth of the current gap needs.

    Parameters
    ----------
    iterate : Iterate
    tol : float
        Requested relative gap.
    promise : float
        Lower h once a step promises at most this fraction of what smoothing costs.
    tuning : NewtonTuning
    """
    assert iterate.point is not None
    h, cost = iterate.h, iterate.band.weight * iterate.h / 12
    # If no row is in the band, smoothing costs nothing here. But the closing pass reads alpha of
    # screened rows off their scores: h must fall until they are out of the band too.
    primal = abs(iterate.point.primal)
    if iterate.decrement > max(min(promise * cost, primal), 1e-15 * primal):
        return h
    gap = max(iterate.point.relative_gap, 0.0)
    target = max(tol, min(tuning.max_smoothing_target, tuning.smoothing_target_fraction * gap))
    floor = h * float(np.sqrt(0.5 * target * primal / cost)) if cost else 0.0
    converged = iterate.decrement <= 0.1 * promise * cost
    if floor >= 0.7 * h:
        # Converged at the last h, and still not enough: the estimate of the cost was too low, or
        # the gap is the gradient's. (Never creep up to the floor: every new h costs a step.)
        gap, enough = gap * primal, tuning.enough_gap_fraction * target * primal
        falls = gap > enough >= gap - iterate.gradient_cost
        return h / 2 if converged and iterate.gradient_cost < cost and not falls else h
    # (h is a divisor: it never becomes 0.)
    return max(h / (4 if converged else 2), floor, 2.0**-500)


@dataclass
class Bundle:
    """The last dual points of a run, and the convex combination of them with the largest D.

    Parameters
    ----------
    metric : float64 (size,)
        1 for penalised coordinates, 0 for multipliers.
    readings : list of Reading
        How to read each alpha off scores.
    lin : list of float
        ``p . alpha - e . |alpha|`` of each.
    v : list of float64 (size,)
        Features ``w(alpha)`` of each.
    theta : float64 (k,)
        Weights of the combination; they sum to 1.
    dual : float
        D of the combination.
    max_points : int
        Dual points to keep, at most.
    """

    metric: FloatArray
    readings: list[Reading] = field(default_factory=list)
    lin: list[float] = field(default_factory=list)
    v: list[FloatArray] = field(default_factory=list)
    theta: FloatArray = field(default_factory=lambda: np.empty(0))
    dual: float = -np.inf
    max_points: int = 6

    def add(self, reading: Reading, lin: float, v: FloatArray) -> None:
        """Add a dual point, drop the least useful one if there are too many, and combine anew."""
        if len(self.lin) == self.max_points:
            drop = int(np.argmin(self.theta))
            for points in (self.readings, self.lin, self.v):
                del points[drop]
            # The dropped point has hardly any weight; the other weights are made to sum to 1.
            self.theta = np.delete(self.theta, drop)
            self.theta = self.theta / self.theta.sum()
        self.readings.append(reading)
        self.lin.append(lin)
        self.v.append(v)
        self.theta = np.append(self.theta, 0.0 if len(self.lin) > 1 else 1.0)
        self._maximise()

    def mixture(self) -> tuple[Reading, ...]:
        """Return the readings of the best combination, each with its weight."""
        parts = zip(self.readings, self.theta, strict=True)
        return tuple(replace(part, weight=float(weight)) for part, weight in parts if weight > 0)

    def features(self) -> FloatArray:
        """Return ``w(alpha)`` of the best combination, with the offset's entry if there is one."""
        return np.tensordot(self.theta, np.stack(self.v), 1)

    def to_dict(self) -> dict[str, Any]:
        """Return the bundle as JSON (Python floats survive it bit for bit)."""
        return {
            "readings": [r.to_dict() for r in self.readings],
            "lin": self.lin,
            "v": [v.tolist() for v in self.v],
            "theta": self.theta.tolist(),
            "dual": self.dual,
        }

    @classmethod
    def from_dict(cls, metric: FloatArray, saved: dict[str, Any]) -> Bundle:
        """Return the bundle whose ``to_dict`` is ``saved``; ``metric``: see `Bundle`."""
        return cls(
            metric,
            [Reading.from_dict(reading) for reading in saved["readings"]],
            list(saved["lin"]),
            [np.array(v) for v in saved["v"]],
            np.array(saved["theta"]),
            saved["dual"],
        )

    def _maximise(self, max_steps: int = 300) -> None:
        """Maximise D over the weights: pairwise Frank-Wolfe with exact steps on the simplex."""
        v = np.stack(self.v)
        gram, lin, theta = (v * self.metric) @ v.T, np.array(self.lin), self.theta
        for _ in range(max_steps):
            slope = lin - gram @ theta
            up = int(np.argmax(slope))
            positive = np.flatnonzero(theta > 0)
            down = int(positive[np.argmin(slope[positive])])
            rise = slope[up] - slope[down]
            if up == down or rise <= 1e-12 * float(np.abs(lin).max()):
                break
            curve = gram[up, up] + gram[down, down] - 2 * gram[up, down]
            move = theta[down] if curve <= 0 else min(theta[down], rise / curve)
            theta[up] += move
            # Exactly 0 if all of the weight moves: otherwise the point would never leave.
            theta[down] = 0.0 if move == theta[down] else theta[down] - move
        self.theta = theta
        self.dual = float(lin @ theta - 0.5 * theta @ gram @ theta)
