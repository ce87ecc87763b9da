"""Certify an exact kernel machine that another program (LIBSVM) fitted.

The support vectors of its file are matched with the rows that it was fitted to. Their coefficients
are then a point of the dual problem, and the closing pass over all rows bounds its gap.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from bigscreen.certify.exact import close_exact
from bigscreen.certify.ledger import make_ledger
from bigscreen.data.rows import Rows, check_one_target
from bigscreen.errors import InputError
from bigscreen.features.design import Design
from bigscreen.fit.loop import Fitted
from bigscreen.fleet.blas import blas_threads
from bigscreen.fleet.protocol import Fleet
from bigscreen.kernels.operand import Operand
from bigscreen.kernels.standard import Linear
from bigscreen.model.model import Model
from bigscreen.model.pairs import infer_classes
from bigscreen.numerics.rows import FloatArray
from bigscreen.options.train import TrainOptions
from bigscreen.plan.memory import Plan
from bigscreen.plan.plan import plan_on
from bigscreen.problems.dual import Dual
from bigscreen.problems.point import Point
from bigscreen.train.exact import ExactJob
from bigscreen.train.job import Result, Start
from bigscreen.train.problems import Binary, libsvm_scale

FILE_ROUNDING = 1e-6
"""Relative error of the rounded numbers in another library's model file. A row is taken to be a
support vector of the file if their distance is at most this fraction of the vector's norm; a
coefficient may exceed its bound by this fraction of the largest coefficient."""


class _AdoptedJob(ExactJob):
    """The certification of ``given``, an exact machine that another program fitted."""

    def __init__(
        self, given: Model, data: Rows, options: TrainOptions, fleet: Fleet, plan: Plan
    ) -> None:
        """Prepare to certify ``given``, a model imported from another library, on ``data``."""
        super().__init__(data, options, fleet, None, plan)
        self.given = given

    def begin(self) -> None:
        """Check rows and plan, and find the support vectors among the rows."""
        super().begin()
        self.coef = _match_coefficients(self.given, self.data)  # (scores, n), of all rows

    def solve(self, some: Sequence[Binary]) -> None:
        """Certify the given machine's solution of each problem; no solver runs."""
        for binary in some:
            began, attempt = time.monotonic(), self._attempt(binary)
            design, problem = attempt.design, binary.problem
            dual, own = design.dual(problem), self.coef[self.problems.index(binary)]
            if attempt.rows is not None:
                own = own[attempt.rows]
            alpha = dual.sign * own / libsvm_scale(problem, (), self.data)
            _check_box(alpha, dual)
            point = Point(np.empty(0), np.empty(0), 0.0, np.nan, np.nan, True, alpha=alpha)
            proof = close_exact(design, problem, point, attempt.fleet, "float64", keep=True)
            known = make_ledger(design, problem, proof.evidence) if proof.proved else None
            self.seconds["certify"] += time.monotonic() - began
            fitted = Fitted(
                point=point,
                certificate=replace(proof, evidence=None),
                ledger=known,
                ended="given",
                history=[],
                screening={
                    "rule": "none",
                    "passes": [],
                    "fixed_at_hi": 0,
                    "fixed_at_lo": 0,
                    "taken_back": 0,
                },
                seconds={},
                passes={"closing": 1},
            )
            self._take_result(binary, attempt, fitted)

    def _start(self, design: Design, binary: Binary) -> Start:
        """Return the start at 0."""
        return Start()

    def _note_shortfall(self, fitted: Fitted, binary: Binary) -> None:
        """Record no shortfall: an adopted machine has no tolerance to meet."""

    def _provenance(self, results: list[Result]) -> dict[str, Any]:
        """Return the model's record of the run: solver LIBSVM, and where it was imported from."""
        known = {"solver": "LIBSVM", "imported": self.given.provenance.get("imported")}
        return {**super()._provenance(results), **known}


def adopt_machine(model: Model, data: Rows, options: TrainOptions, fleet: Any) -> Model:
    """Turn another program's machine into a certified model of the rows that it was fitted to.

    Parameters
    ----------
    model : Model
        What the file held: support vectors, coefficients, offsets, labels, kernel.
    data : Rows
        All rows that it was fitted to. A support vector stands for the row that it equals, up to
        the rounding of the file.
    options : TrainOptions
        Options of an exact machine: the kernel of the model, LIBSVM's offset (intercept "true"),
        and the problem, C, nu, epsilon and class weights of its fit, which the file does not hold.
    fleet : Fleet

    Returns
    -------
    Model
        It has the coefficients of the file, made feasible if rounding has moved them beyond their
        bounds, and the best offset for these coefficients.

    Raises
    ------
    InputError
        If a support vector is none of the rows, a coefficient exceeds its bound, or the labels or
        columns differ from those of the rows.
    """
    check_one_target(data, "an imported machine")
    outlined = plan_on(fleet, data, options)
    with blas_threads(1), _AdoptedJob(model, data, options, fleet, outlined) as job:
        job.begin()
        for some in job.turns():
            job.solve(some)
        made = job.model()
    data.check_unchanged()
    return made


def _check_box(alpha: FloatArray, dual: Dual) -> None:
    """Raise `InputError` if alpha lies outside its box by more than a file's rounding.

    The model then solves another problem (another C, nu or row weights) than ``dual``.
    """
    beyond = np.maximum(alpha - dual.hi, dual.lo - alpha)
    if np.max(beyond) > FILE_ROUNDING * np.max(np.abs(alpha)):
        row = int(np.argmax(beyond))
        raise InputError(
            f"a coefficient of the file is {alpha[row]:.6g} where C (times the row's weight, or "
            f"1 / (nu n)) allows {dual.lo[row]:.6g} to {dual.hi[row]:.6g}; say what the "
            "machine was fitted with"
        )


def _match_coefficients(model: Model, data: Rows) -> FloatArray:
    """Give the rows of the data the coefficients of the support vectors that equal them.

    Returns float64 (machines, n), 0 for other rows; a machine is one binary problem, in the order
    of the data's labels. Raises `InputError` if the model's labels are not those of the data.
    """
    codes: NDArray[np.int64] | None = None
    coef, order = model.coef, list(range(len(model.coef)))
    signs = np.ones(len(coef))
    if model.kind == "classifier":
        own = infer_classes(model)
        try:
            to = np.array([data.labels.index(label) for label in model.labels])
        except ValueError:
            to = np.empty(0, np.int64)
        if sorted(to.tolist()) != list(range(len(data.labels))):
            raise InputError(
                f"the file's labels are {model.labels}, those of the rows {data.labels}; they must "
                "be the same"
            )
        codes = np.where(own >= 0, to[own], -1)
        pairs = [(int(to[a]), int(to[b])) for a, b in combinations(range(len(to)), 2)]
        signs = np.array([1.0 if a < b else -1.0 for a, b in pairs])
        order = sorted(range(len(pairs)), key=lambda k: sorted(pairs[k]))
    rows = _match_rows(model, data, codes)
    found = np.zeros((len(coef), data.n_rows))
    found[:, rows] = (signs[:, None] * coef)[order]
    return found


def _match_rows(
    model: Model, data: Rows, codes: NDArray[np.int64] | None, max_products: int = 1 << 22
) -> NDArray[np.int64]:
    """Find for each support vector a row that equals it, no row twice; int64 (vectors,).

    ``codes``: the label code of each vector, which its row must share (-1: any); None for
    regressions. Among equal rows of a regression, the largest coefficients go to those with the
    largest targets. At most ``max_products`` inner products are computed at once.
    """
    vectors: Any = model.landmarks
    count, width = vectors.shape
    if width > data.n_features:
        raise InputError(
            f"the file's rows have {width} columns, those of {data.path or 'the data'} have "
            f"{data.n_features}"
        )
    wide = csr_array(vectors, dtype=np.float64)
    wide = csr_array((wide.data, wide.indices, wide.indptr), shape=(count, data.n_features))
    side = Operand(wide if data.is_sparse else wide.toarray())
    linear, near = Linear(), FILE_ROUNDING**2 * side.sqnorms
    step = max(1, max_products // count)
    found: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
    for start in range(0, data.n_rows, step):
        stop = min(start + step, data.n_rows)
        rows = Operand(data.rows(np.arange(start, stop)))
        apart = linear.block(rows, side, dtype=np.float64)
        apart = rows.sqnorms[:, None] - 2.0 * apart + side.sqnorms
        alike = apart <= near
        if codes is not None:
            alike &= (codes == -1) | (data.y(start, stop)[:, None] == codes)
        i, j = np.nonzero(alike)
        found.append((i + start, j))
    row, vector = (np.concatenate(part) for part in zip(*found, strict=True))
    first = np.arange(count)
    if data.regression:
        row, vector = (
            part[np.argsort(-data.y(0, data.n_rows)[row], kind="stable")] for part in (row, vector)
        )
        first = np.argsort(-model.coef[0], kind="stable")
    order = np.argsort(vector, kind="stable")
    row, ends = row[order], np.searchsorted(vector[order], np.arange(count + 1))
    out, taken = np.empty(count, np.int64), np.zeros(data.n_rows, np.bool_)
    for j in first.tolist():
        free = row[ends[j] : ends[j + 1]]
        free = free[~taken[free]]
        if not len(free):
            raise InputError(
                f"support vector {j + 1} of the file is no row of {data.path or 'the data'}"
                f"{'' if codes is None else ' with its label'}; give the rows that it was fitted "
                "to, as they were (scaled or not)"
            )
        out[j] = free[0]
        taken[free[0]] = True
    return out
