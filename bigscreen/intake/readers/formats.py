"""Choose the reader of a source: detect the format of a file, or the type of data in memory."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bigscreen.errors import InputError, NoLabels
from bigscreen.files.remote import Place, RemotePath, as_path
from bigscreen.intake.readers.arff import ArffReader
from bigscreen.intake.readers.base import Reader, Source, strip_compression_suffix
from bigscreen.intake.readers.binary import open_hdf5, open_idx, open_npy
from bigscreen.intake.readers.columnar import ColumnarReader, FeatherReader
from bigscreen.intake.readers.columns import LABEL_NAMES
from bigscreen.intake.readers.frames import FrameReader, is_frame
from bigscreen.intake.readers.npz import open_npz
from bigscreen.intake.readers.python import open_data
from bigscreen.intake.readers.svmlight import SvmlightReader
from bigscreen.intake.readers.table import TableReader
from bigscreen.intake.tuning import TUNING

# Options of `open_source` that sources with columns accept; tables; and tables with text columns.
_COLUMNS = ("label", "weight")
_TABLE = (*_COLUMNS, "drop", "columns", "dates", "hashed", "like", "missing")
_FRAME = (*_TABLE, "categorical")

# Name of a format, function that opens it, options that it accepts.
_FORMATS: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "svmlight": (SvmlightReader, ("zero_based",)),
    "table": (TableReader, (*_FRAME, "header", "delimiter", "decimal")),
    "ARFF": (ArffReader, _TABLE),
    "HDF5": (open_hdf5, (*_COLUMNS, "h5_x", "h5_y", "memory")),
    "NPY": (open_npy, (*_COLUMNS, "labels_file", "memory")),
    "NPZ": (open_npz, (*_COLUMNS, "labels_file", "memory")),
    "IDX": (open_idx, ("label", "labels_file")),
    "Parquet": (ColumnarReader, (*_FRAME, "memory")),
    "Feather": (FeatherReader, (*_FRAME, "memory")),
}
_LOCAL_FORMATS = ("HDF5", "NPY", "NPZ", "IDX")
"""Formats that are not read from a URL."""

_ALWAYS_GIVEN = ("zero_based", "like", "memory", "missing")
"""Options that `ingest` passes for every source; formats that have no use for them ignore them."""

# Endings of the names of each format, in lower case.
_SUFFIXES = {
    "svmlight": (".svm", ".libsvm", ".svmlight"),
    "table": (".csv", ".tsv"),
    "ARFF": (".arff",),
    "HDF5": (".h5", ".hdf5"),
    "NPY": (".npy",),
    "NPZ": (".npz",),
    "IDX": ("-ubyte", ".idx", ".idx3", ".ubyte"),
    "Parquet": (".parquet", ".pq"),
    "Feather": (".feather", ".arrow"),
}
# Format of a file by its first bytes.
_MAGIC = {
    b"\x89HDF": "HDF5",
    b"\x93NUM": "NPY",
    b"PK\x03\x04": "NPZ",
    b"PAR1": "Parquet",
    b"ARROW1": "Feather",
    b"\x00\x00": "IDX",
}
_ENTRY = re.compile(rb"\d+:[^\s:]+$")
"""Matches an entry "index:value" of svmlight text."""


def is_path(source: Any) -> bool:
    """Whether a source is a path or URL rather than data in memory."""
    return isinstance(source, (str, Path, RemotePath))


def open_source(source: Any, *, piece_bytes: int = TUNING.piece_bytes, **options: Any) -> Reader:
    """Return the reader of a file in any known format, or of data in memory.

    Parameters
    ----------
    source : path, array, (X, y), (X, y, weight), dask array, or iterable of these
    piece_bytes : int
        The reader reads rows in pieces of this many bytes.
    **options
        label, weight, drop, columns, categorical, dates, hashed, like (the `Preparation` of an
        earlier store), header, delimiter, decimal (tables), zero_based (svmlight), labels_file
        (IDX, NPY), h5_x, h5_y (HDF5), memory (bytes that arrays which must be held whole may
        take), missing (a `Missing`: marks of missing values, and whether they are allowed; binary
        formats use NaN). None and () mean "not given". label="none" means that there are no
        labels, as does unlabelled=True unless a label is named.

    Returns
    -------
    Reader

    Raises
    ------
    InputError
        If the format is unknown, or does not accept an option.
    """
    reader = _choose_reader(source, options)
    reader.piece_bytes = piece_bytes
    return reader


def _choose_reader(source: Any, options: dict[str, Any]) -> Reader:
    """Return the reader of a source, with pieces of the default size.

    `options` are those of `open_source`, without `piece_bytes`.

    Raises
    ------
    InputError
        If the format is unknown, or does not accept an option.
    """
    given = {key: value for key, value in options.items() if value not in (None, (), {})}
    unlabelled = given.pop("unlabelled", False)
    unsaid = unlabelled and "label" not in given
    if given.get("label") == "none":
        given["label"] = False
    if not is_path(source):
        parts = source if isinstance(source, tuple) else (source,)
        if 1 <= len(parts) <= 3 and is_frame(parts[0]):
            _refuse_options(given, _FRAME, "a data frame")
            if unsaid:
                given["label"] = False
            return FrameReader(*parts, **{key: given[key] for key in _FRAME if key in given})
        _refuse_options(given, (), "data given as arrays")
        return open_data(source)
    path = as_path(source)
    kind = detect_format(path)
    if isinstance(path, RemotePath) and kind in _LOCAL_FORMATS:
        raise InputError(
            f"{path}: a file of format {kind} is read in any order, and so from a disk of this "
            "machine: copy it here first."
        )
    opener, known = _FORMATS[kind]
    _refuse_options(given, known, f"{path}, a file of format {kind},")
    if unsaid and "label" in known:
        given["label"] = False
    arguments = {key: value for key, value in given.items() if key in known}
    if kind in ("HDF5", "NPY", "NPZ", "IDX"):
        arguments = {key: given.get(key) for key in known}
    reader = _open_file(opener, path, arguments, given.get("like"))
    usual = [name for name in reader.names or [] if name.lower() in LABEL_NAMES]
    if unsaid and usual:
        raise InputError(
            f"{path}: by its name the column {usual[0]!r} holds labels; name it as the label to "
            "leave it out of the unlabelled rows, or say label none to keep it as a feature."
        )
    return reader


def _open_file(
    opener: Callable[..., Any], path: Place, arguments: dict[str, Any], like: Any
) -> Reader:
    """Return the reader that ``opener`` makes of a file.

    A file of numbers that says nothing of labels has none if it has exactly the columns of ``like``
    (a `Preparation`, or None).
    """
    try:
        reader: Reader = opener(path, **arguments)
    except NoLabels as error:
        if like is None:
            raise
        reader = opener(path, **{**arguments, "label": False})
        if reader.n_features != like.n_raw:
            raise NoLabels(
                f"{path} has {reader.n_features} columns, and the rows that it is to be like have "
                f"{like.n_raw}: {str(error).partition(': ')[2]}"
            ) from None
    return reader


def _refuse_options(given: dict[str, Any], known: tuple[str, ...], place: str) -> None:
    """Raise InputError if an option is given that is not among the `known` ones of a source.

    `place` names the source in the error.
    """
    for key in given:
        if key not in known and key not in _ALWAYS_GIVEN:
            raise InputError(f"{place} cannot be read with the option {key}: leave it out.")


def detect_format(path: Place) -> str:
    """Return the format of a file: by its first bytes, then by its name, then by its lines.

    The format is a key of `_FORMATS`, such as "svmlight" or "table".

    Raises
    ------
    InputError
        If the file does not exist, or its format is unknown.
    """
    with Source(path) as source:
        head = source.read(1 << 16)
        compressed = source.compressed
    kind = next((k for magic, k in _MAGIC.items() if head.startswith(magic)), None)
    if kind not in (None, "IDX") and compressed:
        raise InputError(f"{path}: a compressed {kind} file cannot be read; decompress it first.")
    if kind is not None:
        return kind
    name = strip_compression_suffix(path)
    kind = next((k for k, suffixes in _SUFFIXES.items() if name.endswith(suffixes)), None)
    if kind is None and b"\0" in head and not head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InputError(f"{path}: this format is not known; convert it to CSV, svmlight or HDF5.")
    return kind or ("svmlight" if _looks_svmlight(head) else "table")


def _looks_svmlight(head: bytes) -> bool:
    """Whether the first bytes of a file are svmlight text: "label index:value ..."."""
    for line in head.splitlines()[:50]:
        tokens = line.split(b"#", 1)[0].split()
        if len(tokens) > 1:
            return all(_ENTRY.match(token) or token.startswith(b"qid:") for token in tokens[1:3])
    return False
