"""Build a dataset in a temporary folder and rename it into place once it is complete."""

import os
import secrets
import shutil
from pathlib import Path
from typing import TypeVar

from bigscreen.errors import InputError
from bigscreen.files.remote import RemotePath, is_url

P = TypeVar("P", Path, RemotePath, Path | RemotePath)
"""A local or remote path: the result has the type of the argument."""


def store_path(path: str | os.PathLike[str]) -> Path:
    """Return the absolute local path to write a dataset to, symbolic links followed.

    InputError for a URL.
    """
    if is_url(path):
        raise InputError(
            f"{path}: a dataset is written to a disk of this machine; ingest copies it elsewhere"
        )
    return Path(os.path.realpath(path) if os.path.islink(path) else os.path.abspath(path))


def unfinished_path(path: P) -> P:
    """Return the folder in which the dataset `path` is built: `path` with ".wip" appended."""
    return path.with_name(path.name + ".wip")


def held_out_path(path: Path) -> Path:
    """Return where the rows are stored that are held out of the dataset `path`."""
    return path.with_name(f"{path.stem}-holdout{path.suffix}")


def scratch_folder(parent: Path) -> Path:
    """Create a hidden folder with a random name in `parent`, to be filled and then renamed."""
    folder = parent / f".{secrets.token_hex(8)}.scratch"
    folder.mkdir()
    return folder


def take_name(wip: Path, path: Path) -> None:
    """Rename the complete dataset `wip` to `path`; a dataset already there is deleted last."""
    replaced = path.with_name(f".{path.name}.replaced")
    if path.exists():
        shutil.rmtree(replaced, ignore_errors=True)
        path.rename(replaced)
    wip.rename(path)
    shutil.rmtree(replaced, ignore_errors=True)


def remove_leftovers(wip: Path) -> None:
    """Delete temporary files and folders in ``wip``, the folder of an unfinished dataset.

    Writers that died in the middle of a chunk left them.
    """
    for file in wip.rglob("*.partial"):
        file.unlink()
    for folder in (wip / "X").glob(".*"):
        shutil.rmtree(folder)
