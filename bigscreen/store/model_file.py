"""How a model lies in its file: a zip of ``model.json`` and ``arrays/*.npy``, and no pickle."""

import json
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array, issparse

from bigscreen.errors import InputError
from bigscreen.store.files import replacing
from bigscreen.store.layout import Features

FORMAT = "bigscreen model"
SCHEMA = 3
"""1 had neither strategy, support nor gate, 2 no kind."""

_CSR_PARTS = ("data", "indices", "indptr")


class Kind(NamedTuple):
    """A kind of file: what its record says, the newest schema, and the command that writes it."""

    format: str
    schema: int
    noun: str
    command: str


MODEL = Kind(FORMAT, SCHEMA, "model", "fit")
PATH = Kind("bigscreen path", 1, "path", "path")


def write(
    path: str | os.PathLike[str],
    record: dict[str, Any],
    arrays: dict[str, np.ndarray],
    kind: Kind = MODEL,
) -> None:
    """Write a record and its arrays to one file, which appears whole or not at all."""
    known = {"format": kind.format, "schema": kind.schema, **record}
    text = json.dumps(known, indent=1, default=_plain).encode()
    with replacing(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as bundle:
        bundle.writestr(_entry("model.json"), text)
        for name, array in arrays.items():
            with bundle.open(_entry(f"arrays/{name}.npy"), "w", force_zip64=True) as part:
                np.lib.format.write_array(part, array, allow_pickle=False)


@contextmanager
def opened(
    path: str | os.PathLike[str], kind: Kind = MODEL
) -> Iterator[tuple[dict[str, Any], Callable[[str], np.ndarray]]]:
    """The record of such a file, and a function that reads an array by its name.

    Raises
    ------
    InputError
        If there is no such file, it is of another kind, a newer bigscreen wrote it, or it is
        damaged, which includes every error that making sense of it raises: each its own sentence.
    """
    name = os.fspath(path)
    noun, writer = kind.noun, f"`bigscreen {kind.command}`"
    if not Path(path).exists():
        raise InputError(f"there is no {noun} file {name}; {writer} writes one")
    if Path(path).is_dir():
        raise InputError(f"{name} is a folder and a {noun} is one file, written by {writer}")
    if not zipfile.is_zipfile(path):
        with open(path, "rb") as file:
            cut = file.read(4) == b"PK\x03\x04"
        if cut:
            raise InputError(f"{name} is damaged: its end is missing; copy or fit it again")
        raise InputError(f"{name} is not a bigscreen {noun}, which {writer} writes")
    with _damage(name), zipfile.ZipFile(path) as bundle:
        text = bundle.read("model.json") if "model.json" in bundle.namelist() else b"null"
        record = json.loads(text)
    if not isinstance(record, dict) or record.get("format") != kind.format:
        if isinstance(record, dict) and record.get("format") == PATH.format:
            raise InputError(
                f"{name} is a path of many models; `bigscreen pick {name} MODEL` takes one out"
            )
        raise InputError(f"{name} is a zip file but not a bigscreen {noun}")
    if record.get("schema", 0) > kind.schema:
        raise InputError(
            f"{name} was written by a newer bigscreen ({noun} schema {record['schema']}, this "
            f"one reads up to {kind.schema}); upgrade bigscreen"
        )
    with _damage(name), zipfile.ZipFile(path) as bundle:
        yield record, lambda part: _array(bundle, part)


def is_path(path: str | os.PathLike[str]) -> bool:
    """Whether a file holds a path of models; False for all else, whole or not."""
    try:
        with zipfile.ZipFile(path) as bundle:
            record = json.loads(bundle.read("model.json"))
    except (OSError, KeyError, ValueError, zipfile.BadZipFile, zlib.error):
        return False
    return isinstance(record, dict) and record.get("format") == PATH.format


def packed(name: str, rows: Features) -> tuple[str, dict[str, np.ndarray]]:
    """How rows are stored, "dense" or "csr", and the arrays they are then."""
    if issparse(rows):
        return "csr", {f"{name}_{part}": getattr(rows, part) for part in _CSR_PARTS}
    dtype = np.float64 if rows.dtype == np.float64 else np.float32
    return "dense", {name: np.ascontiguousarray(rows, dtype=dtype)}


def unpacked(name: str, kind: str, n_features: int, array: Callable[[str], np.ndarray]) -> Features:
    """The rows that `packed` stored."""
    if kind != "csr":
        return array(name)
    data, indices, indptr = (array(f"{name}_{part}") for part in _CSR_PARTS)
    rows = csr_array((data, indices, indptr), shape=(len(indptr) - 1, n_features))
    # Compiled loops trust these indices: a wrong one would read foreign memory.
    rows.check_format(full_check=True)
    return rows


@contextmanager
def _damage(name: str) -> Iterator[None]:
    """Say of every way in which a broken file shows that the file is broken."""
    try:
        yield
    except (
        zipfile.BadZipFile,
        zlib.error,
        ValueError,
        LookupError,
        TypeError,
        EOFError,
        AttributeError,
        NotImplementedError,
    ) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{name} is damaged ({reason}); copy or fit it again") from error


def _array(bundle: zipfile.ZipFile, name: str) -> np.ndarray:
    with bundle.open(f"arrays/{name}.npy") as part:
        array = np.lib.format.read_array(part, allow_pickle=False)
        # Reading to the end is what makes zipfile compare the checksum.
        if part.read(1):
            raise ValueError(f"arrays/{name}.npy is longer than its header says")
    return array


def _entry(name: str) -> zipfile.ZipInfo:
    # A fixed date: equal models are equal files.
    return zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))


def _plain(value: Any) -> Any:
    """What JSON cannot write by itself and numpy code leaves in records."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(f"{type(value).__name__} cannot be written to a model")
