"""How fast sources are ingested, beside `pyarrow.csv` alone: MB of the file a second of a core.

    python -m pipelines.scale.ingest [--rows 300000] [--out FOLDER]

Rows of SUSY's shape, made up, as CSV text of nine digits, the same compressed by gzip, Parquet,
HDF5 and NPY. A second is one of processor time, of all threads together: `read` is parsing alone,
`ingest` all up to the finished store.
"""

from __future__ import annotations

import gzip
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.parquet

from bigscreen.data.synthetic import susy_like
from bigscreen.intake.ingest import ingest
from bigscreen.intake.readers import open_source
from pipelines.bench import common

TEXT = {"label": 0, "header": False}
ASKED = {"ingest rows.csv": 60.0, "ingest rows.csv.gz": 40.0}


def main() -> None:
    """Write the files, time them, print the table."""
    parser = common.arguments("How fast sources are ingested.")
    parser.add_argument("--rows", type=int, default=300_000, metavar="N", help="[300,000]")
    given = parser.parse_args()
    with common.work_folder(given.work) as work:
        results = timed(work, given.rows)
    rows = []
    for name, (megabytes, seconds) in results.items():
        speed, asked = megabytes / seconds, ASKED.get(name)
        verdict = "" if asked is None else common.verdict(speed >= asked)
        rows.append((name, f"{megabytes:.0f}", f"{speed:.0f}", asked or "", verdict))
    heads = ("what", "MB", "MB a second of a core", "asked", "")
    common.show(f"Ingest, {given.rows:,} rows of 18 columns (made up)", heads, rows)
    common.save(given.out, "ingest", {"rows": given.rows, "results": results})


def timed(work: Path, n: int) -> dict[str, tuple[float, float]]:
    """MB, and processor seconds (the better of two), of every way."""
    write(work, n)

    def sources(name: str, **options: Any) -> dict[str, Callable[[], Any]]:
        def read() -> None:
            for _ in open_source(work / name, **options).blocks():
                pass

        def whole() -> None:
            ingest(work / name, work / "rows.store", overwrite=True, **options)

        return {f"read {name}": read, f"ingest {name}": whole}

    plain = pyarrow.csv.ReadOptions(use_threads=False, autogenerate_column_names=True)
    ways: dict[str, Callable[[], Any]] = {
        "pyarrow.csv rows.csv": lambda: pyarrow.csv.read_csv(work / "rows.csv", plain),
        **sources("rows.csv", **TEXT),
        **sources("rows.csv.gz", **TEXT),
        **sources("rows.parquet", label=0),
        **sources("rows.h5"),
        **sources("rows.npy", label=0),
    }
    return {
        name: ((work / name.split()[-1]).stat().st_size / 1e6, min(cost(way), cost(way)))
        for name, way in ways.items()
    }


def cost(way: Callable[[], Any]) -> float:
    """Processor seconds."""
    began = time.process_time()
    way()
    return time.process_time() - began


def write(work: Path, n: int) -> None:
    """The same rows in every format."""
    table = np.concatenate([np.column_stack([y, X]) for X, y in susy_like(n)])
    np.savetxt(work / "rows.csv", table, delimiter=",", fmt="%.8e")
    with open(work / "rows.csv", "rb") as text, gzip.open(work / "rows.csv.gz", "wb", 6) as packed:
        shutil.copyfileobj(text, packed)
    columns = {f"x{j}": table[:, j] for j in range(table.shape[1])}
    pyarrow.parquet.write_table(pyarrow.table(columns), work / "rows.parquet")
    with h5py.File(work / "rows.h5", "w") as file:
        file["X"], file["y"] = table[:, 1:].astype(np.float32), table[:, 0]
    np.save(work / "rows.npy", table.astype(np.float32))


if __name__ == "__main__":
    main()
