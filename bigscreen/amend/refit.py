"""A fit of edited rows that begins where the machine of the old ones stands."""

from __future__ import annotations

from typing import Any

import numpy as np

from bigscreen.amend.bound import Bound
from bigscreen.amend.edits import Changes
from bigscreen.data.rows import Rows
from bigscreen.features.design import Design
from bigscreen.fleet.shards import blas_threads
from bigscreen.kernels.moved import Moved
from bigscreen.kernels.operand import Operand
from bigscreen.model.model import Model
from bigscreen.numerics.rows import FloatArray
from bigscreen.solvers.protocol import Near
from bigscreen.train.exact import ExactJob
from bigscreen.train.features import FeaturesJob
from bigscreen.train.job import Job, Start
from bigscreen.train.options import TrainOptions
from bigscreen.train.problems import Binary
from bigscreen.train.run import plan


class _Amended(Job):
    """A job whose problems begin where the old ones stand: at their alphas, or their w.

    ``old`` is their model, ``alphas`` and ``duals`` (D') are by the problems' folders.
    """

    old: Model
    alphas: dict[str, FloatArray]
    duals: dict[str, float]

    def _start(self, design: Design, binary: Binary) -> Start:
        alpha = self.alphas[binary.folder]
        dual = binary.problem.dual(design.data.y(0, len(alpha)), design.data.weights(0, len(alpha)))
        return Start(dual.feasible(alpha), {"label": binary.name, "start": "amended"})


class _AmendedExact(_Amended, ExactJob):
    """An exact machine."""


class _AmendedFeatures(_Amended, FeaturesJob):
    """The same landmarks, whatever rows have become of them."""

    def _start(self, design: Design, binary: Binary) -> Start:
        start = super()._start(design, binary)
        k = [one.folder for one in self.problems].index(binary.folder)
        w, source = self.old.coef[k], self.source
        if source is not None:
            assert source.kernel is not None and source.factor is not None
            side = source.side
            w = source.factor.T @ source.kernel.dots(side, side, w[:, None], np.float64)[:, 0]
        constant = binary.problem.intercept_scaling
        if binary.problem.intercept == "constant":
            w = np.append(w, self.old.intercept[k] / constant)
        return start._replace(near=Near(w, self.duals[binary.folder]))

    def _landmarks(self, bare: Design) -> Operand:
        rows: Any = self.old.landmarks
        known = self.old.provenance.get("nystrom") or {}
        self.sampling = known.get("sampling", self.options.sampling)
        if isinstance(bare.data, Moved):
            rows = bare.data.move(rows)
        return Operand(rows)

    def model_landmarks(self) -> Any:
        return self.old.landmarks


def refitted(
    model: Model,
    data: Rows,
    options: TrainOptions,
    fleet: Any,
    alphas: dict[str, FloatArray],
    duals: dict[str, float],
    report: Any = None,
) -> Model:
    """The model of edited rows, with a certificate over all of them, by its old landmarks.

    Parameters
    ----------
    data : Rows
        The rows as they are from now on.
    alphas : dict
        Where each problem begins, by its folder's name: float64 (n,).
    duals : dict
        D' of these, likewise.
    """
    kind = _AmendedExact if options.exact else _AmendedFeatures
    outlined = plan(data, options, fleet.workers, hasattr(fleet, "address"))
    with blas_threads(1), kind(data, options, fleet, report, outlined) as job:
        job.old, job.alphas, job.duals = model, alphas, duals
        job.begin()
        for some in job.turns():
            job.solve(some)
        return job.model()


def alpha_after(
    model: Model, k: int, binary: Binary, data: Rows, edited: Changes, found: Bound
) -> FloatArray:
    """Where the k-th problem of the edited rows begins: the dual point of its bound (n,)."""
    n = data.n_rows
    hi = binary.problem.dual(data.y(0, n), data.weights(0, n)).hi
    numbers, alpha = data.row_ids(0, n), np.zeros(n)
    if found.machine.exact:
        assert model.support is not None
        order = np.argsort(numbers)
        # (A row that an earlier edit took away has no coefficient: it was proved to be out.)
        at = order[np.searchsorted(numbers, model.support, sorter=order)]
        alpha[at] = np.abs(model.coef[k])
    else:
        book = found.machine.ledger
        assert book.dual is not None
        values = np.where(np.signbit(book.margins), np.inf, 0.0)
        values[book.dual.places] = book.dual.alpha
        known = book.numbers()
        at = np.minimum(np.searchsorted(known, numbers), len(known) - 1)
        alpha = np.where(known[at] == numbers, values[at], 0.0)
    if found.mended is not None:
        places, step = found.mended
        # A coefficient is s alpha, and those that move have no other sign.
        sign = binary.problem.dual(data.y(0, n), data.weights(0, n)).sign[places]
        alpha[places] += sign * step
    stored = edited.places >= 0
    alpha = np.minimum(alpha, hi)
    alpha[edited.places[stored]] = found.alpha[stored]
    keep = np.ones(n, np.bool_)
    keep[edited.places[edited.removed]] = False
    return np.concatenate([alpha[keep], found.alpha[~stored]])
