"""SMO over all rows: the optimum of the oracle and of LIBSVM, whatever the cache and the rule."""

import json
import os
import signal

import contracts
import numpy as np
import pytest
import reference
from contracts import INTERCEPTS
from exact_world import ExactWorld, solved
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from scripts import script
from sklearn.svm import SVC

from bigscreen.data.memory import MemoryDataset
from bigscreen.errors import InputError
from bigscreen.features.design import Design
from bigscreen.fit.loop import GracefulInterrupt
from bigscreen.kernels.given import Precomputed
from bigscreen.kernels.operand import Operand
from bigscreen.kernels.standard import make_kernel
from bigscreen.problems.recipes import CSvc
from bigscreen.screening.dynamic import FSafe, Joachims, make_rule
from bigscreen.solvers.protocol import Run
from bigscreen.solvers.smo.kernel_rows import KernelRows
from bigscreen.solvers.smo.solver import Pairs

RULES = ("none", "gap", "f-safe", "adaptive", "joachims")


def world(data, kernel="rbf", C=1.0, intercept="none", gamma=0.15, **terms):
    made = None if kernel is None else make_kernel(kernel, gamma, **terms)
    return ExactWorld(Design(data, made), CSvc(C, 1, (1.0, 2.0), intercept))


def is_right(w, found, tol):
    """D <= P* <= P <= D + gap, the gap asked for, and a dual point that is feasible."""
    c, best = found.certificate, w.optimum
    room = c.rounding_bound + 1e-8 * abs(best.primal)
    assert c.relative_gap <= tol
    assert c.dual <= best.primal + room and c.primal >= best.dual - room
    alpha = found.point.alpha
    assert np.all(alpha >= 0) and np.all(alpha <= w.box)
    if w.problem.intercept == "true":
        assert abs(w.oracle.s @ alpha) <= 1e-9 * w.box.sum()
    np.testing.assert_allclose(c.dual, w.value(alpha), rtol=0, atol=room)


@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(2, 60),
    kernel=st.sampled_from(["rbf", "polynomial", "laplacian", None]),
    C=st.sampled_from([0.01, 1.0, 30.0]),
    intercept=st.sampled_from(INTERCEPTS),
    selection=st.sampled_from(["second", "first"]),
    working_set=st.sampled_from([1, 2]),
    rule=st.sampled_from(RULES),
    sparse_rows=st.booleans(),
    whole=st.sampled_from([0, Pairs.whole]),
)
def test_the_optimum_is_that_of_the_reference(
    seed, n, kernel, C, intercept, selection, working_set, rule, sparse_rows, whole
):
    data = contracts.rows(seed, n, sparse_rows=sparse_rows and n > 10)
    w = world(data, kernel, C, intercept, coef0=1.0)
    size = None if intercept == "true" else working_set
    solver = Pairs(selection, size, whole=whole, every=25)
    # Single steps along rows of few columns can be many.
    found = solved(w, solver, make_rule(rule), 1e-4, max_iter=100_000)
    is_right(w, found, 1e-4)


@pytest.mark.parametrize("selection", ["second", "first"])
@pytest.mark.parametrize("intercept", INTERCEPTS)
def test_alpha_of_the_slides(selection, intercept):
    """A kernel matrix of full rank has one optimum: the listings and the solver meet there."""
    w = world(contracts.rows(3, 60), "rbf", 2.0, intercept, gamma=1.0)
    found = solved(w, Pairs(selection), None, 1e-9)
    q = w.oracle
    if intercept == "true":
        K = q.phi @ q.phi.T
        want, _ = reference.smo(
            K, q.s, q.p, q.lo, q.hi, q.t, np.zeros(60), 1e-10, selection == "second"
        )
    else:
        want = reference.coordinate_descent(q.phi, q.s, q.p, q.lo, q.hi, 1e-12)
    np.testing.assert_allclose(found.point.alpha, want, rtol=0, atol=2e-4)
    np.testing.assert_allclose(w.value(found.point.alpha), w.value(want), rtol=1e-8)


@pytest.mark.parametrize("C", [0.1, 10.0])
def test_the_objective_and_the_steps_of_libsvm(C):
    data = contracts.rows(1, 300, weights=False)
    X, y = data.X(0, 300), data.y(0, 300)
    w = ExactWorld(Design(data, make_kernel("rbf", 0.15)), CSvc(C, 1, (), "true"))
    found = solved(w, Pairs(), None, 1e-8)
    theirs = SVC(C=C, gamma=0.15, tol=1e-8, shrinking=False).fit(X.astype(np.float64), y)
    alpha = np.zeros(300)
    alpha[theirs.support_] = np.abs(theirs.dual_coef_[0])
    np.testing.assert_allclose(w.value(found.point.alpha), w.value(alpha), rtol=1e-7)
    np.testing.assert_allclose(found.point.intercept, theirs.intercept_[0], atol=1e-4)
    # LIBSVM's own rule: about as many steps as it takes (which way they go is chaotic).
    theirs = SVC(C=C, gamma=0.15, tol=1e-3, shrinking=False).fit(X.astype(np.float64), y)
    found = solved(w, Pairs(eps=1e-3), None, 0.0)
    assert 0.7 < found.last["steps"] / theirs.n_iter_[0] < 1.4


@pytest.mark.parametrize("intercept", INTERCEPTS)
@pytest.mark.parametrize("kernel", ["rbf", None])
def test_a_cache_of_three_rows_is_as_good_as_one_of_all(kernel, intercept):
    w = world(contracts.rows(5, 150), kernel, 3.0, intercept)
    all_rows, three = (
        solved(w, Pairs(cache=size, whole=0, every=20), None, 1e-3) for size in (1 << 30, 0)
    )
    np.testing.assert_array_equal(three.point.alpha, all_rows.point.alpha)
    assert three.certificate == all_rows.certificate
    assert three.last["kernel_entries"] > all_rows.last["kernel_entries"]
    assert all_rows.last["kernel_entries"] <= 150 * 150


@pytest.mark.parametrize("intercept", INTERCEPTS)
@pytest.mark.parametrize("kernel", ["rbf", None])
def test_the_matrix_at_once_is_as_good_as_its_rows(kernel, intercept):
    w = world(contracts.rows(5, 150), kernel, 3.0, intercept)
    whole, rows = (solved(w, Pairs(whole=size), None, 1e-9) for size in (1 << 30, 0))
    assert whole.certificate.relative_gap <= 1e-9 and rows.certificate.relative_gap <= 1e-9
    values = w.value(whole.point.alpha), w.value(rows.point.alpha)
    np.testing.assert_allclose(*values, rtol=2e-9)
    assert abs(whole.last["steps"] - rows.last["steps"]) < 0.3 * rows.last["steps"]


@pytest.mark.slow
@pytest.mark.parametrize("intercept", INTERCEPTS)
@pytest.mark.parametrize("working_set", [1, 2])
@pytest.mark.parametrize("rule", [FSafe(0.01), Joachims(1), make_rule("adaptive")])
def test_bold_rules_end_right(rule, working_set, intercept):
    """What they remove wrongly comes back, and is counted."""
    if intercept == "true" and working_set == 1:
        return
    wrong = 0
    for seed in range(4):
        w = world(contracts.rows(seed, 150, noise=1.5), "rbf", 10.0, intercept)
        whole = Pairs.whole * (seed % 2)
        found = solved(w, Pairs("second", working_set, whole=whole, every=20), rule, 1e-6)
        is_right(w, found, 1e-6)
        wrong += found.last["false_removals"]
        lessons = found.monitor.removals.restarted_counts
        assert sum(false for _, false in lessons) == found.last["false_removals"]
        assert len(lessons) == found.monitor.removals.restarts
    assert wrong > 0 or not isinstance(rule, FSafe)


def test_libsvms_rule_with_shrinking_is_kept_over_all_rows():
    """Algorithm 1 of Zimmert et al. (2015): stop, take all back, go on until nothing violates."""
    for intercept in INTERCEPTS:
        w = world(contracts.rows(2, 200, noise=1.5), "rbf", 10.0, intercept)
        found = solved(w, Pairs("first", eps=1e-4, every=5), Joachims(1), 0.0, restarts=10**6)
        alpha, q = found.point.alpha, w.oracle
        G = reference.gradient(q, q.phi @ reference.w_of(q, alpha))
        if intercept == "true":
            up = np.where(q.s > 0, alpha < q.hi, alpha > 0)
            down = np.where(q.s > 0, alpha > 0, alpha < q.hi)
            assert np.max((q.s * G)[up]) - np.min((q.s * G)[down]) <= 2e-4
        else:
            assert np.max(G[alpha < q.hi]) <= 2e-4 and np.min(G[alpha > 0]) >= -2e-4


@pytest.mark.parametrize("intercept", INTERCEPTS)
def test_a_start_is_taken_over(intercept):
    w = world(contracts.rows(4, 120), "rbf", 3.0, intercept)
    whole = solved(w, Pairs(), None, 1e-6)
    again = solved(w, Pairs(every=10), None, 1e-6, start=whole.point.alpha)
    is_right(w, again, 1e-6)
    assert again.last["steps"] <= 10


@pytest.mark.slow
@pytest.mark.parametrize("rule", [None, make_rule("gap"), Joachims(2)])
@pytest.mark.parametrize("intercept", INTERCEPTS)
@pytest.mark.parametrize("kernel", ["rbf", None])
@pytest.mark.parametrize("crash", [False, True])
def test_an_interrupted_solve_goes_on(crash, kernel, intercept, rule, tmp_path, checkpoint_every):
    checkpoint_every(-1.0 if crash else 1e9)
    w = world(contracts.rows(6, 150), kernel, 3.0, intercept)
    solver = Pairs(every=15)
    whole = solved(w, solver, rule, 1e-7)
    seen = []

    def report(event):
        if event["event"] == "pass":
            seen.append(event)
        if event["event"] == "pass" and len(seen) == 4:
            if crash:
                raise KeyboardInterrupt
            os.kill(os.getpid(), signal.SIGINT)

    class Graceful(Pairs):
        def solve(self, run, check):
            with GracefulInterrupt(check.folder) as heard:
                heard.register(check)
                return super().solve(run, check)

    with pytest.raises(KeyboardInterrupt):
        solved(w, Graceful(every=15), rule, 1e-7, report=report, folder=tmp_path)
    found = solved(w, solver, rule, 1e-7, folder=tmp_path, resume=True)
    is_right(w, found, 1e-7)
    if rule is None:
        np.testing.assert_array_equal(found.point.alpha, whole.point.alpha)
        assert len(found.monitor.history) == len(whole.monitor.history)


@pytest.mark.parametrize("rule", [None, make_rule("gap"), Joachims(2)])
@pytest.mark.parametrize("intercept", INTERCEPTS)
@pytest.mark.parametrize("kernel", ["rbf", None])
def test_a_ctrl_c_between_steps_changes_no_bit(kernel, intercept, rule, tmp_path):
    w = world(contracts.rows(6, 150), kernel, 3.0, intercept)
    solver = Pairs(every=15, whole=0)
    whole = solved(w, solver, rule, 1e-7)
    steps = []

    class Pressed:
        """A monitor that hears of a Ctrl-C at some of the pauses."""

        def __init__(self, monitor):
            self.monitor = monitor

        def __getattr__(self, name):
            return getattr(self.monitor, name)

        def __call__(self, point, stats, save):
            return self.monitor(point, stats, save)

        def pause(self, save=None):
            steps.append(len(self.monitor.history))
            self.monitor.interrupted = len(steps) in (7, 8, 70)
            self.monitor.pause(save)

    class Interrupted(Pairs):
        def solve(self, run, check):
            return super().solve(run, Pressed(check))

    halted = Interrupted(every=15, whole=0)
    for stop in range(3):
        with pytest.raises(KeyboardInterrupt):
            solved(w, halted, rule, 1e-7, folder=tmp_path, resume=stop > 0)
    assert steps[6] == steps[7] == 0 and steps[69] > 2
    found = solved(w, solver, rule, 1e-7, folder=tmp_path, resume=True)
    is_right(w, found, 1e-7)
    if rule is not None and not rule.safe:
        # Rows that come back are scored with the cached kernel rows: last digits differ.
        return
    np.testing.assert_array_equal(found.point.alpha, whole.point.alpha)
    kept = [{k: v for k, v in e.items() if k not in ("seconds", "kernel_entries")}
            for m in (found, whole) for e in m.monitor.history]  # fmt: skip
    assert kept[: len(kept) // 2] == kept[len(kept) // 2 :]
    assert found.monitor.removals.restarted_counts == whole.monitor.removals.restarted_counts


def test_rows_without_weight_never_move():
    rng = np.random.default_rng(0)
    data = contracts.rows(7, 100)
    weight = np.where(rng.random(100) < 0.3, 0.0, 1.0)
    data = MemoryDataset(data.X(0, 100), data.y(0, 100), [0, 1], weight)
    for intercept in INTERCEPTS:
        w = world(data, "rbf", 3.0, intercept)
        found = solved(w, Pairs(every=10), make_rule("gap"), 1e-6)
        is_right(w, found, 1e-6)
        assert not found.point.alpha[weight == 0].any()
        assert found.last["rows_alive"] <= np.count_nonzero(weight)


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("intercept", INTERCEPTS)
@pytest.mark.parametrize("C", [1e-12, 1.0, 1e9])
@pytest.mark.parametrize(
    "name", ["equal", "contradictions", "one class", "zeros", "two", "one of a class"]
)
def test_degenerate_data_end_with_a_true_certificate(name, C, intercept):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((40, 3)).astype(np.float32)
    y = (np.arange(40) % 2).astype(np.int32)
    if name == "equal":
        X[:] = 1.0
    elif name == "contradictions":
        X[20:] = X[:20]
        y = (np.arange(40) < 20).astype(np.int32)
    elif name == "one class":
        y[:] = 1
    elif name == "zeros":
        X[:] = 0.0
    elif name == "two":
        X, y = X[:2], y[:2]
    elif name == "one of a class":
        y = (np.arange(40) == 7).astype(np.int32)
    for kernel, gamma in (("rbf", 0.3), ("rbf", 1e-9), ("rbf", 1e6), (None, 1.0)):
        w = world(MemoryDataset(X, y, [0, 1]), kernel, C, intercept, gamma=gamma)
        found = solved(w, Pairs(), make_rule("gap"), 1e-3, max_iter=100 if C > 1.0 else 300)
        assert np.isfinite(found.certificate.gap)
        assert found.certificate.gap >= -found.certificate.rounding_bound
        if C <= 1.0:
            assert found.certificate.relative_gap <= 1e-3


def test_a_kernel_that_is_not_psd_ends_where_nothing_violates():
    for intercept in INTERCEPTS:
        w = world(contracts.rows(8, 80), "sigmoid", 1.0, intercept, gamma=0.4, coef0=-0.3)
        found = solved(w, Pairs(eps=1e-4), None, 1e-12, max_iter=2000)
        assert found.last["steps"] < 10**5
        assert found.certificate.violation < 2e-4 and np.isnan(found.certificate.gap)


def test_a_precomputed_kernel_is_the_kernel():
    data = contracts.rows(9, 90)
    w = world(data, "rbf", 2.0, "true")
    gram = MemoryDataset(w.gram.astype(np.float32), data.y(0, 90), [0, 1], data.weights(0, 90))
    given = ExactWorld(Design(gram, Precomputed()), w.problem)
    one, other = (solved(x, Pairs(every=20), make_rule("gap"), 1e-7) for x in (w, given))
    np.testing.assert_allclose(one.certificate.dual, other.certificate.dual, rtol=1e-6)
    is_right(given, other, 1e-7)


def test_duplicated_rows_are_weights():
    data = contracts.rows(10, 80, weights=False)
    X, y = data.X(0, 80), data.y(0, 80)
    twice = MemoryDataset(np.vstack([X, X]), np.concatenate([y, y]), [0, 1])
    heavy = MemoryDataset(X, y, [0, 1], np.full(80, 2.0))
    for intercept in INTERCEPTS:
        ends = [
            solved(world(one, "rbf", 2.0, intercept), Pairs(), make_rule("gap"), 1e-7).certificate
            for one in (twice, heavy)
        ]
        np.testing.assert_allclose(ends[0].dual, ends[1].dual, rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"selection": "third"}, "second or first"),
        ({"working_set": 3}, "1 or 2"),
    ],
)
def test_options_out_of_range_are_refused(options, words):
    with pytest.raises(InputError, match=words):
        Pairs(**options)


def test_unsupported_designs_and_problems_are_refused():
    data = contracts.rows(0, 30)
    landmarks = contracts.world(data, "rbf")
    with pytest.raises(InputError, match="use newton"):
        Pairs().solve(Run(landmarks.design, landmarks.problem, None), None)
    w = world(data, "rbf", 1.0, "true")
    with pytest.raises(InputError, match="two variables"):
        Pairs(working_set=1).solve(Run(w.design, w.problem, None), None)


def test_the_pipeline_compares_working_sets(tmp_path):
    done = script("zimmert2015.working_sets", "--rows", 300, "--json", tmp_path / "r.json")
    assert done.returncode == 0, done.stderr
    assert "made-up" in done.stdout
    *runs, libsvm = json.loads((tmp_path / "r.json").read_text())["runs"]
    assert len(runs) == 6 and all(run["relative_gap"] < 1e-2 for run in runs)
    assert 0.5 < runs[-1]["steps"] / libsvm["steps"] < 2


# -- the cache ---------------------------------------------------------------------------------
@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10**6), cache=st.sampled_from([0, 2000, 10**6]), csr=st.booleans())
def test_rows_are_those_of_the_kernel_whoever_is_alive(seed, cache, csr):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((50, 4)).astype(np.float32)
    kernel, constant = make_kernel("rbf", 0.3), bool(seed % 2)
    rows = KernelRows(kernel, sparse.csr_array(X) if csr else X, constant, cache)
    want = kernel.block(X, Operand(X)) + np.float32(constant)
    before = 0
    for _ in range(6):
        for place in rng.integers(0, len(rows.alive), 10):
            row = rows[place]
            np.testing.assert_allclose(row, want[rows.alive[place]][rows.alive], atol=1e-5)
            assert row.flags.c_contiguous
            store = rows._kept[0].store
            assert store.nbytes <= max(cache, 3 * 8 * 50)
        assert rows.entries >= before
        before = rows.entries
        rows.set_alive(
            np.flatnonzero(rng.random(50) < rng.uniform(0.2, 1.0)) if seed else rows.alive
        )
        if not len(rows.alive):
            rows.set_alive(np.arange(50))


def test_rows_that_stay_are_not_computed_again():
    X = np.random.default_rng(0).standard_normal((20, 3)).astype(np.float32)
    rows = KernelRows(make_kernel("rbf", 0.3), X, False, 1 << 20)
    rows.set_alive(np.arange(10))
    rows[0], rows[0]
    assert rows.entries == 10
    rows.set_alive(np.arange(0, 10, 2))
    rows[0]
    assert rows.entries == 10
    rows.set_alive(np.arange(20))
    rows[0]
    assert rows.entries == 10 + 20
