"""Confusing names and failing files give one sentence, or work like harmless ones."""

import errno
import gzip
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import pyarrow
import pytest
from cli_world import FIT, World, bigscreen, world, write_csv
from pyarrow import parquet

from bigscreen.cli.common import _stop
from bigscreen.errors import reason_of
from bigscreen.intake.ingest import ingest
from bigscreen.intake.readers.base import Block, Source
from bigscreen.intake.readers.binary import MatrixReader
from bigscreen.intake.readers.columnar import ColumnarReader

__all__ = ["world"]  # a fixture


@pytest.mark.parametrize(
    "name", ["`label=1.2.3`", "`label='\\x'`", "`drop=1`", "`none`", "`label`"]
)
def test_columns_named_like_an_option(tmp_path: Path, name: str) -> None:
    for option in (["--label", f"no {name}"], ["--label", name, "--drop", name]):
        end = bigscreen("ingest", write_csv(tmp_path / "a.csv"), tmp_path / "a.store", *option)
        assert end.exit_code == 2 and isinstance(end.exception, SystemExit), end.output
        assert len(end.stderr.splitlines()) == 1


@pytest.mark.slow
def test_names_that_are_not_utf8(world: World, tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/m\xff.bsm"
    commands = [
        ["fit", world.store, name, *FIT, "--report", name + b".html", "--log", name + b".log"],
        ["report", name, name + b".report.html", "--json", name + b".json"],
        ["report", name, tmp_path / "report.html"],
        ["info", name],
        ["path", world.store, name + b".bsp", *FIT, "--C", "1:10:3", "--report", name + b"p.html"],
        ["predict", name, world.store, name + b".csv"],
    ]
    code = "from bigscreen.cli import main; main(prog_name='bigscreen')"
    for words in commands:
        done = subprocess.run(
            [sys.executable, "-c", code, *words], capture_output=True, cwd=tmp_path
        )
        assert done.returncode == 0, (words, done.stderr.decode())
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "m\\udcff.bsm" in page


@pytest.mark.parametrize("error", [TimeoutError(), OSError(), MemoryError(), ConnectionError(" ")])
def test_no_sentence_is_empty(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        _stop(reason_of(error), 2)
    assert len(capsys.readouterr().err.removeprefix("error:").strip()) > 10


# ------------------------------------------------------------------------- disks and nets that fail


def test_a_source_that_cannot_be_read_is_blamed_itself(tmp_path: Path) -> None:
    # (Every process has this file, the system reads it as a regular one, and its start fails.)
    end = bigscreen("ingest", "/proc/self/mem", tmp_path / "a.store", "--label", "y")
    assert end.exit_code == 2 and "/proc/self/mem" in end.stderr
    assert "a.store.ingest.wip cannot" not in end.stderr


@pytest.mark.parametrize("suffix", ["csv", "csv.gz", "npy", "h5", "parquet"])
def test_a_disk_that_fails_while_a_source_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    source = tmp_path / f"a.{suffix}"
    write_source(source)
    read, begin = MatrixReader._blocks, Source.__init__
    broken = OSError(errno.EIO, os.strerror(errno.EIO))

    def failing(*_: object, **__: object) -> None:
        raise broken

    def some_then_failing(self: MatrixReader, *given: object) -> Iterator[Block]:
        yield next(read(self, *given))
        raise broken

    def begun(self: Source, path: Path) -> None:
        begin(self, path)
        self._take = failing

    matrix, text = (MatrixReader, "_blocks", some_then_failing), (Source, "__init__", begun)
    where = {"npy": matrix, "h5": matrix, "parquet": (ColumnarReader, "split_batch", failing)}
    monkeypatch.setattr(*where.get(suffix, text))
    how = ["--labels", tmp_path / "y.npy"] if suffix == "npy" else []
    end = bigscreen("ingest", source, tmp_path / "a.store", *how)
    assert end.exit_code == 2, end.output
    said = end.stderr.splitlines()[-1]
    assert f"{source} cannot be read or written: Input/output error; what was done is kept" in said


def write_source(path: Path) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(500, 3))
    y = (X[:, 0] > 0).astype(int)
    if path.name.endswith(".csv"):
        np.savetxt(path, np.column_stack([X, y]), delimiter=",")
    elif path.suffix == ".gz":
        with gzip.open(path, "wb") as file:
            np.savetxt(file, np.column_stack([X, y]), delimiter=",")
    elif path.suffix == ".npy":
        np.save(path, X)
        np.save(path.with_name("y.npy"), y)
    elif path.suffix == ".h5":
        with h5py.File(path, "w") as file:
            file["X"], file["y"] = X, y
    else:
        parquet.write_table(pyarrow.table({"x": X[:, 0], "label": y}), path)


@pytest.mark.parametrize("error", [TimeoutError(), ConnectionError("the Dask scheduler is gone")])
def test_a_lost_cluster_is_not_blamed_on_a_folder(tmp_path: Path, error: OSError) -> None:
    write_source(tmp_path / "a.csv")

    def lost(event: object) -> None:
        raise error

    with pytest.raises(type(error)) as found:
        ingest(tmp_path / "a.csv", tmp_path / "a.store", progress=lost)
    said = str(found.value)
    assert said.startswith(("no answer came in time", "the Dask scheduler is gone; what was done"))
    assert "cannot be read" not in said
    assert ingest(tmp_path / "a.csv", tmp_path / "a.store").store.n_rows == 500
