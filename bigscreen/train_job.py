"""What every training run has: its problems, its records, and the folder that it resumes from."""

from __future__ import annotations

import json
import shutil
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from bigscreen.design import Design
from bigscreen.dual import FloatArray
from bigscreen.errors import InputError
from bigscreen.fit import Fitted, fit
from bigscreen.fit_monitor import Limits, Report
from bigscreen.kernels import Custom, Kernel, Precomputed, make_kernel
from bigscreen.plan import Plan
from bigscreen.problems_nu import NuSvc
from bigscreen.screening.dynamic import make_rule
from bigscreen.solvers.protocol import Solver
from bigscreen.store import Moved, Rows, moved
from bigscreen.store.files import replacing
from bigscreen.store.model import Model
from bigscreen.train_data import check_rows, gamma_scale, versions
from bigscreen.train_options import TrainOptions
from bigscreen.train_problems import Binary, problems, published


class Job:
    """One training run: phases in order, their seconds, and what the model records of them.

    Parameters
    ----------
    data, options, fleet, report
        As `train.train` takes them.
    plan : Plan
    """

    def __init__(
        self, data: Rows, options: TrainOptions, fleet: Any, report: Report | None, plan: Plan
    ) -> None:
        self.data, self.options, self.fleet, self.plan = data, options, fleet, plan
        self.watched = report is not None
        self.report: Report = report or (lambda event: None)
        self.seconds = {"features": 0.0, "solve": 0.0, "certify": 0.0}
        self.started = time.monotonic()
        budget = options.time_budget
        self.deadline = None if budget is None else self.started + budget

    def run(self) -> Model:
        """Do it all."""
        data, options = self.data, self.options
        check_rows(data, options.problem, options.classifies)
        solved = problems(data, options)
        if self.plan.refusal:
            raise InputError(self.plan.refusal)
        if options.work is not None:
            self._claim(options.work)
        self.kernel = self._kernel()
        self._prepare()
        results = [self._result(binary) for binary in solved]
        self.fleet.stop()
        self.seconds["total"] = time.monotonic() - self.started
        return self._model(results)

    # -- what kinds of run differ in ---------------------------------------------------------------
    def _kernel(self) -> Kernel:
        options, name = self.options, self.options.kernel
        assert isinstance(name, str)
        gamma = options.gamma
        if name in ("linear", "precomputed"):
            gamma = 1.0
        elif gamma == "scale":
            gamma = gamma_scale(self.data, self.fleet)
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
        done = self.folder(binary, "done.json")
        if done is None or not self.options.resume or not done.exists():
            return None
        result: dict[str, Any] = json.loads(done.read_text())
        certificate = result["certificate"]
        # One that missed the gap goes on from its last checkpoint.
        missed = certificate is not None and certificate["relative_gap"] > self.options.tol
        return None if missed else result

    def _finish(self, binary: Binary, result: dict[str, Any]) -> dict[str, Any]:
        """Keep a result for a run that resumes this one."""
        done = self.folder(binary, "done.json")
        if done is not None:
            done.parent.mkdir(parents=True, exist_ok=True)
            with replacing(done) as file:
                file.write(json.dumps(result, default=np.ndarray.tolist).encode())
        return result

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
    ) -> Fitted:
        """Solve one problem to the gap that is asked for, and warn where it was missed."""
        options = self.options
        fitted = fit(
            design,
            binary.problem,
            solver,
            self.fleet,
            Limits(options.tol, options.max_iter, self.deadline),
            rule=make_rule(options.rule, options.f, options.patience),
            certify=options.certify,
            source=source,
            resident=self.plan.resident,
            folder=self.folder(binary),
            resume=options.resume,
            start=start,
            report=lambda event: self._tell(event, binary.name),
        )
        self.seconds["solve"] += fitted.seconds["solve"]
        self.seconds["certify"] += fitted.seconds["certify"]
        told = hindrance(fitted, options.tol)
        if fitted.certificate.relative_gap > options.tol:
            missed = f"the relative gap {fitted.certificate.relative_gap:.2e} missed tol"
            why = told or "allow more passes (max_iter) or time (time_budget)"
            told = f"{missed} {options.tol:g}; {why}"
        if told:
            warnings.warn(told, ConvergenceWarning, stacklevel=6)
        return fitted

    def _tell(self, event: dict[str, Any], name: Any) -> None:
        if self.watched:
            # Asking every process for its memory takes longer than a pass over a few rows.
            self.report({**event, "class": name, "memory": self.fleet.memory()})

    # -- records -----------------------------------------------------------------------------------
    def _claim(self, work: Path) -> None:
        """Make the work folder this problem's; refuse to resume another's."""
        fields = self.options.record
        # Of these no result depends.
        for free in ("memory", "cache", "time_budget", "max_iter"):
            fields.pop(free)
        fields["data"] = self.data.fingerprint
        record = work / "problem.json"
        if self.options.resume:
            if not record.exists():
                raise InputError(f"there is nothing to resume in {work}; leave out --resume")
            before = json.loads(record.read_text())
            changed = sorted(k for k in fields if fields[k] != before.get(k))
            if changed:
                what = ", ".join(f"{k} was {before.get(k)}, now {fields[k]}" for k in changed)
                raise InputError(f"{work} belongs to another fit and cannot be resumed: {what}")
            return
        work.mkdir(parents=True, exist_ok=True)
        if record.exists():
            # What the fit before left here must not be resumed as this one's.
            for stale in work.glob("label-*"):
                shutil.rmtree(stale)
        with replacing(record) as file:
            file.write(json.dumps(fields, indent=1).encode())

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
            "versions": versions(),
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


def machine(
    coef: FloatArray, fitted: Fitted, binary: Binary, data: Rows, offset: float
) -> dict[str, Any]:
    """A score's coefficients and offset, in the scale that LIBSVM has for the problem."""
    scale = published(binary.problem, fitted.certificate.multiplier, data)
    if fitted.ended == "nothing" and isinstance(binary.problem, NuSvc):
        scale = 1.0  # no margin to divide by
    return {"coef": scale * coef, "intercept": scale * offset}


def hindrance(fitted: Fitted, tol: float) -> str | None:
    """What more passes would not help against, if that is why a fit proves little."""
    proved = fitted.certificate
    if fitted.ended == "nothing":
        return (
            "the best w is 0 as far as float32 rows can tell (so large a part of the rows is free "
            "that the classes, or the rows and the origin, overlap), and nothing can be relative "
            "to its objective, which is 0; take a larger nu or another kernel"
        )
    if proved.relative_gap <= tol:
        return None
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
        },
        "history": [{**event, "class": name} for event in fitted.history],
        "screening": {"label": name, **fitted.screening},
    }
