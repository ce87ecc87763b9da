"""Squared losses: the squared hinge and the squared tube, from the algebra to the estimators."""

import warnings

import numpy as np
import pytest
import reference
from cli_world import bigscreen as command
from cli_world import succeed
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn import datasets, svm

import bigscreen
from bigscreen import InputError, LinearSVC, LinearSVR, MemoryDataset, Model, NystroemSVC
from bigscreen.fleet.inline import Inline
from bigscreen.options.train import TrainOptions
from bigscreen.options.tuning import Tuning
from bigscreen.path.options import PathOptions
from bigscreen.problems.dual import AT_HI, AT_LO, AT_ZERO
from bigscreen.problems.recipes import CSvc, Lad, SquaredSvc, SquaredSvr, Svr, refuse_uncommon
from bigscreen.train.run import train
from bigscreen.train.solve import solve

KINDS = ["squared-svc", "squared-svr"]
EPSILON = 0.2


def rows(seed=0, n=150, d=4):
    """Features, codes, targets and weights, some of them 0."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)).astype(np.float32)
    y = X @ rng.normal(size=d) + 0.5 * rng.normal(size=n) + 1.0
    weights = rng.uniform(0.3, 2.0, n) * (rng.random(n) > 0.1)
    return X, (y > 1.2).astype(np.int32), y, weights


def data_of(kind, X, codes, y, weights, **grid):
    if kind == "squared-svc":
        return MemoryDataset(X, codes, [0, 1], weights, **grid)
    return MemoryDataset(X, y, None, weights, **grid)


def oracle(kind, X, codes, y, weights, C, intercept, scaling=1.0, tube=EPSILON):
    """The problem as the oracle has it."""
    phi = X.astype(np.float64)
    if intercept == "constant":
        phi = np.hstack([phi, np.full((len(phi), 1), scaling)])
    one, box = np.ones(len(phi)), C * weights
    if kind == "squared-svc":
        plain = reference.c_svc(phi, codes, box, "true" if intercept == "true" else "none")
    else:
        t = one if intercept == "true" else None
        e = np.full(len(phi), tube)
        plain = reference.Problem(phi, one, y, -box, box, t, 0.0, None, e)
    return reference.squared(plain)


def fitted(data, kind, workers=1, **options):
    how = {"kernel": "linear", "tol": 1e-9, "epsilon": EPSILON, **options}
    with Inline(workers) as fleet:
        return train(data, TrainOptions(problem=kind, **how), fleet)


def proof(model, k=0):
    return model.provenance["certificates"][k]


@given(st.integers(0, 10_000), st.booleans(), st.sampled_from(["none", "true"]))
@settings(max_examples=60, deadline=None)
def test_squared_losses_follow_their_formulas(seed, classes, intercept):
    """Losses are conjugates, the gap is P - D, its parts are the rows' own, and signs are right."""
    X, codes, y, weights = rows(seed, n=30)
    rng = np.random.default_rng(seed)
    C = float(10.0 ** rng.uniform(-2, 2))
    problem = SquaredSvc(C, 1, (), intercept) if classes else SquaredSvr(C, EPSILON, intercept)
    dual = problem.dual(codes if classes else y, weights)
    kind = KINDS[not classes]
    q = oracle(kind, X, codes, y, weights, C, intercept)
    alpha = rng.normal(size=30) * (weights > 0)
    alpha = dual.feasible(np.abs(alpha) if classes else alpha)
    if intercept == "true":
        assert abs(np.sum(dual.coupling * alpha)) <= 1e-12 * np.abs(alpha).sum()
    assert np.all((alpha >= dual.lo) & (alpha <= dual.hi))
    w = reference.w_of(q, alpha)
    scores, mu = q.phi @ w, float(rng.normal()) if intercept == "true" else 0.0
    np.testing.assert_allclose(dual.losses(scores, mu), reference.losses(q, scores, mu), rtol=1e-12)
    P, D = dual.primal(scores, w @ w, mu), dual.value(alpha, w @ w)
    assert P == pytest.approx(reference.primal(q, w, mu), rel=1e-12)
    assert pytest.approx(reference.dual(q, alpha), rel=1e-9, abs=1e-9) == D
    slacks = dual.slacks(alpha, scores, mu)
    assert np.all(slacks >= 0)
    assert np.sum(slacks) == pytest.approx(P - D, rel=1e-9, abs=1e-9 * abs(P))
    # The best alpha is where nothing is left to gain.
    best = dual.best(dual.gradient(scores, mu))
    np.testing.assert_allclose(dual.slacks(best, scores, mu), 0, atol=1e-12 * abs(P))
    part = dual[3:20]
    np.testing.assert_array_equal(part.bend(alpha[3:20]), dual.bend(alpha)[3:20])


@given(st.integers(0, 10_000), st.booleans(), st.floats(0.0, 1.0))
@settings(max_examples=60, deadline=None)
def test_decisions_are_of_bounds_alone(seed, classes, radius):
    """What an interval of scores decides holds for every score in it."""
    _X, codes, y, weights = rows(seed, n=30)
    problem = SquaredSvc(1.0, 1) if classes else SquaredSvr(1.0, EPSILON)
    dual = problem.dual(codes if classes else y, weights)
    scores = np.random.default_rng(seed).normal(size=30)
    decided = dual.decide(scores - radius, scores + radius)
    for at in np.linspace(-radius, radius, 5):
        best = dual.best(dual.gradient(scores + at))
        assert np.all(best[np.isin(decided, (AT_LO, AT_HI, AT_ZERO))] == 0)
    assert not np.any((decided == AT_HI) & (weights > 0))


@pytest.mark.parametrize("C", [1e-3, 1.0, 1e4])
@pytest.mark.parametrize(
    ("intercept", "scaling"), [("none", 1.0), ("constant", 1.0), ("constant", 30.0), ("true", 1.0)]
)
@pytest.mark.parametrize("kind", KINDS)
def test_newton_finds_the_oracles_optimum(kind, intercept, scaling, C):
    given = rows()
    data = data_of(kind, *given, shard_rows=64, chunk_rows=32)
    found = fitted(data, kind, C=C, intercept=intercept, intercept_scaling=scaling)
    best = reference.solve(oracle(kind, *given, C, intercept, scaling))
    stated = proof(found)
    assert stated["relative_gap"] <= 1e-9
    assert stated["dual"] <= best.primal * (1 + 1e-10) <= stated["primal"] * (1 + 2e-10)
    w, b = best.w[:4], best.mu if intercept == "true" else 0.0
    if intercept == "constant":
        b = scaling * best.w[4]
    reach = np.sqrt(2 * stated["gap"] + 1e-12 * best.primal)
    np.testing.assert_allclose(found.coef[0], w, atol=reach + 1e-9)
    # (Of the unpenalised offset P is strongly convex by the rows with a loss alone.)
    assert found.intercept[0] == pytest.approx(b, abs=10 * scaling * reach + 1e-7)


@pytest.mark.parametrize("intercept", ["none", "constant"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("thin", [False, True])
def test_coordinate_descent_finds_the_optimum_of_squared_losses(kind, intercept, thin):
    X, *rest = rows()
    X[np.abs(X) < 0.5] = 0.0
    best = reference.solve(oracle(kind, X, *rest, 0.5, intercept, 3.0))
    data = data_of(kind, sparse.csr_array(X) if thin else X, *rest, shard_rows=64)
    how = {"C": 0.5, "intercept": intercept, "intercept_scaling": 3.0}
    for solver in ("cd", "newton"):
        stated = proof(fitted(data, kind, solver=solver, **how))
        assert stated["relative_gap"] <= 1e-9
        assert stated["dual"] <= best.primal * (1 + 1e-10) <= stated["primal"] * (1 + 2e-10)


@pytest.mark.parametrize("solver", ["newton", "cd"])
@pytest.mark.parametrize("kind", KINDS)
def test_screened_rows_are_no_support_vectors(kind, solver):
    """The gap ball removes rows that are no support vectors of the optimum."""
    X, codes, y, weights = rows(n=400)
    given = X, codes, y, weights + 0.1
    data = data_of(kind, *given, shard_rows=128)
    how = {"C": 1.0, "solver": solver}
    found = fitted(data, kind, screening="gap", **how)
    (counts,) = found.provenance["screening"]
    assert counts["fixed_at_hi"] == 0 < counts["fixed_at_lo"]
    best = reference.solve(oracle(kind, *given, 1.0, "constant"))
    outside = np.abs(best.alpha) <= 1e-9
    assert counts["fixed_at_lo"] <= np.count_nonzero(outside)
    assert proof(found)["primal"] == pytest.approx(best.primal, rel=1e-9)
    everything = fitted(data, kind, screening="none", **how)
    assert proof(everything)["primal"] == pytest.approx(best.primal, rel=1e-9)


@pytest.mark.parametrize("intercept", ["constant", "true"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_number_of_workers_changes_no_bit(kind, intercept, tmp_path):
    data = data_of(kind, *rows(n=500), shard_rows=64, chunk_rows=32)
    one, three = (fitted(data, kind, w, C=2.0, intercept=intercept) for w in (1, 3))
    np.testing.assert_array_equal(one.coef, three.coef)
    np.testing.assert_array_equal(one.intercept, three.intercept)
    assert proof(one) == proof(three)
    # So does a run that is cut off and resumed, from a model that is as good as any.
    how = {"C": 2.0, "intercept": intercept, "work": tmp_path / "work"}
    with pytest.warns(UserWarning, match="missed tol"):
        fitted(data, kind, max_iter=2, **how)
    resumed = fitted(data, kind, resume=True, **how)
    np.testing.assert_array_equal(one.coef, resumed.coef)
    resumed.save(tmp_path / "m.bsm")
    X = data.X(0, 500)
    np.testing.assert_array_equal(Model.load(tmp_path / "m.bsm").scores(X), resumed.scores(X))


def test_subsamples_and_landmarks():
    """More rows than a subsample has, and features of a kernel: of a point near it P is more."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40_000, 3)).astype(np.float32)
    y = np.sign(X[:, 0] * X[:, 1] + 0.3 * rng.normal(size=len(X)))
    for features in ("stored", "recomputed"):
        how = {"gamma": 0.3, "random_state": 0, "tuning": Tuning(features=features), "tol": 1e-7}
        mine = NystroemSVC(loss="squared_hinge", n_components=60, C=0.01, **how).fit(X, y)
        assert mine.relative_gap_ <= 1e-7
        assert mine.coef_.shape == (1, 60) and mine.intercept_.shape == (1,)
        Z = mine.components_.astype(np.float64)
        K, KZ = (np.exp(-0.3 * ((A[:, None] - Z[None]) ** 2).sum(axis=2)) for A in (X[:2000], Z))
        scores = K @ mine.coef_.T + mine.intercept_
        np.testing.assert_allclose(mine.decision_function(X[:2000]), scores[:, 0], atol=1e-3)
        K = np.exp(-0.3 * ((X[:, None] - Z[None].astype(np.float32)) ** 2).sum(axis=2))

        def primal(c, b, K=K, KZ=KZ):
            lost = np.maximum(0, 1 - y * (K @ c + b))
            return 0.5 * c @ KZ @ c + 0.5 * b * b + 0.01 * np.sum(lost**2)

        c, b = mine.coef_[0], mine.intercept_[0]
        at = primal(c, b)
        assert at == pytest.approx(mine.certificate_[0]["primal"], rel=1e-5)
        for scale in (0.97, 1.03):
            assert primal(scale * c, b) > at and primal(c, b + scale - 1) > at


@pytest.mark.slow
@pytest.mark.parametrize("C", [0.01, 1.0, 100.0])
@pytest.mark.parametrize(
    "how", [{}, {"intercept_scaling": 20.0}, {"fit_intercept": False}, {"class_weight": "balanced"}]
)
def test_linear_svc_is_scikit_learns(how, C):
    X, y = datasets.load_iris(return_X_y=True)
    # Of more than two classes LIBLINEAR weights each against a rest without weights.
    y = y > 1 if how.get("class_weight") else y
    X, y = X[:130], np.array(["a", "b", "c"])[y[:130].astype(int)]
    weights = np.random.default_rng(0).integers(0, 4, len(y))
    for dual in (False, True):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            theirs = svm.LinearSVC(
                C=C, tol=1e-9, max_iter=200_000, dual=dual, random_state=0, **how
            )
            theirs.fit(X, y, weights)
        mine = LinearSVC(C=C, tol=1e-10, dual=dual, **how).fit(X, y, weights)
        assert mine.coef_.shape == theirs.coef_.shape
        assert np.shape(mine.intercept_) == np.shape(theirs.intercept_) or not how.get(
            "fit_intercept", True
        )
        if not dual or C < 100:  # (beyond, its coordinate descent does not get there)
            np.testing.assert_allclose(
                mine.coef_, theirs.coef_, atol=2e-4 * np.abs(theirs.coef_).max()
            )
            np.testing.assert_allclose(mine.intercept_, theirs.intercept_, atol=1e-3)
    assert type(mine.n_iter_) is int


@pytest.mark.parametrize("loss", ["epsilon_insensitive", "squared_epsilon_insensitive"])
@pytest.mark.parametrize("scaling", [1.0, 30.0])
def test_linear_svr_is_scikit_learns(loss, scaling):
    X, _, y, weights = rows()
    own = {"C": 0.5, "epsilon": 0.1, "loss": loss, "intercept_scaling": scaling}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = svm.LinearSVR(tol=1e-10, max_iter=500_000, random_state=0, **own)
        theirs.fit(X, y, weights)
    mine = LinearSVR(tol=1e-9, **own).fit(X, y, weights)
    np.testing.assert_allclose(mine.coef_, theirs.coef_, atol=1e-4)
    np.testing.assert_allclose(mine.intercept_, theirs.intercept_, atol=1e-4)
    assert mine.coef_.shape == theirs.coef_.shape and mine.intercept_.shape == (1,)


def test_the_default_is_the_squared_hinge():
    X, codes, _, _ = rows()
    mine, plain = LinearSVC().fit(X, codes), LinearSVC(loss="hinge").fit(X, codes)
    assert mine.model_.provenance["parameters"]["problem"] == "squared-svc"
    assert plain.model_.provenance["parameters"]["problem"] == "c-svc"
    assert mine.certificate_[0]["primal"] != pytest.approx(
        plain.certificate_[0]["primal"], rel=0.01
    )
    theirs = svm.LinearSVC().get_params()
    given = LinearSVC().get_params()
    assert {name: given[name] for name in theirs} == theirs
    theirs = svm.LinearSVR().get_params()
    given = LinearSVR().get_params()
    assert {name: given[name] for name in theirs} == theirs


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        (LinearSVC("l1", "hinge"), "Unsupported set of arguments.*penalty='l1'.*loss='hinge'"),
        (LinearSVC("l1", dual=True), "Unsupported set of arguments.*when dual=True"),
        (LinearSVC(loss="hinge", dual=False), "Unsupported set of arguments.*when dual=False"),
        (LinearSVR(dual=False), "Unsupported set of arguments.*epsilon_insensitive"),
        (LinearSVC("l1", dual=False), "penalty='l1' is another problem"),
        (LinearSVC("l3"), "penalty must be"),
        (LinearSVC(loss="log"), "loss must be 'hinge' or 'squared_hinge'"),
        (LinearSVR(loss="hinge"), "loss must be 'epsilon_insensitive' or"),
        (LinearSVC(dual="yes"), "dual must be"),
        (LinearSVC(multi_class="crammer_singer"), "crammer_singer' is one problem"),
        (LinearSVC(multi_class="all"), "multi_class must be"),
        (LinearSVC(intercept_scaling=0), "intercept_scaling must be a positive"),
        (NystroemSVC(loss="log"), "loss must be 'hinge' or 'squared_hinge'"),
        (LinearSVC(solver="pairs"), "solver pairs does not solve squared-svc"),
    ],
    ids=str,
)
def test_impossible_arguments_are_refused(machine, words):
    X, codes, _, _ = rows()
    with pytest.raises(InputError, match=words):
        machine.fit(X, codes)


@pytest.mark.parametrize(
    "given",
    [
        {"exact": True},
        {"solver": "pairs", "kernel": "linear"},
        {"kernel": "linear", "start": "divide"},
        {"start": "nystrom"},
    ],
)
def test_solvers_without_squared_losses_refuse_them(given):
    for kind, plain in zip(KINDS, ("c-svc", "svr"), strict=True):
        with pytest.raises(InputError, match=f"{kind}, whose losses are squared.* {plain}$"):
            TrainOptions.from_record({"problem": kind, **given})
    with pytest.raises(InputError, match="intercept_scaling is for c-svc"):
        TrainOptions(problem="lad", kernel="linear", intercept_scaling=2.0)


@pytest.mark.parametrize("C", [1e-320, 1e-150, 1e150, 1e308])
@pytest.mark.parametrize("solver", ["newton", "cd"])
def test_weights_out_of_the_range_of_float64_are_refused(C, solver):
    X, codes, y, weights = rows()
    for machine, outcome in (
        (LinearSVC(C=C, solver=solver), codes),
        (LinearSVR(C=C, solver=solver, loss="squared_epsilon_insensitive"), y),
    ):
        with pytest.raises(InputError, match="C .* times the weight of row"):
            machine.fit(X, outcome, weights)


def test_paths_and_exact_solvers_refuse_squared_losses():
    with pytest.raises(InputError, match="a path does not solve squared-svc"):
        PathOptions(TrainOptions(problem="squared-svc", kernel="linear"), [1.0, 2.0])
    X, codes, y, _ = rows(n=30)
    for problem, outcome in ((SquaredSvc(1.0, 1), codes), (SquaredSvr(1.0, 0.1), y)):
        with pytest.raises(InputError, match="squared losses are solved on explicit features"):
            solve(problem, X, outcome)
        assert problem.factor(problem.at(2.0)) is None
    with pytest.raises(InputError, match="intercept_scaling"):
        solve(CSvc(1.0, 1, (), "constant", 2.0), X, codes)
    for fine in (CSvc(1.0, 1, (), "none", 2.0), Svr(1.0, 0.1, "constant"), Lad(1.0)):
        refuse_uncommon(fine)
    with pytest.raises(ValueError, match="no breakpoints"):
        SquaredSvc(1.0, 1, (), "true").dual(codes, np.ones(30)).multiplier(np.zeros(30))


def test_coefficients_made_sparse():
    X, codes, _, _ = rows()
    machine = LinearSVC().fit(X, codes)
    coef, scores = machine.coef_.copy(), machine.decision_function(X)
    assert sparse.issparse(machine.sparsify().coef_)
    np.testing.assert_array_equal(machine.decision_function(X), scores)
    np.testing.assert_array_equal(machine.densify().coef_, coef)
    np.testing.assert_array_equal(machine.densify().coef_, coef)


def test_gamma_auto():
    X, codes, _, _ = rows()
    how = {"n_components": 30, "random_state": 0, "loss": "squared_hinge"}
    one = NystroemSVC(gamma="auto", **how).fit(X, codes)
    other = NystroemSVC(gamma=1 / X.shape[1], **how).fit(X, codes)
    np.testing.assert_array_equal(one.coef_, other.coef_)
    np.testing.assert_array_equal(
        NystroemSVC("linear", **how).fit(X, codes).coef_, LinearSVC(tol=1e-3).fit(X, codes).coef_
    )


def test_command_line(tmp_path):
    X, codes, y, _ = rows()
    header = "a,b,c,d,label"
    for kind, outcome in (("squared-svc", codes), ("squared-svr", y)):
        file, store, model = (tmp_path / f"{kind}{end}" for end in (".csv", ".store", ".bsm"))
        np.savetxt(file, np.column_stack([X, outcome]), "%.9g", ",", header=header, comments="")
        target = ["--regression"] if kind == "squared-svr" else []
        succeed("ingest", file, store, "--label", "label", *target)
        machine = ["--problem", kind, "--kernel", "linear", "--tol", 1e-8]
        succeed("plan", store, *machine)
        succeed("fit", store, model, *machine, *(["--epsilon", 0.3] if target else []))
        for refused in (["fit", "--exact"], ["path", "--C", "1,2"]):
            said = command(refused[0], store, tmp_path / "no", *refused[1:], "--problem", kind)
            assert said.exit_code == 2 and f"solve {kind}" in said.output
        fitted = Model.load(model)
        assert fitted.provenance["parameters"]["problem"] == kind
        stored = bigscreen.Dataset.open(store)
        mine = LinearSVR(loss="squared_epsilon_insensitive", epsilon=0.3, tol=1e-8)
        mine = mine if target else LinearSVC(tol=1e-8)
        np.testing.assert_allclose(fitted.coef[0], np.ravel(mine.fit(stored).coef_), rtol=1e-6)
