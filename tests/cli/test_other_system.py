"""The package on a system without Linux's own calls or byte products: `other_system`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from cli_world import write_csv
from places import ROOT, SUPPORT

PROGRAM = """
import json, os, platform, sys
from pathlib import Path

import numpy as np

import bigscreen
from bigscreen.fleet.inline import Inline
from bigscreen.kernels import vnni
from bigscreen.cli.commands import group

assert sys.platform == "darwin" and platform.machine() == "arm64"
assert not hasattr(os, "posix_fallocate") and not vnni.is_available()
assert Inline().workers == os.cpu_count()
rng = np.random.default_rng(0)
X = rng.normal(size=(300, 40))
y = (X[:, :2] ** 2).sum(axis=1) > 1.5
found = {}
for machine in (
    bigscreen.SVC(gamma=.1), bigscreen.NystroemSVC(n_components=40), bigscreen.LinearSVC(),
    bigscreen.NuSVC(nu=.2), bigscreen.OneClassSVM(nu=.1),
):
    machine.fit(X, *([] if isinstance(machine, bigscreen.OneClassSVM) else [y]))
    assert machine.relative_gap_ <= machine.tol
    found[type(machine).__name__] = machine.decision_function(X[:50]).tolist()
path = bigscreen.svm_path(X, y, np.logspace(-1, 0, 4), kernel="linear", folds=2)
assert len(path.points) == 4


def run(*words):
    try:
        group([str(word) for word in words], standalone_mode=False)
    except SystemExit as end:
        assert not end.code, words


run("ingest", sys.argv[1], "a.store", "--holdout", ".2", "--json", "ingest.json")
for name, how in (("here", ["--threads", "1"]), ("workers", ["--workers", "1"])):
    run("fit", "a.store", f"{name}.bsm", "--landmarks", "30", "--gamma", "1", *how)
run("fit", "a.store", "exact.bsm", "--exact", "--gamma", "1", "--threads", "1")
for out in ("p.csv", "p.npy"):
    run("predict", "here.bsm", "a-holdout.store", out)
run("evaluate", "here.bsm", "a-holdout.store", "--json", "error.json")
for name in ("here", "workers", "exact"):
    run("info", f"{name}.bsm", "--json", f"{name}.json")
run("path", "a.store", "all.bsp", "--kernel", "linear", "--C", ".1:1:3", "--threads", "1")
run("info", "all.bsp", "--json", "all.json")
Path("found.json").write_text(json.dumps(found))
"""


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Run the program in a folder behind a link, as on macOS; return the folder and output."""
    real = tmp_path_factory.mktemp("elsewhere")
    (real / "site").mkdir()
    # Worker processes pretend, too.
    (real / "site" / "sitecustomize.py").write_text(
        "import os, pathlib, other_system\n"
        "other_system.pretend()\n"
        "pathlib.Path(__file__).with_name(f'{os.getpid()}.pid').touch()\n"
    )
    link = real.parent / f"{real.name}-link"
    link.symlink_to(real)
    write_csv(real / "rows.csv")
    searched = os.pathsep.join(map(str, (real / "site", SUPPORT, ROOT)))
    done = subprocess.run(
        [sys.executable, "-c", f"if __name__ == '__main__':\n exec({PROGRAM!r})", "rows.csv"],
        cwd=link,
        env={**os.environ, "PYTHONPATH": searched, "TMPDIR": str(link), "PWD": str(link)},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return real, done.stdout


@pytest.mark.slow
def test_machines_decide_as_they_do_here(elsewhere: tuple[Path, str]) -> None:
    import bigscreen

    found = json.loads((elsewhere[0] / "found.json").read_text())
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 40))
    y = (X[:, :2] ** 2).sum(axis=1) > 1.5
    assert list(found) == ["SVC", "NystroemSVC", "LinearSVC", "NuSVC", "OneClassSVM"]
    here = bigscreen.SVC(gamma=0.1).fit(X, y).decision_function(X[:50])
    # Both are within the gap of one optimum.
    np.testing.assert_allclose(found["SVC"], here, atol=0.05)


def test_predictions_have_their_place_on_the_disk(elsewhere: tuple[Path, str]) -> None:
    table = np.load(elsewhere[0] / "p.npy")
    lines = (elsewhere[0] / "p.csv").read_text().splitlines()
    assert len(table) == len(lines) - 1 == 120
    assert [int(line.split(",")[0]) for line in lines[1:]] == table["row"].tolist()
    assert json.loads((elsewhere[0] / "error.json").read_text())["error"] < 0.3


def test_workers_were_elsewhere_too(elsewhere: tuple[Path, str]) -> None:
    assert len(list((elsewhere[0] / "site").glob("*.pid"))) >= 2


def test_info_says_what_computes(elsewhere: tuple[Path, str]) -> None:
    folder, shown = elsewhere
    for name in ("here", "workers", "exact"):
        assert json.loads((folder / f"{name}.json").read_text())["products"] == "BLAS"
    path = json.loads((folder / "all.json").read_text())
    assert path["provenance"]["versions"]["products"] == "compiled loops"
    assert shown.count("products of rows by") >= 4
