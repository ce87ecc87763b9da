"""The smoothed Newton and the closing pass on features, for every problem there is."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from newton_world import Probe, Spied, feature_world, tuned
from problem_cases import NAMES
from sklearn.svm import SVR, NuSVC, OneClassSVM

from bigscreen.certify.explicit import close_explicit
from bigscreen.data.memory import MemoryDataset
from bigscreen.errors import InputError
from bigscreen.features.design import Design
from bigscreen.fit.loop import fit
from bigscreen.fit.monitor import Limits
from bigscreen.fleet.inline import Inline
from bigscreen.problems.dual import AT_HI, AT_LO, AT_ZERO
from bigscreen.problems.point import Point, Reading, SumLayout
from bigscreen.problems.recipes import Lad, NuSvc, OneClass, Svr
from bigscreen.screening.dynamic import make_rule
from bigscreen.solvers.newton.shard import NewtonProgram
from bigscreen.solvers.newton.solver import Newton
from bigscreen.solvers.protocol import Run

# With raw features centred at 0 the rows' hull holds the origin: w* = 0, see the last tests.
SOLVED = [(name, "linear") for name in NAMES if name != "one-class"]
SOLVED += [(name, "rbf") for name in NAMES]


@pytest.fixture(scope="module")
def fleet():
    with Inline(1) as fleet:
        yield fleet


def solved(world, fleet, tol, rule="none", passes=300, report=lambda event: None, **options):
    run = Run(world.design, world.problem, fleet, **options)
    return fit(run, Newton(tol), Limits(tol, passes), rule=make_rule(rule), report=report)


def primal_law(world, point, found, room):
    """P is that of the certificate's multiplier, which is no worse than the point's own."""
    assert found.primal <= world.primal(point) + room
    moved = replace(point, multiplier=found.multiplier)
    assert found.primal == pytest.approx(world.primal(moved), abs=room)


def solver_law(world, fitted, tol):
    """The certificate is true, alpha feasible, D <= P* <= P <= P* + gap, the gap as asked."""
    point, found, best = fitted.point, fitted.certificate, world.optimum
    # float32 columns of a tile and of all rows differ by their last bits.
    room = 1e-8 * (abs(found.primal) + abs(found.dual))
    primal_law(world, point, found, room)
    a = world.mixed(point)
    world.assert_feasible(a)
    assert found.dual == pytest.approx(world.dual(a), abs=room)
    assert found.gap == found.primal - found.dual
    assert len(found.multiplier) == len(world.case.b)
    room = world.room(point)
    assert best.primal - best.dual <= room
    assert found.dual <= best.primal + room
    assert best.dual - room <= found.primal <= best.primal + found.gap + room
    assert found.relative_gap <= tol


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["none", "gap"])
@pytest.mark.parametrize(("name", "kernel"), SOLVED)
def test_every_problem_is_solved(name, kernel, rule, fleet):
    for seed, weights in ((0, False), (1, True)):
        world = feature_world(name, kernel, seed, n=90, weights=weights)
        for tol in (1e-2, 1e-6 if kernel == "linear" else 1e-3):
            fitted = solved(world, fleet, tol, rule)
            if abs(world.optimum.primal) > 1e-9:
                solver_law(world, fitted, tol)


@pytest.mark.slow
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(8, 150),
    d=st.integers(1, 8),
    name=st.sampled_from([name for name, kernel in SOLVED if kernel == "rbf"]),
    weights=st.booleans(),
    rule=st.sampled_from(["none", "gap", "f-safe"]),
)
@settings(max_examples=100, deadline=None, derandomize=True)
def test_random_problems_are_solved(seed, n, d, name, weights, rule):
    world = feature_world(name, "rbf", seed, n=n, d=d, weights=weights)
    dual = world.problem.dual(world.case.data.y(0, n), world.case.data.weights(0, n))
    try:
        dual.feasible(dual.lo)
    except ValueError:
        return
    with Inline(1) as fleet:
        fitted = solved(world, fleet, 1e-2, rule, 1000)
    if abs(world.optimum.primal) > 10 * world.room(fitted.point):
        solver_law(world, fitted, 1e-2)


# -- LIBSVM is the second judge -----------------------------------------------------------------
def test_one_class_objective_is_libsvms(fleet):
    world = feature_world("one-class", "rbf", n=200, weights=False)
    fitted = solved(world, fleet, 1e-3)
    K = world.phi @ world.phi.T
    machine = OneClassSVM(kernel="precomputed", nu=0.3, tol=1e-8).fit(K)
    # LIBSVM's alpha sums to nu n.
    alpha = np.zeros(200)
    alpha[machine.support_] = machine.dual_coef_[0] / (0.3 * 200)
    best = -0.5 * alpha @ K @ alpha
    room = world.room(fitted.point)
    assert fitted.certificate.dual - room <= best <= fitted.certificate.primal + room
    assert fitted.certificate.primal == pytest.approx(best, rel=1e-3)
    rho = machine.offset_[0] / (0.3 * 200)
    assert -fitted.point.intercept == pytest.approx(rho, abs=0.02 * abs(rho))
    outside = np.mean(world.phi @ fitted.point.w + fitted.point.intercept < 0)
    assert 0.2 < outside <= 0.3 + 5 / 200


def test_nu_svc_objective_is_libsvms(fleet):
    world = feature_world("nu-svc true", n=150, weights=False)
    fitted = solved(world, fleet, 1e-6)
    y = 2.0 * world.case.data.y(0, 150) - 1
    machine = NuSVC(kernel="precomputed", nu=0.3, tol=1e-8).fit(world.phi @ world.phi.T, y)
    # LIBSVM divides alpha by r = rho: then it scales as ours does times n / r.
    coef = np.zeros(150)
    coef[machine.support_] = machine.dual_coef_[0]
    w = world.phi.T @ coef * (0.3 / np.abs(coef).sum())
    assert fitted.certificate.dual == pytest.approx(-0.5 * w @ w, rel=1e-5)
    rho = world.problem.rho(np.array(fitted.certificate.multiplier))
    ours = (world.phi @ fitted.point.w + fitted.point.intercept) / rho
    np.testing.assert_allclose(ours, machine.decision_function(world.phi @ world.phi.T), atol=0.02)


def test_svr_objective_is_libsvms(fleet):
    world = feature_world("svr true", n=150, weights=False)
    fitted = solved(world, fleet, 1e-6)
    y = world.case.data.y(0, 150)
    machine = SVR(kernel="precomputed", C=1.5, epsilon=0.4, tol=1e-8)
    machine.fit(world.phi @ world.phi.T, y)
    coef = np.zeros(150)
    coef[machine.support_] = machine.dual_coef_[0]
    w = world.phi.T @ coef
    off = np.abs(y - world.phi @ w - machine.intercept_[0])
    best = 0.5 * w @ w + 1.5 * np.maximum(off - 0.4, 0).sum()
    assert fitted.certificate.primal == pytest.approx(best, rel=2e-6)


# -- certificates of any point -----------------------------------------------------------------
@pytest.mark.parametrize("name", NAMES)
def test_the_closing_pass_is_right_about_any_point(name, fleet):
    """Also of a bad w, and of an alpha that misses its total by far."""
    world = feature_world(name, "rbf", 3)
    rng = np.random.default_rng(0)
    design, groups = world.design, len(world.case.b)
    constant = 0.3 if world.problem.intercept == "constant" else 0.0
    for h in (3.0, 0.3):
        w = 0.1 * rng.normal(size=design.rank)
        coef, mu = design.coef(w), tuple(0.1 * rng.normal(size=groups))
        parts = [Reading(coef, constant, h, 0.75, mu)]
        other = design.coef(0.1 * rng.normal(size=len(w)))
        parts.append(Reading(other, constant, 2.0, 0.25, mu))
        point = Point(
            coef, w, constant, 0.0, 0.0, False, tuple(parts), multiplier=mu
        )  # fmt: skip
        found = close_explicit(design, world.problem, point, fleet)
        size = abs(found.primal) + abs(found.dual)
        # (A point without a gap of its own: rows near their hinge point have float64 columns.)
        primal_law(world, point, found, 1e-8 * size + 2 * found.primal_rounding)
        a = world.mixed(point)
        world.assert_feasible(a)
        true = world.dual(a, np.float64)
        assert found.dual == pytest.approx(true, abs=1e-8 * size + found.dual_rounding)
        assert found.gap >= 0 and found.rounding_bound <= 1e-5 * size  # of float32 columns
        wide = close_explicit(design, world.problem, point, fleet, "float64")
        assert wide.rounding_bound <= 1e-9 * size
        assert wide.primal == pytest.approx(found.primal, rel=1e-4)
        assert wide.dual == pytest.approx(found.dual, rel=1e-3)


@pytest.mark.parametrize("name", ["one-class", "nu-svc none", "nu-svc true"])
def test_a_band_without_room_has_no_feasible_alpha(name, fleet):
    """No row near the band and none at hi: the middle of the box stands in."""
    world = feature_world(name, "rbf", 4)
    groups = len(world.case.b)
    coef = np.zeros(world.design.width)
    reading = Reading(coef + 1e-9, 0.0, 1e-3, 1.0, (5.0,) * groups)
    assert not world.case.alpha(world.read(reading)).any()
    w, mu = np.zeros(world.design.rank), (0.0,) * groups
    point = Point(coef, w, 0.0, 0.0, 0.0, False, (reading,), multiplier=mu)
    found = close_explicit(world.design, world.problem, point, fleet)
    alpha = world.balanced(0.5 * world.case.hi)
    world.assert_feasible(alpha)
    assert found.dual == pytest.approx(world.dual(alpha), rel=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_an_alpha_that_a_point_holds_is_certified(name, fleet):
    """As coordinate descent and pairs hand it in, and one that breaks the coupling a little."""
    world = feature_world(name, "rbf", 5)
    one = world.case
    alpha = one.alpha(one.split(one.alpha(one.feasible(1))))
    w = world.phi[one.row].T @ (one.s * one.split(alpha))
    rank = world.design.rank
    constant = float(w[rank:].sum())
    mu = (0.1,) * len(one.b)
    point = Point(
        world.design.coef(w[:rank]), w[:rank], constant, 0.0, 0.0, True, alpha=alpha, multiplier=mu
    )  # fmt: skip
    found = close_explicit(world.design, world.problem, point, fleet, "float64")
    assert found.dual == pytest.approx(
        world.dual(one.split(alpha), np.float64), rel=1e-9, abs=1e-12
    )
    assert found.support == np.count_nonzero(alpha)
    off = close_explicit(world.design, world.problem, replace(point, alpha=1.001 * alpha), fleet)
    assert off.dual <= world.optimum.primal + world.room(point)
    assert off.dual == pytest.approx(found.dual, rel=2e-2, abs=1e-6)


def test_scales_keep_the_coupling():
    """By row, for one group: too much, too little, and nothing that could be raised."""
    frame = SumLayout(False, np.array([1.0]))
    assert (frame.extras, frame.buckets, frame.lifts) == (1, 2, 1)
    v = np.array([[2.0], [0.0], [0.5]])
    np.testing.assert_allclose(frame.scales(v), [0.5, 1, 0])
    np.testing.assert_allclose(frame.scales(np.array([[0.8], [0.0], [0.5]])), [1, 0, 0.4])
    assert frame.scales(np.array([[0.8], [0.0], [0.1]])) is None
    free = SumLayout(False, np.array([0.0]))
    np.testing.assert_allclose(free.scales(np.array([[2.0], [-3.0]])), [1, 2 / 3])
    np.testing.assert_allclose(free.scales(np.array([[0.0], [-3.0]])), [1, 0])


@given(
    more=st.floats(0, 1e6),
    less=st.floats(0, 1e6),
    room=st.floats(0, 1e6),
    total=st.one_of(st.just(0.0), st.floats(1e-3, 1e3)),
)
def test_scaled_sums_are_those_of_a_feasible_point(more, less, room, total):
    """For any sums: terms shrink towards 0, those of the band rise no further than their end."""
    frame = SumLayout(False, np.array([total]))
    v = np.array([[more], [-less], [room]])[: frame.terms]
    scales = frame.scales(v)
    if scales is None:
        assert more + room < total
        return
    assert np.all((scales >= 0) & (scales <= 1))
    assert scales @ v == pytest.approx(total, rel=1e-9, abs=1e-12 * (more + less) + 1e-300)


# -- shortcuts are exact -------------------------------------------------------------------------
@pytest.mark.parametrize("name", [name for name in NAMES if name != "one-class"])
def test_kept_sums_are_those_of_a_fresh_pass(name, fleet):
    """P and D from V and H, without reading rows, are P and D read from every row."""
    world = feature_world(name, "linear", 2, n=120)
    probe = Probe(world, fleet, 16)
    Newton(tol=1e-6).solve(Run(world.design, world.problem, fleet), probe)
    assert probe.skipped > 0 and probe.seen > 5
    assert probe.worst <= 1e-8


RECORD: list[tuple[np.ndarray, np.ndarray]] = []


class RecordingProgram(NewtonProgram):
    """The Newton's program, writing down which rows every screening round has fixed, and where."""

    def _screen(self, state, message, totals):
        before = {int(i): int(side) for i, side in zip(state.ids, state.side, strict=True)}
        alive = set(state.ids[~state.fixed].tolist())
        answer = super()._screen(state, message, totals)
        fixed = np.array(sorted(alive - set(state.ids[~state.fixed].tolist())), dtype=np.int64)
        assert len(fixed) == int(answer.sum())
        RECORD.append((fixed, np.array([before[i] for i in fixed.tolist()], dtype=np.int8)))
        return answer


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["linear", "rbf"])
@pytest.mark.parametrize("name", NAMES)
def test_screened_rows_are_at_the_side_of_the_optimum(name, kernel):
    """Intervals of scores and multipliers, tubes and groups among them, decide nothing wrongly."""
    fixed = 0
    for seed in range(3):
        world = feature_world(name, kernel, seed, n=80)
        RECORD.clear()
        with Spied(RecordingProgram) as fleet:
            solved(world, fleet, 1e-6 if kernel == "linear" else 1e-4, "gap", passes=60)
        best = world.case.alpha(world.optimum.alpha)
        hi = world.case.hi[: world.n]
        lo = np.minimum(world.case.lo[: world.n], -hi if len(world.case.row) > world.n else 0)
        for ids, sides in RECORD:
            end = np.select(
                [sides == AT_HI, sides == AT_LO, sides == AT_ZERO], [hi[ids], lo[ids], 0]
            )
            assert np.all(np.abs(best[ids] - end) <= 1e-5 * (hi - lo)[ids] + 1e-300)
            fixed += len(ids)
    if kernel == "linear" and name != "one-class":
        assert fixed > 0


# -- starts, checkpoints, refusals -----------------------------------------------------------------
@pytest.mark.parametrize("name", ["one-class", "nu-svc constant", "nu-svc true", "svr true"])
def test_a_start_from_a_good_alpha_takes_no_more_passes(name, fleet):
    world = feature_world(name, "rbf", 6, n=150)
    cold = solved(world, fleet, 1e-3)
    data = world.case.data
    dual = world.problem.dual(data.y(0, 150), data.weights(0, 150))
    alpha = dual.feasible(world.case.alpha(world.mixed(cold.point)))
    warm = solved(world, fleet, 1e-3, start=alpha)
    solver_law(world, warm, 1e-3)
    assert len(warm.history) <= len(cold.history)


@pytest.mark.parametrize("name", ["one-class", "nu-svc true", "svr constant"])
def test_an_interrupted_fit_ends_in_the_same_point(name, fleet, tmp_path, checkpoint_every):
    checkpoint_every(-1.0)
    world = feature_world(name, "rbf", 7, n=150)
    whole = solved(world, fleet, 1e-3, "gap")
    count = len(whole.history)

    def stop(event):
        if event.get("pass") == count // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        solved(world, fleet, 1e-3, "gap", folder=tmp_path, report=stop)
    resumed = solved(world, fleet, 1e-3, "gap", folder=tmp_path, resume=True)
    np.testing.assert_array_equal(resumed.point.coef, whole.point.coef)
    assert resumed.certificate == whole.certificate
    assert resumed.certificate.multiplier != () or "svr" in name
    json.dumps(resumed.certificate.to_dict())


def test_a_subsample_that_cannot_meet_the_total_is_left_out():
    """64 rows in one, then 8, then all; a subsample that cannot meet the total is left out."""
    rng = np.random.default_rng(0)
    X = (rng.normal(size=(4096, 4)) + 3).astype(np.float32)
    weight = np.where(np.arange(4096) % 8 == 0, 1e-6, 1.0)
    strides = []

    coarse = tuned(1e-4, min_subsample_rows=64, subsample_rows_per_column=0)

    class Spy(NewtonProgram):
        def _gradient(self, state, message, totals):
            strides.append(self.stride)
            return super()._gradient(state, message, totals)

    with Spied(Spy) as fleet:
        for weights, used in ((None, {64, 8, 1}), (weight, {1})):
            data = MemoryDataset(X, np.zeros(4096, np.int32), ["all"], weights)
            mass = float(data.weights(0, 4096).sum())
            strides.clear()
            fitted = fit(Run(Design(data), OneClass(0.1, mass), fleet), coarse, Limits(1e-4, 100))
            assert fitted.certificate.relative_gap <= 1e-4
            assert set(strides) == used


def test_a_total_that_cannot_be_met_is_refused(fleet):
    X = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    y = (np.arange(40) < 4).astype(np.int32)
    data = MemoryDataset(X, y, [0, 1])
    problem = NuSvc(0.5, 1, 40.0, (), "true")
    with pytest.raises(InputError, match="smaller nu"):
        fit(Run(Design(data), problem, fleet), Newton(), Limits())


def test_the_largest_nu_is_solved(fleet):
    """Every alpha at its end: the box is as large as the total, and nothing can move."""
    world = feature_world("one-class", "rbf", 1, n=60, weights=False)
    problem = OneClass(1.0, 60.0)
    fitted = fit(Run(world.design, problem, fleet), Newton(1e-4), Limits(1e-4, 100))
    mean = world.phi.mean(axis=0)
    assert fitted.certificate.dual == pytest.approx(-0.5 * mean @ mean, rel=1e-4)
    assert fitted.certificate.relative_gap <= 1e-4


def test_a_hull_that_holds_the_origin_ends(fleet):
    """w* = 0: P* is 0, no relative gap has a meaning, and the solve ends by itself."""
    world = feature_world("one-class", "linear", n=80)
    fitted = solved(world, fleet, 1e-4, passes=500)
    assert len(fitted.history) < 60
    assert 0 <= fitted.certificate.gap <= 1e-9


@pytest.mark.parametrize("make", [Lad, lambda C: Svr(C, 0.1)])
def test_targets_of_any_size_take_as_many_steps(make, fleet):
    """The band is measured in the unit of the targets."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 4)).astype(np.float32)
    y = X @ rng.normal(size=4) + 0.5 * rng.normal(size=300)
    counts = []
    for scale in (1.0, 2.0**20, 2.0**-20):
        problem = make(1.0)
        if isinstance(problem, Svr):
            problem = replace(problem, epsilon=0.1 * scale)
        # P of scaled targets is the same problem times scale^2 where C scales as they do.
        problem = problem.at(scale)
        data = MemoryDataset(X, scale * y, None)
        fitted = fit(Run(Design(data), problem, fleet), Newton(1e-6), Limits(1e-6, 60))
        assert fitted.certificate.relative_gap <= 1e-6
        counts.append((len(fitted.history), fitted.certificate.primal / scale**2))
    np.testing.assert_allclose([p for _, p in counts], counts[0][1], rtol=1e-5)
    assert np.ptp([n for n, _ in counts]) <= 2
