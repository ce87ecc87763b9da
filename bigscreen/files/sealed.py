"""Records and arrays with a checksum of their own: a changed bit is found, and a file out of place.

A record (JSON) holds a checksum of all its other values. A sealed file holds a record, arrays and
the place it is for: its problem and its name there. Neither ever holds a pickle.
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
_RECORD = "record.json"
_CRC_BYTES = 4

Arrays = dict[str, np.ndarray]


class Damaged(ValueError):
    """A record or a file that is not what was written."""


def digest(value: Any) -> str:
    """Hash of a JSON value: equal values have equal ones."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def sealed(record: Mapping[str, Any], default: Callable[[Any], Any] | None = None) -> bytes:
    """A record as JSON text, its checksum among its values.

    Parameters
    ----------
    default : callable or None
        As `json.dumps` takes it.
    """
    # Through JSON, so that what is summed is what a reader will see.
    plain = json.loads(json.dumps(record, default=default))
    assert CHECKSUM not in plain
    return json.dumps({**plain, CHECKSUM: digest(plain)}).encode()


def unsealed(text: bytes | str, needed: bool = True) -> dict[str, Any]:
    """The record that `sealed` made this text of, with its checksum, which is compared.

    Parameters
    ----------
    needed : bool
        Refuse a record without a checksum.

    Raises
    ------
    Damaged
        If it is no record, or not as it was written.
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
    """Raise `Damaged` where a record's checksum does not match, or is missing though needed."""
    if CHECKSUM not in record:
        if needed:
            raise Damaged("it has no checksum")
        return
    if record[CHECKSUM] != digest({k: v for k, v in record.items() if k != CHECKSUM}):
        raise Damaged("its checksum does not match")


def packed(arrays: Mapping[str, np.ndarray], record: Any = None) -> bytes:
    """Arrays and a JSON record as one zip file.

    Raises
    ------
    TypeError
        If an array holds Python objects.
    """
    # Not np.savez: it would pickle arrays of objects, and cannot store a name such as "file".
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


def unpacked(data: bytes) -> tuple[Any, Arrays]:
    """What `packed` made this of, which must be known to be whole."""
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
    """Write a sealed file, whole or not at all.

    Parameters
    ----------
    of : str
        What it is for: `read_sealed` wants the same.
    record : JSON-able
    durable : bool
        As `files.replacing` takes it.
    """
    data = packed(arrays, {"of": of, "record": record})
    with replacing(path, durable) as file:
        file.write(data)
        file.write(zlib.crc32(data).to_bytes(_CRC_BYTES, "little"))


def read_sealed(path: str | os.PathLike[str], of: str) -> tuple[Any, Arrays] | None:
    """Record and arrays of a sealed file.

    None if there is no such file; with a warning if it is damaged, or not for this.
    """
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        warnings.warn(f"{path} cannot be read ({reason_of(error)}): done again", stacklevel=2)
        return None
    data, crc = data[:-_CRC_BYTES], data[-_CRC_BYTES:]
    if not data or zlib.crc32(data).to_bytes(_CRC_BYTES, "little") != crc:
        warnings.warn(f"{path} is damaged: what it held is done again", stacklevel=2)
        return None
    known, arrays = unpacked(data)
    if known["of"] != of:
        warnings.warn(f"{path} belongs elsewhere: what it should hold is done again", stacklevel=2)
        return None
    return known["record"], arrays
