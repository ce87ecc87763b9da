"""Bounds on the change of a machine by edits, from the edited rows alone (maths.md 2.8).

The old w is a primal point of the edited problem, and the old alpha without the removed rows is a
dual point. Their P' and D' follow from P, D and the edited rows; the new optimum lies between them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from bigscreen.amend.edits import NO_ROWS, Changes, labels_and_weights, places_of
from bigscreen.data.layout import Features
from bigscreen.data.rows import Rows
from bigscreen.kernels.base import FLOAT64_ERROR_FACTOR, Kernel, phi_norms
from bigscreen.kernels.operand import Operand
from bigscreen.model.ledger import OUT, Ledger
from bigscreen.model.model import Model
from bigscreen.numerics.rows import FloatArray
from bigscreen.problems.dual import Dual
from bigscreen.problems.point import ROUNDING_FIELDS, relative_gap
from bigscreen.problems.recipes import Problem
from bigscreen.train.problems import Binary

SUM_ERROR = 2.0**-44
"""Bound on the rounding error of a float64 sum over edited rows, as a fraction of the sum of its
terms' absolute values."""

FEATURE_LENGTH_FACTOR = 1.0 + 1e-6
"""Upper bound on ``||phi(x)||`` of a computed feature vector, as a multiple of its exact length
``sqrt(k(x, x))``."""


@dataclass(frozen=True)
class Machine:
    """One score of a model: its w and w(alpha) as kernel sums, and its certificate.

    Parameters
    ----------
    kernel : Kernel
    side : Operand or None
        Landmarks or support rows; None for a linear machine.
    coef : float64 (m, 2)
        Coefficients of w and of w(alpha).
    offsets : float64 (2,)
        Offsets of w and of w(alpha).
    constant : float
        The constant appended to phi; 0 if there is none.
    apart : float
        ``||w - w(alpha)||``.
    proof : dict
        The certificate as JSON.
    ledger : Ledger
        What the certificate proves of each row.
    exact : bool
        Whether w is w(alpha), with coefficients ``s alpha`` (an exact kernel machine).
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
        """Take the k-th score of a model that has a ledger (what is proved of each row).

        ``binary``: the problem that the score solves.
        """
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
        """The rounding bounds of the certificate's gap, P and D; infinite if it has none."""
        each = (self.proof.get(name) for name in ROUNDING_FIELDS)
        own, other = (np.inf if number is None else float(number) for number in each)
        return float(self.proof["rounding_bound"]), own, other

    def scores(self, X: Features) -> tuple[FloatArray, float]:
        """Scores of rows X under w and w(alpha), (rows, 2), and a bound on any error of them."""
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
        """Inner products of the features of rows (rows, others), the constant included."""
        found: FloatArray = self.kernel.block(rows, others, dtype=np.float64)
        return found + self.constant**2

    def _entry_slack(self, rows: Operand, others: Operand) -> float:
        """Bound on the error of any float64 kernel entry between these rows."""
        longest = max(float(np.max(rows.sqnorms)), float(np.max(others.sqnorms)))
        error = float(self.kernel.entry_error(longest, longest, rows.X.shape[1]))
        return FLOAT64_ERROR_FACTOR * error + 2.0**-50 * float(self.kernel.bound(longest, longest))

    def quadratic(self, rows: Operand, coef: FloatArray) -> tuple[float, float]:
        """An upper bound on ``||sum_i coef_i phi_i||^2``, and a bound on its rounding error.

        ``coef`` (rows,): a coefficient for each of the rows.
        """
        used = np.flatnonzero(coef)
        if not len(used):
            return 0.0, 0.0
        part, own = Operand(rows.X[used]), coef[used]
        found = float(own @ self.kernel.dots(part, part, own[:, None], np.float64)[:, 0])
        slack = self._entry_slack(part, part) * float(np.abs(own).sum()) ** 2
        if self.side is not None and not self.exact:
            # Nystrom features are projections of the kernel's features: no sum of them is longer.
            found *= FEATURE_LENGTH_FACTOR**2
        return max(found, 0.0) + (self.constant * float(own.sum())) ** 2, slack

    def norms(self, X: Features) -> FloatArray:
        """Upper bounds of ``||phi||`` of rows X (rows,), the appended constant included."""
        return np.asarray(
            np.sqrt(
                (FEATURE_LENGTH_FACTOR * phi_norms(self.kernel, Operand(X))) ** 2 + self.constant**2
            )
        )


@dataclass(frozen=True)
class Bound:
    """What the old machine proves about the edited problem, for one score.

    Parameters
    ----------
    machine : Machine
        The old machine.
    primal, dual : float
        In the edited problem: P' of the old w, and a lower bound on D' of the changed alpha.
    rounding : float
        Bound on the rounding error of their gap.
    primal_rounding, dual_rounding : float
        Bounds on the rounding errors of P' and D'; infinite if the model's certificate has none.
    radius : float
        Bound on the distance from the old w to the new optimal w.
    change : (Operand, float64 (rows,))
        The change of w(alpha): rows, and their coefficients in ``sum coef_i phi_i``.
    spread : float
        Bound on the distance from the middle of the old w and the changed w(alpha) to the new
        optimal w.
    alpha : float64 (rows,)
        The new alpha of the edited rows.
    coupling_changes : (int64 (k,), float64 (k,)) or None
        Places of other rows whose coefficients change to keep the coupling, and the changes.
    unchanged : bool
        Whether the optimum is unchanged, as the removed rows are proved to have no influence.
    """

    machine: Machine
    primal: float
    dual: float
    rounding: float
    primal_rounding: float
    dual_rounding: float
    radius: float
    change: tuple[Operand, FloatArray]
    spread: float
    alpha: FloatArray
    coupling_changes: tuple[NDArray[np.int64], FloatArray] | None = None
    unchanged: bool = False

    @property
    def gap(self) -> float:
        """The gap P' - D' in the edited problem, not below 0."""
        return max(self.primal - self.dual, 0.0)

    @property
    def relative_gap(self) -> float:
        """The gap in the edited problem divided by P' (see `problems.point.relative_gap`)."""
        return relative_gap(self.gap, self.primal)

    def intervals(self, X: Features) -> tuple[FloatArray, FloatArray, FloatArray]:
        """(score, low, high) of rows, (rows,) each: the old score, and bounds on the new score.

        The bounds are infinite with an unpenalised offset, whose change is not bounded.
        """
        scores, slack = self.machine.scores(X)
        old = scores[:, 0]
        if self.unchanged and np.isfinite(self.spread):
            reach = self.radius * self.machine.norms(X) + slack
            return old, old - reach, old + reach
        if not np.isfinite(self.spread):
            return old, np.full(len(old), -np.inf), np.full(len(old), np.inf)
        # Features of landmarks are projections of the kernel's features, and w* lies in their
        # space. The part of the change outside that space counts in spread, which is computed
        # from kernel entries.
        rows, coef = self.change
        moved = np.zeros(len(old))
        if len(coef):
            own = self.machine.kernel.dots(Operand(X), rows, coef[:, None], np.float64)[:, 0]
            moved = own + self.machine.constant**2 * float(coef.sum())
            slack += self.machine._entry_slack(Operand(X), rows) * float(np.abs(coef).sum())
        norms = self.machine.norms(X)
        middle = 0.5 * (scores[:, 0] + scores[:, 1] + moved)
        reach = self.spread * norms + slack
        # Two balls hold the new w: one around the middle, the other around the old w.
        wide = self.radius * norms + slack
        return old, np.maximum(middle - reach, old - wide), np.minimum(middle + reach, old + wide)

    def to_dict(self) -> dict[str, Any]:
        """The bound as JSON values; None stands for an infinite number."""
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
        return {"label": self.machine.proof["label"], **known, "unchanged": self.unchanged}


def bound(model: Model, k: int, binary: Binary, data: Rows, edited: Changes) -> Bound:
    """Bound how far edits can change the k-th score of a model, from the edited rows alone.

    ``binary``: the problem of that score; ``data``: the rows before the edits; ``edited``: the rows
    that change. With a coupling (an equality constraint on alpha), some support rows change to keep
    the coupling's total; the offset has no bound then.
    """
    machine, problem = Machine.of(model, k, binary), binary.problem
    duals = [problem.dual(edited.codes[e], edited.weights[e]) for e in (0, 1)]
    alpha = _old_alpha(machine, model, k, edited, duals[0].hi)
    P, D = machine.proof["primal"], machine.proof["dual"]
    doubt, primal_doubt, dual_doubt = machine.roundings
    if _have_no_influence(machine, edited, duals, alpha):
        nothing = Operand(edited.X[:0]), np.empty(0)
        r = machine.ledger.radius
        spread = np.inf if duals[0].coupling is not None else r
        as_it_was = P, D, doubt, primal_doubt, dual_doubt
        return Bound(machine, *as_it_was, r, nothing, spread, alpha, unchanged=True)
    scores, slack = machine.scores(edited.X)
    u, u_alpha = scores.T  # with the offset: G = p - s (u + mu) where there is a multiplier
    lost, met = duals[0].losses(u), duals[1].losses(u)
    primal = P - float(np.sum(lost)) + float(np.sum(met))
    losses = float(np.sum(lost) + np.sum(met))
    primal_doubt += slack * float(np.sum(duals[0].reach + duals[1].reach))
    primal_doubt += SUM_ERROR * (losses + abs(P) + abs(primal))
    new = np.where(duals[1].gradient(u) > 0, duals[1].hi, duals[1].lo)
    before = -duals[0].sign * alpha
    rows, coef, moved = Operand(edited.X), before + duals[1].sign * new, u_alpha
    coupled = duals[0].coupling is not None
    linear, places, step = -float(np.sum(duals[0].linear(alpha))), NO_ROWS, np.empty(0)
    if coupled:
        mended = _keep_coupling(machine, model, k, problem, data, edited, float(np.sum(coef)))
        if mended is None:
            unbounded = primal, -np.inf, doubt, primal_doubt, np.inf
            return Bound(machine, *unbounded, np.inf, (rows, coef), np.inf, new)
        places, sign, step = mended
        others = data.rows(places)
        own, more = machine.scores(others)
        linear += float(sign @ step)  # p is 1
        slack = max(slack, more)
        rows, coef = Operand(_stack(edited.X, others)), np.concatenate([coef, step])
        moved = np.concatenate([u_alpha, own[:, 1]])
    else:
        new = _ascend(machine, rows, duals[1], before, u_alpha, new)
        coef = before + duals[1].sign * new
    linear += float(np.sum(duals[1].linear(new)))
    cross = float(coef @ moved)
    square, off = machine.quadratic(rows, coef)
    dual = D + linear - cross - 0.5 * square
    size = losses + float(np.abs(coef) @ (1.0 + np.abs(moved)))
    size += abs(primal) + abs(dual) + square + machine.apart**2
    reach = float(np.sum(duals[0].reach + duals[1].reach) + np.abs(coef).sum())
    # How far rounding can have moved w(alpha): half of its square is in D.
    w_error = 0.0 if machine.exact else float(np.sqrt(2.0 * doubt))
    rounding = doubt + slack * reach + 0.5 * off + SUM_ERROR * size + w_error * np.sqrt(square)
    dual_doubt += slack * float(np.abs(coef).sum()) + 0.5 * off + SUM_ERROR * size
    dual_doubt += w_error * float(np.sqrt(square))
    total = max(primal - dual, 0.0) + rounding
    towards = 0.0 if machine.exact else float(coef @ (u - u_alpha))
    apart = machine.apart**2 - 2.0 * towards + square
    known = 2.0 * slack * float(np.abs(coef).sum()) + off + SUM_ERROR * size
    known += w_error * (w_error + 2.0 * machine.apart + 2.0 * float(np.sqrt(square)))
    # (The distance within its error bounds that gives the largest radius.)
    spread = float(np.sqrt(max(total - 0.25 * max(apart - known, 0.0), 0.0))) + 0.5 * w_error
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


def count_unaffected(found: Bound, data: Rows, edited: Changes) -> int:
    """Count rows that are not edited and whose prediction provably cannot change: a lower bound.

    ``found``: the bound of one score; ``data``: the rows before the edits. The count follows
    from the ledger, without reading the rows: a ledger's margin is the distance, in radii, that w
    can move before the row's margin falls below 1; it falls below 0 only after a further distance
    of ``1 / ||phi||``.
    """
    book = found.machine.ledger
    if not np.isfinite(found.spread):
        return 0
    kernel, most = found.machine.kernel, data.max_sqnorm
    longest = float(
        np.hypot(FEATURE_LENGTH_FACTOR * np.sqrt(kernel.bound(most, most)), found.machine.constant)
    )
    own = np.maximum(book.margins.astype(np.float64), 0.0) * book.radius + 1.0 / longest
    certain = (own > found.radius) & ~np.signbit(book.margins)
    return int(np.count_nonzero(certain & ~np.isin(book.numbers(), edited.numbers)))


def _old_alpha(
    machine: Machine, model: Model, k: int, edited: Changes, hi: FloatArray
) -> FloatArray:
    """The old alpha of the edited rows (rows,); 0 for rows that are not part of the problem.

    ``machine``: the k-th score of the model; ``hi``: the upper ends of the rows' old boxes.
    """
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


def _have_no_influence(
    machine: Machine, edited: Changes, duals: list[Dual], alpha: FloatArray
) -> bool:
    """Whether the edits only remove or reweight rows that are proved to have no influence.

    The losses of these rows are 0 at w and at w*, and their alpha* is 0: P(w), w* and P* do not
    change. ``duals``: the edited rows' duals before and after the edits; ``alpha``: their old
    alpha.
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


def _ascend(
    machine: Machine,
    rows: Operand,
    dual: Dual,
    before: FloatArray,
    scores: FloatArray,
    alpha: FloatArray,
    sweeps: int = 3,
    max_rows: int = 1000,
) -> FloatArray:
    """Raise D' by coordinate ascent over the alpha of edited rows; returns the new alpha (rows,).

    ``dual``: the rows' dual after the edits; ``alpha``: a feasible start. ``scores``: the rows'
    scores under the old w(alpha); ``before``: the coefficients that subtract their old alpha from
    it. If more than ``max_rows`` rows can move, alpha is returned as it is.
    """
    live = np.flatnonzero(dual.hi > 0)
    if not 0 < len(live) <= max_rows:
        return alpha
    alpha = alpha.copy()
    own, sign = Operand(rows.X[live]), dual.sign[live]
    square = machine.entries(own, own)
    gone = np.flatnonzero(before)
    u = scores[live] + square @ (sign * alpha[live])
    if len(gone):
        u += machine.entries(own, Operand(rows.X[gone])) @ before[gone]
    bend = np.maximum(np.diag(square), 1e-300)
    for _ in range(sweeps):
        for j, i in enumerate(live.tolist()):
            step = (dual.lin[i] - sign[j] * u[j]) / bend[j]
            step = min(max(alpha[i] + step, dual.lo[i]), dual.hi[i]) - alpha[i]
            if step:
                alpha[i] += step
                u += sign[j] * step * square[j]
    return alpha


def _keep_coupling(
    machine: Machine,
    model: Model,
    k: int,
    problem: Problem,
    data: Rows,
    edited: Changes,
    missing: float,
    min_rows: int = 512,
) -> tuple[NDArray[np.int64], FloatArray, FloatArray] | None:
    """Choose support rows whose coefficients change by ``-missing`` in sum, to keep the coupling.

    ``missing``: by how much the edits change the sum of all coefficients, which the coupling fixes.
    At least ``min_rows`` rows share the change, if there are as many support rows. Free rows are at
    their hinge point and cost least: rows with room on both sides come first. Returns the rows'
    places, their signs and the changes of their coefficients, or None if all support rows together
    have too little room.
    """
    assert model.support is not None
    used = np.flatnonzero((model.coef[k] != 0) & ~np.isin(model.support, edited.numbers))
    used = used[np.argsort(model.support[used])]
    places, coef = places_of(data, model.support[used])[0], model.coef[k][used]
    codes, weights = labels_and_weights(data, places)
    dual = problem.dual(codes, weights)
    alpha, way = np.abs(coef), -np.sign(missing)
    room = np.where(dual.sign * way > 0, dual.hi - alpha, alpha)
    both = np.minimum(alpha, dual.hi - alpha)
    order = np.argsort(-both, kind="stable")[: max(min_rows, 2 * len(edited))]
    if float(np.sum(room[order])) < abs(missing):
        order = np.argsort(-room, kind="stable")
        if float(np.sum(room)) < abs(missing):
            return None
    # Share the change among the rows as evenly as their room allows.
    left, step = abs(missing), np.zeros(len(order))
    for done, place in enumerate(np.argsort(room[order], kind="stable").tolist()):
        even = left / (len(order) - done)
        step[place] = min(even, max(room[order][place], 0.0))
        left -= step[place]
    return places[order], dual.sign[order], way * step


def _stack(X: Features, others: Features) -> Features:
    """Stack X on top of ``others``, row-wise: a CSR array if X is sparse, else an array."""
    if sparse.issparse(X):
        return sparse.csr_array(sparse.vstack([X, others]))
    return np.concatenate([X, others])
