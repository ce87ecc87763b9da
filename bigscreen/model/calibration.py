"""Scores as probabilities, as sets of labels and as a threshold: learnt from cross-fitted scores.

A cross-fitted score of a row comes from a fold's machine, which was not fitted on the row. New rows
are scored by the same machines, so that their scores are comparable whatever the machine is like.
maths.md 5.7 has the formulas.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from bigscreen.data.targets import plain_label
from bigscreen.errors import InputError
from bigscreen.model.scores import vote_values
from bigscreen.numerics.rows import FloatArray

LEAST = 1e-7
"""No class of a pair is less probable: sums over the pairs divide by it."""

SIDE = 1000
"""Rows of the rarer side from which a curve through the shares is drawn, not a sigmoid."""

KEPT = 10_000
"""Scores of a label's rows that are kept, at most, over all folds, evenly spaced among them."""

RULES = "f1, precision:P, recall:R or cost:A:M (of a false alarm and of a miss)"
"""How a threshold can be asked for."""


class Evidence(NamedTuple):
    """What the probabilities and the label sets of some rows are read off.

    Parameters
    ----------
    scores : float64 (rows, k)
        Scores by the published machine, which decides the label.
    held : float64 (rows, machines, k)
        Scores by the machines whose scores were calibrated: those of the folds; in models of
        before the published machine alone.
    draw : float64 (rows,)
        A number in [0, 1) for each row, which follows from the row's features alone
        (`numerics.draws.row_draws`).
    """

    scores: FloatArray
    held: FloatArray
    draw: FloatArray

    @classmethod
    def joined(cls, parts: Sequence[Evidence]) -> Evidence:
        """The evidence of the rows of several parts, one after the other."""
        return cls(*(np.concatenate(each) for each in zip(*parts, strict=True)))

    def among(self, rows: NDArray[Any]) -> Evidence:
        """The evidence of some of the rows, by their places or a mask."""
        return Evidence(*(part[rows] for part in self))


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
    rows : int64 (machines, labels)
        How many cross-fitted scores of every label each fold's machine gave. One machine: a model
        of before, whose published machine is taken for those of the folds.
    margins : list of list of float64 (kept,)
        For every machine and label the `label_margins` of the label's held-out rows, ascending;
        each stands for equally many rows.
    paired : float64 (2, rows) or None
        With two labels: scores of rows that both a fold's machine and the published machine were
        fitted on, by the fold's (first) and by the published one, each ascending. None: in files
        of before.
    """

    strategy: str
    folds: int
    curves: list[Curve]
    priors: FloatArray
    rows: NDArray[np.int64]
    margins: list[list[FloatArray]]
    paired: FloatArray | None = None

    def __post_init__(self) -> None:
        self.priors = np.asarray(self.priors, np.float64)
        self.rows = np.asarray(self.rows, np.int64)
        k = len(self.priors)
        scorers = 1 if k == 2 else k if self.strategy == "rest" else k * (k - 1) // 2
        sizes = [len(each) for each in self.margins]
        if self.rows.shape != (len(sizes), k) or sizes != [k] * len(sizes) or not sizes:
            raise ValueError("the calibration is not of this model")
        if len(self.curves) != scorers:
            raise ValueError("the calibration is not of this model")
        margins = [known for each in self.margins for known in each]
        numbers = [self.priors, *margins, *(part for c in self.curves for part in (c.x, c.p))]
        numbers += [] if self.paired is None else [self.paired]
        if not all(np.isfinite(each).all() for each in numbers):
            raise ValueError("the numbers of the calibration are not all finite")

    @property
    def machines(self) -> int:
        """How many machines give the scores that are calibrated."""
        return len(self.margins)

    @classmethod
    def learnt(
        cls,
        scores: FloatArray,
        codes: NDArray[Any],
        fold: NDArray[Any],
        weights: FloatArray,
        class_weight: FloatArray,
        strategy: str,
    ) -> Self:
        """Learn what scores mean.

        Parameters
        ----------
        scores : float64 (rows, k)
            Cross-fitted: by the machine of the row's fold.
        codes, fold : int (rows,)
            Label codes, and the folds that hold the rows out, from 0.
        weights : float64 (rows,)
            Weights of the rows; rows without any are left out.
        class_weight : float64 (labels,)
            By which the machine counted the rows of every label.
        strategy : {"rest", "one"}
        """
        there, folds = np.flatnonzero(weights > 0), int(np.max(fold)) + 1
        scores, codes, fold, weights = scores[there], codes[there], fold[there], weights[there]
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
        own_margins = label_margins(_decision_values(scores, k, strategy))
        own_margins = own_margins[np.arange(len(codes)), codes]
        margins, rows = [], np.zeros((folds, k), np.int64)
        for f in range(folds):
            places = [np.flatnonzero((fold == f) & (codes == c)) for c in range(k)]
            rows[f] = [len(own) for own in places]
            most = max(1, KEPT // folds)
            margins.append([_thinned(own_margins[own], weights[own], most) for own in places])
        return cls(strategy, folds, curves, totals / np.sum(totals), rows, margins)

    def probabilities(self, evidence: Evidence, prior: FloatArray | None = None) -> FloatArray:
        """Probabilities of labels, float64 (rows, labels).

        They are the mean of what the calibrated scores of every machine say. With two labels the
        mean is kept on the side of the published machine's decision.

        Parameters
        ----------
        evidence : Evidence
        prior : float64 (labels,) or None
            The labels' shares among the rows that are asked about; None: as among those fitted.
        """
        found = np.mean([self._by_one(held) for held in evidence.held.swapaxes(0, 1)], axis=0)
        if len(self.priors) == 2:
            second = self.curves[0].on_side(found[:, 1], evidence.scores[:, 0])
            found = np.stack([1.0 - second, second], axis=1)
        if prior is not None:
            found = found * (prior / self.priors)
        out: FloatArray = found / np.sum(found, axis=1, keepdims=True)
        return out

    def _by_one(self, scores: FloatArray) -> FloatArray:
        """Probabilities of labels by the calibrated scores (rows, k) of one machine."""
        parts = [curve(column) for curve, column in zip(self.curves, scores.T, strict=True)]
        found = np.stack(parts, axis=1)
        k = len(self.priors)
        if k == 2:
            found = np.concatenate([1.0 - found, found], axis=1)
        elif self.strategy == "one":
            found = coupled((1.0 - found).clip(LEAST, 1 - LEAST), k)
        out: FloatArray = found / np.sum(found, axis=1, keepdims=True)
        return out

    def sets(self, evidence: Evidence, alpha: float) -> NDArray[np.bool_]:
        """Which labels a row may have, bool (rows, labels).

        The row's draw chooses one machine. A label is in the set if its p-value, the share of the
        label's rows held out from that machine that score as low or lower, exceeds alpha
        (split conformal prediction for each label). The rest of the draw is the row's own part
        in that share, so that 1 - alpha is met exactly with few rows, too; equal scores count in
        full, so that coverage is higher, never lower, where scores are equal.
        """
        out = np.empty((len(evidence.scores), len(self.priors)), np.bool_)
        place = evidence.draw * self.machines
        chosen = place.astype(np.int64)
        # Models of before have no machines of folds, and nothing to draw.
        part = place - chosen if self.machines > 1 else np.ones(len(place))
        for f, (rows, margins) in enumerate(zip(self.rows, self.margins, strict=True)):
            own = np.flatnonzero(chosen == f)
            values = _decision_values(evidence.held[own, f], len(self.priors), self.strategy)
            found = label_margins(values)
            for c, (known, total) in enumerate(zip(margins, rows.tolist(), strict=True)):
                # Each of the kept margins stands for as many rows.
                each = total / max(1, len(known))
                below = np.searchsorted(known, found[:, c], side="right") * each
                out[own, c] = (below + part[own]) / (total + 1.0) > alpha
        return out

    def published(self, score: float) -> float:
        """The published machine's score that stands where a fold machine's score does.

        As many rows that both were fitted on score below it: where a machine collapses, the
        scores of two machines differ by more than the scores of one machine do.
        """
        if self.paired is None:
            return score
        folds, own = self.paired
        if not folds[0] < score < folds[-1]:
            end = 0 if score <= folds[0] else -1
            return float(score + own[end] - folds[end])
        return float(
            np.interp(np.interp(score, folds, np.arange(len(folds))), np.arange(len(own)), own)
        )

    def threshold(self, rule: str) -> float:
        """The score by a fold's machine above which a row is to have the second label.

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
        pooled = [np.sort(np.concatenate(known)) for known in zip(*self.margins, strict=True)]
        first, second = -pooled[0][::-1], pooled[1]
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
            "kept": [[len(known) for known in each] for each in self.margins],
        }
        arrays = {
            "calibration_x": np.concatenate([curve.x for curve in self.curves]),
            "calibration_p": np.concatenate([curve.p for curve in self.curves]),
            "calibration_margins": np.concatenate([m for each in self.margins for m in each]),
        }
        if self.paired is not None:
            record["paired"], arrays["calibration_paired"] = True, self.paired
        return record, arrays

    @classmethod
    def from_arrays(cls, record: Mapping[str, Any], array: Callable[[str], NDArray[Any]]) -> Self:
        """What `to_arrays` took apart."""
        ends, kept = np.cumsum(record["knots"])[:-1], np.atleast_2d(record["kept"])
        width = kept.shape[1]
        margins = np.split(array("calibration_margins"), np.cumsum(kept)[:-1])
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
            np.atleast_2d(record["rows"]),
            [margins[start : start + width] for start in range(0, kept.size, width)],
            array("calibration_paired") if record.get("paired") else None,
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
        return self.on_side(found, scores)

    def on_side(self, found: FloatArray, scores: FloatArray) -> FloatArray:
        """Probabilities, (rows,), kept on the side of `even` that the decision of scores is on."""
        if self.even is None:
            return found
        above = np.maximum(found, np.nextafter(self.even, 1.0))
        return np.where(scores > 0, above, np.minimum(found, self.even))

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


def _decision_values(scores: FloatArray, labels: int, strategy: str) -> FloatArray:
    """One value for every label, (rows, labels), of scores (rows, k); (rows, 1) of two labels."""
    return vote_values(scores, labels) if strategy == "one" and labels > 2 else scores


def _thinned(values: FloatArray, weights: FloatArray, most: int) -> FloatArray:
    """The values, ascending; of many, or of different weights, those at even parts of the weight.

    What is kept of many stands a little lower than the rows it stands for: sets grow by that.
    """
    order = np.argsort(values, kind="stable")
    values, weights = np.asarray(values[order], np.float64), weights[order]
    alike = bool(np.all(weights == weights[:1]))
    if alike and len(values) <= most:
        return values
    count = min(most, len(values))
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


def check_alpha(alpha: float) -> None:
    """Refuse a share of rows whose sets may lack their label that is not between 0 and 1."""
    if not 0 < alpha < 1:
        raise InputError(f"alpha must lie strictly between 0 and 1, got {alpha!r}")


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
