"""Pair steps with a row cache on every problem: groups, totals, tubes, boxes below 0."""

import numpy as np
import pytest
from any_world import INTERCEPTS, KINDS, any_world, is_right
from exact_world import solved
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.svm import SVR, NuSVC, OneClassSVM

from bigscreen.data.memory import MemoryDataset
from bigscreen.errors import InputError
from bigscreen.features.design import Design
from bigscreen.problems.dual import AT_HI, AT_LO, AT_ZERO
from bigscreen.problems.recipes import NuSvc
from bigscreen.screening.dynamic import FSafe, Joachims, make_rule
from bigscreen.solvers.smo.solver import Pairs
from bigscreen.solvers.smo.state import SmoState


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(4, 40),
    kind=st.sampled_from(KINDS),
    intercept=st.sampled_from(INTERCEPTS),
    selection=st.sampled_from(["second", "first"]),
    rule=st.sampled_from(["none", "gap", "f-safe", "adaptive", "joachims"]),
    size=st.sampled_from([0.1, 1.0]),
    linear=st.booleans(),
)
def test_the_optimum_is_that_of_the_reference(
    seed, n, kind, intercept, selection, rule, size, linear
):
    kernel = None if linear and kind in ("lad", "svr", "quantile", "sublinear") else "rbf"
    w = any_world(seed, n, kind, intercept, kernel=kernel, size=size)
    found = solved(w, Pairs(selection, every=20), make_rule(rule), 1e-4)
    if found.certificate.primal > 1e-9 or kind != "bounded nu":
        is_right(w, found, 1e-4)


@pytest.mark.parametrize("kind", ["lad", "svr", "quantile", "sublinear"])
@pytest.mark.parametrize("working_set", [1, 2])
def test_steps_on_single_variables_reach_the_optimum(kind, working_set):
    w = any_world(1, 50, kind, "none")
    is_right(w, solved(w, Pairs(working_set=working_set), make_rule("gap"), 1e-7), 1e-7)


@pytest.mark.parametrize("kind", ["nu-svc", "one-class", "bounded nu"])
def test_one_variable_cannot_keep_a_total(kind):
    w = any_world(1, 20, kind)
    with pytest.raises(InputError, match="two variables"):
        solved(w, Pairs(working_set=1))


@pytest.mark.parametrize(
    ("kind", "machine", "scale"),
    [
        ("nu-svc", NuSVC, "sum"),
        ("one-class", OneClassSVM, "sum"),
        ("svr", SVR, None),
    ],
)
def test_the_objective_the_steps_and_the_offset_of_libsvm(kind, machine, scale):
    n = 200
    w = any_world(2, n, kind, weighted=False)
    data, problem = w.design.data, w.problem
    nu = {"nu": getattr(problem, "nu", 0)} if kind != "svr" else {"C": 2.0, "epsilon": 0.3}
    X, y = data.X(0, n).astype(np.float64), data.y(0, n)
    theirs = machine(gamma=0.4, tol=1e-8, shrinking=False, **nu).fit(X, y)
    coef = np.zeros(n)
    coef[theirs.support_] = theirs.dual_coef_[0]
    ratio = 1.0
    if scale:
        ratio = (1.0 if kind == "one-class" else problem.nu) / np.abs(coef).sum()
    found = solved(w, Pairs(), None, 1e-9)
    sign = w.dual.sign
    np.testing.assert_allclose(w.value(found.point.alpha), w.value(sign * coef * ratio), rtol=1e-6)
    offset = float(np.ravel(theirs.intercept_)[0]) * ratio
    np.testing.assert_allclose(found.point.intercept, offset, atol=1e-4 * max(1, abs(offset)))
    theirs = machine(gamma=0.4, tol=1e-3, shrinking=False, **nu).fit(X, y)
    # LIBSVM's rule, in the scale of its problem: the box is 1 there.
    eps = 1e-3 * (w.box.max() if scale else 1.0)
    found = solved(w, Pairs(eps=eps), None, 0.0)
    assert 0.5 < found.last["steps"] / int(np.ravel(theirs.n_iter_)[0]) < 1.5


@pytest.mark.parametrize("kind", ["svr", "nu-svc", "one-class"])
def test_what_the_gap_ball_removes_stays(kind):
    """Every row that goes is where the optimum has it; rows in a tube, at 0, go too."""
    w = any_world(3, 120, kind, weighted=False)
    gone = {}

    class Watched(SmoState):
        def screen(self, region):
            before = set(self.alive.tolist())
            super().screen(region)
            for row in before - set(self.alive.tolist()):
                gone[row] = int(self.screened.side[row])

    class WatchedPairs(Pairs):
        state_type = Watched

    found = solved(w, WatchedPairs(every=10), make_rule("gap"), 1e-8)
    is_right(w, found, 1e-8)
    assert found.last["false_removals"] == 0 and len(gone) > 30
    ends = {int(AT_HI): w.dual.hi, int(AT_LO): w.dual.lo, int(AT_ZERO): np.zeros(120)}
    for row, side in gone.items():
        assert abs(w.optimum.alpha[row] - ends[side][row]) <= 1e-5 * w.box[row]
    if kind == "svr":
        assert set(gone.values()) == {int(AT_HI), int(AT_LO), int(AT_ZERO)}


@pytest.mark.parametrize("kind", ["svr", "nu-svc", "one-class"])
@pytest.mark.parametrize("rule", [FSafe(0.01), Joachims(1)])
def test_bold_rules_end_right(rule, kind):
    for seed in range(3):
        w = any_world(seed, 100, kind)
        is_right(w, solved(w, Pairs(every=10), rule, 1e-6), 1e-6)


def test_a_start_keeps_the_total_and_moves_few_rows():
    for kind in ("nu-svc", "one-class", "bounded nu"):
        w = any_world(4, 60, kind)
        state = SmoState(w.design, w.problem, Pairs(whole=0), None)
        np.testing.assert_allclose(state.alpha, w.dual.feasible(state.alpha), atol=1e-15)
        inside = (state.alpha > 0) & (state.alpha < w.dual.hi)
        assert np.count_nonzero(inside) <= np.size(w.dual.total)
        # Any start is made feasible.
        state = SmoState(w.design, w.problem, Pairs(whole=0), np.full(60, 1e9))
        np.testing.assert_allclose(state.alpha, w.dual.feasible(state.alpha), atol=1e-15)


def test_a_total_that_no_alpha_has_is_refused():
    w = any_world(5, 40, "nu-svc")
    data = w.design.data
    codes = (np.arange(40) < 2).astype(np.int32)
    few = MemoryDataset(data.X(0, 40), codes, [0, 1])
    problem = NuSvc(0.5, 1, 40.0, (), "true")
    with pytest.raises(InputError, match="no solution"):
        SmoState(Design(few, w.design.kernel), problem, Pairs(whole=0), None)


@pytest.mark.parametrize("kind", ["svr", "nu-svc"])
def test_an_interrupted_solve_goes_on(kind, tmp_path, checkpoint_every):
    checkpoint_every(-1.0)
    w = any_world(6, 120, kind)
    whole = solved(w, Pairs(every=15), make_rule("gap"), 1e-7)
    seen = []

    def report(event):
        seen.append(event["event"])
        if seen.count("pass") == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        solved(w, Pairs(every=15), make_rule("gap"), 1e-7, report=report, folder=tmp_path)
    found = solved(w, Pairs(every=15), make_rule("gap"), 1e-7, folder=tmp_path, resume=True)
    is_right(w, found, 1e-7)
    np.testing.assert_allclose(found.certificate.dual, whole.certificate.dual, rtol=1e-6)
