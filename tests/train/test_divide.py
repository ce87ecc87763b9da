"""Divide and conquer makes feasible starts that are worth something, and solves end the same."""

import json
import pickle
import time
from typing import ClassVar

import contracts
import numpy as np
import pytest
import reference
from contracts import INTERCEPTS
from exact_world import ExactWorld
from exact_world import solved as solved_world
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import sparse

import bigscreen
from bigscreen.certify.explicit import close_explicit
from bigscreen.data.memory import MemoryDataset
from bigscreen.data.views import Picked
from bigscreen.errors import InputError
from bigscreen.features.design import Design
from bigscreen.fit.loop import fit
from bigscreen.fit.monitor import Limits
from bigscreen.fleet.inline import Inline
from bigscreen.fleet.local import local_cluster
from bigscreen.kernels.given import Precomputed
from bigscreen.kernels.standard import make_kernel
from bigscreen.options.train import TrainOptions
from bigscreen.options.tuning import Tuning
from bigscreen.problems.recipes import CSvc
from bigscreen.screening.dynamic import make_rule
from bigscreen.solvers.coordinate import CoordinateDescent
from bigscreen.solvers.newton.solver import Newton
from bigscreen.solvers.protocol import Run
from bigscreen.solvers.smo.solver import Pairs
from bigscreen.train.divide import (
    Division,
    count_parts,
    divide,
    load_rows,
    longest_step,
    pick_rows,
    squared_norm,
)
from bigscreen.train.run import train


@pytest.fixture(scope="module")
def fleet():
    with Inline(2) as fleet:
        yield fleet


def world(seed=0, n=150, kernel="rbf", C=1.0, intercept="none", gamma=0.3, **how):
    data = contracts.rows(seed, n, **{"shard_rows": 64, "chunk_rows": 32} | how)
    made = None if kernel is None else make_kernel(kernel, gamma, 2, 1.0)
    return ExactWorld(Design(data, made), CSvc(C, 1, (1.0, 2.0), intercept))


def divided(w, fleet, parts=5, solver=None, **how):
    division = Division(parts=parts, **how)
    return divide(w.design, w.problem, fleet, solver or Pairs(), Inline, division)


def is_feasible(w, alpha):
    assert alpha.shape == w.box.shape
    assert np.all(alpha >= 0) and np.all(alpha <= w.box)
    if w.problem.intercept == "true":
        assert abs(w.oracle.s @ alpha) <= 1e-10 * w.box.sum()


def plain(record):
    """What of a record does not depend on the clock."""
    return json.loads(
        json.dumps(record), object_hook=lambda d: {k: v for k, v in d.items() if "seconds" not in k}
    )


# -- what comes of the parts ----------------------------------------------------------------------
@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(2, 90),
    kernel=st.sampled_from(["rbf", "polynomial", None]),
    C=st.sampled_from([0.01, 1.0, 30.0]),
    intercept=st.sampled_from(INTERCEPTS),
    parts=st.integers(1, 12),
    levels=st.integers(1, 2),
    sparse_rows=st.booleans(),
    weights=st.booleans(),
)
@example(1, 80, "polynomial", 30.0, "none", 1, 1, False, False)
def test_a_start_is_feasible_and_better_than_nothing(
    seed, n, kernel, C, intercept, parts, levels, sparse_rows, weights
):
    sparse_rows = sparse_rows and n > 10
    w = world(seed, n, kernel, C, intercept, sparse_rows=sparse_rows, weights=weights)
    with Inline(1) as fleet:
        how = {"parts": min(n, parts), "levels": levels}
        raw = divided(w, fleet, early=True, **how)
        found = divided(w, fleet, refine=0, **how)
        refined = divided(w, fleet, tol=1e-4, **how)
    for one in (raw, found, refined):
        is_feasible(w, one.alpha)
    # D is the difference of p . alpha and a norm of float32 entries, which may be larger than 1.
    room, size = 1e-12, np.abs(w.oracle.phi @ w.oracle.phi.T)
    for one in (raw, refined):
        room += 3e-6 * one.alpha.sum() + 2.0**-22 * (one.alpha @ size @ one.alpha)
    value = w.value(found.alpha)
    # The scale only ever helps, and is the best there is.
    assert value >= w.value(raw.alpha) - room and value >= -room
    scale = found.record["scale"]
    assert scale["dual"] == pytest.approx(value, rel=1e-5, abs=room)
    np.testing.assert_allclose(found.alpha, scale["factor"] * raw.alpha, rtol=1e-12, atol=1e-14)
    for t in (0.9, 0.99, 1.01, 1.1):
        if np.all(t * found.alpha <= w.box):
            assert w.value(t * found.alpha) <= value + room
    # Refining goes on from there, on the support rows.
    assert w.value(refined.alpha) >= refined.record["scale"]["dual"] - room
    assert w.value(refined.alpha) <= w.optimum.primal + room


@pytest.mark.parametrize("intercept", INTERCEPTS)
def test_parts_are_solved_as_problems_of_their_own(intercept, fleet):
    w = world(n=120, intercept=intercept)
    found = divided(w, fleet, 4, early=True, tol=1e-5)
    data = w.design.data
    assert len(found.intercepts) == len(found.partition.sizes)
    for p in range(len(found.intercepts)):
        ids = np.flatnonzero(found.partition.assign == p)
        part = MemoryDataset(data.rows(ids), data.y(0, 120)[ids], [0, 1], data.weights(0, 120)[ids])
        own = ExactWorld(Design(part, w.design.kernel), w.problem)
        best = own.optimum
        assert own.value(found.alpha[ids]) == pytest.approx(best.dual, rel=2e-5)
        # The offset serves the part: P there is next to the optimum.
        w_part = reference.w_of(own.oracle, found.alpha[ids])
        mu = found.intercepts[p] if intercept == "true" else 0.0
        assert reference.primal(own.oracle, w_part, mu) <= best.primal * (1 + 1e-4)
        if intercept == "constant":
            s = own.oracle.s
            assert found.intercepts[p] == pytest.approx(s @ found.alpha[ids], abs=1e-6)


@pytest.mark.parametrize("intercept", INTERCEPTS)
def test_parts_of_one_class_have_alpha_0(intercept, fleet):
    """Far apart, a class each: with an unpenalised offset a part's own alpha is 0."""
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1, 0, 1], 30).astype(np.int32)
    X = rng.normal(size=(120, 2)) * 0.1 + np.repeat([[0, 0], [9, 0], [0, 9], [9, 9]], 30, axis=0)
    w = ExactWorld(
        Design(MemoryDataset(X, y, [0, 1]), make_kernel("rbf", 0.5)), CSvc(1.0, 1, (), intercept)
    )
    found = divided(w, fleet, 4)
    is_feasible(w, found.alpha)
    if intercept == "true":
        assert not found.alpha.any() and "refine" not in found.record
        for p, b in enumerate(found.intercepts):
            assert b == (1.0 if y[found.partition.assign == p][0] == 1 else -1.0)
    else:
        assert all(found.alpha[y == code].any() for code in (0, 1))
    end = solved_world(w, Pairs(), tol=1e-5, start=found.alpha)
    assert end.certificate.relative_gap <= 1e-5
    assert end.certificate.dual == pytest.approx(w.optimum.dual, rel=2e-5)


def test_rows_without_weight_are_no_variables(fleet):
    rng = np.random.default_rng(1)
    base = contracts.rows(1, 160, weights=False)
    X, y = base.X(0, 160), base.y(0, 160)
    weight = np.where(rng.random(160) < 0.5, 0.0, 1.0)
    weight[y == 1] *= rng.uniform(0.5, 2, 160)[y == 1]
    w = ExactWorld(
        Design(MemoryDataset(X, y, [0, 1], weight), make_kernel("rbf", 0.3)),
        CSvc(1.0, 1, (), "true"),
    )
    found = divided(w, fleet, 6)
    is_feasible(w, found.alpha)
    assert not found.alpha[weight == 0].any() and found.alpha.any()


@pytest.mark.parametrize("intercept", INTERCEPTS)
def test_equal_rows_count_as_weights_do(intercept, fleet):
    base = contracts.rows(2, 80, weights=False)
    X, y = base.X(0, 80), base.y(0, 80)
    kernel, problem = make_kernel("rbf", 0.3), CSvc(1.0, 1, (), intercept)
    twice = Design(MemoryDataset(np.tile(X, (2, 1)), np.tile(y, 2), [0, 1]), kernel)
    heavy = Design(MemoryDataset(X, y, [0, 1], np.full(80, 2.0)), kernel)
    values = []
    for design in (twice, heavy):
        w = ExactWorld(design, problem)
        found = divided(w, fleet, 4, tol=1e-4)
        is_feasible(w, found.alpha)
        end = solved_world(w, Pairs(), tol=1e-5, start=found.alpha)
        assert end.certificate.relative_gap <= 1e-5
        values.append(end.certificate.dual)
    assert values[0] == pytest.approx(values[1], rel=2e-5)


def test_equal_rows_make_a_feasible_start(fleet):
    y = np.arange(60, dtype=np.int32) % 2
    design = Design(MemoryDataset(np.ones((60, 3)), y, [0, 1]), make_kernel("rbf", 1.0))
    for intercept in INTERCEPTS:
        w = ExactWorld(design, CSvc(1.0, 1, (), intercept))
        for largest in (None, 20):
            found = divided(w, fleet, 5, largest=largest)
            is_feasible(w, found.alpha)


# -- levels, the same anywhere ---------------------------------------------------------------------
def test_levels_go_from_many_parts_to_few(fleet):
    w = world(n=400, C=10.0)
    found = divided(w, fleet, 16, levels=3, early=True)
    assert [level["parts"] for level in found.record["levels"]] == [16, 4]
    assert len(found.partition.sizes) == 4
    single = divided(w, fleet, 4, early=True)
    # The second level begins where the first has ended: fewer passes than from nothing.
    warm, cold = found.record["levels"][1], single.record["levels"][0]
    assert warm["passes"] < cold["passes"]
    assert w.value(found.alpha) >= 0.8 * w.value(single.alpha)
    assert json.loads(json.dumps(found.record)) == found.record


def test_levels_have_a_quarter_of_the_parts_and_parts_fit_their_limit():
    assert count_parts(10**6, Division(64, 3, None)) == [64, 16, 4]
    assert count_parts(10**6, Division(64, 5, None)) == [64, 16, 4]
    assert count_parts(10**6, Division(64, 3, 50_000)) == [64]  # 16 parts would be too large
    assert count_parts(10**6, Division(None, 1, 50_000)) == [200]
    assert count_parts(10**6, Division(None, 2, 1000)) == [1100]
    assert count_parts(3, Division(None, 1, None)) == [2]
    assert count_parts(1, Division(None, 1, None)) == [1]


@pytest.mark.parametrize("kernel", ["rbf", "polynomial", None])
@pytest.mark.parametrize("intercept", INTERCEPTS)
def test_is_the_same_for_any_number_of_workers(kernel, intercept):
    w = world(n=300, kernel=kernel, intercept=intercept)
    solver = Pairs() if kernel else None
    if kernel is None and intercept != "true":
        solver = CoordinateDescent()
    found = []
    for threads in (1, 2, 3):
        with Inline(threads) as fleet:
            found.append(divided(w, fleet, 12, solver, levels=2, largest=60))
    for other in found[1:]:
        np.testing.assert_array_equal(found[0].alpha, other.alpha)
        np.testing.assert_array_equal(found[0].intercepts, other.intercepts)
        assert plain(found[0].record) == plain(other.record)


def test_on_a_cluster_the_same_bit_for_bit():
    w = world(n=200, intercept="true")
    with Inline(1) as fleet:
        here = divided(w, fleet, 6, rule=make_rule("gap"))
    with local_cluster(2) as fleet:
        there = divided(w, fleet, 6, rule=make_rule("gap"))
    np.testing.assert_array_equal(here.alpha, there.alpha)
    assert plain(here.record) == plain(there.record)


def test_time_that_is_up_ends_in_a_feasible_start(fleet):
    w = world(n=300, C=100.0, intercept="true")
    found = divided(w, fleet, 4, deadline=time.monotonic() - 1)
    is_feasible(w, found.alpha)
    assert found.record["levels"][0]["passes"] <= 4


@pytest.mark.parametrize("rule", ["gap", "f-safe", "joachims"])
def test_rules_screen_inside_the_parts(rule, fleet):
    w = world(n=300, C=10.0, intercept="true")
    found = divided(w, fleet, 3, rule=make_rule(rule), tol=1e-3)
    is_feasible(w, found.alpha)
    end = solved_world(w, Pairs(), tol=1e-5, start=found.alpha)
    assert end.certificate.dual == pytest.approx(w.optimum.dual, rel=2e-5)


def test_phases_and_progress_are_reported(fleet):
    seen = []
    divided(world(), fleet, 4, report=seen.append)
    phases = [event["phase"] for event in seen if event["event"] == "phase"]
    assert phases == ["partition", "divide", "scale", "refine"]
    done = [(e["done"], e["total"]) for e in seen if e["event"] == "progress"]
    assert done == [(1, 4), (2, 4), (3, 4), (4, 4)]


# -- refining -----------------------------------------------------------------------------------
def test_refining_is_left_out_beyond_its_bound(fleet):
    w = world(n=300, C=0.05, noise=0.1)
    loose = divided(w, fleet, 4, refine=0)
    support = np.count_nonzero(loose.alpha)
    assert "refine" not in loose.record and support < 300
    assert "refine" not in divided(w, fleet, 4, refine=support - 1).record
    refined = divided(w, fleet, 4, refine=support, tol=1e-4)
    assert refined.record["refine"]["rows"] == support
    assert not refined.alpha[loose.alpha == 0].any()
    assert refined.record["refine"]["dual"] == pytest.approx(w.value(refined.alpha), rel=1e-4)


# -- the whole, from there ----------------------------------------------------------------------
@pytest.mark.parametrize("kernel", ["rbf", "polynomial"])
@pytest.mark.parametrize("intercept", INTERCEPTS)
def test_exact_machines_end_at_the_same_optimum_sooner(kernel, intercept, fleet):
    w = world(5, n=300, kernel=kernel, C=5.0, intercept=intercept)
    start = divided(w, fleet, 4, tol=1e-2).alpha
    cold = solved_world(w, Pairs(every=25), tol=1e-5)
    warm = solved_world(w, Pairs(every=25), tol=1e-5, start=start)
    for end in (cold, warm):
        assert end.certificate.relative_gap <= 1e-5
        assert end.certificate.dual == pytest.approx(w.optimum.dual, rel=2e-5)
    if kernel == "rbf":  # clusters say little about a kernel that reaches everywhere
        assert warm.last["steps"] < cold.last["steps"]


@pytest.mark.slow
@pytest.mark.parametrize("intercept", ["none", "constant"])
@pytest.mark.parametrize("sparse_rows", [False, True])
def test_coordinate_descent_goes_on_from_a_start(intercept, sparse_rows, fleet):
    data = contracts.rows(3, 400, sparse_rows=sparse_rows, shard_rows=64, chunk_rows=32)
    w = contracts.world(data, "linear", 3.0, intercept)
    solver = CoordinateDescent()
    first = fit(Run(w.design, w.problem, fleet), solver, Limits(1e-6))
    start = divided(w, fleet, 5, solver, tol=1e-3).alpha
    after = fit(Run(w.design, w.problem, fleet, start=start), solver, Limits(1e-6))
    contracts.solver_law(w, after.point, after.certificate, 1e-6)
    # From its own end there is nothing left to do.
    again = fit(Run(w.design, w.problem, fleet, start=first.point.alpha), solver, Limits(1e-5))
    assert len(again.history) == 1
    np.testing.assert_allclose(again.point.w, first.point.w, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["linear", "rbf"])
@pytest.mark.parametrize("intercept", INTERCEPTS)
@pytest.mark.parametrize("far", [0.0, 0.5, 1.0])
def test_newton_goes_on_from_any_start(kernel, intercept, far, fleet):
    """Also from a bad one: any feasible alpha."""
    data = contracts.rows(4, 400, shard_rows=64, chunk_rows=32)
    w = contracts.world(data, kernel, 3.0, intercept)
    rng = np.random.default_rng(0)
    start = (1 - far) * w.optimum.alpha + far * w.box * rng.random(400)
    if intercept == "true":
        start = w.problem.dual(data.y(0, 400), data.weights(0, 400)).feasible(start)
    fitted = fit(Run(w.design, w.problem, fleet, start=start), Newton(1e-4), Limits(1e-4))
    contracts.solver_law(w, fitted.point, fitted.certificate, 1e-4)
    if far == 0.0:
        # It begins at w*: the first pass sees P there, up to the oracle's digits.
        assert fitted.history[0]["primal"] == pytest.approx(w.optimum.primal, rel=1e-5)
        cold = fit(Run(w.design, w.problem, fleet), Newton(1e-4), Limits(1e-4))
        assert len(fitted.history) < len(cold.history)


def test_a_start_is_not_what_a_checkpoint_goes_on_from(fleet, tmp_path):
    w = contracts.world(contracts.rows(4, 400), "linear", 3.0, "none")
    for solver in (Newton(1e-6), CoordinateDescent()):
        folder = tmp_path / type(solver).__name__
        first = fit(Run(w.design, w.problem, fleet, folder=folder), solver, Limits(1e-6, 2))
        assert len(first.history) == 2
        other = fit(
            Run(w.design, w.problem, fleet, folder=folder, start=0.5 * w.box), solver, Limits(1e-6)
        )
        contracts.solver_law(w, other.point, other.certificate, 1e-6)


# -- rows and norms --------------------------------------------------------------------------------
@pytest.mark.parametrize("sparse_rows", [False, True])
def test_picked_rows_answer_as_a_data_set_of_their_own(sparse_rows):
    data = contracts.rows(0, 200, sparse_rows=sparse_rows, shard_rows=64, chunk_rows=32)
    ids = np.flatnonzero(np.arange(200) % 3 == 1)
    codes, weights = data.y(0, 200)[ids], data.weights(0, 200)[ids]
    found = pick_rows(Design(data), ids, codes, weights).data
    assert isinstance(found, Picked) and found.n_rows == len(ids)
    own = MemoryDataset(data.rows(ids), codes, data.labels, weights)
    assert found.layout == own.layout
    for a, b in [(0, len(ids)), (5, 40), (7, 7)]:
        one, other = found.X(a, b), own.X(a, b)
        if sparse_rows:
            one, other = one.toarray(), other.toarray()
        np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(found.y(a, b), own.y(a, b))
        np.testing.assert_array_equal(found.weights(a, b), own.weights(a, b))
        np.testing.assert_array_equal(found.sqnorms(a, b), own.sqnorms(a, b))
        np.testing.assert_array_equal(found.row_ids(a, b), ids[a:b])
    assert found.max_sqnorm >= own.max_sqnorm
    np.testing.assert_array_equal(found.label_counts, own.label_counts)
    copy = pickle.loads(pickle.dumps(found))
    assert copy.fingerprint == found.fingerprint != data.fingerprint


@pytest.mark.parametrize("sparse_rows", [False, True])
def test_precomputed_kernels_are_picked_by_rows_and_columns(sparse_rows, fleet):
    w = world(n=150, intercept="true")
    K = np.asarray(w.gram, np.float32)
    data = w.design.data
    rows = MemoryDataset(
        sparse.csr_array(K) if sparse_rows else K, data.y(0, 150), [0, 1], data.weights(0, 150)
    )
    given_world = ExactWorld(Design(rows, Precomputed()), w.problem)
    ids = np.arange(0, 150, 2)
    small = load_rows(
        pick_rows(given_world.design, ids, data.y(0, 150)[ids], data.weights(0, 150)[ids])
    )
    X = small.data.X(0, len(ids))
    np.testing.assert_array_equal(X.toarray() if sparse_rows else X, K[np.ix_(ids, ids)])
    found = divided(given_world, fleet, 5)
    is_feasible(given_world, found.alpha)
    end = solved_world(given_world, Pairs(), tol=1e-6, start=found.alpha)
    assert end.certificate.dual == pytest.approx(w.optimum.dual, rel=2e-5)


@pytest.mark.parametrize("kernel", ["rbf", "polynomial", None])
@pytest.mark.parametrize("intercept", ["none", "constant"])
@pytest.mark.parametrize("n", [1, 20, 700])
def test_squared_norms_are_those_of_the_kernel_matrix(kernel, intercept, n, fleet):
    w = world(n=max(n, 2), kernel=kernel, intercept=intercept)
    rng = np.random.default_rng(0)
    alpha = w.box * rng.random(len(w.box)) * (rng.random(len(w.box)) < 0.7)
    if n == 1:
        alpha[:] = 0
    coef = w.oracle.s * alpha
    found, entries = squared_norm(w.design, w.problem, coef, fleet)
    norm = reference.w_of(w.oracle, alpha)
    assert found == pytest.approx(norm @ norm, rel=1e-5, abs=1e-12)
    support = np.count_nonzero(alpha)
    if kernel is not None:
        assert support * (support + 1) / 2 <= entries <= support * (support + 256) / 2 + 256 * 256


def test_squared_norms_are_those_of_the_features(fleet):
    w = contracts.world(contracts.rows(0, 200, shard_rows=64, chunk_rows=32), "rbf", 1.0, "none")
    alpha = w.box * np.random.default_rng(0).random(200)
    found, _ = squared_norm(w.design, w.problem, w.oracle.s * alpha, fleet)
    norm = reference.w_of(w.oracle, alpha)
    assert found == pytest.approx(norm @ norm, rel=1e-5)


def test_the_longest_step_ends_at_the_box():
    w = world(n=50)
    dual = w.problem.dual(w.design.data.y(0, 50), w.design.data.weights(0, 50))
    rng = np.random.default_rng(0)
    alpha = 0.5 * w.box * rng.random(50)
    t = longest_step(dual, alpha)
    assert np.all(t * alpha <= w.box * (1 + 1e-12)) and np.any(t * alpha >= w.box * (1 - 1e-12))
    assert longest_step(dual, np.zeros(50)) == np.inf
    alpha[3] = w.box[3]
    assert longest_step(dual, alpha) == 1.0


# -- refusals ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"parts": 51}, "51 parts were asked for and there can be 1 to 50"),
        ({"parts": 0}, "0 parts were asked for"),
        ({"parts": 4, "largest": 10}, "ask for at least 5 parts"),
        ({"parts": 4, "levels": 0}, "at least 1 level"),
    ],
)
def test_impossible_divisions_are_refused_in_one_sentence(how, words, fleet):
    w = world(n=50)
    with pytest.raises(InputError, match=words) as error:
        divided(w, fleet, **how)
    assert "\n" not in str(error.value)


def test_a_solver_without_alpha_is_refused_in_one_sentence(fleet):
    w = contracts.world(contracts.rows(0, 100), "linear")
    with pytest.raises(InputError, match="holds alpha"):
        divided(w, fleet, 3, Newton(1e-2))


def test_certificates_of_warm_solves_are_the_closing_pass(fleet):
    """The start leaves no trace in what is proved."""
    data = contracts.rows(6, 300, shard_rows=64, chunk_rows=32)
    w = contracts.world(data, "linear", 1.0, "none")
    solver = CoordinateDescent()
    start = divided(w, fleet, 3, solver).alpha
    fitted = fit(Run(w.design, w.problem, fleet, start=start), solver, Limits(1e-6))
    assert close_explicit(w.design, w.problem, fitted.point, fleet) == fitted.certificate


def test_parts_of_features_are_not_bound_by_a_cache_that_they_do_not_need():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2000, 3))
    tuning = bigscreen.Tuning(start="divide", features="stored")
    machine = bigscreen.NystroemSVC(n_components=20, random_state=0, tuning=tuning)
    (start,) = machine.fit(X, X[:, 0] + X[:, 1] ** 2 > 0.5).model_.provenance["start"]
    assert start["levels"][0]["parts"] == 2


@pytest.mark.parametrize("tuning", [Tuning(), Tuning(start="divide")])
def test_parts_do_not_depend_on_the_workers_where_memory_binds(tuning):
    data = contracts.rows(3, 500)
    early = tuning.start == "auto"
    options = TrainOptions(
        exact=True, gamma=0.3, cache=200_000, early=early, solver="block", tuning=tuning
    )
    found = []
    for workers in (1, 4):
        with Inline(workers) as several:
            found.append(train(data, options, several))
    assert found[0].coef.tobytes() == found[1].coef.tobytes()
    (record,) = found[0].provenance["start"]
    assert record["levels"][0]["parts"] > 2  # (not the number that 500 rows have otherwise)


def test_as_many_parts_are_solved_at_once_as_memory_holds():
    class Watched(Inline):
        asked: ClassVar[list[int | None]] = []

        def each(self, function, items, in_flight=None):
            self.asked.append(in_flight)
            return super().each(function, items, in_flight)

    w, alphas = world(), []
    for rows in (0, 10**6):  # how many there is memory for, of parts of any size
        with Watched(4) as fleet:
            how = {"count_at_once": lambda size, rows=rows: rows // size}
            alphas.append(divided(w, fleet, **how).alpha)
    assert 1 in Watched.asked and None in Watched.asked
    np.testing.assert_array_equal(*alphas)
