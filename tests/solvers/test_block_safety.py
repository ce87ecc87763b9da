"""Screening in the block solver: safe rules fix nothing wrong, bold ones say what they did."""

import contracts
import numpy as np
import pytest
import reference
from block_world import GRID, ends_right, quiet, solved, watched, world
from contracts import INTERCEPTS, RECORD, RecordingBlock
from hypothesis import given, settings
from hypothesis import strategies as st

from bigscreen.fleet.inline import Inline
from bigscreen.problems.dual import AT_HI, AT_LO
from bigscreen.screening.dynamic import FSafe, GapBall, Joachims, make_rule
from bigscreen.screening.regions import Ball
from bigscreen.solvers.block.solver import Block

BOLD = [FSafe(0.01), make_rule("adaptive"), Joachims(1), Joachims(3)]


@pytest.fixture(scope="module", autouse=True)
def fleet():
    with Inline(1) as fleet, quiet():
        yield fleet


@pytest.fixture
def record():
    RECORD.clear()
    yield RECORD
    RECORD.clear()


class Reckless:
    """A ball that is too small, and a rule that calls it safe."""

    name, safe = "reckless", True

    def region(self, point, rounding):
        return Ball(0.05 * float(np.sqrt(max(point.gap, 0.0))))

    def after_restart(self, removed, false):
        return self


class States:
    """What the shards hold when a pass is reported, held against what it has to be."""

    def __init__(self, w, fleet):
        self.w, self.fleet, self.alive, self.fixed, self.looked = w, fleet, [], 0, 0

    def __call__(self, event):
        if event["event"] != "pass":
            return
        states = [state for _, state in sorted(self.fleet._shards.states.items())]
        alpha = np.concatenate([state.alpha for state in states])
        alive = np.concatenate([state.start + state.alive for state in states])
        scores = np.concatenate([state.scores for state in states])
        q, gram = self.w.oracle, self.w.gram
        want = gram @ (q.s * alpha)
        room = 1e-5 * (1 + np.abs(gram) @ alpha)
        assert np.all(np.abs(scores - want)[alive] <= room[alive])
        fixed = np.ones(len(alpha), np.bool_)
        fixed[alive] = False
        fixed[q.hi == 0] = False
        sides = np.full(len(alpha), -1)
        for state in states:
            for frozen in state.frozen:
                assert np.all(sides[state.start + frozen.local] < 0)
                sides[state.start + frozen.local] = frozen.side
        np.testing.assert_array_equal(np.flatnonzero(sides >= 0), np.flatnonzero(fixed))
        np.testing.assert_array_equal(alpha[sides == AT_HI], q.hi[sides == AT_HI])
        np.testing.assert_array_equal(alpha[sides == AT_LO], q.lo[sides == AT_LO])
        assert event["rows_alive"] == event["rows_visited"] == len(alive)
        self.alive.append(len(alive))
        self.fixed = max(self.fixed, int(fixed.sum()))
        self.looked += 1


# -- safe ----------------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize("intercept", INTERCEPTS)
@pytest.mark.parametrize(
    ("kernel", "sparse_rows", "C"),
    [
        ("rbf", False, 0.03),
        ("rbf", True, 1.0),
        ("rbf", False, 5.0),
        ("polynomial", False, 0.3),
        ("laplacian", True, 3.0),
        ("matern12", True, 3.0),
        ("matern52", False, 1.0),
        ("linear", False, 0.1),
    ],
)
def test_the_gap_ball_is_safe_in_every_pass(kernel, sparse_rows, C, intercept, fleet, record):
    fixed = 0
    for seed in range(3):
        record.clear()
        w = world(contracts.rows(seed, 120, 5, 0.7, sparse_rows, **GRID), kernel, C, intercept)
        found = solved(w, fleet, watched(program=RecordingBlock, size=16), GapBall(), 1e-4)
        fixed += contracts.screening_law(w, record)
        ends_right(w, found, 1e-4)
        alive = [event["rows_alive"] for event in found.history]
        if alive == sorted(alive, reverse=True):  # float64 begins again with all rows
            reported = found.screening["fixed_at_hi"] + found.screening["fixed_at_lo"]
            assert reported == sum(len(entry["fixed"]) for entry in record)
        assert found.history[-1]["false_removals"] == 0
    assert fixed > 50, "screening never bit: this test would prove nothing"


@pytest.mark.filterwarnings("ignore::RuntimeWarning:reference")
@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(4, 100),
    d=st.integers(1, 8),
    noise=st.floats(0.01, 3),
    C=st.floats(-3, 3),
    intercept=st.sampled_from(INTERCEPTS),
    kernel=st.sampled_from(["rbf", "laplacian", "matern12", "matern52", "polynomial", "linear"]),
    gamma=st.sampled_from([1e-3, 0.15, 3.0]),
    sparse_rows=st.booleans(),
)
def test_the_gap_ball_is_safe_everywhere(
    seed, n, d, noise, C, intercept, kernel, gamma, sparse_rows
):
    """At any accuracy, down to gaps that float32 entries cannot resolve."""
    data = contracts.rows(seed, n, d, noise, sparse_rows and n > 10, **GRID)
    w = world(data, kernel, 10.0**C, intercept, gamma)
    with Inline(1) as fleet:
        RECORD.clear()
        solver = watched(program=RecordingBlock, size=16)
        found = solved(w, fleet, solver, GapBall(), 1e-9, max_iter=40)
        for entry in RECORD:
            contracts.decisions_are_safe(w, entry["fixed"], entry["sides"])
        contracts.exact_law(w, found.point.alpha, found.certificate, None)


def test_a_ball_too_small_is_caught(fleet, record):
    """The mutation: these laws would say so."""
    caught = 0
    for seed in range(10):
        record.clear()
        w = world(contracts.rows(seed, 120, noise=1.5, **GRID), "rbf", 10.0)
        solver = watched(program=RecordingBlock, size=16)
        solved(w, fleet, solver, Reckless(), 1e-4, max_iter=100)
        try:
            contracts.screening_law(w, record)
        except AssertionError:
            caught += 1
    assert caught > 0


# -- bold ----------------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize("intercept", INTERCEPTS)
@pytest.mark.parametrize("rule", BOLD, ids=lambda rule: f"{rule.name}")
def test_bold_rules_end_right(rule, intercept, fleet):
    """What they remove wrongly comes back, and is counted."""
    wrong = back = 0
    for seed in range(4):
        w = world(contracts.rows(seed, 250, noise=1.5, **GRID), "rbf", 3.0, intercept)
        states = States(w, fleet)
        found = solved(w, fleet, Block(size=16), rule, 1e-6, report=states)
        ends_right(w, found, 1e-6)
        counted = [event["false_removals"] for event in found.history]
        assert counted == sorted(counted)
        wrong += counted[-1]
        back += found.screening["taken_back"]
        assert states.looked == len(found.history)
        assert states.fixed > 0 and min(states.alive) < 250
    assert back > 0
    assert wrong > 0 or (isinstance(rule, Joachims) and rule.patience > 1)


@pytest.mark.parametrize("intercept", ["none", "constant"])
def test_false_removals_are_those_that_violate(intercept, fleet):
    """One screening by the present gradient alone, then all rows come back."""
    w = world(contracts.rows(3, 250, noise=1.5, **GRID), "rbf", 3.0, intercept)
    q, seen = w.oracle, []

    class Once(Reckless):
        safe, calls = False, 0

        def region(self, point, rounding):
            self.calls += 1
            return Ball(0.0) if self.calls == 5 else None

    def report(event):
        if event["event"] == "pass":
            states = [state for _, state in sorted(fleet._shards.states.items())]
            alpha = np.concatenate([state.alpha for state in states])
            alive = np.concatenate([state.start + state.alive for state in states])
            seen.append((alpha, np.setdiff1d(np.arange(250), alive), event["false_removals"]))

    found = solved(w, fleet, Block(size=16), Once(), 1e-6, report=report)
    ends_right(w, found, 1e-6)
    assert found.screening["taken_back"] == 1
    alpha, gone, _ = [entry for entry in seen if len(entry[1])][-1]
    G = reference.gradient(q, q.phi @ reference.w_of(q, alpha))[gone]
    wrong = np.where(alpha[gone] == q.hi[gone], G < 0, G > 0)
    assert [entry[2] for entry in seen][-1] == np.count_nonzero(wrong) > 0


@pytest.mark.slow
@pytest.mark.parametrize("intercept", INTERCEPTS)
@pytest.mark.parametrize("rule", [GapBall(), *BOLD], ids=lambda rule: rule.name)
def test_every_pass_holds_the_scores_of_its_alpha(rule, intercept, fleet):
    """After moves of others, after rows have left, after all have come back."""
    for sparse_rows, columns in ((False, 5), (True, 10**4)):
        data = contracts.rows(11, 200, 5, 1.0, sparse_rows, **GRID)
        w = world(data, "rbf", 3.0, intercept)
        states = States(w, fleet)
        found = solved(w, fleet, Block(size=16, cache=4 * 200 * columns), rule, 1e-6, report=states)
        ends_right(w, found, 1e-6)
        assert states.looked == len(found.history) and states.fixed > 20
        alive = [event["rows_alive"] for event in found.history]
        gone = [entry["at_hi"] + entry["at_lo"] for entry in found.screening["passes"]]
        if not found.screening["taken_back"]:
            assert alive[-1] == 200 - sum(gone)
        assert alive == states.alive


def test_a_screened_row_is_in_no_block(fleet):
    """The block is chosen before the rows are screened: what leaves must leave it too."""
    moved = []

    class Watching(RecordingBlock):
        def _move(self, state, message):
            here = message["ids"] - state.start
            here = here[(here >= 0) & (here < len(state.alpha))]
            watched = message["watch"] - state.start
            watched = watched[(watched >= 0) & (watched < len(state.alpha))]
            moved.append(len(here))
            assert np.all(np.isin(np.concatenate([here, watched]), state.alive))
            return super()._move(state, message)

    for seed in range(8):
        for rule in (GapBall(), *BOLD):
            w = world(contracts.rows(seed, 150, noise=1.5, **GRID), "polynomial", 0.1, "true")
            ends_right(w, solved(w, fleet, watched(program=Watching, size=64), rule, 1e-5))
    assert sum(moved) > 1000
