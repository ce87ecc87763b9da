"""What zarr has opened: arrays as rows, and bigscreen's own stores in any store of zarr."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import zarr
from zarr.abc.store import Store
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import LocalStore, StorePath

from bigscreen.files.remote import Place, RemotePath, as_path

T = TypeVar("T")


def is_zarr_array(X: Any) -> bool:
    """Whether X is an array that zarr has opened."""
    return isinstance(X, zarr.Array)


def is_zarr_store(X: Any) -> bool:
    """Whether X is a store of zarr, or a group in one, where a dataset can lie."""
    return isinstance(X, zarr.Group | Store | StorePath)


def as_place(folder: Any) -> Place:
    """Return the place of a folder: a path, a URL, or a group or store of zarr (`is_zarr_store`).

    Raises
    ------
    InputError
        If `folder` is of another type.
    """
    if not is_zarr_store(folder):
        return as_path(folder)
    store, within = (folder, "") if isinstance(folder, Store) else (folder.store, folder.path)
    within = within.strip("/")
    if isinstance(store, LocalStore):
        return Path(store.root, within)
    _run(StorePath.open(store, within, mode=None))  # opens a ZipStore, which cannot be listed else
    name = str(store)
    return RemotePath(f"{name}/{within}".rstrip("/"), StoreFiles(store, name))


@dataclass(frozen=True)
class StoreFiles:
    """The files of a store of zarr, with the methods of a file system that `RemotePath` calls.

    Every store of zarr holds the same bytes under the same keys, so a dataset is read and verified
    there as it is in a folder. Keys begin with "/".

    Attributes
    ----------
    store : zarr.abc.store.Store
    name : str
        What the URLs of places in the store begin with. (A copy of a store has another text.)
    """

    store: Store
    name: str

    def key(self, url: str) -> str:
        """Return the key of a place in the store."""
        return "/" + url.removeprefix(self.name).strip("/")

    def exists(self, key: str) -> bool:
        """Whether there is a file or folder with this key."""
        # (Not the store's own `exists`: icechunk's refuses keys that are not zarr's.)
        return _run(self._lists(key)) or self.isdir(key)

    def isdir(self, key: str) -> bool:
        """Whether there is a file below this key."""
        return not _run(self.store.is_empty(key[1:]))

    def info(self, key: str) -> dict[str, int]:
        """Return the size of a file."""
        if not self.exists(key):
            raise FileNotFoundError(key)
        return {"size": _run(self.store.getsize(key[1:]))}

    def cat_file(self, key: str) -> bytes:
        """Return the content of a file."""
        found = _run(self.store.get(key[1:], prototype=default_buffer_prototype()))
        if found is None:
            raise FileNotFoundError(key)
        return found.to_bytes()

    def find(self, key: str, detail: bool) -> dict[str, dict[str, int]]:
        """Return the size of each file below a folder, by key.

        Some stores, such as a ``ZipStore``, read each file to know its size. ``detail`` is True.
        """
        return _run(self._sizes(f"{key.strip('/')}/".lstrip("/")))

    async def _lists(self, key: str) -> bool:
        """Whether the folder of a file, by its key, lists it."""
        folder, _, name = key[1:].rpartition("/")
        return name in [each async for each in self.store.list_dir(folder)]

    async def _sizes(self, prefix: str) -> dict[str, dict[str, int]]:
        """Return the size of each file whose key begins with ``prefix``."""
        keys = [key async for key in self.store.list_prefix(prefix)]
        sizes = await asyncio.gather(*map(self.store.getsize, keys))
        return {f"/{key}": {"size": size} for key, size in zip(keys, sizes, strict=True)}


def _run(call: Coroutine[Any, Any, T]) -> T:
    """Return the result of a call of zarr's asynchronous interface."""
    return sync(call)
