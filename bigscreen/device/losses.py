"""The losses of rows as sums of two hinges each, smoothed: values, slopes and curvatures."""

from __future__ import annotations

from collections.abc import Iterable
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

    With ``theta = clip(z / (2 h) + 1/2, 0, 1)`` it is ``h theta^2 + max(0, z - h)``. Arguments are
    (rows, k), and h is (k,), or (1,) for all columns.
    """

    xp: Any
    h: Any

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

    def slope(self, z: Any) -> Any:
        """Return ``max(0, z)``, the derivative of the squared hinge."""
        return self.xp.clip(z, min=0.0)

    def curvature(self, z: Any) -> Any:
        """Return the second derivative: 1 above 0, else 0."""
        return self.xp.astype(z > 0, z.dtype)


class Losses:
    """The losses of rows in k problems, ``base G + up H(G - e) + down H(-G - e)``, H a hinge.

    G is a row's gradient ``p - s u - t mu`` in a problem (see `Dual`). For the hinge of a C-SVC
    ``up`` is its box and the others are 0; a tube has both hinges. The dual variable that a
    smoothed loss implies is its slope, ``alpha = base + up H'(G - e) - down H'(-G - e)``.

    G and alpha are float64 (rows, k), h is (k,). Numbers of rows that are equal in all problems are
    kept once, as (rows, 1).

    Parameters
    ----------
    place : Place
    duals : sequence or iterator of Dual
        One for each problem, of the same rows; on the host.
    k : int
        The number of problems.
    frame : SumLayout
        The coupling, and the terms into which sums over alpha are split; all problems have the
        layout of any of them, and differ in totals only.
    """

    def __init__(self, place: Place, duals: Iterable[Dual], k: int, frame: SumLayout) -> None:
        """Move the rows' numbers to the place."""
        self.xp, self.frame = place.xp, frame
        made = _stack((_numbers(dual, frame) for dual in duals), k)
        self.of_rows = {name: place.put(values) for name, values in made.items()}
        """Arrays (rows, k) or (rows, 1) of the place, by name."""

    def narrow(self, keep: Any) -> None:
        """Keep the problems at the positions ``keep``, int64, an array of the place."""
        for name, values in self.of_rows.items():
            if values.shape[1] > 1:
                self.of_rows[name] = self.xp.take(values, keep, axis=1)

    @property
    def weight(self) -> Any:
        """How fast a row's loss can grow with G: ``up + down``, (rows, k) or (rows, 1)."""
        up, down = self.of_rows["up"], self.of_rows.get("down")
        return up if down is None else up + down

    @property
    def border(self) -> list[Any]:
        """The factor of each of a machine's extras in scores, see `SumLayout.border`.

        A number, or an array (rows, k) or (rows, 1).
        """
        rows, frame = self.of_rows, self.frame
        ways = [rows["sign"] * rows[f"way {g}"] for g in range(frame.groups)]
        return [frame.constant, *ways] if frame.constant else ways

    def gradients(self, scores: Any) -> Any:
        """Return ``G = p - s u`` for scores u (rows, k)."""
        return self.of_rows["lin"] - self.of_rows["sign"] * scores

    def hinge(self, h: Any) -> Hinge | SquaredHinge:
        """Return the hinge of all rows, smoothed by h unless losses are squared."""
        return SquaredHinge(self.xp) if self.frame.curved else Hinge(self.xp, h)

    def plain(self, G: Any) -> Any:
        """Return the sums (k,) of the losses at gradients G, without smoothing."""
        rows, power = self.of_rows, 2 if self.frame.curved else 1
        over, under = (self.xp.clip(z, min=0.0) ** power / power for z in self._ends(G))
        found = rows["base"] * G + rows["up"] * over
        if "down" in rows:
            found = found + rows["down"] * under
        return self.xp.sum(found, axis=0)

    def alpha(self, G: Any, h: Any) -> Any:
        """Return the dual variables (rows, k) that the smoothed losses imply at gradients G."""
        rows, hinge, (over, under) = self.of_rows, self.hinge(h), self._ends(G)
        found = rows["base"] + rows["up"] * hinge.slope(over)
        return found - rows["down"] * hinge.slope(under) if "down" in rows else found

    def curvature(self, G: Any, h: Any) -> Any:
        """Return the second derivatives (rows, k) of the smoothed losses at gradients G."""
        rows, hinge, (over, under) = self.of_rows, self.hinge(h), self._ends(G)
        found = rows["up"] * hinge.curvature(over)
        return found + rows["down"] * hinge.curvature(under) if "down" in rows else found

    def conjugate(self, alpha: Any) -> Any:
        """Return the linear part of D, which is separate for each row (rows, k)."""
        rows, found = self.of_rows, self.of_rows["lin"] * alpha
        return found - rows["tube"] * self.xp.abs(alpha) if "tube" in rows else found

    def slopes(self, G: Any, alpha: Any) -> Any:
        """Return the sums (k,) of ``alpha G - e |alpha|``: of the losses, had alpha no rounding."""
        rows = self.of_rows
        return self.xp.sum(self.conjugate(alpha) + (G - rows["lin"]) * alpha, axis=0)

    def terms(self, alpha: Any) -> tuple[list[Any], list[Any]]:
        """Split alpha (rows, k) into the terms of the layout, see `SumLayout.scales`.

        Returns ``s alpha`` of each term (rows, k), and each of `SumLayout.value`'s sums (k,).
        """
        xp, rows, frame = self.xp, self.of_rows, self.frame
        parts, rises = [], []
        for g in range(frame.groups):
            way = rows[f"way {g}"]
            own, up = way != 0, way * alpha >= 0
            parts += [self._masked(alpha, own & up), self._masked(alpha, own & ~up)]
            if frame.lifts:
                free = (alpha > rows["lo"]) & (alpha < rows["hi"])
                rises.append(self._masked(rows["highest"] - alpha, own & free))
        parts = [*parts, *rises] or [alpha]
        sums = [xp.sum(self.conjugate(part), axis=0) for part in parts]
        if frame.curved:
            sums += [xp.sum(0.5 * rows["curve"] * part**2, axis=0) for part in parts]
        return [rows["sign"] * part for part in parts], sums

    def _masked(self, values: Any, mask: Any) -> Any:
        """Return the values where the mask is True, else 0."""
        return values * self.xp.astype(mask, values.dtype)

    def _ends(self, G: Any) -> tuple[Any, Any]:
        """Return the arguments of both hinges, ``G - e`` and ``-G - e``."""
        tube = self.of_rows.get("tube")
        return (G, -G) if tube is None else (G - tube, -G - tube)


def _numbers(dual: Dual, frame: SumLayout) -> dict[str, FloatArray]:
    """Return what `Losses` needs of the rows of one problem, arrays (rows,) by name."""
    zero = np.zeros(len(dual))
    base, up, down = zero, dual.hi, -dual.lo
    if dual.curve is not None:
        up, down = (dual.hi > 0) / dual.curve, (dual.lo < 0) / dual.curve
    elif dual.tube is None:
        base, up, down = dual.lo, dual.hi - dual.lo, zero
    found = {"sign": dual.sign, "lin": dual.lin, "base": base, "up": up, "down": down}
    if dual.tube is not None:
        found["tube"] = dual.tube
    if dual.curve is not None:
        found["curve"] = dual.curve
    for g in range(frame.groups):
        assert dual.coupling is not None
        found[f"way {g}"] = dual.coupling * (True if dual.group is None else dual.group == g)
    if frame.lifts:
        found |= {"lo": dual.lo, "hi": dual.hi, "highest": frame.rise(dual, zero)}
    return found


def _stack(problems: Iterable[dict[str, FloatArray]], k: int) -> dict[str, FloatArray]:
    """Stack arrays (rows,) of k problems, by name: (rows, 1) if all are equal, else (rows, k).

    Without "down", if it is 0 in all rows of all problems.
    """
    made: dict[str, FloatArray] = {}
    for j, found in enumerate(problems):
        for name, values in found.items():
            array = made.setdefault(name, np.array(values, dtype=np.float64)[:, None])
            if array.shape[1] == 1 and not np.array_equal(array[:, 0], values):
                made[name] = array = np.repeat(array, k, axis=1)
            if array.shape[1] == k:
                array[:, j] = values
    if not np.any(made["down"]):
        del made["down"]
    return made
