"""Training on features that can be written down: a linear machine, or kernel columns."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bigscreen import nystrom
from bigscreen.design import Design
from bigscreen.errors import InputError
from bigscreen.fit import Fitted
from bigscreen.solvers.coordinate import CoordinateDescent
from bigscreen.solvers.newton import Newton
from bigscreen.solvers.pairs import Pairs
from bigscreen.solvers.protocol import Solver
from bigscreen.store import Moved
from bigscreen.store.model import Model
from bigscreen.train_job import Job, machine, records
from bigscreen.train_problems import Binary
from bigscreen.train_start import starting_point


class FeaturesJob(Job):
    """Landmarks, their columns (or the rows themselves), a solver, and coefficients of columns."""

    design: Design
    source: Design | None = None
    """The kernel design behind ``design``; None for a linear machine."""

    def _prepare(self) -> None:
        options = self.options
        if options.kernel == "linear":
            self.design = self._design(None)
            return
        began = time.monotonic()
        self.report({"event": "phase", "phase": "landmarks"})
        bare = self._design(self.kernel)
        assert bare.kernel is not None
        side, self.ids = nystrom.landmarks(
            bare.data, bare.kernel, options.landmarks, options.sampling, options.seed
        )
        self.source = replace(bare, landmarks=side, factor=nystrom.factor(bare.kernel, side))
        self.design = self.source
        if self.plan.features == "stored":
            self.report({"event": "phase", "phase": "features"})
            folder = None if self.plan.features_in_memory else self._feature_folder()
            self.design = nystrom.stored_features(
                self.source, self.fleet, folder, self._feature_progress
            )
        self.seconds["features"] = time.monotonic() - began

    def _feature_folder(self) -> Path:
        if self.options.work is None:
            raise InputError(
                "the features do not fit in memory and no work folder was given to store them in; "
                "give one, allow more memory, or ask for recomputed features"
            )
        return self.options.work

    def _feature_progress(self, done: int, total: int) -> None:
        self.report({"event": "progress", "phase": "features", "done": done, "total": total})

    def _result(self, binary: Binary) -> dict[str, Any]:
        result = self._finished(binary)
        if result is not None:
            return result
        start = starting_point(self, self.design, binary)
        fitted = self._fit(self.design, binary, self._solver(), start.alpha, self.source)
        result = {
            **machine(fitted.point.coef, fitted, binary, self.data, self._offset(fitted)),
            "start": start.record,
            **records(fitted, binary.name, self.options.tol),
        }
        return self._finish(binary, result)

    def _offset(self, fitted: Fitted) -> float:
        """The offset for rows where they are."""
        offset, data = fitted.point.intercept, self.design.data
        if self.source is None and isinstance(data, Moved):
            offset -= data.shift(fitted.point.coef)
        return offset

    def _solver(self) -> Solver:
        if self.plan.solver == "newton":
            return Newton(tol=self.options.tol)
        if self.plan.solver == "pairs":
            return Pairs(cache=self.plan.cache_bytes)
        return CoordinateDescent(seed=self.options.seed)

    def _model(self, results: list[dict[str, Any]]) -> Model:
        coefs = [np.asarray(result["coef"]) for result in results]
        # Stored features are phi = T' k(x, Z): the model goes back to coefficients of k(x, Z).
        if self.source is not None and self.source is not self.design:
            coefs = [self.source.coef(coef) for coef in coefs]
        return Model(
            kernel=self.kernel,
            landmarks=None if self.source is None else self.data.rows(self.ids),
            coef=np.stack(coefs),
            intercept=np.array([result["intercept"] for result in results]),
            preparation=self.data.preparation,
            provenance=self._provenance(results),
            **self._kind(),
        )
