"""One zarr array on disk: made and written by zarr, read straight into the caller's memory."""

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import google_crc32c
import numpy as np
import zarr
from numpy.typing import NDArray
from scipy.sparse import csr_array
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec

from bigscreen.errors import InputError
from bigscreen.store.layout import Layout

CRC_BYTES = 4


@dataclass(frozen=True)
class StoredArray:
    """A zarr v3 array split along its rows, every chunk one file that ends in its crc32c.

    Without compression a chunk file is the little-endian rows and four bytes of checksum, so it
    is read here directly into the result: three times as fast as through zarr and without its
    second copy. Compressed chunks are read by zarr.
    """

    folder: Path
    shape: tuple[int, ...]
    chunk_rows: int
    dtype: str
    compressed: bool = False

    def create(self) -> None:
        """Write the array's metadata; no chunk."""
        codecs = [BloscCodec(cname="lz4", shuffle="shuffle")] if self.compressed else []
        zarr.create_array(
            self.folder,
            shape=self.shape,
            chunks=(self.chunk_rows, *self.shape[1:]),
            dtype=self.dtype,
            filters=None,
            serializer=BytesCodec(),
            compressors=[*codecs, Crc32cCodec()],
            fill_value=self._fill_value(),
        )

    def write(self, start: int, values: NDArray) -> None:
        """Write rows from `start`, the first row of a chunk, on; each file appears whole."""
        array = zarr.open_array(self.folder, mode="r+")
        array[start : start + len(values)] = values

    def read(self, start: int, stop: int) -> NDArray:
        """Rows start..stop as a new array.

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
                whole = np.empty((self.chunk_rows, *self.shape[1:]), dtype=self.dtype)
                self._read_chunk(k, whole)
                part[:] = whole[at - first : end - first]
            at = end
        return out

    def files(self) -> Iterator[tuple[Path, int | None]]:
        """Every chunk file and its size in bytes, None if compressed."""
        for k in range(-(-self.shape[0] // self.chunk_rows)):
            yield self._file(k), None if self.compressed else self._chunk_bytes() + CRC_BYTES

    def _fill_value(self) -> float | int:
        """A value that is never stored.

        zarr makes no file for a chunk of nothing but fill values, and reads one that is lost as
        fill values: with this one every chunk is a file, and a loss cannot pass for zeros. NaN
        would not do: it is the target of a row that has none.
        """
        kind = np.dtype(self.dtype)
        return float("-inf") if kind.kind == "f" else int(np.iinfo(kind).min)

    def _file(self, k: int) -> Path:
        return self.folder.joinpath("c", str(k), *["0"] * (len(self.shape) - 1))

    def _chunk_bytes(self) -> int:
        return self.chunk_rows * math.prod(self.shape[1:]) * np.dtype(self.dtype).itemsize

    def _read_chunk(self, k: int, out: NDArray) -> None:
        file = self._file(k)
        try:
            if self.compressed:
                self._read_compressed(k, out)
                return
            flat = out.reshape(-1).view(np.uint8)
            with open(file, "rb", buffering=0) as stream:
                got = 0
                while got < len(flat) and (n := stream.readinto(flat[got:].data)):
                    got += n
                stored = stream.read(CRC_BYTES + 1)
        except FileNotFoundError as error:
            raise missing_chunk(file) from error
        except OSError as error:
            raise InputError(f"the chunk {file} cannot be read: {error}") from error
        if got < len(flat) or stored != google_crc32c.value(flat).to_bytes(CRC_BYTES, "little"):
            raise damaged_chunk(file)

    def _read_compressed(self, k: int, out: NDArray) -> None:
        os.stat(self._file(k))  # zarr would give fill values for a missing chunk
        first = k * self.chunk_rows
        try:
            rows = np.asarray(zarr.open_array(self.folder, mode="r")[first : first + len(out)])
        except FileNotFoundError:
            raise
        except (ValueError, RuntimeError, TypeError) as error:
            raise damaged_chunk(self._file(k)) from error
        out[: len(rows)] = rows


def missing_chunk(file: Path) -> InputError:
    return InputError(
        f"the chunk {file} is missing, so the dataset is not whole; restore that file from a copy "
        "or make the dataset again from its source"
    )


def damaged_chunk(file: Path) -> InputError:
    return InputError(
        f"the chunk {file} is damaged, its content does not match its checksum; restore that file "
        "from a copy or make the dataset again from its source"
    )


# Nonzeros of one chunk file of a CSR group: 32 MB of data.
CSR_PIECE = 2**23


def row_arrays(root: Path, layout: Layout, compressed: bool) -> dict[str, StoredArray]:
    """The arrays with one entry for every row, by name; without X where that is sparse."""
    kinds: dict[str, tuple[str, tuple[int, ...]]] = {
        "y": ("<f8" if layout.labels is None else "<i4", ()),
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
            compressed and name == "X",
        )
        for name, (dtype, width) in kinds.items()
    }


def csr_folder(root: Path, k: int) -> Path:
    """The folder of the CSR group that holds chunk `k`."""
    return root / "X" / f"{k:06d}"


def csr_arrays(
    folder: Path, n_rows: int, nnz: int, compressed: bool, wide: bool = False
) -> tuple[StoredArray, StoredArray, StoredArray]:
    """The arrays data, indices and indptr of one CSR group."""
    piece = min(max(nnz, 1), CSR_PIECE)
    return (
        StoredArray(folder / "data", (nnz,), piece, "<f8" if wide else "<f4", compressed),
        StoredArray(folder / "indices", (nnz,), piece, "<i4", compressed),
        StoredArray(folder / "indptr", (n_rows + 1,), n_rows + 1, "<i8", compressed),
    )


def create_csr(folder: Path, X: csr_array, compressed: bool) -> None:
    """Write one CSR group with the attributes that anndata reads."""
    zarr.create_group(
        folder,
        attributes={
            "encoding-type": "csr_matrix",
            "encoding-version": "0.1.0",
            "shape": list(X.shape),
        },
    )
    wide = X.data.dtype == np.float64
    arrays = csr_arrays(folder, X.shape[0], len(X.data), compressed, wide)
    for array, values in zip(arrays, (X.data, X.indices, X.indptr), strict=True):
        array.create()
        array.write(0, values)


def create_groups(root: Path, layout: Layout) -> None:
    """Write the groups that hold the arrays of a dataset."""
    zarr.create_group(root)
    if layout.is_sparse:
        zarr.create_group(root / "X")
