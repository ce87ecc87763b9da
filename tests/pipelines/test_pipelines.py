"""The experiments and benchmarks run on few rows, in processes of their own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from places import ROOT
from scripts import script


@pytest.mark.slow
def test_susy_standin_says_so(tmp_path: Path) -> None:
    args = ("--rows", 12_000, "--landmarks", 100, "--workers", 1, "--json", tmp_path / "r.json")
    done = script("scale.susy", *args, TMPDIR=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "STAND-IN" in done.stdout and "best possible" in done.stdout
    record = json.loads((tmp_path / "r.json").read_text())
    assert record["standin"] and "STAND-IN" in record["data"]
    assert record["rows"] + record["rows_held_out"] == 12_000
    for fit in record["fits"].values():
        # 1,200 rows held out: 4 standard deviations, and what few landmarks and rows cost.
        assert -0.05 < fit["evaluation"]["error"] - record["bayes_error"] < 0.1
    assert all(fit["relative_gap"] <= 1e-3 for fit in record["fits"].values())
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]


@pytest.mark.slow
def test_susy_reads_the_real_shape(tmp_path: Path) -> None:
    """A file like SUSY.csv, without a header and with the label first, is read."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(500, 18))
    table = np.column_stack([(X[:, 0] > 0).astype(float), X])
    np.savetxt(tmp_path / "SUSY.csv", table, fmt="%.18e", delimiter=",")
    args = ("--data", tmp_path / "SUSY.csv", "--rows", 400, "--landmarks", 20)
    done = script("scale.susy", *args, "--work", tmp_path / "work", "--json", tmp_path / "r.json")
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "r.json").read_text())
    assert "STAND-IN" not in done.stdout and not record["standin"]
    assert record["rows"] + record["rows_held_out"] == 400
    assert record["fits"]["linear"]["evaluation"]["error"] < 0.15
    assert "bayes_error" not in record


@pytest.mark.slow
def test_rcv1_standin_is_sparse_and_linear(tmp_path: Path) -> None:
    args = ("--rows", 3000, "--work", tmp_path / "work", "--json", tmp_path / "r.json")
    done = script("scale.rcv1", *args, "--landmarks", 50, "--peer")
    assert done.returncode == 0, done.stderr
    assert "STAND-IN" in done.stdout
    record = json.loads((tmp_path / "r.json").read_text())
    fit = record["fits"]["linear"]
    assert fit["solver"] == "cd" and fit["relative_gap"] <= 1e-3
    assert fit["evaluation"]["error"] < 0.4
    # No objective is below the proved bound; at its own tolerance LinearSVC is near it.
    assert fit["dual"] <= record["linear_svc"]["primal"] < 1.02 * fit["primal"]


@pytest.mark.slow
def test_higgs_goes_on_and_writes_pages(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    args = ("--rows", 6000, "--landmarks", 60, "--work", tmp_path / "work")
    more = ("--json", tmp_path / "r.json", "--pages", tmp_path / "pages")
    done = script("scale.higgs", *args, *more)
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "r.json").read_text())
    assert set(record["fits"]) == {"linear", "rbf"} and record["rows"] > 5000
    assert all(fit["evaluation"]["auc"] > 0.6 for fit in record["fits"].values())
    page = (tmp_path / "pages" / "rbf.html").read_text()
    assert "STAND-IN" in page and "ROC" in page
    # what is in the folder is not done again
    (tmp_path / "work" / "rbf.bsm").unlink()
    written = (tmp_path / "work" / "linear.bsm").stat().st_mtime_ns
    again = script("scale.higgs", *args, "--json", tmp_path / "r.json")
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "work" / "linear.bsm").stat().st_mtime_ns == written
    before = record["fits"]["rbf"]["primal"]
    assert json.loads((tmp_path / "r.json").read_text())["fits"]["rbf"]["primal"] == before
    other = script("scale.higgs", "--rows", 6000, "--landmarks", 70, "--work", tmp_path / "work")
    assert other.returncode == 1 and "landmarks was 60, now 70" in other.stderr
    other = script("scale.higgs", "--rows", 5000, "--work", tmp_path / "work")
    assert other.returncode == 1 and "other rows" in other.stderr


@pytest.mark.slow
def test_benchmarks_say_what_is_missing(tmp_path: Path) -> None:
    done = script("bench.accuracy", BIGSCREEN_DATA=tmp_path / "nowhere")
    assert done.returncode == 1
    assert "there is no data folder" in done.stderr and "BIGSCREEN_DATA" in done.stderr
    assert "Traceback" not in done.stderr
    assert "--out" in script("bench.accuracy", "--help").stdout


def test_benchmarks_unset_the_core_type() -> None:
    """The benchmarks' package unsets it: it is imported first, and does not load OpenBLAS."""
    code = """
import os, sys, pipelines.bench
print("OPENBLAS_CORETYPE" in os.environ, pipelines.bench.OPENBLAS_CORETYPE, "numpy" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "OPENBLAS_CORETYPE": "Haswell"},
    )
    assert done.stdout.split() == ["False", "Haswell", "False"], done.stderr
    files = {path.parent for path in (ROOT / "pipelines" / "bench").rglob("*.py")}
    assert all((folder / "__init__.py").exists() for folder in files)


@pytest.mark.slow
def test_susy_million_small(tmp_path: Path) -> None:
    """The benchmark runs as documented: resampled rows, fits through the command line."""
    (tmp_path / "susy").mkdir()
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 18))
    table = np.column_stack([(X[:, 0] * X[:, 1] > 0).astype(float), X])
    np.savetxt(tmp_path / "susy" / "SUSY_1K.csv", table, delimiter=",")
    args = ("--rows", 3000, "--repeat", 1, "--only", "inline, auto", "--out", tmp_path / "out")
    done = script("bench.susy_million", *args, BIGSCREEN_DATA=tmp_path)
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "out" / "susy_million.json").read_text())
    assert record["machine"]["OPENBLAS_CORETYPE"].startswith("unset")
    assert record["machine"]["cores"] >= 1 and "numpy" in record["machine"]["versions"]
    (run,) = record["results"]["inline, auto"]
    assert run["rows"] == 3000 and run["relative_gap"] <= 1e-3 and run["peak"] > 0


@pytest.mark.slow
def test_pairs_takes_as_many_steps_as_libsvm(tmp_path: Path) -> None:
    done = script("zimmert2015.working_sets", "--rows", 600, "--json", tmp_path / "r.json")
    assert done.returncode == 0, done.stderr
    runs = json.loads((tmp_path / "r.json").read_text())["runs"]
    ours, theirs = (
        next(run["steps"] for run in runs if run["selection"] == name and run["offset"] == "true")
        for name in ("second", "LIBSVM")
    )
    assert 0.5 < ours / theirs < 2
    assert all(run["relative_gap"] < 1e-2 for run in runs if run["relative_gap"] is not None)


@pytest.mark.slow
def test_starts_end_at_the_same_optimum(tmp_path: Path) -> None:
    few = ("--rows", 5000, "--repeat", 1, "--out", tmp_path)
    done = script("bench.divide", "--only", "susy", "susy-landmarks", *few)
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "divide.json").read_text())
    exact, landmarks = record["susy"], record["susy-landmarks"]
    assert list(exact) == ["cold", "divide", "2 levels", "optimum"]
    assert list(landmarks) == ["cold", "divide"]
    for fits in (exact, landmarks):
        assert all(fit["relative_gap"] <= 1e-3 for fit in fits.values())
        errors = [fit["error"] for start, fit in fits.items() if start != "optimum"]
        assert max(errors) - min(errors) < 0.02
        for fit in fits.values():
            walls = list(fit["walls"].values())
            assert walls == sorted(walls, reverse=True)  # more workers never take longer
            assert fit["coordinator"] <= walls[-1] and walls[0] == pytest.approx(fit["processor"])
    # No rounds bring rows in: those of the optimum are all there are.
    assert exact["optimum"]["calls"] < exact["cold"]["calls"]
    assert exact["divide"]["stages"]["parts"] > 0 == exact["cold"]["stages"]["parts"]


@pytest.mark.slow
def test_zimmert_on_a_few_rows(tmp_path: Path) -> None:
    if not (ROOT.parent / "shared" / "data" / "mnist").is_dir():
        pytest.skip("the real data sets are not beside this checkout")
    done = script("zimmert2015.screening", "--rows", 300, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    runs = json.loads((tmp_path / "zimmert2015.screening.json").read_text())["table 1"]
    # Whatever a rule has removed, all end at the optimum.
    duals = [run["dual"] for run in runs.values()]
    assert max(duals) - min(duals) < max(run["gap"] for run in runs.values())
    assert runs["safe"]["false_removals"] == 0
