"""The ladder of one fit: when its solver is left, and which solver goes on.

A fit begins with one solver. Every other line of the table is a rung: it takes over from those in
its second column, never from others. A rung that is not needed, or has no room, is left out.

=============== ========= ================================= =======================================
rung            after     takes over when                   goes on from, over, with; needs
=============== ========= ================================= =======================================
(Newton)                                                    the start, or subsamples; all rows,
                                                            float32 features, recomputed or stored
`FewRows`       Newton    the closing pass doubts the gap,  w; rows near their hinge point; float64
                          or 8 looks at gaps below 1e-3     features, recomputed. Needs landmarks,
                          were not enough. If tol < 1e-6:   a C-SVC without a free offset, memory
                          few rows are near their hinge     for these features.
                          point and the gap is below .04,
                          or it is below 2e-6.
`AllRows`       `FewRows` too many rows are near, or 8      w; all rows, features as Newton's
                          rounds were not enough
`Interior`      Newton,   it stalls, or 20 looks (more if   the start; all rows, float64 features
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

Three turns are outside of a fit, since more than a solver changes:

* A job whose fit ended by rounding (`rounding_ended`) begins anew over stored float32 features, if
  the plan chose to recompute them and there is room, in memory or on disk, and time
  (`train.job.Job`). The factor of the landmarks keeps more directions then, so w is another.
* Pair steps on a path's kernel matrix (`path.gram`) that have taken as long as an interior point
  would (`interior.KernelFeatures`, shared with `ExactInterior`) try one, once, and go on from its
  alpha if that is closer. A point of a path is no fit.
* An edit that steps over rows near their hinge point do not prove (`amend.refit`) is fitted over
  all rows, with features stored, from the w that these steps came to. That fit has a certificate
  of its own, which does not follow from the old machine's.

Pairs and the block solver have no rung for float64 entries. When float32 rounding tells, either
computes the entries it uses again and keeps its alpha: pairs hold rows of the kernel in one process
(`smo.kernel_rows`), the block solver columns in all workers (`block.rounds`), so that nothing but
the idea is shared; no other solver takes over.
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
from bigscreen.problems.point import Point, met
from bigscreen.problems.recipes import CSvc, Problem
from bigscreen.solvers.interior import (
    InteriorPoint,
    KernelFeatures,
    factor_terms,
    interior_bytes,
    interior_fits,
    pair_terms,
    terms,
)
from bigscreen.solvers.newton.near import machine_at, near_sides
from bigscreen.solvers.newton.solver import Newton
from bigscreen.solvers.newton.tuning import FLOAT32_TOL, NEARBY
from bigscreen.solvers.protocol import Check, Near, Run, Save, Solver, Verdict

ROUNDING = ("stalled", "rounded")
"""How a solve ends that rounding lets come no closer, see `fit.monitor.Monitor`."""


@dataclass(frozen=True)
class LadderTuning:
    """When a solver has taken so long that an interior point goes on.

    "Terms" are the unit of `solvers.interior.terms`, about a nanosecond each.

    Parameters
    ----------
    min_looks : int
        Leave a Newton after this many looks at the earliest (fits that end seldom come to 15).
    look_terms, look_terms_per_feature, cubes_per_term : float
        Terms of a look: a constant, those for each feature of a row, and how many products of the
        step's cube take one term.
    waited_part : float
        Part of an interior point's terms that looks may take before it goes on.
    max_matrix_rows : int
        Factor the kernel matrix of at most this many rows: nobody would wait for more.
    entry_terms, round_terms : float
        Terms of the block solver besides its steps, for each kernel entry and for each round.
    """

    min_looks: int = 20
    look_terms: float = 5e6
    look_terms_per_feature: float = 2.0
    cubes_per_term: float = 10.0
    waited_part: float = 0.25
    max_matrix_rows: int = 10_000
    entry_terms: float = 5.0
    round_terms: float = 2e6


LADDER = LadderTuning()


class Look(NamedTuple):
    """One call of a solver's check: its point and stats, the verdict, and the calls so far.

    ``looks``: calls by Newton's steps over all rows. ``late``: how many of these had a relative gap
    of at most ``NEARBY.late_gap``.
    """

    point: Point
    stats: dict[str, Any]
    verdict: Verdict
    looks: int
    late: int


class Rung:
    """A solver that may go on with a problem; this one is the fit's first.

    Parameters
    ----------
    then : sequence of Rung
        The rungs that may take over from this one.

    Attributes
    ----------
    name : str or None
        The solver, as records have it; None: the fit's own.
    phase : str
        What is reported when it begins.
    after_stall : bool
        Whether it takes over where a solver stalls.
    saves : bool
        Whether it has checkpoints of its own; without them a run resumes where it took over.
    awaited : bool
        Whether the solver before leaves the closer looks to it, see ``Verdict.ahead``.
    """

    name: ClassVar[str | None] = None
    phase: ClassVar[str] = "solve"
    after_stall: ClassVar[bool] = False
    saves: ClassVar[bool] = True
    awaited = False

    def __init__(self, then: Sequence[Rung] = ()) -> None:
        self.then = then

    def is_due(self, look: Look) -> bool:
        """Whether it takes over now, stalled or not."""
        return False

    def begin(self, run: Run, point: Point, look: Look) -> tuple[Solver, Run] | None:
        """What goes on from the last point and look, on what; None: its first successor does."""
        raise NotImplementedError

    def own(self, point: Point) -> Point:
        """A point of its solver as one of the fit's problem."""
        return point


class FewRows(Rung):
    """Newton's steps over float64 features of the rows near their hinge point.

    Parameters
    ----------
    tol : float
        Relative gap of the fit.
    source : Design
        The kernel design of the features.
    room : int
        Bytes that float64 features may take.
    """

    name = "newton"
    phase = "solve, over float64 features of rows nearby"
    saves = False

    def __init__(self, tol: float, source: Design, room: int, then: Sequence[Rung]) -> None:
        super().__init__(then)
        self.source, self.room, self.awaited = source, room, tol < FLOAT32_TOL

    def is_due(self, look: Look) -> bool:
        """See ``Rung``."""
        if not self.awaited:
            return look.verdict.doubted or look.late > NEARBY.max_late_checks
        gap, held = look.point.relative_gap, look.point.held
        few = look.stats.get("reach", 0.0) > 0 and gap <= NEARBY.far_gap
        return few or (not held and gap <= 2 * FLOAT32_TOL)

    def begin(self, run: Run, point: Point, look: Look) -> tuple[Solver, Run] | None:
        """See ``Rung``."""
        reach = look.stats.get("reach", 0.0)
        nearby = near_sides(run, point, reach, self.source, self.room)
        return None if nearby is None else (nearby, run)


class AllRows(Rung):
    """Newton's steps over all rows, from the w at hand."""

    name = "newton"
    after_stall = True

    def __init__(self, newton: Newton, then: Sequence[Rung]) -> None:
        super().__init__(then)
        self.newton = newton

    def begin(self, run: Run, point: Point, look: Look) -> tuple[Solver, Run]:
        """See ``Rung``."""
        near = Near(machine_at(run, point), point.dual)
        return self.newton, replace(run, near=near, start=None, resume=False)


class _ByInterior(Rung):
    """An interior point that solves a problem anew, over explicit float64 features."""

    name = "interior"
    phase = "solve, by an interior point"
    after_stall = True

    def begin(self, run: Run, point: Point, look: Look) -> tuple[Solver, Run]:
        """See ``Rung``."""
        return InteriorPoint(), replace(run, design=self.over_features(run))

    def over_features(self, run: Run) -> Design:
        """The run's rows with the features that the interior point takes."""
        raise NotImplementedError


class Interior(_ByInterior):
    """An interior point in place of a Newton's steps that do not end.

    Parameters
    ----------
    design : Design
        The features that the Newton steps over.
    source : Design or None
        The kernel design of these features; None: rows are raw features.
    """

    def __init__(self, design: Design, source: Design | None) -> None:
        super().__init__()
        self.design, self.source = design, source

    def is_due(self, look: Look) -> bool:
        """See ``Rung``."""
        return look.looks > max_looks(self.design.data.n_rows, self.design.rank)

    def over_features(self, run: Run) -> Design:
        """The run's raw features, or the features of landmarks made in float64."""
        if self.source is None:
            return run.design
        made = nystrom.stored_features(self.source, run.fleet, None, dtype=np.float64).data
        return _with_features(run.design, made.X(0, made.n_rows))

    def own(self, point: Point) -> Point:
        """See ``Rung``."""
        return replace(point, coef=self.design.coef(point.w))


class ExactInterior(_ByInterior):
    """An interior point in place of steps on alpha that take longer than it would.

    Its features have the kernel's entries as their products, to the last digit of float64.

    Parameters
    ----------
    design : Design
        The rows and their kernel, whatever weights the fit gives them.
    """

    def __init__(self, design: Design) -> None:
        super().__init__()
        self.rows, self.features = design.data.n_rows, _kernel_features(design)

    def is_due(self, look: Look) -> bool:
        """See ``Rung``."""
        n, stats = self.rows, look.stats
        if "steps" in stats:
            spent = pair_terms(stats["steps"], n)
        else:
            rounds = stats["full_passes"] + stats["partial_passes"]
            entries = stats["kernel_entries"] * LADDER.entry_terms
            spent = entries + rounds * LADDER.round_terms + stats["terms"]
        return self.features.are_worth(spent, n)

    def over_features(self, run: Run) -> Design:
        """The rows with the features of the kernel."""
        return _with_features(run.design, self.features.made)

    def own(self, point: Point) -> Point:
        """See ``Rung``."""
        nothing = np.empty(0)
        return replace(point, coef=nothing, w=nothing)


def of_features(
    newton: Newton,
    problem: Problem,
    design: Design,
    source: Design | None,
    columns: int,
    room: int,
    interior: bool,
) -> tuple[Rung, ...]:
    """The rungs after a Newton over features, as far as they suit the problem and fit in memory.

    Parameters
    ----------
    newton : Newton
    problem : Problem
    design : Design
        Raw features, or features of landmarks, recomputed or stored.
    source : Design or None
        The kernel design of landmarks' features.
    columns : int
        Features that an interior point is to have room for.
    room : int
        Bytes that rungs may take.
    interior : bool
        Whether it may be an interior point: nobody asked for Newton, and the loss is not squared.
    """
    last: tuple[Rung, ...] = ()
    if interior and interior_fits(design.data.n_rows, columns, room):
        last = (Interior(design, source),)
    if source is None or type(problem) is not CSvc or problem.intercept == "true":
        return last
    return *last, FewRows(newton.tol, source, room, [AllRows(newton, last)])


def of_exact(design: Design, room: float) -> tuple[Rung, ...]:
    """The rungs after steps on alpha that suit the kernel and fit in ``room`` bytes."""
    n, d = design.data.n_rows, design.data.n_features
    if _are_features(design):
        fits = interior_fits(n, d, room)
    else:
        fits = n <= LADDER.max_matrix_rows and interior_bytes(n, n) <= room
    return (ExactInterior(design),) if fits and design.definite else ()


def max_looks(n: int, m: int) -> float:
    """Looks of a Newton at n rows of m features after which an interior point goes on."""
    look = LADDER.look_terms + LADDER.look_terms_per_feature * n * m + m**3 / LADDER.cubes_per_term
    return max(LADDER.min_looks, LADDER.waited_part * terms(n, m) / look)


def next_rung(rung: Rung, look: Look) -> Rung | None:
    """Which of its successors takes over from a rung after this look, if any does."""
    for one in rung.then:
        if (one.after_stall and look.stats["stalled"]) or one.is_due(look):
            return one
    return None


def rounding_ended(ended: str | None, certificate: dict[str, Any], tol: float) -> bool:
    """Whether rounding kept a solve from its gap, so that stored features may come closer."""
    return ended in ROUNDING and not met(certificate, tol)


class Climb:
    """The check of all solvers of a fit: it asks the fit's own, and picks the next rung.

    A checkpoint says, besides what the fit's check and the solver keep, on which rung it was
    written (``way``: the classes of all rungs that have taken over), the passes of the rungs before
    and the looks so far. The solver repeats the look that it was written after.

    Parameters
    ----------
    check : Check
        The fit's.
    run : Run
    then : sequence of Rung
        The successors of the fit's solver.
    report : callable
    """

    def __init__(
        self,
        check: Check,
        run: Run,
        then: Sequence[Rung],
        report: Callable[[dict[str, Any]], None],
    ) -> None:
        self.check, self.run, self.report = check, run, report
        self.rung = Rung(then)
        self.way: list[str] = []
        self.before = self.passes = 0, 0
        self.looks = self.late = 0
        self._next: Rung | None = None
        self._checks = 0
        """Checks of the rung at hand."""

    @property
    def target(self) -> float:
        """See ``Check``."""
        return self.check.target

    def expired(self) -> bool:
        """See ``Check``."""
        return self.check.expired()

    def pause(self, save: Save | None = None) -> None:
        """See ``Check``."""
        self.check.pause(None if save is None else self._saving(save))

    def restored(self, meta: dict[str, Any]) -> None:
        """See ``Check``."""
        known = len(self.way)  # the solver at hand may be the first, or one that has taken over
        for name in meta.get("way", ())[known:]:
            found = [one for one in self.rung.then if type(one).__name__ == name]
            if not found:
                raise InputError(
                    f"the checkpoint was written after {name} took over, which this run has no use "
                    "for; start anew without resume"
                )
            self._enter(found[0])
        full, partial = meta.get("before") or (0, 0)  # null in checkpoints of before
        self.before = self.passes = full, partial
        self.looks, self.late = meta.get("looks", 0), meta.get("late", 0)
        self.check.restored(meta)

    def __call__(self, point: Point, stats: dict[str, Any], save: Save) -> Verdict | None:
        """See ``Check``."""
        point, then = self.rung.own(point), self.rung.then
        saved = self._saving(save)
        self._checks += 1
        if "decrement" in stats:  # not of rows nearby
            self.looks += 1
            self.late += point.relative_gap <= NEARBY.late_gap
        stats = {**stats, **self._counted(stats)}
        goes_on = any(one.after_stall for one in then)
        # A stall is no end of the fit where another solver takes over.
        verdict = self.check(point, {**stats, "stalled": False} if goes_on else stats, saved)
        if verdict is None:
            return None
        self._look = Look(point, stats, verdict, self.looks, self.late)
        self._next = next_rung(self.rung, self._look)
        if self._next is None:
            return replace(verdict, ahead=any(one.awaited for one in then))
        self._left = saved, {"target": self.target, "doubted": verdict.doubted}
        return None

    def next_turn(self, point: Point) -> tuple[Solver, Run] | None:
        """The solver that goes on from the last point, and on what; None: the fit has ended."""
        while self._next is not None:
            self._enter(self._next)
            self.before, self._checks = self.passes, 0
            self.report({"event": "phase", "phase": self.rung.phase})
            turn = self.rung.begin(self.run, point, self._look)
            self._next = self.rung.then[0] if turn is None else None
            if turn is not None:
                return turn
        return None

    def _enter(self, rung: Rung) -> None:
        self.rung = rung
        self.way.append(type(rung).__name__)

    def _counted(self, stats: dict[str, Any]) -> dict[str, int]:
        """``full_passes`` and ``partial_passes`` of all rungs so far, if the solver counts them.

        (`newton.many.Begun` does not: its passes serve many problems.)
        """
        names = "full_passes", "partial_passes"
        full, partial = (n + stats.get(name, 0) for name, n in zip(names, self.before, strict=True))
        self.passes = full, partial
        return {name: n for name, n in zip(names, self.passes, strict=True) if name in stats}

    def _saving(self, save: Save) -> Save:
        """What writes a checkpoint from which the rung at hand goes on, as it is now."""
        if self.rung.saves:
            kept = {
                "way": list(self.way),
                "before": list(self.before),
                "looks": self.looks,
                "late": self.late,
            }
            return lambda folder, meta: save(folder, {**meta, **kept})
        return self._save_where_left

    def _save_where_left(self, folder: Path, meta: dict[str, Any]) -> None:
        """Write a checkpoint of the point at which the rung before was left."""
        saved, then = self._left
        saved(folder, {**meta, **then, "history": meta["history"][: -self._checks]})


def _are_features(design: Design) -> bool:
    """Whether products of rows are the kernel's entries, and rows have few columns for that."""
    return isinstance(design.kernel, Linear) and design.data.n_features <= design.data.n_rows


def _kernel_features(design: Design) -> KernelFeatures:
    """Features of an exact machine's rows, whose products are the entries of its kernel."""
    data, kernel, n = design.data, design.kernel, design.data.n_rows
    assert kernel is not None

    def rows() -> Any:
        X: Any = data.X(0, n)
        return X.toarray() if data.is_sparse else X

    def factor() -> Any:
        X: Any = data.X(0, n)
        return cholesky_features(kernel.block(X, Operand(X, np.arange(n)), dtype=np.float64))

    if _are_features(design):
        return KernelFeatures(rows, terms(0, 0))
    return KernelFeatures(factor, factor_terms(n))


def _with_features(design: Design, features: Any) -> Design:
    """The rows of a design with other features.

    (Labels and weights are the run's own: its rows may be a fold's, or another fit's.)
    """
    data, n = design.data, design.data.n_rows
    rows = MemoryDataset(features, np.full(n, -1), data.layout.labels)
    return Design(Recast(rows, data.y(0, n), data.weights(0, n)))
