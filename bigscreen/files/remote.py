"""Remote files and folders: s3://, gs://, az://, memory:// and all other protocols of fsspec."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, wraps
from pathlib import Path, PurePosixPath
from typing import IO, Any, ParamSpec, TypeAlias, TypeVar

from bigscreen.errors import InputError, reason_of

_URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_LIBRARIES = {"s3": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs"}

P = ParamSpec("P")
T = TypeVar("T")


def is_url(path: Any) -> bool:
    """Whether a path is a URL or a `RemotePath`, rather than a path of this machine."""
    return isinstance(path, RemotePath) or (isinstance(path, str) and bool(_URL.match(path)))


def as_path(path: str | os.PathLike[str] | RemotePath) -> Place:
    """Return a local path as `Path`, and a URL as `RemotePath`.

    Raises
    ------
    InputError
        If it is neither.
    """
    if isinstance(path, RemotePath):
        return path
    if not isinstance(path, str | os.PathLike):
        raise InputError(f"a path or URL is needed, got a {type(path).__name__}")
    return RemotePath(path) if isinstance(path, str) and is_url(path) else Path(path)


def _raise_os_error(method: Callable[P, T]) -> Callable[P, T]:
    """Turn any exception of an fsspec library into OSError that names the URL."""

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        """Call the method; an error becomes an OSError that names the path (first argument)."""
        try:
            return method(*args, **kwargs)
        except (InputError, FileNotFoundError):
            raise
        except Exception as error:
            reason = reason_of(error)
            place = str(args[0])
            raise OSError(getattr(error, "errno", None) or 5, reason[:300], place) from error

    return call


@dataclass(frozen=True)
class RemotePath:
    """A remote file or folder, with the methods of `pathlib.Path` that reading needs.

    Parameters
    ----------
    url : str
        Credentials and endpoints are those of its fsspec library: from the environment
        (``AWS_PROFILE``, ``FSSPEC_S3_ENDPOINT_URL``, ...) and its configuration files.
    files : StoreFiles or None
        The store of zarr that has the file; None: fsspec finds it by its URL.
    """

    url: str
    files: Any = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return self.url

    def __reduce__(self) -> tuple[Any, tuple[str, Any]]:
        """Pickle no file system of fsspec: every process has its own connections."""
        return RemotePath, (self.url, self.files)

    def __truediv__(self, name: str) -> RemotePath:
        return self.joinpath(name)

    def joinpath(self, *names: str) -> RemotePath:
        """Return the path of a file or folder below this one."""
        return replace(self, url="/".join([self.url.rstrip("/"), *names]))

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self._pure.name

    @property
    def suffix(self) -> str:
        """The end of the name from its last dot on; "" without a dot."""
        return self._pure.suffix

    @property
    def parent(self) -> RemotePath:
        """The folder that contains this file or folder."""
        return replace(self, url=self.url.rstrip("/").rpartition("/")[0])

    @property
    def _pure(self) -> PurePosixPath:
        """The path without its scheme, as a pure path."""
        return PurePosixPath(self.url.partition("://")[2])

    def with_name(self, name: str) -> RemotePath:
        """Return the path of a file of another name in the same folder."""
        return self.parent / name

    def with_suffix(self, suffix: str) -> RemotePath:
        """Return the path with another suffix of the name."""
        return self.with_name(self._pure.with_suffix(suffix).name)

    def absolute(self) -> RemotePath:
        """Return this path: a URL is absolute."""
        return self

    @_raise_os_error
    def exists(self) -> bool:
        """Whether there is a file or folder at this URL."""
        return bool(self._system.exists(self._key))

    @_raise_os_error
    def is_dir(self) -> bool:
        """Whether there is a folder at this URL."""
        return bool(self._system.isdir(self._key))

    @_raise_os_error
    def is_file(self) -> bool:
        """Whether there is a file at this URL."""
        return bool(self._system.isfile(self._key))

    @_raise_os_error
    def size(self) -> int:
        """Return the size of the file in bytes."""
        return int(self._system.info(self._key)["size"])

    @_raise_os_error
    def mark(self) -> str:
        """Return a text that changes when the file changes, as far as the server reports it."""
        return str(self._system.ukey(self._key))

    @_raise_os_error
    def sizes(self) -> dict[str, int]:
        """Return the bytes of each file below this folder, by relative path."""
        found = self._system.find(self._key, detail=True)
        start = len(self._key.rstrip("/")) + 1
        return {name[start:]: int(info["size"]) for name, info in found.items()}

    @_raise_os_error
    def read_bytes(self) -> bytes:
        """Return the whole content of the file."""
        return bytes(self._system.cat_file(self._key))

    @_raise_os_error
    def open(self, mode: str = "rb", buffering: int = -1) -> IO[Any]:
        """Open the file for reading from start to end, with read-ahead of some MiB."""
        opened: IO[Any] = self._system.open(
            self._key, mode, block_size=8 << 20, cache_type="readahead"
        )
        return opened

    @_raise_os_error
    def take(self, file: str | os.PathLike[str]) -> None:
        """Upload a local file to this URL; object stores make uploads atomic."""
        self._system.put_file(os.fspath(file), self._key)

    @_raise_os_error
    def remove(self) -> None:
        """Delete the file, or the folder with all its files."""
        self._system.rm(self._key, recursive=True)

    @property
    def _system(self) -> Any:
        """The fsspec file system that the URL belongs to."""
        return self._filesystem[0]

    @property
    def _key(self) -> str:
        """The name of the file within its fsspec file system."""
        key: str = self._filesystem[1]
        return key

    @cached_property
    def _filesystem(self) -> tuple[Any, str]:
        """The fsspec file system of the URL, and the file's name in it."""
        if self.files is not None:
            return self.files, self.files.key(self.url)
        import fsspec

        scheme = self.url.partition("://")[0].lower()
        try:
            found: tuple[Any, str] = fsspec.url_to_fs(self.url, use_listings_cache=False)
        except ImportError as error:
            library = _LIBRARIES.get(scheme)
            how = f"pip install {library}" if library else str(error)
            if library == "s3fs":
                how = 'pip install "bigscreen[remote]"'
            raise InputError(f"{self.url}: to reach {scheme}:// takes a library: {how}") from None
        except ValueError as error:
            raise InputError(f"{self.url} is no place that can be reached ({error})") from None
        return found


Place: TypeAlias = Path | RemotePath
"""A local path, or a remote file or folder."""


def is_named(place: Place) -> bool:
    """Whether other processes find a place by its text; not if only a store object reaches it."""
    return isinstance(place, Path) or place.files is None
