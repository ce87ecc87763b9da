"""The ladder of solvers of one fit: when a solver is replaced, and by which one.

A fit begins with one solver. Every other line of the table is a rung: a solver that can take over
from the solvers in its second column. A rung that is not needed, or has no room in memory, is left
out.

=============== ========= ================================= =======================================
rung            after     takes over when                   goes on from, over, with; needs
=============== ========= ================================= =======================================
(Newton)                                                    the start, or subsamples; all rows,
                                                            float32 features, recomputed or stored
`FewRows`       Newton    the closing pass doubts the gap,  w; rows near their hinge point; float64
                          or 8 checks of gaps below 1e-3     features, recomputed. Needs landmarks,
                          were not enough. If tol < 1e-6:   a C-SVC without a free offset, memory
                          few rows are near their hinge     for these features.
                          point and the gap is below .04,
                          or it is below 2e-6.
`AllRows`       `FewRows` too many rows are near, or 8      w; all rows, features as Newton's
                          rounds were not enough
`Interior`      Newton,   it stalls, or 20 checks (more if  the start; all rows, float64 features
                `AllRows` they are cheap) were not enough   in memory. Needs solver auto, no squared
                                                            loss, 5e9 products a step at most.
(pairs, block)                                              the start; all rows, float32 entries of
                                                            the kernel, then float64
`ExactInterior` pairs,    it stalls, or has taken as long   the start; all rows, float64 features
                block     as an interior point would        in memory: raw ones of a linear kernel,
                                                            else a Cholesky factor of the kernel
                                                            matrix. Needs solver auto, a psd kernel,
                                                            5e9 products a step or 10,000 rows.
=============== ========= ================================= =======================================

Three changes of solver are not rungs, since more than the solver changes:

* A job whose fit was stopped by rounding (`ended_by_rounding`) begins anew over stored float32
  features, if the plan chose to recompute them and there is room, in memory or on disk, and time
  (`train.job.Job`). The factor of the landmarks then keeps more directions, so w changes.
* Pair steps on a path's kernel matrix (`path.gram`) that have taken as long as an interior point
  would (`interior.KernelFeatures`, shared with `ExactInterior`) try an interior point once, and go
  on from its alpha if its gap is smaller. A point of a path is not a fit.
* An edit that cannot be proved by steps over rows near their hinge point (`amend.refit`) is fitted
  over all rows, with features stored, from the w that these steps reached. That fit has a
  certificate of its own, which does not use the old machine's.

Pair steps and the block solver have no rung for float64 entries. When float32 rounding limits the
gap, each computes its entries again in float64 and keeps its alpha: pair steps in one process
(`smo.kernel_rows`), the block solver in all workers (`block.rounds`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from bigscreen.data.memory import MemoryDataset
from bigscreen.data.views import Recast
from bigscreen.errors import InputError
from bigscreen.features import nystrom
from bigscreen.features.design import Design
from bigscreen.kernels.operand import Operand
from bigscreen.kernels.standard import Linear
from bigscreen.numerics.cholesky import cholesky_features
from bigscreen.problems.point import Point, meets_tol
from bigscreen.problems.recipes import CSvc, Problem
from bigscreen.solvers.interior import (
    InteriorPoint,
    KernelFeatures,
    factor_terms,
    interior_bytes,
    interior_fits,
    interior_terms,
    pair_terms,
)
from bigscreen.solvers.newton.near import make_float64_solver, w_with_constant
from bigscreen.solvers.newton.solver import Newton
from bigscreen.solvers.newton.tuning import FLOAT32_TOL, NEARBY
from bigscreen.solvers.protocol import Check, Near, Run, Save, Solver, Verdict

ROUNDING_ENDINGS = ("stalled", "rounded")
"""Values of ``ended`` that mean that rounding stopped the solve, see `fit.monitor.Monitor`."""


@dataclass(frozen=True)
class LadderTuning:
    """When an interior point takes over from a slow solver.

    Costs are in "terms", the unit of `solvers.interior.interior_terms`, about a nanosecond each.

    Parameters
    ----------
    min_checks : int
        Replace the Newton solver by an interior point only after this many checks of its gap. (Fits
        that converge seldom need 15.)
    check_terms : float
        Estimated cost of a Newton step with its check of the gap, in terms (about a nanosecond
        each), for any number of rows and features.
    check_terms_per_feature : float
        Further estimated cost of a Newton step for each feature of each row, in terms (about a
        nanosecond each).
    cubes_per_term : float
        Factoring a Newton step's system of m features takes m^3 multiplications; this many of them
        are estimated to cost one term (about a nanosecond).
    max_cost_fraction : float
        Replace the Newton solver by an interior point once its steps have cost this fraction of
        what the interior point would.
    max_matrix_rows : int
        Try an interior point on the kernel matrix only with at most this many rows: a larger matrix
        takes too long to factor.
    entry_terms : float
        Estimated cost of the block solver, in addition to its pair steps, for each kernel entry
        that it computes, in terms (about a nanosecond each).
    round_terms : float
        Estimated cost of the block solver, in addition to its pair steps, for each round (exchange
        with the workers), in terms (about a nanosecond each).
    """

    min_checks: int = 20
    check_terms: float = 5e6
    check_terms_per_feature: float = 2.0
    cubes_per_term: float = 10.0
    max_cost_fraction: float = 0.25
    max_matrix_rows: int = 10_000
    entry_terms: float = 5.0
    round_terms: float = 2e6


LADDER = LadderTuning()


class CheckCall(NamedTuple):
    """One call of a solver's check: its point and stats, the verdict, and the calls so far.

    ``checks``: the calls so far by the Newton solver over all rows. ``late``: how many of these had
    a relative gap of at most ``NEARBY.late_gap``.
    """

    point: Point
    stats: dict[str, Any]
    verdict: Verdict
    checks: int
    late: int


class Rung:
    """A solver on a fit's ladder; the base class stands for the fit's first solver.

    Parameters
    ----------
    successors : sequence of Rung
        The rungs that may take over from this one.

    Attributes
    ----------
    name : str or None
        The solver's name in records; None for the fit's first solver.
    phase : str
        The phase that is reported when this rung takes over.
    after_stall : bool
        Whether it takes over if the solver before it stalls.
    saves : bool
        Whether it writes checkpoints of its own; otherwise a run resumes where it took over.
    awaited : bool
        Whether the solver before it may leave the last, most exact steps to it, see
        ``Verdict.ahead``.
    """

    name: ClassVar[str | None] = None
    phase: ClassVar[str] = "solve"
    after_stall: ClassVar[bool] = False
    saves: ClassVar[bool] = True
    awaited = False

    def __init__(self, successors: Sequence[Rung] = ()) -> None:
        """Make a rung; ``successors``: the rungs that may take over from it, in this order."""
        self.successors = successors

    def is_due(self, call: CheckCall) -> bool:
        """Whether this rung takes over after a check, even if the solver has not stalled."""
        return False

    def begin(self, run: Run, point: Point, call: CheckCall) -> tuple[Solver, Run] | None:
        """Return the solver that takes over, and its run.

        Returns None if this rung cannot run, so that its first successor takes over. ``run``: the
        fit's run; ``point``, ``call``: the last point of the solver before, and its last check.
        """
        raise NotImplementedError

    def to_fit_point(self, point: Point) -> Point:
        """Return a point of this rung's solver, converted to the fit's own features."""
        return point


class FewRows(Rung):
    """Newton steps over float64 features of the rows near their hinge point.

    Parameters
    ----------
    tol : float
        Requested relative gap of the fit.
    source : Design
        The kernel design of the features.
    room : int
        Bytes that float64 features may take.
    successors : sequence of Rung
    """

    name = "newton"
    phase = "solve, over float64 features of rows nearby"
    saves = False

    def __init__(self, tol: float, source: Design, room: int, successors: Sequence[Rung]) -> None:
        """Make the rung; it is ``awaited`` if the requested gap is below float32's precision."""
        super().__init__(successors)
        self.source, self.room, self.awaited = source, room, tol < FLOAT32_TOL

    def is_due(self, call: CheckCall) -> bool:
        """Whether float32 features seem to limit the gap; see the table of the module.

        Below float32's precision: once few rows are near their hinge point, or the gap is almost as
        small as float32 allows. Else: once the closing pass doubts the gap, or checks of small gaps
        were many.
        """
        if not self.awaited:
            return call.verdict.doubted or call.late > NEARBY.max_late_checks
        gap, held = call.point.relative_gap, call.point.held
        few = call.stats.get("reach", 0.0) > 0 and gap <= NEARBY.far_gap
        return few or (not held and gap <= 2 * FLOAT32_TOL)

    def begin(self, run: Run, point: Point, call: CheckCall) -> tuple[Solver, Run] | None:
        """Return the solver over rows near their hinge point; None if they need too much memory."""
        reach = call.stats.get("reach", 0.0)
        nearby = make_float64_solver(run, point, reach, self.source, self.room)
        return None if nearby is None else (nearby, run)


class AllRows(Rung):
    """Newton steps over all rows, from the w that `FewRows` has reached.

    ``newton``: the fit's own Newton solver.
    """

    name = "newton"
    after_stall = True

    def __init__(self, newton: Newton, successors: Sequence[Rung]) -> None:
        """Make the rung of the fit's own Newton solver."""
        super().__init__(successors)
        self.newton = newton

    def begin(self, run: Run, point: Point, call: CheckCall) -> tuple[Solver, Run]:
        """Return the fit's Newton solver, and the run that starts at the point's w."""
        near = Near(w_with_constant(run, point), point.dual)
        return self.newton, replace(run, near=near, start=None, resume=False)


class _InteriorRung(Rung):
    """An interior-point solve from the start, over explicit float64 features."""

    name = "interior"
    phase = "solve, by an interior point"
    after_stall = True

    def begin(self, run: Run, point: Point, call: CheckCall) -> tuple[Solver, Run]:
        """Return the interior-point solver, and the run over float64 features."""
        return InteriorPoint(), replace(run, design=self.over_features(run))

    def over_features(self, run: Run) -> Design:
        """Return the run's rows with float64 features for the interior point."""
        raise NotImplementedError


class Interior(_InteriorRung):
    """An interior point that replaces Newton steps which do not converge.

    Parameters
    ----------
    design : Design
        The features of the Newton solver.
    source : Design or None
        The kernel design of these features; None: rows are raw features.
    """

    def __init__(self, design: Design, source: Design | None) -> None:
        """Make the rung, which has no successors."""
        super().__init__()
        self.design, self.source = design, source

    def is_due(self, call: CheckCall) -> bool:
        """Whether the Newton solver has made more checks than `max_checks` allows."""
        return call.checks > max_checks(self.design.data.n_rows, self.design.rank)

    def over_features(self, run: Run) -> Design:
        """Return the run's raw features, or the features of landmarks, computed in float64."""
        if self.source is None:
            return run.design
        made = nystrom.store_features(self.source, run.fleet, None, dtype=np.float64).data
        return _with_features(run.design, made.X(0, made.n_rows))

    def to_fit_point(self, point: Point) -> Point:
        """Return the point with the coefficients of the Newton solver's columns."""
        return replace(point, coef=self.design.coef(point.w))


class ExactInterior(_InteriorRung):
    """An interior point that replaces steps on alpha once they have cost as much as it would.

    Inner products of its features are the kernel's entries, up to float64 rounding.

    Parameters
    ----------
    design : Design
        The rows and their kernel; the fit's own weights are not needed.
    """

    def __init__(self, design: Design) -> None:
        """Make the rung, which has no successors."""
        super().__init__()
        self.rows, self.features = design.data.n_rows, _kernel_features(design)

    def is_due(self, call: CheckCall) -> bool:
        """Whether the steps on alpha have cost as much so far as an interior point would.

        Keys of ``call.stats`` that it reads: ``steps`` of pair steps, or ``full_passes``,
        ``partial_passes``, ``kernel_entries`` and ``terms`` of the block solver.
        """
        n, stats = self.rows, call.stats
        if "steps" in stats:
            spent = pair_terms(stats["steps"], n)
        else:
            rounds = stats["full_passes"] + stats["partial_passes"]
            entries = stats["kernel_entries"] * LADDER.entry_terms
            spent = entries + rounds * LADDER.round_terms + stats["terms"]
        return self.features.should_use(spent, n)

    def over_features(self, run: Run) -> Design:
        """Return the rows with features whose inner products are the kernel's entries."""
        return _with_features(run.design, self.features.made)

    def to_fit_point(self, point: Point) -> Point:
        """Return the point without w and coefficients: an exact machine has only alpha."""
        nothing = np.empty(0)
        return replace(point, coef=nothing, w=nothing)


def rungs_after_newton(
    newton: Newton,
    problem: Problem,
    design: Design,
    source: Design | None,
    columns: int,
    room: int,
    interior: bool,
) -> tuple[Rung, ...]:
    """Return the solvers that may take over from the Newton solver (rungs), if they fit in memory.

    Parameters
    ----------
    newton : Newton
    problem : Problem
    design : Design
        Raw features, or features of landmarks, recomputed or stored.
    source : Design or None
        The kernel design behind features of landmarks.
    columns : int
        Number of features that an interior point must have room for.
    room : int
        Bytes that rungs may take.
    interior : bool
        Whether an interior point may take over: the user did not request Newton, and the loss is
        not squared.
    """
    last: tuple[Rung, ...] = ()
    if interior and interior_fits(design.data.n_rows, columns, room):
        last = (Interior(design, source),)
    if source is None or type(problem) is not CSvc or problem.intercept == "true":
        return last
    return *last, FewRows(newton.tol, source, room, [AllRows(newton, last)])


def rungs_after_pairs(design: Design, room: float) -> tuple[Rung, ...]:
    """Return the solvers that may take over from pair steps or the block solver (rungs).

    ``room``: bytes of memory that they must fit into.
    """
    n, d = design.data.n_rows, design.data.n_features
    if _are_features(design):
        fits = interior_fits(n, d, room)
    else:
        fits = n <= LADDER.max_matrix_rows and interior_bytes(n, n) <= room
    return (ExactInterior(design),) if fits and design.definite else ()


def max_checks(n: int, m: int) -> float:
    """Return how many checks the Newton solver may make before an interior point takes over.

    The data set has n rows of m features.
    """
    features = LADDER.check_terms_per_feature * n * m
    cost = LADDER.check_terms + features + m**3 / LADDER.cubes_per_term
    return max(LADDER.min_checks, LADDER.max_cost_fraction * interior_terms(n, m) / cost)


def next_rung(rung: Rung, call: CheckCall) -> Rung | None:
    """Return the rung that takes over from ``rung`` after this check; None: ``rung`` goes on."""
    for one in rung.successors:
        if (one.after_stall and call.stats["stalled"]) or one.is_due(call):
            return one
    return None


def ended_by_rounding(ended: str | None, certificate: dict[str, Any], tol: float) -> bool:
    """Whether rounding kept a solve from the requested gap: stored features may then reach it.

    ``ended``: why it ended (see `Monitor`); ``certificate``: its record; ``tol``: requested gap.
    """
    return ended in ROUNDING_ENDINGS and not meets_tol(certificate, tol)


class LadderCheck:
    """The check that all solvers of a fit call: it calls the fit's own check and picks rungs.

    A checkpoint holds, in addition to the state of the fit's check and of the solver: the classes
    of all rungs that have taken over (``way``), the passes of the rungs before, and the number of
    checks so far. After a resume the solver repeats the check at which it was written.

    Parameters
    ----------
    check : Check
        The fit's own check.
    run : Run
    successors : sequence of Rung
        The successors of the fit's first solver.
    report : callable
        Receives the event dict of each change of rung.

    Attributes
    ----------
    rung : Rung
        The rung whose solver runs now.
    way : list of str
        Class names of the rungs that have taken over, in order.
    before, passes : (int, int)
        Full and partial passes over the data: of the rungs before the present one, and of all.
    checks, late : int
        See `CheckCall`.
    """

    def __init__(
        self,
        check: Check,
        run: Run,
        successors: Sequence[Rung],
        report: Callable[[dict[str, Any]], None],
    ) -> None:
        """Begin with the fit's first solver, before any pass or check."""
        self.check, self.run, self.report = check, run, report
        self.rung = Rung(successors)
        self.way: list[str] = []
        self.before = self.passes = 0, 0
        self.checks = self.late = 0
        self._next_rung: Rung | None = None
        self._checks = 0
        """The number of checks that the present rung has made."""

    @property
    def target(self) -> float:
        """Relative gap at which the fit's check makes a closing pass."""
        return self.check.target

    def expired(self) -> bool:
        """Whether the fit's time budget is used up."""
        return self.check.expired()

    def pause(self, save: Save | None = None) -> None:
        """Stop if Ctrl-C was pressed; ``save`` then writes a checkpoint with the rung's record."""
        self.check.pause(None if save is None else self._checkpoint_writer(save))

    def restored(self, meta: dict[str, Any]) -> None:
        """Receive the ``meta`` of a checkpoint, and enter the rung that had written it."""
        known = len(self.way)  # the present solver may be the first, or one that has taken over
        for name in meta.get("way", ())[known:]:
            found = [one for one in self.rung.successors if type(one).__name__ == name]
            if not found:
                raise InputError(
                    f"the checkpoint was written after {name} took over, which this run has no use "
                    "for; start anew without resume"
                )
            self._enter(found[0])
        full, partial = meta.get("before") or (0, 0)  # null in checkpoints of older versions
        self.before = self.passes = full, partial
        self.checks, self.late = meta.get("looks", 0), meta.get("late", 0)
        self.check.restored(meta)

    def __call__(self, point: Point, stats: dict[str, Any], save: Save) -> Verdict | None:
        """Call the fit's check; returns None if the fit ends here or another rung takes over.

        `next_solver` then tells which of both. ``point``, ``stats``, ``save``: the present solver's
        point, counts, and function that writes its checkpoints.
        """
        point, then = self.rung.to_fit_point(point), self.rung.successors
        saved = self._checkpoint_writer(save)
        self._checks += 1
        if "decrement" in stats:  # only the Newton solver over all rows reports it
            self.checks += 1
            self.late += point.relative_gap <= NEARBY.late_gap
        stats = {**stats, **self._passes_so_far(stats)}
        goes_on = any(one.after_stall for one in then)
        # A stall does not end the fit if another solver takes over.
        verdict = self.check(point, {**stats, "stalled": False} if goes_on else stats, saved)
        if verdict is None:
            return None
        self._last_call = CheckCall(point, stats, verdict, self.checks, self.late)
        self._next_rung = next_rung(self.rung, self._last_call)
        if self._next_rung is None:
            return replace(verdict, ahead=any(one.awaited for one in then))
        self._left_at = saved, {"target": self.target, "doubted": verdict.doubted}
        return None

    def next_solver(self, point: Point) -> tuple[Solver, Run] | None:
        """Return the solver that takes over at this point, and its run; None: the fit has ended."""
        while self._next_rung is not None:
            self._enter(self._next_rung)
            self.before, self._checks = self.passes, 0
            self.report({"event": "phase", "phase": self.rung.phase})
            turn = self.rung.begin(self.run, point, self._last_call)
            self._next_rung = self.rung.successors[0] if turn is None else None
            if turn is not None:
                return turn
        return None

    def _enter(self, rung: Rung) -> None:
        """Make a rung the present one, and record its class name in ``way``."""
        self.rung = rung
        self.way.append(type(rung).__name__)

    def _passes_so_far(self, stats: dict[str, Any]) -> dict[str, int]:
        """Return the ``full_passes`` and ``partial_passes`` of all rungs that ``stats`` counts.

        (`newton.many.PresolvedPoint` does not: its passes serve many problems.)
        """
        names = "full_passes", "partial_passes"
        full, partial = (n + stats.get(name, 0) for name, n in zip(names, self.before, strict=True))
        self.passes = full, partial
        return {name: n for name, n in zip(names, self.passes, strict=True) if name in stats}

    def _checkpoint_writer(self, save: Save) -> Save:
        """Return a function that writes a checkpoint from which the present rung can resume.

        ``save``: the solver's own function, which is used if the rung writes checkpoints itself.
        """
        if self.rung.saves:
            kept = {
                "way": list(self.way),
                "before": list(self.before),
                "looks": self.checks,
                "late": self.late,
            }
            return lambda folder, meta: save(folder, {**meta, **kept})
        return self._save_where_left

    def _save_where_left(self, folder: Path, meta: dict[str, Any]) -> None:
        """Write a checkpoint of the point at which the present rung took over.

        ``meta``: the record of the fit's check; passes made since then are left out of its history.
        """
        saved, then = self._left_at
        saved(folder, {**meta, **then, "history": meta["history"][: -self._checks]})


def _are_features(design: Design) -> bool:
    """Whether the raw rows can serve as features: a linear kernel, at most n columns."""
    return isinstance(design.kernel, Linear) and design.data.n_features <= design.data.n_rows


def _kernel_features(design: Design) -> KernelFeatures:
    """Return features of an exact machine's rows whose inner products are the kernel's entries.

    These are the raw rows of a linear kernel, else a Cholesky factor of the kernel matrix. They are
    computed only if they are used.
    """
    data, kernel, n = design.data, design.kernel, design.data.n_rows
    assert kernel is not None

    def rows() -> Any:
        """Return the raw rows as a dense array (n, d)."""
        X: Any = data.X(0, n)
        return X.toarray() if data.is_sparse else X

    def factor() -> Any:
        """Return the rows of a float64 Cholesky factor of the kernel matrix, (n, n) at most."""
        X: Any = data.X(0, n)
        return cholesky_features(kernel.block(X, Operand(X, np.arange(n)), dtype=np.float64))

    if _are_features(design):
        return KernelFeatures(rows, interior_terms(0, 0))
    return KernelFeatures(factor, factor_terms(n))


def _with_features(design: Design, features: Any) -> Design:
    """Return the design of the same rows with other ``features`` (n, r).

    (Labels and weights come from ``design``: its rows may be a fold's, or another fit's.)
    """
    data, n = design.data, design.data.n_rows
    rows = MemoryDataset(features, np.full(n, -1), data.layout.labels)
    return Design(Recast(rows, data.y(0, n), data.weights(0, n)))
