"""The best dual point in the hull of the last few: what steadies a Newton's lower bound.

Every Newton pass gives a feasible alpha, but alpha jumps where w zigzags. The feasible set is
convex, so any mixture of past alphas is feasible too, and D of a mixture needs only the sums that
each pass already has: ``D(theta) = sum theta_k lin_k - 1/2 ||sum theta_k v_k||^2``. (A quadratic
part of D, which squared losses have, is in lin; it is concave, so a mixture has more of it.)
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from bigscreen.dual import FloatArray
from bigscreen.point import Reading

SIZE = 6


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
        if len(self.lin) == SIZE:
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
