"""The inputs of an ingest: files, the files of folders and patterns, or data in memory."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from glob import glob
from pathlib import Path
from typing import Any

from bigscreen.data.dataset import MANIFEST
from bigscreen.data.limits import file_size
from bigscreen.errors import InputError
from bigscreen.files.remote import Place, RemotePath, as_path
from bigscreen.intake.readers.base import Reader, check_state, file_state
from bigscreen.intake.readers.binary import find_idx_labels
from bigscreen.intake.readers.formats import is_path, open_source
from bigscreen.intake.tuning import TUNING, IngestTuning

_PACKED = (".gz", ".bz2", ".xz", ".npz", ".parquet", ".pq", ".feather", ".arrow")
"""Name endings of compressed files, whose rows take far more bytes in memory than on disk."""


@dataclass(frozen=True)
class Input:
    """One source of rows: a file, or data in memory.

    Attributes
    ----------
    name : str
        Path of the file, or type of the data, for messages.
    identity : list or str or None
        Path, size and time of a file, or a hash of data in memory: equal for equal content. None
        if equal content cannot be recognised.
    size : int
        Bytes of the source; 0 if not known.
    expected_bytes : int
        Estimate of the bytes of its rows as float32.
    _source : Place or Reader
        Path of a file; the reader of data in memory.
    """

    name: str
    identity: Any
    size: int
    expected_bytes: int
    _source: Any

    @property
    def path(self) -> Place | None:
        """Path of a file; None for data in memory."""
        return self._source if is_path(self._source) else None

    def is_small(self, max_bytes: int) -> bool:
        """Whether the source is a file whose rows are expected to take at most `max_bytes`."""
        return is_path(self._source) and self.expected_bytes <= max_bytes

    def open(self, options: dict[str, Any]) -> Reader:
        """Return a reader of the source.

        `options` are the arguments of `open_source`; data in memory already has its reader, which
        is returned without them.
        """
        return open_source(self._source, **options) if is_path(self._source) else self._source

    def anywhere_opener(self, options: dict[str, Any]) -> Callable[[], Reader]:
        """Return a function without arguments that opens this file in any process of a fleet.

        The function raises FileChanged if the file has changed since it was listed. `options` are
        the arguments of `open_source`. A fleet is a set of worker processes.
        """
        path = self._source.absolute()
        return partial(_open_unchanged, path, tuple(self.identity[1:]), options)


def _open_unchanged(path: Place, state: tuple[int, int | str], options: dict[str, Any]) -> Reader:
    """Return the reader of a file; raise FileChanged if its size or time is not `state`."""
    check_state(path, state)
    return open_source(path, **options)


def list_inputs(
    sources: Any, options: dict[str, Any], tuning: IngestTuning = TUNING
) -> list[Input]:
    """Return one input for each file or object that `sources` names.

    Parameters
    ----------
    sources : path, list of paths, array, data frame, or any other source of `ingest`
    options : dict
        Arguments of `open_source`, used to open data in memory.
    tuning : IngestTuning
        Factors that estimate the bytes of the rows from the bytes of a file.

    Raises
    ------
    InputError
        If a file is missing, or `sources` is neither a path nor data.
    """
    if is_path(sources):
        sources = [sources]
    if isinstance(sources, (list, tuple)) and len(sources) and all(map(is_path, sources)):
        return [_make_input(path, tuning) for source in sources for path in list_files(source)]
    reader = open_source(sources, **options)
    size = reader.progress()[1]
    kind = type(sources).__name__
    return [Input(kind, reader.identity, size, size or tuning.unknown_bytes, reader)]


def label_files(inputs: list[Input], labels_file: str | os.PathLike[str] | None) -> list[Any]:
    """Return path, size and time of the files that hold the labels of other files' rows.

    Parameters
    ----------
    inputs : list of Input
        An IDX file of images has its labels in a file next to it, unless one is given.
    labels_file : path or None
        The file that is given; None: there is none.

    Returns
    -------
    list of [str, int, int or str], JSON-able
        Empty without such files, and for files that do not exist.
    """
    found = [None if labels_file is None else as_path(labels_file)]
    if labels_file is None:
        paths = [one.path for one in inputs if isinstance(one.path, Path)]
        found = [find_idx_labels(path) for path in paths if "images" in path.name]
    present = [path for path in found if path is not None and path.exists()]
    return [[str(path.absolute()), *file_state(path)] for path in present]


def list_files(source: str | Place) -> list[Place]:
    """Return the files that a source names: a file, the files of a folder, or matches of a pattern.

    In folders, names that begin with a dot or an underscore are skipped.

    Raises
    ------
    InputError
        If there is no file, or the folder is a dataset.
    """
    path = as_path(source)
    if isinstance(path, RemotePath):
        return [path]
    if path.is_dir():
        if (path / MANIFEST).exists():
            raise InputError(f"{path} is a bigscreen dataset already: there is nothing to ingest.")
        found = [file for file in sorted(path.iterdir()) if file.name[0] not in "._"]
        within = next((file for file in found if file.is_dir()), None)
        if within is not None or not found:
            what = "no file" if within is None else f"the folder {within.name}"
            raise InputError(f"{path} is a folder that holds {what}: name the files themselves.")
        return [*found]
    if path.exists() or not any(mark in str(source) for mark in "*?["):
        return [path]
    found = sorted(Path(name) for name in glob(str(source), recursive=True))
    if not found:
        raise InputError(f"no file is called like {source}: check the pattern.")
    return [file for one in found for file in list_files(one)]


def _make_input(path: Place, tuning: IngestTuning) -> Input:
    """Return the input of one file, with its size and the expected bytes of its rows.

    `tuning` holds the factors from the size of a file to the bytes of its rows.

    Raises
    ------
    InputError
        If the file's size or time cannot be read.
    """
    try:
        size = file_size(path)
        mark = path.mark() if isinstance(path, RemotePath) else path.stat().st_mtime_ns
    except OSError as error:
        reason = error.strerror or "there is no such file"
        raise InputError(f"{path} cannot be opened: {reason}.") from None
    is_packed = path.name.lower().endswith(_PACKED)
    growth = tuning.packed_growth if is_packed else tuning.text_growth
    return Input(str(path), [str(path.absolute()), size, mark], size, growth * size, path)
