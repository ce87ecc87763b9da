"""What stored features have put into a path's P and D, seen on rows computed again in float64.

A stage of stored features solves the problem of the numbers that are stored. The models that are
published have coefficients of the kernel's columns, and the same rows have other features for
them: by what storing has rounded off, and by what the factor of the landmarks amplifies.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bigscreen.certify.sample import ComparedRows, Sample, compare_rows
from bigscreen.features.design import Design
from bigscreen.numerics.rows import FloatArray
from bigscreen.path.stage import PathPoint
from bigscreen.problems.dual import Dual

SAMPLE_ROWS = 512
"""Rows that are looked at, at least: all rows, where there are no more than twice as many. A point
costs a few products of their features with a vector, and one with each other."""


class FeatureErrors:
    """How far P and D of a path's points are from those of the models that are published.

    Parameters
    ----------
    source : Design
        The kernel design behind the features.
    stored : Design
        The features of the same rows, which a stage has.
    """

    def __init__(self, source: Design, stored: Design) -> None:
        self.source, self.n_rows = source, source.data.n_rows
        self.rows = np.arange(0, self.n_rows, max(1, self.n_rows // SAMPLE_ROWS))
        features = stored.data.rows(self.rows)
        drawn = np.ones(len(self.rows), np.bool_)
        self._looked = ComparedRows.at(source, stored, source.data.rows(self.rows), features, drawn)

    def added(self, dual: Dual, solved: PathPoint, w: FloatArray, constant: float) -> PathPoint:
        """The point with roundings of what is published (maths.md 4).

        Parameters
        ----------
        w : float64 (r,)
            Coefficients of the stored features.
        constant : float
            The part of the offset that is penalised.
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
