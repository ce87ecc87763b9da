"""The closing pass of the exact kernel machine: P, D and the gap of an alpha over ALL rows.

Alpha is the machine: ``w = sum_j s_j alpha_j phi_j`` is never written down, so the scores of all
rows are computed again from the support rows alone, one tile of the kernel matrix at a time, and
everything else follows from scores: ``||w||^2 = sum_j s_j alpha_j u_j``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bigscreen.closing import Certificate, Throughput
from bigscreen.design import Design
from bigscreen.dual import Dual, FloatArray
from bigscreen.kernels import Kernel, Side
from bigscreen.point import Point
from bigscreen.problems import CSvc
from bigscreen.store import Rows
from bigscreen.store.layout import take

FLOAT64 = 2.0**-28
"""Error of a float64 entry as a part of that of a float32 one, with room."""

TOLD = 0.05
"""Part of the gap that float32 entries may have moved it by; rows are computed again until then."""

AUDITED = 256
"""Rows whose scores are computed again before those that a solver kept are believed."""

SUM = 64 * 2.0**-53
"""Relative error of numpy's pairwise float64 sums of up to 2^55 numbers, and of their terms."""


def close_exact(
    design: Design,
    problem: CSvc,
    point: Point,
    fleet: Throughput,
    certify: str = "float32",
) -> Certificate:
    """Certify the alpha of an exact kernel machine over all rows.

    Parameters
    ----------
    design, problem, point
        What was solved, and where the solver stands: ``point.alpha`` (n,) is all that is used of
        it, moved into the box where a rounding left it outside.
    fleet : Throughput
        Runs one task a shard; the result does not depend on how many workers it has.
    certify : {"float32", "float64"}
        Precision of the kernel's entries; sums are float64 either way. In float32 the rows whose
        rounding could tell in the gap are computed again in float64; entries that float32 would
        make coarse (``Kernel.precision``) are float64 whatever is asked for.

    Returns
    -------
    Certificate
        ``intercept`` is the offset that is certified: with a true offset the best one for this w.
        ``rounding_bound`` holds for the exact kernel: what its entries' rounding can have moved
        the gap by, not P and D each (a row that is certainly at its bound moves both alike).
        Of a kernel that is not positive semidefinite the gap says how far the KKT conditions are
        from holding, and is no bound on the optimum.
    """
    data, kernel = design.data, design.kernel
    assert kernel is not None and point.alpha is not None
    dual = problem.dual(data.y(0, data.n_rows), data.weights(0, data.n_rows))
    alpha = np.clip(point.alpha, dual.lo, dual.hi)
    ids = np.flatnonzero(alpha)
    coef = (dual.sign * alpha)[ids]
    # Where the box holds nothing but 0 no score is needed.
    box = np.maximum(np.abs(dual.lo), np.abs(dual.hi))
    wide = certify == "float64" or design.precision is np.float64
    sums = _Sums(problem, dual, alpha, box)
    if not len(ids):
        return sums.certificate(certify)
    support = Side(data.rows(ids), ids)
    norms = _norms(kernel, support)
    sums.longest = float(np.max(norms))
    noise = _Noise(_spread(design, support, coef), sums.longest, float(np.abs(coef) @ norms))
    program = _Scores(data, kernel, support, coef, noise, np.float64 if wide else np.float32)
    live = np.flatnonzero(box)
    if wide or not sums.adopt(point, program, live, fleet):
        sums.score(program, live, fleet)
    if not wide:
        sums.score(replace(program, dtype=np.float64), sums.doubtful(), fleet)
    return sums.certificate("float64" if wide else "float32")


class _Noise(NamedTuple):
    """What rounding can do to a score, as far as it is the same for all rows.

    ``spread``: one weight a support row; independent errors of entries add up to the root of
    ``sum_j spread_j k_ij^2``. ``longest``, ``size``: of the support's features the greatest norm,
    and ``sum_j |coef_j| ||phi_j||``.
    """

    spread: FloatArray
    longest: float
    size: float


@dataclass(frozen=True)
class _Scores:
    """Runs anywhere: scores of some rows of a shard, and how far rounding can have moved each."""

    data: Rows
    kernel: Kernel
    support: Side
    coef: FloatArray
    noise: _Noise
    dtype: type

    def __call__(self, ids: NDArray[np.int64]) -> tuple[FloatArray, FloatArray]:
        """(score, band) of these rows, ascending, of one shard."""
        scores, band = np.empty(len(ids)), np.empty(len(ids))
        chunk = ids // self.data.chunk_rows
        for k in np.unique(chunk):
            part = slice(*np.searchsorted(chunk, (k, k + 1)))
            start, stop = self.data.chunk(int(k))
            X, own = self.data.X(start, stop), ids[part]
            rows = X if len(own) == stop - start else take(X, own - start)
            scores[part], band[part] = self._rows(Side(rows, own))
        return scores, band

    def _rows(self, rows: Side) -> tuple[FloatArray, FloatArray]:
        kernel, noise = self.kernel, self.noise
        # Entries of one sign: the sum that the errors follow comes with the scores.
        summed = kernel.nonnegative and self._relative(rows.sqnorms) is not None
        columns = [self.coef, noise.spread] if summed else [self.coef]
        values = kernel.dots(rows, self.support, np.stack(columns, axis=1), self.dtype)
        norms = _norms(kernel, rows)
        weight = values[:, 1] if summed else norms * noise.longest * noise.spread.sum()
        return values[:, 0], self.bands(values[:, 0], rows.sqnorms, norms, weight)

    def bands(
        self, scores: FloatArray, sqnorms: FloatArray, norms: FloatArray, weight: FloatArray
    ) -> FloatArray:
        """How far rounding can have moved scores; ``weight >= sum_j spread_j k_ij``."""
        noise = self.noise
        relative = self._relative(sqnorms)
        if relative is None:
            longest = float(np.max(self.support.sqnorms))
            error = self.kernel.entry_error(sqnorms, longest, self.data.n_features)
            band = error * np.sqrt(noise.spread.sum())
        else:
            # What the entries of a row have in common moves its score as a whole.
            band = relative * (np.abs(scores) + np.sqrt(norms * noise.longest * weight))
        if self.dtype is np.float64:
            band = FLOAT64 * band
        # The float64 sum itself, whose partial sums err at random.
        return band + 2.0**-51 * np.sqrt(len(self.coef)) * norms * noise.size

    def _relative(self, sqnorms: FloatArray) -> FloatArray | None:
        longest = float(np.max(self.support.sqnorms))
        return self.kernel.relative_error(sqnorms, longest, self.data.n_features)


def _norms(kernel: Kernel, rows: Side) -> FloatArray:
    """At least the root of the largest entry that a row can have with another of its length."""
    if kernel.psd:
        return np.sqrt(np.maximum(kernel.diag(rows), 0.0))  # a given one may break its word
    return np.array([np.sqrt(kernel.bound(size, size)) for size in rows.sqnorms])


def _spread(design: Design, support: Side, coef: FloatArray) -> FloatArray:
    """``coef^2``, but of the sum over equal rows where that is more: their entries err alike."""
    mark = np.random.default_rng(0).normal(size=(support.X.shape[1], 1))
    keys = Design(design.data).dots(support.X, mark)[:, 0]
    _, group = np.unique(keys, return_inverse=True)
    together = np.bincount(group, coef) ** 2 / np.bincount(group)
    return np.maximum(coef**2, together[group])


@dataclass
class _Sums:
    """P, D and what rounding can have put between them.

    ``scores``, ``band``: without an offset, and how far each may be from the exact one.
    """

    problem: CSvc
    dual: Dual
    alpha: FloatArray
    box: FloatArray
    longest: float = 0.0

    def __post_init__(self) -> None:
        self.scores, self.band = np.zeros(len(self.dual)), np.zeros(len(self.dual))

    def score(self, program: _Scores, ids: NDArray[np.int64], fleet: Throughput) -> None:
        """Compute the scores of these rows, ascending."""
        data = program.data
        ends = np.searchsorted(ids, [data.shard(s)[1] for s in range(data.n_shards)])
        parts = [part for part in np.split(ids, ends[:-1]) if len(part)]
        constant = program.coef.sum() if self.problem.intercept == "constant" else 0.0
        for part, (scores, band) in zip(parts, fleet.each(program, parts), strict=True):
            self.scores[part], self.band[part] = scores + constant, band

    def adopt(
        self, point: Point, program: _Scores, live: NDArray[np.int64], fleet: Throughput
    ) -> bool:
        """Take over the scores that the solver kept, if a sample computed again confirms them.

        They are sums of the same float32 entries: all rows' kernel columns need no second look.
        """
        data = program.data
        longest = np.sqrt(program.kernel.bound(data.max_sqnorm, data.max_sqnorm))
        kept = None if point.scores is None or not np.isfinite(longest) else point.scores()
        if kept is None:
            return False
        norms = np.full(len(live), longest)
        weight = norms * longest * program.noise.spread.sum()
        band = program.bands(kept[live], data.sqnorms(0, data.n_rows)[live], norms, weight)
        sample = np.sort(np.random.default_rng(0).permutation(live)[:AUDITED])
        self.score(replace(program, dtype=np.float64), sample, fleet)
        constant = program.coef.sum() if self.problem.intercept == "constant" else 0.0
        off = np.abs(self.scores[sample] - constant - kept[sample])
        wrong = off > band[np.searchsorted(live, sample)] + self.band[sample]
        self.scores[live], self.band[live] = kept[live] + constant, band
        return not np.any(wrong)

    def doubtful(self) -> NDArray[np.int64]:
        """The fewest rows without which rounding is a small part of the gap, ascending."""
        found, doubt = self._sums()
        order = np.argsort(-doubt, kind="stable")
        beyond = np.cumsum(doubt[order][::-1])[::-1]  # what is left without those before
        return np.sort(order[beyond > TOLD * max(found.gap, 0.0)])

    def certificate(self, certified_in: str) -> Certificate:
        return replace(self._sums()[0], certified_in=certified_in)

    def _sums(self) -> tuple[Certificate, FloatArray]:
        """The certificate, and what each row's rounding can have moved the gap by."""
        dual, alpha, scores = self.dual, self.alpha, self.scores
        mu = 0.0
        if dual.coupling is not None:
            live = np.flatnonzero(self.box)
            mu = dual[live].multiplier(scores[live]) if len(live) else 0.0
        signed = dual.sign * alpha
        w_sq = float(signed @ scores)
        losses = dual.losses(scores, mu)
        primal = 0.5 * w_sq + mu * dual.total + float(np.sum(losses))
        # What makes alpha feasible is taken from one sign; w stays, as any w is good for P. The
        # new ||w||^2 is known but for the square of what is taken, at most (sum |cut| ||phi||)^2.
        positive = dual.sign > 0
        keep = self.problem.feasible(float(alpha[positive].sum()), float(alpha[~positive].sum()))
        cut = alpha * np.where(positive, 1 - keep[0], 1 - keep[1])
        value = dual.value(alpha, w_sq) - float(dual.lin @ cut) + float((dual.sign * cut) @ scores)
        value -= 0.5 * (float(np.sum(np.abs(cut))) * self.longest) ** 2
        # A row certainly at its bound moves P and D alike; any other moves the gap by its slack.
        gradient = dual.gradient(scores, mu)
        band = self.band + 2.0**-51 * (np.abs(dual.lin) + np.abs(scores) + abs(mu))
        up, down = dual.hi - alpha, alpha - dual.lo
        slack = np.where(
            gradient > band, up, np.where(gradient < -band, down, np.maximum(up, down))
        )
        doubt = (slack + np.abs(cut)) * band
        terms = np.abs(losses) + np.abs(dual.lin * alpha) + np.abs(signed * scores)
        summed = float(np.sum(terms)) + float(np.sum(np.abs(alpha))) * abs(mu)
        gap = primal - value
        constant = self.problem.intercept == "constant"
        certificate = Certificate(
            primal=primal,
            dual=value,
            gap=gap,
            # A P that vanishes beside the box is 0: one side of the data has no weight.
            relative_gap=gap / max(abs(primal), 2.0**-52 * float(np.sum(self.box))) if gap else 0.0,
            rounding_bound=float(np.sum(doubt)) + SUM * summed,
            certified_in="",
            rows=len(dual),
            support=int(np.count_nonzero(alpha)),
            intercept=float(signed.sum()) if constant else mu,
        )
        return certificate, doubt
