"""Fits of edited rows that start from the machine of the rows before the edit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bigscreen.amend.bound import Bound
from bigscreen.amend.edits import Changes
from bigscreen.certify.incremental import IncrementalCertifier, KnownDualPoint
from bigscreen.data.rows import Rows
from bigscreen.data.views import Moved
from bigscreen.features.design import Design
from bigscreen.features.nystrom import Factor
from bigscreen.fit.loop import fit
from bigscreen.fleet.blas import blas_threads
from bigscreen.kernels.operand import Operand
from bigscreen.model.model import Model
from bigscreen.numerics.rows import FloatArray
from bigscreen.options.train import TrainOptions
from bigscreen.plan.plan import plan_on
from bigscreen.problems.recipes import CSvc
from bigscreen.solvers.newton.near import Nearby, StartingPoint, max_rows_in, pick_first_rows
from bigscreen.solvers.protocol import Near
from bigscreen.train.exact import ExactJob
from bigscreen.train.features import FeaturesJob
from bigscreen.train.job import Attempt, Job, Start
from bigscreen.train.problems import Binary
from bigscreen.train.start import earlier_x, starting_point


@dataclass(frozen=True)
class EditStart:
    """The start of a fit of edited rows: a dual point, and what was proved of each old row.

    The ledger of the old model records what its certificate proves of each row.

    Parameters
    ----------
    found : Bound
        The bound on what the edits change.
    alpha : float64 (n,)
        A dual point of the edited problem.
    ends : float64 (n,)
        For edited rows: alpha. For the other rows: the end of the box that the side of the row
        under the old w implies. (Exact machines: alpha.)
    far : float64 (n,)
        How far the old w can move before each row reaches its hinge point, in radii of the old
        ledger; 0 for edited rows. (Exact machines: all 0.)
    """

    found: Bound
    alpha: FloatArray
    ends: FloatArray
    far: FloatArray

    @property
    def dual(self) -> float:
        """A lower bound on the dual objective of the edited problem at ``alpha``."""
        return self.found.primal - self.found.gap


class _Amended(Job):
    """A training run (`Job`) whose problems start from an old model: from its dual points or its w.

    Parameters
    ----------
    old : Model
        The model before the edit.
    begun : dict
        The start of each problem, by the name of the problem's folder.
    given
        As for `Job`.
    """

    def __init__(self, old: Model, begun: dict[str, EditStart], *given: Any) -> None:
        """Keep the old model and the starts; ``given`` goes to `Job`."""
        super().__init__(*given)
        self.old, self.begun = old, begun

    def _start(self, design: Design, binary: Binary) -> Start:
        """Start a problem at the edited dual point, made feasible for the edited rows."""
        alpha = self.begun[binary.folder].alpha
        dual = binary.problem.dual(design.data.y(0, len(alpha)), design.data.weights(0, len(alpha)))
        return Start(dual.feasible(alpha), {"label": binary.name, "start": "amended"})


class _AmendedExact(_Amended, ExactJob):
    """A refit of an exact kernel machine from the old dual point."""


class _AmendedFeatures(_Amended, FeaturesJob):
    """A refit on the old model's landmarks, even if these rows were edited.

    A single problem is first solved over the rows that the edits can affect (`Nearby`). If that
    does not reach the gap, features of all rows are stored and the solve goes on over all rows.
    """

    nearby: Nearby | None = None
    """The solver over rows that the edits can affect; None: steps go over all rows at once."""
    start_over_all: Near | None = None
    """The start of steps over all rows; None: the old machine."""

    def _store(self) -> None:
        """Prepare the solve over the rows that the edits can affect; else store all rows' features.

        The solve is prepared if the run is one C-SVC solved by Newton steps, and few rows can be
        affected.
        """
        if self._is_single_newton():
            self.nearby = self._make_nearby()
        if self.nearby is None:
            super()._store()

    def solve(self, some: Sequence[Binary]) -> None:
        """Solve the problems; a single one, if prepared, first over the rows that edits can affect.

        If that does not reach the gap, store the features of all rows and solve over all of them.
        """
        if self.nearby is not None:
            (binary,) = some
            start = Start(record={"label": binary.name, "start": "amended"})
            attempt = Attempt(self.design, self.nearby, self.fleet, start, self.source)
            how = {**self._fit_arguments(binary, attempt), "rule": None, "certify": "float64"}
            fitted = fit(
                self._run(binary, attempt), self.nearby, incremental=self.nearby.incremental, **how
            )
            for phase, seconds in fitted.seconds.items():
                self.seconds[phase] += seconds
            if fitted.ended in ("proved", "rounded"):
                self._take_result(binary, attempt, fitted)
                return
            self.start_over_all = self.nearby.reached
            super()._store()
        super().solve(some)

    def _is_single_newton(self) -> bool:
        """Whether the run has one problem, a C-SVC, and the plan solves it by Newton steps."""
        one = len(self.problems) == 1 and type(self.problems[0].problem) is CSvc
        return one and self.plan.solver == "newton"

    def _make_nearby(self) -> Nearby | None:
        """Make the solver over rows that the edits can affect; None if there are too many rows."""
        (binary,), source = self.problems, self.source
        assert source is not None and source.kernel is not None and source.factor is not None
        begun, data, n = self.begun[binary.folder], source.data, source.data.n_rows
        found = begun.found
        book = found.machine.ledger
        assert book.dual is not None
        dual = binary.problem.dual(data.y(0, n), data.weights(0, n))
        room, size = self.plan.nearby_bytes, source.rank + bool(found.machine.constant)
        near = pick_first_rows(begun.far, found.relative_gap, dual, size)
        most = max_rows_in(room, size, np.float64)
        if near is None or np.count_nonzero(near) > most:
            return None
        (rows, coef), side = found.change, source.side
        way = Operand(data.move(rows.X)) if isinstance(data, Moved) else rows
        sums = source.multiply_by_landmark_kernel(book.dual.coef)
        if len(coef):
            sums += source.kernel.dots(side, way, coef[:, None], np.float64)[:, 0]
        # Rows that are left out get the alpha of their side.
        off = np.flatnonzero(~near & (begun.alpha != begun.ends))
        alpha, more, change = np.where(near, begun.alpha, begun.ends), 0.0, 0.0
        if len(off):
            step = (dual.sign * (begun.ends - begun.alpha))[off]
            others = Operand(data.rows(off))
            sums += source.kernel.dots(side, others, step[:, None], np.float64)[:, 0]
            more, change = float(np.sum(step)), float(np.sum(np.abs(step)))
        w_alpha = source.factor.T @ sums
        if constant := found.machine.constant:
            moved = constant * (float(np.sum(coef)) + more)
            w_alpha = np.append(w_alpha, book.dual.offset / constant + moved)
        # The error of w(alpha): its old error, plus the errors of the kernel entries used here.
        proof = found.machine.proof
        moved = float(np.sum(np.abs(book.dual.coef)) + np.sum(np.abs(coef)) + change)
        w_error = float(np.sqrt(2.0 * proof["rounding_bound"]))
        w_error += source.feature_error(np.float64) * moved
        largest = float(np.max(np.abs(sums)))
        known = KnownDualPoint(alpha, w_alpha, largest, w_error, proof["certified_in"])
        incremental = IncrementalCertifier(source, binary.problem, self.fleet, known)
        old = Near(self._old(binary), begun.dual)
        standing = StartingPoint(alpha, w_alpha, old, found.primal)
        return Nearby(standing, near, source, room, incremental)

    def _start(self, design: Design, binary: Binary) -> Start:
        """Start at w of the old machine, or at the w that the solve over nearby rows reached."""
        start = starting_point(self, design, binary)
        old = Near(self._old(binary), self.begun[binary.folder].dual)
        return start._replace(near=self.start_over_all or old)

    def _old(self, binary: Binary) -> FloatArray:
        """Return the old machine of a problem as a primal point (`earlier_x`)."""
        k = [one.folder for one in self.problems].index(binary.folder)
        return earlier_x(self.design, self.source, binary.problem, self.old, k)

    def _landmarks(self, bare: Design) -> Operand:
        """Return the old model's landmarks, shifted and scaled if ``bare`` does so with rows."""
        rows: Any = self.old.landmarks
        known = self.old.provenance.get("nystrom") or {}
        self.sampling = known.get("sampling", self.options.sampling)
        if isinstance(bare.data, Moved):
            rows = bare.data.move(rows)
        return Operand(rows)

    def _factored(self, bare: Design, side: Operand) -> Factor:
        """The old factor of the landmarks' kernel matrix if it still applies, else a new one."""
        known = self.old.factor
        alike = self.old.provenance.get("features") == self.plan.features
        if known is None or not alike or isinstance(bare.data, Moved):
            return super()._factored(bare, side)
        return Factor(*known)

    def model_landmarks(self) -> Any:
        """The old model's landmarks, which the new model keeps."""
        return self.old.landmarks


def refit(
    model: Model,
    data: Rows,
    options: TrainOptions,
    fleet: Any,
    begun: dict[str, EditStart],
    report: Any = None,
) -> Model:
    """Refit a model to edited rows, on its old landmarks, and certify it over all rows.

    Parameters
    ----------
    model : Model
        The model before the edits.
    data : Rows
        The edited rows.
    options : TrainOptions
        The options of the fit that made the model.
    fleet : Fleet
    begun : dict
        The start of each problem, by the name of the problem's folder.
    report : callable or None
        Receives events of the run, as for `train`.
    """
    kind = _AmendedExact if options.exact else _AmendedFeatures
    # (The start is given in the old machine's features, so the plan keeps their kind.)
    stored = model.provenance.get("features") == "stored"
    outlined = plan_on(fleet, data, options, prefers_stored=stored)
    with blas_threads(1), kind(model, begun, data, options, fleet, report, outlined) as job:
        job.begin()
        for some in job.turns():
            job.solve(some)
        return job.model()


def start_after_edits(
    model: Model, k: int, binary: Binary, data: Rows, edited: Changes, found: Bound
) -> EditStart:
    """Make the start of the k-th problem after edits: the dual point of its bound ``found``.

    ``data``: the rows before the edits; ``edited``: the rows that change.
    """
    n = data.n_rows
    dual = binary.problem.dual(data.y(0, n), data.weights(0, n))
    numbers, alpha, far = data.row_ids(0, n), np.zeros(n), np.zeros(n)
    ends = alpha
    if found.machine.exact:
        assert model.support is not None
        order = np.argsort(numbers)
        # (A row that an earlier edit took away has no coefficient: it was proved to be out.)
        at = order[np.searchsorted(numbers, model.support, sorter=order)]
        alpha[at] = np.abs(model.coef[k])
    else:
        book = found.machine.ledger
        assert book.dual is not None
        sides = np.where(np.signbit(book.margins), np.inf, 0.0)
        values, margins = sides.copy(), np.abs(book.margins.astype(np.float64))
        values[book.dual.places] = book.dual.alpha
        at = book.places(numbers)
        alpha, ends, far = (np.where(at >= 0, own[at], 0.0) for own in (values, sides, margins))
    if found.coupling_changes is not None:
        places, step = found.coupling_changes
        # A coefficient is s alpha, and the changes leave its sign as it is.
        alpha[places] += dual.sign[places] * step
    stored = edited.places >= 0
    alpha, ends = np.minimum(alpha, dual.hi), np.minimum(ends, dual.hi)
    keep = np.ones(n, np.bool_)
    keep[edited.places[edited.removed]] = False
    after = []
    for own, new in ((alpha, found.alpha), (ends, found.alpha), (far, np.zeros(len(edited)))):
        own[edited.places[stored]] = new[stored]
        after.append(np.concatenate([own[keep], new[~stored]]))
    return EditStart(found, *after)
