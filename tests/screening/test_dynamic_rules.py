"""Rules that screen during a solve: what they hand out, learn and may not do."""

import contracts
import numpy as np
import pytest
from contracts import INTERCEPTS
from exact_world import ExactWorld, solved
from hypothesis import given, settings
from hypothesis import strategies as st

from bigscreen.errors import InputError
from bigscreen.features.design import Design
from bigscreen.fit.monitor import Limits, Monitor
from bigscreen.kernels.standard import make_kernel
from bigscreen.problems.point import Certificate, Point
from bigscreen.problems.recipes import CSvc
from bigscreen.screening.dynamic import Adaptive, FSafe, GapBall, Joachims, make_rule, max_distance
from bigscreen.solvers.smo.solver import Pairs
from bigscreen.solvers.smo.state import SmoState


def point(gap=0.25, paired=True):
    return Point(np.empty(0), np.empty(0), 0.0, 1.0, 1.0 - gap, paired)


def test_the_regions_of_each_rule():
    assert make_rule("none") is None
    assert GapBall().region(point(), 0.0).radius == 0.5
    assert GapBall().region(point(0.125, False), 0.0).radius == 0.5
    assert FSafe(0.1).region(point(), 0.0).radius == pytest.approx(0.05)
    assert Adaptive(0.2).region(point(0.2), 0.05).radius == pytest.approx(0.1)
    shrink = make_rule("joachims", patience=4).region(point(), 0.0)
    assert shrink.radius == 0.0 and shrink.patience == 4
    assert GapBall().region(point(), 0.0).patience == 1
    assert GapBall().region(point(np.inf), 0.0) is None
    assert [make_rule(name).name for name in ("gap", "f-safe", "adaptive", "joachims")] == [
        "gap", "f-safe", "adaptive", "joachims"
    ]  # fmt: skip


@pytest.mark.parametrize(
    "make", [lambda: make_rule("all"), lambda: FSafe(1.0), lambda: Joachims(0)]
)
def test_wrong_rules_and_parameters_are_refused(make):
    with pytest.raises(InputError):
        make()


def test_fixed_rules_stay_the_same_after_a_restart():
    for rule in (GapBall(), FSafe(0.1), Joachims(2)):
        assert rule.after_restart(100, 50) is rule


def test_the_adaptive_rule_grows_careful_and_bold():
    rule = Adaptive(0.03)
    assert not rule.safe
    assert (
        rule.after_restart(1000, 0).f
        < rule.f
        < rule.after_restart(1000, 1).f
        < rule.after_restart(1000, 500).f
    )
    for _ in range(4):
        rule = rule.after_restart(1000, 1)
    # It ends as the gap ball, whose removals are none of its own to regret.
    assert rule.safe and rule.f == 1.0
    assert rule.after_restart(1000, 0).safe
    assert rule.region(point(), 0.0).radius == GapBall().region(point(), 0.0).radius


# -- the monitor -------------------------------------------------------------------------------
def stats(**more):
    none = dict.fromkeys(("rows_alive", "rows_visited", "fixed_hi", "fixed_lo"), 0)
    return {**none, "stalled": False, **more}


def monitor(rule, **limits):
    def certify(p):
        return Certificate(1.0, p.dual, p.gap, p.relative_gap, 0, "float32", 3, 3)

    return Monitor(certify=certify, limits=Limits(**limits), rule=rule, report=lambda event: None)


def test_the_rule_learns_how_many_rows_were_removed_wrongly():
    check = monitor(Adaptive(0.01), restarts=9)
    assert check(point(), stats(), None).region.radius == pytest.approx(0.005)
    check(point(), stats(fixed_lo=30, kernel_entries=7, false_removals=0), None)
    assert check(point(), stats(stalled=True, false_removals=0), None).restart
    after = check(point(), stats(false_removals=2), None)
    assert check.removals.restarted_counts == [[30, 2]]
    assert after.region.radius == pytest.approx(0.5 * check.rule.f) and check.rule.f > 0.01
    check(point(), stats(fixed_hi=5, false_removals=2), None)
    assert check(point(), stats(stalled=True, false_removals=2), None).restart
    check(point(), stats(false_removals=2), None)
    assert check.removals.restarted_counts == [[30, 2], [5, 0]]
    assert check.history[1]["kernel_entries"] == 7 and "kernel_entries" not in check.history[0]


def test_a_stalled_solver_with_all_rows_alive_has_ended():
    check = monitor(FSafe(0.1))
    check(point(), stats(fixed_lo=3), None)
    assert check(point(), stats(stalled=True), None).restart
    assert check(point(), stats(stalled=True), None) is None


@pytest.mark.parametrize("counts", [True, False])
def test_a_rule_that_stays_wrong_is_replaced_by_the_gap_ball(counts):
    check = monitor(FSafe(0.1), restarts=2)
    for k in range(2):
        false = {"false_removals": k} if counts else {}
        check(point(), stats(fixed_lo=3, **false), None)
        assert check(point(), stats(stalled=True, **false), None).restart
        false = {"false_removals": k + 1} if counts else {}
        check(point(), stats(**false), None)
    assert isinstance(check.rule, GapBall)
    assert check.removals.restarted_counts == ([[3, 1], [3, 1]] if counts else [[3, 3], [3, 3]])
    # Its removals are safe: nothing is taken back any more.
    check(point(), stats(fixed_lo=3), None)
    assert check(point(), stats(stalled=True), None) is None


def test_counts_of_restarts_survive_a_checkpoint(tmp_path):
    before = monitor(Adaptive(0.01), restarts=9)
    before.folder, saved = tmp_path, []
    before.saved = 1e18
    before(point(), stats(fixed_lo=3), None)
    before(point(), stats(stalled=True), None)
    before(point(), stats(false_removals=1), None)
    before.saved = -1e9
    before(point(), stats(false_removals=1, fixed_lo=2), lambda folder, meta: saved.append(meta))
    after = monitor(Adaptive(0.01), restarts=9)
    after.restored(saved[0])
    assert (
        after.rule == before.rule
        and after.removals.restarted_counts == before.removals.restarted_counts
    )
    again = after(point(), stats(false_removals=1, fixed_lo=2), None)
    assert again.region.radius == pytest.approx(0.5 * before.rule.f)
    assert after(point(), stats(false_removals=1, stalled=True), None).restart


# -- in a solve --------------------------------------------------------------------------------
class Watched(SmoState):
    """Records every screening: its intervals, and the rows that it removed."""

    record: list = []

    def screen(self, region):
        before, side = self.alive, self.screened.side.copy()
        super().screen(region)
        gone = np.setdiff1d(before, self.alive)
        assert np.all(side[gone] == 2) and np.all(self.screened.side[gone] != 2)
        Watched.record.append((gone, self.screened.side[gone]))

    def _multipliers(self, lower, upper):
        found = super()._multipliers(lower, upper)
        Watched.record.append((self.alive, lower, upper, found))
        return found


class WatchedPairs(Pairs):
    """Pair steps whose screenings are recorded."""

    state_type = Watched


@pytest.mark.slow
@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 10**6),
    kernel=st.sampled_from(["rbf", None]),
    C=st.sampled_from([0.1, 1.0, 10.0]),
    intercept=st.sampled_from(INTERCEPTS),
    every=st.integers(1, 40),
)
def test_the_gap_ball_removes_nothing_wrongly(seed, kernel, C, intercept, every):
    made = None if kernel is None else make_kernel(kernel, 0.3)
    w = ExactWorld(Design(contracts.rows(seed, 50), made), CSvc(C, 1, (1.0, 2.0), intercept))
    Watched.record.clear()
    found = solved(w, WatchedPairs(every=every), GapBall(), 1e-6, max_iter=300)
    assert found.last["false_removals"] == 0
    for entry in Watched.record:
        if len(entry) == 2:
            contracts.decisions_are_safe(w, *entry)
        else:
            alive, lower, upper, (low, high) = entry
            contracts.intervals_hold(w, alive, lower, upper)
            if intercept == "true":
                assert low - 1e-7 <= w.optimum.mu <= high + 1e-7 or contracts._as_good(w, low, high)


def test_shrinking_removes_a_row_after_patience_checks():
    """A row goes at the check that decides about it for the k-th time running."""
    w = ExactWorld(
        Design(contracts.rows(1, 120), make_kernel("rbf", 0.15)), CSvc(1.0, 1, (), "none")
    )
    first = {}
    for patience in (1, 2, 5):
        found = solved(w, Pairs(every=10), Joachims(patience), 1e-6)
        first[patience] = found.monitor.removals.fixed[0]["pass"]
    assert first[2] >= first[1] + 1 and first[5] >= first[1] + 4


def test_unsafe_rules_remove_rows_wrongly_and_safe_rules_do_not():
    w = ExactWorld(
        Design(contracts.rows(2, 200, noise=1.5), make_kernel("rbf", 0.15)),
        CSvc(10.0, 1, (), "none"),
    )
    found = {}
    for name, f in (("none", 0), ("gap", 0), ("f-safe", 0.001)):
        rule = None if name == "none" else GapBall() if name == "gap" else FSafe(f)
        found[name] = solved(w, Pairs(every=10), rule, 1e-5, restarts=100)
    assert (
        found["gap"].last["false_removals"] == 0
        and not found["gap"].monitor.removals.restarted_counts
    )
    assert found["f-safe"].last["false_removals"] > 0
    duals = [one.certificate.dual for one in found.values()]
    np.testing.assert_allclose(duals, duals[0], rtol=1e-4)


def test_how_far_the_optimum_can_be_from_a_w_that_is_not_w_of_alpha():
    """``d / 2 + sqrt(gap - d^2 / 4)`` up to ``d^2 = 2 gap``, and no less where d is in doubt."""
    assert max_distance(4.0, 0.0, 0.0) == pytest.approx(2.0)
    assert max_distance(4.0, 2.0, 0.0) == pytest.approx(1.0 + np.sqrt(3.0))
    assert max_distance(4.0, np.sqrt(8.0), 0.0) == pytest.approx(np.sqrt(8.0))
    assert max_distance(4.0, None, 0.0) == max_distance(4.0, np.nan, 0.0) == np.sqrt(8.0)
    assert max_distance(4.0, 2.0, 0.01) == pytest.approx(1.05 + np.sqrt(4.0 - 1.05**2))
    assert max_distance(4.0, 9.0, 0.0) == np.sqrt(8.0)  # no pair is so far apart
