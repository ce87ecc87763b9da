"""Chunks as files of their own, and in shards of Zarr: seconds of a pass and of single rows.

    python -m pipelines.bench.sharding

Rows are float32 in chunks of 32 MB, each with its crc32c. They are read from the page cache, by
bigscreen's own reader and through Zarr; single rows are drawn at random from all.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from zarr.codecs import Crc32cCodec

from bigscreen.data.zarr_arrays import StoredArray
from pipelines.bench.common import arguments, machine, work_folder

Read = Callable[[int, int], NDArray[Any]]


def layouts(folder: Path, X: NDArray[np.float32], chunk: int) -> dict[str, tuple[Read, Path]]:
    """Store rows in every layout; return how each reads rows, and its folder."""
    own = StoredArray(folder / "files", X.shape, chunk, "<f4", ("row", "feature"))
    own.create()
    own.write(0, X)
    found: dict[str, tuple[Read, Path]] = {"a file a chunk, own reader": (_own(own), own.folder)}
    plain = zarr.open_array(own.folder, mode="r")
    found["a file a chunk, through Zarr"] = (lambda a, b: plain[a:b], own.folder)
    for name, inner, shard in (
        ("8 chunks in a shard", chunk, 8 * chunk),
        ("chunks of 64 rows in a shard of 32 MB", 64, chunk),
    ):
        place = folder / name.replace(" ", "-")
        made = zarr.create_array(
            place, shape=X.shape, dtype=X.dtype, compressors=[Crc32cCodec()],
            chunks=(inner, X.shape[1]), shards=(shard, X.shape[1]),
        )  # fmt: skip
        made[:] = X
        found[f"{name}, through Zarr"] = (lambda a, b, made=made: made[a:b], place)
    return found


def _own(array: StoredArray) -> Read:
    """Return how the own reader reads rows: one alone from its chunk, which was read before."""

    def read(start: int, stop: int) -> NDArray[Any]:
        """Read rows as `Dataset` does."""
        if stop - start > 1:
            return array.read(start, stop)
        return array.read_rows(start // array.chunk_rows, np.array([start % array.chunk_rows]))

    return read


def main() -> None:
    """Store, read and print."""
    parser = arguments("Seconds of reading chunks of their own files, and of shards.")
    parser.add_argument("--rows", type=int, default=131_072)
    parser.add_argument("--columns", type=int, default=512)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    X = rng.standard_normal((options.rows, options.columns), dtype=np.float32)
    chunk = 1 << (2**25 // (4 * options.columns)).bit_length() - 1
    single = rng.integers(0, options.rows, 20).tolist()
    table = Table("layout", "files", "all rows", "a single row")
    with work_folder(options.work) as folder:
        for name, (read, place) in layouts(folder, X, chunk).items():
            seconds = []
            for spans in (
                [(a, min(a + chunk, options.rows)) for a in range(0, options.rows, chunk)],
                [(row, row + 1) for row in single],
            ):
                began = time.perf_counter()
                for a, b in spans:
                    np.testing.assert_array_equal(read(a, b)[:1], X[a : a + 1])
                seconds.append(time.perf_counter() - began)
            files = sum(1 for file in (place / "c").rglob("*") if file.is_file())
            row = 1e6 * seconds[1] / len(single)
            table.add_row(name, str(files), f"{seconds[0]:.3f} s", f"{row:,.0f} us")
    Console().print(machine(), table)


if __name__ == "__main__":
    main()
