"""Shared parts of the benchmarks: machine facts, data folder, command line, records, tables."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import threadpoolctl
from rich.console import Console
from rich.table import Table

from pipelines.bench import OPENBLAS_CORETYPE

ROOT = Path(__file__).resolve().parents[2]


def machine() -> dict[str, Any]:
    """Describe the machine on which a benchmark runs."""
    names = ("bigscreen", "numpy", "scipy", "scikit-learn", "numba", "zarr", "dask")
    return {
        "cores": _cores(),
        "cpu": _cpu(),
        "load_average": os.getloadavg()[0],
        "OPENBLAS_CORETYPE": f"unset (was {OPENBLAS_CORETYPE})" if OPENBLAS_CORETYPE else "unset",
        "blas": sorted(
            {f"{p['internal_api']} {p['version']}" for p in threadpoolctl.threadpool_info()}
        ),
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in names},
    }


def _cores() -> int:
    """Count the cores that this process may use, or all cores if the system does not say."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":")[1].strip() for line in lines if "model name" in line), "unknown")


def reference(rows: int, columns: int, landmarks: int, most: int = 1 << 20) -> float:
    """Measure the seconds of one pass of ``(X @ Z.T) @ w`` in float32, on all cores.

    The best of three passes over up to ``most`` rows in blocks of 8,192, scaled up to all rows. One
    machine's speed changes by more than a factor of two from hour to hour, so the times of fits are
    expressed in such passes.
    """
    rng = np.random.default_rng(0)
    some = min(rows, most)
    X = rng.standard_normal((some, columns), dtype=np.float32)
    Z = rng.standard_normal((landmarks, columns), dtype=np.float32)
    w = rng.standard_normal(landmarks, dtype=np.float32)
    parts = [X[a : a + 8192] for a in range(0, some, 8192)]
    took = []
    with ThreadPoolExecutor(_cores()) as pool, threadpoolctl.threadpool_limits(1):
        for _ in range(3):
            began = time.perf_counter()
            list(pool.map(lambda part: (part @ Z.T) @ w, parts))
            took.append(time.perf_counter() - began)
    return min(took) * rows / some


def data_folder() -> Path:
    """Return the folder of the real data sets; end the script with a sentence if there is none."""
    folder = Path(os.environ.get("BIGSCREEN_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        sys.exit(
            f"error: there is no data folder {folder}; set BIGSCREEN_DATA to the folder that holds "
            "a9a, ijcnn1, mnist, kddcup99, news20 and susy"
        )
    return folder


def file(name: str) -> Path:
    """Return a file of the data folder; end the script with a sentence if it is missing."""
    path = data_folder() / name
    if not path.exists():
        sys.exit(f"error: {path} is missing; put it there or leave this data set out with --only")
    return path


def bigscreen(*args: object) -> dict[str, Any]:
    """Run a bigscreen command in a new process; return the record of its ``--json``."""
    command = Path(sys.executable).with_name("bigscreen")
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "record.json"
        line = [str(command), *map(str, args), "--json", str(record)]
        print("$", "bigscreen", *line[1:-2], flush=True)
        done = subprocess.run(line, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"error: {' '.join(line)} failed:\n{done.stderr}")
        return json.loads(record.read_text())


def arguments(description: str, data_sets: Sequence[str] = ()) -> argparse.ArgumentParser:
    """Make the parser with the options that every benchmark has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--out", type=Path, help="folder for the JSON record")
    parser.add_argument("--work", type=Path, help="folder for stores, kept [temporary, removed]")
    if data_sets:
        parser.add_argument(
            "--only", nargs="+", choices=data_sets, default=list(data_sets), help="[all]"
        )
    return parser


@contextmanager
def work_folder(given: Path | None) -> Iterator[Path]:
    """Open the folder of ``--work``, or a temporary one."""
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
        yield given
        return
    folder = Path(tempfile.mkdtemp(prefix="bigscreen-bench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def ingested(store: Path, *args: object) -> Path:
    """Ingest a source, unless ``--work`` holds the store from an earlier run."""
    if not store.exists():
        bigscreen("ingest", *args[:1], store, *args[1:])
    return store


def show(title: str, heads: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table."""
    table = Table(title=title, title_justify="left")
    for head in heads:
        table.add_column(head)
    for row in rows:
        table.add_row(*map(str, row))
    Console(width=120, highlight=False).print(table)


def save(out: Path | None, name: str, record: dict[str, Any]) -> None:
    """Print the machine, and write the record with it into the folder ``--out``."""
    record = {"machine": machine(), **record}
    print(json.dumps(record["machine"]))
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        path = out / f"{name}.json"
        path.write_text(json.dumps(record, indent=1) + "\n")
        print(f"written: {path}")


def verdict(met: bool) -> str:
    """Return the word that a table shows for a met or missed goal."""
    return "met" if met else "NOT MET"
