"""Estimate the memory and disk that an ingest needs, and refuse the ingest if there is less."""

from __future__ import annotations

import shutil
from pathlib import Path

from bigscreen.data.layout import MAX_CHUNK_BYTES
from bigscreen.errors import InputError, in_units
from bigscreen.fleet.inline import usable_processors
from bigscreen.intake.readers.base import Reader
from bigscreen.intake.spill import RECORD

BASE_BYTES = 320 << 20
"""The process, a piece of text in all its forms, a part that is sorted (measured: 220 to 290)."""
SCALED_BYTES = 400
"""A scaled feature: moments, offset and factor, and both in the manifest (measured)."""
DIVIDED_BYTES = 130
"""A feature that is divided by a number: the factor alone."""
CHUNK_COPIES = 5
"""A chunk as pieces, stacked, checked and on its way to the disk."""
STORED_ROW_BYTES = 32
"""Label, norm, source row and weight of a stored row."""


THREAD_BYTES = 192 << 20
"""One thread more: a piece of text in all its forms and the next one, a part and a chunk."""


def count_threads(memory: int, asked: int | None) -> int:
    """Return the number of threads: as requested, or one per core, and fewer if memory is small."""
    most = max((memory - BASE_BYTES) // THREAD_BYTES + 1, 1)
    return min(asked or usable_processors(), most)


def check_source(reader: Reader, rows: int, folder: Path) -> None:
    """Refuse a source whose declared number of rows does not fit on the disk.

    Raises
    ------
    InputError
    """
    width = reader.n_features or 0
    check_disk(
        {f"{rows} rows of {width} columns as they are read": rows * (RECORD.itemsize + 4 * width)},
        folder,
    )


def check_disk(parts: dict[str, int], folder: Path, kept: int = 0) -> None:
    """Refuse an ingest whose `parts` do not fit on the disk of `folder`; `kept` bytes are written.

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
    scale : str
    row_bytes : int
        Bytes of one stored row.
    stores : int
        Number of datasets that are written at once.

    Raises
    ------
    InputError
    """
    of_scaling = {"none": 0, "standard": SCALED_BYTES, "minmax": SCALED_BYTES}
    parts = {
        "for the process and the rows it reads": BASE_BYTES,
        f"for the scaling of {n_features} features": n_features
        * of_scaling.get(scale, DIVIDED_BYTES),
        "for rows on their way to the disk": CHUNK_COPIES
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
    return ", ".join(f"{in_units(part)} {name}" for name, part in parts.items() if part)
