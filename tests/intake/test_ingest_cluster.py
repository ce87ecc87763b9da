"""Workers parse and sort: the store is that of one thread, byte for byte, though they die."""

import gzip
import json
import os
import random
import signal
import subprocess
import sys
from functools import partial

import cloudpickle
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from click.testing import CliRunner
from ingest_cases import tune_ingest

from bigscreen.cli.commands import group
from bigscreen.data.missing import Missing
from bigscreen.errors import InputError
from bigscreen.fleet.local import local_cluster
from bigscreen.intake.ingest import ingest
from bigscreen.intake.readers import base
from bigscreen.intake.readers.formats import open_source

ROWS = 1000
HOW = {"impute": "mean", "scale": "standard", "holdout": 0.2, "seed": 3}
TYPED = {"date": ["day=%d/%m/%Y"], "hashed": ["name:3"]}


def files(path):
    """All that a store holds, and its hold-out."""
    found = (file for file in sorted(path.parent.glob(f"{path.stem}*/**/*")) if file.is_file())
    return {str(file.relative_to(path.parent)): file.read_bytes() for file in found}


@pytest.fixture(scope="module")
def fleet():
    with local_cluster(2) as fleet:
        yield fleet


def mixed(path):
    """Numbers, dates, texts (some of several lines), labels that are words, in a CSV file."""
    chance = random.Random(0)
    lines = ["a,b,day,text,name,label"]
    for row in range(ROWS):
        text = chance.choice(["x", '"one\ntwo"', '"q ""q"" q"', f"y{row // 300}"])
        gap = chance.choice(["", "NA", f"{chance.random():.3f}"])
        day = f"{1 + row % 28}/02/2020"
        label = chance.choice(["yes", "no", "1"])
        lines.append(f"{chance.random():.6f},{gap},{day},{text},n{row},{label}")
    path.write_text("\n".join(lines))
    return path


def svmlight(path):
    chance = random.Random(1)
    lines = []
    for row in range(ROWS):
        found = sorted(chance.sample(range(1, 20 + row // 50), 5))
        lines.append(f"{row % 2} " + " ".join(f"{i}:{chance.random():.4f}" for i in found))
        lines += chance.choice([[], ["# nothing"], [""]])
    path.write_text("\n".join(lines))
    return path


def row_groups(path):
    chance = random.Random(2)
    numbers = [None if row % 7 == 0 else chance.random() for row in range(ROWS)]
    texts = [f"kind {row // 100}" for row in range(ROWS)]
    columns = {"a": numbers, "text": texts, "label": [row % 2 for row in range(ROWS)]}
    pyarrow.parquet.write_table(pyarrow.table(columns), path, row_group_size=130)
    return path


@pytest.mark.slow
def test_the_store_is_the_same(tmp_path, monkeypatch, fleet):
    tune_ingest(monkeypatch, piece_bytes=8000)
    kinds = {"csv": mixed, "svm": svmlight, "parquet": row_groups}
    for kind, how in (
        ("csv", {**HOW, **TYPED}),
        ("svm", {"scale": "standard"}),
        ("parquet", HOW),
    ):
        source = kinds[kind](tmp_path / f"rows.{kind}")
        ingest(source, tmp_path / f"{kind}.store", threads=1, **how)
        alone = files(tmp_path / f"{kind}.store")
        ingest(source, tmp_path / f"{kind}.store", fleet=fleet, overwrite=True, **how)
        assert files(tmp_path / f"{kind}.store") == alone
        # An error has the words, and names the line, that it has here.
        if kind == "parquet":
            assert open_source(source, missing=Missing((), True)).anywhere
            source.write_bytes(b"PAR1" + bytes(3000) + source.read_bytes()[3004:])
        else:
            source.write_text(source.read_text().replace("0.5", "what", 1))
        said = set()
        for where in ({"threads": 1}, {"fleet": fleet}):
            with pytest.raises(InputError) as caught:
                ingest(source, tmp_path / "bad.store", **where, **how)
            said.add(str(caught.value))
        assert len(said) == 1 and str(source) in said.pop()


BESIDE = """
import pickle, sys
tried, item = pickle.load(sys.stdin.buffer)
_, blocks = tried(item)
assert [block.X.shape for block, _ in blocks] == [(130, 1)]
"""


def test_a_reader_that_a_worker_is_sent_brings_along_what_it_needs(tmp_path):
    """Ours have imported everything; one of another machine has not (nor one that has begun)."""
    numbers = {"a": np.arange(260) / 7, "label": np.arange(260) % 2}
    pyarrow.parquet.write_table(pyarrow.table(numbers), tmp_path / "r.parquet", row_group_size=130)
    reader = open_source(tmp_path / "r.parquet", label="label")
    sent = cloudpickle.dumps(
        (partial(base.try_parse, reader._read_whole), next(iter(reader.batches(0))))
    )
    done = subprocess.run([sys.executable, "-c", BESIDE], input=sent, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.slow
def test_workers_that_die_and_an_ingest_that_goes_on(tmp_path, monkeypatch, fleet):
    tune_ingest(monkeypatch, piece_bytes=4000)
    source = mixed(tmp_path / "rows.csv")
    ingest(source, tmp_path / "s.store", threads=1, **HOW, **TYPED)
    alone = files(tmp_path / "s.store")
    how = {**HOW, **TYPED, "fleet": fleet, "overwrite": True}
    seen = []

    def kill(event):
        seen.append((event["phase"], event["rows"]))
        phase, number = event["phase"], sum(phase == event["phase"] for phase, _ in seen)
        if (phase, number) in (("read", 3), ("measure", 1)):
            os.kill(fleet._client.run(os.getpid).popitem()[1], signal.SIGKILL)

    ingest(source, tmp_path / "s.store", progress=kill, **how)
    assert files(tmp_path / "s.store") == alone
    assert {phase for phase, _ in seen} == {"read", "measure", "write"}

    def stop(event):
        if event["phase"] == "read" and event["rows"] > ROWS // 2:
            raise KeyboardInterrupt

    tune_ingest(monkeypatch, piece_bytes=4000, checkpoint_seconds=0.0)
    with pytest.raises(KeyboardInterrupt, match="run the same command again"):
        ingest(source, tmp_path / "s.store", progress=stop, **how)
    read = []
    ingest(source, tmp_path / "s.store", progress=read.append, **how)
    assert read[0]["rows"] > ROWS // 2 and files(tmp_path / "s.store") == alone


def test_a_source_that_a_worker_does_not_see_and_one_that_has_changed(tmp_path, fleet):
    source = tmp_path / "rows.csv"
    source.write_text("a,b,label\n" + "".join(f"{i},{i % 7},{i % 2}\n" for i in range(100)))
    reader = open_source(source)
    piece = next(base.read_line_pieces(base.Source(source)))
    assert reader.anywhere
    os.utime(source, (1, 1))
    with pytest.raises(InputError, match=r"the worker tls.*rows.csv is not the file"):
        list(fleet.each(partial(base.try_parse, reader._parse_alone), [(piece, False)]))
    source.unlink()
    with pytest.raises(InputError, match=r"the worker tls.*rows.csv cannot be read: No such file"):
        list(fleet.each(partial(base.try_parse, reader._parse_alone), [(piece, False)]))


@pytest.mark.slow
def test_on_the_command_line(tmp_path):
    source, result = mixed(tmp_path / "rows.csv"), tmp_path / "result.json"
    args = ["ingest", str(source), str(tmp_path / "s.store"), "--drop-missing", "--json"]
    run, typed = CliRunner().invoke, ["--date", "day=%d/%m/%Y", "--hash", "name:3"]
    done = run(group, [*args, str(result), "--workers", "1", *typed])
    assert done.exit_code == 0, done.output
    assert json.loads(result.read_text())["store"]["rows"] < ROWS
    said = run(group, [*args, "-", "--overwrite", "--workers", "2", "--threads", "2"]).output
    assert "--workers and --threads are different ways to run" in said


@pytest.mark.slow
def test_many_small_files(tmp_path, monkeypatch, fleet):
    """Each file is one piece in any process; errors name the file."""
    folder = tmp_path / "parts"
    folder.mkdir()
    head, *lines = mixed(tmp_path / "rows.csv").read_text().replace("one\ntwo", "one").split("\n")
    for k in range(12):
        text = "\n".join([head, *lines[k * 80 : k * 80 + 80]])
        name = folder / f"part-{k:02d}.csv"
        name.write_text(text) if k % 3 else (folder / f"{name.name}.gz").write_bytes(
            gzip.compress(text.encode())
        )
    stores = []
    for where in ({"threads": 1}, {"threads": 3}, {"fleet": fleet}):
        ingest(folder, tmp_path / "s.store", overwrite=True, **where, **HOW, **TYPED)
        stores.append(files(tmp_path / "s.store"))
    assert stores[0] == stores[1] == stores[2]
    tune_ingest(monkeypatch, max_whole_bytes=0)
    ingest(folder, tmp_path / "s.store", overwrite=True, threads=2, **HOW, **TYPED)
    assert files(tmp_path / "s.store") == stores[0]
