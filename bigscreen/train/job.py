"""What every training run has: its problems, its records, and the folder that it resumes from."""

from __future__ import annotations

import time
import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from bigscreen.data.dataset import MANIFEST
from bigscreen.data.rows import Rows
from bigscreen.errors import InputError
from bigscreen.features.design import Design
from bigscreen.files.sealed import Arrays, digest, read_sealed, write_sealed
from bigscreen.files.work import owned
from bigscreen.fit.loop import Fitted, fit
from bigscreen.fit.monitor import Limits, Report
from bigscreen.kernels.base import Kernel
from bigscreen.kernels.given import Custom, Precomputed
from bigscreen.kernels.moved import Moved, moved
from bigscreen.kernels.standard import make_kernel
from bigscreen.model.model import Model
from bigscreen.numerics.rows import FloatArray
from bigscreen.problems.point import settled
from bigscreen.problems.recipes import NuSvc
from bigscreen.screening.dynamic import make_rule
from bigscreen.solvers.protocol import Run, Solver
from bigscreen.train.options import TrainOptions
from bigscreen.train.plan import Plan
from bigscreen.train.problems import (
    Binary,
    check_rows,
    computed_with,
    named_gamma,
    problems,
    published,
)

DONE = "done.kept"
"""The result of a problem that is solved, in its folder."""

NAMED = 5
"""Classifiers that a warning names, at most."""


class Job:
    """One training run: phases in order, their seconds, and what the model records of them.

    Parameters
    ----------
    data, options, fleet, report, deadline
        As `train.train` takes them.
    plan : Plan
    """

    def __init__(
        self,
        data: Rows,
        options: TrainOptions,
        fleet: Any,
        report: Report | None,
        plan: Plan,
        deadline: float | None = None,
    ) -> None:
        self.data, self.options, self.fleet, self.plan = data, options, fleet, plan
        self.watched = report is not None
        self.report: Report = report or (lambda event: None)
        self.seconds = {"features": 0.0, "solve": 0.0, "certify": 0.0}
        self.started = time.monotonic()
        self._held = ExitStack()
        self._of = ""
        """Which problem the files of the work folder are of."""
        budget = options.time_budget
        self.strict = self.deadline = deadline
        if deadline is None and budget is not None:
            self.deadline = self.started + budget
        self.until = self.deadline
        """When the problem at hand has had its share of the time."""
        self.told: dict[Any, tuple[float, str, bool]] = {}
        """Of problems that there is something to say of: relative gap (or violation), what, whether
        it missed."""

    def run(self) -> Model:
        """Do it all."""
        data, options = self.data, self.options
        check_rows(data, options.problem, options.classifies)
        solved = problems(data, options)
        if self.plan.refusal:
            raise InputError(self.plan.refusal)
        if options.work is not None:
            self._claim(options.work)
        rely_on(self.fleet, data, options.work)
        self.kernel = self._kernel()
        self._prepare()
        results = self._results(solved)
        self.fleet.stop()
        if self.told:
            warnings.warn(self._unsolved(len(solved)), ConvergenceWarning, stacklevel=4)
        self.seconds["total"] = time.monotonic() - self.started
        return self._model(results)

    def _results(self, solved: list[Binary]) -> list[dict[str, Any]]:
        """Those of all problems; each has its share of the time that those before it left.

        What nobody needed goes to those that had too little: again from the start, so only where
        it is twice as much at least.
        """
        results: list[dict[str, Any]] = [{} for _ in solved]
        spent = np.zeros(len(solved))
        turn = list(range(len(solved)))
        while turn:
            for place, k in enumerate(turn):
                began = time.monotonic()
                if self.deadline is not None:
                    self.until = began + max(0.0, self.deadline - began) / (len(turn) - place)
                found, before = self._result(solved[k]), results[k]
                spent[k] = time.monotonic() - began
                if before and _gap(found) > _gap(before):
                    found = self._finish(solved[k], before)
                results[k] = found
            short = [k for k in turn if results[k].get("ended") == "time"]
            if self.deadline is None or not short:
                break
            left = self.deadline - time.monotonic()
            turn = short[: max(0, int(left / (2.0 * float(np.max(spent[short])) + 1e-9)))]
        return results

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Let go of the work folder."""
        self._held.close()

    # -- what kinds of run differ in ---------------------------------------------------------------
    def _kernel(self) -> Kernel:
        options, name = self.options, self.options.kernel
        assert isinstance(name, str)
        gamma = options.gamma
        if name in ("linear", "precomputed"):
            gamma = 1.0
        elif isinstance(gamma, str):
            gamma = named_gamma(gamma, self.data, self.fleet)
        return make_kernel(name, float(gamma), options.degree, options.coef0)

    def _prepare(self) -> None:
        """What all problems share, before the first is solved."""

    def _result(self, binary: Binary) -> dict[str, Any]:
        """Solve one problem: its machine and its records, JSON-able but for numpy arrays."""
        raise NotImplementedError

    def _model(self, results: list[dict[str, Any]]) -> Model:
        raise NotImplementedError

    def _design(self, kernel: Kernel | None) -> Design:
        """The rows where float32 holds what this kernel, or None, sees of them."""
        options = self.options
        balanced = options.coupled and options.problem != "one-class"
        # An early model's gate is asked about rows where they are.
        if options.early or isinstance(kernel, (Custom, Precomputed)):
            return Design(self.data, kernel)
        data = moved(self.data, kernel, balanced and options.offset == "true")
        if isinstance(data, Moved) and kernel is not None:
            kernel = data.move.kernel(kernel)
        return Design(data, kernel)

    # -- one problem -------------------------------------------------------------------------------
    def _finished(self, binary: Binary) -> dict[str, Any] | None:
        """The result of a problem that a run which is resumed has solved."""
        found = self.kept(binary, DONE)
        if found is None:
            return None
        result: dict[str, Any] = {**found[0], **found[1]}
        certificate = result["certificate"]
        if certificate is None:
            return result
        # One that missed the gap goes on from its last checkpoint.
        return result if settled(certificate, self.options.tol) else None

    def _finish(self, binary: Binary, result: dict[str, Any]) -> dict[str, Any]:
        """Keep a result for a run that resumes this one."""
        arrays = {name: part for name, part in result.items() if isinstance(part, np.ndarray)}
        record = {name: part for name, part in result.items() if name not in arrays}
        self.keep(binary, DONE, record, arrays)
        return result

    def keep(self, binary: Binary, name: str, record: Any, arrays: Arrays) -> None:
        """Write a file for a run that resumes this one, into the folder of a problem."""
        file = self.folder(binary, name)
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            write_sealed(file, f"{self._of}/{binary.folder}/{name}", record, arrays)

    def kept(self, binary: Binary, name: str) -> tuple[Any, Arrays] | None:
        """What the run that is resumed has kept so; None without, and where it is damaged."""
        file = self.folder(binary, name)
        if file is None or not self.options.resume:
            return None
        return read_sealed(file, f"{self._of}/{binary.folder}/{name}")

    def folder(self, binary: Binary, name: str = "") -> Path | None:
        """Where one problem's part of the run is kept, or a file there."""
        work = self.options.work
        return None if work is None else work / binary.folder / name

    def _fit(
        self,
        design: Design,
        binary: Binary,
        solver: Solver,
        start: FloatArray | None = None,
        source: Design | None = None,
        fleet: Any = None,
    ) -> Fitted:
        """Solve one problem to the gap that is asked for, and warn where it was missed.

        ``fleet``: where it runs if not where the whole job does.
        """
        options = self.options
        run = Run(
            design,
            binary.problem,
            fleet or self.fleet,
            start=start,
            resident=self.plan.resident,
            folder=self.folder(binary),
            of=f"{self._of}/{binary.folder}",
            resume=options.resume,
        )
        fitted = fit(
            run,
            solver,
            Limits(options.tol, options.max_iter, self.until),
            rule=make_rule(options.rule, options.f, options.patience),
            certify=options.certify,
            source=source,
            report=lambda event: self._tell(event, binary.name),
        )
        self.seconds["solve"] += fitted.seconds["solve"]
        self.seconds["certify"] += fitted.seconds["certify"]
        told, proof = hindrance(fitted, options.tol), fitted.certificate
        missed = not proof.proves(options.tol)
        self.told.pop(binary.name, None)
        if told or missed:
            why = told or "allow more passes (max_iter) or time (time_budget)"
            self.told[binary.name] = proof.reached, why, missed
        return fitted

    def _unsolved(self, problems: int) -> str:
        """What there is to say of the problems, in one sentence."""
        tol, told = self.options.tol, self.told
        missed = {name: gap for name, (gap, _, miss) in told.items() if miss}
        worst = max(told, key=lambda name: (name in missed, told[name][0]))
        gap, why, _ = told[worst]
        definite = self.kernel.psd or not self.options.exact
        what = "relative gap" if definite else "violation of the KKT conditions"
        if problems == 1:
            return f"the {what} {gap:.2e} missed tol {tol:g}; {why}" if missed else why
        which = missed or told
        names = ", ".join(str(name) for name in list(which)[:NAMED])
        more = f" and {len(which) - NAMED} more" if len(which) > NAMED else ""
        if not missed:
            return f"{len(told)} of {problems} classifiers ({names}{more}): {why}"
        return (
            f"{len(missed)} of {problems} classifiers missed tol {tol:g} ({names}{more}); the "
            f"largest {what} is {gap:.2e}, of {worst}; {why}"
        )

    def _tell(self, event: dict[str, Any], name: Any) -> None:
        if self.watched:
            # Asking every process for its memory takes longer than a pass over a few rows.
            self.report({**event, "class": name, "memory": self.fleet.memory()})

    # -- records -----------------------------------------------------------------------------------
    def _claim(self, work: Path) -> None:
        """Make the work folder this problem's, and this process's; refuse to resume another's."""
        fields = self.options.folder_record
        # Of these no result depends.
        for free in ("memory", "cache", "time_budget", "max_iter"):
            fields.pop(free)
        fields["data"] = self.data.fingerprint
        self._of = digest(fields)
        self._held.enter_context(owned(work, fields, self.options.resume, "fit", "label-*"))

    def _kind(self) -> dict[str, Any]:
        """What the model decides between."""
        options = self.options
        if options.problem == "one-class":
            return {"kind": "one-class", "labels": [-1, 1]}
        if not options.classifies:
            return {"kind": "regressor", "labels": []}
        return {"labels": self.data.labels, "strategy": options.strategy}

    def _provenance(self, results: list[dict[str, Any]]) -> dict[str, Any]:
        starts = [result["start"] for result in results if result.get("start")]
        return {
            "versions": computed_with(self.kernel, self.options.exact, self.data),
            "fingerprint": self._fingerprint(),
            "index_base": getattr(self.data, "manifest", {}).get("extra", {}).get("index_base"),
            "parameters": {**self.options.record, "kernel": self.kernel.to_dict()},
            "certificates": [result["certificate"] for result in results],
            "history": [event for result in results for event in result["history"]],
            "screening": [result["screening"] for result in results if "screening" in result],
            **({"start": starts} if starts else {}),
            "solver": self.plan.solver,
            "features": self.plan.features,
            "rows": self.data.n_rows,
            "seconds": self.seconds,
            "peak_pss_bytes": self.fleet.peak_pss,
        }

    def _fingerprint(self) -> str | None:
        return self.data.fingerprint


def rely_on(fleet: Any, data: Rows, work: Path | None) -> None:
    """Have those workers alone that see the rows, and the work folder as it was claimed.

    Raises
    ------
    InputError
        If none does.
    """
    files = [] if data.path is None else [data.path / MANIFEST]
    fleet.rely_on(files if work is None else [*files, work / "problem.json"])


def machine(
    coef: FloatArray, fitted: Fitted, binary: Binary, data: Rows, offset: float
) -> dict[str, Any]:
    """A score's coefficients and offset, in the scale that LIBSVM has for the problem."""
    scale = published(binary.problem, fitted.certificate.multiplier, data)
    if fitted.ended == "nothing" and isinstance(binary.problem, NuSvc):
        scale = 1.0  # no margin to divide by
    return {"coef": scale * coef, "intercept": scale * offset}


def _gap(result: dict[str, Any]) -> float:
    certificate = result["certificate"]
    return float(certificate["gap"] + certificate["rounding_bound"])


def hindrance(fitted: Fitted, tol: float) -> str | None:
    """What more passes would not help against, if that is why a fit proves little."""
    proved = fitted.certificate
    if fitted.ended == "nothing":
        return (
            "the best w is 0 as far as float32 rows can tell (so large a part of the rows is free "
            "that the classes, or the rows and the origin, overlap), and nothing can be relative "
            "to its objective, which is 0; take a larger nu or another kernel"
        )
    if proved.psd and not proved.proved:
        return (
            "nothing is proved, as no bound on the rounding of the sums is a finite number; scale "
            "the data, or take values nearer to 1"
        )
    if proved.proves(tol):
        return None
    if fitted.ended == "rounded" and proved.gap > proved.rounding_bound:
        return (
            f"the gap {proved.gap:.2g} is small enough, but rounding can have moved it by "
            f"{proved.rounding_bound:.2g}; ask for a larger tol, or scale data and targets"
        )
    if proved.gap <= proved.rounding_bound:
        return (
            f"the gap {proved.gap:.2g} is no more than rounding can have made it "
            f"({proved.rounding_bound:.2g}); ask for a larger tol, or scale data and targets"
        )
    if fitted.ended == "stalled":
        return "rounding lets the solver come no closer; ask for a larger tol or scale the data"
    return None


def records(fitted: Fitted, name: Any, tol: float) -> dict[str, Any]:
    """What the model records of one problem's fit."""
    return {
        "certificate": {
            "label": name,
            **fitted.certificate.to_dict(),
            "hindrance": hindrance(fitted, tol),
            "passes": fitted.passes,
        },
        "ended": fitted.ended,
        "history": [{**event, "class": name} for event in fitted.history],
        "screening": {"label": name, **fitted.screening},
    }
