"""Ingest speed by source format, compared with `pyarrow.csv` alone: MB of the file per second.

    python -m pipelines.scale.ingest [--rows 300000] [--times 3] [--out FOLDER]

Rows of SUSY's shape, made up, as CSV text of nine digits, the same compressed by gzip, Parquet,
Feather, HDF5 and NPY; half of their columns and one of kinds, in quotes, as CSV. A second of a core
is one of processor time, of all threads together; one by the clock is as it passes. `read` is
parsing alone, on one thread, `ingest` all up to the finished store, on one thread and on all cores.
All ways are timed in turn, and the least of each counts.
"""

from __future__ import annotations

import gzip
import math
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet

from bigscreen.data.synthetic import susy_like
from bigscreen.intake.ingest import ingest
from bigscreen.intake.readers.formats import open_source
from pipelines.bench import common

TEXT = {"label": 0, "header": False}
ONE = " on one thread"
ASKED = {"ingest rows.csv": 60.0, "ingest rows.csv.gz": 40.0}


def main() -> None:
    """Write the files, time them, print the table."""
    parser = common.arguments("How fast sources are ingested.")
    parser.add_argument("--rows", type=int, default=300_000, metavar="N", help="[300,000]")
    parser.add_argument("--times", type=int, default=3, metavar="N", help="[3]")
    given = parser.parse_args()
    with common.work_folder(given.work) as work:
        results = timed(work, given.rows, given.times)
    rows = []
    for name, (megabytes, core, clock) in results.items():
        speed, asked = megabytes / core, ASKED.get(name)
        verdict = "" if asked is None else common.verdict(speed >= asked)
        alone = results.get(name + ONE)
        gain = "" if alone is None else f"{alone[2] / clock:.2f}"
        figures = f"{megabytes:.0f}", f"{speed:.0f}", f"{megabytes / clock:.0f}", gain
        rows.append((name, *figures, asked or "", verdict))
    heads = ("what", "MB", "MB/s of a core", "by the clock", "times one thread", "asked", "")
    common.show(f"Ingest, {given.rows:,} rows of 18 columns (made up)", heads, rows)
    common.save(given.out, "ingest", {"rows": given.rows, "results": results})


def timed(work: Path, n: int, times: int = 2) -> dict[str, tuple[float, float, float]]:
    """Time every way; return MB, and its least processor and wall seconds."""
    write(work, n)

    def sources(name: str, **options: Any) -> dict[str, Callable[[], Any]]:
        def read() -> None:
            for _ in open_source(work / name, **options).blocks():
                pass

        def whole(threads: int | None) -> None:
            ingest(work / name, work / "rows.store", overwrite=True, threads=threads, **options)

        ways = {f"ingest {name}": partial(whole, None), f"ingest {name}{ONE}": partial(whole, 1)}
        return {f"read {name}": read, **ways}

    plain = pyarrow.csv.ReadOptions(use_threads=False, autogenerate_column_names=True)
    ways: dict[str, Callable[[], Any]] = {
        "pyarrow.csv rows.csv": lambda: pyarrow.csv.read_csv(work / "rows.csv", plain),
        **sources("rows.csv", **TEXT),
        **sources("rows.csv.gz", **TEXT),
        **sources("kinds.csv", label=0),
        **sources("rows.parquet", label=0),
        **sources("rows.feather", label=0),
        **sources("rows.h5"),
        **sources("rows.npy", label=0),
    }
    least = dict.fromkeys(ways, (math.inf, math.inf))
    for _ in range(times):
        for name, way in ways.items():
            core, clock = cost(way)
            least[name] = min(least[name][0], core), min(least[name][1], clock)
    files = (file for file in work.iterdir() if file.is_file())
    size = {file.name: file.stat().st_size / 1e6 for file in files}
    return {name: (size[name.removesuffix(ONE).split()[-1]], *least[name]) for name in ways}


def cost(way: Callable[[], Any]) -> tuple[float, float]:
    """Measure the processor seconds and wall seconds of a call."""
    core, clock = time.process_time(), time.perf_counter()
    way()
    return time.process_time() - core, time.perf_counter() - clock


def write(work: Path, n: int) -> None:
    """Write the rows in every format."""
    table = np.concatenate([np.column_stack([y, X]) for X, y in susy_like(n)])
    np.savetxt(work / "rows.csv", table, delimiter=",", fmt="%.8e")
    with open(work / "rows.csv", "rb") as text, gzip.open(work / "rows.csv.gz", "wb", 6) as packed:
        shutil.copyfileobj(text, packed)
    columns = {f"x{j}": table[:, j] for j in range(table.shape[1])}
    pyarrow.parquet.write_table(pyarrow.table(columns), work / "rows.parquet")
    pyarrow.feather.write_feather(pyarrow.table(columns), work / "rows.feather")
    kinds = np.array(["alpha", "beta", "gamma, delta"])[np.arange(n) % 3]
    mixed = {"label": table[:, 0].astype(int), "kind": kinds, **dict([*columns.items()][1:10])}
    pyarrow.csv.write_csv(pyarrow.table(mixed), work / "kinds.csv")
    with h5py.File(work / "rows.h5", "w") as file:
        file["X"], file["y"] = table[:, 1:].astype(np.float32), table[:, 0]
    np.save(work / "rows.npy", table.astype(np.float32))


if __name__ == "__main__":
    main()
