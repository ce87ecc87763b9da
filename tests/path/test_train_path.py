"""Paths of arrays and data sets from start to end: models, folds, files, interruptions, errors."""

from __future__ import annotations

import json
import zipfile

import numpy as np
import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn_checks import EXPECTED_FAILURES

from bigscreen.data.memory import MemoryDataset
from bigscreen.errors import InputError
from bigscreen.estimators.path import SVCPathCV, nu_path, svm_path
from bigscreen.files.sealed import CRC_BYTES, unpack_arrays, write_sealed
from bigscreen.fleet.inline import Inline
from bigscreen.model.model import Model
from bigscreen.model.solved_path import SolvedPath
from bigscreen.options.train import TrainOptions
from bigscreen.path.options import PathOptions
from bigscreen.path.prepare import PATH, PathTuning
from bigscreen.path.run import train_path
from bigscreen.problems.point import ROUNDING_FIELDS
from bigscreen.report.path import totals

# A gap that is missed shows a fault, here as in the folds.
pytestmark = pytest.mark.filterwarnings("error::sklearn.exceptions.ConvergenceWarning")

GRID = np.geomspace(0.02, 5.0, 6)
NUS = np.linspace(0.3, 0.7, 5)


def rows(n=300, labels=2, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4)).astype(np.float32)
    angle = X[:, 0] + 0.5 * X[:, 1] ** 2 + 0.3 * rng.normal(size=n)
    return X, np.digitize(angle, np.quantile(angle, np.arange(1, labels) / labels))


def number(X, seed=0):
    return X[:, 0] - X[:, 1] + 0.3 * np.random.default_rng(seed).standard_t(2, size=len(X))


KINDS = {
    "linear": {},
    "rbf": {"kernel": "rbf", "gamma": 0.5},
    "nystrom": {"kernel": "rbf", "gamma": 0.5, "n_components": 40},
}


@pytest.mark.parametrize("intercept", [False, "penalized", True])
@pytest.mark.parametrize("kind", KINDS)
def test_every_model_is_the_one_that_was_proved(kind, intercept):
    X, y = rows()
    path = svm_path(X, y, GRID, fit_intercept=intercept, tol=1e-4, **KINDS[kind])
    plain = svm_path(X, y, GRID, fit_intercept=intercept, tol=1e-4, rules=(), dynamic=False,
                     warm=False, **KINDS[kind])  # fmt: skip
    for k, C in enumerate(GRID):
        part, other = path.points[k], plain.points[k]
        assert part["relative_gap"] <= 1e-4
        room = 1e-12 * part["primal"]
        assert part["dual"] <= other["primal"] + room and other["dual"] <= part["primal"] + room
        scores = path.model(k).scores(X)[:, 0]
        sign = np.where(y == 1, 1.0, -1.0)
        loss = C * np.maximum(0, 1 - sign * scores).sum()
        # P is half of ||w||^2 more than the loss.
        assert part["primal"] >= loss * (1 - 1e-3)
        if kind == "linear":
            model = path.model(k)
            w_sq = (
                float((model.coef**2).sum()) + (intercept == "penalized") * model.intercept[0] ** 2
            )
            assert part["primal"] == pytest.approx(loss + 0.5 * w_sq, rel=1e-5)
    assert path.best is None and path.scores is None


@pytest.mark.parametrize("problem", ["lad", "svr", "quantile"])
@pytest.mark.parametrize("intercept", ["penalized", True])
def test_regressions_are_proved_and_scored(problem, intercept):
    X, _ = rows()
    y = number(X)
    path = svm_path(X, y, GRID, problem=problem, fit_intercept=intercept, folds=3, tau=0.7)
    assert max(part["relative_gap"] for part in path.points) <= 1e-3
    model = path.model()
    assert model.kind == "regressor"
    if problem == "quantile":
        assert abs(np.mean(y < model.predict(X)) - 0.7) < 0.05
    else:
        assert path.scores.mean(axis=0).max() > 0.7


@pytest.mark.parametrize("intercept", [False, True])
def test_nu_paths_are_proved_and_scored(intercept):
    X, y = rows()
    path = nu_path(X, y, NUS, fit_intercept=intercept, kernel="rbf", gamma=0.5, folds=3)
    for part, nu in zip(path.points, NUS, strict=True):
        assert part["relative_gap"] <= 1e-3 and part["support"] >= nu * len(y) * (1 - 1e-9)
    assert path.parameter == "nu" and np.mean(path.model().predict(X) == y) > 0.8


def test_one_class_is_judged_by_rows_that_it_is_not_fitted_to():
    X, y = rows()
    X = X + np.where(y == 1, 2.0, 0.0)[:, None].astype(np.float32)
    path = nu_path(
        X, y, NUS, problem="one-class", kernel="rbf", gamma=0.5, folds=3,
        sample_weight=(y == 1).astype(float),
    )  # fmt: skip
    assert all(part["rows"] == np.sum(y == 1) for part in path.points)
    assert path.record["scoring"] == "AUC" and path.scores.min() > 0.9
    assert path.model().labels == [-1, 1]
    with pytest.raises(InputError, match="judged by two labels"):
        nu_path(X, None, NUS, problem="one-class", folds=3)


@pytest.mark.parametrize("kind", KINDS)
def test_three_labels_have_three_machines_a_point(kind):
    X, y = rows(labels=3)
    path = svm_path(X, y, GRID, folds=3, **KINDS[kind])
    model = path.model()
    assert model.coef.shape[0] == 3 and len(path.points) == 3 * len(GRID)
    assert np.mean(model.predict(X) == y) > 0.5
    assert path.best == int(np.argmax(path.scores.mean(axis=0)))


def test_folds_are_judged_on_rows_held_out():
    X, y = rows()
    noise = np.random.default_rng(5).integers(0, 2, len(y))
    path = svm_path(X, noise, GRID, kernel="rbf", gamma=20.0, folds=4)
    # Labels at random: what was fitted would be right, what was held out cannot be.
    assert np.mean(path.model(len(GRID) - 1).predict(X) == noise) > 0.95
    assert path.scores.mean() < 0.65


@pytest.mark.parametrize("kind", KINDS)
def test_a_path_comes_back_from_its_file(kind, tmp_path):
    X, y = rows()
    path = svm_path(X, y, GRID, folds=3, **KINDS[kind])
    path.save(tmp_path / "all.bsp")
    again = SolvedPath.load(tmp_path / "all.bsp")
    assert again.record == json.loads(json.dumps({**again.record}))
    assert again.best == path.best and np.array_equal(again.values, path.values)
    for k in (0, -1, path.best):
        assert np.array_equal(again.model(k).scores(X), path.model(k).scores(X))
    again.model().save(tmp_path / "one.bsm")
    assert np.array_equal(Model.load(tmp_path / "one.bsm").scores(X), path.model().scores(X))
    again.save(tmp_path / "twice.bsp")
    assert (tmp_path / "twice.bsp").read_bytes() == (tmp_path / "all.bsp").read_bytes()


def test_rows_that_support_many_points_are_stored_once(tmp_path):
    X, y = rows()
    path = svm_path(X, y, GRID, kernel="rbf", gamma=0.5)
    supports = [set(path.model(k).support.tolist()) for k in range(len(GRID))]
    assert len(path.array("landmarks")) == len(set.union(*supports)) < sum(map(len, supports))


def test_files_that_are_no_path_are_refused(tmp_path):
    X, y = rows()
    path = svm_path(X, y, GRID, folds=2)
    file, model = tmp_path / "all.bsp", tmp_path / "one.bsm"
    path.save(file)
    path.model().save(model)
    with pytest.raises(InputError, match="not a bigscreen path"):
        SolvedPath.load(model)
    with pytest.raises(InputError, match="bigscreen pick"):
        Model.load(file)
    with pytest.raises(InputError, match="there is no path file"):
        SolvedPath.load(tmp_path / "none.bsp")
    file.write_bytes(file.read_bytes()[:-200])
    with pytest.raises(InputError, match="damaged"):
        SolvedPath.load(file)
    with pytest.raises(InputError, match="no point C = 3; the nearest is"):
        path.nearest(3.0)
    with pytest.raises(InputError, match="without folds"):
        svm_path(X, y, GRID).model()


def test_arrays_are_read_only_when_they_are_wanted(tmp_path):
    X, y = rows()
    svm_path(X, y, GRID, folds=2).save(tmp_path / "all.bsp")
    with zipfile.ZipFile(tmp_path / "all.bsp") as bundle:
        spoiled = {n: bundle.read(n) for n in bundle.namelist() if "coef-3" not in n}
    with zipfile.ZipFile(tmp_path / "all.bsp", "w") as bundle:
        for name, data in spoiled.items():
            bundle.writestr(name, data)
    path = SolvedPath.load(tmp_path / "all.bsp")
    path.model(2)
    with pytest.raises(InputError, match="damaged"):
        path.model(3)


SIDE_BY_SIDE = PathTuning(side_by_side=1)

SCANT = 2**20 * 400 + 300 * 400 + 500_000
"""Memory too small for the kernel matrix of 300 rows, so that columns are cached."""


@pytest.mark.parametrize("name", ["c-svc", "nu-svc", "one-class", "svr"])
def test_a_matrix_that_does_not_fit_gives_the_same_path(name):
    X, y = rows()
    how = {"problem": name, "kernel": "rbf", "gamma": 0.5, "tol": 1e-4, "fit_intercept": True}
    grids = {"c-svc": GRID, "svr": GRID}
    solve = svm_path if name in grids else nu_path
    target = number(X) if name == "svr" else y
    one, other = (
        solve(X, target, grids.get(name, NUS), memory=memory, **how) for memory in (None, SCANT)
    )
    assert one.record["provenance"]["solver"] == "gram"
    assert other.record["provenance"]["solver"] == "block"
    for k, (a, b) in enumerate(zip(one.points, other.points, strict=True)):
        assert max(a["relative_gap"], b["relative_gap"]) <= 1e-4
        assert abs(a["primal"] - b["primal"]) <= a["gap"] + b["gap"] + 1e-9 * abs(a["primal"])
        scores = [path.model(k).scores(X)[:, 0] for path in (one, other)]
        assert np.max(np.abs(scores[0] - scores[1])) <= 0.1 * np.ptp(scores[0])


# -- interruptions -----------------------------------------------------------------------------
def options(work, resume=False, kind="linear", **own):
    machine = {"kernel": "linear"} if kind == "linear" else {"kernel": "rbf", "gamma": 0.5}
    if kind == "rbf":
        machine["exact"] = True
    if kind == "nystrom":
        machine["landmarks"] = 40
    if kind == "columns":
        machine |= {"exact": True, "memory": SCANT - 300_000}
    own = {"rules": ("dvi", "essnsv", "gap"), "folds": 2, **own}
    return PathOptions(TrainOptions(work=work, resume=resume, **machine), GRID, **own)


def same(one, other):
    """Check that two paths are equal bit for bit, except for times."""

    def timeless(parts):
        # A kernel matrix is computed anew, and counted.
        return [
            [{**part, "seconds": None, "counts": {**part["counts"], "kernel_entries": 0}}
             for part in own] for own in parts
        ]  # fmt: skip

    assert timeless(one.record["points"]) == timeless(other.record["points"])
    assert one.record["scores"] == other.record["scores"]
    for k in range(len(one)):
        assert np.array_equal(one.array(f"coef-{k}"), other.array(f"coef-{k}"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*KINDS, "columns", "side by side"])
@pytest.mark.parametrize("labels", [2, 3])
@pytest.mark.parametrize("after", [1, 8, 12, 15])
def test_an_interrupted_path_goes_on_bit_for_bit(kind, labels, after, tmp_path):
    tuning = PATH
    if kind == "side by side":
        kind, tuning = "nystrom", SIDE_BY_SIDE
    X, y = rows(200, labels)
    data = MemoryDataset(X, y, list(range(labels)))
    seen = []

    def stop(event):
        seen.append(event)
        if event["event"] == "point" and event["done"] == after:
            raise KeyboardInterrupt

    with Inline(1) as fleet:
        whole = train_path(data, options(None, kind=kind), fleet, tuning=tuning)
        with pytest.raises(KeyboardInterrupt):
            train_path(data, options(tmp_path, kind=kind), fleet, stop, tuning=tuning)
        done = len(list(tmp_path.glob("walk-*/point-*.kept")))
        assert done == after
        # A death in the middle of writing leaves such a file.
        (tmp_path / "walk-fold-0" / "point-99.tmp").write_bytes(b"half")
        again = train_path(data, options(tmp_path, True, kind=kind), fleet, tuning=tuning)
        same(again, whole)


def before(record):
    """Make a point's record as older versions wrote it: with the gap's rounding only."""
    return {name: part for name, part in record.items() if name not in ROUNDING_FIELDS}


def test_a_path_of_before_states_no_rounding_of_p_and_d(tmp_path):
    X, y = rows(100)
    path = svm_path(X, y, GRID, kernel="rbf", folds=2)
    for record in path.walks:
        each = record["primal_rounding"], record["dual_rounding"]
        assert 0 < min(each) and max(each) < 1e-9 * record["primal"]
    assert "D by" in totals(path)["rounding"]
    record = {
        **path.record,
        "points": [[before(one) for one in own] for own in path.record["points"]],
    }
    SolvedPath(record, path.array).save(tmp_path / "old.bsp")
    old = SolvedPath.load(tmp_path / "old.bsp")
    (proof,) = old.model(0).provenance["certificates"]
    assert proof["primal_rounding"] is None and proof["dual_rounding"] is None
    assert proof["rounding_bound"] == path.points[0]["rounding"]
    assert "rounding" not in totals(old) and old.missed is None


@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupted_path_of_before_goes_on(kind, tmp_path):
    """Older versions kept five of the seven numbers of a point."""
    X, y = rows(100)
    data = MemoryDataset(X, y, [0, 1])

    def stop(event):
        if event["event"] == "point" and event["done"] == 3:
            raise KeyboardInterrupt

    with Inline(1) as fleet:
        whole = train_path(data, options(None, kind=kind), fleet)
        with pytest.raises(KeyboardInterrupt):
            train_path(data, options(tmp_path, kind=kind), fleet, stop)
        (file,) = tmp_path.rglob("state-*.kept")
        known, arrays = unpack_arrays(file.read_bytes()[:-CRC_BYTES])
        older = {
            name: array[:5] if name.endswith("numbers") else array for name, array in arrays.items()
        }
        assert sum(array.size for array in older.values()) < sum(a.size for a in arrays.values())
        write_sealed(file, known["of"], known["record"], older)
        same(train_path(data, options(tmp_path, True, kind=kind), fleet), whole)


def test_walks_side_by_side_are_the_same_as_in_one_thread():
    X, y = rows(400, 3)
    data = MemoryDataset(X, y, [0, 1, 2])
    given = options(None, kind="nystrom", folds=4)
    with Inline(1) as fleet:
        after = train_path(data, given, fleet)
        alone = train_path(data, given, fleet, tuning=SIDE_BY_SIDE)
    with Inline(3) as fleet:
        seen = []
        same(train_path(data, given, fleet, seen.append, tuning=SIDE_BY_SIDE), alone)
    assert [e["done"] for e in seen if e["event"] == "point"] == list(range(1, 5 * len(GRID) + 1))
    for one, other in zip(alone.record["points"], after.record["points"], strict=True):
        for part, its in zip(one, other, strict=True):
            assert part["relative_gap"] <= given.fit.tol
            assert part["dual"] <= its["primal"] and its["dual"] <= part["primal"]
    assert np.abs(np.array(alone.record["scores"]) - after.record["scores"]).max() <= 0.02


def test_a_spoiled_state_costs_a_point(tmp_path):
    X, y = rows(200)
    data = MemoryDataset(X, y, [0, 1])

    def stop(event):
        if event["event"] == "point" and event["done"] == 4:
            raise KeyboardInterrupt

    with Inline(1) as fleet:
        with pytest.raises(KeyboardInterrupt):
            train_path(data, options(tmp_path), fleet, stop)
        for file in tmp_path.glob("walk-*/state-*.kept"):
            file.write_bytes(b"")
        path = train_path(data, options(tmp_path, True), fleet)
    assert max(part["relative_gap"] for part in path.points) <= 1e-3


def test_only_the_same_path_is_resumed(tmp_path):
    X, y = rows(200)
    data = MemoryDataset(X, y, [0, 1])
    with Inline(1) as fleet:
        with pytest.raises(InputError, match="nothing to resume"):
            train_path(data, options(tmp_path / "none", True), fleet)
        train_path(data, options(tmp_path), fleet)
        with pytest.raises(InputError, match="folds was 2, now 3"):
            train_path(data, options(tmp_path, True, folds=3), fleet)
        other = MemoryDataset(X + 1, y, [0, 1])
        with pytest.raises(InputError, match="data was"):
            train_path(other, options(tmp_path, True), fleet)


# -- bad input -----------------------------------------------------------------------------------
def test_bad_input_is_one_sentence():
    X, y = rows()
    for call, words in [
        (lambda: svm_path(X, y, [1, 0.1]), "comes after"),
        (lambda: svm_path(X, y, [1, 1]), "comes twice"),
        (lambda: nu_path(X, y, [0.5, 1.5]), "lie in"),
        (lambda: nu_path(X, X[:, 0] > 1.5, [0.1, 0.9], fit_intercept=True), "largest feasible"),
        (lambda: svm_path(X, y, GRID, folds=1), "at least 2"),
        (lambda: svm_path(X, np.arange(300) == 3, GRID, folds=3), "one class only"),
        (lambda: svm_path(X, y, GRID, rules=("srbo",)), "srbo is for grids of nu"),
        (lambda: svm_path(X, y, GRID, rules=("no",)), "must be"),
        (lambda: svm_path(X, y, GRID, problem="nu-svc"), "svm_path solves"),
        (lambda: nu_path(X, y, NUS, problem="lad"), "nu_path solves"),
        (lambda: svm_path(X, np.full(300, np.nan), GRID, problem="lad"), "row 0"),
        (lambda: svm_path(X, y, GRID, kernel=lambda a, b: a @ b.T), "have a name"),
        (lambda: svm_path(X, None, GRID), "needs y"),
    ]:
        with pytest.raises(InputError, match=words) as error:
            call()
        assert "\n" not in str(error.value)


def test_a_fold_that_makes_nu_infeasible_is_found_before_any_work():
    X, _ = rows()
    y = (np.arange(300) < 31).astype(int)
    with pytest.raises(InputError, match="without the rows of fold .*largest feasible nu is 0.2"):
        nu_path(X, y, [0.1, 0.205], fit_intercept=True, folds=2)
    everything = np.arange(300)
    with pytest.raises(InputError, match="fold 2 fits no row of label 1"):
        svm_path(X, y, GRID, folds=[(everything, everything), (everything[31:], everything[:31])])
    with pytest.raises(InputError, match="two lists of row numbers"):
        svm_path(X, y, GRID, folds=[([1, 300], [2])])


# -- the estimator -------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
@parametrize_with_checks(
    [SVCPathCV(3, cv=2), SVCPathCV(3, cv=2, kernel="rbf", n_components=20, fit_intercept=False)],
    expected_failed_checks=lambda estimator: EXPECTED_FAILURES,
)
def test_the_estimator_follows_scikit_learns_rules(estimator, check):
    check(estimator)


def test_the_estimator_publishes_its_choice():
    X, y = rows()
    names = np.array(["no", "yes"])[y]
    machine = SVCPathCV(GRID, cv=3, kernel="rbf", gamma=0.5).fit(X, names)
    results = machine.cv_results_
    best = int(np.argmax(results["mean_test_score"]))
    assert machine.C_ == GRID[best] and results["rank_test_score"][best] == 1
    assert machine.scores_.shape == (3, len(GRID)) and machine.relative_gap_ <= machine.tol
    assert machine.score(X, names) > 0.85 and set(machine.predict(X)) == {"no", "yes"}
    assert np.array_equal(machine.decision_function(X), machine.path_.model(best).scores(X)[:, 0])
