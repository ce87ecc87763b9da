"""Turn scores into probabilities, label sets and thresholds, learnt from cross-fitted scores.

The cross-fitted score of a row comes from the machine of its fold, which was not fitted on the row.
New rows are scored by the folds' machines, too, so that their scores have the same distribution.
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

MIN_PROBABILITY = 1e-7
"""Raise a probability of a calibration curve to at least this: combining the probabilities of pairs
of labels divides by it."""

RULES = "f1, precision:P, recall:R or cost:A:M (of a false alarm and of a miss)"
"""Syntax of the rules that choose a threshold."""


class Evidence(NamedTuple):
    """Scores of rows, and a number per row, from which probabilities, sets and intervals follow.

    Parameters
    ----------
    scores : float64 (rows, k)
        Scores by the published machine (the one fitted to all rows), which decides the label.
    held : float64 (rows, machines, k)
        Scores by the calibrated machines: those of the folds, or the published machine alone in
        models of files of schema 4 or older, which have no fold machines.
    draw : float64 (rows,)
        A pseudorandom number in [0, 1) per row, a hash of the row's features
        (`numerics.draws.row_draws`).
    """

    scores: FloatArray
    held: FloatArray
    draw: FloatArray

    @classmethod
    def joined(cls, parts: Sequence[Evidence]) -> Evidence:
        """Concatenate the evidence of several blocks of rows, in their order."""
        return cls(*(np.concatenate(each) for each in zip(*parts, strict=True)))

    def among(self, rows: NDArray[Any]) -> Evidence:
        """Return the evidence of a subset of the rows, given by indices or a mask."""
        return Evidence(*(part[rows] for part in self))


@dataclass(eq=False)
class Calibration:
    """Probability curves and margin distributions of a model, learnt from cross-fitted scores.

    Attributes
    ----------
    strategy : {"rest", "one"}
        The model's strategy: whether its scores belong to labels or to pairs of labels.
    folds : int
        Number of folds that the scores were cross-fitted with.
    curves : list of Curve
        A curve per score: the probability of the score's label (of a pair, of two labels: the
        second label) given that the row has one of the labels that the score separates.
    priors : float64 (labels,)
        Each label's fraction of the weight of the training rows.
    rows : int64 (machines, labels)
        Number of rows of each label that were held out from each fold's machine. A single machine
        marks a model of a file of schema 4 or older: the published machine (fitted to all rows)
        stands in for the folds' machines.
    margins : list of list of float64 (kept,)
        For every machine and label, the `label_margins` of the label's held-out rows, ascending
        and perhaps thinned; each margin stands for the same number of rows.
    paired : float64 (2, rows) or None
        With two labels: scores of rows on which both a fold's machine and the published machine
        were fitted, by the fold's machine (first) and by the published one, each sorted. None in
        older files.
    """

    strategy: str
    folds: int
    curves: list[Curve]
    priors: FloatArray
    rows: NDArray[np.int64]
    margins: list[list[FloatArray]]
    paired: FloatArray | None = None

    def __post_init__(self) -> None:
        """Convert the arrays; ValueError if shapes disagree or a number is not finite."""
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
        """Number of machines whose scores are calibrated: one per fold.

        Older files have 1: only the published machine, fitted to all rows, is calibrated.
        """
        return len(self.margins)

    @classmethod
    def learn(
        cls,
        scores: FloatArray,
        codes: NDArray[Any],
        fold: NDArray[Any],
        weights: FloatArray,
        class_weight: FloatArray,
        strategy: str,
        max_margins: int = 10_000,
    ) -> Self:
        """Learn a calibration from cross-fitted scores.

        Parameters
        ----------
        scores : float64 (rows, k)
            Cross-fitted scores: a row's score is by the machine of the fold that holds it out.
        codes, fold : int (rows,)
            Label codes, and the folds that hold the rows out, from 0.
        weights : float64 (rows,)
            Weights of the rows; rows of weight 0 are ignored.
        class_weight : float64 (labels,)
            Factors of the row weights, one per label, in the machines' fits.
        strategy : {"rest", "one"}
            As in the attributes of `Calibration`.
        max_margins : int
            Keep at most this many margins per label, over all folds, evenly spaced in weight.
        """
        there, folds = np.flatnonzero(weights > 0), int(np.max(fold)) + 1
        scores, codes, fold, weights = scores[there], codes[there], fold[there], weights[there]
        k = len(class_weight)
        totals = np.bincount(codes, weights, k)
        if k > 2 and strategy == "rest":
            curves = [
                Curve.fit(scores[:, c], codes == c, weights, None) for c in range(len(totals))
            ]
        else:
            curves = []
            for column, (i, j) in zip(scores.T, combinations(range(k), 2), strict=True):
                own = (codes == i) | (codes == j)
                even = float(class_weight[i] / (class_weight[i] + class_weight[j]))
                curves.append(Curve.fit(column[own], codes[own] == j, weights[own], even))
        own_margins = label_margins(_decision_values(scores, k, strategy))
        own_margins = own_margins[np.arange(len(codes)), codes]
        margins, rows = [], np.zeros((folds, k), np.int64)
        for f in range(folds):
            places = [np.flatnonzero((fold == f) & (codes == c)) for c in range(k)]
            rows[f] = [len(own) for own in places]
            most = max(1, max_margins // folds)
            margins.append([thin(own_margins[own], weights[own], most) for own in places])
        return cls(strategy, folds, curves, totals / np.sum(totals), rows, margins)

    def probabilities(self, evidence: Evidence, prior: FloatArray | None = None) -> FloatArray:
        """Compute probabilities of labels, float64 (rows, labels).

        They are the mean of the probabilities by each fold's machine. With two labels the mean is
        clipped to the side of the decision of the published machine, the one fitted to all rows.

        Parameters
        ----------
        evidence : Evidence
        prior : float64 (labels,) or None
            The labels' fractions among the rows to predict; None: as among the training rows.
        """
        found = np.mean(
            [self._machine_probabilities(held) for held in evidence.held.swapaxes(0, 1)], axis=0
        )
        if len(self.priors) == 2:
            second = self.curves[0].clip_to_side(found[:, 1], evidence.scores[:, 0])
            found = np.stack([1.0 - second, second], axis=1)
        if prior is not None:
            found = found * (prior / self.priors)
        out: FloatArray = found / np.sum(found, axis=1, keepdims=True)
        return out

    def _machine_probabilities(self, scores: FloatArray) -> FloatArray:
        """Compute probabilities (rows, labels) from the scores (rows, k) of one fold's machine."""
        parts = [curve(column) for curve, column in zip(self.curves, scores.T, strict=True)]
        found = np.stack(parts, axis=1)
        k = len(self.priors)
        if k == 2:
            found = np.concatenate([1.0 - found, found], axis=1)
        elif self.strategy == "one":
            found = couple_pairs((1.0 - found).clip(MIN_PROBABILITY, 1 - MIN_PROBABILITY), k)
        out: FloatArray = found / np.sum(found, axis=1, keepdims=True)
        return out

    def label_sets(self, evidence: Evidence, alpha: float) -> NDArray[np.bool_]:
        """Compute conformal label sets, a mask (rows, labels) of the labels a row may have.

        The row's draw, a number in [0, 1) from `evidence`, chooses one fold's machine. A label is
        in the set if its p-value exceeds alpha: the p-value is the fraction of the label's held-out
        rows whose margin is at most the row's (split conformal prediction per label). The
        fractional part of the draw times the number of machines randomises the row's own
        contribution to its p-value, so that coverage is exactly 1 - alpha even with few rows.
        Held-out rows with a tied margin count in full, so ties can only increase coverage.
        """
        out = np.empty((len(evidence.scores), len(self.priors)), np.bool_)
        place = evidence.draw * self.machines
        chosen = place.astype(np.int64)
        # A model of a file of schema 4 or older has no fold machines and does not randomise.
        part = place - chosen if self.machines > 1 else np.ones(len(place))
        for f, (rows, margins) in enumerate(zip(self.rows, self.margins, strict=True)):
            own = np.flatnonzero(chosen == f)
            values = _decision_values(evidence.held[own, f], len(self.priors), self.strategy)
            found = label_margins(values)
            for c, (known, total) in enumerate(zip(margins, rows.tolist(), strict=True)):
                # Each margin kept stands for the same number of rows.
                each = total / max(1, len(known))
                below = np.searchsorted(known, found[:, c], side="right") * each
                out[own, c] = (below + part[own]) / (total + 1.0) > alpha
        return out

    def to_published(self, score: float) -> float:
        """Map a score by a fold's machine to the published machine's score at the same quantile.

        The published machine is the one fitted to all rows. Quantiles are those of the rows on
        which both machines were fitted. This matters if a machine's scores collapse to nearly one
        value: the two machines' scores can then differ by more than the scores of one machine do.
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
        """Choose the fold machines' score above which a row gets the second label.

        Parameters
        ----------
        rule : str
            "f1": maximise F1 of the second label. "precision:P": maximise recall at a precision of
            at least P. "recall:R": the highest threshold with a recall of at least R. "cost:A:M":
            minimise the cost, with A per false alarm and M per miss.

        Raises
        ------
        InputError
            If there are more than two labels, or no threshold satisfies the rule.
        """
        if len(self.priors) != 2:
            raise InputError(f"a threshold is for two labels, and there are {len(self.priors)}")
        name, numbers = _parse_rule(rule)
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
        """Convert to a JSON-able record and named arrays, for `from_arrays`.

        The record has strategy, folds, priors and rows; even (a value per curve); knots (number of
        knots per curve); kept (number of margins per machine and label).
        """
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
        """Restore a calibration from the record of `to_arrays`; ``array`` reads one by name."""
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
    """A nondecreasing map from scores to probabilities.

    Parameters
    ----------
    x, p : float64 (knots,)
        Scores and probabilities of the knots: linear between knots, constant beyond them. A single
        knot stands for the sigmoid ``1 / (1 + exp(x s + p))`` of the score s.
    even : float or None
        Probability at score 0, the machine's decision boundary: scores above 0 get more, all
        others at most this. None if the decision is not at 0.
    """

    x: FloatArray
    p: FloatArray
    even: float | None

    def __call__(self, scores: FloatArray) -> FloatArray:
        """Return the probabilities of scores, (rows,)."""
        found: FloatArray
        if len(self.x) == 1:
            found = expit(-(self.x[0] * scores + self.p[0]))
            found = found.clip(MIN_PROBABILITY, 1 - MIN_PROBABILITY)
        else:
            found = np.interp(scores, self.x, self.p)
        return self.clip_to_side(found, scores)

    def clip_to_side(self, found: FloatArray, scores: FloatArray) -> FloatArray:
        """Clip probabilities ``found``, (rows,), to the side of `even` that the scores mean.

        The result is above `even` for a positive score, else at most `even`.
        """
        if self.even is None:
            return found
        above = np.maximum(found, np.nextafter(self.even, 1.0))
        return np.where(scores > 0, above, np.minimum(found, self.even))

    @classmethod
    def fit(
        cls,
        scores: FloatArray,
        positive: NDArray[np.bool_],
        weights: FloatArray,
        even: float | None,
        min_isotonic_rows: int = 1000,
    ) -> Self:
        """Fit a curve to rows: a sigmoid for few rows, isotonic regression for many.

        Parameters
        ----------
        scores : float64 (rows,)
        positive : bool (rows,)
            Whether the row has the label whose probability the curve gives.
        weights : float64 (rows,)
        even : float or None
            Probability at score 0, the decision boundary; None if the decision is not at 0.
        min_isotonic_rows : int
            With fewer rows of the rarer class than this a sigmoid is fitted.
        """
        scores = np.asarray(scores, np.float64)
        rarer = min(np.count_nonzero(positive), np.count_nonzero(~positive))
        if rarer < min_isotonic_rows:
            slope, offset = fit_sigmoid(scores, positive, weights)
            if slope > 0:  # worse than chance: the best nondecreasing curve is constant
                part = float(np.sum(weights[positive]) / np.sum(weights))
                slope, offset = 0.0, float(np.log((1 - part) / part))
            return cls(np.array([slope]), np.array([offset]), even)
        # Imported here because the import is slow and most fits do not need it.
        from scipy.optimize import isotonic_regression

        x, place = np.unique(scores, return_inverse=True)
        total = np.bincount(place, weights)
        hits = np.bincount(place, weights * positive)
        blocks = isotonic_regression(hits / total, weights=total).blocks
        starts = blocks[:-1]
        size = np.add.reduceat(total, starts)
        centre = np.add.reduceat(total * x, starts) / size
        share = np.add.reduceat(hits, starts) / size
        # The end blocks may be a few rows of one class: by the rule of succession their
        # probability is not 0 or 1.
        low, high = 1.0 / (size[0] + 2.0), 1.0 - 1.0 / (size[-1] + 2.0)
        if len(share) > 1:
            share[0] = max(share[0], min(low, 0.5 * share[1]))
            share[-1] = min(share[-1], max(high, 0.5 * (1.0 + share[-2])))
        else:
            centre, share = np.array([centre[0], centre[0] + 1.0]), np.repeat(share, 2)
        return cls(centre, share.clip(MIN_PROBABILITY, 1 - MIN_PROBABILITY), even)


def label_margins(values: FloatArray) -> FloatArray:
    """Compute each label's margin: its decision value minus the best other label's.

    Takes decision values (rows, labels), or (rows, 1) for two labels; returns (rows, labels).
    """
    if values.shape[1] == 1:
        return np.concatenate([-values, values], axis=1)
    order = np.sort(values, axis=1)
    best, next_best = order[:, -1:], order[:, -2:-1]
    # If several labels tie for the best, each has the margin 0.
    ahead: FloatArray = np.where(values == best, values - next_best, values - best)
    return ahead


def _decision_values(scores: FloatArray, labels: int, strategy: str) -> FloatArray:
    """Convert scores (rows, k) to a value per label, (rows, labels); (rows, 1) for two labels.

    ``labels`` is their number; ``strategy`` is "rest" (a score per label) or "one" (a score per
    pair of labels, of which votes are made). The label with the largest value is predicted.
    """
    return vote_values(scores, labels) if strategy == "one" and labels > 2 else scores


def thin(values: FloatArray, weights: FloatArray, most: int, at: float = 0.5) -> FloatArray:
    """Sort values (rows,) and keep at most `most`, at evenly spaced quantiles of the weight.

    Few values of equal weight are all kept. Each kept value stands for a part of the rows: it is
    the value ``at`` this fraction of the part, whose largest value is ``at`` 1.
    """
    order = np.argsort(values, kind="stable")
    values, weights = np.asarray(values[order], np.float64), weights[order]
    alike = bool(np.all(weights == weights[:1]))
    if alike and len(values) <= most:
        return values
    count = min(most, len(values))
    reached = np.cumsum(weights)
    places = np.searchsorted(reached, (np.arange(count) + at) / count * reached[-1])
    kept: FloatArray = values[np.minimum(places, len(values) - 1)]
    return kept


def _parse_rule(rule: str) -> tuple[str, list[float]]:
    """Parse a rule for a threshold, such as "cost:1:10", into its name and numbers.

    InputError unless it has the syntax of `RULES`.
    """
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
    """Raise InputError unless alpha, the allowed rate of sets without the label, is in (0, 1)."""
    if not isinstance(alpha, (int, float, np.number)) or not 0 < alpha < 1:
        raise InputError(f"alpha must lie strictly between 0 and 1, got {alpha!r}")


def parse_prior(given: Mapping[Any, float], labels: Sequence[Any]) -> FloatArray:
    """Convert ``given``, prior probabilities by label, to an array in the order of ``labels``.

    With two labels one of them may be left out.

    Raises
    ------
    InputError
        If a label is unknown or has no prior, or the priors are not positive with sum 1.
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


def fit_sigmoid(
    scores: FloatArray, positive: NDArray[np.bool_], weights: FloatArray | None = None
) -> tuple[float, float]:
    """Fit A and B of ``1 / (1 + exp(A score + B))`` by maximum likelihood (Platt scaling).

    ``positive``, (rows,), marks the rows of the positive class; ``weights`` of None are ones.
    Targets are smoothed by a prior for either class (Lin et al. 2007; maths.md 5.7). The method is
    Newton's with a line search that halves steps. Returns (A, B).
    """
    own = np.ones(len(scores)) if weights is None else weights
    ones, zeros = float(np.sum(own[positive])), float(np.sum(own[~positive]))
    target = np.where(positive, (ones + 1.0) / (ones + 2.0), 1.0 / (zeros + 2.0))

    def loss(at: FloatArray) -> float:
        """Return the weighted cross-entropy at (A, B)."""
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


def couple_pairs(first: FloatArray, classes: int) -> FloatArray:
    """Couple pairwise probabilities ``first`` (rows, pairs), of each pair's first class.

    Returns probabilities of all classes (rows, classes). Second method of Wu et al. (2004):
    ``min sum_ij (r_ji p_i - r_ij p_j)^2``, ``sum p = 1``.
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
