"""Checkpoints on disk: one folder per checkpoint, one file per shard.

::

    folder/7.4f0c91d2.tmp/        being written; it is never read
    folder/7/checkpoint.json      checksums of the shards, meta of the caller, own checksum
    folder/7/meta.npz             the arrays among the meta
    folder/7/shard-000012.npz     the state of shard 12

Files hold JSON and plain arrays, never pickles. Shards are separate files, so that any number of
workers can read a checkpoint. A solver of one process has one shard.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import warnings
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bigscreen.errors import InputError, reason_of
from bigscreen.files.output import sync_folder
from bigscreen.files.sealed import pack_arrays, unpack_arrays

FORMAT = 1
"""Version of the format of checkpoint files that is written; files of a larger version are
refused."""


class DamagedCheckpoint(InputError):
    """Raised if a checkpoint is incomplete: a file is missing, cut short or changed."""


@dataclass(frozen=True)
class Checkpoint:
    """A finished checkpoint: its folder, each shard's CRC-32, and the caller's record (meta)."""

    path: Path
    checksums: tuple[int, ...]
    meta: dict[str, Any]

    @property
    def n_shards(self) -> int:
        """The number of shards that the checkpoint holds."""
        return len(self.checksums)

    @classmethod
    def read(cls, path: Path) -> Checkpoint:
        """Read a checkpoint without its shards.

        Raises
        ------
        DamagedCheckpoint
            If the description, or the arrays of the meta, are damaged.
        """
        try:
            record = json.loads((path / "checkpoint.json").read_text(encoding="utf-8"))
            body = record["body"]
            if record["crc32"] != zlib.crc32(_to_json(body)):
                raise ValueError("its checksum does not match")
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise DamagedCheckpoint(f"{path}: checkpoint.json is damaged ({error})") from error
        if body["format"] > FORMAT:
            raise InputError(f"{path} was written by a newer version: upgrade to read it")
        meta = dict(body["meta"])
        if body["meta_arrays"] is not None:
            meta.update(_read_arrays(path / "meta.npz", body["meta_arrays"]))
        return cls(path, tuple(body["shards"]), meta)

    def shard(self, shard: int) -> dict[str, np.ndarray]:
        """Return the saved arrays of one shard; raise DamagedCheckpoint if they are damaged."""
        return _read_arrays(self.path / _shard_name(shard), self.checksums[shard])


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the paths of the checkpoints in a folder, newest first; empty without the folder."""
    if not folder.is_dir():
        return []
    found = [path for path in folder.iterdir() if path.is_dir() and path.name.isdigit()]
    return sorted(found, key=lambda path: int(path.name), reverse=True)


def restore_newest(
    folder: Path, n_shards: int, restore: Callable[[Checkpoint], None]
) -> Checkpoint | None:
    """Restore the newest undamaged checkpoint; warn for each newer one that is damaged.

    ``restore`` is called with each checkpoint that is tried. Returns the checkpoint that it
    restored; None if the folder has no undamaged one.

    Raises
    ------
    InputError
        If a checkpoint has another number of shards: it belongs to other data.
    """
    for path in list_checkpoints(folder):
        try:
            checkpoint = Checkpoint.read(path)
            if checkpoint.n_shards != n_shards:
                raise InputError(
                    f"{path} has {checkpoint.n_shards} shards and the data {n_shards}: "
                    "it belongs to other data"
                )
            restore(checkpoint)
            return checkpoint
        except DamagedCheckpoint as error:
            warnings.warn(f"{error}; using the checkpoint before it", stacklevel=3)
    return None


def check_owner(folder: Path, of: str) -> None:
    """Refuse a folder that has checkpoints of another problem than ``of`` identifies.

    A checkpoint's record (meta) holds the identification of its problem.

    Raises
    ------
    InputError
    """
    for path in sorted(record.parent for record in folder.glob("**/checkpoint.json")):
        try:
            meta = Checkpoint.read(path).meta
        except DamagedCheckpoint:
            continue  # a warning follows when it is skipped
        if meta.get("of", of) != of:
            raise InputError(
                f"{path} is a checkpoint of another problem; remove {folder} to solve this one "
                "from the beginning"
            )


def save_alone(folder: Path, meta: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Write a checkpoint with one shard, for a solver that is one process.

    ``meta`` is the solver's record, ``arrays`` its state by name.
    """
    with Draft(folder, meta) as draft:
        draft.commit({0: write_shard(draft.path, 0, arrays)})


def load_alone(
    folder: Path | None, place: str
) -> tuple[dict[str, Any], dict[str, np.ndarray]] | None:
    """Return meta and arrays of the newest undamaged checkpoint that `save_alone` has written.

    It is searched for in the subfolder `place` of `folder`. Return None if there is no checkpoint,
    or `folder` is None.
    """
    if folder is None:
        return None
    arrays: dict[str, np.ndarray] = {}
    own = folder / place
    found = restore_newest(own, 1, lambda checkpoint: arrays.update(checkpoint.shard(0)))
    return None if found is None else (found.meta, arrays)


class Draft:
    """A checkpoint that is being written; leaving the block without :meth:`commit` removes it."""

    def __init__(self, folder: Path, meta: Mapping[str, Any]) -> None:
        """Create the temporary folder of the checkpoint.

        Parameters
        ----------
        folder : Path
            Folder of all checkpoints.
        meta : mapping
            JSON-able values, and numpy arrays as direct values.

        Raises
        ------
        TypeError
            If ``meta`` holds other values; nothing is written then.
        """
        arrays = {key: value for key, value in meta.items() if isinstance(value, np.ndarray)}
        plain = {key: value for key, value in meta.items() if key not in arrays}
        if json.loads(json.dumps(plain)).keys() != plain.keys():
            raise TypeError("the keys of a checkpoint's meta must be strings")
        self._meta, self._arrays = plain, arrays
        folder.mkdir(parents=True, exist_ok=True)
        for leftover in folder.glob("*.tmp"):
            shutil.rmtree(leftover, ignore_errors=True)
        newest = next((int(path.name) for path in list_checkpoints(folder)), 0)
        self.folder = folder
        # The name is unique: a worker that was abandoned, but is alive, may still write to its
        # old draft.
        self.path = folder / f"{newest + 1}.{secrets.token_hex(4)}.tmp"
        self.path.mkdir()

    def commit(self, checksums: Mapping[int, int], kept: int = 2) -> Path:
        """Finish a checkpoint of shards written by :func:`write_shard`: describe, sync, rename.

        Parameters
        ----------
        checksums : mapping of shard to checksum
            One for each shard, as :func:`write_shard` returned it.
        kept : int
            Number of newest checkpoints that stay in the folder.

        Returns
        -------
        Path
            The finished checkpoint.
        """
        for shard in checksums:
            if not (self.path / _shard_name(shard)).is_file():
                raise FileNotFoundError(
                    f"{self.path} lacks shard {shard} which a worker says it wrote: "
                    "the folder must be one that every machine shares"
                )
        meta_arrays = _write_arrays(self.path / "meta.npz", self._arrays) if self._arrays else None
        body = {
            "format": FORMAT,
            "shards": [checksums[shard] for shard in range(len(checksums))],
            "meta": self._meta,
            "meta_arrays": meta_arrays,
        }
        record = {"crc32": zlib.crc32(_to_json(body)), "body": body}
        _write_durably(self.path / "checkpoint.json", json.dumps(record).encode())
        sync_folder(self.path)
        path = self.folder / self.path.name.partition(".")[0]
        os.rename(self.path, path)
        sync_folder(self.folder)
        for old in list_checkpoints(self.folder)[kept:]:
            shutil.rmtree(old, ignore_errors=True)
        return path

    def __enter__(self) -> Draft:
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the temporary folder; after `commit` there is none."""
        shutil.rmtree(self.path, ignore_errors=True)  # it does not exist after a commit


def write_shard(path: Path, shard: int, arrays: Mapping[str, np.ndarray]) -> int:
    """Write the arrays of one shard into the folder of a draft; return their checksum.

    Raises
    ------
    FileNotFoundError
        If this machine does not see the folder.
    TypeError
        If an array holds Python objects.
    """
    if not path.is_dir():
        raise FileNotFoundError(
            f"the checkpoint folder {path} is not there for every worker: "
            "it must be one that every machine shares"
        )
    return _write_arrays(path / _shard_name(shard), arrays)


def _shard_name(shard: int) -> str:
    """Return the name of a shard's file in a checkpoint folder."""
    return f"shard-{shard:06d}.npz"


def _to_json(body: dict[str, Any]) -> bytes:
    """Return a JSON-able record as bytes, with sorted keys."""
    return json.dumps(body, sort_keys=True).encode()


def _write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> int:
    """Write named arrays to a file durably, and return the CRC-32 checksum of its bytes."""
    data = pack_arrays(arrays)
    _write_durably(path, data)
    return zlib.crc32(data)


def _read_arrays(path: Path, checksum: int) -> dict[str, np.ndarray]:
    """Read the named arrays of a file; raise `DamagedCheckpoint` if its CRC-32 differs."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DamagedCheckpoint(f"{path} cannot be read ({reason_of(error)})") from error
    if zlib.crc32(data) != checksum:
        raise DamagedCheckpoint(f"{path} is damaged: its checksum does not match")
    return unpack_arrays(data)[1]


def _write_durably(path: Path, data: bytes) -> None:
    """Write bytes to a file and wait until they are on the disk (fsync)."""
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
