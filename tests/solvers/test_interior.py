"""The interior point solver: every problem's optimum, hard ones too, and what it refuses."""

import warnings
from dataclasses import replace

import contracts
import numpy as np
import pytest
from any_world import INTERCEPTS, KINDS, any_world, is_right
from exact_world import solved
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sklearn.svm import LinearSVC

from bigscreen.data.memory import MemoryDataset
from bigscreen.errors import InputError
from bigscreen.features import nystrom
from bigscreen.features.design import Design
from bigscreen.fit import monitor as fit_monitor
from bigscreen.fit.loop import fit
from bigscreen.fit.monitor import Limits
from bigscreen.fleet.inline import Inline
from bigscreen.options.train import TrainOptions
from bigscreen.options.tuning import Tuning
from bigscreen.plan.plan import plan
from bigscreen.problems.recipes import CSvc, SquaredSvc
from bigscreen.solvers.interior import INTERIOR, InteriorPoint, InteriorTuning
from bigscreen.solvers.protocol import Run
from bigscreen.train.run import train

SOLVED = tuple(kind for kind in KINDS if kind != "bounded nu")


@settings(deadline=None, max_examples=100)
@example(
    seed=445, n=5, d=60, kind="nu-svc", intercept="none", size=0.1
)  # full steps, mended, went in circles
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(4, 40),
    d=st.sampled_from([1, 3, 10, 60]),
    kind=st.sampled_from(("c-svc", *SOLVED)),
    intercept=st.sampled_from(INTERCEPTS),
    size=st.sampled_from([0.1, 1.0, 100.0]),
)
def test_the_optimum_is_the_oracles(seed, n, d, kind, intercept, size):
    """With more rows than features and with fewer; rows of weight 0 among them."""
    w = any_world(seed, n, kind, intercept, kernel=None, size=size, d=d)
    found = solved(w, InteriorPoint(), None, 1e-6)
    if kind not in ("nu-svc", "one-class") or found.certificate.primal > 1e-9:
        is_right(w, found, 1e-6)


@pytest.mark.parametrize("intercept", INTERCEPTS)
@pytest.mark.parametrize("sparse", [False, True])
def test_rows_off_their_bounds_are_few(intercept, sparse):
    """As few as at an optimum: the last step moves to the nearest face of the box."""
    world = contracts.world(contracts.rows(3, n=120, sparse_rows=sparse), "linear", 10.0, intercept)
    with Inline(1) as fleet:
        found = solved_by(world, fleet)
    alpha, best = found.alpha, world.optimum.alpha
    at_bound = (best < 1e-9 * world.box) | (best > (1 - 1e-9) * world.box)
    assert np.all((alpha[at_bound] == 0) | (alpha[at_bound] == world.box[at_bound]))
    np.testing.assert_allclose(alpha, best, atol=1e-4 * world.box.max())


def solved_by(world, fleet):
    class Until:
        target = 1e-9

        def __call__(self, point, stats, save):
            over = point.relative_gap <= self.target or stats["stalled"]
            return None if over else fit_monitor.Verdict()

    return InteriorPoint().solve(Run(world.design, world.problem, fleet), Until())


def hard(n=300, d=120, seed=0):
    """Rows whose features repeat each other, many of them near the plane."""
    rng = np.random.default_rng(seed)
    base = 3 * rng.normal(size=(n, d // 6))
    X = np.hstack([base, base @ rng.normal(size=(d // 6, d // 2)), rng.normal(size=(n, d // 3))])
    y = (X[:, : d // 6].sum(1) + X[:, -5:].sum(1) > 0) ^ (rng.random(n) < 0.1)
    return MemoryDataset(X.astype(np.float32), y.astype(np.int32), [0, 1])


def curved(n, d):
    """Rows whose classes no plane parts, a tenth of the labels turned round."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d)).astype(np.float32)
    y = (np.sin(2 * X[:, 0]) + X[:, 1] * X[:, -1] > 0) ^ (rng.random(n) < 0.1)
    return X, y.astype(np.int32)


@pytest.mark.parametrize("C", [1.0, 1e3])
@pytest.mark.parametrize("intercept", ["penalized", "true", "none"])
def test_hard_rows_take_few_steps(C, intercept):
    with Inline(1) as fleet:
        options = TrainOptions(kernel="linear", C=C, tol=1e-7, intercept=intercept)
        assert plan(hard(), options).solver == "interior"
        model = train(hard(), options, fleet)
    (proof,) = model.provenance["certificates"]
    assert proof["relative_gap"] <= 1e-7 and len(model.provenance["history"]) <= 60
    assert proof["support"] < 300


@pytest.mark.parametrize("intercept", ["penalized", "true", "none"])
def test_landmarks_of_few_rows_are_solved_to_rounding(intercept):
    """Over float64 features: float32 ones prove 1e-5 here."""
    X, y = curved(150, 8)
    data = MemoryDataset(X, y, [0, 1])
    options = TrainOptions(landmarks=100, gamma=0.5, C=1e3, tol=1e-9, intercept=intercept)
    assert plan(data, options).solver == plan(data, replace(options, tol=1e-3)).solver == "interior"
    with Inline(2) as fleet:
        model = train(data, options, fleet)
    (proof,) = model.provenance["certificates"]
    assert abs(proof["gap"]) + proof["rounding_bound"] <= 1e-9 * proof["primal"]
    assert len(model.provenance["history"]) <= 60


def test_a_start_far_from_any_optimum_is_left():
    """P falls by the thousand while the gap stays as large as P: that is progress, too."""
    X, y = curved(2000, 2)
    X = 30 * np.hstack([X, X**2, X[:, :1] * X])
    with Inline(1) as fleet:
        options = TrainOptions(kernel="linear", C=1e5, solver="interior")
        model = train(MemoryDataset(X, y, [0, 1]), options, fleet)
    assert model.provenance["certificates"][0]["relative_gap"] <= 1e-3


def test_the_optimum_of_liblinear():
    data = hard(200, 60)
    with Inline(1) as fleet:
        options = TrainOptions(kernel="linear", C=0.1, tol=1e-9, intercept="penalized")
        model = train(data, options, fleet)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        far = LinearSVC(loss="hinge", C=0.1, tol=1e-8, max_iter=10**6)
        X, y = data.X(0, 200).astype(np.float64), data.y(0, 200)
        far.fit(X, y)
    w, b = far.coef_[0], far.intercept_[0]
    value = 0.5 * (w @ w + b * b) + 0.1 * np.maximum(0, 1 - (2 * y - 1) * (X @ w + b)).sum()
    (proof,) = model.provenance["certificates"]
    assert proof["dual"] <= value and value == pytest.approx(proof["primal"], rel=1e-5)
    np.testing.assert_allclose(model.coef[0], w, rtol=0, atol=1e-3 * np.abs(w).max())


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(("tol", "patience"), [(1e-7, 15), (1e-15, 2)])
def test_an_interrupted_fit_ends_in_the_same_model(tol, patience, tmp_path, checkpoint_every):
    """Also if rounding ends it, for which steps without progress are counted."""
    checkpoint_every(-1.0)
    solver, data = InteriorPoint(InteriorTuning(patience=patience)), hard()

    def fitted(folder, stop=0, **how):
        def report(event):
            if event.get("pass") == stop:
                raise KeyboardInterrupt

        with Inline(1) as fleet:
            problem = CSvc(1e3, 1, (), "constant")
            run = Run(Design(data), problem, fleet, folder=folder, **how)
            return fit(run, solver, Limits(tol, 100), report=report)

    whole = fitted(tmp_path / "whole")
    count = len(whole.history)
    for stop in (2, count - 2, count - 1):
        with pytest.raises(KeyboardInterrupt):
            fitted(tmp_path / str(stop), stop)
        again = fitted(tmp_path / str(stop), resume=True)
        np.testing.assert_array_equal(again.point.coef, whole.point.coef)
        assert again.certificate == whole.certificate and len(again.history) == count


def test_budgets_end_at_the_best_point_so_far():
    with Inline(1) as fleet, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for budget in ({"max_iter": 3}, {"time_budget": 1e-9}):
            options = TrainOptions(kernel="linear", C=1e3, tol=1e-9, **budget)
            model = train(hard(), options, fleet)
            (proof,) = model.provenance["certificates"]
            assert proof["relative_gap"] > 1e-9 and proof["dual"] <= proof["primal"]
            assert len(model.provenance["history"]) <= 3


def test_a_start_is_moved_inside_its_box():
    w = any_world(5, 40, "c-svc", "true", kernel=None)
    start = np.array(w.optimum.alpha)
    found = solved(w, InteriorPoint(), None, 1e-8, start)
    is_right(w, found, 1e-8)


def test_a_gap_below_rounding_ends_the_fit():
    """A gap that no float64 sum can prove: it stops, and says why."""
    with Inline(1) as fleet, pytest.warns(UserWarning, match="rounding|no more than"):
        model = train(hard(), TrainOptions(kernel="linear", C=1e6, tol=1e-15), fleet)
    assert len(model.provenance["history"]) <= 60 + INTERIOR.patience
    assert model.provenance["certificates"][0]["relative_gap"] < 1e-5


def test_landmarks_are_solved_and_other_designs_refused():
    data = contracts.rows(0, n=120)
    asked = TrainOptions(landmarks=50, gamma=0.2, solver="interior", tol=1e-7)
    with Inline(1) as fleet:
        model = train(data, asked, fleet)
        assert model.provenance["features"] == "stored"
        assert model.provenance["certificates"][0]["relative_gap"] <= 1e-7
        world = contracts.world(data, "rbf")
        with pytest.raises(InputError, match="explicit features"):
            InteriorPoint().solve(Run(world.design, world.problem, fleet), None)
        assert world.design.landmarks is not None and nystrom.FLOAT64_CUTOFF < 1
        raw = contracts.world(data, "linear")
        squared = SquaredSvc(1.0, 1, (1.0, 1.0), "none")
        with pytest.raises(InputError, match="no squared losses"):
            InteriorPoint().solve(Run(raw.design, squared, fleet), None)
    for wrong in (
        {"problem": "squared-svc", "kernel": "linear"},
        {"exact": True},
        {"landmarks": 50, "features": "recomputed"},
    ):
        with pytest.raises(InputError, match="interior"):
            TrainOptions.from_record({"solver": "interior", **wrong})


def test_the_planner_chooses_it_for_few_rows_or_close_gaps():
    def taken(n, d, landmarks=None, **more):
        of = {"kernel": "linear"} if landmarks is None else {"landmarks": landmarks}
        X = np.broadcast_to(np.zeros((1, d), np.float32), (n, d))
        data = MemoryDataset(X, np.arange(n) % 2, [0, 1])
        cluster = more.pop("cluster", False)
        return plan(data, TrainOptions(**of, **more), cluster=cluster).solver

    assert taken(1000, 400) == taken(1000, 400, intercept="true") == "interior"
    assert taken(1000, 400, problem="squared-svc") != "interior"
    assert taken(1000, 400, cluster=True) == "interior"
    assert taken(2000, 400) == "newton" and taken(2000, 400, tol=1e-6) == "interior"
    assert taken(100_000, 3000, intercept="none") == "newton"
    assert taken(4000, 47_000) == "cd"
    # Features are columns, too; who wants them computed again has a Newton.
    assert taken(500, 8, landmarks=200) == taken(2000, 8, landmarks=200, tol=1e-6) == "interior"
    assert taken(2000, 8, landmarks=200) == "newton"
    assert taken(500, 8, landmarks=200, tuning=Tuning(features="recomputed")) == "newton"
