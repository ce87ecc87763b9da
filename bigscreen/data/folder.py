"""The folder a dataset is written in before it is whole, and how it gets its name."""

import os
import secrets
import shutil
from pathlib import Path
from typing import TypeVar

from bigscreen.errors import InputError
from bigscreen.files.remote import RemotePath, is_url

P = TypeVar("P", Path, RemotePath, Path | RemotePath)


def store_path(path: str | os.PathLike[str]) -> Path:
    """Where a dataset is made: a symbolic link stays, and what it points to is replaced."""
    if is_url(path):
        raise InputError(
            f"{path}: a dataset is written to a disk of this machine; ingest copies it elsewhere"
        )
    return Path(os.path.realpath(path) if os.path.islink(path) else os.path.abspath(path))


def unfinished(path: P) -> P:
    """Where the dataset `path` is written before it is whole."""
    return path.with_name(path.name + ".wip")


def scratch_folder(parent: Path) -> Path:
    """A new hidden folder in `parent`, to be filled and then renamed within it."""
    folder = parent / f".{secrets.token_hex(8)}.scratch"
    folder.mkdir()
    return folder


def take_name(wip: Path, path: Path) -> None:
    """Rename `wip` to `path`; a dataset that stood there is deleted only afterwards."""
    replaced = path.with_name(f".{path.name}.replaced")
    if path.exists():
        shutil.rmtree(replaced, ignore_errors=True)
        path.rename(replaced)
    wip.rename(path)
    shutil.rmtree(replaced, ignore_errors=True)


def remove_leftovers(wip: Path) -> None:
    """Delete the temporary files and folders of writers that died in the middle of a chunk."""
    for file in wip.rglob("*.partial"):
        file.unlink()
    for folder in (wip / "X").glob(".*"):
        shutil.rmtree(folder)
