"""Points that solvers hand to ``check``, and certificates of what is proved about them."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.numerics.rows import FloatArray, njit, row_axpy
from bigscreen.problems.dual import Dual, Mu
from bigscreen.problems.recipes import Problem

HOPELESS = 0.9
"""Part of a gap that is asked for from which rounding leaves none to prove it with."""

NUMBERS = ("primal", "dual", "gap", "relative_gap", "rounding_bound")
"""Fields of a certificate without which it proves nothing."""

EACH = ("primal_rounding", "dual_rounding")
"""Fields that say how far rounding can have moved P and D, each by itself."""

MET = 1e-13
"""A total missed by less than this part of it is met: the sums' own rounding."""


def relative(gap: float, primal: float) -> float:
    """``gap / |P|``; where P is 0, 1 unless the gap is 0 as well."""
    return gap / abs(primal) if primal != 0 else float(gap > 0)


def reached(record: Mapping[str, Any]) -> float:
    """What ``tol`` is compared with, of a certificate or a path's point as JSON has it.

    The relative gap, or where no gap means anything the violation of the KKT conditions;
    nan if there is neither; so ask ``reached(record) <= tol``, which no nan meets.
    """
    found = record.get("violation")
    found = record["relative_gap"] if found is None else found
    return np.nan if found is None else float(found)


def met(record: Mapping[str, Any], tol: float) -> bool:
    """Whether a certificate or a path's point, as JSON has it, proves the gap that was asked for.

    It does so whatever rounding has done to it. Where no gap means anything: whether the violation
    is met.
    """
    if record.get("violation") is not None:
        return reached(record) <= tol
    if record["gap"] is None:
        return False
    proved = proves(record["gap"], _rounding(record), record["primal"], tol)
    return bool(reached(record) <= tol and proved)


def settled(record: Mapping[str, Any], tol: float) -> bool:
    """Whether there is nothing left to solve for: see `enough`."""
    if record.get("violation") is not None or record["gap"] is None:
        return met(record, tol)
    return bool(record["gap"] <= enough(_rounding(record), record["primal"], tol))


def _rounding(record: Mapping[str, Any]) -> float:
    return float(record["rounding_bound" if "rounding_bound" in record else "rounding"])


def worst(records: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """The largest relative gap and KKT violation of points' records, None where one has none."""
    found: dict[str, float | None] = {}
    for name in ("relative_gap", "violation"):
        numbers = [record[name] for record in records if record.get(name) is not None]
        found[name] = max(numbers) if len(numbers) == len(records) else None
    return found


def proves(gap: float, rounding: float, primal: float, tol: float) -> bool:
    """Whether the relative gap is at most tol, whatever rounding has done to it.

    Where P is 0 to the last bit, and so are all its terms, no gap is small beside it: none is left.
    """
    return gap + rounding <= tol * abs(primal) or (primal == 0 and gap <= 0)


def enough(rounding: float, primal: float, tol: float) -> float:
    """The gap that proves tol.

    Where rounding leaves no space for one, tol itself: a smaller gap would prove no more.
    """
    asked = tol * abs(primal)
    return asked - rounding if rounding < HOPELESS * asked else asked


def read_off(dual: Dual, gradient: FloatArray, h: float) -> FloatArray:
    """The smoothed loss's own alpha (rows,): how steep it is at these gradients.

    A squared loss needs no smoothing, and has none.
    """
    if dual.curve is not None:
        return dual.best(gradient)
    if dual.tube is None:
        return dual.lo + (dual.hi - dual.lo) * np.clip((gradient + h) / (2 * h), 0.0, 1.0)
    more = dual.hi * np.clip((gradient - dual.tube + h) / (2 * h), 0.0, 1.0)
    return more + dual.lo * np.clip((h - gradient - dual.tube) / (2 * h), 0.0, 1.0)


@dataclass(frozen=True)
class Reading:
    """A dual point read off the scores of some w: the smoothed loss's own alpha.

    ``alpha = lo + (hi - lo) clip((G + h) / (2 h), 0, 1)`` with G the gradient at the scores
    ``columns . coef + intercept`` and ``multiplier`` (one a group; empty: its part is in the
    scores already, or there is no coupling), ``h = smoothing``; ``weight`` is its part in a
    mixture.
    """

    coef: FloatArray
    intercept: float
    smoothing: float
    weight: float = 1.0
    multiplier: tuple[float, ...] = ()

    def alpha(self, dual: Dual, scores: FloatArray) -> FloatArray:
        """The dual point of rows with these scores (the intercept included)."""
        return read_off(dual, dual.gradient(scores, np.array(self.multiplier)), self.smoothing)

    def to_dict(self) -> dict[str, Any]:
        """As JSON, bit for bit."""
        return {**vars(self), "coef": self.coef.tolist()}

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Reading:
        """The reading that ``to_dict`` wrote."""
        made = {"coef": np.array(saved["coef"]), "multiplier": tuple(saved["multiplier"])}
        return cls(**{**saved, **made})


@dataclass(frozen=True)
class Point:
    """Where a solver stands: everything a certificate or a checkpoint needs.

    Parameters
    ----------
    coef : float64 (m,)
        Coefficients of the design's columns: the score of a row is ``columns . coef + intercept``.
    w : float64 (r,)
        The same in the space of features (``coef = T w``).
    intercept : float
        The offset (0 without one).
    primal, dual : float
        P(w) and D(alpha), summed in float64.
    paired : bool
        Whether ``w = w(alpha)`` for the alpha behind ``dual``.
    readings : tuple of Reading
        The mixture of readings that alpha is (Newton); of none where alpha is 0.
    alpha : float64 (n,) or None
        The dual point, where it is held in memory (coordinate descent).
    rounding : float
        Bound on what rounding can have put into ``primal - dual``.
    multiplier : tuple of float
        ``mu``, one a group, where there is a coupling and ``intercept`` does not say it (a nu-SVC).
    apart : float or None
        ``||w - w(alpha)||``, the constant's coefficients included, where w is not w(alpha) and it
        is known. It may be off by ``sqrt(rounding)``: what rounding has moved w(alpha) by, whose
        square is in D.
    violation : float
        How far the KKT conditions are from holding (``dual_violation``), from solvers that are
        stopped by it; nan from others.
    held : bool
        Whether P is that of rows held to the side they were on, where they may no longer be: no
        more than P itself, which only a closing pass tells.
    sides : int8 (n,) or None
        Where alpha of each row is instead of where it would be read off: at an end or at 0
        (``AT_HI``, ...); ``FREE`` where it is read off. None: all are read off.
    """

    coef: FloatArray
    w: FloatArray
    intercept: float
    primal: float
    dual: float
    paired: bool
    readings: tuple[Reading, ...] = ()
    alpha: FloatArray | None = field(default=None, repr=False)
    rounding: float = 0.0
    multiplier: tuple[float, ...] = ()
    violation: float = np.nan
    apart: float | None = None
    held: bool = False
    sides: NDArray[np.int8] | None = field(default=None, repr=False)

    @property
    def gap(self) -> float:
        """P(w) - D(alpha)."""
        return self.primal - self.dual

    @property
    def relative_gap(self) -> float:
        """``gap / |P|``; 0 where both are 0."""
        return relative(self.gap, self.primal)

    def to_dict(self) -> dict[str, Any]:
        """As JSON, bit for bit; what has an entry a row in base64."""
        return {
            **vars(self),
            "coef": self.coef.tolist(),
            "w": self.w.tolist(),
            "readings": [reading.to_dict() for reading in self.readings],
            "alpha": _text(self.alpha),
            "sides": _text(self.sides),
        }

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Point:
        """The point that ``to_dict`` wrote."""
        alpha, sides = saved["alpha"], saved.get("sides")  # checkpoints of before have no sides
        made = {
            "coef": np.array(saved["coef"]),
            "w": np.array(saved["w"]),
            "readings": tuple(Reading.from_dict(reading) for reading in saved["readings"]),
            "multiplier": tuple(saved["multiplier"]),
            "alpha": None if alpha is None else np.frombuffer(base64.b64decode(alpha)),
            "sides": None if sides is None else np.frombuffer(base64.b64decode(sides), np.int8),
        }
        # (Checkpoints of before have scores.)
        known = {name: part for name, part in saved.items() if name != "scores"}
        return cls(**{**known, **made})


def _text(rows: NDArray[Any] | None) -> str | None:
    return None if rows is None else base64.b64encode(rows.tobytes()).decode()


@dataclass(frozen=True)
class Certificate:
    """What is proved about a point.

    Parameters
    ----------
    primal, dual, gap, relative_gap : float
        P(w), D(alpha), their difference, and that over ``|P|``: P is at most ``gap`` above the
        optimum P*. Of a one-class machine or a nu-SVC P* is ``-1/2 ||w*||^2``, below 0. Where P is
        negative too, ``|P| <= |P*|``; where it is not yet, the gap is larger than P. So a small
        relative gap is one relative to ``|P*|`` as well.
    rounding_bound, primal_rounding, dual_rounding : float
        How far rounding can have moved the gap, P and D from those of the published machine on
        the rows that were given. Models of before have the first alone.
    certified_in : str
        Precision of the columns: float32 or float64 (the sums are always float64). In float32 P
        and D are summed from the very same numbers, so weak duality holds between them; how far
        they are from those of the machine that is published is estimated from some rows' float64
        columns (six standard errors), and where that is no small part of the gap the columns become
        float64. An exact kernel machine has no columns: it is certified for the kernel itself, and
        this is the precision of the entries that most scores came from.
    rows : int
        Rows summed over: all of them.
    support : int
        Rows with alpha away from 0.
    intercept : float or None
        The offset of the certified machine where that is not the point's own.
    multiplier : tuple of float
        ``mu`` of P, one a group of the coupling; empty without a coupling.
    proved : bool
        Whether the gap bounds anything. Not where the kernel is not positive semidefinite: ``dual``
        is that of a stationary point then, and P and the gap are nan. Nor where any sum is no
        finite number.
    psd : bool
        Whether the kernel is positive semidefinite, as far as is known.
    violation : float or None
        Where it is not: by how much the KKT conditions are violated, over all rows
        (``m(alpha) - M(alpha)``, LIBSVM's measure), and ``rounding_bound`` is of that.
    evidence : object or None
        What a ledger of the rows is made of, from a closing pass that was to keep it; no part of
        the record.
    """

    primal: float
    dual: float
    gap: float
    relative_gap: float
    rounding_bound: float
    certified_in: str
    rows: int
    support: int
    intercept: float | None = None
    multiplier: tuple[float, ...] = ()
    primal_rounding: float | None = None
    dual_rounding: float | None = None
    proved: bool = True
    psd: bool = True
    violation: float | None = None
    evidence: Any = field(default=None, repr=False, compare=False)

    @property
    def reached(self) -> float:
        """What ``tol`` is compared with: see `reached`."""
        return self.relative_gap if self.violation is None else self.violation

    def proves(self, tol: float) -> bool:
        """Whether the relative gap is at most tol, whatever rounding has done to it.

        Where no gap means anything: whether the violation is.
        """
        if self.violation is not None:
            return self.violation <= tol
        return self.proved and proves(self.gap, self.rounding_bound, self.primal, tol)

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain JSON values; None stands for numbers that there are not."""
        fields = {**vars(self), "multiplier": list(self.multiplier)}
        del fields["evidence"]
        return {**fields, **{name: _known(fields[name]) for name in NUMBERS}}

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Certificate:
        """The certificate that ``to_dict`` wrote."""
        numbers = {name: np.nan if saved[name] is None else saved[name] for name in NUMBERS}
        return cls(**{**saved, **numbers, "multiplier": tuple(saved["multiplier"])})

    def checked(self) -> Certificate:
        """The certificate, which proves nothing if a number of it is none."""
        numbers = [getattr(self, name) for name in NUMBERS]
        return self if np.isfinite(numbers).all() else replace(self, proved=False)


def _known(number: float) -> float | None:
    return number if np.isfinite(number) else None


@dataclass(frozen=True)
class SumLayout:
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
    def of(cls, problem: Problem, data: Any) -> SumLayout:
        """The layout of a problem over these rows."""
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
    """The alpha of some rows as the terms of a layout.

    Parameters
    ----------
    frame : SumLayout
    dual : Dual
        Of these rows.
    alpha : float64 (rows,)
    """

    def __init__(self, frame: SumLayout, dual: Dual, alpha: FloatArray) -> None:
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
def add_rows(
    columns: Any, border: FloatArray, coef: FloatArray, term: NDArray[np.integer], v: FloatArray
) -> None:
    """``v[term_i] += coef_i [c_i, border_i]``, columns dense or CSR; a coefficient 0 is skipped."""
    for i in range(len(coef)):
        if coef[i] != 0.0:
            _add_row(columns, border, coef, i, v[term[i]])


@njit(cache=True, nogil=True)
def add_in_blocks(
    columns: Any,
    border: FloatArray,
    coef: FloatArray,
    term: NDArray[np.integer],
    rows: int,
    v: FloatArray,
) -> None:
    """`add_rows` that sums so many rows by themselves: a long sum rounds more than short ones."""
    block, used = np.zeros(v.shape), 0
    for i in range(len(coef)):
        if coef[i] != 0.0:
            _add_row(columns, border, coef, i, block[term[i]])
            used += 1
        if used == rows or (used and i == len(coef) - 1):
            v += block
            block[:], used = 0.0, 0


@njit(cache=True, nogil=True)
def _add_row(columns: Any, border: FloatArray, coef: FloatArray, i: int, total: FloatArray) -> None:
    m = len(total) - border.shape[1]
    row_axpy(columns, i, coef[i], total)
    for j in range(border.shape[1]):
        total[m + j] += coef[i] * border[i, j]
