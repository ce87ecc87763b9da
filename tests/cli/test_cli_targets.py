"""Several targets from the command line: ingest, fit, predict, evaluate, and what is refused."""

import csv
import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from cli_world import bigscreen, succeed

from bigscreen import SVR, Dataset, LinearSVR, Model, Nystroem
from bigscreen.model.ledger import BOUND, OUT

NAMES = ["near", "far", "odd"]
HOW = ["--landmarks", "40", "--gamma", ".3", "--C", "3", "--tol", "1e-7"]
FITS = {
    "svr": ["--problem", "svr", *HOW],
    "lad": ["--problem", "lad", *HOW, "--intercept", "true"],
    "quantile": ["--problem", "quantile", "--tau", ".8", "--kernel", "linear", "--tol", "1e-6"],
    "squared-svr": ["--problem", "squared-svr", "--kernel", "linear", "--tol", "1e-7"],
}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A store of three targets, its hold-out and its source, and a store of each target alone."""
    folder = tmp_path_factory.mktemp("targets")
    rng = np.random.default_rng(2)
    X = rng.normal(size=(300, 3)).round(4)
    Y = np.stack([np.sin(X[:, 0]), 9 + X[:, 1] ** 2, X[:, 0] * X[:, 2]], axis=1)
    Y += 0.1 * rng.normal(size=Y.shape)
    table = pd.DataFrame(X, columns=list("pqr")).assign(**dict(zip(NAMES, Y.T, strict=True)))
    table.to_csv(folder / "t.csv", index=False)
    made = SimpleNamespace(folder=folder, csv=folder / "t.csv", store=folder / "s.store", Y=Y)
    how = ["--regression", "--holdout", "60"]
    made.how = how
    shown = succeed("ingest", made.csv, made.store, "--label", ",".join(NAMES), *how)
    assert "target near" in shown and "target odd" in shown
    made.held = folder / "s-holdout.store"
    for name in NAMES:
        others = ",".join({*NAMES} - {name})
        own = ["--label", name, "--drop", others]
        succeed("ingest", made.csv, folder / f"{name}.store", *own, *how)
    made.ids = folder / "ids.txt"
    made.ids.write_text("3\n")
    made.model = folder / "m.bsm"
    made.shown = succeed("fit", made.store, made.model, *FITS["svr"])
    return made


@pytest.mark.parametrize(
    "problem",
    [
        *("svr", "quantile"),
        *(pytest.param(p, marks=pytest.mark.slow) for p in ("lad", "squared-svr")),
    ],
)
def test_each_machine_is_that_of_its_target_alone(world, problem, tmp_path):
    data = Dataset.open(world.held)
    X = data.X(0, data.n_rows)
    succeed("fit", world.store, tmp_path / "m.bsm", *FITS[problem])
    together = Model.load(tmp_path / "m.bsm")
    assert together.target_names == NAMES and together.n_targets == 3
    parts = together.provenance["certificates"]
    assert [part["label"] for part in parts] == NAMES
    for j, name in enumerate(NAMES):
        succeed("fit", world.folder / f"{name}.store", tmp_path / f"{name}.bsm", *FITS[problem])
        own = Model.load(tmp_path / f"{name}.bsm")
        (single,) = own.provenance["certificates"]
        assert single["relative_gap"] <= 1e-6 and parts[j]["relative_gap"] <= 1e-6
        assert parts[j]["primal"] == pytest.approx(single["primal"], rel=2e-6)
        np.testing.assert_allclose(together.coef[j], own.coef[0], atol=2e-2 * abs(own.coef).max())
        wanted = own.scores(X, prepared=True)[:, 0]
        found = together.scores(X, prepared=True)[:, j]
        np.testing.assert_allclose(found, wanted, atol=4e-3 * np.ptp(wanted))
        # What one proves of its rows, the other's score on them does not contradict.
        book, other = together.ledger[j], own.ledger[0]
        sure = np.isin(book.status, (OUT, BOUND)) & np.isin(other.status, (OUT, BOUND))
        np.testing.assert_array_equal(book.numbers(), other.numbers())
        np.testing.assert_array_equal(book.status[sure], other.status[sure])


def test_what_people_see(world):
    assert "3, a machine each" in world.shown and "proved of each target" in world.shown
    assert "r2" in world.shown and "of near" in world.shown  # held out
    out = world.folder / "info.json"
    assert "near, far, odd" in succeed("info", world.model, "--json", out)
    assert json.loads(out.read_text())["target_names"] == NAMES
    succeed("info", world.store, "--json", out)
    known = json.loads(out.read_text())
    assert known["target_names"] == NAMES and len(known["targets"]["each"]) == 3
    assert "near, far, odd: a machine each" in succeed("plan", world.store, *FITS["svr"])
    rows = succeed("rows", world.model, world.folder / "rows.csv")
    assert all(name in rows for name in NAMES)


def refusal(*command):
    """Run a command that is refused; return the sentence that it prints."""
    result = bigscreen(*command)
    assert result.exit_code == 2, result.output
    lines = [line for line in result.stderr.splitlines() if not line.startswith("... ")]
    assert lines[-1].startswith("error: ") and "Traceback" not in result.stderr
    return lines[-1]


def predictions(file):
    with open(file, newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert list(rows[0]) == ["row", *(f"prediction_{name}" for name in NAMES)]
    return np.array([[float(row[f"prediction_{name}"]) for name in NAMES] for row in rows])


def test_predict_and_evaluate_stores_and_raw_files(world, tmp_path):
    succeed("predict", world.model, world.csv, tmp_path / "raw.csv")
    found = predictions(tmp_path / "raw.csv")
    table = pd.read_csv(world.csv)
    np.testing.assert_allclose(found, Model.load(world.model).predict(table), atol=1e-4)
    table[["r", "p", "q"]].to_csv(tmp_path / "x.csv", index=False)
    succeed("predict", world.model, tmp_path / "x.csv", tmp_path / "bare.csv")
    np.testing.assert_array_equal(predictions(tmp_path / "bare.csv"), found)
    error = np.abs(found - world.Y)
    for source in (world.csv, world.held):
        shown = succeed("evaluate", world.model, source, "--json", tmp_path / "e.json")
        parts = json.loads((tmp_path / "e.json").read_text())["targets"]
        assert list(parts) == NAMES and all(name in shown for name in NAMES)
        held = Dataset.open(world.held)
        ids = slice(None) if source == world.csv else held.row_ids(0, 60)
        for j, name in enumerate(NAMES):
            y = world.Y[ids, j]
            assert parts[name]["mae"] == pytest.approx(error[ids, j].mean(), rel=1e-5)
            r2 = 1 - np.square(error[ids, j]).sum() / np.square(y - y.mean()).sum()
            assert parts[name]["r2"] == pytest.approx(r2, rel=1e-5)
    table.drop(columns=["near", "odd"]).to_csv(tmp_path / "far.csv", index=False)
    succeed("evaluate", world.model, tmp_path / "far.csv", "--json", tmp_path / "e.json")
    parts = json.loads((tmp_path / "e.json").read_text())["targets"]
    assert parts["far"]["mae"] == pytest.approx(error[:, 1].mean(), rel=1e-5)
    assert parts["near"] == {"rows": 0, "unlabelled": 300} | dict.fromkeys(
        ("mae", "rmse", "r2", "pinball")
    )
    table.to_csv(tmp_path / "headless.csv", index=False, header=False)
    refused = {
        ("evaluate", world.model, tmp_path / "x.csv"): "has no target",
        ("evaluate", world.model, tmp_path / "headless.csv"): "has no header, and which of its",
        ("evaluate", world.model, world.folder / "near.store"): "has one target and the model",
    }
    for command, said in refused.items():
        assert said in refusal(*command)


def test_targets_in_another_order_are_not_compared(world, tmp_path):
    label = ",".join(reversed(NAMES))
    succeed("ingest", world.csv, tmp_path / "o.store", "--label", label, *world.how)
    said = "has the targets odd, far, near and the model predicts near, far, odd"
    assert said in refusal("evaluate", world.model, tmp_path / "o.store")


def test_python_fits_the_store_alike(world):
    machine = SVR(n_components=40, gamma=0.3, C=3.0, tol=1e-7).fit(world.store)
    assert [part["label"] for part in machine.certificate_] == NAMES
    assert machine.predict(world.held).shape == (60, 3) and machine.model_.target_names == NAMES
    order = np.argsort(Dataset.open(world.held).row_ids(0, 60))
    Y = Dataset.open(world.held).y(0, 60)[order]
    error = np.square(machine.predict(world.held) - Y).sum(0)
    r2 = 1 - error / np.square(Y - Y.mean(0)).sum(0)
    assert machine.score(world.held) == pytest.approx(r2.mean(), rel=1e-6)
    features = Nystroem(gamma=0.3, n_components=30).fit(world.store).transform(world.store)
    assert LinearSVR(C=1.0).fit(features).coef_.shape == (3, 30)


def test_an_interrupted_fit_goes_on(world, tmp_path):
    work = ["--work", tmp_path / "work"]
    succeed("fit", world.store, tmp_path / "a.bsm", *FITS["svr"], *work)
    (tmp_path / "work" / "label-all-of-fit-1-stored" / "done.kept").unlink()
    succeed("fit", world.store, tmp_path / "b.bsm", *FITS["svr"], *work, "--resume")
    first, again = (Model.load(tmp_path / f"{name}.bsm") for name in "ab")
    np.testing.assert_array_equal(first.coef, again.coef)


ONE_AT_A_TIME = "takes at most one; ingest its source again with one of them"
REFUSED = {
    "fit {store} {out}": "c-svc needs labels and these rows have targets",
    "fit {store} {out} --problem svr --exact": "an exact kernel machine has none",
    "fit {store} {out} --problem svr --probability": "leave out --probability, or fit to one",
    "fit {store} {out} --problem svr --metric-learning full": "leave out --metric-learning",
    "fit {store} {out} --problem one-class --nu .1": ONE_AT_A_TIME,
    "plan {store} --problem svr --exact": "an exact kernel machine has none",
    "tune {store} {out}": ONE_AT_A_TIME,
    "path {store} {out} --problem svr": ONE_AT_A_TIME,
    "resample {store} {held}": "have no labels",
    "amend {model} {store} {out} --remove {ids}": "cannot be amended",
    "compress {model} {store} {out}": "has no smaller store",
    "explain {model} {store} --row 3": "the model predicts 3 targets, and one score",
    "export {model} {store} {out} --to onnx": "predicts 3 targets and exports are of one",
    "evaluate {model} {store} --leave-one-out": "of a C-SVC, and the model is of svr",
    "evaluate {model} {store} --threshold f1": "of a classifier",
    "predict {model} {store} {out}.csv --interval .1": "fitted with `--probability`",
    "predict {model} {store} {out}.csv --probability": "are of a classifier",
}


@pytest.mark.parametrize("command", REFUSED)
def test_what_takes_one_target_says_so_before_any_work(world, tmp_path, command):
    names = {"store": world.store, "held": world.held, "model": world.model, "ids": world.ids}
    said = refusal(*command.format(out=tmp_path / "out", **names).split())
    assert REFUSED[command] in said
    assert list(tmp_path.iterdir()) == []


def test_several_labels_are_targets_of_a_regression_alone(world, tmp_path):
    said = refusal("ingest", world.csv, tmp_path / "s.store", "--label", "near,far")
    assert "several are the targets of a regression (--regression)" in said
    succeed(
        *("ingest", world.csv, tmp_path / "s.store", "--regression"),
        *("--label", "near", "--label", "far", "--drop", "odd"),
    )
    assert Dataset.open(tmp_path / "s.store").target_names == ["near", "far"]
