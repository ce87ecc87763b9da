"""Estimate the memory and disk that an ingest needs, and refuse the ingest if there is less."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from bigscreen.data.layout import MAX_CHUNK_BYTES
from bigscreen.errors import InputError, in_units
from bigscreen.fleet.inline import usable_processors
from bigscreen.intake.readers.base import Reader
from bigscreen.intake.spill import record_type


@dataclass(frozen=True)
class IngestCosts:
    """Bytes that the steps of an ingest need, most of them measured.

    Attributes
    ----------
    base_bytes : int
        Memory of the process with one thread: the program, a piece of text with the rows parsed
        from it, and a range of rows that is being sorted (measured: 220 to 290 MiB).
    thread_bytes : int
        Memory of each further thread: two pieces of text, a range of rows that is being sorted, and
        a chunk (file of rows) of the dataset.
    scaled_feature_bytes : int
        Memory for each feature that is scaled by its mean and deviation: moments, offset and
        factor, and both in the manifest (measured).
    divided_feature_bytes : int
        Memory for each feature that is only divided by a number: its factor.
    chunk_copies : int
        Copies of a chunk of the dataset that are in memory at once: its rows as they are collected,
        stacked, checked, and being written.
    stored_row_bytes : int
        Space on disk for a stored row in addition to its features: label, norm, number in the
        source and weight, 8 bytes each.
    """

    base_bytes: int = 320 << 20
    thread_bytes: int = 192 << 20
    scaled_feature_bytes: int = 400
    divided_feature_bytes: int = 130
    chunk_copies: int = 5
    stored_row_bytes: int = 32


COSTS = IngestCosts()
"""The costs by which an ingest is planned."""


def count_threads(memory: int, asked: int | None) -> int:
    """Return the number of threads: as requested, or one per core, and fewer if memory is small.

    Parameters
    ----------
    memory : int
        Bytes of memory allowed.
    asked : int or None
        The requested number of threads; None: one per core.
    """
    most = max((memory - COSTS.base_bytes) // COSTS.thread_bytes + 1, 1)
    return min(asked or usable_processors(), most)


def check_source(reader: Reader, rows: int, folder: Path) -> None:
    """Refuse a source whose declared number of rows does not fit on the disk.

    Parameters
    ----------
    reader : Reader
        Its number of features gives the bytes of a row.
    rows : int
        Number of rows that will be read.
    folder : Path
        Any folder on the disk that the rows are written to.

    Raises
    ------
    InputError
    """
    width = reader.n_features or 0
    each = record_type(len(reader.targets) or 1).itemsize + 4 * width
    check_disk({f"{rows} rows of {width} columns as they are read": rows * each}, folder)


def check_disk(parts: dict[str, int], folder: Path, kept: int = 0) -> None:
    """Refuse an ingest whose `parts` do not fit on the disk of `folder`.

    Parameters
    ----------
    parts : dict of str to int
        What will be written, in words for the error, and its bytes.
    folder : Path
        Any folder on the disk.
    kept : int
        Bytes of `parts` that an earlier run has written already.

    Raises
    ------
    InputError
    """
    total, free = sum(parts.values()), shutil.disk_usage(folder).free
    if total > free + kept:
        raise InputError(
            f"the disk of {folder} has {in_units(free)} free and this ingest needs "
            f"{in_units(total - kept)} more: {_describe_parts(parts)}; make room, take fewer "
            "`rows`, or leave out columns (`drop`)."
        )


def check_memory(memory: int, n_features: int, scale: str, row_bytes: int, stores: int) -> None:
    """Refuse an ingest if the statistics of its features, or a chunk, need too much memory.

    Parameters
    ----------
    memory : int
        Bytes allowed.
    n_features : int
        Number of stored features.
    scale : str
        Scaling of the features: "none", "standard", "minmax", "divide:N" or "auto".
    row_bytes : int
        Bytes of one stored row if it is dense; 0 if rows may be sparse.
    stores : int
        Number of datasets that are written at once.

    Raises
    ------
    InputError
    """
    scaled = COSTS.scaled_feature_bytes
    of_scaling = {"none": 0, "standard": scaled, "minmax": scaled, "auto": scaled}
    parts = {
        "for the process and the rows it reads": COSTS.base_bytes,
        f"for the scaling of {n_features} features": n_features
        * of_scaling.get(scale, COSTS.divided_feature_bytes),
        "for rows on their way to the disk": COSTS.chunk_copies
        * stores
        * max(row_bytes, MAX_CHUNK_BYTES),
    }
    if sum(parts.values()) > memory:
        raise InputError(
            f"this ingest needs about {in_units(sum(parts.values()))} of memory and "
            f"{in_units(memory)} are allowed: {_describe_parts(parts)}; allow more `memory`, leave "
            "out columns (`drop`), or `scale='none'`."
        )


def _describe_parts(parts: dict[str, int]) -> str:
    """Return "12 MiB for this, 3 GiB for that" of bytes by description; parts of 0 are left out."""
    return ", ".join(f"{in_units(part)} {name}" for name, part in parts.items() if part)
