"""Bad input of every kind: one clear sentence, exit code 2, and nothing half-written."""

import gzip
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_world import FIT, World, bigscreen, contents, process, succeed, world, write_csv

__all__ = ["world"]  # a fixture


def svm(text: str) -> dict[str, str]:
    return {"bad.svm": text}


def table(text: str) -> dict[str, str]:
    return {"bad.csv": text}


GOOD_SVM = "+1 1:0.5 3:1\n-1 2:0.25\n+1 1:2\n"
CUT_GZIP = gzip.compress(b"a,y\n1,p\n2,q\n" * 1000)[:-20]
INGEST = ["ingest", "bad.csv", "out", "--label", "y"]

# What is wrong, the files it takes, the command (in their folder; {name}: a good input of the
# `world`), what the one line must mention.
BAD: dict[str, tuple[dict[str, str] | dict[str, bytes], list[str], str]] = {
    # ingest
    "no source": ({}, ["ingest", "nowhere.csv", "out"], r"nowhere\.csv"),
    "empty file": (table(""), INGEST, r"bad\.csv"),
    "header alone": (table("a,y\n"), INGEST, r"bad\.csv"),
    "one label": (table("a,y\n1,p\n2,p\n3,p\n"), INGEST, r"\bp\b"),
    "nan": (table("a,y\n1,p\n2,q\nnan,p\n"), INGEST, r"bad\.csv.*line 4"),
    "ragged rows": (table("a,b,y\n1,2,p\n1,q\n"), INGEST, r"bad\.csv.*line 3"),
    "duplicate column": (table("a,a,y\n1,2,p\n2,3,q\n"), INGEST, r"bad\.csv.*\ba\b"),
    "no such label column": (table("a,b\n1,p\n2,q\n"), INGEST, r"bad\.csv.*\by\b"),
    "negative weight": (
        table("a,w,y\n1,1,p\n2,-3,q\n"),
        [*INGEST, "--weight", "w"],
        r"bad\.csv.*line 3.*negative",
    ),
    "index 0": (
        svm("+1 1:1\n-1 0:1 2:1\n"),
        ["ingest", "bad.svm", "out", "--one-based"],
        r"bad\.svm.*line 2",
    ),
    "descending indices": (
        svm("+1 1:1\n-1 2:1\n+1 3:1 2:1\n"),
        ["ingest", "bad.svm", "out"],
        r"bad\.svm.*line 3",
    ),
    "text for a number": (
        svm("+1 1:1\n-1 2:abc\n"),
        ["ingest", "bad.svm", "out"],
        r"bad\.svm.*line 2.*abc",
    ),
    "infinite value": (
        svm("+1 1:1\n-1 1:inf\n"),
        ["ingest", "bad.svm", "out"],
        r"bad\.svm.*line 2",
    ),
    "cut gzip": ({"bad.csv.gz": CUT_GZIP}, ["ingest", "bad.csv.gz", "out"], r"bad\.csv\.gz"),
    "unknown format": ({"bad.docx": "hm"}, ["ingest", "bad.docx", "out"], r"bad\.docx"),
    "holdout 1.5": (svm(GOOD_SVM), ["ingest", "bad.svm", "out", "--holdout", "1.5"], r"1\.5"),
    "rows backwards": (svm(GOOD_SVM), ["ingest", "bad.svm", "out", "--rows", "5:2"], r"5:2"),
    "rows past the end": (svm(GOOD_SVM), ["ingest", "bad.svm", "out", "--rows", "7:9"], r"7:9"),
    "unknown scaling": (svm(GOOD_SVM), ["ingest", "bad.svm", "out", "--scale", "big"], r"big"),
    "scaling by 0": (svm(GOOD_SVM), ["ingest", "bad.svm", "out", "--scale", "divide:0"], r"0"),
    "no such positive": (svm(GOOD_SVM), ["ingest", "bad.svm", "out", "--positive", "5"], r"\b5\b"),
    "store exists": (
        svm(GOOD_SVM) | {"out": "mine"},
        ["ingest", "bad.svm", "out"],
        r"out exists.*--overwrite",
    ),
    "no folder for the store": (svm(GOOD_SVM), ["ingest", "bad.svm", "no/out"], r"no folder .*/no"),
    "like another width": (
        table("a,y\n1,no\n2,yes\n"),
        [*INGEST, "--like", "{store}"],
        r"bad\.csv|column",
    ),
    "targets and none": (
        table("a,y\n1,2\n2,3\n"),
        [*INGEST, "--regression", "--unlabelled"],
        r"unlabelled rows have no targets",
    ),
    "target nan": (table("a,y\n1,2\n2,nan\n"), [*INGEST, "--regression"], r"bad\.csv, line 3.*nan"),
    "target inf": (
        svm("1 1:1\n-inf 1:2\n"),
        ["ingest", "bad.svm", "out", "--regression"],
        r"line 2.*-inf",
    ),
    "no target": (table("a,y\n1,2\n2,\n"), [*INGEST, "--regression"], r"bad\.csv, line 3.*missing"),
    "text as target": (
        table("a,y\n1,2\n2,much\n"),
        [*INGEST, "--regression"],
        r"bad\.csv, line 3.*'much' is not a number",
    ),
    "label among the features": (
        table("a,class\n1,2\n2,3\n"),
        ["ingest", "bad.csv", "out", "--unlabelled"],
        r"bad\.csv.*'class' holds labels",
    ),
    "targets like labels": (
        table("a,b,c,y\n1,2,3,4\n"),
        [*INGEST, "--regression", "--like", "{store}"],
        r"has labels and no targets",
    ),
    # fit
    "no store": ({}, ["fit", "nowhere", "m"], r"nowhere"),
    "not a store": ({"letter": "hello"}, ["fit", "letter", "m"], r"letter"),
    "a model as store": ({}, ["fit", "{model}", "m"], r"model"),
    "more landmarks than rows": ({}, ["fit", "{store}", "m", "--landmarks", "601"], r"601.*600"),
    "gamma 0": ({}, ["fit", "{store}", "m", "--gamma", "0"], r"--gamma.*positive.*'0'"),
    "gamma nan": ({}, ["fit", "{store}", "m", "--gamma", "nan"], r"--gamma.*'nan'"),
    "gamma a word": ({}, ["fit", "{store}", "m", "--gamma", "big"], r"the word scale.*'big'"),
    "C inf": ({}, ["fit", "{store}", "m", "--C", "inf"], r"--C.*'inf'"),
    "C 0": ({}, ["fit", "{store}", "m", "--C", "0"], r"--C.*'0'"),
    "lambda negative": ({}, ["fit", "{store}", "m", "--lambda", "-1"], r"--lambda.*'-1'"),
    "C and lambda": ({}, ["fit", "{store}", "m", "--C", "1", "--lambda", "1"], r"--C and --lambda"),
    "tol 0": ({}, ["fit", "{store}", "m", "--tol", "0"], r"--tol.*'0'"),
    "memory": ({}, ["fit", "{store}", "m", "--memory", "lots"], r"--memory.*'lots'"),
    "time budget": ({}, ["fit", "{store}", "m", "--time-budget", "soon"], r"--time-budget.*'soon'"),
    "no workers": ({}, ["fit", "{store}", "m", "--workers", "0"], r"--workers.*0"),
    "workers and threads": (
        {},
        ["fit", "{store}", "m", "--workers", "2", "--threads", "2"],
        r"--workers and --threads",
    ),
    "intercepts": (
        {},
        ["fit", "{store}", "m", "--no-intercept", "--intercept", "true"],
        r"--no-intercept.*--intercept true",
    ),
    "gamma for linear": (
        {},
        ["fit", "{store}", "m", "--kernel", "linear", "--gamma", "1"],
        r"--gamma.*linear",
    ),
    "f without f-safe": ({}, ["fit", "{store}", "m", "--f", "0.5"], r"--f .*f-safe"),
    "model exists": ({"m": "mine"}, ["fit", "{store}", "m"], r"m exists.*--overwrite"),
    "no folder for the model": ({}, ["fit", "{store}", "no/m"], r"no folder .*/no"),
    "read-only place": ({}, ["fit", "{store}", "/proc/m"], r"/proc/m cannot be written"),
    "JSON onto the model": ({}, ["fit", "{store}", "m", "--json", "m"], r"--json m"),
    "nothing to resume": ({}, ["fit", "{store}", "m", "--resume"], r"m\.work does not exist"),
    "unlabelled store": ({}, ["fit", "{unlabelled}", "m"], r"600 rows have no label"),
    "no scheduler": (
        {},
        ["fit", "{store}", "m", "--scheduler", "gopher://nowhere:1"],
        r"gopher://nowhere:1",
    ),
    "unknown option": ({}, ["fit", "{store}", "m", "--speed", "9"], r"--speed"),
    "missing argument": ({}, ["fit", "{store}"], r"MODEL"),
    "unknown command": ({}, ["train"], r"train"),
    # predict, evaluate, info
    "no model": ({}, ["predict", "nowhere", "{store}", "out.csv"], r"nowhere"),
    "not a model": ({"m": "hi"}, ["predict", "m", "{store}", "out.csv"], r"m is not a .*model"),
    "a store as model": ({}, ["predict", "{store}", "{store}", "out.csv"], r"folder"),
    "another width": ({}, ["predict", "{model}", "{wide}", "out.csv"], r"5 features.* 3.*--like"),
    "not scaled alike": ({}, ["evaluate", "{model}", "{plain}"], r"scaled.*--like"),
    "output format": ({}, ["predict", "{model}", "{store}", "out.xls"], r"out\.xls.*\.csv"),
    "output exists": (
        {"out.csv": "mine"},
        ["predict", "{model}", "{store}", "out.csv"],
        r"out\.csv exists",
    ),
    "nothing to compare": ({}, ["evaluate", "{model}", "{unlabelled}"], r"no labelled row"),
    "labels against targets": (
        {},
        ["evaluate", "{model}", "{targets}"],
        r"targets.*predicts labels",
    ),
    "positive of a classifier": (
        {},
        ["evaluate", "{model}", "{store}", "--positive", "yes"],
        r"positive is for one-class",
    ),
    "info of nothing": ({}, ["info", "nowhere"], r"nowhere"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(
    name: str, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, command, said = BAD[name]
    for file, text in files.items():
        (tmp_path / file).write_bytes(text if isinstance(text, bytes) else text.encode())
    monkeypatch.chdir(tmp_path)
    before = contents(tmp_path)
    result = bigscreen(*(part.format(**vars(world)) for part in command))
    assert result.exit_code == 2, result.output
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ") and re.search(said, line), line
    assert "Traceback" not in result.output
    assert contents(tmp_path) == before


def harm_missing(store: Path) -> None:
    sorted((store / "X" / "c").rglob("*"))[-1].unlink()


def harm_flipped(store: Path) -> None:
    victim = next(path for path in sorted((store / "X" / "c").rglob("*")) if path.is_file())
    data = bytearray(victim.read_bytes())
    data[5] ^= 64
    victim.write_bytes(data)


def harm_newer(store: Path) -> None:
    manifest = json.loads((store / "manifest.json").read_text())
    (store / "manifest.json").write_text(json.dumps(manifest | {"schema": 99}))


def harm_manifest(store: Path) -> None:
    (store / "manifest.json").write_text("{")


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (harm_missing, "missing"),
        (harm_flipped, "damaged"),
        (harm_newer, "newer"),
        (harm_manifest, "manifest.json is damaged"),
    ],
)
def test_bad_store(harm: object, said: str, world: World, tmp_path: Path) -> None:
    store = tmp_path / "s"
    shutil.copytree(world.store, store)
    harm(store)
    before = contents(tmp_path)
    for command in (
        ["fit", store, tmp_path / "m", *FIT],
        ["predict", world.model, store, tmp_path / "o.npy"],
    ):
        result = bigscreen(*command)
        assert result.exit_code == 2, result.output
        (line,) = result.stderr.splitlines()
        assert str(store) in line and said in line
        assert contents(tmp_path) == before


def test_a_real_process_fails_in_one_line(world: World, tmp_path: Path) -> None:
    fit = process("fit", world.store, tmp_path / "m", "--landmarks", "601")
    out, err = fit.communicate(timeout=60)
    assert (fit.returncode, out) == (2, "")
    assert len(err.splitlines()) == 1 and "601" in err and "600" in err


# --------------------------------------------------------------------------- bad disks


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of one megabyte."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("only root may mount a small disk, and not in every container")
    yield place
    # Lazily: a failed command's traceback may keep a file open for a while.
    subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.mark.parametrize("out", ["predictions.npy", "predictions.csv", "store"])
def test_full_disk(out: str, disk: Path, world: World, tmp_path: Path) -> None:
    rows = write_csv(tmp_path / "many.csv", n=60_000)
    if out == "store":
        command = ["ingest", rows, disk / out, "--label", "inside"]
    else:
        store = tmp_path / "many"
        succeed("ingest", rows, store, "--label", "inside", "--like", world.store)
        command = ["predict", world.model, store, disk / out]
    result = bigscreen(*command)
    assert result.exit_code == 2, result.output
    (line,) = result.stderr.splitlines()
    assert "disk is full" in line or "No space" in line
    # An ingest keeps what it can go on with; nothing has the name of a finished output.
    assert all(path.suffix == ".wip" for path in disk.iterdir()) and not (disk / out).exists()


def test_read_only_folder(disk: Path, world: World) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    for command in (
        ["ingest", world.csv, disk / "out", "--label", "inside"],
        ["fit", world.store, disk / "out", *FIT],
        ["predict", world.model, world.store, disk / "out.csv"],
        ["info", world.store, "--json", disk / "out.json"],
    ):
        result = bigscreen(*command)
        assert result.exit_code == 2, result.output
        (line,) = result.stderr.splitlines()
        assert "cannot be written" in line and str(disk) in line
