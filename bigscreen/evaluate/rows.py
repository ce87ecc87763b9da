"""Writing the rows of a ledger (what a fit has proved of each row) to a file."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from bigscreen.evaluate.predict import DELIMITERS, TEXT_ROWS, check_suffix
from bigscreen.files.output import replacing
from bigscreen.model.ledger import Ledger


def write_rows(
    out: str | os.PathLike[str],
    ledgers: Sequence[Ledger],
    labels: Sequence[Any],
    status: str | None = None,
    top: int | None = None,
) -> None:
    """Write what is proved of each row to `out`, which appears whole or not at all.

    Parameters
    ----------
    out : path
        ``.csv`` or ``.tsv`` with a header line, or ``.npy``: a structured array; "-", standard
        output, is csv. Columns: score (the label, if there are several ledgers), row (int64, the
        row's number in the source), status ("out": not needed, "bound": its dual variable is at its
        bound, "open": neither is proved), margin (float32).
    ledgers, labels
        One ledger and one label for each score.
    status : str or None
        List only rows with this status; None: all rows.
    top : int or None
        List only this many rows of each ledger: those with the largest margins (with the status
        "open": the smallest).
    """
    suffix = check_suffix(out)
    names = [str(label) for label in labels]
    layout: list[tuple[str, str]] = [("row", "<i8"), ("status", "<U5"), ("margin", "<f4")]
    if len(ledgers) > 1:
        layout.insert(0, ("score", f"<U{max(map(len, names))}"))
    tables = []
    for name, ledger in zip(names, ledgers, strict=True):
        places = ledger.list_rows(status, top)
        table = np.empty(len(places), layout)
        table["row"], table["status"] = ledger.numbers()[places], ledger.status[places]
        table["margin"] = np.abs(ledger.margins[places])
        if len(ledgers) > 1:
            table["score"] = name
        tables.append(table)
    with replacing(out) as file:
        if suffix == ".npy":
            np.lib.format.write_array(file, np.concatenate(tables), allow_pickle=False)
            return
        text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
        writer = csv.writer(text, delimiter=DELIMITERS[suffix], lineterminator="\n")
        writer.writerow(name for name, _ in layout)
        for table in tables:
            for start in range(0, len(table), TEXT_ROWS):
                writer.writerows(table[start : start + TEXT_ROWS].tolist())
        text.detach()
