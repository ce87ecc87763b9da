"""Sums over rows that P and D are made of, and a coupling that is kept by scaling them.

A dual point that is read off scores lies in its box, but ``sum t alpha`` is only about the total.
Its sums are kept apart by group and by the sign of ``t alpha``, and beside them stands what the
rows in the zone could still rise by: scaled, they are the sums of a feasible point, and no row is
read again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.dual import Dual, FloatArray, Mu
from bigscreen.problems import Problem
from bigscreen.rows import njit, row_axpy

MET = 1e-13
"""A total missed by less than this part of it is met: the sums' own rounding."""


@dataclass(frozen=True)
class Frame:
    """What rows have beside their columns, and the terms that their sums are kept in.

    A row enters as ``[c_i, border_i]`` and a machine has as many *extras*, the constant's
    coefficient and the multipliers: ``G = p - s (c . coef + border . extras)``.

    Parameters
    ----------
    constant : float
        What is appended to phi (1 unless the problem scales it), 0 without it.
    total : float64 (groups,)
        The coupling's right-hand sides; empty without a coupling.
    curved : bool
        Whether losses are squared: then D has a part that is quadratic, row by row.
    """

    constant: float
    total: FloatArray
    curved: bool = False

    @classmethod
    def of(cls, problem: Problem, data: Any) -> Frame:
        """The frame of a problem over these rows."""
        dual = problem.dual(data.y(0, 0), data.weights(0, 0))
        total = np.empty(0) if dual.coupling is None else np.atleast_1d(dual.total)
        curved = dual.curve is not None
        constant = problem.intercept_scaling if problem.intercept == "constant" else 0.0
        return cls(constant, total.astype(np.float64), curved)

    @property
    def groups(self) -> int:
        return len(self.total)

    @property
    def kinked(self) -> bool:
        """Whether P has multipliers and, as a function of them, kinks."""
        return self.groups > 0 and not self.curved

    @property
    def extras(self) -> int:
        """Numbers that a machine has beside w: the constant's coefficient, then the multipliers."""
        return self.first + self.groups

    @property
    def first(self) -> int:
        """The place of the first multiplier among the extras."""
        return int(self.constant != 0)

    def largest(self, bound: float) -> float:
        """At least every entry of ``[c, border]`` where no entry of c is above this."""
        return max(bound, self.constant, 1.0)

    @property
    def buckets(self) -> int:
        """Terms of a sum that are scaled down: by group, ``t alpha > 0`` before the rest."""
        return 2 * self.groups or 1

    @property
    def lifts(self) -> int:
        """Terms that are scaled up from 0: only a total away from 0 can be missed from below."""
        return self.groups if np.any(self.total) else 0

    @property
    def terms(self) -> int:
        return self.buckets + self.lifts

    def value(self, scales: FloatArray, sums: FloatArray) -> float:
        """D less ``1/2 ||w||^2`` of `Terms.sums`, every term multiplied by its scale."""
        linear = float(scales @ sums[: self.terms])
        return linear - float(scales**2 @ sums[self.terms :]) if self.curved else linear

    def mu(self, extras: FloatArray) -> Mu:
        """The multiplier among the extras: a float, or (groups,); 0 without a coupling."""
        mu = extras[self.first :]
        return mu if self.groups > 1 else float(np.sum(mu))

    def border(self, dual: Dual) -> FloatArray:
        """What rows have beside their columns: float64 (rows, extras)."""
        out = np.zeros((len(dual), self.extras))
        if self.constant:
            out[:, 0] = self.constant
        if dual.coupling is not None:
            for g in range(self.groups):
                own = 1.0 if dual.group is None else dual.group == g
                out[:, self.first + g] = dual.sign * dual.coupling * own
        return out

    def bucket(self, dual: Dual, alpha: FloatArray) -> NDArray[np.int8]:
        """The term of every row: int8 (rows,), below ``buckets``."""
        if dual.coupling is None:
            return np.zeros(len(dual), np.int8)
        down = (dual.coupling * alpha < 0).astype(np.int8)
        return down if dual.group is None else 2 * dual.group + down

    def rise(self, dual: Dual, alpha: FloatArray) -> FloatArray:
        """By how much alpha moves where its ``t alpha`` rises to the end of the box."""
        assert dual.coupling is not None
        t = dual.coupling
        return t * np.maximum(t * dual.lo, t * dual.hi) - alpha

    def scales(self, v: FloatArray) -> FloatArray | None:
        """What each term has to be multiplied by for the coupling to hold.

        Too much is taken from the terms ``t alpha > 0`` in proportion; too little from those
        below 0, and what is missing then is given to the rows in the zone, where it costs least.

        Parameters
        ----------
        v : float64 (terms, columns + extras)
            ``sum s alpha [c, border]`` of the buckets, then the same of ``rise`` over the zone.

        Returns
        -------
        float64 (terms,), or None where the rows in the zone have not enough room.
        """
        out = np.concatenate([np.ones(self.buckets), np.zeros(self.lifts)])
        for g, total in enumerate(self.total):
            at = v.shape[1] - self.groups + g
            # No term of either has the other sign, but a sum that rows left again is rounded.
            more, less = max(v[2 * g, at], 0.0), max(-v[2 * g + 1, at], 0.0)
            if abs(more - less - total) <= MET * total:
                continue
            if more - less >= total:
                # (Without anything above 0 there is no excess: both are 0.)
                out[2 * g] = min(1.0, (total + less) / more) if more > 0 else 1.0
            elif more >= total:
                out[2 * g + 1] = (more - total) / less
            else:
                missing, room = total - more, v[self.buckets + g, at]
                if missing > room * (1 + 1e-9):
                    return None
                out[2 * g + 1] = 0.0
                out[self.buckets + g] = min(1.0, missing / room)
        return out


class Terms:
    """The alpha of some rows as a frame's terms.

    Parameters
    ----------
    frame : Frame
    dual : Dual
        Of these rows.
    alpha : float64 (rows,)
    """

    def __init__(self, frame: Frame, dual: Dual, alpha: FloatArray) -> None:
        self.frame = frame
        bucket = frame.bucket(dual, alpha)
        self.parts = [(dual.sign * alpha, bucket)]
        lin = [by_term(bucket, dual.linear(alpha), frame.buckets)]
        if frame.lifts:
            zone = (alpha > dual.lo) & (alpha < dual.hi)
            rise = np.where(zone, frame.rise(dual, alpha), 0.0)
            group = np.zeros(len(dual), np.int8) if dual.group is None else dual.group
            self.parts.append((dual.sign * rise, frame.buckets + group))
            lin.append(by_term(group, dual.linear(rise), frame.lifts))
        if frame.curved:
            lin.append(by_term(bucket, dual.bend(alpha), frame.terms))
        self.sums = np.concatenate(lin)
        """D's linear part by term (terms,), and where there is one its quadratic part after it."""

    def add(self, rows: slice, columns: Any, border: FloatArray, v: FloatArray) -> None:
        """Add ``sum s alpha [c, border]`` of these rows to the terms v."""
        for coef, term in self.parts:
            add_rows(columns, border, coef[rows], term[rows], v)


def by_term(term: NDArray[Any], values: FloatArray, terms: int) -> FloatArray:
    """Sums of the rows' values by term (terms,)."""
    # (Of no rows numpy makes integers.)
    return np.bincount(term, values, terms).astype(np.float64)


@njit(cache=True, nogil=True)
def add_rows(columns, border, coef, term, v):  # type: ignore[no-untyped-def]
    """``v[term_i] += coef_i [c_i, border_i]``, columns dense or CSR; a coefficient 0 is skipped."""
    m = v.shape[1] - border.shape[1]
    for i in range(len(coef)):
        if coef[i] != 0.0:
            total = v[term[i]]
            row_axpy(columns, i, coef[i], total)
            for j in range(border.shape[1]):
                total[m + j] += coef[i] * border[i, j]
