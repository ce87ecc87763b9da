"""Training exact kernel machines: no landmarks, every row may become part of the model."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.certify.exact import certified_alpha
from bigscreen.data.views import Moved
from bigscreen.errors import InputError
from bigscreen.features.design import Design
from bigscreen.fit.ladder import Rung, of_exact
from bigscreen.fit.loop import Fitted
from bigscreen.fleet.inline import Inline
from bigscreen.kernels.given import Custom, Precomputed
from bigscreen.kernels.standard import Linear
from bigscreen.model.model import NO_CERTIFICATE
from bigscreen.numerics.rows import FloatArray
from bigscreen.plan.tuning import PLAN
from bigscreen.screening.dynamic import check_rule
from bigscreen.solvers.block.solver import Block
from bigscreen.solvers.protocol import Solver
from bigscreen.solvers.smo.solver import Pairs
from bigscreen.train.job import Attempt, Job, Result, Start
from bigscreen.train.pairs import ByLabel, squared
from bigscreen.train.partition import Partition
from bigscreen.train.problems import Binary
from bigscreen.train.records import gathered, machine, support_rows
from bigscreen.train.start import solve_parts, starting_point


class ExactJob(Job):
    """Kernel entries between rows, a solver that holds alpha, and the support rows as the model."""

    design: Design
    partition: Partition | None = None
    """The parts of the rows, of a machine for each of them."""

    def _prepare(self) -> None:
        self.design = self.design_of(self.kernel)
        if self.plan.solver == "pairs":
            self.design = squared(self.design)
        check_rule(self.options.rule, self.design.definite)

    def _attempt(self, binary: Binary) -> Attempt:
        if self._has_few_rows(binary):
            assert binary.codes is not None
            own, rows = self.by_label.pair(binary.codes)
            return Attempt(own, Pairs(), self.alone, then=self._then(own), rows=rows)
        start = self._start(self.design, binary)
        solver: Solver = Block(cache=self.plan.cache_bytes, seed=self.options.seed)
        if self.plan.solver == "pairs":
            solver = Pairs(cache=self.plan.cache_bytes)
        return Attempt(self.design, solver, self.fleet, start, then=self._then(self.design))

    def _then(self, design: Design) -> tuple[Rung, ...]:
        """What may go on where steps on alpha are left, unless a solver was asked for."""
        return of_exact(design, self.plan.nearby_bytes) if self.options.solver == "auto" else ()

    def _start(self, design: Design, binary: Binary) -> Start:
        return starting_point(self, design, binary)

    def _machine(self, attempt: Attempt, fitted: Fitted, binary: Binary) -> Result:
        assert fitted.point.alpha is not None and fitted.certificate.intercept is not None
        support, coef = self._support(attempt.design, binary, fitted.point.alpha)
        if attempt.rows is not None:
            support = attempt.rows[support]
        # The offset for rows where they are.
        offset, near = fitted.certificate.intercept, self.design.data
        if isinstance(self.kernel, Linear) and isinstance(near, Moved):
            offset -= near.shift(coef @ near.rows(support))
        return {"support": support, **machine(coef, fitted, binary, self.data, offset)}

    def _has_few_rows(self, binary: Binary) -> bool:
        """Whether to solve a pair of labels on a design of its own rows.

        All others have no part in that problem (weight 0), but every sum would pass over them.
        """
        options = self.options
        free = options.solver == "auto" and options.tuning.start in ("auto", "cold")
        if binary.codes is None or not free:
            return False
        return bool(self.counts[list(binary.codes)].sum() <= PLAN.few_rows)

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """Rows of every label."""
        return self.data.label_counts

    @cached_property
    def by_label(self) -> ByLabel:
        """The rows by label: made once for all pairs of labels."""
        both = np.add.outer(self.counts, self.counts)
        both = both[np.triu_indices(len(both), 1)]
        return ByLabel(self.design, int(np.max(both[both <= PLAN.few_rows])))

    @cached_property
    def alone(self) -> Inline:
        """One thread, for problems so small that several would rather wait for each other."""
        return self._held.enter_context(Inline(1))

    def _support(
        self, design: Design, binary: Binary, alpha: FloatArray
    ) -> tuple[NDArray[np.int64], FloatArray]:
        """Support rows of the source, and their coefficients."""
        dual = design.dual(binary.problem)
        signed = dual.sign * certified_alpha(design, dual, alpha)
        signed = np.sum(signed.reshape(self.data.sides, -1), axis=0)
        support = np.flatnonzero(signed)
        return support, signed[support]

    def _parts(self, results: list[Result]) -> dict[str, Any]:
        data = self.data
        rows, coef = gathered([(result["support"], result["coef"]) for result in results])
        parts = {
            "landmarks": support_rows(self.kernel, data, rows),
            "coef": coef,
            "support": data.row_ids(0, data.n_rows)[rows],
        }
        if self.partition is not None:
            parts |= {"gate": self.partition.centres.gate, "part": self.partition.assign[rows]}
        return parts

    def _provenance(self, results: list[Result]) -> dict[str, Any]:
        known = super()._provenance(results)
        if isinstance(self.kernel, (Custom, Precomputed)):
            known["kernel_known"] = self.kernel.known
        return known


class EarlyJob(ExactJob):
    """Machines of parts of the rows, each row scored by that of its part, and no certificate."""

    def solve(self, some: Sequence[Binary]) -> None:
        """Solve every part of the rows; there is no proof, and nothing is kept to resume from."""
        for binary in some:
            self._solve_parts(binary)

    def _solve_parts(self, binary: Binary) -> None:
        began = time.monotonic()
        divided = solve_parts(self, self.design, binary.problem)
        self.seconds["solve"] += time.monotonic() - began
        if self.partition is None:
            self.partition = divided.partition
        elif not np.array_equal(self.partition.assign, divided.partition.assign):
            raise InputError(
                "several levels part the rows by each problem's own support rows, and a model has "
                "one partition; with more than two labels early needs one level"
            )
        support, coef = self._support(self.design, binary, divided.alpha)
        self.results[binary.folder] = {
            "support": support,
            "coef": coef,
            "intercept": divided.intercepts,
            "start": {"label": binary.name, "start": "divide", **divided.record},
            "certificate": None,
            "history": [],
        }

    def _provenance(self, results: list[Result]) -> dict[str, Any]:
        known = super()._provenance(results)
        return {**known, "certificates": None, "no_certificate": NO_CERTIFICATE, "screening": []}
