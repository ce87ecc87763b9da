"""Sealed records and files, with checksums that reveal changed bits and misplaced files.

A sealed record (JSON) holds a checksum of all its other values. A sealed file holds a record,
arrays, and what it belongs to: its problem and its name. Neither holds pickles.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import warnings
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bigscreen.errors import reason_of
from bigscreen.files.output import replacing

CHECKSUM = "checksum"
"""Name of the checksum among the values of a sealed record."""
_RECORD = "record.json"
CRC_BYTES = 4
"""Size of the 32-bit checksum at the end of a file, or of a chunk of a store."""

Arrays = dict[str, np.ndarray]


class Damaged(ValueError):
    """Raised if a sealed record or file differs from what was written."""


def hash_json(value: Any) -> str:
    """Return a hash of a JSON value; equal values have equal hashes."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def hash_arrays(value: Any, *arrays: np.ndarray | None) -> str:
    """Return a hash of a JSON value and of arrays, with their types and shapes."""
    forms = [None if array is None else [array.dtype.str, array.shape] for array in arrays]
    state = hashlib.sha256(hash_json([value, forms]).encode())
    for array in arrays:
        if array is not None:
            state.update(np.ascontiguousarray(array).data)
    return state.hexdigest()


def seal(record: Mapping[str, Any], default: Callable[[Any], Any] | None = None) -> bytes:
    """Return a record as JSON text with a checksum among its values.

    Parameters
    ----------
    default : callable or None
        As `json.dumps` takes it.
    """
    # Through JSON, so that the checksum is of the values that a reader will see.
    plain = json.loads(json.dumps(record, default=default))
    assert CHECKSUM not in plain
    return json.dumps({**plain, CHECKSUM: hash_json(plain)}).encode()


def unseal(text: bytes | str, needed: bool = True) -> dict[str, Any]:
    """Return the record in a sealed JSON text, with its checksum, which is verified.

    Parameters
    ----------
    needed : bool
        Whether a record without a checksum is refused.

    Raises
    ------
    Damaged
        If the text is not a record, or was changed.
    """
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"it is not JSON ({error})") from error
    if not isinstance(record, dict):
        raise Damaged("it is not a record")
    check_seal(record, needed)
    return record


def check_seal(record: dict[str, Any], needed: bool = True) -> None:
    """Raise `Damaged` if the checksum of a record does not match, or is missing but needed."""
    if CHECKSUM not in record:
        if needed:
            raise Damaged("it has no checksum")
        return
    if record[CHECKSUM] != hash_json({k: v for k, v in record.items() if k != CHECKSUM}):
        raise Damaged("its checksum does not match")


def pack_arrays(arrays: Mapping[str, np.ndarray], record: Any = None) -> bytes:
    """Return arrays and a JSON record as the bytes of one zip file.

    Raises
    ------
    TypeError
        If an array holds Python objects.
    """
    # Not np.savez: it pickles arrays of objects, and cannot store a name such as "file".
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        if record is not None:
            archive.writestr(zipfile.ZipInfo(_RECORD), json.dumps(record))
        for name, array in arrays.items():
            if array.dtype.hasobject:
                raise TypeError(f"array {name!r} holds Python objects")
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)
    return buffer.getvalue()


def unpack_arrays(data: bytes) -> tuple[Any, Arrays]:
    """Return record and arrays from the bytes of a zip file whose checksum was verified."""
    record, arrays = None, {}
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for name in archive.namelist():
            if name == _RECORD:
                record = json.loads(archive.read(name))
                continue
            with archive.open(name) as file:
                arrays[name.removesuffix(".npy")] = np.lib.format.read_array(file)
    return record, arrays


def write_sealed(
    path: Path, of: str, record: Any, arrays: Mapping[str, np.ndarray], durable: bool = True
) -> None:
    """Write a sealed file atomically.

    Parameters
    ----------
    of : str
        What the file belongs to; `read_sealed` must be given an equal text.
    record : JSON-able
    durable : bool
        Whether the file survives a power cut: it is flushed to the disk, which takes time.
    """
    data = pack_arrays(arrays, {"of": of, "record": record})
    with replacing(path, durable) as file:
        file.write(data)
        file.write(zlib.crc32(data).to_bytes(CRC_BYTES, "little"))


def read_sealed(path: str | os.PathLike[str], of: str) -> tuple[Any, Arrays] | None:
    """Return record and arrays of a sealed file, or None.

    The result is None if the file is absent, and None with a warning if it is damaged or does not
    belong to `of`.
    """
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        warnings.warn(f"{path} cannot be read ({reason_of(error)}): done again", stacklevel=2)
        return None
    data, crc = data[:-CRC_BYTES], data[-CRC_BYTES:]
    if not data or zlib.crc32(data).to_bytes(CRC_BYTES, "little") != crc:
        warnings.warn(f"{path} is damaged: what it held is done again", stacklevel=2)
        return None
    known, arrays = unpack_arrays(data)
    if known["of"] != of:
        warnings.warn(f"{path} belongs elsewhere: what it should hold is done again", stacklevel=2)
        return None
    return known["record"], arrays
