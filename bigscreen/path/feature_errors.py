"""How much the rounding of stored features changes a path's P and D, measured on sampled rows.

A stage of stored features solves the problem that these rounded features define. The published
models have coefficients of kernel columns instead. Their features of the same rows differ from the
stored ones by the rounding of the stored numbers, amplified by the factor of the landmarks' kernel
matrix. The sampled rows' features are computed again in float64.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bigscreen.certify.sample import ComparedRows, Sample, compare_rows
from bigscreen.features.design import Design
from bigscreen.numerics.rows import FloatArray
from bigscreen.path.stage import PathPoint
from bigscreen.problems.dual import Dual


class FeatureErrors:
    """Bounds how far a point's P and D, proved on stored features, are from its model's P and D.

    P and D are the primal and the dual objective. A model has coefficients of kernel columns, whose
    features of a row differ from the stored ones by rounding.

    Parameters
    ----------
    source : Design
        The kernel design behind the features.
    stored : Design
        The stored features of the same rows, which the stage solves on.
    min_rows : int
        Sample at least this many rows, evenly spaced; all rows if there are fewer than twice this
        number. A point of the path costs a few products of the sampled features with a vector.
    """

    def __init__(self, source: Design, stored: Design, min_rows: int = 512) -> None:
        """Sample the rows, and compute their features again in float64, once for all points."""
        self.source, self.n_rows = source, source.data.n_rows
        self.rows = np.arange(0, self.n_rows, max(1, self.n_rows // min_rows))
        features = stored.data.rows(self.rows)
        drawn = np.ones(len(self.rows), np.bool_)
        self._looked = ComparedRows.at(source, stored, source.data.rows(self.rows), features, drawn)

    def added(self, dual: Dual, solved: PathPoint, w: FloatArray, constant: float) -> PathPoint:
        """Return the point with bounds that include the errors of stored (rounded) features.

        See maths.md 4.

        Parameters
        ----------
        dual : Dual
            The dual of all rows.
        solved : PathPoint
            The point, certified on the stored features.
        w : float64 (r,)
            Coefficients of the stored features.
        constant : float
            The penalised part of the offset.
        """
        none = np.zeros(len(self.rows), np.bool_)
        machine = w, self.source.coef(w), constant
        part, alpha = dual[self.rows], solved.alpha[self.rows]
        sample: Sample = compare_rows(self._looked, part, alpha, machine, solved.mu, none)
        own, other = sample.bounds(self.n_rows, w, 0.0)
        length = 0.5 * float(self.source.length_errors(w[:, None])[0])
        own, other = float(own + length), float(other + length)
        return replace(
            solved,
            rounding=solved.rounding + own + other,
            primal_rounding=solved.primal_rounding + own,
            dual_rounding=solved.dual_rounding + other,
        )
