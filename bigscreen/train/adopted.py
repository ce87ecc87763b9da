"""A certificate for an exact machine of another program's, over the rows it was fitted to.

Its support vectors are found among the rows; what they have as coefficients is a dual point there,
and the closing pass says how far the machine is from the best one.
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
from bigscreen.certify.ledger import ledger
from bigscreen.data.rows import Rows
from bigscreen.errors import InputError
from bigscreen.features.design import Design
from bigscreen.fit.loop import Fitted
from bigscreen.fleet.blas import blas_threads
from bigscreen.fleet.protocol import Fleet
from bigscreen.kernels.operand import Operand
from bigscreen.kernels.standard import Linear
from bigscreen.model.model import Model
from bigscreen.model.pairs import classes_of
from bigscreen.numerics.rows import FloatArray
from bigscreen.options.train import TrainOptions
from bigscreen.plan.memory import Plan
from bigscreen.plan.plan import plan_on
from bigscreen.problems.dual import Dual
from bigscreen.problems.point import Point
from bigscreen.train.exact import ExactJob
from bigscreen.train.job import Result, Start
from bigscreen.train.problems import Binary, published

ALIKE = 1e-6
"""Distance, as a part of its norm, at which a row is a support vector that a file has rounded."""

BEYOND = 1e-6
"""Part of its bound that a coefficient may be beyond it, as the file's digits have it."""

TILE = 1 << 22
"""Inner products of rows and support vectors at a time."""


class _AdoptedJob(ExactJob):
    """An exact machine that is there already: ``given``, as its file has it."""

    def __init__(
        self, given: Model, data: Rows, options: TrainOptions, fleet: Fleet, plan: Plan
    ) -> None:
        super().__init__(data, options, fleet, None, plan)
        self.given = given

    def begin(self) -> None:
        """Check rows and plan, and find the support vectors among the rows."""
        super().begin()
        self.coef = _coefficients(self.given, self.data)  # (scores, n), of all rows

    def solve(self, some: Sequence[Binary]) -> None:
        """Certify every problem where it stands."""
        for binary in some:
            began, attempt = time.monotonic(), self._attempt(binary)
            design, problem = attempt.design, binary.problem
            dual, own = design.dual(problem), self.coef[self.problems.index(binary)]
            if attempt.rows is not None:
                own = own[attempt.rows]
            alpha = dual.sign * own / published(problem, (), self.data)
            _check_box(alpha, dual)
            point = Point(np.empty(0), np.empty(0), 0.0, np.nan, np.nan, True, alpha=alpha)
            proof = close_exact(design, problem, point, attempt.fleet, "float64", keep=True)
            known = ledger(design, problem, proof.evidence) if proof.proved else None
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
            self._take(binary, attempt, fitted)

    def _start(self, design: Design, binary: Binary) -> Start:
        return Start()

    def _note(self, fitted: Fitted, binary: Binary) -> None:
        """Nothing was asked for that it could have missed."""

    def _provenance(self, results: list[Result]) -> dict[str, Any]:
        known = {"solver": "LIBSVM", "imported": self.given.provenance.get("imported")}
        return {**super()._provenance(results), **known}


def adopted(model: Model, data: Rows, options: TrainOptions, fleet: Any) -> Model:
    """The machine of another program as a model of the rows it was fitted to, with a certificate.

    Parameters
    ----------
    model : Model
        What the file held: support vectors, coefficients, offsets, labels, kernel.
    data : Rows
        The rows it was fitted to, all of them; a support vector is the row that it is alike to.
    options : TrainOptions
        ``exact``, with the kernel of the model and the problem, C, nu, epsilon and class weights
        that it was fitted with, which no file says, and LIBSVM's offset (intercept "true").
    fleet : Fleet

    Returns
    -------
    Model
        Its coefficients are the file's, made feasible where those have been rounded; its offset is
        the best one for them.

    Raises
    ------
    InputError
        If a support vector is no row of these, a coefficient is beyond its bound, or labels or
        columns are others.
    """
    outlined = plan_on(fleet, data, options)
    with blas_threads(1), _AdoptedJob(model, data, options, fleet, outlined) as job:
        job.begin()
        for some in job.turns():
            job.solve(some)
        made = job.model()
    data.check_unchanged()
    return made


def _check_box(alpha: FloatArray, dual: Dual) -> None:
    """Refuse a dual point that is far from feasible: it is one of another problem."""
    beyond = np.maximum(alpha - dual.hi, dual.lo - alpha)
    if np.max(beyond) > BEYOND * np.max(np.abs(alpha)):
        row = int(np.argmax(beyond))
        raise InputError(
            f"a coefficient of the file is {alpha[row]:.6g} where C (times the row's weight, or "
            f"1 / (nu n)) allows {dual.lo[row]:.6g} to {dual.hi[row]:.6g}; say what the "
            "machine was fitted with"
        )


def _coefficients(model: Model, data: Rows) -> FloatArray:
    """Of every score (scores, n) the coefficients of all rows; scores are those of our problems."""
    codes: NDArray[np.int64] | None = None
    coef, order = model.coef, list(range(len(model.coef)))
    signs = np.ones(len(coef))
    if model.kind == "classifier":
        own = classes_of(model)
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
    rows = _rows(model, data, codes)
    found = np.zeros((len(coef), data.n_rows))
    found[:, rows] = (signs[:, None] * coef)[order]
    return found


def _rows(model: Model, data: Rows, codes: NDArray[np.int64] | None) -> NDArray[np.int64]:
    """The row that every support vector is, each of them one of its own.

    Among equal rows of a regression those of the largest targets have the largest coefficients.
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
    linear, near = Linear(), ALIKE**2 * side.sqnorms
    step = max(1, TILE // count)
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
