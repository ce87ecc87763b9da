"""Walks along a grid: screening does not change the objectives, and records add up."""

from __future__ import annotations

import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st
from path_world import NaiveStage, blobs, line

from bigscreen.path.resume import restore, state
from bigscreen.path.walk import PathSettings, Walk
from bigscreen.problems.dual import FREE
from bigscreen.problems.recipes import CSvc, Lad, NuSvc, OneClass, Quantile, Svr
from bigscreen.screening.sequential import make_path_rule

GRID = np.geomspace(0.02, 2.0, 7)
NUS = np.linspace(0.2, 0.7, 6)
PROBLEMS = {
    "svc": (CSvc(1.0, 1), GRID, ("dvi", "ssnsv", "essnsv", "gap")),
    "svc, offset": (CSvc(1.0, 1, (1.0, 2.0), "true"), GRID, ("dvi", "essnsv", "gap")),
    "lad": (Lad(1.0), GRID, ("dvi", "gap")),
    "svr": (Svr(1.0, 0.2), GRID, ("dvi", "gap")),
    "quantile": (Quantile(1.0, 0.3), GRID, ("dvi", "gap")),
    "nu": (NuSvc(0.5, 1, 60.0), NUS, ("srbo-cut", "srbo", "gap")),
    "nu, offset": (NuSvc(0.5, 1, 60.0, (), "true"), NUS, ("srbo-cut", "srbo", "gap")),
    "one-class": (OneClass(0.5, 60.0), NUS, ("srbo-cut", "srbo", "gap")),
}


def walked(name, rules, seed=0, tol=1e-3, weights=None, **how):
    problem, grid, _ = PROBLEMS[name]
    phi, y = line(seed=seed) if name in ("lad", "svr", "quantile") else blobs(seed=seed)
    # Rows on all sides of the origin have the one-class optimum w = 0, and no relative gap.
    phi = phi + 2.0 if name == "one-class" else phi
    weights = np.ones(len(y)) if weights is None else weights
    stage = NaiveStage(phi)
    manner = PathSettings(tol, tuple(make_path_rule(rule) for rule in rules), **how)
    walk = Walk(stage, problem, y, weights, grid, manner)
    return [walk.step(k) for k in range(len(grid))], stage


@pytest.mark.parametrize("name", PROBLEMS)
def test_screening_changes_no_objective(name):
    rules = PROBLEMS[name][2]
    screened, _ = walked(name, rules)
    plain, _ = walked(name, ())
    for one, other in zip(screened, plain, strict=True):
        a, b = one.solved, other.solved
        # Two certified intervals around the same optimum must meet.
        assert a.dual <= b.primal + b.rounding and b.dual <= a.primal + a.rounding
        assert a.relative_gap <= 1e-3
    assert all(step.record["left"] == step.record["rows"] for step in plain)


@pytest.mark.parametrize("name", ["svc", "lad", "svr", "nu", "one-class"])
def test_rules_find_rows_and_records_add_up(name):
    rules = PROBLEMS[name][2]
    steps, stage = walked(name, rules, tol=1e-7)
    assert any(step.record["left"] < step.record["rows"] for step in steps[1:])
    solves = iter(stage.calls)
    if any(make_path_rule(rule).needs_both_sides for rule in rules):
        next(solves)  # the largest C comes first
        steps = steps[:-1]
    for step, (dual, _, decided) in zip(steps, solves, strict=True):
        record = step.record
        assert record["left"] == np.count_nonzero((decided == FREE) & (dual.hi > dual.lo))
        if record["screened"]:
            found = {name: sum(at.values()) for name, at in record["screened"].items()}
            assert found["all"] == record["rows"] - record["left"]
            assert found["all"] >= max(found.values()) == found["all"]
        assert record["support"] == np.count_nonzero(step.solved.alpha)


@given(seed=st.integers(0, 999), tol=st.sampled_from([1e-1, 1e-3, 1e-9]), offset=st.booleans())
@settings(deadline=None, max_examples=12)
def test_no_row_is_decided_against_its_optimum(seed, tol, offset):
    name = "svc, offset" if offset else "svc"
    weights = np.random.default_rng(seed).integers(0, 3, 60).astype(float)
    _, stage = walked(name, PROBLEMS[name][2], seed, tol, weights)
    for dual, alpha, decided in stage.calls:
        q = reference.Problem(
            stage.phi, dual.sign, dual.lin, np.array(dual.lo), dual.hi, dual.coupling, 0.0
        )
        best = reference.solve(q).alpha
        rows = decided != FREE
        assert np.allclose(alpha[rows], best[rows], atol=1e-6 * dual.hi.max())


def test_warm_starts_are_multiples_of_the_point_before():
    steps, stage = walked("svc", ())
    for k in range(1, len(GRID)):
        before, start = steps[k - 1].solved.alpha, stage.calls[k][1]
        assert np.allclose(start, before * GRID[k] / GRID[k - 1], rtol=1e-12)
    _, stage = walked("svc", (), warm=False)
    assert all(not alpha.any() for _, alpha, _ in stage.calls)


def test_a_rule_that_needs_the_end_has_it_solved_first_and_once():
    steps, stage = walked("svc", ("ssnsv",))
    solved = [dual.hi.max() for dual, _, _ in stage.calls]
    assert np.allclose(solved, [GRID[-1], *GRID[:-1]])
    assert [step.record["init"] for step in steps] == [True, *[False] * 5, True]
    assert [step.record["value"] for step in steps] == GRID.tolist()


def test_held_out_rows_take_no_part_and_are_scored():
    weights = (np.arange(60) % 3 > 0).astype(float)
    steps, _ = walked("svc", ("dvi", "gap"), weights=weights)
    phi, codes = blobs()
    alone = NaiveStage(phi[weights > 0])
    walk = Walk(
        alone, CSvc(1.0, 1), codes[weights > 0], weights[weights > 0], GRID, PathSettings(1e-3)
    )
    for k, step in enumerate(steps):
        assert not step.solved.alpha[weights == 0].any()
        assert step.record["rows"] == 40
        other = walk.step(k).solved
        assert step.solved.dual <= other.primal and other.dual <= step.solved.primal
        w = phi.T @ (step.dual.sign * step.solved.alpha)
        assert np.allclose(step.decision, phi @ w)


@pytest.mark.parametrize("name", ["svc", "nu, offset"])
def test_a_walk_goes_on_bit_for_bit_from_its_state(name):
    problem, grid, rules = PROBLEMS[name]
    phi, y = blobs()
    manner = PathSettings(1e-3, tuple(make_path_rule(rule) for rule in rules))

    def fresh():
        return Walk(NaiveStage(phi), problem, y, np.ones(60), grid, manner)

    whole = fresh()
    steps = [whole.step(k) for k in range(len(grid))]
    first, second = fresh(), fresh()
    for k in range(3):
        first.step(k)
    restore([second], state([first]))
    for k in range(3, len(grid)):
        assert np.array_equal(second.step(k).solved.alpha, steps[k].solved.alpha)
