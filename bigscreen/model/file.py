"""Read and write files of models and paths: a zip of ``model.json`` and ``arrays/*.npy``."""

import os
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array, issparse

from bigscreen.data.layout import Features
from bigscreen.data.limits import check_regular, parse_json, read_npy
from bigscreen.errors import InputError, reason_of
from bigscreen.files.output import replacing
from bigscreen.files.remote import Place, RemotePath, as_path
from bigscreen.files.sealed import CHECKSUM, check_seal, seal

FORMAT = "bigscreen model"
"""Value of the record's field "format" in a model's file."""
SCHEMA = 8
"""Version of the format of model files that is written. Version 1 had neither strategy, support nor
gate; 2 had no kind; 3 had no checksums in the record; 4 had no fold machines for a calibration; 5
had no learned metric; 6 had no residuals and one target; 7 had neither names of targets
nor indicators of missing numbers."""

ABOUT_FILE = ("format", "schema", "crc32", CHECKSUM)
"""Fields of a file's record that describe the file, not its content."""

_RECORD = "model.json"
"""Part of the zip file with everything but the arrays, as JSON."""

_DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    ValueError,
    LookupError,
    TypeError,
    EOFError,
    AttributeError,
    RuntimeError,
    OverflowError,
    MemoryError,
)
"""Every error that reading a damaged file may raise."""

_CSR_PARTS = ("data", "indices", "indptr")
"""Arrays of a csr_array, which are stored one by one."""


class Kind(NamedTuple):
    """A kind of file.

    Attributes
    ----------
    format : str
        The record's "format" field.
    schema : int
        The newest schema.
    checksum_schema : int
        First schema whose record has the checksum of every array and of itself.
    noun : str
        Name of the kind in messages.
    command : str
        The command that writes this kind.
    """

    format: str
    schema: int
    checksum_schema: int
    noun: str
    command: str


MODEL = Kind(FORMAT, SCHEMA, 4, "model", "fit")
"""A file of one model."""

PATH = Kind("bigscreen path", 2, 2, "path", "path")
"""A file of a path: the models of a grid of C or nu."""


def write_file(
    path: str | os.PathLike[str],
    record: dict[str, Any],
    arrays: dict[str, np.ndarray],
    kind: Kind = MODEL,
) -> None:
    """Write a JSON-able record and named arrays to one file, atomically.

    ``kind`` adds the file's format and schema to the record.
    """
    known = {"format": kind.format, "schema": kind.schema, **record}
    with replacing(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as bundle:
        crc32 = {}
        for name, array in arrays.items():
            entry = _zip_entry(f"arrays/{name}.npy")
            with bundle.open(entry, "w", force_zip64=True) as part:
                np.lib.format.write_array(part, array, allow_pickle=False)
            crc32[name] = entry.CRC
        bundle.writestr(_zip_entry(_RECORD), seal({**known, "crc32": crc32}, default=_to_json))


@contextmanager
def open_file(
    path: str | os.PathLike[str], kind: Kind = MODEL
) -> Iterator[tuple[dict[str, Any], Callable[[str], np.ndarray]]]:
    """Open a file of a model or path; yield its record and a function that reads an array by name.

    Raises
    ------
    InputError
        If there is no such file, it is of another kind, a newer bigscreen wrote it, or it is
        damaged. Errors in the body of the ``with`` statement that damage can cause count, too.
    """
    name = os.fspath(path)
    noun, writer = kind.noun, f"`bigscreen {kind.command}`"
    check_regular(path)
    place = as_path(path)
    if not place.exists():
        raise InputError(f"there is no {noun} file {name}; {writer} writes one")
    if place.is_dir():
        raise InputError(f"{name} is a folder and a {noun} is one file, written by {writer}")
    # Open the file once: the record and the arrays come from one file even if it is replaced.
    with _open(place) as file:
        if not zipfile.is_zipfile(file):
            file.seek(0)
            if file.read(4) == b"PK\x03\x04":
                raise InputError(f"{name} is damaged: its end is missing; copy or fit it again")
            raise InputError(f"{name} is not a bigscreen {noun}, which {writer} writes")
        with _reporting_damage(name), zipfile.ZipFile(file) as bundle:
            record: Any = _record(bundle) if _RECORD in bundle.namelist() else None
        _check_record(name, record, kind)
        with _reporting_damage(name), zipfile.ZipFile(file) as bundle:
            schema = record.get("schema")
            check_seal(record, needed=schema is None or int(schema) >= kind.checksum_schema)
            yield record, lambda part: _array(bundle, part, record.get("crc32"))


def _open(place: Place) -> IO[bytes]:
    """Open the file at ``place`` for reading; a remote one is downloaded to a temporary file."""
    if not isinstance(place, RemotePath):
        return place.open("rb")
    file = tempfile.TemporaryFile()  # noqa: SIM115 (the caller closes)
    file.write(place.read_bytes())
    file.seek(0)
    return file


def _check_record(name: str, record: Any, kind: Kind) -> None:
    """Raise InputError if the record of file ``name`` is of another kind, or too new to be read."""
    noun = kind.noun
    if not isinstance(record, dict) or record.get("format") != kind.format:
        if isinstance(record, dict) and record.get("format") == PATH.format:
            raise InputError(
                f"{name} is a path of many models; `bigscreen pick {name} MODEL` takes one out"
            )
        raise InputError(f"{name} is a zip file but not a bigscreen {noun}")
    schema = record.get("schema")
    if isinstance(schema, int) and schema > kind.schema:
        raise InputError(
            f"{name} was written by a newer bigscreen ({noun} schema {schema}, this "
            f"one reads up to {kind.schema}); upgrade bigscreen"
        )


def read_array(path: str | os.PathLike[str], record: dict[str, Any], name: str) -> np.ndarray:
    """Read the array ``name`` of a file whose record was read before.

    Raises
    ------
    InputError
        If the file is damaged, or the array is not the one that the record was written with.
    """
    with (
        _reporting_damage(os.fspath(path)),
        _open(as_path(path)) as file,
        zipfile.ZipFile(file) as bundle,
    ):
        return _array(bundle, name, record.get("crc32"))


def is_path(path: str | os.PathLike[str]) -> bool:
    """Whether a file holds a path of models; False for any other or damaged file."""
    check_regular(path)
    try:
        with _open(as_path(path)) as file, zipfile.ZipFile(file) as bundle:
            record = _record(bundle)
    except (*_DAMAGE, OSError):
        return False
    return isinstance(record, dict) and record.get("format") == PATH.format


def pack_rows(name: str, rows: Features) -> tuple[str, dict[str, np.ndarray]]:
    """Convert rows to named arrays of a file.

    Returns the storage, "dense" or "csr", and the arrays: ``name``, or ``name`` with the suffixes
    _data, _indices and _indptr.
    """
    if issparse(rows):
        return "csr", {f"{name}_{part}": getattr(rows, part) for part in _CSR_PARTS}
    dtype = np.float64 if rows.dtype == np.float64 else np.float32
    return "dense", {name: np.ascontiguousarray(rows, dtype=dtype)}


def unpack_rows(
    name: str, kind: str, n_features: int, array: Callable[[str], np.ndarray]
) -> Features:
    """Restore the rows that `pack_rows` converted to arrays.

    ``kind`` is the storage, "dense" or "csr"; ``array`` reads an array by its name. ValueError if
    indices are out of range.
    """
    if kind != "csr":
        return array(name)
    data, indices, indptr = (array(f"{name}_{part}") for part in _CSR_PARTS)
    rows = csr_array((data, indices, indptr), shape=(len(indptr) - 1, n_features))
    # Compiled loops do not check these indices: a wrong one would read outside the arrays.
    rows.check_format(full_check=True)
    return rows


@contextmanager
def _reporting_damage(name: str) -> Iterator[None]:
    """Turn errors that a damaged file can cause into an InputError that names the file ``name``."""
    try:
        yield
    except _DAMAGE as error:
        reason = reason_of(error)
        raise InputError(f"{name} is damaged ({reason}); copy or fit it again") from error


def _record(bundle: zipfile.ZipFile) -> Any:
    """Read and parse the record, ``model.json``, of an open file."""
    return parse_json(bundle.read(_part_info(bundle, _RECORD)))


def _array(bundle: zipfile.ZipFile, name: str, crc32: dict[str, int] | None) -> np.ndarray:
    """Read the array ``name`` of an open file.

    ``crc32``: the arrays' checksums from the record, None if it has none. ValueError if the
    array is damaged or another one than the record was written with.
    """
    info = _part_info(bundle, f"arrays/{name}.npy")
    if crc32 is not None and info.CRC != crc32[name]:
        raise ValueError(f"{info.filename} is not the one that was written")
    with bundle.open(info) as part:
        try:
            return read_npy(part, info.file_size)
        except (ValueError, EOFError) as error:
            raise ValueError(f"{info.filename}: {error}") from error


def _part_info(bundle: zipfile.ZipFile, name: str) -> zipfile.ZipInfo:
    """Return the zip entry of part ``name``; ValueError if compressed or larger than the file.

    bigscreen never compresses parts, so an entry cannot expand beyond the size of the file.
    """
    info = bundle.getinfo(name)
    if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
        raise ValueError(f"{name} is compressed, as bigscreen writes none")
    assert bundle.fp is not None
    if info.file_size > os.fstat(bundle.fp.fileno()).st_size:
        raise ValueError(f"{name} says that it is larger than the file")
    return info


def _zip_entry(name: str) -> zipfile.ZipInfo:
    """Return the zip entry for a new part with this file name."""
    # A fixed date makes files of equal models equal.
    return zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))


def _to_json(value: Any) -> Any:
    """Convert numpy values, mappings and paths to what JSON can write."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(f"{type(value).__name__} cannot be written to a model")
