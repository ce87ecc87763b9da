"""Writing the predictions of a whole store to a file in the source's row order."""

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
"""What separates the columns of a text file, by the suffix of its name."""

TEXT_ROWS = 1 << 16
"""Convert this many rows to text at a time, in order to bound the memory."""


class Meaning(NamedTuple):
    """The columns to write in addition: probabilities and label sets, or intervals of targets."""

    probabilities: bool = False
    """Whether to write a column ``probability_LABEL`` for every label."""
    prior: Mapping[Any, float] | None = None
    """The labels' shares among these rows, to which probabilities are adjusted."""
    alpha: float | None = None
    """If given, write a column ``in_LABEL`` for every label: whether the row's label set at this
    alpha contains it; of a regressor the columns ``low`` and ``high``, the interval's ends."""
    cross: bool = False
    """Whether intervals are laid over the machines of all folds (CV+)."""


NOTHING_MORE = Meaning()
"""Write neither probabilities nor label sets nor intervals."""


def check_suffix(out: str | os.PathLike[str]) -> str:
    """Return the suffix of the file name, which chooses the format: .csv, .tsv or .npy.

    Pipes and "-", standard output, are csv unless their name has such a suffix.

    Raises
    ------
    InputError
        If a file has another suffix.
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
        (the predicted label's, or ``labels[1]``'s if there are two labels; one against one: its
        votes plus a fraction). A regressor has the columns row and prediction, of several targets
        in text files ``prediction_NAME`` for each target (its number if it has no name); the labels
        of a one-class machine are -1 (outlier) and 1.
    all_scores : bool
        Write every label's score instead; in text files as columns ``score_LABEL``.
    meaning : Meaning
        Probabilities, label sets or intervals to write as well, if the model has them.
    each : callable
        ``each(function, blocks)``: results in block order.
    deadline : float or None
        Value of ``time.monotonic()`` at which to give up.

    Raises
    ------
    TimeOver
        If the deadline passes before every row is scored.

    Returns
    -------
    dict
        The number of rows predicted to have each label; empty for a regressor.
    """
    suffix = check_suffix(out)
    width = len(model.labels) if all_scores and len(model.labels) > 2 else 1
    score = ("score", "<f8") if width == 1 else ("score", "<f8", (width,))
    columns = [("label", np.asarray(model.labels).dtype), score]
    if model.kind == "regressor" and not meaning.probabilities:
        several = () if model.n_targets == 1 else ((model.n_targets,),)
        columns = [("prediction", np.dtype("<f8"), *several)]
        if meaning.alpha is not None:
            _ = model.held_out
            columns += [("low", np.dtype("<f8")), ("high", np.dtype("<f8"))]
    elif meaning.probabilities or meaning.alpha is not None:
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
            # Lines of text differ in length: put the rows in order as records first.
            table = _reserve(records, layout, dataset.n_rows)
            counts = _fill(table, order, model, dataset, each, deadline, meaning)
            names = []
            for name in layout.names or ():
                wide = layout[name].shape
                which = model.labels or model.preparation.targets or range(model.n_targets)
                names += [f"{name}_{label}" for label in which] if wide else [name]
            _write_text(file, table, names, DELIMITERS[suffix])
    return counts


def _reserve(file: IO[bytes], layout: np.dtype[Any], rows: int) -> np.memmap:
    """Reserve disk space for `rows` records from the file's position on, and map it to memory.

    A memory-mapped write to a full disk kills the process, but a reservation raises OSError.
    """
    file.flush()
    offset = file.tell()
    size = max(rows * layout.itemsize, 1)
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), offset, size)
    else:  # macOS has no such call: write zeros
        for start in range(0, size, 1 << 20):
            file.write(bytes(min(1 << 20, size - start)))
        file.flush()
    return np.memmap(file, dtype=layout, mode="r+", offset=offset, shape=(rows,))


def _source_order(file: IO[bytes], dataset: Rows) -> np.memmap:
    """Sort the store's source row numbers in a file: a row's output position is its rank.

    (The numbers of a hold-out have gaps. No array as long as the data is held in memory.)
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
    """Write every prediction to ``table`` at its row's rank; return the count of each label.

    ``order``: the store's row numbers in the source, ascending. ``each`` maps a function over
    blocks of rows; ``deadline`` is a value of ``time.monotonic()``, past which TimeOver is raised.
    ``meaning`` says whether probabilities, label sets or intervals are written, too.
    """
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
            if meaning.alpha is not None and evidence is not None:
                ends = model.held_out.intervals(evidence, meaning.alpha, meaning.cross)
                table["low"][place], table["high"][place] = ends.T
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
    """Write the records of ``table`` to a text file, after a line of column ``names``.

    A field with one number per label makes several columns; booleans are written as 0 and 1.
    """
    text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
    writer = csv.writer(text, delimiter=delimiter, lineterminator="\n")
    writer.writerow(names)
    for start in range(0, len(table), TEXT_ROWS):
        part = table[start : start + TEXT_ROWS]
        columns: list[Any] = []
        for name in table.dtype.names or ():
            values = part[name]
            values = values.astype(np.int8) if values.dtype == np.bool_ else values
            columns += values.T.tolist() if values.ndim > 1 else [values.tolist()]
        writer.writerows(zip(*columns, strict=True))
    text.detach()
