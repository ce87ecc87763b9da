"""Every problem through the main job: options, nu, refusals, models, the record that resumes."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from bigscreen import InputError, MemoryDataset, Model, TrainOptions, Tuning, solve
from bigscreen.fleet.inline import Inline
from bigscreen.kernels.standard import Rbf
from bigscreen.plan.plan import plan
from bigscreen.problems.recipes import CSvc, Lad, NuSvc, OneClass, Quantile, Sublinear, Svr
from bigscreen.report.certificate import fit_record
from bigscreen.train.problems import problems
from bigscreen.train.run import train

ALL = ["c-svc", "nu-svc", "one-class", "lad", "svr", "quantile"]
WEIGHTS = np.random.default_rng(7).integers(1, 4, 200) / 2.0


def rows(problem, n=200, weights=True, labels=2):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 4)).astype(np.float32)
    y = X @ [1.0, -1.0, 0.5, 0.0] + 0.3 * rng.normal(size=n)
    c = WEIGHTS[:n] if weights else None
    if problem in ("lad", "svr", "quantile"):
        return MemoryDataset(X, y, None, c)
    codes = np.searchsorted(np.quantile(y, np.arange(1, labels) / labels), y)
    return MemoryDataset(X, codes, list("abcd")[:labels], c)


def trained(problem, data=None, **options):
    data = rows(problem) if data is None else data
    with Inline(1) as fleet:
        return train(data, TrainOptions(problem=problem, **{"gamma": 0.3} | options), fleet)


@pytest.mark.slow
@pytest.mark.parametrize("intercept", ["none", "constant", "true"])
@pytest.mark.parametrize("problem", ALL)
def test_every_way_ends_at_one_optimum(problem, intercept):
    """Solvers, features, starts: P and D of one way bound those of any other."""
    ways = [
        {"exact": True, "solver": "pairs"},
        {"exact": True, "solver": "block"},
        {"exact": True, "tuning": Tuning(start="divide", parts=3)},
        {"exact": True, "tuning": Tuning(start="nystrom")},
        {"landmarks": 200, "solver": "newton"},
        {"landmarks": 200, "solver": "pairs"},
    ]
    options = TrainOptions(problem=problem, intercept=intercept)
    if not options.coupled:
        ways += [
            {"landmarks": 200, "solver": "cd"},
            {"landmarks": 200, "tuning": Tuning(start="divide")},
        ]
    found = []
    for way in ways:
        model = trained(problem, intercept=intercept, tol=1e-5, **way)
        (part,) = model.provenance["certificates"]
        assert part["relative_gap"] <= 1e-5, way
        found.append((part["primal"], part["dual"], model))
    size = abs(found[0][0])
    X = rows(problem).X(0, 200)
    for primal, dual, model in found:
        # Features of all landmarks, and float32 entries, are as close to the kernel as this.
        assert dual <= min(p for p, _, _ in found) + 1e-4 * size
        assert primal >= max(d for _, d, _ in found) - 1e-4 * size
        scores = model.scores(X)
        largest = np.abs(scores).max()
        np.testing.assert_allclose(scores, found[0][2].scores(X), atol=0.05 * largest)


@pytest.mark.parametrize("problem", ALL)
@pytest.mark.parametrize("exact", [True, False])
def test_models_know_their_kind(problem, exact, tmp_path):
    model = trained(problem, exact=exact, landmarks=30)
    kind = {"one-class": "one-class", "c-svc": "classifier", "nu-svc": "classifier"}
    assert model.kind == kind.get(problem, "regressor")
    assert model.labels == {"one-class": [-1, 1], "regressor": []}.get(model.kind, ["a", "b"])
    model.save(tmp_path / "model")
    again = Model.load(tmp_path / "model")
    X = rows(problem).X(0, 200)
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    assert again.provenance["parameters"]["problem"] == problem
    record = fit_record(again)
    assert record["problem"] == problem and record["relative_gap"] <= 1e-3
    json.dumps(record)


def test_auto_chooses_pairs_for_few_rows_and_blocks_beyond():
    def chosen(problem, **how):
        options = TrainOptions(problem=problem, **{"landmarks": 50} | how)
        return plan(rows(problem), options).solver

    for problem in ALL:
        assert chosen(problem) == "newton"
        assert chosen(problem, exact=True) == "pairs"
    wide = MemoryDataset(np.eye(200, 5000, dtype=np.float32), np.arange(200.0), None)
    for intercept, solver in (("constant", "cd"), ("true", "newton")):
        options = TrainOptions(problem="svr", kernel="linear", intercept=intercept)
        assert plan(wide, options).solver == solver
    assert plan(rows("svr"), TrainOptions(problem="svr")).classifiers == 1
    four = rows("c-svc", labels=4)
    assert plan(four, TrainOptions(problem="nu-svc", strategy="one")).classifiers == 6
    assert plan(four, TrainOptions(problem="one-class")).classifiers == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"problem": "svm"}, "problem must be one of c-svc, squared-svc, nu-svc"),
        ({"nu": 0}, r"nu must lie in \(0, 1\], got 0"),
        ({"nu": float("nan")}, r"nu must lie in \(0, 1\]"),
        ({"epsilon": -0.1}, "epsilon must be a finite number"),
        ({"epsilon": "a"}, "epsilon must be a finite number"),
        ({"tau": 0.0}, "tau must lie strictly between"),
        ({"problem": "nu-svc", "lam": 0.1}, "nu-svc has not; use nu"),
        ({"problem": "svr", "class_weight": "balanced"}, "class_weight is for classifiers"),
        ({"problem": "one-class", "strategy": "one"}, "strategy one is for classifiers"),
        ({"problem": "nu-svc", "solver": "cd"}, "cannot fit nu-svc.*newton solver, or pairs"),
        ({"problem": "one-class", "solver": "cd"}, "cannot fit one-class"),
        ({"problem": "svr", "solver": "cd", "intercept": "true"}, "or intercept penalized"),
        ({"problem": "svr", "solver": "newton", "exact": True}, "use block or pairs"),
        ({"problem": "lad", "solver": "block"}, "solver block is for exact machines"),
    ],
)
def test_impossible_options_are_refused_in_one_sentence(options, message):
    with pytest.raises(InputError, match=message) as error:
        TrainOptions(**options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("problem", ALL)
def test_rows_of_another_kind_are_refused(problem):
    other = rows("lad" if problem in ("c-svc", "nu-svc") else "c-svc")
    if problem == "one-class":
        assert trained(problem, other, landmarks=20).kind == "one-class"
        return
    with pytest.raises(InputError, match=f"{problem} needs (labels|targets)"):
        trained(problem, other)


def test_missing_targets_are_refused():
    data = rows("svr")
    y = data.y(0, 200).copy()
    y[[3, 9]] = np.nan
    with pytest.raises(InputError, match="2 rows have no target"):
        trained("svr", MemoryDataset(data.X(0, 200), y, None))
    # A one-class machine asks for neither.
    unlabelled = MemoryDataset(data.X(0, 200), None, [])
    assert trained("one-class", unlabelled, exact=True).kind == "one-class"


@pytest.mark.parametrize("strategy", ["rest", "one"])
def test_an_infeasible_nu_of_one_label(strategy):
    data = rows("nu-svc", labels=4, weights=False)
    codes = data.y(0, 200).copy()
    codes[np.flatnonzero(codes == 3)[5:]] = 0
    few = MemoryDataset(data.X(0, 200), codes, list("abcd"))
    where = {"rest": "for d against the rest", "one": "for a vs d"}[strategy]
    with pytest.raises(InputError, match=f"nu 0.3 is infeasible {where}") as error:
        trained("nu-svc", few, strategy=strategy, intercept="true", nu=0.3)
    # What it calls the largest is feasible for that label, and little more is not.
    most = float(str(error.value).rsplit(" ", 1)[1])
    assert most == pytest.approx(2 * 5 / (200 if strategy == "rest" else 95 + 5), rel=1e-5)
    options = TrainOptions(problem="nu-svc", strategy=strategy, intercept="true", nu=most)
    kept = [one.problem.nu for one in problems(few, options)]
    assert kept == [most] * len(kept)
    balanced = TrainOptions(
        problem="nu-svc", strategy=strategy, intercept="true", nu=0.3, class_weight="balanced"
    )
    assert len(problems(few, balanced)) == (4 if strategy == "rest" else 6)


def test_the_record_of_a_fit_knows_its_problem(tmp_path):
    how = {"landmarks": 30, "work": tmp_path / "work"}
    trained("svr", epsilon=0.2, **how)
    before = json.loads((tmp_path / "work" / "problem.json").read_text())
    assert (before["problem"], before["epsilon"], before["nu"], before["tau"]) == (
        *("svr", 0.2, 0.5),
        0.5,
    )
    again = trained("svr", epsilon=0.2, resume=True, **how)
    assert again.kind == "regressor"
    for changed in ({"problem": "svr", "epsilon": 0.1}, {"problem": "lad", "epsilon": 0.2}):
        with pytest.raises(InputError, match="belongs to another fit"):
            trained(resume=True, **changed, **how)


@pytest.mark.parametrize("problem", ALL)
def test_an_interrupted_fit_goes_on(problem, tmp_path):
    """Stopped after a few passes it goes on to the same optimum."""
    how = {"exact": True, "solver": "block", "tol": 1e-5, "work": tmp_path}
    with warnings.catch_warnings(category=ConvergenceWarning, action="ignore"):
        trained(problem, max_iter=1, **how)
    (part,) = trained(problem, resume=True, **how).provenance["certificates"]
    (other,) = trained(problem, **{**how, "work": None}).provenance["certificates"]
    assert part["relative_gap"] <= 1e-5
    assert part["primal"] == pytest.approx(other["primal"], rel=3e-5)


# -- any problem that can be written down ---------------------------------------------------------
@pytest.mark.parametrize("n", [150, 1200])
def test_solve_is_the_main_job(n):
    """Pairs up to 1,024 rows, blocks beyond."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(n, 3)).astype(np.float32)
    y = np.sin(X[:, 0]) + 0.1 * rng.normal(size=n)
    codes = (y > 0).astype(int)
    c = rng.uniform(0.5, 2, n)
    mass = float(c.sum())
    for problem, given in (
        (CSvc(1.0, 1, (), "true"), codes),
        (NuSvc(0.3, 1, mass, (), "true"), codes),
        (OneClass(0.3, mass), None),
        (Svr(1.0, 0.1, "true"), y),
        (Quantile(1.0, 0.2), y),
    ):
        found = solve(problem, X, given, kernel="rbf", gamma=0.5, weights=c, tol=1e-4)
        proved = found.certificate
        assert proved.relative_gap <= 1e-4 and proved.certified_in == "float64"
        assert proved.rows == n and np.count_nonzero(found.alpha) == proved.support
        K = np.exp(-0.5 * ((X[:, None].astype(float) - X[None]) ** 2).sum(axis=2))
        dual = problem.dual(np.zeros(n) if given is None else given, c)
        value = dual.value(found.alpha, found.coef @ K @ found.coef)
        assert proved.dual == pytest.approx(value, rel=1e-6)


def test_solve_solves_wangs_class():
    """The weighted SVM and the weighted LAD are cases of it; so is any mixture."""
    rng = np.random.default_rng(2)
    X, c = rng.normal(size=(120, 3)), rng.uniform(0.5, 2, 120)
    y, codes = X[:, 0] + 0.3 * rng.normal(size=120), (X[:, 1] > 0).astype(int)
    sign, one = 2.0 * codes - 1, np.ones(120)
    how = {"kernel": Rbf(0.4), "weights": c, "tol": 1e-9}
    for special, given, general in (
        (CSvc(2.0, 1), codes, Sublinear(2.0, -sign, one, 0.0, 1.0)),
        (Lad(2.0), y, Sublinear(2.0, -one, y, -1.0, 1.0)),
        (Quantile(2.0, 0.3), y, Sublinear(2.0, -one, y, -0.7, 0.3)),
    ):
        expected, found = solve(special, X, given, **how), solve(general, X, **how)
        assert found.certificate.primal == pytest.approx(expected.certificate.primal, rel=1e-8)
        np.testing.assert_allclose(found.coef, expected.coef, atol=1e-3)
    # A loss of its own on every row: P, from the formula.
    a, b = rng.normal(size=120), rng.normal(size=120)
    a[::10] = 0.0
    found = solve(Sublinear(1.5, a, b, -0.5, 2.0), X, **how)
    X = X.astype(np.float32).astype(float)
    K = np.exp(-0.4 * ((X[:, None] - X[None]) ** 2).sum(axis=2))
    z = a * (K @ found.coef) + b
    live = a != 0  # the others cost a constant, which P leaves out
    loss = 1.5 * np.sum((c * np.maximum(-0.5 * z, 2.0 * z))[live])
    assert found.certificate.primal == pytest.approx(
        0.5 * found.coef @ K @ found.coef + loss, rel=1e-7
    )
    assert found.certificate.relative_gap <= 1e-9
