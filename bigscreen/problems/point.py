"""Solver iterates (`Point`), and certificates of their optimality gap (`Certificate`)."""

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

REQUIRED_FIELDS = ("primal", "dual", "gap", "relative_gap", "rounding_bound")
"""Fields of a certificate that must be finite: otherwise the certificate proves nothing."""

ROUNDING_FIELDS = ("primal_rounding", "dual_rounding")
"""Fields of a certificate that bound the rounding errors of P and of D."""


def relative_gap(gap: float, primal: float) -> float:
    """The relative gap ``gap / |P|``; if P is 0, it is 1 for a positive gap and else 0."""
    return gap / abs(primal) if primal != 0 else float(gap > 0)


def is_rounded_to_zero(primal: float, rounding: float) -> bool:
    """Whether P is 0 as far as rounding, a bound on its error, tells; no gap is relative to it.

    An SVR whose machine fits all targets within its tube by w = 0 and the offset has P = 0.
    """
    return bool(abs(primal) <= rounding)


def gap_or_violation(record: Mapping[str, Any]) -> float:
    """The number of a certificate's JSON record that is compared with the tolerance ``tol``.

    It is the relative gap, or the violation of the KKT conditions if a gap bounds nothing, or nan
    if the record has neither: ``gap_or_violation(record) <= tol`` is False then. ``record`` may
    also be that of a path's point.
    """
    found = record.get("violation")
    found = record["relative_gap"] if found is None else found
    return np.nan if found is None else float(found)


def format_gap(gap: float, spec: str = ".1e") -> str:
    """Format a gap; it is 0 if rounding made it negative, as P is never below D but by rounding."""
    return "0" if gap <= 0 else f"{gap:{spec}}"


def meets_tol(record: Mapping[str, Any], tol: float) -> bool:
    """Whether a certificate's JSON record proves the relative gap ``tol``, rounding included.

    If a gap bounds nothing: whether the violation is at most ``tol``. ``record`` may also be that
    of a path's point.
    """
    if record.get("violation") is not None:
        return gap_or_violation(record) <= tol
    if record["gap"] is None:
        return False
    found = record["gap"], _rounding(record), record["primal"]
    proved = proves(*found, tol, record["support"])
    return bool(gap_or_violation(record) <= tol and proved)


def is_solved(record: Mapping[str, Any], tol: float) -> bool:
    """Whether a record's gap has come down to `sufficient_gap`: solving on would prove no more.

    ``record``: of a certificate, or of a path's point. If a gap bounds nothing (the kernel is not
    positive semidefinite): whether the violation of the KKT conditions is at most ``tol``.
    """
    if record.get("violation") is not None or record["gap"] is None:
        return meets_tol(record, tol)
    return bool(record["gap"] <= sufficient_gap(_rounding(record), record["primal"], tol))


def _rounding(record: Mapping[str, Any]) -> float:
    """The bound on the gap's rounding error in a record of a certificate, or of a path's point."""
    return float(record["rounding_bound" if "rounding_bound" in record else "rounding"])


def largest_gaps(records: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """The largest relative gap and KKT violation of several records; None if a record lacks it."""
    found: dict[str, float | None] = {}
    for name in ("relative_gap", "violation"):
        numbers = [record[name] for record in records if record.get(name) is not None]
        found[name] = max(numbers) if len(numbers) == len(records) else None
    return found


def proves(gap: float, rounding: float, primal: float, tol: float, support: int) -> bool:
    """Whether the relative gap is at most tol even if rounding has hidden ``rounding`` of it.

    ``primal``: P; ``support``: the number of support vectors. Without support vectors w is 0, and P
    = 0 is exact: 0 / 0 counts as 0. With some, the terms of P may have cancelled out, and its sign
    and size are unknown.
    """
    if support == 0 and primal == 0 and gap <= 0:
        return True
    return gap + rounding <= tol * abs(primal)


def sufficient_gap(rounding: float, primal: float, tol: float) -> float:
    """The largest gap that proves the relative gap tol: ``tol |P|`` less the rounding.

    If rounding leaves no room for such a gap, it is ``tol |P|``: a smaller gap would prove no more.
    """
    asked = tol * abs(primal)
    return asked - rounding if rounding < 0.9 * asked else asked


def read_off(dual: Dual, gradient: FloatArray, h: float) -> FloatArray:
    """Return the alpha (rows,) that the smoothed loss implies: its slope at the gradients G.

    ``gradient``: G (rows,); ``h``: the half-width of the smoothing. A squared loss is smooth
    already: h is not used.
    """
    if dual.curve is not None:
        return dual.best(gradient)
    if dual.tube is None:
        return dual.lo + (dual.hi - dual.lo) * np.clip((gradient + h) / (2 * h), 0.0, 1.0)
    more = dual.hi * np.clip((gradient - dual.tube + h) / (2 * h), 0.0, 1.0)
    return more + dual.lo * np.clip((h - gradient - dual.tube) / (2 * h), 0.0, 1.0)


@dataclass(frozen=True)
class Reading:
    """A dual point given by a w: the alpha that the smoothed loss implies at the scores of w.

    ``alpha = lo + (hi - lo) clip((G + h) / (2 h), 0, 1)``, with ``h = smoothing`` and G the
    gradient at the scores ``columns . coef + intercept`` and at ``multiplier`` (one number a
    group; empty if it is part of the scores already, or without a coupling). ``weight`` is the
    weight of this alpha in a mixture of several.
    """

    coef: FloatArray
    intercept: float
    smoothing: float
    weight: float = 1.0
    multiplier: tuple[float, ...] = ()

    def alpha(self, dual: Dual, scores: FloatArray) -> FloatArray:
        """Return the dual point (rows,) of rows with these scores (the intercept included)."""
        return read_off(dual, dual.gradient(scores, np.array(self.multiplier)), self.smoothing)

    def to_dict(self) -> dict[str, Any]:
        """The reading as JSON values, without rounding."""
        return {**vars(self), "coef": self.coef.tolist()}

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Reading:
        """The reading that ``to_dict`` wrote."""
        made = {"coef": np.array(saved["coef"]), "multiplier": tuple(saved["multiplier"])}
        return cls(**{**saved, **made})


@dataclass(frozen=True)
class Point:
    """An iterate of a solver: everything that a certificate or a checkpoint needs.

    Parameters
    ----------
    coef : float64 (m,)
        Coefficients of the design's columns: the score of a row is ``columns . coef + intercept``.
    w : float64 (r,)
        The weight vector in the space of features (``coef = T w``).
    intercept : float
        The offset (0 without one).
    primal, dual : float
        P(w) and D(alpha), summed in float64.
    paired : bool
        Whether ``w = w(alpha)`` for the alpha behind ``dual``.
    readings : tuple of Reading
        If alpha is a mixture of readings (Newton), these readings; empty if alpha is 0.
    alpha : float64 (n,) or None
        The dual point, if it is held in memory (coordinate descent).
    rounding : float
        Bound on the rounding error of ``primal - dual``.
    multiplier : tuple of float
        ``mu``, one a group, if there is a coupling and ``intercept`` does not say it (a nu-SVC).
    apart : float or None
        ``||w - w(alpha)||``, the constant's coefficients included, if w is not w(alpha) and the
        distance is known. Its error can be ``sqrt(rounding)``: the distance by which rounding has
        moved w(alpha), whose square is in D.
    violation : float
        The violation of the KKT conditions, from solvers that stop by it; nan from others.
    held : bool
        Whether far rows were held at their side without reading them: then ``primal`` is a lower
        bound of P, and only a closing pass computes P.
    sides : int8 (n,) or None
        For each row the value that alpha has instead of its reading: an end of its box or 0
        (``AT_HI``, ...); ``FREE`` if alpha is read off the scores. None: all are read off.
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
        """``gap / |P|``; 0 if both are 0."""
        return relative_gap(self.gap, self.primal)

    def to_dict(self) -> dict[str, Any]:
        """The point as JSON values, without rounding; arrays over the rows are in base64."""
        return {
            **vars(self),
            "coef": self.coef.tolist(),
            "w": self.w.tolist(),
            "readings": [reading.to_dict() for reading in self.readings],
            "alpha": _to_base64(self.alpha),
            "sides": _to_base64(self.sides),
        }

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Point:
        """The point that ``to_dict`` wrote."""
        alpha, sides = saved["alpha"], saved.get("sides")  # (older checkpoints have none)
        made = {
            "coef": np.array(saved["coef"]),
            "w": np.array(saved["w"]),
            "readings": tuple(Reading.from_dict(reading) for reading in saved["readings"]),
            "multiplier": tuple(saved["multiplier"]),
            "alpha": None if alpha is None else np.frombuffer(base64.b64decode(alpha)),
            "sides": None if sides is None else np.frombuffer(base64.b64decode(sides), np.int8),
        }
        # (Older checkpoints have scores, which are not used.)
        known = {name: part for name, part in saved.items() if name != "scores"}
        return cls(**{**known, **made})


def _to_base64(rows: NDArray[Any] | None) -> str | None:
    """The bytes of an array over the rows as base64 text; None for None."""
    return None if rows is None else base64.b64encode(rows.tobytes()).decode()


@dataclass(frozen=True)
class Certificate:
    """A proof of how far a machine is from the optimum: P, D and their gap over all rows.

    Parameters
    ----------
    primal, dual, gap, relative_gap : float
        P(w), D(alpha), ``gap = P - D`` and ``gap / |P|``: P is at most ``gap`` above the optimum
        P*. For a one-class machine or a nu-SVC P* is ``-1/2 ||w*||^2``, below 0. If P is negative
        too, ``|P| <= |P*|``; if it is not yet, the gap is larger than P. So a small relative gap
        is also small relative to ``|P*|``.
    rounding_bound, primal_rounding, dual_rounding : float
        How far the gap, P and D can be, by rounding, from the exact values of the published
        machine on the given rows. Models that an older bigscreen wrote have the first alone.
    certified_in : str
        Precision of the columns: float32 or float64 (the sums are always float64). In float32 P
        and D are summed from the very same numbers, so weak duality holds between them. Their
        distance from P and D of the published machine is estimated from float64 columns of a
        sample of rows (six standard errors); if that is no small part of the gap, float64 columns
        are used for all rows. An exact kernel machine has no columns: it is certified for the
        kernel itself, and this is the precision of the entries that most scores came from.
    rows : int
        Number of rows summed over: all of them.
    support : int
        Number of rows with a nonzero alpha.
    intercept : float or None
        The offset of the certified machine if it differs from the point's own.
    multiplier : tuple of float
        ``mu`` of P, one a group of the coupling; empty without a coupling.
    proved : bool
        Whether the gap bounds anything. It is False if the kernel is not positive semidefinite
        (``dual`` is then the value of a stationary point, and P and the gap are nan), or if any
        sum is not finite.
    psd : bool
        Whether the kernel is positive semidefinite, as far as is known.
    violation : float or None
        If the kernel is not: the violation of the KKT conditions over all rows
        (``m(alpha) - M(alpha)``, LIBSVM's measure); ``rounding_bound`` then bounds its error.
    evidence : object or None
        The scores from which a ledger (what is proved of each row) is made, if the closing pass was
        to keep them; not part of the JSON record.
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
    def gap_or_violation(self) -> float:
        """The relative gap, or the KKT violation if a gap bounds nothing."""
        return self.relative_gap if self.violation is None else self.violation

    def proves(self, tol: float) -> bool:
        """Whether the relative gap is at most tol, rounding included.

        If a gap bounds nothing: whether the violation of the KKT conditions is at most tol.
        """
        if self.violation is not None:
            return self.violation <= tol
        return self.proved and proves(self.gap, self.rounding_bound, self.primal, tol, self.support)

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain JSON values; None stands for a number that is not finite."""
        fields = {**vars(self), "multiplier": list(self.multiplier)}
        del fields["evidence"]
        return {**fields, **{name: _or_none(fields[name]) for name in REQUIRED_FIELDS}}

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Certificate:
        """The certificate that ``to_dict`` wrote."""
        numbers = {name: np.nan if saved[name] is None else saved[name] for name in REQUIRED_FIELDS}
        return cls(**{**saved, **numbers, "multiplier": tuple(saved["multiplier"])})

    def checked(self) -> Certificate:
        """The certificate, with ``proved=False`` if any of `REQUIRED_FIELDS` is not finite."""
        numbers = [getattr(self, name) for name in REQUIRED_FIELDS]
        return self if np.isfinite(numbers).all() else replace(self, proved=False)


def _or_none(number: float) -> float | None:
    """The number, or None if it is not finite, which JSON cannot hold."""
    return number if np.isfinite(number) else None


@dataclass(frozen=True)
class SumLayout:
    """The layout of sums over rows: border entries next to the columns, and separate terms.

    A row enters as ``[c_i, border_i]``: its columns and its *border*. The machine has one *extra*
    for each border entry, the constant's coefficient and the multipliers, so that
    ``G = p - s (c . coef + border . extras)``. Sums over alpha are kept in several *terms*, which
    can be scaled separately to make alpha feasible.

    Parameters
    ----------
    constant : float
        The constant appended to phi (1 unless the problem scales it); 0 if there is none.
    total : float64 (groups,)
        The coupling's right-hand sides; empty without a coupling.
    curved : bool
        Whether losses are squared: then D has a quadratic part in each row's alpha.
    """

    constant: float
    total: FloatArray
    curved: bool = False

    @classmethod
    def of(cls, problem: Problem, data: Any) -> SumLayout:
        """Make the layout of a problem's sums over rows; of ``data`` no row is read."""
        dual = problem.dual(data.y(0, 0), data.weights(0, 0))
        total = np.empty(0) if dual.coupling is None else np.atleast_1d(dual.total)
        curved = dual.curve is not None
        constant = problem.intercept_scaling if problem.intercept == "constant" else 0.0
        return cls(constant, total.astype(np.float64), curved)

    @property
    def groups(self) -> int:
        """How many groups the coupling has; 0 without a coupling."""
        return len(self.total)

    @property
    def has_breakpoints(self) -> bool:
        """Whether P is piecewise linear in a multiplier, with a breakpoint for each row."""
        return self.groups > 0 and not self.curved

    @property
    def extras(self) -> int:
        """How many numbers a machine has next to w: the constant's coefficient and multipliers."""
        return self.first + self.groups

    @property
    def first(self) -> int:
        """The index of the first multiplier among a machine's extras (its numbers next to w)."""
        return int(self.constant != 0)

    def largest(self, bound: float) -> float:
        """An upper bound on all entries of ``[c, border]``; ``bound``: on the entries of c."""
        return max(bound, self.constant, 1.0)

    @property
    def buckets(self) -> int:
        """The number of terms (separate sums over alpha) that can be scaled down for the coupling.

        Two a group (rows with ``t alpha >= 0``, and the rest); one without a coupling.
        """
        return 2 * self.groups or 1

    @property
    def lifts(self) -> int:
        """The number of terms that can be scaled up from 0 to raise alpha for the coupling.

        One a group if any total is not 0: only then can a sum be too small.
        """
        return self.groups if np.any(self.total) else 0

    @property
    def terms(self) -> int:
        """The number of terms (separate sums over alpha): those to scale down, then the others."""
        return self.buckets + self.lifts

    def value(self, scales: FloatArray, sums: FloatArray) -> float:
        """``D + 1/2 ||w||^2`` if every term is multiplied by its scale.

        ``scales`` (terms,): see `scales`; ``sums``: `Terms.sums`, added up over rows.
        """
        linear = float(scales @ sums[: self.terms])
        return linear - float(scales**2 @ sums[self.terms :]) if self.curved else linear

    def mu(self, extras: FloatArray) -> Mu:
        """Return the multiplier from a machine's extras: a float or (groups,); 0 if not coupled.

        ``extras``: the numbers next to w, which are the constant's coefficient and the multipliers.
        """
        mu = extras[self.first :]
        return mu if self.groups > 1 else float(np.sum(mu))

    def border(self, dual: Dual) -> FloatArray:
        """Make the entries of rows next to their columns: float64 (rows, extras).

        They multiply the machine's extras: the appended constant, then ``s t`` for the row's group.
        """
        out = np.zeros((len(dual), self.extras))
        if self.constant:
            out[:, 0] = self.constant
        if dual.coupling is not None:
            for g in range(self.groups):
                own = 1.0 if dual.group is None else dual.group == g
                out[:, self.first + g] = dual.sign * dual.coupling * own
        return out

    def bucket(self, dual: Dual, alpha: FloatArray) -> NDArray[np.int8]:
        """Return the index of each row's term, by group and sign of ``t alpha``: int8 (rows,)."""
        if dual.coupling is None:
            return np.zeros(len(dual), np.int8)
        down = (dual.coupling * alpha < 0).astype(np.int8)
        return down if dual.group is None else 2 * dual.group + down

    def rise(self, dual: Dual, alpha: FloatArray) -> FloatArray:
        """Return the change of each alpha that makes ``t alpha`` largest within its box (rows,)."""
        assert dual.coupling is not None
        t = dual.coupling
        return t * np.maximum(t * dual.lo, t * dual.hi) - alpha

    def scales(self, v: FloatArray) -> FloatArray | None:
        """The factor for each term that makes alpha satisfy the coupling.

        If ``sum t alpha`` is too large, the terms with ``t alpha > 0`` shrink. If it is too small,
        the terms below 0 shrink; if that is not enough, rows in the smoothing band are raised,
        where it costs least.

        Parameters
        ----------
        v : float64 (terms, columns + extras)
            ``sum s alpha [c, border]`` of the buckets, then ``sum s rise [c, border]`` over the
            rows in the smoothing band.

        Returns
        -------
        float64 (terms,), or None if the rows in the band have too little room.
        """
        out = np.concatenate([np.ones(self.buckets), np.zeros(self.lifts)])
        for g, total in enumerate(self.total):
            at = v.shape[1] - self.groups + g
            # No term has the other sign, but rounding can leave one if rows are subtracted again.
            more, less = max(v[2 * g, at], 0.0), max(-v[2 * g + 1, at], 0.0)
            if abs(more - less - total) <= 1e-13 * total:
                continue  # the difference is the rounding of the sums
            if more - less >= total:
                # (If nothing is above 0 there is no excess: both sides are 0.)
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
    """The alpha of rows, split into the terms of a `SumLayout`.

    Parameters
    ----------
    frame : SumLayout
    dual : Dual
        Of these rows.
    alpha : float64 (rows,)

    Attributes
    ----------
    parts : list of (float64 (rows,), int (rows,))
        ``s alpha`` of each row and the index of its term; then, if terms can be raised,
        ``s times the rise`` of rows in the smoothing band (0 for others) and the index of its term.
    """

    def __init__(self, frame: SumLayout, dual: Dual, alpha: FloatArray) -> None:
        """Split alpha into terms, and sum what D has of it."""
        self.frame = frame
        bucket = frame.bucket(dual, alpha)
        self.parts = [(dual.sign * alpha, bucket)]
        lin = [by_term(bucket, dual.linear(alpha), frame.buckets)]
        if frame.lifts:
            free = (alpha > dual.lo) & (alpha < dual.hi)
            rise = np.where(free, frame.rise(dual, alpha), 0.0)
            group = np.zeros(len(dual), np.int8) if dual.group is None else dual.group
            self.parts.append((dual.sign * rise, frame.buckets + group))
            lin.append(by_term(group, dual.linear(rise), frame.lifts))
        if frame.curved:
            lin.append(by_term(bucket, dual.bend(alpha), frame.terms))
        self.sums = np.concatenate(lin)
        """D's linear part by term (terms,), then its quadratic part if losses are squared."""

    def add(self, rows: slice, columns: Any, border: FloatArray, v: FloatArray) -> None:
        """Add ``sum s alpha [c, border]`` of the rows ``rows`` to the terms v (terms, m + extras).

        Rises of rows in the smoothing band are added as well. ``columns``, ``border``: of these
        rows.
        """
        for coef, term in self.parts:
            add_rows(columns, border, coef[rows], term[rows], v)


def by_term(term: NDArray[Any], values: FloatArray, terms: int) -> FloatArray:
    """Sum values (rows,) by the index ``term`` (rows,) of each row's term: float64 (terms,)."""
    # (For an empty input np.bincount returns integers.)
    return np.bincount(term, values, terms).astype(np.float64)


@njit(cache=True, nogil=True)
def add_rows(
    columns: Any, border: FloatArray, coef: FloatArray, term: NDArray[np.integer], v: FloatArray
) -> None:
    """Add ``coef_i [c_i, border_i]`` of every row i to ``v[term_i]``; columns: dense or CSR."""
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
    """Add ``coef_i [c_i, border_i]`` to ``v[term_i]``, summed first in blocks of ``rows`` rows.

    A sum of short sums rounds less than a long one. Columns are dense or CSR.
    """
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
    """Add ``coef_i [c_i, border_i]`` of row i to ``total`` (m + extras,)."""
    m = len(total) - border.shape[1]
    row_axpy(columns, i, coef[i], total)
    for j in range(border.shape[1]):
        total[m + j] += coef[i] * border[i, j]
