"""Train exact kernel machines: without landmarks, any row may become a support vector."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.certify.exact import feasible_alpha
from bigscreen.data.views import Moved
from bigscreen.device.columns import DeviceBackend
from bigscreen.errors import InputError
from bigscreen.features.design import Design
from bigscreen.fit.ladder import Rung, rungs_after_pairs
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
from bigscreen.train.pairs import RowsByLabel, share_kernel_matrix
from bigscreen.train.partition import Partition
from bigscreen.train.problems import Binary
from bigscreen.train.records import combine_supports, scale_machine, support_rows
from bigscreen.train.start import solve_parts, start_at_earlier_alpha, starting_point


class ExactJob(Job):
    """The training run of an exact kernel machine, whose model consists of support vectors."""

    design: Design
    partition: Partition | None = None
    """The partition of the rows, if each part has a machine of its own; else None."""

    def _prepare(self) -> None:
        """Make the design of all rows, and check that the screening rule suits the kernel."""
        self.design = self.design_of(self.kernel)
        if self.plan.solver == "pairs":
            self.design = share_kernel_matrix(self.design)
        check_rule(self.options.rule, self.design.definite)

    def _attempt(self, binary: Binary) -> Attempt:
        """Return how to solve one problem.

        If the rows of its two labels are few: by pair steps (SMO) on these rows alone, in this
        process. Else: over all rows on the fleet, by block steps, or by pair steps if so planned.
        """
        if self._has_few_rows(binary):
            assert binary.codes is not None
            own, rows = self.by_label.pair(binary.codes)
            warm = start_at_earlier_alpha(self, own, binary, rows) or Start()
            return Attempt(own, Pairs(), self.alone, warm, then=self._fallbacks(own), rows=rows)
        start = self._start(self.design, binary)
        design = self._with_device(self.design)
        solver: Solver = Block(cache=self.plan.cache_bytes, seed=self.options.seed)
        if self.plan.solver == "pairs":
            solver = Pairs(cache=self.plan.cache_bytes)
        return Attempt(design, solver, self.fleet, start, then=self._fallbacks(design))

    def _with_device(self, design: Design) -> Design:
        """Return the design with kernel columns on the plan's device, if it has one."""
        found = self.plan.on_device
        if found is None:
            return design
        return replace(design, backend=DeviceBackend(found.device.place, found.row_bytes > 0))

    def _fallbacks(self, design: Design) -> tuple[Rung, ...]:
        """Return the solvers that may continue a solve; none if the options name a solver."""
        return (
            rungs_after_pairs(design, self.plan.nearby_bytes)
            if self.options.solver == "auto"
            else ()
        )

    def _start(self, design: Design, binary: Binary) -> Start:
        """Return the start: at an earlier machine's alpha, else as the options request."""
        warm = start_at_earlier_alpha(self, design, binary)
        return starting_point(self, design, binary) if warm is None else warm

    def _machine(self, attempt: Attempt, fitted: Fitted, binary: Binary) -> Result:
        """Return the support vectors (row numbers), coefficients and offset of a solved problem."""
        assert fitted.point.alpha is not None and fitted.certificate.intercept is not None
        support, coef = self._support(attempt.design, binary, fitted.point.alpha)
        if attempt.rows is not None:
            support = attempt.rows[support]
        # The offset for rows that are not shifted.
        offset, near = fitted.certificate.intercept, self.design.data
        if isinstance(self.kernel, Linear) and isinstance(near, Moved):
            offset -= near.shift(coef @ near.rows(support))
        return {"support": support, **scale_machine(coef, fitted, binary, self.data, offset)}

    def _has_few_rows(self, binary: Binary) -> bool:
        """Whether to solve a pair of labels on a design of its own rows.

        The rows of other labels have weight 0 in that problem, but every sum would include them.
        """
        options = self.options
        free = options.solver == "auto" and options.tuning.start in ("auto", "cold")
        if binary.codes is None or not free:
            return False
        return bool(self.counts[list(binary.codes)].sum() <= PLAN.few_rows)

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """The number of rows of each label, int64 (labels,)."""
        return self.data.label_counts

    @cached_property
    def by_label(self) -> RowsByLabel:
        """The rows grouped by label, which all pairs of labels share."""
        both = np.add.outer(self.counts, self.counts)
        both = both[np.triu_indices(len(both), 1)]
        return RowsByLabel(self.design, int(np.max(both[both <= PLAN.few_rows])))

    @cached_property
    def alone(self) -> Inline:
        """A fleet of one thread: in small problems several threads would wait for each other."""
        return self._held.enter_context(Inline(1))

    def _support(
        self, design: Design, binary: Binary, alpha: FloatArray
    ) -> tuple[NDArray[np.int64], FloatArray]:
        """Return the row numbers of the support vectors, and their coefficients.

        ``alpha``: the solution of the problem over the design's rows.
        """
        dual = design.dual(binary.problem)
        signed = dual.sign * feasible_alpha(design, dual, alpha)
        signed = np.sum(signed.reshape(self.data.sides, -1), axis=0)
        support = np.flatnonzero(signed)
        return support, signed[support]

    def _parts(self, results: list[Result]) -> dict[str, Any]:
        """Return the arrays of the model: support vectors, coefficients, and the partition if any.

        ``results``: one for each binary problem.
        """
        data = self.data
        rows, coef = combine_supports([(result["support"], result["coef"]) for result in results])
        parts = {
            "landmarks": support_rows(self.kernel, data, rows),
            "coef": coef,
            "support": data.row_ids(0, data.n_rows)[rows],
        }
        if self.partition is not None:
            parts |= {"gate": self.partition.centres.gate, "part": self.partition.assign[rows]}
        return parts

    def _provenance(self, results: list[Result]) -> dict[str, Any]:
        """Return the model's record of the run, with what is known of a given kernel."""
        known = super()._provenance(results)
        if isinstance(self.kernel, (Custom, Precomputed)):
            known["kernel_known"] = self.kernel.known
        return known


class EarlyJob(ExactJob):
    """The training run of an early fit: one machine for each part of the rows, no certificate."""

    def solve(self, some: Sequence[Binary]) -> None:
        """Solve every part of the rows, without a proof or checkpoints."""
        for binary in some:
            self._solve_parts(binary)

    def _solve_parts(self, binary: Binary) -> None:
        """Solve each part of the rows by itself, and keep the machines as the problem's result."""
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
        """Return the model's record of the run, which has no certificate."""
        known = super()._provenance(results)
        return {**known, "certificates": None, "no_certificate": NO_CERTIFICATE, "screening": []}
