"""Predictions of a whole store as one file in the source's row order, in bounded memory."""

import csv
import io
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from bigscreen.data.rows import Rows
from bigscreen.errors import InputError, TimeOver
from bigscreen.evaluate.evaluate import evidence_blocks
from bigscreen.files.output import is_written_in_place, replacing
from bigscreen.fleet.protocol import Each
from bigscreen.model.calibration import parse_prior
from bigscreen.model.model import Model

DELIMITERS = {".csv": ",", ".tsv": "\t"}
_TEXT_ROWS = 1 << 16
_ZEROS = 1 << 20


class Meaning(NamedTuple):
    """What is written of rows beside their labels and scores."""

    probabilities: bool = False
    """A column ``probability_LABEL`` for every label."""
    prior: Mapping[Any, float] | None = None
    """The labels' shares among these rows, for the probabilities."""
    alpha: float | None = None
    """A column ``in_LABEL`` for every label: whether the row's set at this alpha has it."""


NOTHING_MORE = Meaning()


def check_suffix(out: str | os.PathLike[str]) -> str:
    """What the name says of the format wanted; InputError if it says nothing.

    Without a name that says so a pipe, and "-", standard output, get what .csv does.
    """
    suffix = Path(out).suffix.lower()
    if suffix in (*DELIMITERS, ".npy"):
        return suffix
    if is_written_in_place(out):
        return ".csv"
    raise InputError(f"{os.fspath(out)} should end in .csv, .tsv or .npy to say which is wanted")


def write_predictions(
    model: Model,
    dataset: Rows,
    out: str | os.PathLike[str],
    *,
    all_scores: bool = False,
    meaning: Meaning = NOTHING_MORE,
    each: Each = map,
    deadline: float | None = None,
) -> dict[str, int]:
    """Score every row of a store and write `out`, which appears whole or not at all.

    Parameters
    ----------
    model : Model
    dataset : Rows
        Labels are not needed.
    out : path
        ``.csv`` or ``.tsv`` with a header line, or ``.npy``: a structured array; "-", standard
        output, is csv. Columns: row (int64, the row's number in the source, from 0), label, score
        (of the predicted label, or of ``labels[1]`` when there are two; one against one: its votes,
        and part of one more). Of a regressor row and prediction; the labels of a one-class machine
        are -1 (outlier) and 1.
    all_scores : bool
        Write every label's score instead; in text one column ``score_LABEL`` each.
    meaning : Meaning
        Probabilities and sets to write behind them, of a model that has them.
    each : callable
        ``each(function, blocks)``: results in block order.
    deadline : float or None
        Value of ``time.monotonic()`` after which nothing is written.

    Raises
    ------
    TimeOver
        If the deadline passes before every row is scored.

    Returns
    -------
    dict
        Rows predicted to have each label; empty of a regressor.
    """
    suffix = check_suffix(out)
    width = len(model.labels) if all_scores and len(model.labels) > 2 else 1
    score = ("score", "<f8") if width == 1 else ("score", "<f8", (width,))
    columns = [("label", np.asarray(model.labels).dtype), score]
    if model.kind == "regressor":
        columns = [("prediction", np.dtype("<f8"))]
    if meaning.probabilities or meaning.alpha is not None:
        _ = model.calibrated
        columns += [("probability", "<f8", (len(model.labels),))] * meaning.probabilities
        columns += [("in", "?", (len(model.labels),))] * (meaning.alpha is not None)
    layout = np.dtype([("row", "<i8"), *columns])
    folder = None if is_written_in_place(out) else Path(out).resolve().parent
    with (
        replacing(out) as file,
        tempfile.TemporaryFile(dir=folder) as ranks,
        tempfile.TemporaryFile(dir=folder) as records,
    ):
        order = _source_order(ranks, dataset)
        if suffix == ".npy":
            header = {"descr": layout.descr, "fortran_order": False, "shape": (dataset.n_rows,)}
            np.lib.format.write_array_header_2_0(file, header)
            table = _reserve(file, layout, dataset.n_rows)
            counts = _fill(table, order, model, dataset, each, deadline, meaning)
            table.flush()
        else:
            # A line of text has no fixed place, so the rows are put in order as records first.
            table = _reserve(records, layout, dataset.n_rows)
            counts = _fill(table, order, model, dataset, each, deadline, meaning)
            names = []
            for name in layout.names or ():
                wide = layout[name].shape
                names += [f"{name}_{label}" for label in model.labels] if wide else [name]
            _write_text(file, table, names, DELIMITERS[suffix])
    return counts


def _reserve(file: IO[bytes], layout: np.dtype[Any], rows: int) -> np.memmap:
    """Space for `rows` records from the file's position on, taken from the disk at once.

    A memory-mapped write to a disk that is full kills the process; a reservation fails politely.
    """
    file.flush()
    offset = file.tell()
    size = max(rows * layout.itemsize, 1)
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), offset, size)
    else:  # macOS: the space is there once something has been written to it
        for start in range(0, size, _ZEROS):
            file.write(bytes(min(_ZEROS, size - start)))
        file.flush()
    return np.memmap(file, dtype=layout, mode="r+", offset=offset, shape=(rows,))


def _source_order(file: IO[bytes], dataset: Rows) -> np.memmap:
    """The store's source row numbers in ascending order: a row's place is its rank among them.

    A hold-out has gaps in its row numbers, so the number itself is no place. They are sorted in a
    file: nothing as long as the data is held in memory.
    """
    order = _reserve(file, np.dtype(np.int64), dataset.n_rows)
    for start, stop in map(dataset.chunk, range(dataset.n_chunks)):
        order[start:stop] = dataset.row_ids(start, stop)
    order.sort()
    return order


def _fill(
    table: np.memmap,
    order: np.ndarray,
    model: Model,
    dataset: Rows,
    each: Each,
    deadline: float | None,
    meaning: Meaning,
) -> dict[str, int]:
    """Write every prediction to the place that its source row has; count the labels."""
    labels = np.asarray(model.labels)
    counts = np.zeros(len(labels), dtype=np.int64)
    prior = None if meaning.prior is None else parse_prior(meaning.prior, model.labels)
    wanted = meaning.probabilities or meaning.alpha is not None
    for start, stop, scores, evidence in evidence_blocks(model, dataset, each, wanted):
        if deadline is not None and time.monotonic() > deadline:
            raise TimeOver(
                f"the time budget ended with {start:,} of {dataset.n_rows:,} rows predicted, and "
                "nothing is written: give more time"
            )
        rows = dataset.row_ids(start, stop)
        place = np.searchsorted(order, rows)
        table["row"][place] = rows
        if model.kind == "regressor":
            table["prediction"][place] = model.decide(scores)
            continue
        if meaning.probabilities and evidence is not None:
            table["probability"][place] = model.calibrated.probabilities(evidence, prior)
        if meaning.alpha is not None and evidence is not None:
            table["in"][place] = model.calibrated.label_sets(evidence, meaning.alpha)
        codes, scores = model.decide(scores), model.decision_values(scores)
        counts += np.bincount(codes, minlength=len(labels))
        table["label"][place] = labels[codes]
        if table["score"].ndim == 2:
            table["score"][place] = scores
        elif scores.shape[1] == 1:
            table["score"][place] = scores[:, 0]
        else:
            table["score"][place] = scores[np.arange(len(codes)), codes]
    return {str(label): int(count) for label, count in zip(model.labels, counts, strict=True)}


def _write_text(file: IO[bytes], table: np.memmap, names: list[str], delimiter: str) -> None:
    text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
    writer = csv.writer(text, delimiter=delimiter, lineterminator="\n")
    writer.writerow(names)
    for start in range(0, len(table), _TEXT_ROWS):
        part = table[start : start + _TEXT_ROWS]
        columns: list[Any] = []
        for name in table.dtype.names or ():
            values = part[name]
            values = values.astype(np.int8) if values.dtype == np.bool_ else values
            columns += values.T.tolist() if values.ndim > 1 else [values.tolist()]
        writer.writerows(zip(*columns, strict=True))
    text.detach()
