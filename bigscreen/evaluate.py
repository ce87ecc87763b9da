"""How good a model is on a store: error, F1, AUC and confusion, block by block."""

import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import IO, Any

import numpy as np

from bigscreen.errors import InputError
from bigscreen.store.base import Rows
from bigscreen.store.model import Model

# Like the built-in `map`: how a function is run over blocks, results in order. `Fleet.each` fits.
Each = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]


def check_match(model: Model, dataset: Rows, name: str) -> None:
    """Refuse a store whose features are not the ones the model was fitted on.

    Parameters
    ----------
    model : Model
    dataset : Rows
    name : str
        What the message calls the model.

    Raises
    ------
    InputError
        If the widths or the preparations (scaling, categories) differ.
    """
    data = dataset.path or "the data"
    if dataset.n_features != model.n_features:
        raise InputError(
            f"{data} has {dataset.n_features} features and {name} was fitted on "
            f"{model.n_features}; ingest the data again with `--like {name}`"
        )
    if _features(dataset) != _features(model):
        raise InputError(
            f"{data} was scaled or encoded otherwise than the data {name} was fitted on; "
            f"ingest it again with `--like {name}`"
        )


def _features(thing: Model | Rows) -> dict[str, Any]:
    """What decides the meaning of a feature: labels differ between stores, names are optional."""
    record = thing.preparation.to_dict()
    return {key: record[key] for key in ("categories", "offset", "factor")}


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
    return model.scores(dataset.X(*block))


def evaluate(model: Model, dataset: Rows, each: Each = map) -> dict[str, Any]:
    """Compare a model's predictions with a store's labels, every labelled row counting once.

    Memory is bounded by a few blocks: the scores that the exact AUC has to sort live in temporary
    files.

    Parameters
    ----------
    model : Model
    dataset : Rows
        Must match the model (`check_match`).
    each : callable
        ``each(function, blocks)``: results in block order.

    Returns
    -------
    dict
        rows, unlabelled, error, accuracy, f1 (of ``labels[1]``; macro average when there are more
        than two labels), auc (binary only, otherwise None), confusion (true label -> predicted
        label -> rows).

    Raises
    ------
    InputError
        If no row has a label, or the store has a label that the model does not know.
    """
    rows = int(dataset.label_counts.sum())
    if rows == 0:
        raise InputError(
            f"{dataset.path or 'the data'} has no labelled row, so nothing can be compared; "
            "use `bigscreen predict` for data without labels"
        )
    unknown = [label for label in dataset.labels if label not in model.labels]
    if unknown:
        raise InputError(
            f"{dataset.path or 'the data'} has the label {unknown[0]} and the model knows only "
            f"{', '.join(map(str, model.labels))}; ingest the data again with `--like MODEL`"
        )
    n_labels = len(model.labels)
    code_of = np.array([model.labels.index(label) for label in dataset.labels], dtype=np.int64)
    counts = np.zeros((n_labels, n_labels), dtype=np.int64)
    with tempfile.TemporaryFile() as positive, tempfile.TemporaryFile() as negative:
        for start, stop, scores in scored_blocks(model, dataset, each):
            codes = dataset.y(start, stop)
            labelled = codes >= 0
            truth, scores = code_of[codes[labelled]], scores[labelled]
            pairs = truth * n_labels + model.decide(scores)
            counts += np.bincount(pairs, minlength=counts.size).reshape(counts.shape)
            if n_labels == 2:
                _append(positive, scores[truth == 1, 0])
                _append(negative, scores[truth != 1, 0])
        auc = _auc(_sorted(positive), _sorted(negative)) if n_labels == 2 else None
    right = int(np.trace(counts))
    return {
        "rows": rows,
        "unlabelled": dataset.n_rows - rows,
        "error": (rows - right) / rows,
        "accuracy": right / rows,
        "f1": _f1(counts),
        "auc": auc,
        "confusion": {
            str(true): {str(guess): int(counts[i, j]) for j, guess in enumerate(model.labels)}
            for i, true in enumerate(model.labels)
        },
    }


def _f1(counts: np.ndarray) -> float | None:
    """F1 of label 1 of two, else the mean over labels that occur; None where undefined."""
    hits = np.diagonal(counts)
    total = counts.sum(axis=0) + counts.sum(axis=1)
    chosen = total > 0
    if len(counts) == 2:
        chosen[0] = False
    return float(np.mean(2 * hits[chosen] / total[chosen])) if chosen.any() else None


def _append(file: IO[bytes], scores: np.ndarray) -> None:
    file.write(np.ascontiguousarray(scores, dtype=np.float64).data)


def _sorted(file: IO[bytes]) -> np.ndarray:
    """The numbers in a file, sorted in place: the pages can leave memory, an array could not."""
    file.flush()
    if file.tell() == 0:
        return np.empty(0)
    numbers = np.memmap(file, dtype=np.float64, mode="r+")
    numbers.sort()
    return numbers


def _auc(positive: np.ndarray, negative: np.ndarray, block: int = 1 << 20) -> float | None:
    """Share of (positive, negative) pairs in the right order, ties a half; counted exactly."""
    if not (len(positive) and len(negative)):
        return None
    twice = 0
    for start in range(0, len(positive), block):
        part = positive[start : start + block]
        below = np.searchsorted(negative, part, side="left")
        not_above = np.searchsorted(negative, part, side="right")
        twice += int(below.sum()) + int(not_above.sum())
    return twice / (2 * len(positive) * len(negative))
