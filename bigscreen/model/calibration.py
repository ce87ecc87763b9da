"""Scores as probabilities, as sets of labels and as a threshold: learnt from cross-fitted scores.

A cross-fitted score of a row comes from a machine that was not fitted on it. maths.md 5.7 has the
formulas.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from bigscreen.data.targets import plain_label
from bigscreen.errors import InputError
from bigscreen.numerics.rows import FloatArray

LEAST = 1e-7
"""No class of a pair is less probable: sums over the pairs divide by it."""

SIDE = 1000
"""Rows of the rarer side from which a curve through the shares is drawn, not a sigmoid."""

KEPT = 10_000
"""Scores of a label's rows that are kept, at most, evenly spaced among them."""

RULES = "f1, precision:P, recall:R or cost:A:M (of a false alarm and of a miss)"
"""How a threshold can be asked for."""


@dataclass(eq=False)
class Calibration:
    """What a model's scores mean, learnt from its cross-fitted scores.

    Attributes
    ----------
    strategy : {"rest", "one"}
        Of the model: whether its scores are of labels or of pairs.
    folds : int
    curves : list of Curve
        Of every score the probability of its label (of the second of two) among those it tells
        apart.
    priors : float64 (labels,)
        Every label's part of the weight of the rows fitted.
    rows : int64 (labels,)
        How many cross-fitted scores were there of each label.
    margins : list of float64 (k,)
        Of every label ``label_margins`` of its own rows, ascending; each stands for as many rows.
    """

    strategy: str
    folds: int
    curves: list[Curve]
    priors: FloatArray
    rows: NDArray[np.int64]
    margins: list[FloatArray]

    def __post_init__(self) -> None:
        self.priors = np.asarray(self.priors, np.float64)
        self.rows = np.asarray(self.rows, np.int64)
        k = len(self.priors)
        scorers = 1 if k == 2 else k if self.strategy == "rest" else k * (k - 1) // 2
        if not (len(self.rows) == len(self.margins) == k and len(self.curves) == scorers):
            raise ValueError("the calibration is not of this model")
        numbers = [self.priors, *self.margins, *(part for c in self.curves for part in (c.x, c.p))]
        if not all(np.isfinite(each).all() for each in numbers) or min(map(len, self.margins)) < 1:
            raise ValueError("the numbers of the calibration are not all finite")

    @classmethod
    def learnt(
        cls,
        scores: FloatArray,
        values: FloatArray,
        codes: NDArray[Any],
        weights: FloatArray,
        class_weight: FloatArray,
        strategy: str,
        folds: int,
    ) -> Self:
        """Learn what scores mean.

        Parameters
        ----------
        scores : float64 (rows, k)
            Cross-fitted.
        values : float64 (rows, labels) or (rows, 1)
            ``Model.decision_values`` of them.
        codes : int (rows,)
        weights : float64 (rows,)
            Of the rows; those without are left out.
        class_weight : float64 (labels,)
            By which the machine counted the rows of every label.
        strategy : {"rest", "one"}
        folds : int
        """
        there = np.flatnonzero(weights > 0)
        scores, values, codes, weights = scores[there], values[there], codes[there], weights[there]
        k = len(class_weight)
        totals = np.bincount(codes, weights, k)
        if k > 2 and strategy == "rest":
            curves = [
                Curve.through(scores[:, c], codes == c, weights, None) for c in range(len(totals))
            ]
        else:
            curves = []
            for column, (i, j) in zip(scores.T, combinations(range(k), 2), strict=True):
                own = (codes == i) | (codes == j)
                even = float(class_weight[i] / (class_weight[i] + class_weight[j]))
                curves.append(Curve.through(column[own], codes[own] == j, weights[own], even))
        own_margins = label_margins(values)[np.arange(len(codes)), codes]
        margins = [_thinned(own_margins[codes == c], weights[codes == c]) for c in range(k)]
        rows = np.bincount(codes, minlength=k)
        return cls(strategy, folds, curves, totals / np.sum(totals), rows, margins)

    def probabilities(self, scores: FloatArray, prior: FloatArray | None = None) -> FloatArray:
        """Probabilities of labels, (rows, labels), of scores (rows, k).

        ``prior``: the labels' shares among the rows that are asked about, (labels,); None: as among
        those that were fitted.
        """
        parts = [curve(column) for curve, column in zip(self.curves, scores.T, strict=True)]
        found = np.stack(parts, axis=1)
        k = len(self.priors)
        if k == 2:
            found = np.concatenate([1.0 - found, found], axis=1)
        elif self.strategy == "one":
            found = coupled((1.0 - found).clip(LEAST, 1 - LEAST), k)
        if prior is not None:
            found = found * (prior / self.priors)
        out: FloatArray = found / np.sum(found, axis=1, keepdims=True)
        return out

    def sets(self, values: FloatArray, alpha: float) -> NDArray[np.bool_]:
        """Which labels a row may have, (rows, labels), of its decision values.

        Mondrian: of the rows of every label a part of at least 1 - alpha has that label in its set,
        as far as a row to come scores as a cross-fitted one does.
        """
        found = label_margins(values)
        out = np.empty(found.shape, np.bool_)
        for c, (known, rows) in enumerate(zip(self.margins, self.rows.tolist(), strict=True)):
            # Of scores that were thinned each stands for as many rows.
            below = np.searchsorted(known, found[:, c], side="right") * (rows / len(known))
            out[:, c] = (1.0 + below) / (rows + 1.0) > alpha
        return out

    def threshold(self, rule: str) -> float:
        """The score above which a row is to have the second label.

        Parameters
        ----------
        rule : str
            "f1": the largest F1 of the second label. "precision:P", "recall:R": as many rows found,
            as few false alarms, as go with at least that. "cost:A:M": the least cost, a false alarm
            costing A and a miss M.

        Raises
        ------
        InputError
            If there are more than two labels, or no threshold does it.
        """
        if len(self.priors) != 2:
            raise InputError(f"a threshold is for two labels, and there are {len(self.priors)}")
        name, numbers = _parsed(rule)
        first, second = -self.margins[0][::-1], self.margins[1]
        edges = np.unique(np.concatenate([first, second]))
        middles = 0.5 * (edges[1:] + edges[:-1])
        at = np.concatenate([[np.nextafter(edges[0], -np.inf)], middles, [edges[-1]]])
        right = 1.0 - np.searchsorted(second, at, side="right") / len(second)
        wrong = 1.0 - np.searchsorted(first, at, side="right") / len(first)
        found, alarms = self.priors[1] * right, self.priors[0] * wrong
        guessed = found + alarms
        if name == "cost":
            alarm, miss = numbers
            worth = -(alarm * alarms + miss * (self.priors[1] - found))
        elif name == "f1":
            worth = 2 * found / (guessed + self.priors[1])
        elif name == "recall":
            worth = np.where(right >= numbers[0], at, -np.inf)
        else:
            precision = np.divide(found, guessed, out=np.zeros(len(at)), where=guessed > 0)
            if precision.max() < numbers[0]:
                raise InputError(
                    f"no threshold has a precision of {numbers[0]:g}; the highest is "
                    f"{precision.max():.3g}"
                )
            worth = np.where(precision >= numbers[0], right, -np.inf)
        return float(at[int(np.argmax(worth))])

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """A JSON-able record, and arrays; `from_arrays` makes the same of them."""
        record = {
            "strategy": self.strategy,
            "folds": self.folds,
            "priors": self.priors.tolist(),
            "rows": self.rows.tolist(),
            "even": [curve.even for curve in self.curves],
            "knots": [len(curve.x) for curve in self.curves],
            "kept": [len(each) for each in self.margins],
        }
        arrays = {
            "calibration_x": np.concatenate([curve.x for curve in self.curves]),
            "calibration_p": np.concatenate([curve.p for curve in self.curves]),
            "calibration_margins": np.concatenate(self.margins),
        }
        return record, arrays

    @classmethod
    def from_arrays(cls, record: Mapping[str, Any], array: Callable[[str], NDArray[Any]]) -> Self:
        """What `to_arrays` took apart."""
        ends, kept = np.cumsum(record["knots"])[:-1], np.cumsum(record["kept"])[:-1]
        parts = zip(
            np.split(array("calibration_x"), ends),
            np.split(array("calibration_p"), ends),
            record["even"],
            strict=True,
        )
        return cls(
            record["strategy"],
            int(record["folds"]),
            [Curve(*part) for part in parts],
            record["priors"],
            record["rows"],
            list(np.split(array("calibration_margins"), kept)),
        )


@dataclass(frozen=True, eq=False)
class Curve:
    """A probability that rises with the score.

    Parameters
    ----------
    x, p : float64 (knots,)
        Straight between the knots and level beyond them. One knot: a sigmoid ``1 / (1 + exp(x s +
        p))``.
    even : float or None
        The probability at which the machine decides, at score 0: it is on the side of it on which
        the score is. None: it does not decide at 0.
    """

    x: FloatArray
    p: FloatArray
    even: float | None

    def __call__(self, scores: FloatArray) -> FloatArray:
        """The probabilities of scores, (rows,)."""
        found: FloatArray
        if len(self.x) == 1:
            found = expit(-(self.x[0] * scores + self.p[0])).clip(LEAST, 1 - LEAST)
        else:
            found = np.interp(scores, self.x, self.p)
        if self.even is not None:
            above = np.maximum(found, np.nextafter(self.even, 1.0))
            found = np.where(scores > 0, above, np.minimum(found, self.even))
        return found

    @classmethod
    def through(
        cls,
        scores: FloatArray,
        positive: NDArray[np.bool_],
        weights: FloatArray,
        even: float | None,
    ) -> Self:
        """The curve through rows: a sigmoid of few, of many the best that rises (isotonic)."""
        scores = np.asarray(scores, np.float64)
        if min(np.count_nonzero(positive), np.count_nonzero(~positive)) < SIDE:
            slope, offset = sigmoid(scores, positive, weights)
            if slope > 0:  # worse than chance: what rises is level
                part = float(np.sum(weights[positive]) / np.sum(weights))
                slope, offset = 0.0, float(np.log((1 - part) / part))
            return cls(np.array([slope]), np.array([offset]), even)
        # Here alone: the package takes long to import, and no fit needs it.
        from scipy.optimize import isotonic_regression

        x, place = np.unique(scores, return_inverse=True)
        total = np.bincount(place, weights)
        hits = np.bincount(place, weights * positive)
        blocks = isotonic_regression(hits / total, weights=total).blocks
        starts = blocks[:-1]
        size = np.add.reduceat(total, starts)
        centre = np.add.reduceat(total * x, starts) / size
        share = np.add.reduceat(hits, starts) / size
        # Of a few rows at either end, all alike, nobody knows that there are no others.
        low, high = 1.0 / (size[0] + 2.0), 1.0 - 1.0 / (size[-1] + 2.0)
        if len(share) > 1:
            share[0] = max(share[0], min(low, 0.5 * share[1]))
            share[-1] = min(share[-1], max(high, 0.5 * (1.0 + share[-2])))
        else:
            centre, share = np.array([centre[0], centre[0] + 1.0]), np.repeat(share, 2)
        return cls(centre, share.clip(LEAST, 1 - LEAST), even)


def label_margins(values: FloatArray) -> FloatArray:
    """How far every label is ahead of the best other one, (rows, labels), of decision values."""
    if values.shape[1] == 1:
        return np.concatenate([-values, values], axis=1)
    order = np.sort(values, axis=1)
    best, next_best = order[:, -1:], order[:, -2:-1]
    # (Where several are the best they are ahead by 0.)
    ahead: FloatArray = np.where(values == best, values - next_best, values - best)
    return ahead


def _thinned(values: FloatArray, weights: FloatArray) -> FloatArray:
    """The values, ascending; of many, or of different weights, those at even parts of the weight.

    What is kept of many stands a little lower than the rows it stands for: sets grow by that.
    """
    order = np.argsort(values, kind="stable")
    values, weights = np.asarray(values[order], np.float64), weights[order]
    alike = len(weights) > 0 and bool(np.all(weights == weights[0]))
    if alike and len(values) <= KEPT:
        return values
    count = min(KEPT, len(values))
    reached = np.cumsum(weights)
    places = np.searchsorted(reached, (np.arange(count) + 0.5) / count * reached[-1])
    kept: FloatArray = values[np.minimum(places, len(values) - 1)]
    return kept


def _parsed(rule: str) -> tuple[str, list[float]]:
    """The name and the numbers of a rule for a threshold."""
    name, *texts = str(rule).split(":")
    try:
        numbers = [float(text) for text in texts]
    except ValueError:
        numbers = [np.nan]
    shares = name in ("precision", "recall") and len(numbers) == 1 and 0 < numbers[0] <= 1
    costs = name == "cost" and len(numbers) == 2 and all(0 < each < np.inf for each in numbers)
    if not (shares or costs or (name == "f1" and not numbers)):
        raise InputError(f"a threshold is one of {RULES}, got {rule!r}")
    return name, numbers


def given_prior(given: Mapping[Any, float], labels: Sequence[Any]) -> FloatArray:
    """Shares of labels, (labels,), as a mapping from labels says them.

    Raises
    ------
    InputError
        If a label is not there or lacks a share, or they are not parts of 1.
    """
    plain = [plain_label(label) for label in labels]
    shares = {plain_label(label): share for label, share in given.items()}
    wrong = [label for label in shares if label not in plain]
    if wrong:
        known = ", ".join(map(str, labels))
        raise InputError(f"the prior names {wrong[0]!r}, and the labels are {known}")
    try:
        out = np.array([float(shares.get(label, np.nan)) for label in plain])
    except (TypeError, ValueError) as error:
        raise InputError(f"the prior must be numbers, got {dict(given)}") from error
    if len(labels) == 2 and np.count_nonzero(np.isnan(out)) == 1:
        out[np.isnan(out)] = 1.0 - np.nansum(out)
    if not (np.all(out > 0) and abs(float(np.sum(out)) - 1.0) <= 1e-6):
        raise InputError(
            f"the prior must have a share above 0 of every label, together 1, got {dict(given)}"
        )
    return out


def sigmoid(
    scores: FloatArray, positive: NDArray[np.bool_], weights: FloatArray | None = None
) -> tuple[float, float]:
    """A and B of ``1 / (1 + exp(A score + B))``, the most likely for these rows.

    Platt's, with a prior for either class (Lin et al. 2007; maths.md 5.7): a Newton that halves
    its steps.
    """
    own = np.ones(len(scores)) if weights is None else weights
    ones, zeros = float(np.sum(own[positive])), float(np.sum(own[~positive]))
    target = np.where(positive, (ones + 1.0) / (ones + 2.0), 1.0 / (zeros + 2.0))

    def loss(at: FloatArray) -> float:
        z = at[0] * scores + at[1]
        return float(np.sum(own * (np.logaddexp(0.0, z) - (1.0 - target) * z)))

    at = np.array([0.0, np.log((zeros + 1.0) / (ones + 1.0))])
    columns = np.column_stack([scores, np.ones(len(scores))])
    for _ in range(100):
        p = expit(-(columns @ at))
        gradient = columns.T @ (own * (target - p))
        if np.max(np.abs(gradient)) < 1e-10:
            break
        curvature = (columns * (own * p * (1 - p))[:, None]).T @ columns + 1e-12 * np.eye(2)
        step, size = np.linalg.solve(curvature, -gradient), 1.0
        while size > 1e-10 and loss(at + size * step) > loss(at) + 1e-4 * size * gradient @ step:
            size /= 2
        if size <= 1e-10:
            break
        at = at + size * step
    return float(at[0]), float(at[1])


def coupled(first: FloatArray, classes: int) -> FloatArray:
    """Probabilities of all classes, (rows, classes), of those of every pair's first, (rows, pairs).

    Wu et al. (2004), the second way: ``min sum_ij (r_ji p_i - r_ij p_j)^2``, ``sum p = 1``.
    """
    i, j = np.triu_indices(classes, 1)
    r = np.zeros((len(first), classes, classes))
    r[:, i, j], r[:, j, i] = first, 1.0 - first
    system = np.zeros((len(first), classes + 1, classes + 1))
    inner = system[:, :classes, :classes]
    inner[:] = -r * r.transpose(0, 2, 1)
    every = np.arange(classes)
    inner[:, every, every] = np.sum(r**2, axis=1)
    system[:, :classes, classes] = system[:, classes, :classes] = 1.0
    right = np.zeros((len(first), classes + 1, 1))
    right[:, classes] = 1.0
    found = np.linalg.solve(system, right)[:, :classes, 0].clip(0.0)
    probabilities: FloatArray = found / np.sum(found, axis=1, keepdims=True)
    return probabilities
