"""From a data set to a fitted model: the main job, the same for Python and the command line."""

from __future__ import annotations

import json
import shutil
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

from bigscreen import nystrom
from bigscreen.design import Design
from bigscreen.dual import CSvc
from bigscreen.errors import InputError
from bigscreen.fit import Fitted, fit
from bigscreen.fit_monitor import Limits, Report
from bigscreen.kernels import Kernel, make_kernel
from bigscreen.plan import Plan, Request, outline
from bigscreen.screening.dynamic import make_rule
from bigscreen.solvers.coordinate import CoordinateDescent
from bigscreen.solvers.newton import Newton
from bigscreen.store import Rows
from bigscreen.store.files import replacing
from bigscreen.store.model import Model
from bigscreen.train_data import check_labels, class_weights, gamma_scale, versions
from bigscreen.train_options import TrainOptions


def plan(data: Rows, options: TrainOptions, workers: int = 1, cluster: bool = False) -> Plan:
    """Outline a fit without running it.

    Returns
    -------
    Plan
        ``refusal`` says why it cannot run within ``options.memory``.
    """
    memory = options.memory or int(0.8 * psutil.virtual_memory().total)
    landmarks = min(options.landmarks, data.n_rows)
    request = Request(
        options.kernel,
        landmarks,
        options.solver,
        options.features,
        options.intercept,
        memory,
        workers,
        cluster,
    )
    return outline(data, request)


def train(
    data: Rows,
    options: TrainOptions,
    fleet: Any,
    report: Report | None = None,
) -> Model:
    """Fit a model and certify it.

    Parameters
    ----------
    data : Rows
        A stored or in-memory data set; every row must be labelled.
    options : TrainOptions
    fleet : fleet.Inline or fleet.Cluster
        Where it runs; the result is the same bit for bit on any number of workers.
    report : callable or None
        Receives events: phases, and one per pass.

    Returns
    -------
    Model
        With its certificate in ``provenance``; a ConvergenceWarning says where the gap was missed.

    Raises
    ------
    InputError
        Bad parameters, unlabelled rows, one class only, or a fit that cannot fit in memory.
    """
    # One BLAS thread: BLAS's own threads spin for a while after every product, and the shards'
    # threads run just then.
    with threadpool_limits(1, "blas"):
        return _Job(data, options, fleet, report).run()


class _Job:
    """One training run: phases in order, their seconds, and what the model records of them."""

    def __init__(
        self, data: Rows, options: TrainOptions, fleet: Any, report: Report | None
    ) -> None:
        self.data, self.options, self.fleet = data, options, fleet
        self.watched = report is not None
        self.report: Report = report or (lambda event: None)
        self.seconds = {"features": 0.0, "solve": 0.0, "certify": 0.0}
        self.started = time.monotonic()
        budget = options.time_budget
        self.deadline = None if budget is None else self.started + budget

    def run(self) -> Model:
        data, options = self.data, self.options
        check_labels(data, np.asarray(data.label_counts))
        self.plan = plan(data, options, self.fleet.workers, _is_cluster(self.fleet))
        if self.plan.refusal:
            raise InputError(self.plan.refusal)
        if options.work is not None:
            self._claim(options.work)
        kernel = self._kernel()
        design, source = self._design(kernel)
        results = [self._solve(design, source, problem, name) for problem, name in self._problems()]
        self.fleet.stop()
        # Stored features are phi = T' k(x, Z): the model goes back to coefficients of k(x, Z).
        coefs = [result["coef"] for result in results]
        if source is not None and source is not design:
            coefs = [source.coef(np.asarray(coef)) for coef in coefs]
        landmarks = None if source is None else source.side.X
        self.seconds["total"] = time.monotonic() - self.started
        return Model(
            kernel=kernel,
            landmarks=landmarks,
            coef=np.stack(coefs),
            intercept=np.array([result["intercept"] for result in results]),
            labels=data.labels,
            preparation=data.preparation,
            provenance=self._provenance(kernel, results),
        )

    # -- phases --------------------------------------------------------------------------------
    def _kernel(self) -> Kernel:
        options = self.options
        gamma = options.gamma
        if options.kernel == "linear":
            gamma = 1.0
        elif gamma == "scale":
            gamma = gamma_scale(self.data, self.fleet)
        return make_kernel(options.kernel, float(gamma), options.degree, options.coef0)

    def _design(self, kernel: Kernel) -> tuple[Design, Design | None]:
        """The design to solve, and the kernel design behind it (None for a linear machine)."""
        if self.options.kernel == "linear":
            return Design(self.data), None
        began = time.monotonic()
        self.report({"event": "phase", "phase": "landmarks"})
        options = self.options
        side, _ = nystrom.landmarks(
            self.data, kernel, options.landmarks, options.sampling, options.seed
        )
        source = Design(self.data, kernel, side, nystrom.factor(kernel, side))
        design = source
        if self.plan.features == "stored":
            self.report({"event": "phase", "phase": "features"})
            folder = None if self.plan.features_in_memory else self._feature_folder()
            design = nystrom.stored_features(source, self.fleet, folder, self._feature_progress)
        self.seconds["features"] = time.monotonic() - began
        return design, source

    def _feature_folder(self) -> Path:
        if self.options.work is None:
            raise InputError(
                "the features do not fit in memory and no work folder was given to store them in; "
                "give one, allow more memory, or ask for recomputed features"
            )
        return self.options.work

    def _feature_progress(self, done: int, total: int) -> None:
        self.report({"event": "progress", "phase": "features", "done": done, "total": total})

    def _problems(self) -> Iterator[tuple[CSvc, Any]]:
        """The binary problems: one, or one label against the rest for every label."""
        options, labels = self.options, self.data.labels
        C = options.C if options.lam is None else 1.0 / (2.0 * self.data.n_rows * options.lam)
        weights = class_weights(options.class_weight, self.data)
        codes = [1] if len(labels) == 2 else range(len(labels))
        for code in codes:
            name = None if len(labels) == 2 else labels[code]
            yield CSvc(C, code, weights, options.intercept), name

    def _solve(
        self, design: Design, source: Design | None, problem: CSvc, name: Any
    ) -> dict[str, Any]:
        """Fit one binary problem; a finished one is read back when a run is resumed."""
        options = self.options
        folder = None if options.work is None else options.work / f"label-{problem.positive}"
        done = None if folder is None else folder / "done.json"
        if done is not None and options.resume and done.exists():
            result = json.loads(done.read_text())
            # One that missed the gap goes on from its last checkpoint.
            if result["certificate"]["relative_gap"] <= options.tol:
                return result
        solver: Any
        if self.plan.solver == "newton":
            solver = Newton(tol=options.tol)
        else:
            solver = CoordinateDescent(seed=options.seed)
        fitted = fit(
            design,
            problem,
            solver,
            self.fleet,
            Limits(options.tol, options.max_iter, self.deadline),
            rule=make_rule(options.screening, options.f),
            certify=options.certify,
            source=source,
            resident=self.plan.resident,
            folder=folder,
            resume=options.resume,
            report=lambda event: self._tell(event, name),
        )
        self.seconds["solve"] += fitted.seconds["solve"]
        self.seconds["certify"] += fitted.seconds["certify"]
        if fitted.certificate.relative_gap > options.tol:
            warnings.warn(
                f"the relative gap {fitted.certificate.relative_gap:.2e} missed tol "
                f"{options.tol:g}; allow more passes (max_iter) or time (time_budget)",
                ConvergenceWarning,
                stacklevel=4,
            )
        result = _result(fitted, name)
        if done is not None:
            done.parent.mkdir(parents=True, exist_ok=True)
            with replacing(done) as file:
                file.write(json.dumps(result).encode())
        return result

    def _tell(self, event: dict[str, Any], name: Any) -> None:
        if self.watched:
            # Asking every process for its memory takes longer than a pass over a few rows.
            self.report({**event, "class": name, "memory": self.fleet.memory()})

    # -- records -------------------------------------------------------------------------------
    def _claim(self, work: Path) -> None:
        """Make the work folder this problem's; refuse to resume another's."""
        fields = asdict(replace(self.options, work=None, resume=False, memory=None))
        for free in ("time_budget", "max_iter", "class_weight"):
            fields.pop(free)
        fields["class_weight"] = str(self.options.class_weight)
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

    def _provenance(self, kernel: Kernel, results: list[dict[str, Any]]) -> dict[str, Any]:
        parameters = asdict(replace(self.options, work=None, resume=False))
        parameters.pop("work"), parameters.pop("resume")
        if isinstance(self.options.class_weight, Mapping):
            parameters["class_weight"] = {str(k): v for k, v in parameters["class_weight"].items()}
        return {
            "versions": versions(),
            "fingerprint": self.data.fingerprint,
            "index_base": getattr(self.data, "manifest", {}).get("extra", {}).get("index_base"),
            "parameters": {**parameters, "kernel": kernel.to_dict()},
            "certificates": [result["certificate"] for result in results],
            "history": [event for result in results for event in result["history"]],
            "screening": [result["screening"] for result in results],
            "solver": self.plan.solver,
            "features": self.plan.features,
            "rows": self.data.n_rows,
            "seconds": self.seconds,
            "peak_pss_bytes": self.fleet.peak_pss,
        }


def _result(fitted: Fitted, name: Any) -> dict[str, Any]:
    return {
        "coef": fitted.point.coef.tolist(),
        "intercept": fitted.point.intercept,
        "certificate": {"label": name, **fitted.certificate.to_dict()},
        "history": [{**event, "class": name} for event in fitted.history],
        "screening": {"label": name, **fitted.screening},
    }


def _is_cluster(fleet: Any) -> bool:
    return hasattr(fleet, "address")
