"""Train on explicit features: the columns of a linear machine, or features from landmarks."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.data.views import Moved
from bigscreen.device.newton import DenseNewton
from bigscreen.errors import InputError, TimeOver
from bigscreen.features import nystrom
from bigscreen.features.design import Design
from bigscreen.fit.ladder import Rung, rungs_after_newton
from bigscreen.fit.loop import Fitted
from bigscreen.kernels.operand import Operand
from bigscreen.numerics.rows import FloatArray
from bigscreen.options.train import PROBLEMS
from bigscreen.problems.recipes import Problem
from bigscreen.solvers.coordinate import CoordinateDescent
from bigscreen.solvers.interior import InteriorPoint
from bigscreen.solvers.newton.solver import Newton
from bigscreen.solvers.protocol import Solver
from bigscreen.solvers.smo.solver import Pairs
from bigscreen.solvers.snacks.solver import Pegasos, Snacks
from bigscreen.train.job import Attempt, Job, Result, Start
from bigscreen.train.problems import Binary
from bigscreen.train.records import scale_machine
from bigscreen.train.start import (
    should_start_from_fewer,
    start_at_earlier_w,
    start_from_fewer,
    starting_point,
)

MAX_FACTOR_BYTES = 2**25
"""Store the factor of the landmarks' kernel matrix in a model only if it takes at most this many
bytes; with it, later edits of the model's rows are faster."""


class FeaturesJob(Job):
    """The training run of a machine on explicit features: linear, or from landmarks (Nystrom)."""

    design: Design
    source: Design | None = None
    """The kernel design behind ``design``; None for a linear machine."""
    factor: nystrom.Factor | None = None
    """The factor of the landmarks' kernel matrix; None for a linear machine."""
    ids: NDArray[np.int64] | None = None
    """The row numbers of the landmarks; None for a linear machine, and for landmarks given."""
    sampling: str = ""
    """How landmarks were picked; never "auto", but what it stands for."""

    def _prepare(self) -> None:
        """Make the design: raw rows, or features of landmarks, stored if the plan says so."""
        options = self.options
        if options.kernel == "linear":
            self.design = self.design_of(None)
            return
        began = time.monotonic()
        self.report({"event": "phase", "phase": "landmarks"})
        bare = self.design_of(self.kernel)
        assert bare.kernel is not None
        side = self._landmarks(bare)
        self.factor = self._factored(bare, side)
        self.source = self.factor.of(bare, side)
        self.design = self.source
        self.landmarks = {"rank": self.design.rank, "cutoff": self.factor.cutoff}
        if self.plan.features == "stored":
            self._store()
        self.seconds["features"] = time.monotonic() - began

    def _store(self) -> None:
        """Compute the features of all rows and store them, in memory or on disk."""
        assert self.source is not None
        self.report({"event": "phase", "phase": "features"})
        folder = None if self.plan.features_in_memory else self._feature_folder()
        # The steps of an interior point are exact: float32 features would limit the gap.
        dtype = np.float64 if self.plan.solver == "interior" else np.float32
        self.design = nystrom.store_features(
            self.source, self.fleet, folder, self._feature_progress, dtype
        )

    def _landmarks(self, bare: Design) -> Operand:
        """Choose the landmarks among the rows of ``bare``, a design that has none yet."""
        options = self.options
        assert bare.kernel is not None
        if options.components is not None:
            return Operand(options.components.as_rows_of(bare.data))
        self.sampling = nystrom.resolve_sampling(
            bare.data, bare.kernel, options.sampling, options.seed
        )
        side, self.ids = nystrom.choose_landmarks(
            bare.data, bare.kernel, options.landmarks, self.sampling, options.seed
        )
        return side

    def _factored(self, bare: Design, side: Operand) -> nystrom.Factor:
        """Factor the kernel matrix of the landmarks ``side``."""
        assert bare.kernel is not None
        return nystrom.factor_landmarks(bare.kernel, side, self._cutoff())

    def _cutoff(self) -> float:
        """Return the smallest kernel-matrix eigenvalue to keep, as a fraction of the largest."""
        asked, stored = self.options.tuning.truncation, self.plan.features == "stored"
        if asked is None:
            return nystrom.FLOAT64_CUTOFF if stored else nystrom.FLOAT32_CUTOFF
        if not stored and asked < nystrom.FLOAT32_CUTOFF:
            raise InputError(
                f"features that are recomputed are made of float32 columns, which carry a "
                f"truncation of {nystrom.FLOAT32_CUTOFF:g} at least, "
                f"not `tuning.truncation={asked:g}`; "
                "leave it out, or use `tuning.features='stored'`"
            )
        return asked

    def _provenance(self, results: list[Result]) -> dict[str, Any]:
        """Return the model's record of the run, with the landmarks' factor and sampling."""
        known = super()._provenance(results)
        if self.factor is None:
            return known
        picked: dict[str, Any] = {}
        if self.options.sampling == "auto" and self.sampling:
            picked["sampling"] = self.sampling
        if self.ids is not None:
            picked["rows"] = self.data.row_ids(0, self.data.n_rows)[self.ids].tolist()
        return {**known, "nystrom": {**self.factor.record(), **picked}}

    def _feature_folder(self) -> Path:
        """Return the work folder, which stored features need; `InputError` without one."""
        if self.options.work is None:
            raise InputError(
                "the features do not fit in memory and no work folder was given to store them in; "
                "give one, allow more memory, or ask for recomputed features"
            )
        return self.options.work

    def _feature_progress(self, done: int, total: int) -> None:
        """Report ``done`` of ``total`` parts of features; `TimeOver` if time is up."""
        self.report({"event": "progress", "phase": "features", "done": done, "total": total})
        # Features in memory would be lost when the process ends: finish computing them.
        if self.hard_deadline is None or self.plan.features_in_memory or done == total:
            return
        if time.monotonic() > self.hard_deadline:
            raise TimeOver(
                f"the time budget ended with {done} of {total} parts of features written"
            )

    def _attempt(self, binary: Binary) -> Attempt:
        """Return how to solve one binary problem: solver, start, and solvers that may continue."""
        start = self._start(self.design, binary)
        solver: Solver = CoordinateDescent(seed=self.options.seed)
        then: tuple[Rung, ...] = ()
        if self.plan.solver == "newton":
            solver = newton = Newton(tol=self._tol(binary))
            then = self._fallbacks(newton, binary.problem)
        elif self.plan.solver == "dense":
            solver = DenseNewton(tol=self._tol(binary), place=self.plan.device.place)
        elif self.plan.solver == "interior":
            solver = InteriorPoint()
        elif self.plan.solver == "pairs":
            solver = Pairs(cache=self.plan.cache_bytes)
        elif self.plan.solver == "snacks":
            solver = Snacks(tol=self._tol(binary), seed=self.options.seed)
        elif self.plan.solver == "pegasos":
            solver = Pegasos(tol=self._tol(binary), seed=self.options.seed)
        return Attempt(self.design, solver, self.fleet, start, self.source, then)

    def _fallbacks(self, newton: Newton, problem: Problem) -> tuple[Rung, ...]:
        """Return the solvers that may continue, in this order, when Newton's steps gain no more."""
        interior = self.options.solver == "auto" and not PROBLEMS[self.options.problem].squared
        room, columns = self.plan.nearby_bytes // self.plan.together, self.plan.columns
        columns = self.plan.landmarks or columns
        return rungs_after_newton(
            newton, problem, self.design, self.source, columns, room, interior
        )

    def _start(self, design: Design, binary: Binary) -> Start:
        """Return the start: at an earlier machine, else at fewer landmarks if they are many.

        If there is neither, the start is as the options request.
        """
        warm = start_at_earlier_w(self, design, self.source, binary)
        if warm is not None:
            return warm
        if should_start_from_fewer(self, design, binary):
            return start_from_fewer(self, design, binary)
        return starting_point(self, design, binary)

    def _machine(self, attempt: Attempt, fitted: Fitted, binary: Binary) -> Result:
        """Return coefficients and offset of a solved problem, for rows that are not shifted."""
        # The offset for rows that are not shifted.
        offset, data = fitted.certificate.intercept, self.design.data
        if offset is None:
            offset = fitted.point.intercept
        if self.source is None and isinstance(data, Moved):
            offset -= data.shift(fitted.point.coef)
        return scale_machine(fitted.point.coef, fitted, binary, self.data, offset)

    def _parts(self, results: list[Result]) -> dict[str, Any]:
        """Return the arrays of the model: landmarks, coefficients, and the factor if it is small.

        ``results``: one for each binary problem. The factor is that of the landmarks' kernel
        matrix.
        """
        known, factor = {}, self.factor
        if factor is not None and factor.matrix.nbytes <= MAX_FACTOR_BYTES:
            known["factor"] = factor
        return {"landmarks": self.model_landmarks(), "coef": self._coef(results), **known}

    def _coef(self, results: list[Result]) -> FloatArray:
        """Return the model's coefficients of all machines, (machines, landmarks or columns).

        ``results``: one for each machine (binary problem), with coefficients of the solver's
        features.
        """
        coefs = [np.asarray(result["coef"]) for result in results]
        # Stored features are phi = T' k(x, Z), and the model has coefficients of k(x, Z).
        if self.source is not None and self.source is not self.design:
            coefs = [self.source.coef(coef) for coef in coefs]
        return np.stack(coefs)

    def model_landmarks(self) -> Any:
        """Return the landmarks as rows of the data; None for a linear machine."""
        if self.options.components is not None:
            return self.options.components.as_rows_of(self.data)
        return None if self.ids is None else self.data.rows(self.ids)
