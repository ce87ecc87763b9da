"""The losses of rows as sums of two hinges each, smoothed: values, slopes and curvatures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bigscreen.device.place import Place
from bigscreen.numerics.rows import FloatArray
from bigscreen.problems.dual import Dual
from bigscreen.problems.point import SumLayout


@dataclass(frozen=True)
class Hinge:
    """The hinge ``max(0, z)``, smoothed within ``|z| < h`` (maths.md 5.4).

    With ``theta = clip(z / (2 h) + 1/2, 0, 1)`` it is ``h theta^2 + max(0, z - h)``.
    """

    xp: Any
    h: float

    def value(self, z: Any) -> Any:
        """Return the smoothed hinge at each z."""
        return self.h * self.slope(z) ** 2 + self.xp.clip(z - self.h, min=0.0)

    def slope(self, z: Any) -> Any:
        """Return theta, the derivative of the smoothed hinge."""
        return self.xp.clip(z / (2 * self.h) + 0.5, min=0.0, max=1.0)

    def curvature(self, z: Any) -> Any:
        """Return the second derivative: ``1 / (2 h)`` within the smoothing band, else 0."""
        inside = self.xp.abs(z) < self.h
        return self.xp.astype(inside, z.dtype) / (2 * self.h)


@dataclass(frozen=True)
class SquaredHinge:
    """The squared hinge ``max(0, z)^2 / 2``, which is smooth as it is."""

    xp: Any

    def value(self, z: Any) -> Any:
        """Return the squared hinge at each z."""
        return 0.5 * self.slope(z) ** 2

    def slope(self, z: Any) -> Any:
        """Return ``max(0, z)``, the derivative of the squared hinge."""
        return self.xp.clip(z, min=0.0)

    def curvature(self, z: Any) -> Any:
        """Return the second derivative: 1 above 0, else 0."""
        return self.xp.astype(z > 0, z.dtype)


class Losses:
    """The losses of all rows, ``base G + up H(G - e) + down H(-G - e)``, with H a hinge.

    G is a row's gradient ``p - s u - t mu`` (see `Dual`). For the hinge of a C-SVC ``up`` is its
    box and the others are 0; a tube has both hinges. The dual variable that a smoothed loss implies
    is its slope, ``alpha = base + up H'(G - e) - down H'(-G - e)``.

    Parameters
    ----------
    place : Place
    dual : Dual
        Of all rows, on the host.
    frame : SumLayout
        The coupling, and the terms into which sums over alpha are split.

    Attributes
    ----------
    sign, lin : float64 (n,)
        The s and p of each row, arrays of ``place``.
    weight : float64 (n,)
        How fast a row's loss can grow with G: ``up + down``.
    """

    def __init__(self, place: Place, dual: Dual, frame: SumLayout) -> None:
        """Move the rows' numbers to the place."""
        self.xp, self.frame = place.xp, frame
        base, up, down = np.zeros(len(dual)), dual.hi, -dual.lo
        if dual.curve is not None:
            up, down = (dual.hi > 0) / dual.curve, (dual.lo < 0) / dual.curve
        elif dual.tube is None:
            base, up, down = dual.lo, dual.hi - dual.lo, base
        self.sign, self.lin = place.put(dual.sign), place.put(dual.lin)
        self.base, self.up = place.put(base), place.put(up)
        self.down = place.put(down) if np.any(down) else None
        self.tube = None if dual.tube is None else place.put(dual.tube)
        self.curve = None if dual.curve is None else place.put(dual.curve)
        self.weight = self.up if self.down is None else self.up + self.down
        ways = np.zeros((len(dual), frame.groups))
        if dual.coupling is not None:
            group = np.zeros(len(dual), np.int64) if dual.group is None else dual.group
            ways[np.arange(len(dual)), group] = dual.coupling
        self.ways = place.put(ways)
        """The coupling's t in the column of each row's group, else 0: (n, groups)."""
        if frame.lifts:
            self.lo, self.hi = place.put(dual.lo), place.put(dual.hi)
            self.highest = place.put(frame.rise(dual, np.zeros(len(dual))))

    def hinge(self, h: float) -> Hinge | SquaredHinge:
        """Return the hinge of all rows, smoothed by h unless losses are squared."""
        return Hinge(self.xp, h) if self.curve is None else SquaredHinge(self.xp)

    def value(self, G: Any, h: float) -> float:
        """Return the sum of the smoothed losses at gradients G (n,)."""
        return self._sum(G, self.hinge(h).value)

    def plain(self, G: Any) -> float:
        """Return the sum of the losses at gradients G (n,), without smoothing."""
        if self.curve is not None:
            return self.value(G, 0.0)
        return self._sum(G, lambda z: self.xp.clip(z, min=0.0))

    def alpha(self, G: Any, h: float) -> Any:
        """Return the dual variables (n,) that the smoothed losses imply at gradients G (n,)."""
        hinge, (over, under) = self.hinge(h), self._ends(G)
        found = self.base + self.up * hinge.slope(over)
        return found if self.down is None else found - self.down * hinge.slope(under)

    def curvature(self, G: Any, h: float) -> Any:
        """Return the second derivatives (n,) of the smoothed losses at gradients G (n,)."""
        hinge, (over, under) = self.hinge(h), self._ends(G)
        found = self.up * hinge.curvature(over)
        return found if self.down is None else found + self.down * hinge.curvature(under)

    def conjugate(self, alpha: Any) -> Any:
        """Return the part of D that is separate for each row (n,) or (n, k), see `Dual.value`."""
        column = (slice(None), *[None] * (alpha.ndim - 1))
        found = self.lin[column] * alpha
        if self.tube is not None:
            found = found - self.tube[column] * self.xp.abs(alpha)
        return found

    def terms(self, alpha: Any) -> tuple[Any, FloatArray]:
        """Split alpha (n,) into the terms of the layout, see `SumLayout.scales`.

        Returns ``s alpha`` of each term (n, terms), and what D has of each term on the host.
        """
        xp, frame = self.xp, self.frame
        if not frame.groups:
            parts = alpha[:, None]
        else:
            ties = self.ways * alpha[:, None]
            own = self.ways != 0
            split = [own & (ties >= 0), own & (ties < 0)]
            if frame.lifts:
                free = (alpha > self.lo) & (alpha < self.hi)
                split.append(own & free[:, None])
            masks = [xp.astype(mask, alpha.dtype) for mask in split]
            both = [alpha[:, None] * mask for mask in masks[:2]]
            columns = [part[:, g] for g in range(frame.groups) for part in both]
            for mask in masks[2:]:
                rise = (self.highest - alpha)[:, None] * mask
                columns += [rise[:, g] for g in range(frame.groups)]
            parts = xp.stack(columns, axis=1)
        sums = [xp.sum(self.conjugate(parts), axis=0)]
        if self.curve is not None:
            sums.append(xp.sum(0.5 * self.curve[:, None] * parts**2, axis=0))
        return self.sign[:, None] * parts, xp.concat(sums)

    def _sum(self, G: Any, hinge: Callable[[Any], Any]) -> float:
        """Return the sum of the losses at gradients G (n,) for a function that gives the hinge."""
        over, under = self._ends(G)
        found = self.base * G + self.up * hinge(over)
        if self.down is not None:
            found = found + self.down * hinge(under)
        return float(self.xp.sum(found))

    def _ends(self, G: Any) -> tuple[Any, Any]:
        """Return the arguments of both hinges, ``G - e`` and ``-G - e``."""
        return (G, -G) if self.tube is None else (G - self.tube, -G - self.tube)
