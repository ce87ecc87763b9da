"""Where a Newton is, what it found there, and how that is written down."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bigscreen.dual import FloatArray
from bigscreen.point import Point
from bigscreen.solvers.newton_bundle import Bundle


@dataclass
class Place:
    """Where the Newton is, x = (w, extras), what it found there, and how it got there."""

    x: FloatArray
    h: float  # 0: as wide as the rows' gradients are at w = 0
    bundle: Bundle
    past: list[FloatArray] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    point: Point | None = None
    step: FloatArray | None = None
    t: float = 1.0
    next_h: float = 1.0
    wide: float = 1.0
    decrement: float = 0.0
    gradient_cost: float = 0.0
    zone: int = 0
    zone_asked: int = 0
    fixed: tuple[int, int] = (0, 0)
    zone_weight: float = 0.0
    visited: int = 0
    alive: int = 0
    stalled: int = 0
    given: float | None = None  # D of the alpha that x was made of, until h suits its gap

    def to_dict(self) -> dict[str, Any]:
        """All the coordinator needs to go on, as JSON (Python floats survive it bit for bit)."""
        return {
            "x": self.x.tolist(),
            "h": self.h,
            "wide": self.wide,
            "past": [past.tolist() for past in self.past],
            "errors": self.errors,
            "bundle": self.bundle.to_dict(),
            "t": self.t,
            "zone": self.zone_asked,
            "visited": self.visited,
            "alive": self.alive,
            "stalled": self.stalled,
        }

    @classmethod
    def from_dict(cls, metric: FloatArray, saved: dict[str, Any]) -> Place:
        """The place that ``to_dict`` wrote, before its gradient round."""
        same = ("h", "errors", "t", "wide", "zone", "visited", "alive", "stalled")
        return cls(
            x=np.array(saved["x"]),
            bundle=Bundle.from_dict(metric, saved["bundle"]),
            past=[np.array(past) for past in saved["past"]],
            **{name: saved[name] for name in same},
        )
