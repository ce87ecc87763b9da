"""Training the exact kernel machine: no landmarks, every row may become part of the model."""

from __future__ import annotations

import time
import warnings
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from bigscreen.certify.exact import certified_alpha
from bigscreen.divide.partition import Partition
from bigscreen.errors import InputError
from bigscreen.features.design import Design
from bigscreen.fit.loop import Fitted
from bigscreen.fleet.inline import Inline
from bigscreen.kernels.base import Kernel
from bigscreen.kernels.definite import WITHOUT_PROOF, examined
from bigscreen.kernels.given import Custom, Precomputed
from bigscreen.kernels.moved import Moved
from bigscreen.kernels.standard import Linear
from bigscreen.model.model import NO_CERTIFICATE, Model
from bigscreen.numerics.rows import FloatArray
from bigscreen.screening.dynamic import check_rule
from bigscreen.solvers.block.solver import Block
from bigscreen.solvers.protocol import Solver
from bigscreen.solvers.smo.solver import Pairs
from bigscreen.train.job import Job, machine, records
from bigscreen.train.pairs import ByLabel, Slices, squared
from bigscreen.train.plan import FEW_ROWS
from bigscreen.train.problems import Binary
from bigscreen.train.start import Start, solve_parts, starting_point


class ExactJob(Job):
    """Kernel entries between rows, a solver that holds alpha, and the support rows as the model."""

    design: Design
    partition: Partition | None = None
    """The parts that an early model has a machine for each of."""

    def _kernel(self) -> Kernel:
        data, given = self.data, self.options.kernel
        if not (callable(given) or given == "precomputed"):
            return super()._kernel()
        if data.path is not None or hasattr(self.fleet, "address"):
            raise InputError(
                "a precomputed kernel, or one that is a function, needs rows in memory and threads "
                "of this process; give arrays and no scheduler"
            )
        if callable(given):
            return self._examined(Custom(given))
        if data.n_rows != data.n_features:
            raise InputError(
                f"a precomputed kernel is a square matrix, one entry for every pair of rows, not "
                f"{data.n_rows} by {data.n_features}"
            )
        return self._examined(Precomputed())

    def _examined(self, kernel: Custom | Precomputed) -> Kernel:
        """The kernel with what the rows say of it, which is told if it is not what they hoped."""
        found = examined(kernel, self.data)
        if not found.psd:
            told = f"the kernel is {found.known}; {WITHOUT_PROOF}"
            warnings.warn(told, UserWarning, stacklevel=6)
        return found

    def _prepare(self) -> None:
        design = self._design(self.kernel)
        if self.plan.solver == "pairs" and not hasattr(self.fleet, "address"):
            design = squared(design)
        self.design = design
        check_rule(self.options.rule, self.design.definite)

    def _result(self, binary: Binary) -> dict[str, Any]:
        if self.options.early:
            return self._parts(binary)
        result = self._finished(binary)
        if result is not None:
            return result
        start, own = Start(None, None), self._own_rows(binary)
        if own is None:
            design = self.design
            start = starting_point(self, design, binary)
            fitted = self._fit(design, binary, self._solver(), start.alpha)
        else:
            design = own
            fitted = self._fit(design, binary, Pairs(), fleet=self.alone)
        assert fitted.point.alpha is not None
        support, coef = self._support(design, binary, fitted.point.alpha)
        if isinstance(design.data, Slices):
            support = design.data.ids[support]
        result = {
            "support": support,
            **machine(coef, fitted, binary, self.data, self._offset(support, coef, fitted)),
            "start": start.record,
            **records(fitted, binary.name, self.options.tol),
        }
        return self._finish(binary, result)

    def _own_rows(self, binary: Binary) -> Design | None:
        """The design of the rows of one pair of labels, where they are few.

        All others have no part in that problem (weight 0), but every sum would pass over them.
        """
        options = self.options
        free = options.solver == "auto" and options.start in ("auto", "cold")
        if binary.codes is None or not free or hasattr(self.fleet, "address"):
            return None
        if self.counts[list(binary.codes)].sum() > FEW_ROWS:
            return None
        return self.by_label.pair(binary.codes)

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """Rows of every label."""
        return self.data.label_counts

    @cached_property
    def by_label(self) -> ByLabel:
        """The rows by label: made once for all pairs of labels."""
        both = np.add.outer(self.counts, self.counts)
        both = both[np.triu_indices(len(both), 1)]
        return ByLabel(self.design, int(np.max(both[both <= FEW_ROWS])))

    @cached_property
    def alone(self) -> Inline:
        """One thread, for problems so small that several would rather wait for each other."""
        return self._held.enter_context(Inline(1))

    def _offset(self, support: NDArray[np.int64], coef: FloatArray, fitted: Fitted) -> float:
        """The offset for rows where they are."""
        offset = fitted.certificate.intercept
        assert offset is not None
        if isinstance(self.kernel, Linear) and isinstance(self.design.data, Moved):
            offset -= self.design.data.shift(coef @ self.design.data.rows(support))
        return offset

    def _parts(self, binary: Binary) -> dict[str, Any]:
        """Every part's machine, and no certificate."""
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
        return {
            "support": support,
            "coef": coef,
            "intercept": divided.intercepts,
            "start": {"label": binary.name, "start": "divide", **divided.record},
            "certificate": None,
            "history": [],
        }

    def _support(
        self, design: Design, binary: Binary, alpha: FloatArray
    ) -> tuple[NDArray[np.int64], FloatArray]:
        """Support rows and their coefficients."""
        dual = design.dual(binary.problem)
        signed = dual.sign * certified_alpha(design, dual, alpha)
        support = np.flatnonzero(signed)
        return support, signed[support]

    def _solver(self) -> Solver:
        if self.plan.solver == "pairs":
            return Pairs(cache=self.plan.cache_bytes)
        return Block(cache=self.plan.cache_bytes, seed=self.options.seed)

    def _model(self, results: list[dict[str, Any]]) -> Model:
        data = self.data
        supports = [np.asarray(result["support"], np.int64) for result in results]
        rows = np.unique(np.concatenate(supports))
        if not len(rows):
            rows = np.zeros(1, np.int64)  # a score of nothing but the offset is one, too
        coef = np.zeros((len(results), len(rows)))
        for own, support, result in zip(coef, supports, results, strict=True):
            own[np.searchsorted(rows, support)] = result["coef"]
        parts = self.partition
        return Model(
            kernel=self.kernel,
            landmarks=self._landmarks(rows),
            coef=coef,
            intercept=np.array([result["intercept"] for result in results]),
            preparation=data.preparation,
            provenance=self._provenance(results),
            **self._kind(),
            support=data.row_ids(0, data.n_rows)[rows],
            gate=None if parts is None else parts.centres.gate,
            part=None if parts is None else parts.assign[rows],
        )

    def _landmarks(self, rows: np.ndarray) -> Any:
        if isinstance(self.kernel, Precomputed):
            # Their numbers are all that it needs of them.
            return sparse.csr_array((len(rows), self.data.n_features), dtype=np.float32)
        return self.data.rows(rows)

    def _provenance(self, results: list[dict[str, Any]]) -> dict[str, Any]:
        known = super()._provenance(results)
        if isinstance(self.kernel, (Custom, Precomputed)):
            known["kernel_known"] = self.kernel.known
        if self.partition is not None:
            known |= {"certificates": None, "no_certificate": NO_CERTIFICATE, "screening": []}
        return known

    def _fingerprint(self) -> str | None:
        # Hashing 60,000 images takes a tenth of the fit: only what somebody can look up again.
        stored = self.data.path is not None or self.options.work is not None
        return super()._fingerprint() if stored else None
