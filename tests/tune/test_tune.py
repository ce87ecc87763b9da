"""The search: its choice, what it drops and why, resuming, and bad input."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.svm import SVC

from bigscreen.data.folds import assign_folds
from bigscreen.data.memory import MemoryDataset
from bigscreen.errors import InputError, TimeOver
from bigscreen.estimators.large_scale import NystroemSVC
from bigscreen.fleet.inline import Inline
from bigscreen.options.train import TrainOptions
from bigscreen.options.tuning import Tuning
from bigscreen.path.folds import Fold
from bigscreen.path.folds_job import FoldsJob
from bigscreen.path.prepare import PATH
from bigscreen.plan.memory import process_bytes
from bigscreen.plan.plan import plan
from bigscreen.train.problems import problems
from bigscreen.tune.options import TuneOptions
from bigscreen.tune.schedule import rungs
from bigscreen.tune.search import tune

GAMMAS, CS = [0.05, 0.5, 5.0], [0.1, 1.0, 10.0]
SIX = np.geomspace(0.01, 10, 6)


def rows(n=240, labels=2, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3)).astype(np.float32)
    number = X[:, 0] ** 2 + X[:, 1] + 0.4 * rng.normal(size=n)
    return X, np.digitize(number, np.quantile(number, np.arange(1, labels) / labels))


def splits(X, y, folds=3, seed=0):
    fold = assign_folds(y, np.ones(len(y)), folds, seed, list(range(int(y.max()) + 1)))
    return [(np.flatnonzero(fold != f), np.flatnonzero(fold == f)) for f in range(folds)]


def searched(X, y, elimination="none", landmarks=None, threads=1, report=None, **own):
    fit = {"kernel": "rbf", "intercept": "true", "exact": landmarks is None, "tol": 1e-6}
    of_search = {name: own.pop(name) for name in ("gammas", "values", "folds") if name in own}
    grid = {"gammas": GAMMAS, "values": CS, "folds": 3, **of_search}
    options = TuneOptions(
        TrainOptions(**{**fit, **own}), landmarks=landmarks, elimination=elimination, **grid
    )
    labels = list(range(int(np.max(y)) + 1))
    with Inline(threads) as fleet:
        return tune(MemoryDataset(X, y, labels), options, fleet, report)


def by_grid(record):
    return {(p["gamma"], p["C"]): p for p in record["candidates"]}


def test_it_chooses_what_a_grid_search_does():
    X, y = rows()
    parts = splits(X, y)
    peer = GridSearchCV(SVC(tol=1e-8), {"gamma": GAMMAS, "C": CS}, cv=parts).fit(X, y)
    model = searched(X, y, "none", folds=parts)
    record = model.provenance["search"]
    assert record["best"]["score"] == pytest.approx(peer.best_score_, abs=1e-12)
    found = by_grid(record)
    for params, mean in zip(
        peer.cv_results_["params"], peer.cv_results_["mean_test_score"], strict=True
    ):
        own = found[params["gamma"], params["C"]]
        assert own["mean"] == pytest.approx(mean, abs=1e-12) and own["dropped"] is None
    proof = model.provenance["certificates"][0]
    assert proof["relative_gap"] <= 1e-6 and proof["rows"] == len(y)
    assert model.provenance["parameters"]["gamma"] == record["best"]["gamma"]


def test_the_last_model_is_that_of_a_fit_with_these_parameters():
    X, y = rows()
    model = searched(X, y, landmarks=[10, 40], intercept="penalized", seed=3)
    best = model.provenance["search"]["best"]
    same = NystroemSVC(
        n_components=best["landmarks"], gamma=best["gamma"], C=best["C"], tol=1e-6,
        random_state=3, n_jobs=1,
    ).fit(X, y)  # fmt: skip
    assert np.array_equal(model.coef, same.coef_)
    # scores are those of the machines with these landmarks, fitted to the folds
    parts = splits(X, y, seed=3)
    other = searched(X, y, landmarks=[10, 40], intercept="penalized", seed=3, folds=parts)
    means = [[p["mean"] for p in m.provenance["search"]["candidates"]] for m in (model, other)]
    assert means[0] == means[1]


@pytest.mark.slow
def test_halving_keeps_good_candidates_and_says_what_it_dropped():
    X, y = rows(4000)
    gammas, values = np.geomspace(0.01, 10, 6), np.geomspace(0.01, 10, 6)
    how = {"landmarks": [30], "gammas": gammas, "values": values, "intercept": "penalized"}
    half = searched(X, y, "halving", tol=1e-3, **how).provenance["search"]
    full = searched(X, y, "none", tol=1e-3, **how).provenance["search"]
    stages = half["stages"]
    assert [s["candidates"] for s in stages[:3]] == [36, 12, 4]
    assert [s["dropped"] for s in stages[:3]] == [24, 8, 0]
    assert stages[0]["rows"] < stages[1]["rows"] < stages[2]["rows"] == 4000
    # then the best one's neighbours, until none is better
    assert all(s["rows"] == 4000 and s["dropped"] == 0 for s in stages[3:])
    found, place = by_grid(half), [gammas.tolist().index(half["best"]["gamma"])]
    place.append(values.tolist().index(half["best"]["C"]))
    for step in ((-1, 0), (1, 0), (0, -1), (0, 1)):
        a, b = place[0] + step[0], place[1] + step[1]
        if 0 <= a < 6 and 0 <= b < 6:
            beside = found[gammas[a], values[b]]
            assert beside["rows"] == 4000 and beside["dropped"] is None
            assert beside["mean"] <= half["best"]["score"]
    dropped = [p for p in half["candidates"] if p["dropped"] == "halving"]
    again = sum(s["candidates"] for s in stages[3:])
    assert 32 - again <= len(dropped) <= 32
    best = full["best"]["score"]
    spread = max(p["std"] for p in full["candidates"] if p["mean"] == best) / np.sqrt(3)
    assert half["best"]["score"] >= best - max(spread, 0.005)
    # what reached all rows was solved as closely as without elimination
    point = by_grid(half)[half["best"]["gamma"], half["best"]["C"]]
    assert point["gap"] <= 1e-3 and point["rows"] == 4000


def test_an_exact_search_without_room_for_the_matrix_comes_to_the_same(tmp_path):
    X, y = rows(300)
    how = {"gammas": [0.5], "tol": 1e-5, "values": [0.1, 1.0, 10.0]}
    whole = searched(X, y, **how)
    room = 4 * 300**2  # of one float32 matrix; a stage copies its rows
    how["memory"] = process_bytes(2, False) + 300 * PATH.row_bytes + room
    columns = searched(X, y, threads=2, **how)
    gaps = [[p["gap"] for p in m.provenance["search"]["candidates"]] for m in (whole, columns)]
    assert gaps[0] != gaps[1]  # solved by another stage
    assert columns.provenance["search"]["best"] == whole.provenance["search"]["best"]
    pairs = zip(*(by_grid(m.provenance["search"]).values() for m in (whole, columns)), strict=True)
    for one, other in pairs:
        assert one["gap"] <= 1e-5 and other["gap"] <= 1e-5
        assert one["mean"] == pytest.approx(other["mean"], abs=0.01)
    # A resumed search does not solve finished folds again, and comes to the same result.
    stop = iter(range(2))

    def stopped(event):
        if event["event"] == "part" and next(stop, None) is None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        searched(X, y, threads=2, report=stopped, work=tmp_path, **how)
    again = searched(X, y, threads=2, work=tmp_path, resume=True, **how)
    assert np.array_equal(again.coef, columns.coef)
    records = [m.provenance["search"]["candidates"] for m in (columns, again)]
    assert records[0] == records[1]


def test_where_float32_entries_are_too_rough_a_search_takes_others():
    X, y = rows(200)
    how = {"gammas": [0.5, 1.0], "values": [1.0, 1e5], "tol": 1e-3}
    one, two = (searched(X, y, "none", threads=k, **how) for k in (1, 2))
    found, fine = by_grid(one.provenance["search"]), searched(X, y, **{**how, "tol": 1e-6})
    assert by_grid(two.provenance["search"]) == found
    for key, point in by_grid(fine.provenance["search"]).items():
        assert found[key]["gap"] <= 1e-3
        assert found[key]["mean"] == pytest.approx(point["mean"], abs=0.02)


def small_room(rows, bytes_left):
    """Allow a search of ``rows`` rows by one thread just this much memory for features."""
    return {"memory": process_bytes(1, False) + rows * PATH.row_bytes + bytes_left}


@pytest.mark.slow
def test_features_that_do_not_fit_in_memory(tmp_path):
    X, y = rows(1500)
    how = {"landmarks": [20], "intercept": "penalized", "tol": 1e-5, "values": [0.1, 1.0]}
    how["gammas"] = [0.5, 1.0]
    held = searched(X, y, "none", **how).provenance["search"]
    how |= small_room(1500, 1500 * 4 * 20 - 1)
    model = searched(X, y, "none", work=tmp_path, **how)
    record = model.provenance["search"]
    assert not list(tmp_path.glob("features*"))
    for key, point in by_grid(record).items():
        assert point["gap"] <= 1e-5
        assert point["mean"] == pytest.approx(by_grid(held)[key]["mean"], abs=0.01)
    assert record["best"]["score"] == pytest.approx(held["best"]["score"], abs=0.01)
    stop = iter(range(3))

    def stopped(event):
        if event["event"] == "part" and next(stop, None) is None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        searched(X, y, "none", report=stopped, work=tmp_path, **how)
    (tmp_path / "features").mkdir()  # as a process that was killed leaves it
    again = searched(X, y, "none", work=tmp_path, resume=True, **how)
    assert np.array_equal(again.coef, model.coef)
    assert again.provenance["search"]["candidates"] == record["candidates"]


def test_several_labels_of_features_that_do_not_fit():
    X, y = rows(1500, 3)
    how = {"landmarks": [20], "intercept": "true", "tol": 1e-3, "values": [1.0], "gammas": [0.5]}
    held = searched(X, y, "none", **how).provenance["search"]["best"]
    room = small_room(1500, 1500 * 4 * 20 - 1)
    found = searched(X, y, "none", **how, **room).provenance["search"]["best"]
    assert found["score"] == pytest.approx(held["score"], abs=0.01)
    # parts of the rows fit: halving has as many of them as that
    y[y == 2] = 1
    room = small_room(1500, 450 * 4 * 20)
    how |= {"gammas": SIX, "values": [0.1, 1.0], "intercept": "penalized"}
    stages = searched(X, y, "halving", **how, **room).provenance["search"]["stages"]
    assert 400 <= stages[0]["rows"] <= 451 and stages[1]["rows"] == 1500


def test_features_on_disk_are_judged_row_by_row(tmp_path):
    X, y = rows(3000)
    data = MemoryDataset(X, y, [0, 1], shard_rows=1024, chunk_rows=1024)
    options = TrainOptions(
        gamma=0.5, landmarks=50, C=1.0, work=tmp_path / "f", tuning=Tuning(features="stored")
    )
    weights = [np.where(np.arange(3000) % 3 == f, 0.0, 1.0) for f in range(2)]
    folds = [Fold(own, np.flatnonzero(own == 0)) for own in weights]
    on_disk = replace(plan(data, options), features_in_memory=False, resident=0.0)
    given = on_disk, folds, problems(data, options), [1.0]
    with Inline(1) as fleet, FoldsJob(data, options, fleet, *given) as job:
        job.run()
        scores, stored = job.scores("accuracy"), job.design.data
    # Features are stored in smaller chunks than the rows.
    assert not job.is_late and stored.path is not None and stored.n_chunks > data.n_chunks
    for own_scores, fold in zip(scores, folds, strict=True):
        kept = np.flatnonzero(fold.weights)
        own = NystroemSVC(n_components=50, gamma=0.5).fit(X[kept], y[kept])
        right = np.mean(own.predict(X[fold.held]) == y[fold.held])
        assert own_scores[0] == pytest.approx(right, abs=0.02)


def test_what_does_not_fit_is_said():
    X, y = rows(1500)
    how = {"landmarks": [20], "intercept": "penalized", **small_room(1500, 1000)}
    with pytest.raises(InputError, match="features of 400 rows take"):
        searched(X, y, "halving", **how)


def test_rungs_are_nested_and_have_every_label():
    y = np.zeros(5000, int)
    y[:12] = 1
    folds = [Fold(np.where(held, 0.0, 1.0), np.flatnonzero(held))
             for held in (np.arange(5000) % 3 == f for f in range(3))]  # fmt: skip
    plan = rungs(100, 3, y, np.ones(5000), folds, 0)
    assert [r.candidates for r in plan] == [100, 34, 12] and plan[-1].rows is None
    assert len(plan[0].rows) >= 400 and set(plan[0].rows) < set(plan[1].rows)
    for fold in folds:
        assert np.sum(y[plan[0].rows][fold.weights[plan[0].rows] > 0]) >= 5
        there = np.isin(fold.held, plan[0].rows)
        assert np.sum(y[fold.held[there]]) == min(5, np.sum(y[fold.held]))


def test_a_split_that_holds_out_few_rows_is_judged_by_all_of_them():
    y = np.arange(5000) % 2
    held = np.arange(100)
    fold = Fold(np.where(np.isin(np.arange(5000), held), 0.0, 1.0), held)
    plan = rungs(100, 3, y, np.ones(5000), [fold], 0)
    assert np.isin(held, plan[0].rows).all() and len(plan[0].rows) < 800


def test_any_number_of_threads_and_sparse_rows_give_the_same():
    X, y = rows(1500)
    how = {"landmarks": [20], "intercept": "penalized", "tol": 1e-3, "values": SIX}
    one = searched(X, y, "halving", **how)
    two = searched(X, y, "halving", threads=2, **how)
    assert np.array_equal(one.coef, two.coef)
    assert one.provenance["search"]["candidates"] == two.provenance["search"]["candidates"]
    thin = searched(sparse.csr_array(X), y, "halving", **how)
    pairs = zip(*(m.provenance["search"]["candidates"] for m in (one, thin)), strict=True)
    assert all(abs(a["mean"] - b["mean"]) < 0.01 for a, b in pairs)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_time_that_runs_out_leaves_the_best_so_far():
    X, y = rows(300)
    with pytest.raises(TimeOver, match="before any candidate"):
        searched(X, y, landmarks=[20], intercept="penalized", time_budget=1e-6)
    events = []

    def slow(event):
        if event["event"] == "part" and event["done"] == 3:
            events.append(event)
            time.sleep(3.0)  # longer than all the time there is

    # Memory for one gamma at a time: the first is judged before the second begins.
    room = small_room(len(y), 3 * (4 * len(y) * 20 + 24 * 20**2))
    record = searched(
        X, y, landmarks=[20], intercept="penalized", time_budget=2.5, report=slow,
        gammas=np.geomspace(0.01, 100, 60), values=[1.0], **room,
    ).provenance["search"]  # fmt: skip
    assert events and record["late"]
    assert 0 < sum("mean" in p for p in record["candidates"]) < 60


def test_time_that_runs_out_before_a_candidate_is_judged_keeps_what_is_done(tmp_path, monkeypatch):
    X, y = rows(200)
    how = {"landmarks": [20], "intercept": "penalized", "work": tmp_path}
    clock = time.monotonic

    def last(event):
        if event["event"] == "part":
            monkeypatch.setattr(time, "monotonic", lambda: clock() + 1e6)

    with pytest.raises(TimeOver, match="^the time budget ended before any .* grid$") as caught:
        searched(X, y, report=last, time_budget=1e5, **how)
    assert isinstance(caught.value, ValueError)
    monkeypatch.undo()
    kept = {file: file.stat().st_mtime_ns for file in tmp_path.glob("rung-*/*.kept")}
    again = searched(X, y, resume=True, **how)
    assert kept and all(file.stat().st_mtime_ns == at for file, at in kept.items())
    whole = searched(X, y, **{**how, "work": None})
    assert np.array_equal(again.coef, whole.coef)


@pytest.mark.parametrize(("elimination", "stop_at"), [("halving", 13), ("none", 7)])
def test_a_search_goes_on_where_it_was_stopped(tmp_path, elimination, stop_at):
    X, y = rows(1500 if elimination == "halving" else 200)
    how = {"landmarks": [20], "intercept": "penalized", "tol": 1e-3, "values": SIX}
    whole = searched(X, y, elimination, **how)
    whole_record = whole.provenance["search"]

    class Stop(Exception):
        pass

    parts = 0

    def stop(event):
        nonlocal parts
        parts += event["event"] == "part"
        if parts == stop_at:
            raise Stop

    with pytest.raises(Stop):
        searched(X, y, elimination, report=stop, work=tmp_path, **how)
    kept = len(list(tmp_path.glob("rung-*/*.kept")))
    assert kept >= stop_at
    stamps = {p: p.stat().st_mtime_ns for p in tmp_path.glob("rung-*/*.kept")}
    again = searched(X, y, elimination, work=tmp_path, resume=True, **how)
    assert all(p.stat().st_mtime_ns == t for p, t in stamps.items())
    assert np.array_equal(whole.coef, again.coef)
    assert whole_record["candidates"] == again.provenance["search"]["candidates"]
    with pytest.raises(InputError, match="another search"):
        searched(X, y, elimination, work=tmp_path, resume=True, **{**how, "seed": 1})


def test_scores_of_folds_are_scikit_learns_for_nu():
    from sklearn.svm import NuSVC

    X, y = rows(150)
    parts = splits(X, y)
    options = TuneOptions(
        TrainOptions(problem="nu-svc", intercept="true", exact=True, tol=1e-8),
        [0.1, 1.0], [0.3, 0.5], None, parts, "none",
    )  # fmt: skip
    with Inline(1) as fleet:
        record = tune(MemoryDataset(X, y, [0, 1]), options, fleet).provenance["search"]
    for point in record["candidates"]:
        peer = cross_val_score(
            NuSVC(nu=point["nu"], gamma=point["gamma"], tol=1e-8), X, y, cv=parts
        )
        assert point["scores"] == pytest.approx(peer.tolist(), abs=1e-12)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"gammas": [1.0, 1.0]}, "comes twice"),
        ({"gammas": [0.0, 1.0]}, "values of gamma must lie"),
        ({"gammas": [-1.0]}, "value 1 is -1"),
        ({"gammas": []}, "one number or more"),
        ({"values": [2.0, 1.0]}, "comes after"),
        ({"values": ["many"]}, "must be numbers"),
        ({"landmarks": [5, 5]}, "5 comes twice"),
        ({"landmarks": [0]}, "at least 1"),
        ({"landmarks": [2.5]}, "whole numbers"),
        ({"landmarks": []}, "one number or more"),
        ({"landmarks": [241]}, "has 240 rows"),
        ({"folds": 1}, "at least 2"),
        ({"folds": 200}, "ask for at most"),
        ({"folds": None}, "needs folds"),
        ({"kernel": "linear", "landmarks": [5]}, "over gamma"),
        ({"problem": "lad", "landmarks": [5]}, "c-svc, nu-svc, svr, not for lad"),
        ({"elimination": "lucky"}, "halving, none"),
        ({"memory": 500 * 2**20, "landmarks": [240]}, "left for them"),
    ],
)
def test_mistakes_are_said_before_any_work(how, words):
    X, y = rows()
    how = {"elimination": "halving", **how}
    if "memory" in how:
        how["memory"] = 400 * 2**20 + 240 * 400 + 1000
    with pytest.raises(InputError, match=words):
        searched(X, y, **how)


def test_one_class_only_is_refused():
    X, _ = rows()
    with pytest.raises(InputError, match="label"):
        searched(X, np.zeros(len(X), int), landmarks=[5])
