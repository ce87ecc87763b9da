"""Evaluation of a model on a store, block by block: classifiers, regressors, one-class machines."""

import math
import tempfile
from collections.abc import Iterator
from functools import partial
from typing import IO, Any

import numpy as np

from bigscreen.data.layout import Label
from bigscreen.data.memory import MemoryDataset
from bigscreen.data.rows import Rows
from bigscreen.data.targets import plain_label
from bigscreen.errors import InputError
from bigscreen.evaluate.curves import curve, histogram
from bigscreen.evaluate.reliability import Coverage, Reliability
from bigscreen.fleet.protocol import Each
from bigscreen.model.calibration import Evidence
from bigscreen.model.model import Model


def scored_blocks(
    model: Model, dataset: Rows, each: Each = map
) -> Iterator[tuple[int, int, np.ndarray]]:
    """Score a store block by block.

    Yields
    ------
    start, stop, scores
        A range of stored rows and its (stop - start, k) float64 scores.
    """
    blocks = [dataset.chunk(k) for k in range(dataset.n_chunks)]
    scored = each(partial(_score, model, dataset), blocks)
    for (start, stop), scores in zip(blocks, scored, strict=True):
        yield start, stop, scores


def _score(model: Model, dataset: Rows, block: tuple[int, int]) -> np.ndarray:
    """Compute the scores of the rows of a block (start, stop), float64 (rows, k)."""
    return model.scores(dataset.X(*block), prepared=True)


def evidence_blocks(
    model: Model, dataset: Rows, each: Each = map, wanted: bool = True
) -> Iterator[tuple[int, int, np.ndarray, Evidence | None]]:
    """Score a store block by block, with the scores that probabilities are computed from.

    Evidence holds, for each row, its scores by the model and by the machines fitted without one
    fold of the training rows, and a pseudorandom number.

    Parameters
    ----------
    wanted : bool
        Whether to compute evidence; if not, it is None.

    Yields
    ------
    start, stop, scores, evidence
        A range of stored rows, its (stop - start, k) float64 scores, and its `Evidence`, or None.
    """
    if not wanted:
        for start, stop, scores in scored_blocks(model, dataset, each):
            yield start, stop, scores, None
        return
    blocks = [dataset.chunk(k) for k in range(dataset.n_chunks)]
    found = each(partial(_evidence, model, dataset), blocks)
    for (start, stop), evidence in zip(blocks, found, strict=True):
        yield start, stop, evidence.scores, evidence


def _evidence(model: Model, dataset: Rows, block: tuple[int, int]) -> Evidence:
    """Compute the scores from which probabilities of a block's rows (start, stop) follow."""
    return model.evidence(dataset.X(*block), prepared=True)


def evaluate(
    model: Model,
    dataset: Rows,
    each: Each = map,
    positive: Label | None = None,
    curves: bool = False,
) -> dict[str, Any]:
    """Compare a model's predictions with the labels or targets of a store; rows count equally.

    Memory is bounded by a few blocks: the exact AUC sorts scores in temporary files.

    Parameters
    ----------
    model : Model
    dataset : Rows
        Must match the model (`check_match`).
    each : callable
        ``each(function, blocks)``: results in block order.
    positive : label, optional
        For a one-class machine: the store's label of rows that are like its training rows.
        Default: the second of two labels, or the only one.
    curves : bool
        Whether to compute the data of figures as well.

    Returns
    -------
    dict
        For a classifier: rows (labelled), unlabelled, error, accuracy, balanced_accuracy (the mean
        recall of labels that occur), f1 (of ``labels[1]``; the macro average if there are more than
        two labels), auc and average_precision (None unless there are two labels), confusion (true
        label -> predicted label -> rows), by_label (label -> rows, precision, recall, f1; None if
        the divisor is 0). For a classifier with probabilities also the entries of
        `Reliability.record`. With `curves`, two labels and rows of both: curve and scores (see
        `bigscreen.evaluate.curves.curve` and `histogram`).

        For a regressor: rows (with a target), unlabelled, mae and rmse (mean absolute and root
        mean squared error), r2 (explained share of the targets' variance; None if all are equal),
        pinball (mean loss of the fitted quantile; None for other problems). For a regressor with
        residuals also intervals (`Coverage.record`). With `curves` and
        targets that differ: joint (low and high: the targets' range, cut into equal bins; rows:
        counts by bin of predictions, clipped to the range, and by bin of targets).

        For a regressor of several targets: rows (with all targets), unlabelled (rows that lack
        one), targets (name of the target -> the entries of a regressor of one target; measures of a
        target that no row has are None).

        For a one-class machine: rows (all), unlabelled, outside (share of rows that are outliers),
        positive, auc (chance that a row of the positive label scores above a row of another label;
        None unless both occur), outside_by_label (label -> share of its rows).

    Raises
    ------
    InputError
        If no row has a label or target to compare with; if the store has targets but the model
        predicts labels, or the reverse; if a label is unknown to the classifier; or if it is not
        clear which label is positive.
    """
    if positive is not None and model.kind != "one-class":
        raise InputError(f"positive is for one-class machines and the model is a {model.kind}")
    if model.kind == "one-class":
        return _one_class(model, dataset, each, positive)
    check_outcome(model, dataset)
    compare = _regressor if model.kind == "regressor" else _classifier
    return compare(model, dataset, each, curves)


def evaluate_sample(
    model: Model,
    dataset: Rows,
    max_rows: int = 5000,
    max_bytes: int = 1 << 26,
    max_chunks: int = 8,
) -> dict[str, Any]:
    """Evaluate a model on a sample of the rows of a store, or on all rows if they are few.

    The rows are at equal distances within chunks (units of storage) at equal distances. Within the
    chunks distances are counted in the order of labels or targets, so that rare labels are not left
    out.

    Parameters
    ----------
    model, dataset
        As of `evaluate`.
    max_rows, max_bytes : int
        Take at most this many rows, and at most this many bytes of features.
    max_chunks : int
        Read at most this many chunks, however many the store has.

    Returns
    -------
    dict
        The result of `evaluate`.
    """
    most = max(min(max_rows, int(max_bytes / max(dataset.row_bytes, 1))), 1)
    if dataset.n_rows <= most:
        return evaluate(model, dataset)
    chunks = np.unique(np.linspace(0, dataset.n_chunks - 1, max_chunks).astype(np.int64))
    ranges = [dataset.chunk(int(k)) for k in chunks]
    ids = np.concatenate([np.arange(*each) for each in ranges])
    y = np.concatenate([dataset.y(*each) for each in ranges])
    places = np.linspace(0, len(ids) - 1, min(most, len(ids))).astype(np.int64)
    order = np.argsort(y if y.ndim == 1 else y[:, 0], kind="stable")
    chosen = order[places]
    labels = None if dataset.regression else dataset.labels
    return evaluate(model, MemoryDataset(dataset.rows(ids[chosen]), y[chosen], labels))


def check_outcome(model: Model, dataset: Rows) -> None:
    """Refuse a store whose labels or targets are not what the model predicts.

    Raises
    ------
    InputError
        Also if no row has a label or target.
    """
    data = dataset.path or "the data"
    if dataset.regression != (model.kind == "regressor"):
        has, predicts = ("targets", "labels") if dataset.regression else ("labels", "numbers")
        if not dataset.is_unlabelled:
            raise InputError(
                f"{data} has {has} and the model predicts {predicts}; ingest the data again with "
                "`--like MODEL`"
            )
    if dataset.regression and not dataset.is_unlabelled:
        _check_targets(model, dataset, str(data))
    if dataset.is_unlabelled:
        what = "target" if model.kind == "regressor" else "labelled row"
        raise InputError(
            f"{data} has no {what}, so nothing can be compared; use `bigscreen predict` for data "
            "without"
        )


def _check_targets(model: Model, dataset: Rows, data: str) -> None:
    """Raise InputError unless the rows have the targets that the model predicts, in its order.

    ``data``: the name of the rows in the message. Targets without names are only counted.
    """
    has, predicts = dataset.n_targets, model.n_targets
    if has != predicts:
        one = [f"{n} targets" if n > 1 else "one target" for n in (has, predicts)]
        raise InputError(
            f"{data} has {one[0]} and the model predicts {predicts if predicts > 1 else one[1]}; "
            "ingest the data again with `--like MODEL`"
        )
    own, known = dataset.preparation.targets, model.preparation.targets
    if own and known and own != known:
        given, wanted = (", ".join(map(str, names)) for names in (own, known))
        raise InputError(
            f"{data} has the targets {given} and the model predicts {wanted}; ingest the data "
            "again with `--like MODEL`"
        )


def _classifier(model: Model, dataset: Rows, each: Each, curves: bool) -> dict[str, Any]:
    """Evaluate a classifier on a store; returns its measures by name, as `evaluate` lists them.

    ``each`` maps a function over blocks of rows; ``curves``: whether to add the data of figures. In
    the code ``counts[i, j]`` is the number of rows with label i that are predicted to have label j.
    """
    rows = int(dataset.label_counts.sum())
    unknown = [label for label in dataset.labels if label not in model.labels]
    if unknown:
        raise InputError(
            f"{dataset.path or 'the data'} has the label {unknown[0]} and the model knows only "
            f"{', '.join(map(str, model.labels))}; ingest the data again with `--like MODEL`"
        )
    n_labels = len(model.labels)
    code_of = np.array([model.labels.index(label) for label in dataset.labels], dtype=np.int64)
    counts = np.zeros((n_labels, n_labels), dtype=np.int64)
    known = model.calibration
    reliability = None if known is None else Reliability(model.labels)
    with tempfile.TemporaryFile() as positive, tempfile.TemporaryFile() as negative:
        blocks = evidence_blocks(model, dataset, each, known is not None)
        for start, stop, scores, evidence in blocks:
            codes = dataset.y(start, stop)
            labelled = codes >= 0
            truth, scores = code_of[codes[labelled]], scores[labelled]
            pairs = truth * n_labels + model.decide(scores)
            counts += np.bincount(pairs, minlength=counts.size).reshape(counts.shape)
            if known is not None and evidence is not None and reliability is not None:
                own = evidence.among(labelled)
                sets = known.label_sets(own, reliability.alpha)
                reliability.add(known.probabilities(own), sets, truth)
            if n_labels == 2:
                _append(positive, scores[truth == 1, 0])
                _append(negative, scores[truth != 1, 0])
        ranked = (_sorted(positive), _sorted(negative)) if n_labels == 2 else None
        auc = _auc(*ranked) if ranked else None
        precision = _average_precision(*ranked) if ranked else None
        both = curves and ranked is not None and all(map(len, ranked))
        drawn = {"curve": curve(*ranked), "scores": histogram(*ranked)} if ranked and both else {}
    right = int(np.trace(counts))
    return {
        "rows": rows,
        "unlabelled": dataset.n_rows - rows,
        "error": (rows - right) / rows,
        "accuracy": right / rows,
        "balanced_accuracy": _balanced(counts),
        "f1": _f1(counts),
        "auc": auc,
        "average_precision": precision,
        "by_label": _by_label(counts, model.labels),
        "confusion": {
            str(true): {str(guess): int(counts[i, j]) for j, guess in enumerate(model.labels)}
            for i, true in enumerate(model.labels)
        },
        **drawn,
        **({} if reliability is None else reliability.record()),
    }


def _regressor(model: Model, dataset: Rows, each: Each, curves: bool) -> dict[str, Any]:
    """Evaluate a regressor on a store; returns its measures by name, as `evaluate` lists them.

    ``each`` maps a function over blocks of rows. ``curves``: whether to add the data of figures.
    """
    asked = model.provenance.get("parameters", {})
    tau = asked["tau"] if asked.get("problem") == "quantile" else None
    known = dataset.targets
    targets = known.get("each", [known])
    chunks = map(dataset.chunk, range(dataset.n_chunks))
    sums = sum(np.nansum(dataset.y(start, stop), axis=0) for start, stop in chunks)
    errors = [
        _Errors(target, float(total), tau, curves)
        for target, total in zip(targets, np.atleast_1d(sums), strict=True)
    ]
    coverage = None if model.residuals is None else Coverage(model.residuals)
    for start, stop, scores, evidence in evidence_blocks(
        model, dataset, each, coverage is not None
    ):
        y = dataset.y(start, stop).reshape(len(scores), -1)
        for j, of_target in enumerate(errors):
            of_target.add(y[:, j], scores[:, j])
        if coverage is not None and evidence is not None:  # (a machine of one target)
            there = ~np.isnan(y[:, 0])
            coverage.add(evidence.among(there), y[there, 0])
    count = {"rows": int(known["rows"]), "unlabelled": dataset.n_unlabelled}
    if len(errors) > 1:
        names = model.target_names if model.preparation.targets else dataset.target_names
        parts = [{**part.record(dataset.n_rows), **part.figure()} for part in errors]
        return {**count, "targets": dict(zip(names, parts, strict=True))}
    (one,) = errors
    intervals = {} if coverage is None else {"intervals": coverage.record()}
    return {**one.record(dataset.n_rows), **intervals, **one.figure()}


class _Errors:
    """The errors of predictions of one target, summed block by block.

    Parameters
    ----------
    target : dict
        The rows that have the target, and its range: low and high.
    total : float
        The sum of the target over these rows.
    tau : float or None
        The quantile that is predicted, for the pinball loss; None: another problem.
    curves : bool
        Whether to count rows by target and prediction, in ``bins`` equal bins of the target's
        range each.
    """

    bins = 40

    def __init__(
        self, target: dict[str, Any], total: float, tau: float | None, curves: bool
    ) -> None:
        """Begin with sums of 0."""
        self.rows, self.low, self.high = (target[name] for name in ("rows", "low", "high"))
        self.mean, self.tau = total / max(self.rows, 1), tau
        self.absolute = self.squares = self.spread = self.pinball = 0.0
        self.edges = None
        if curves and self.rows and self.low < self.high:
            self.edges = np.linspace(self.low, self.high, self.bins + 1)
        self.joint = np.zeros((self.bins, self.bins), dtype=np.int64)

    def add(self, y: np.ndarray, guesses: np.ndarray) -> None:
        """Add rows with the targets y (rows,), NaN for a missing one, and predictions (rows,)."""
        known = ~np.isnan(y)
        y, guesses = y[known], guesses[known]
        error = y - guesses
        self.absolute += float(np.abs(error).sum())
        self.squares += float(error @ error)
        self.spread += float(np.square(y - self.mean).sum())
        if self.edges is not None:
            cells = np.clip(guesses, self.low, self.high), y
            self.joint += np.histogram2d(*cells, bins=(self.edges, self.edges))[0].astype(np.int64)
        if self.tau is not None:
            self.pinball += float(np.maximum(self.tau * error, (self.tau - 1) * error).sum())

    def record(self, n_rows: int) -> dict[str, Any]:
        """Return the measures by name, of ``n_rows`` rows in all; None without a target."""
        rows = self.rows
        found: dict[str, Any] = dict.fromkeys(("mae", "rmse", "r2", "pinball"))
        if rows:
            found["mae"], found["rmse"] = self.absolute / rows, math.sqrt(self.squares / rows)
            # (The computed mean of equal targets may differ from them in the last digit.)
            found["r2"] = 1 - self.squares / self.spread if self.high > self.low else None
            found["pinball"] = None if self.tau is None else self.pinball / rows
        return {"rows": rows, "unlabelled": n_rows - rows, **found}

    def figure(self) -> dict[str, Any]:
        """Return the entry joint, as `evaluate` describes it; {} if it is not requested."""
        if self.edges is None:
            return {}
        return {"joint": {"low": self.low, "high": self.high, "rows": self.joint.tolist()}}


def _one_class(model: Model, dataset: Rows, each: Each, positive: Label | None) -> dict[str, Any]:
    """Evaluate a one-class machine on a store; returns its measures by name.

    ``each`` maps a function over blocks of rows. ``positive``: the label of rows that are like the
    machine's training rows; None: the last of at most two labels. `evaluate` lists the measures.
    """
    labels, at = dataset.labels, _positive(dataset, positive)
    outside, by_label = 0, np.zeros(len(labels), dtype=np.int64)
    with tempfile.TemporaryFile() as inside_scores, tempfile.TemporaryFile() as other_scores:
        for start, stop, scores in scored_blocks(model, dataset, each):
            out = model.decide(scores) == 0
            outside += int(np.count_nonzero(out))
            if not labels:
                continue
            codes = dataset.y(start, stop)
            by_label += np.bincount(codes[out & (codes >= 0)], minlength=len(labels))
            _append(inside_scores, scores[codes == at, 0])
            _append(other_scores, scores[(codes >= 0) & (codes != at), 0])
        auc = _auc(_sorted(inside_scores), _sorted(other_scores))
    counts = zip(labels, by_label.tolist(), dataset.label_counts.tolist(), strict=True)
    return {
        "rows": dataset.n_rows,
        "unlabelled": dataset.n_rows if dataset.regression else dataset.n_unlabelled,
        "outside": outside / dataset.n_rows,
        "positive": None if at is None else labels[at],
        "auc": auc,
        "outside_by_label": {str(label): out / rows for label, out, rows in counts if rows},
    }


def _positive(dataset: Rows, asked: Label | None) -> int | None:
    """Find the code of the positive label of a one-class machine; None if rows have no labels.

    ``asked``: the label that the user named as positive, or None.
    """
    data, labels = dataset.path or "the data", dataset.labels
    some = ", ".join(map(str, labels[:10])) or "none"
    if asked is not None:
        plain = [plain_label(label) for label in labels]
        if plain_label(asked) not in plain:
            raise InputError(f"{data} has no label {asked!r} to be positive; its labels are {some}")
        return plain.index(plain_label(asked))
    if len(labels) > 2:
        raise InputError(
            f"{data} has {len(labels)} labels ({some}); say which of them the rows like those "
            "that the model was fitted on have, with `--positive LABEL`"
        )
    return len(labels) - 1 if labels else None


def _f1(counts: np.ndarray) -> float | None:
    """Compute F1 of label 1 if there are two labels, else the mean F1; None if undefined.

    ``counts``: int (labels, labels), rows by true and by predicted label.
    """
    hits = np.diagonal(counts)
    total = counts.sum(axis=0) + counts.sum(axis=1)
    chosen = total > 0
    if len(counts) == 2:
        chosen[0] = False
    return float(np.mean(2 * hits[chosen] / total[chosen])) if chosen.any() else None


def _balanced(counts: np.ndarray) -> float:
    """Compute the balanced accuracy: the mean recall of the labels that occur.

    ``counts``: int (labels, labels), rows by true and by predicted label.
    """
    rows = counts.sum(axis=1)
    there = rows > 0
    return float(np.mean(np.diagonal(counts)[there] / rows[there]))


def _by_label(counts: np.ndarray, labels: list[Any]) -> dict[str, dict[str, Any]]:
    """Compute rows, precision, recall and F1 of every label; None if the divisor is 0.

    ``counts``: int (labels, labels), rows by true and by predicted label.
    """
    found = {}
    hits, rows, guessed = np.diagonal(counts), counts.sum(axis=1), counts.sum(axis=0)
    for label, hit, own, guess in zip(
        labels, hits.tolist(), rows.tolist(), guessed.tolist(), strict=True
    ):
        shares = {"precision": (hit, guess), "recall": (hit, own), "f1": (2 * hit, own + guess)}
        parts = {name: above / below if below else None for name, (above, below) in shares.items()}
        found[str(label)] = {"rows": own, **parts}
    return found


def _append(file: IO[bytes], scores: np.ndarray) -> None:
    """Append scores (rows,) to a file, as float64 numbers."""
    file.write(np.ascontiguousarray(scores, dtype=np.float64).data)


def _sorted(file: IO[bytes]) -> np.ndarray:
    """Sort the float64 numbers of a file in place, and map them to memory.

    (Mapped pages can leave memory, unlike an array.)
    """
    file.flush()
    if file.tell() == 0:
        return np.empty(0)
    numbers = np.memmap(file, dtype=np.float64, mode="r+")
    numbers.sort()
    return numbers


def _auc(positive: np.ndarray, negative: np.ndarray, block: int = 1 << 20) -> float | None:
    """Compute the exact AUC: the share of (positive, negative) pairs in order, ties as a half.

    ``positive``, ``negative``: ascending scores of either group; ``block``: scores taken at a time.
    None if a group is empty.
    """
    if not (len(positive) and len(negative)):
        return None
    twice = 0
    for start in range(0, len(positive), block):
        part = positive[start : start + block]
        below = np.searchsorted(negative, part, side="left")
        not_above = np.searchsorted(negative, part, side="right")
        twice += int(below.sum()) + int(not_above.sum())
    return twice / (2 * len(positive) * len(negative))


def _average_precision(
    positive: np.ndarray, negative: np.ndarray, block: int = 1 << 20
) -> float | None:
    """Compute the average precision: the mean precision at the score of each positive row.

    ``positive``, ``negative``: ascending scores of either group; ``block``: scores taken at a time.
    None if no row is positive.
    """
    if not len(positive):
        return None
    total = 0.0
    for start in range(0, len(positive), block):
        part = positive[start : start + block]
        right = len(positive) - np.searchsorted(positive, part, side="left")
        wrong = len(negative) - np.searchsorted(negative, part, side="left")
        total += float(np.sum(right / (right + wrong)))
    return total / len(positive)
