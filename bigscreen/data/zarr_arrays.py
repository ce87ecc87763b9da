"""Zarr arrays on disk: write whole chunks, and read them directly into the caller's memory."""

import math
import os
import secrets
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import google_crc32c
import numpy as np
import zarr
from numcodecs import blosc
from numpy.typing import NDArray
from scipy.sparse import csr_array
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec

from bigscreen.data.layout import Layout
from bigscreen.errors import InputError, reason_of
from bigscreen.files.remote import Place, RemotePath
from bigscreen.files.sealed import CRC_BYTES

P = TypeVar("P", Path, RemotePath, Path | RemotePath)
"""A local or remote path: the result has the type of the argument."""

CSR_CHUNK_NNZ = 2**23
"""Nonzeros per chunk file of a CSR group, 32 MiB of float32: part of the format of a store."""

PARTIAL = ".partial"
"""Suffix of a chunk file while it is being written."""


@dataclass(frozen=True)
class StoredArray:
    """A zarr v3 array split along its rows into chunks, one file per chunk.

    A chunk file holds the little-endian rows, perhaps compressed, and their crc32c in four bytes.
    It is read here directly into the result: three times as fast as through zarr and without a
    second copy.

    Attributes
    ----------
    folder : Path or RemotePath
        The array's folder, with zarr.json and the chunk files below c/.
    shape : tuple of int
        Shape of the whole array; the first dimension is the rows.
    chunk_rows : int
        Rows per chunk; the last chunk is padded to as many.
    dtype : str
        numpy's name of the little-endian type, for instance "<f4".
    dimensions : tuple of str
        Name of every dimension, by which xarray aligns arrays; an older store may have none.
    compressed : bool
        Whether chunks are compressed (byte shuffle, then lz4).
    checksums : tuple of int or None
        crc32c of all chunks in order, from the manifest: comparing them with the checksums in the
        files detects a chunk file that was exchanged for another valid one. None if unknown.
    """

    folder: Place
    shape: tuple[int, ...]
    chunk_rows: int
    dtype: str
    dimensions: tuple[str, ...]
    compressed: bool = False
    checksums: tuple[int, ...] | None = None

    def create(self) -> None:
        """Write the array's metadata, but no chunk."""
        codecs = [BloscCodec(cname="lz4", shuffle="shuffle")] if self.compressed else []
        assert isinstance(self.folder, Path)  # stores are written locally, and copied afterwards
        zarr.create_array(
            self.folder,
            shape=self.shape,
            chunks=(self.chunk_rows, *self.shape[1:]),
            dtype=self.dtype,
            filters=None,
            serializer=BytesCodec(),
            compressors=[*codecs, Crc32cCodec()],
            fill_value=self._fill_value(),
            dimension_names=self.dimensions,
        )

    def write(self, start: int, values: NDArray[Any]) -> list[int]:
        """Write whole chunks, beginning at row `start`; each file is renamed into place.

        Returns
        -------
        list of int
            The crc32c checksums of the chunks.
        """
        values = np.ascontiguousarray(values, dtype=self.dtype)
        checksums = []
        for a in range(0, len(values), self.chunk_rows):
            part = values[a : a + self.chunk_rows]
            if len(part) < self.chunk_rows:
                part = np.full((self.chunk_rows, *self.shape[1:]), self._fill_value(), self.dtype)
                part[: len(values) - a] = values[a:]
            data: Any = part.reshape(-1).view(np.uint8)
            if self.compressed:
                # With the codec and the level of zarr.
                data = blosc.compress(part.reshape(-1), b"lz4", 5, blosc.SHUFFLE)
            checksums.append(google_crc32c.value(data))
            file = self._file((start + a) // self.chunk_rows)
            assert isinstance(file, Path)
            file.parent.mkdir(parents=True, exist_ok=True)
            fresh = file.with_name(f"{file.name}.{secrets.token_hex(8)}{PARTIAL}")
            with open(fresh, "xb", buffering=0) as stream:
                for piece in (data, checksums[-1].to_bytes(CRC_BYTES, "little")):
                    left = memoryview(piece)
                    while len(left):
                        left = left[stream.write(left) :]
            os.replace(fresh, file)
        return checksums

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Read rows start..stop-1 into a new array.

        Raises
        ------
        InputError
            If a chunk is missing or damaged.
        """
        out = np.empty((stop - start, *self.shape[1:]), dtype=self.dtype)
        at = start
        while at < stop:
            k = at // self.chunk_rows
            first = k * self.chunk_rows
            end = min(first + self.chunk_rows, stop)
            part = out[at - start : end - start]
            if len(part) == self.chunk_rows:
                self._read_chunk(k, part)
            else:
                part[:] = self.read_chunk(k)[at - first : end - first]
            at = end
        return out

    def read_chunk(self, k: int, room: NDArray[Any] | None = None) -> NDArray[Any]:
        """Read the whole chunk `k`, padding included, into the array ``room`` or a new one."""
        if room is None:
            room = np.empty((self.chunk_rows, *self.shape[1:]), dtype=self.dtype)
        self._read_chunk(k, room)
        return room

    def should_read_singly(self, count: int) -> bool:
        """Whether reading `count` rows of a chunk one by one is faster than reading it all."""
        if self.compressed or isinstance(self.folder, RemotePath):
            return False
        # A call costs as much time as 4 KiB from the page cache.
        return 2 * count * (self._row_bytes() + 4096) <= self._chunk_bytes()

    def read_rows(self, k: int, places: NDArray[np.int64]) -> NDArray[Any]:
        """Read rows of chunk `k`, uncompressed and verified before, by their positions ``places``.

        The rows are not verified again: the checksum covers only the whole chunk.

        Raises
        ------
        InputError
            If the chunk file is missing or truncated.
        """
        out = np.empty((len(places), *self.shape[1:]), dtype=self.dtype)
        room, size, file = out.reshape(-1).view(np.uint8).data, self._row_bytes(), self._file(k)
        assert isinstance(file, Path)  # see `should_read_singly`
        try:
            with open(file, "rb", buffering=0) as stream:
                at = stream.fileno()
                for i, place in enumerate(places.tolist()):
                    row = room[i * size : (i + 1) * size]
                    if os.preadv(at, (row,), place * size) < size:
                        raise damaged_chunk(file)
        except FileNotFoundError as error:
            raise missing_chunk(file) from error
        except OSError as error:
            raise InputError(f"the chunk {file} cannot be read: {reason_of(error)}") from error
        return out

    def files(self) -> Iterator[tuple[Place, int | None]]:
        """Yield every chunk file and its expected size in bytes, None if compressed."""
        for k in range(-(-self.shape[0] // self.chunk_rows)):
            yield self._file(k), None if self.compressed else self._chunk_bytes() + CRC_BYTES

    def _fill_value(self) -> float | int:
        """Return a fill value that no stored array contains.

        zarr writes no file for a chunk of fill values only, and reads a lost file as fill values.
        With a value that is never stored every chunk is a file, and a lost file does not read as
        zeros. NaN is not possible: it is the target of a row without a target.
        """
        kind = np.dtype(self.dtype)
        return float("-inf") if kind.kind == "f" else int(np.iinfo(kind).min)

    def _file(self, k: int) -> Place:
        """Return the path of the file of chunk `k`, as zarr v3 names it."""
        return self.folder.joinpath("c", str(k), *["0"] * (len(self.shape) - 1))

    def _row_bytes(self) -> int:
        """Return the size of one row in bytes, uncompressed."""
        return math.prod(self.shape[1:]) * np.dtype(self.dtype).itemsize

    def _chunk_bytes(self) -> int:
        """Return the size of a whole chunk in bytes, uncompressed and without the checksum."""
        return self.chunk_rows * self._row_bytes()

    def _read_chunk(self, k: int, out: NDArray[Any]) -> None:
        """Read chunk `k` into ``out``, an array of a whole chunk's shape, and verify its checksums.

        Raises
        ------
        InputError
            If the chunk file is missing, damaged, or not the one that the manifest names.
        """
        file = self._file(k)
        flat = out.reshape(-1).view(np.uint8)
        try:
            if self.compressed:
                data = file.read_bytes()
                body, stored = data[:-CRC_BYTES], data[-CRC_BYTES:]
                found = google_crc32c.value(body)
            elif isinstance(file, RemotePath):
                data = file.read_bytes()
                if len(data) != len(flat) + CRC_BYTES:
                    raise damaged_chunk(file)
                flat[:] = np.frombuffer(data, np.uint8, len(flat))
                stored, found = data[-CRC_BYTES:], google_crc32c.value(flat)
            else:
                with open(file, "rb", buffering=0) as stream:
                    got = 0
                    while got < len(flat) and (n := stream.readinto(flat[got:].data)):
                        got += n
                    stored = stream.read(CRC_BYTES + 1)
                if got < len(flat):
                    raise damaged_chunk(file)
                found = google_crc32c.value(flat)
        except FileNotFoundError as error:
            raise missing_chunk(file) from error
        except OSError as error:
            raise InputError(f"the chunk {file} cannot be read: {reason_of(error)}") from error
        if stored != found.to_bytes(CRC_BYTES, "little"):
            raise damaged_chunk(file)
        if self.checksums is not None and found != self.checksums[k]:
            raise foreign_chunk(file)
        if self.compressed:
            try:
                flat[:] = np.frombuffer(blosc.decompress(body), np.uint8)
            except (ValueError, RuntimeError) as error:
                raise damaged_chunk(file) from error


class LastChunk(threading.local):
    """Cache of the last chunk each thread has read: a pass reads a chunk in tiles of few rows."""

    def __init__(self) -> None:
        """Begin with no chunk cached; called once in each thread."""
        self._number = -1
        self._rows: Any = None

    def chunk(self, k: int, read: Callable[[Any], Any]) -> Any:
        """Return the rows of chunk `k`; if not cached, ``read(room)`` reads them.

        ``room`` is the cached array of another chunk, whose memory may be reused, or None.
        """
        if k != self._number:
            self._number = -1  # a read that fails leaves no chunk behind
            self._rows = read(self._rows)
            self._number = k
        return self._rows

    def has(self, k: int) -> bool:
        """Whether chunk `k` is cached."""
        return k == self._number


def missing_chunk(file: Place) -> InputError:
    """Return the error for a chunk file that does not exist."""
    return InputError(
        f"the chunk {file} is missing, so the dataset is not whole; restore that file from a copy "
        "or make the dataset again from its source"
    )


def damaged_chunk(file: Place) -> InputError:
    """Return the error for a chunk whose content does not match its checksum."""
    return InputError(
        f"the chunk {file} is damaged, its content does not match its checksum; restore that file "
        "from a copy or make the dataset again from its source"
    )


def foreign_chunk(file: Place) -> InputError:
    """Return the error for a chunk that matches its own checksum, but not the manifest's."""
    return InputError(
        f"the chunk {file} is whole but not the one that was written there: files were exchanged "
        "or copied; restore that file from a copy or make the dataset again from its source"
    )


Checksums: TypeAlias = dict[str, list[int]]
"""Checksums of the files that hold one chunk of rows, keyed by the name of the array."""


def row_arrays(
    root: Place, layout: Layout, compressed: bool, chunks: Sequence[Checksums] | None = None
) -> dict[str, StoredArray]:
    """Return a dataset's arrays with one entry per row, by name; X only if it is dense.

    Parameters
    ----------
    root : Path or RemotePath
        Folder of the dataset.
    layout : Layout
    compressed : bool
        Whether X is compressed; no other array is.
    chunks : sequence of Checksums or None
        Checksums of every chunk of rows; None if unknown.
    """
    width = (layout.n_targets,) if layout.n_targets > 1 else ()
    kinds: dict[str, tuple[str, tuple[int, ...]]] = {
        "y": ("<f8" if layout.labels is None else "<i4", width),
        "sqnorm": ("<f8", ()),
        "row_id": ("<i8", ()),
    }
    if layout.has_weights:
        kinds["weight"] = ("<f8", ())
    if not layout.is_sparse:
        kinds["X"] = ("<f8" if layout.wide else "<f4", (layout.n_features,))
    return {
        name: StoredArray(
            root / name,
            (layout.n_rows, *width),
            layout.chunk_rows,
            dtype,
            ("row", "target" if name == "y" else "feature") if width else ("row",),
            compressed and name == "X",
            None if chunks is None else tuple(chain.from_iterable(one[name] for one in chunks)),
        )
        for name, (dtype, width) in kinds.items()
    }


def csr_folder(root: P, k: int) -> P:
    """Return the folder of the CSR group (three arrays) of chunk `k`; ``root``: the dataset's."""
    return root / "X" / f"{k:06d}"


def csr_arrays(
    folder: Place,
    n_rows: int,
    nnz: int,
    compressed: bool,
    checksums: Checksums | None = None,
    wide: bool = False,
    chunk_nnz: int = CSR_CHUNK_NNZ,
) -> list[StoredArray]:
    """Return the arrays of the CSR group in ``folder``: data, indices and indptr.

    Parameters
    ----------
    folder : Path or RemotePath
    n_rows, nnz : int
        Number of rows and of nonzeros.
    compressed : bool
        Whether the three arrays are compressed.
    checksums : Checksums or None
        From the manifest; None if unknown.
    wide : bool
        Whether data is float64, not float32.
    chunk_nnz : int
        Nonzeros per chunk file.
    """
    piece = min(max(nnz, 1), chunk_nnz)
    sizes = {"data": (nnz, piece, "<f8" if wide else "<f4"), "indices": (nnz, piece, "<i4")}
    sizes["indptr"] = (n_rows + 1, n_rows + 1, "<i8")
    return [
        StoredArray(
            folder / name,
            (size,),
            rows,
            dtype,
            ("row_boundary",) if name == "indptr" else ("nonzero",),
            compressed,
            None if checksums is None else tuple(checksums[name]),
        )
        for name, (size, rows, dtype) in sizes.items()
    ]


def create_csr(
    folder: Path, X: csr_array, compressed: bool, chunk_nnz: int = CSR_CHUNK_NNZ
) -> Checksums:
    """Write one CSR group, three arrays, with the attributes that anndata reads.

    ``chunk_nnz``: nonzeros per chunk file. Returns the files' checksums by the array's name.
    """
    zarr.create_group(
        folder,
        attributes={
            "encoding-type": "csr_matrix",
            "encoding-version": "0.1.0",
            "shape": list(X.shape),
        },
    )
    wide = X.data.dtype == np.float64
    arrays = csr_arrays(folder, X.shape[0], len(X.data), compressed, wide=wide, chunk_nnz=chunk_nnz)
    checksums = {}
    for array, values in zip(arrays, (X.data, X.indices, X.indptr), strict=True):
        array.create()
        checksums[array.folder.name] = array.write(0, values)
    return checksums


def list_arrays_in_root(root: Path) -> None:
    """Write the metadata of all arrays below the group `root` into its zarr.json, too.

    Readers then list no files: they would warn about the manifest, which is no part of zarr.

    Raises
    ------
    InputError
        If the metadata of an array is damaged.
    """
    with warnings.catch_warnings():
        # zarr warns that its format does not have this part yet; readers without it skip it.
        warnings.filterwarnings("ignore", message="Consolidated metadata")
        # It also warns about files of an unfinished dataset that are not zarr's.
        warnings.filterwarnings("ignore", message="Object at .* is not recognized")
        try:
            zarr.consolidate_metadata(root)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InputError(
                f"the metadata of an array below {root} is damaged ({reason_of(error)}); remove "
                "this folder and run again"
            ) from error


def create_groups(root: Path, layout: Layout) -> None:
    """Write zarr's metadata of the groups (folders) that hold a dataset's arrays, below `root`.

    Attributes of the root: "labels", the label of every code in y. Of X, if it is sparse: its whole
    shape, and the rows of each CSR group below it ("group_rows").
    """
    labels = {} if layout.labels is None else {"labels": list(layout.labels)}
    zarr.create_group(root, attributes={"made_by": "bigscreen", **labels})
    if layout.is_sparse:
        shape = [layout.n_rows, layout.n_features]
        attributes = {"encoding": "csr_matrix", "shape": shape, "group_rows": layout.chunk_rows}
        zarr.create_group(root / "X", attributes=attributes)
