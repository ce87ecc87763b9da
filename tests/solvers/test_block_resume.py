"""The block solver cut short, interrupted, moved from worker to worker: not a bit changes."""

import os
import signal
import time

import contracts
import pytest
from block_world import GRID, ends_right, quiet, same_end, solved, steady, world
from contracts import INTERCEPTS

from bigscreen.fleet.inline import Inline
from bigscreen.screening.dynamic import make_rule
from bigscreen.solvers.block.solver import Block


@pytest.fixture(scope="module", autouse=True)
def fleet():
    with Inline(1) as fleet, quiet():
        yield fleet


@pytest.mark.parametrize("budget", ["max_iter", "no time"])
@pytest.mark.parametrize("intercept", INTERCEPTS)
def test_a_budget_ends_with_a_true_certificate(budget, intercept, fleet):
    w = world(contracts.rows(4, 200, **GRID), "rbf", 10.0, intercept)
    how = {"max_iter": 3} if budget == "max_iter" else {"deadline": time.monotonic() - 1}
    found = solved(w, fleet, Block(size=8), make_rule("gap"), 1e-9, **how)
    assert len(found.history) == (3 if budget == "max_iter" else 1)
    contracts.exact_law(w, found.point.alpha, found.certificate, None)
    assert found.certificate.relative_gap > 1e-9


class Interrupt:
    """Ctrl-C at a pass, or a crash."""

    def __init__(self, at, crash):
        self.at, self.crash, self.passes = at, crash, 0

    def __call__(self, event):
        if event["event"] != "pass":
            return
        self.passes += 1
        if self.passes == self.at:
            if self.crash:
                raise KeyboardInterrupt
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.slow
@steady
@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("intercept", INTERCEPTS)
@pytest.mark.parametrize(
    ("rule", "sparse_rows", "columns", "C"),
    [
        ("none", False, 200, 3.0),
        ("gap", True, 20, 3.0),
        ("f-safe", False, 40, 3.0),
        ("gap", False, 200, 300.0),  # ends in float64
    ],
)
def test_an_interrupted_fit_ends_in_the_same_bits(
    rule, sparse_rows, columns, C, intercept, crash, fleet, tmp_path, checkpoint_every
):
    checkpoint_every(-1.0 if crash else 1e9)
    data = contracts.rows(6, 200, 6, 1.0, sparse_rows, **GRID)
    w = world(data, "rbf", C, intercept)
    solver, made = Block(size=16, cache=4 * 200 * columns), make_rule(rule, 0.01)
    whole = solved(w, fleet, solver, made, 1e-6)
    ends_right(w, whole, 1e-6)
    count = len(whole.history)
    # A crash after the first pass finds nothing written; to write after every pass takes time.
    # (f-safe: the last pass but one takes rows back, and writes none.)
    late = count - 2 if rule == "f-safe" else count - 1
    for at in [count // 3] if crash else [1, count // 2, late]:
        folder = tmp_path / str(at)
        how = {"folder": folder, "report": Interrupt(at, crash)}
        with pytest.raises(KeyboardInterrupt):
            solved(w, fleet, solver, made, 1e-6, **how)
        same_end(solved(w, fleet, solver, made, 1e-6, folder=folder, resume=True), whole)


@steady
def test_a_fit_interrupted_where_float64_takes_over(fleet, tmp_path, checkpoint_every):
    checkpoint_every(1e9)
    w = world(contracts.rows(6, 150, 6, 1.0, **GRID), "rbf", 300.0, "true")
    whole = solved(w, fleet, Block(size=64), None, 1e-6)
    for at in range(1, len(whole.history)):
        folder = tmp_path / str(at)
        with pytest.raises(KeyboardInterrupt):
            solved(w, fleet, Block(size=64), None, 1e-6, folder=folder, report=Interrupt(at, False))
        same_end(solved(w, fleet, Block(size=64), None, 1e-6, folder=folder, resume=True), whole)


class Shuttle(Inline):
    """A fleet whose every shard moves to another worker before every round."""

    def start(self, program, n_shards):
        super().start(program, n_shards)
        self.carried = program

    def round(self, message):
        for s, state in self._shards.states.items():
            self._shards.states[s] = self.carried.load(s, self.carried.save(state))
        return super().round(message)


@pytest.mark.slow
@steady
@pytest.mark.parametrize("rule", ["none", "gap", "f-safe", "joachims"])
@pytest.mark.parametrize("sparse_rows", [False, True])
@pytest.mark.parametrize("intercept", INTERCEPTS)
def test_threads_and_moves_change_no_bit(intercept, sparse_rows, rule):
    """No cache survives a move, so what is kept must be what is computed again."""
    data = contracts.rows(5, 200, 6, 1.0, sparse_rows, **GRID)
    w = world(data, "rbf", 100.0 if rule == "none" else 3.0, intercept)
    ends = []
    for fleet in (Inline(1), Inline(3), Shuttle(1)):
        with fleet:
            ends.append(solved(w, fleet, Block(size=16), make_rule(rule, 0.01), 1e-6))
    same_end(ends[1], ends[0])
    same_end(ends[2], ends[0])
    assert ends[2].history[-1]["kernel_entries"] > ends[0].history[-1]["kernel_entries"]
