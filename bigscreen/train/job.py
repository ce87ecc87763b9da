"""A training run: solve its problems, keep their results in a work folder, make the model."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from bigscreen.data.dataset import MANIFEST
from bigscreen.data.rows import Rows
from bigscreen.data.views import without_weight
from bigscreen.errors import InputError
from bigscreen.features.design import Design
from bigscreen.files.kept_files import KeptFiles
from bigscreen.files.remote import RemotePath, is_named
from bigscreen.files.sealed import hash_json
from bigscreen.files.work import lock_work_folder
from bigscreen.fit.ladder import Rung, ended_by_rounding
from bigscreen.fit.loop import Fitted, GracefulInterrupt, fit
from bigscreen.fit.monitor import Limits, Report
from bigscreen.fleet.inline import Inline, usable_processors
from bigscreen.fleet.lockstep import Lockstep
from bigscreen.fleet.protocol import Fleet
from bigscreen.kernels.base import Kernel
from bigscreen.kernels.definite import WITHOUT_PROOF
from bigscreen.kernels.given import Custom, Precomputed
from bigscreen.kernels.moved import move_rows
from bigscreen.model.ledger import Ledger, from_arrays, to_arrays
from bigscreen.model.model import Model
from bigscreen.numerics.rows import FloatArray
from bigscreen.options.train import CHANGEABLE, UNSCREENED, TrainOptions
from bigscreen.plan.memory import Plan
from bigscreen.problems.point import format_gap, is_solved
from bigscreen.screening.dynamic import make_rule
from bigscreen.solvers.protocol import Near, Run, Solver
from bigscreen.train.kernel import choose_kernel
from bigscreen.train.problems import Binary, check_rows, problems
from bigscreen.train.records import (
    explain_missed_gap,
    kind_and_labels,
    provenance,
    record_problem,
    warn_missed,
)

DONE = "done.kept"
"""The file of a problem's folder that holds its result."""

STORED = "-stored"
"""The suffix of a problem's folder if its features are stored. Their w differs from that of
recomputed features, so that neither kind of run can resume the other's."""

TOGETHER = "label-together"
"""The folder with the checkpoints of problems that are solved together."""

FOLD_TOL = 1e-2
"""Solve the folds of a cross-validation to this relative gap, or to the fit's ``tol`` if that is
larger: it suffices for their scores."""

Result = dict[str, Any]
"""The coefficients, offset and records of one solved problem: JSON values and numpy arrays."""


class Start(NamedTuple):
    """Where a solve begins, and the record of how that start was computed.

    ``alpha``: feasible, (n,), or None for 0; ``near``: a primal point near the optimum, which
    replaces alpha for solvers that keep w.
    """

    alpha: FloatArray | None = None
    record: dict[str, Any] | None = None
    near: Near | None = None


class Attempt(NamedTuple):
    """How to solve one problem: its design, its solver, the fleet, and the start."""

    design: Design
    solver: Solver
    fleet: Fleet
    start: Start = Start()
    source: Design | None = None
    """The kernel design behind stored features."""
    then: tuple[Rung, ...] = ()
    """The solvers that may continue if this one stalls before it reaches the gap."""
    rows: NDArray[np.int64] | None = None
    """The row numbers of the design's rows, int64 (k,); None: it has all rows."""


class Shortfall(NamedTuple):
    """What a warning says of one problem: the relative gap (or KKT violation) reached, and why.

    ``missed``: whether the requested gap was missed; else ``why`` is only worth a warning.
    """

    reached: float
    why: str
    missed: bool


class Job:
    """One training run: `begin` it, `solve` the problems of each of its `turns`, make the `model`.

    Parameters
    ----------
    data, options, fleet, report, deadline
        As `train.run.train` takes them.
    plan : Plan
    fold : int16 array (n,), optional
        The fold that holds each row out, if the fit also needs machines of folds.
    over_stored : callable, optional
        Returns a plan with stored features, or None if there is no room for them. Called if
        rounding ends a solve before it reaches the gap.
    """

    max_later_rows = 1 << 20
    """Compute ledgers (what is proved of each row) right after each solve if the problems have more
    rows than this together. Smaller ledgers are computed when they are read: until then a row holds
    about 60 bytes, 60 MiB in all."""

    before: Model | None = None
    """The model of an earlier fit, whose machines the solves start at; None: they start cold."""

    def __init__(
        self,
        data: Rows,
        options: TrainOptions,
        fleet: Fleet,
        report: Report | None,
        plan: Plan,
        deadline: float | None = None,
        fold: NDArray[np.int16] | None = None,
        over_stored: Callable[[], Plan | None] | None = None,
    ) -> None:
        """Set the clocks and the deadline; rows and plan are checked by `begin`."""
        self.data, self.options, self.fleet, self.plan = data, options, fleet, plan
        self.watched = report is not None
        self.report: Report = report or (lambda event: None)
        self.seconds = {"features": 0.0, "solve": 0.0, "certify": 0.0}
        self.started = time.monotonic()
        # A deadline also bounds the writing of features; the time budget of options does not.
        self.hard_deadline = self.deadline = deadline
        if deadline is None and options.time_budget is not None:
            self.deadline = self.started + options.time_budget
        self.problem_deadline = self.deadline
        """The ``time.monotonic()`` at which the present problems have used up their time."""
        self.results: dict[str, Result] = {}
        """The result of each problem, by the name of its folder."""
        self.fold, self._over_stored = fold, over_stored
        self.landmarks: dict[str, Any] = {}
        """What certificates record of the landmarks; empty without landmarks."""
        self._shortfalls: dict[Any, Shortfall] = {}
        self._report_lock = threading.Lock()
        self._held = ExitStack()
        self._of = ""
        """The digest of data and options that seals the files of the work folder."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Release the work folder."""
        self._held.close()

    def begin(self) -> None:
        """Check rows and plan, claim the work folder, and compute what all problems share."""
        data, options = self.data, self.options
        check_rows(data, options.problem, options.classifies)
        self.problems = self._problems()
        if self.plan.refusal:
            raise InputError(self.plan.refusal)
        if callable(options.kernel) and options.resume:
            raise InputError(
                "a fit whose kernel is a function cannot be resumed, as functions cannot be "
                "compared; give its entries as a precomputed kernel"
            )
        self._claim()
        given = callable(options.kernel) or options.kernel == "precomputed"
        if given and (data.path is not None or hasattr(self.fleet, "address")):
            raise InputError(
                "a precomputed kernel, or one that is a function, needs rows in memory and threads "
                "of this process; give arrays and no scheduler"
            )
        if self.plan.alone:
            threads = min(self.fleet.workers, usable_processors())
            self.fleet = self._held.enter_context(Inline(threads))
        self.kernel = choose_kernel(data, options, self.fleet)
        if isinstance(self.kernel, (Custom, Precomputed)) and not self.kernel.psd:
            found = f"the kernel is {self.kernel.known}; {WITHOUT_PROOF}"
            warnings.warn(found, UserWarning, stacklevel=4)
        self._prepare()

    def _problems(self) -> list[Binary]:
        """Return the binary problems that the run solves, in order."""
        return problems(self.data, self.options)

    def _should_store(self, some: Sequence[Binary]) -> Plan | None:
        """Return a plan with stored features if rounding ended one of these solves too early.

        ``some``: the problems that were solved. None if rounding ended no solve, if there is no
        room for stored features, or if the time left is less than twice the time used.
        """
        now = time.monotonic()
        late = self.deadline is not None and self.deadline - now < 2.0 * (now - self.started)
        if self._over_stored is None or late:
            return None
        ended = [self.results[one.folder] for one in some]
        short = any(
            ended_by_rounding(result.get("ended"), result["certificate"], self._tol(binary))
            for binary, result in zip(some, ended, strict=True)
        )
        return self._over_stored() if short else None

    def _store_features(self, plan: Plan) -> None:
        """Discard all results, and prepare to solve all problems again with stored features.

        ``plan``: the new plan, with stored features.
        """
        self.plan, self._over_stored = plan, None
        self.report({"event": "phase", "phase": "again, with features stored: float32 columns end"})
        self.results.clear()
        self._shortfalls.clear()
        self._prepare()

    def turns(self) -> Iterator[list[Binary]]:
        """Yield the problems in the groups that the plan solves together.

        Each group has its share of the time that is left. Problems that ran out of time come again
        if at least twice their time is left at the end, as they start from the beginning. All
        problems come again if features turn out to need storing.
        """
        spent: dict[str, float] = {}
        turn, end = self.problems, self.deadline
        if end is not None and self.fold is not None:
            end -= 0.5 * max(0.0, end - time.monotonic())  # the folds have the other half
        while turn:
            rounds = -(-len(turn) // self.plan.together)
            size = -(-len(turn) // rounds)  # of each group; the last one may be smaller
            for place in range(0, len(turn), size):
                began, some = time.monotonic(), turn[place : place + size]
                self._share_time(end, len(some) / (len(turn) - place))
                yield some
                stored = self._should_store(some)
                if stored is not None:
                    self._store_features(stored)
                    yield from self.turns()
                    return
                each = (time.monotonic() - began) / len(some)
                spent |= {binary.folder: each for binary in some}
            short = [one for one in turn if self.results[one.folder].get("ended") == "time"]
            if end is None or not short:
                break
            longest = max(spent[one.folder] for one in short)
            left = end - time.monotonic()
            turn = short[: max(0, int(left / (2.0 * longest + 1e-9)))]

    def _share_time(self, end: float | None, share: float) -> None:
        """Limit the next problems to a share of the time until ``end`` (``time.monotonic()``)."""
        if end is not None:
            now = time.monotonic()
            self.problem_deadline = now + max(0.0, end - now) * share

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Count all the time of a ``with`` block as one phase, including solves within it."""
        began, spent = time.monotonic(), dict(self.seconds)
        yield
        taken = time.monotonic() - began
        self.seconds = {**spent, phase: spent.get(phase, 0.0) + taken}

    def solve(self, some: Sequence[Binary]) -> None:
        """Solve these problems to the requested gap, and keep their results for a resumed run.

        Several problems are solved together, with shared passes over the data.
        """
        left = [binary for binary in some if not self._take_over_result(binary)]
        if len(left) > 1:
            self._solve_together(left)
            return
        for binary in left:
            attempt = self._attempt_without_fold(binary)
            run, how = self._run(binary, attempt), self._fit_arguments(binary, attempt)
            fitted = fit(run, attempt.solver, **how)
            self.seconds["solve"] += fitted.seconds["solve"]
            self.seconds["certify"] += fitted.seconds["certify"]
            self._take_result(binary, attempt, fitted)

    def _solve_together(self, some: Sequence[Binary]) -> None:
        """Solve several problems in shared passes over the rows; results are as if solved alone."""
        name = TOGETHER if some[0].fold is None else f"{TOGETHER}-fold-{some[0].fold}"
        folder = self._folder(name)
        attempts = {binary.folder: (binary, self._attempt_without_fold(binary)) for binary in some}
        self.report({"event": "phase", "phase": "solve"})
        lockstep, began = Lockstep(self.fleet, folder, f"{self._of}/{name}"), time.monotonic()
        with GracefulInterrupt(folder) as heard:

            def solved(binary: Binary, attempt: Attempt) -> Callable[[Fleet], Fitted]:
                """Return a function that fits one problem on the fleet it is given."""
                how = {
                    **self._fit_arguments(binary, attempt),
                    "interrupt": heard,
                    "report": self._report_of(binary),
                }
                return lambda fleet: fit(
                    self._run(binary, attempt._replace(fleet=fleet)), attempt.solver, **how
                )

            lockstep.run(
                {name: solved(*one) for name, one in attempts.items()},
                lambda name, fitted: self._take_result(*attempts[name], fitted),
            )
        self.seconds["certify"] += lockstep.seconds
        self.seconds["solve"] += time.monotonic() - began - lockstep.seconds

    def solved_fold(self, some: Sequence[Binary], share: float) -> Model:
        """Solve the problems ``some`` of a fold, and return their machine.

        ``share``: the part of the time left that they may take.
        """
        self._share_time(self.deadline, share)
        for place in range(0, len(some), self.plan.together):
            self.solve(some[place : place + self.plan.together])
        return self.machine([self.results.pop(binary.folder) for binary in some])

    def _attempt_without_fold(self, binary: Binary) -> Attempt:
        """Return how to solve one problem, without the rows that its fold holds out."""
        attempt = self._attempt(binary)
        if binary.fold is None:
            return attempt
        assert self.fold is not None
        held, source = self.fold == binary.fold, attempt.source
        if attempt.rows is not None:
            held = held[attempt.rows]
        design = replace(attempt.design, data=without_weight(attempt.design.data, held))
        if source is attempt.design:
            source = design
        elif source is not None:
            source = replace(source, data=without_weight(source.data, held))
        return attempt._replace(design=design, source=source, start=Start())

    def _run(self, binary: Binary, attempt: Attempt) -> Run:
        """Return the run of one problem: its design, start, memory and checkpoint folder."""
        resident, spare = self.plan.resident, self.plan.nearby_bytes // self.plan.together
        if self.plan.on_device is not None:  # (its memory is what features and rows may take)
            resident, spare = 0.0, self.plan.on_device.room
        return Run(
            attempt.design,
            binary.problem,
            attempt.fleet,
            attempt.start.alpha,
            resident=resident,
            spare=spare,
            folder=self.folder(binary),
            of=f"{self._of}/{binary.folder}",
            resume=self.options.resume,
            near=attempt.start.near,
        )

    def _fit_arguments(self, binary: Binary, attempt: Attempt) -> dict[str, Any]:
        """Return the arguments of `fit` in addition to the run and the solver."""
        options, tuning = self.options, self.options.tuning
        rule = "none" if self.plan.solver in UNSCREENED else options.rule
        return {
            "limits": Limits(self._tol(binary), options.max_iter, self.problem_deadline),
            "rule": make_rule(rule, tuning.f, tuning.patience),
            "certify": tuning.certify,
            "source": attempt.source,
            "then": attempt.then,
            "place": None if self.plan.on_device is None else self.plan.device.place,
            "report": lambda event: self._report_event(event, binary),
        }

    def _tol(self, binary: Binary) -> float:
        """Return the relative gap to solve a problem to: folds do not need a small one."""
        tol = self.options.tol
        return tol if binary.fold is None else max(tol, FOLD_TOL)

    def _report_of(self, binary: Binary) -> Report:
        """Return a report that drops the phases of one problem: several problems share them."""

        def passed(event: dict[str, Any]) -> None:
            """Report an event of the problem, unless it begins a phase."""
            if event["event"] != "phase":
                self._report_event(event, binary)

        return passed

    def _take_over_result(self, binary: Binary) -> bool:
        """Take over the result that the resumed run has kept of a problem; False if it has none."""
        result = self._read_result(binary)
        if result is not None:
            self._keep_better(binary, result)
        return result is not None

    def _take_result(self, binary: Binary, attempt: Attempt, fitted: Fitted) -> None:
        """Make the result of a fit, and keep it."""
        self._note_shortfall(fitted, binary)
        stated = replace(fitted.certificate, rows=fitted.certificate.rows // self.data.sides)
        fitted = replace(fitted, certificate=stated)
        result = {
            **self._machine(attempt, fitted, binary),
            "ledger": None if binary.fold is not None else self._ledger(attempt, fitted, binary),
            "start": attempt.start.record,
            **record_problem(
                fitted, binary.name, self.options.tol, self.plan.features, self.landmarks
            ),
        }
        self._write_result(binary, result)
        self._keep_better(binary, result)

    def _keep_better(self, binary: Binary, result: Result) -> None:
        """Keep a result of a problem, unless an earlier solve has reached a smaller gap."""
        before = self.results.get(binary.folder)
        if before is not None and _gap(result) > _gap(before):
            result = before
            self._write_result(binary, result)
        self.results[binary.folder] = result
        if self.watched and len(self.problems) > 1:
            with self._report_lock:
                told = {"event": "progress", "phase": "solve", "done": len(self.results)}
                self.report({**told, "total": len(self.problems)})

    def model(self) -> Model:
        """Return the model of all results; a warning names the problems that missed the gap."""
        self._end()
        return self.machine([self.results[binary.folder] for binary in self.problems])

    def _end(self) -> None:
        """Stop the fleet's program, warn of missed gaps, and record the total time."""
        self.fleet.stop()
        if self._shortfalls:
            warn_missed(self._describe_shortfalls(), stacklevel=5)
        self.seconds["total"] = time.monotonic() - self.started

    def machine(self, results: list[Result], parts: dict[str, Any] | None = None) -> Model:
        """Assemble a model from one result for each binary problem.

        ``parts``: the arrays that `_parts` makes of them; None: make them.
        """
        parts = self._parts(results) if parts is None else parts
        ledgers: list[Any] = [result.get("ledger") for result in results]
        return Model(
            kernel=self.kernel,
            intercept=np.array([result["intercept"] for result in results]),
            preparation=self.data.preparation,
            provenance=self._provenance(results),
            strategy=self.options.strategy,
            ledger=None if None in ledgers else ledgers,
            **kind_and_labels(self.data, self.options),
            **parts,
        )

    # -- defined by each kind of run ---------------------------------------------------------------
    def _prepare(self) -> None:
        """Compute what all problems share, before the first solve."""
        raise NotImplementedError

    def _attempt(self, binary: Binary) -> Attempt:
        """Return how to solve one binary problem: design, solver, fleet and start."""
        raise NotImplementedError

    def _machine(self, attempt: Attempt, fitted: Fitted, binary: Binary) -> Result:
        """Return the coefficients and the offset of a solved problem."""
        raise NotImplementedError

    def _parts(self, results: list[Result]) -> dict[str, Any]:
        """Return the arrays of a model (landmarks or support vectors, coefficients), by field name.

        ``results``: one for each binary problem.
        """
        raise NotImplementedError

    def design_of(self, kernel: Kernel | None) -> Design:
        """Return the design of the rows (with their kernel), shifted if float32 then loses less.

        ``kernel``: None for a linear machine.
        """
        options = self.options
        balanced = options.coupled and options.problem != "one-class"
        # The gate of an early model, which finds the part of a new row, needs rows without a shift.
        if options.early or isinstance(kernel, (Custom, Precomputed)):
            return Design(self.data, kernel)
        return Design(*move_rows(self.data, kernel, balanced and options.offset == "true"))

    # -- the ledger: proofs about single rows ------------------------------------------------------
    def _ledger(self, attempt: Attempt, fitted: Fitted, binary: Binary) -> Ledger | None:
        """Return the ledger of a solved problem: what its certificate proves of each row; or None.

        Rows have the numbers that they have in the data source.
        """
        data, found = self.data, fitted.ledger
        if found is None:
            return None
        found, numbers = found.fold_sides(data.sides), data.row_ids(0, data.n_sources)
        if attempt.rows is not None:
            numbers = numbers[attempt.rows]
        elif binary.codes is not None:  # rows of other labels have no part in the problem
            keep = np.isin(data.y(0, data.n_rows), binary.codes)
            found, numbers = found.among(keep), numbers[keep]
        found = found.renumber(numbers)
        if len(self.problems) * attempt.design.data.n_rows > self.max_later_rows:
            _ = found.margins  # computed now, to free the arrays that they are computed from
        return found

    # -- the work folder ---------------------------------------------------------------------------
    def _ingredients(self) -> dict[str, Any]:
        """Return what the results depend on besides rows and options, JSON-able."""
        return {}

    def _claim(self) -> None:
        """Lock the work folder for this run; refuse a folder of other data or options."""

        def fields() -> dict[str, Any]:
            """Return the options that a resumed run may not change."""
            known = self.options.folder_record
            fixed = {name: value for name, value in known.items() if name not in CHANGEABLE}
            return {**fixed, **self._ingredients()}

        of = self.fleet, self.data, self.options, fields
        self._of = self._held.enter_context(claim_folder(*of, "fit", "label-*"))

    def _read_result(self, binary: Binary) -> Result | None:
        """Return the result that an interrupted run has kept of a problem.

        None if there is none, if the run is no resumed one, or if the result missed the gap: the
        solve then goes on from its last checkpoint.
        """
        found = self.kept(binary).read(DONE)
        if found is None:
            return None
        result: Result = {**found[0], **found[1]}
        if "ledger_margins" in result:
            (result["ledger"],) = from_arrays(found[1])
        certificate = result["certificate"]
        if certificate is None:
            return result
        # A problem that missed the gap continues from its last checkpoint.
        return result if is_solved(certificate, self._tol(binary)) else None

    def _write_result(self, binary: Binary, result: Result) -> None:
        """Write a result to the work folder, for a run that resumes this one."""
        if self.folder(binary) is None:
            return
        arrays = {name: part for name, part in result.items() if isinstance(part, np.ndarray)}
        record = {name: part for name, part in result.items() if name not in (*arrays, "ledger")}
        if result.get("ledger") is not None:
            arrays |= to_arrays([result["ledger"]])
        self.kept(binary).write(DONE, record, arrays)

    def kept(self, binary: Binary) -> KeptFiles:
        """Return the problem's kept files: finished parts of the run, for a run that resumes it."""
        return KeptFiles(self.folder(binary), f"{self._of}/{binary.folder}", self.options.resume)

    def folder(self, binary: Binary) -> Path | None:
        """Return the folder of one problem's checkpoints and result; None without a work folder."""
        return self._folder(binary.folder)

    def _folder(self, name: str) -> Path | None:
        """Return the folder ``name`` in the work folder; None without a work folder.

        With stored features its name has a suffix of its own.
        """
        work, stored = self.options.work, self.plan.features == "stored"
        return None if work is None else work / (name + STORED * stored)

    # -- warnings and records ----------------------------------------------------------------------
    def _note_shortfall(self, fitted: Fitted, binary: Binary) -> None:
        """Record in ``_shortfalls`` whether a problem missed its gap, and why."""
        if binary.fold is not None:
            return  # the model that users see is the one of all rows
        tol, proof = self.options.tol, fitted.certificate
        why = explain_missed_gap(fitted, tol, self.plan.features)
        missed = not proof.proves(tol)
        self._shortfalls.pop(binary.name, None)
        if why or missed:
            why = why or "allow more passes (max_iter) or time (time_budget)"
            self._shortfalls[binary.name] = Shortfall(proof.gap_or_violation, why, missed)

    def _describe_shortfalls(self, max_names: int = 5) -> str:
        """Describe in one sentence which problems missed the gap, and why.

        At most ``max_names`` problems are named.
        """
        tol, problems = self.options.tol, len(self.problems)
        known = [one.name for one in self.problems if one.name in self._shortfalls]
        short = {name: self._shortfalls[name] for name in known}
        missed = [name for name, one in short.items() if one.missed]
        worst = max(short, key=lambda name: (name in missed, short[name].reached))
        gap, why, _ = short[worst]
        reached = format_gap(gap, ".2e")
        definite = self.kernel.psd or not self.options.exact
        what = "relative gap" if definite else "violation of the KKT conditions"
        if problems == 1:
            # (A gap below tol is not proved if rounding can have made more than tol of it.)
            verb = "is not proved to be within" if gap <= tol else "missed"
            return f"the {what} {reached} {verb} tol {tol:g}; {why}" if missed else why
        which = missed or list(short)
        names = ", ".join(map(str, which[:max_names]))
        more = f" and {len(which) - max_names} more" if len(which) > max_names else ""
        if not missed:
            return f"{len(short)} of {problems} machines ({names}{more}): {why}"
        return (
            f"{len(missed)} of {problems} machines missed tol {tol:g} ({names}{more}); the "
            f"largest {what} is {reached}, of {worst}; {why}"
        )

    def _report_event(self, event: dict[str, Any], binary: Binary) -> None:
        """Report an event of one problem, with its class name and the memory in use."""
        with self._report_lock:
            # To ask every process for its memory takes longer than a pass over a few rows.
            if self.watched:
                beside = {"class": binary.name, "memory": self.fleet.memory()}
                if event["event"] == "pass":
                    until = {"tol": self._tol(binary), "max_iter": self.options.max_iter}
                    beside |= {**until, "problems": len(self.problems)}
                self.report({**event, **beside})

    def _provenance(self, results: list[Result]) -> dict[str, Any]:
        """Return the record of the run that a model keeps, given one result for each problem."""
        starts = [result["start"] for result in results if result.get("start")]
        return provenance(
            self.data,
            self.options,
            self.kernel,
            self.fleet,
            not self.options.exact,
            certificates=[result["certificate"] for result in results],
            history=[event for result in results for event in result["history"]],
            screening=[result["screening"] for result in results if "screening" in result],
            **({"start": starts} if starts else {}),
            solver=self.plan.solver,
            features=self.plan.features,
            device=self.plan.device.record,
            seconds=self.seconds,
        )


@contextmanager
def claim_folder(
    fleet: Fleet,
    data: Rows,
    options: TrainOptions,
    fields: Callable[[], dict[str, Any]],
    noun: str,
    stale: str,
) -> Iterator[str]:
    """Lock the work folder of a run, if it has one, and use only the workers that can see it.

    Parameters
    ----------
    options : TrainOptions
        Their ``work`` is the folder; ``resume`` says whether to resume a run in it.
    fields : callable
        Returns all that the result depends on, except the rows. Called if there is a folder.
    noun : str
        Kind of run, for messages: "fit", "path".
    stale : str
        Pattern of subfolders to remove before a new run.

    Yields
    ------
    str
        A digest of the data and of all that the result depends on, which seals the files of the
        folder. Empty without a folder.
    """
    with ExitStack() as stack:
        of = ""
        if options.work is not None:
            known = {**fields(), "data": data.fingerprint}
            of = hash_json(known)
            stack.enter_context(lock_work_folder(options.work, known, options.resume, noun, stale))
        rely_on(fleet, data, options.work)
        yield of


def rely_on(fleet: Fleet, data: Rows, work: Path | None) -> None:
    """Use only the workers that see the rows, and the work folder as it was claimed.

    Raises
    ------
    InputError
        If no worker sees them.
    """
    files: list[Path | RemotePath] = []
    # (A store that only zarr reaches travels with the rows: workers find no file there by name.)
    if data.path is not None and is_named(data.path):
        files.append(data.path / MANIFEST)
    fleet.rely_on(files if work is None else [*files, work / "problem.json"])


def _gap(result: Result) -> float:
    """Return the certified gap of a result plus the bound on its rounding."""
    certificate = result["certificate"]
    return float(certificate["gap"] + certificate["rounding_bound"])
