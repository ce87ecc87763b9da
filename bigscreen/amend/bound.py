"""What edits can change at most, from the rows that they touch alone (maths.md 2.8).

The old w is a point of the edited problem, and the old alpha, less that of the rows that leave, is
one of its dual: P' and D' follow from P, D and the edited rows. Between them lies the new optimum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from bigscreen.amend.edits import NONE, Changes, outcomes, places_of
from bigscreen.data.layout import Features
from bigscreen.data.rows import Rows
from bigscreen.kernels.base import FLOAT64, Kernel, phi_norms
from bigscreen.kernels.operand import Operand
from bigscreen.model.ledger import OUT, Ledger
from bigscreen.model.model import Model
from bigscreen.numerics.rows import FloatArray
from bigscreen.problems.dual import Dual
from bigscreen.problems.point import EACH, relative
from bigscreen.problems.recipes import Problem
from bigscreen.train.problems import Binary

SUMMED = 2.0**-44
"""What float64 sums of so many terms as there are edited rows are off, as a part of their size."""

SWEEPS, MOST_SWEPT = 3, 1000
"""Sweeps of coordinate ascent over the rows that enter, and for how many of them it is tried."""

MENDERS = 512
"""Support rows at least that make up for what edits take from a coupling."""

GROWN = 1.0 + 1e-6
"""By so much can a computed feature be longer than its kernel entry says."""


@dataclass(frozen=True)
class Machine:
    """One score of a model: its w, the w of its dual point, both as kernel sums, and its proof.

    Parameters
    ----------
    kernel : Kernel
    side : Operand or None
        Landmarks or support rows; None of a linear machine.
    coef : float64 (m, 2)
        Of w and of w(alpha).
    offsets : float64 (2,)
        Likewise.
    constant : float
        What is appended to phi, 0 without it.
    apart : float
        ``||w - w(alpha)||``.
    proof : dict
        The certificate as JSON.
    ledger : Ledger
    exact : bool
        Whether w is w(alpha) and alpha the coefficients themselves.
    """

    kernel: Kernel
    side: Operand | None
    coef: FloatArray
    offsets: FloatArray
    constant: float
    apart: float
    proof: dict[str, Any]
    ledger: Ledger
    exact: bool

    @classmethod
    def of(cls, model: Model, k: int, binary: Binary) -> Machine:
        """The k-th score of a model."""
        assert model.ledger is not None
        book, exact = model.ledger[k], model.support is not None
        own, offset = model.coef[k], float(model.intercept[k])
        side = None if model.landmarks is None else Operand(model.landmarks, model.support)
        apart, other, at = 0.0, own, offset
        if not exact:
            assert book.dual is not None
            other, at, apart = book.dual.coef, book.dual.offset, book.dual.apart
        problem = binary.problem
        constant = problem.intercept_scaling if problem.intercept == "constant" else 0.0
        proof = model.provenance["certificates"][k]
        coefs, ends = np.stack([own, other], axis=1), np.array([offset, at])
        return cls(model.kernel, side, coefs, ends, constant, apart, proof, book, exact)

    @property
    def roundings(self) -> tuple[float, float, float]:
        """How far rounding can have moved the proof's gap, P and D; infinite if it is not said."""
        each = (self.proof.get(name) for name in EACH)
        own, other = (np.inf if number is None else float(number) for number in each)
        return float(self.proof["rounding_bound"]), own, other

    def scores(self, X: Features) -> tuple[FloatArray, float]:
        """Those of rows under w and w(alpha), (rows, 2), and how far any of them may be off."""
        if not X.shape[0]:
            return np.zeros((0, 2)), 0.0
        size = float(np.max(np.abs(self.coef).sum(axis=0)))
        if self.side is None:
            sums = np.asarray(X @ self.coef, dtype=np.float64)
            bound = float(np.sqrt(np.max(Operand(X).sqnorms)))
            return sums + self.offsets, 2.0**-50 * np.sqrt(X.shape[1]) * bound * size
        rows = Operand(X)
        found = self.kernel.dots(rows, self.side, self.coef, np.float64) + self.offsets
        return found, self._entry_slack(rows, self.side) * size

    def entries(self, rows: Operand, others: Operand) -> FloatArray:
        """Products of the features of rows (rows, others), the constant's included."""
        found: FloatArray = self.kernel.block(rows, others, dtype=np.float64)
        return found + self.constant**2

    def _entry_slack(self, rows: Operand, others: Operand) -> float:
        longest = max(float(np.max(rows.sqnorms)), float(np.max(others.sqnorms)))
        error = float(self.kernel.entry_error(longest, longest, rows.X.shape[1]))
        return FLOAT64 * error + 2.0**-50 * float(self.kernel.bound(longest, longest))

    def quadratic(self, rows: Operand, coef: FloatArray) -> tuple[float, float]:
        """At least ``||sum_i coef_i phi_i||^2``, and how far rounding can have moved it."""
        used = np.flatnonzero(coef)
        if not len(used):
            return 0.0, 0.0
        part, own = Operand(rows.X[used]), coef[used]
        found = float(own @ self.kernel.dots(part, part, own[:, None], np.float64)[:, 0])
        slack = self._entry_slack(part, part) * float(np.abs(own).sum()) ** 2
        if self.side is not None and not self.exact:
            # Nystrom features are projections of the kernel's own: no sum of them is longer.
            found *= GROWN**2
        return max(found, 0.0) + (self.constant * float(own.sum())) ** 2, slack

    def norms(self, X: Features) -> FloatArray:
        """Upper bounds of ``||phi||`` of rows (rows,), the constant's part included."""
        return np.asarray(
            np.sqrt((GROWN * phi_norms(self.kernel, Operand(X))) ** 2 + self.constant**2)
        )


@dataclass(frozen=True)
class Bound:
    """What is proved of the edited problem by the old machine.

    Parameters
    ----------
    machine : Machine
    primal, dual : float
        P' of the old w, and at most D' of the moved alpha, in the edited problem.
    rounding : float
        How far rounding can have moved their gap.
    primal_rounding, dual_rounding : float
        How far it can have moved each of them; infinite of models that do not state theirs.
    radius : float
        How far the new optimal w can be from the old one.
    way : (Operand, float64 (rows,))
        Rows, and ``sum coef_i phi_i``: what w(alpha) moves by.
    spread : float
        The new optimal w is so far, at most, from the middle of the old w and the moved w(alpha).
    alpha : float64 (rows,)
        Of the edited rows, from now on.
    mended : (int64 (k,), float64 (k,)) or None
        Where other rows are stored whose coefficients move to keep the coupling, and by how much.
    still : bool
        Whether the optimum is the very same: what left is proved to be out.
    """

    machine: Machine
    primal: float
    dual: float
    rounding: float
    primal_rounding: float
    dual_rounding: float
    radius: float
    way: tuple[Operand, FloatArray]
    spread: float
    alpha: FloatArray
    mended: tuple[NDArray[np.int64], FloatArray] | None = None
    still: bool = False

    @property
    def gap(self) -> float:
        """P' - D', not below 0."""
        return max(self.primal - self.dual, 0.0)

    @property
    def relative_gap(self) -> float:
        return relative(self.gap, self.primal)

    def intervals(self, X: Features) -> tuple[FloatArray, FloatArray, FloatArray]:
        """(score, low, high) of rows (rows,) each: the old one, and where the new one lies.

        Infinite where an unpenalised offset is not known to stay near.
        """
        scores, slack = self.machine.scores(X)
        old = scores[:, 0]
        if self.still and np.isfinite(self.spread):
            reach = self.radius * self.machine.norms(X) + slack
            return old, old - reach, old + reach
        if not np.isfinite(self.spread):
            return old, np.full(len(old), -np.inf), np.full(len(old), np.inf)
        # Landmarks' features are a part of the kernel's own, in whose space w* has nothing beside
        # them: what the way has there counts in spread, whose square is the kernel's.
        rows, coef = self.way
        moved = np.zeros(len(old))
        if len(coef):
            own = self.machine.kernel.dots(Operand(X), rows, coef[:, None], np.float64)[:, 0]
            moved = own + self.machine.constant**2 * float(coef.sum())
            slack += self.machine._entry_slack(Operand(X), rows) * float(np.abs(coef).sum())
        norms = self.machine.norms(X)
        middle = 0.5 * (scores[:, 0] + scores[:, 1] + moved)
        reach = self.spread * norms + slack
        # Both balls hold it: that around the middle, and that around the old w.
        wide = self.radius * norms + slack
        return old, np.maximum(middle - reach, old - wide), np.minimum(middle + reach, old + wide)

    def to_dict(self) -> dict[str, Any]:
        """JSON-able; what is not known is None."""
        numbers = {
            "primal": self.primal,
            "dual": self.dual,
            "gap": self.gap,
            "relative_gap": self.relative_gap,
            "rounding_bound": self.rounding,
            "primal_rounding": self.primal_rounding,
            "dual_rounding": self.dual_rounding,
            "radius": self.radius,
        }
        known = {k: v if np.isfinite(v) else None for k, v in numbers.items()}
        return {"label": self.machine.proof["label"], **known, "unchanged": self.still}


def bound(model: Model, k: int, binary: Binary, data: Rows, edited: Changes) -> Bound:
    """What edits change of the k-th score, at most; no row but the edited ones is looked at.

    With a coupling some support rows make up for what leaves; the offset itself has no bound then.
    """
    machine, problem = Machine.of(model, k, binary), binary.problem
    duals = [problem.dual(edited.codes[e], edited.weights[e]) for e in (0, 1)]
    alpha = _alpha(machine, model, k, edited, duals[0].hi)
    P, D = machine.proof["primal"], machine.proof["dual"]
    doubt, primal_doubt, dual_doubt = machine.roundings
    if _out(machine, edited, duals, alpha):
        nothing = Operand(edited.X[:0]), np.empty(0)
        r = machine.ledger.radius
        spread = np.inf if duals[0].coupling is not None else r
        as_it_was = P, D, doubt, primal_doubt, dual_doubt
        return Bound(machine, *as_it_was, r, nothing, spread, alpha, still=True)
    scores, slack = machine.scores(edited.X)
    u, u_alpha = scores.T  # with the offset: G = p - s (u + mu) where there is a multiplier
    lost, met = duals[0].losses(u), duals[1].losses(u)
    primal = P - float(np.sum(lost)) + float(np.sum(met))
    losses = float(np.sum(lost) + np.sum(met))
    primal_doubt += slack * float(np.sum(duals[0].reach + duals[1].reach))
    primal_doubt += SUMMED * (losses + abs(P) + abs(primal))
    new = np.where(duals[1].gradient(u) > 0, duals[1].hi, duals[1].lo)
    before = -duals[0].sign * alpha
    rows, coef, moved = Operand(edited.X), before + duals[1].sign * new, u_alpha
    coupled = duals[0].coupling is not None
    linear, places, step = -float(np.sum(duals[0].linear(alpha))), NONE, np.empty(0)
    if coupled:
        mended = _mended(machine, model, k, problem, data, edited, float(np.sum(coef)))
        if mended is None:
            unbounded = primal, -np.inf, doubt, primal_doubt, np.inf
            return Bound(machine, *unbounded, np.inf, (rows, coef), np.inf, new)
        places, sign, step = mended
        others = data.rows(places)
        own, more = machine.scores(others)
        linear += float(sign @ step)  # p is 1
        slack = max(slack, more)
        rows, coef = Operand(_below(edited.X, others)), np.concatenate([coef, step])
        moved = np.concatenate([u_alpha, own[:, 1]])
    else:
        new = _ascended(machine, rows, duals[1], before, u_alpha, new)
        coef = before + duals[1].sign * new
    linear += float(np.sum(duals[1].linear(new)))
    cross = float(coef @ moved)
    square, off = machine.quadratic(rows, coef)
    dual = D + linear - cross - 0.5 * square
    size = losses + float(np.abs(coef) @ (1.0 + np.abs(moved)))
    size += abs(primal) + abs(dual) + square + machine.apart**2
    reach = float(np.sum(duals[0].reach + duals[1].reach) + np.abs(coef).sum())
    # What rounding can have moved w(alpha) by: half of its square is in D.
    astray = 0.0 if machine.exact else float(np.sqrt(2.0 * doubt))
    rounding = doubt + slack * reach + 0.5 * off + SUMMED * size + astray * np.sqrt(square)
    dual_doubt += slack * float(np.abs(coef).sum()) + 0.5 * off + SUMMED * size
    dual_doubt += astray * float(np.sqrt(square))
    total = max(primal - dual, 0.0) + rounding
    towards = 0.0 if machine.exact else float(coef @ (u - u_alpha))
    apart = machine.apart**2 - 2.0 * towards + square
    known = 2.0 * slack * float(np.abs(coef).sum()) + off + SUMMED * size
    known += astray * (astray + 2.0 * machine.apart + 2.0 * float(np.sqrt(square)))
    # Of all distances between the two that there can be, the one that leaves most.
    spread = float(np.sqrt(max(total - 0.25 * max(apart - known, 0.0), 0.0))) + 0.5 * astray
    radius = 0.5 * float(np.sqrt(max(apart + known, 0.0))) + spread
    radius = min(float(np.sqrt(2.0 * total)), radius)
    return Bound(
        machine,
        primal,
        dual,
        rounding,
        primal_doubt,
        dual_doubt,
        radius,
        (rows, coef),
        np.inf if coupled else spread,
        new,
        (places, step) if coupled else None,
    )


def stays(found: Bound, data: Rows, edited: Changes) -> int:
    """Rows that the edits leave alone and whose prediction they provably cannot change, at least.

    As far as the ledger tells, at no look at them: the margin of a row is at least 1 as long as w
    is no farther than so many radii, and at least 0 for another ``1 / ||phi||``.
    """
    book = found.machine.ledger
    if not np.isfinite(found.spread):
        return 0
    kernel, most = found.machine.kernel, data.max_sqnorm
    longest = float(np.hypot(GROWN * np.sqrt(kernel.bound(most, most)), found.machine.constant))
    own = np.maximum(book.margins.astype(np.float64), 0.0) * book.radius + 1.0 / longest
    certain = (own > found.radius) & ~np.signbit(book.margins)
    return int(np.count_nonzero(certain & ~np.isin(book.numbers(), edited.numbers)))


def _alpha(machine: Machine, model: Model, k: int, edited: Changes, hi: FloatArray) -> FloatArray:
    """The old alpha of the edited rows (rows,); 0 of those that have no part in the problem."""
    alpha = np.zeros(len(edited))
    there = np.flatnonzero((edited.places >= 0) & (hi > 0))
    if machine.exact:
        assert model.support is not None
        order = np.argsort(model.support)
        at = np.searchsorted(model.support, edited.numbers, sorter=order)
        at = order[np.minimum(at, len(order) - 1)]
        own = (model.support[at] == edited.numbers) & (edited.places >= 0)
        alpha[own] = np.abs(model.coef[k][at[own]])
        return np.minimum(alpha, hi)
    book = machine.ledger
    places = np.searchsorted(book.numbers(), edited.numbers[there])
    values = np.where(np.signbit(book.margins[places]), hi[there], 0.0)
    assert book.dual is not None
    if len(book.dual.places):
        at = np.minimum(np.searchsorted(book.dual.places, places), len(book.dual.places) - 1)
        values = np.where(book.dual.places[at] == places, book.dual.alpha[at], values)
    alpha[there] = values
    return alpha


def _out(machine: Machine, edited: Changes, duals: list[Dual], alpha: FloatArray) -> bool:
    """Whether all that is edited are rows that leave, or weigh less, and are proved to be out.

    Their loss is 0 at w and at w*, and their alpha* is 0: P', w*' and P'* are those of before.
    """
    counts = (duals[0].hi > 0) | (duals[1].hi > 0)
    same = np.array_equal(duals[0].sign[counts], duals[1].sign[counts])
    if not same or np.any(edited.places[counts] < 0) or np.any(alpha):
        return False
    if np.any(duals[0].hi[counts] == 0):
        return False
    book = machine.ledger
    places = np.searchsorted(book.numbers(), edited.numbers[counts])
    return bool(np.all(book.status[places] == OUT))


def _ascended(
    machine: Machine,
    rows: Operand,
    dual: Dual,
    before: FloatArray,
    scores: FloatArray,
    alpha: FloatArray,
) -> FloatArray:
    """An alpha of the rows that enter (rows,) of a higher D': exact steps, a row at a time.

    ``scores``: under the old w(alpha); ``before``: the coefficients of what leaves.
    """
    live = np.flatnonzero(dual.hi > 0)
    if not 0 < len(live) <= MOST_SWEPT:
        return alpha
    alpha = alpha.copy()
    own, sign = Operand(rows.X[live]), dual.sign[live]
    square = machine.entries(own, own)
    gone = np.flatnonzero(before)
    u = scores[live] + square @ (sign * alpha[live])
    if len(gone):
        u += machine.entries(own, Operand(rows.X[gone])) @ before[gone]
    bend = np.maximum(np.diag(square), 1e-300)
    for _ in range(SWEEPS):
        for j, i in enumerate(live.tolist()):
            step = (dual.lin[i] - sign[j] * u[j]) / bend[j]
            step = min(max(alpha[i] + step, dual.lo[i]), dual.hi[i]) - alpha[i]
            if step:
                alpha[i] += step
                u += sign[j] * step * square[j]
    return alpha


def _mended(
    machine: Machine,
    model: Model,
    k: int,
    problem: Problem,
    data: Rows,
    edited: Changes,
    missing: float,
) -> tuple[NDArray[np.int64], FloatArray, FloatArray] | None:
    """Support rows that make up for what is missing: places, signs, steps of their coefficients.

    Rows on the kink cost least: those that have room on both sides come first. None where all of
    them together have not enough.
    """
    assert model.support is not None
    used = np.flatnonzero((model.coef[k] != 0) & ~np.isin(model.support, edited.numbers))
    used = used[np.argsort(model.support[used])]
    places, coef = places_of(data, model.support[used])[0], model.coef[k][used]
    codes, weights = outcomes(data, places)
    dual = problem.dual(codes, weights)
    alpha, way = np.abs(coef), -np.sign(missing)
    room = np.where(dual.sign * way > 0, dual.hi - alpha, alpha)
    both = np.minimum(alpha, dual.hi - alpha)
    order = np.argsort(-both, kind="stable")[: max(MENDERS, 2 * len(edited))]
    if float(np.sum(room[order])) < abs(missing):
        order = np.argsort(-room, kind="stable")
        if float(np.sum(room)) < abs(missing):
            return None
    # As evenly as their room lets them.
    left, step = abs(missing), np.zeros(len(order))
    for done, place in enumerate(np.argsort(room[order], kind="stable").tolist()):
        even = left / (len(order) - done)
        step[place] = min(even, max(room[order][place], 0.0))
        left -= step[place]
    return places[order], dual.sign[order], way * step


def _below(X: Features, others: Features) -> Features:
    if sparse.issparse(X):
        return sparse.csr_array(sparse.vstack([X, others]))
    return np.concatenate([X, others])
