"""Path rules are safe for solved points of any accuracy; the rules as printed are not."""

from dataclasses import replace

import numpy as np
import pytest
import reference
import safety_cases
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safety_cases import INTERCEPTS, RECIPES, STYLES, WEIGHTS, Case, Spec, Tally

from bigscreen.errors import InputError
from bigscreen.problems.dual import AT_HI, AT_LO, AT_ZERO, FREE, Dual
from bigscreen.screening.bounds import (
    box_factor,
    carry_alpha,
    dual_lower_bound,
    gap_bound,
    scale_to_box,
)
from bigscreen.screening.regions import Region, Scores, make_cut
from bigscreen.screening.sequential import Dvi, Essnsv, GapAtPast, Ssnsv, make_path_rule, screen
from bigscreen.screening.srbo import Srbo, SrboCut, choose_alpha
from pipelines.papers import printed_rules

RULES = ("gap", "dvi", "ssnsv", "essnsv", "srbo", "srbo-cut")

specs = st.builds(
    Spec,
    seed=st.integers(0, 10**6),
    recipe=st.sampled_from(RECIPES),
    intercept=st.sampled_from(INTERCEPTS),
    kernel=st.sampled_from(["linear", "rbf"]),
    sparse_rows=st.booleans(),
    single=st.booleans(),
    weights=st.sampled_from(WEIGHTS),
    n=st.integers(8, 30),
    d=st.integers(1, 6),
    value=st.floats(-2.5, 1.5),
    step=st.floats(1e-3, 0.5),
    down=st.booleans(),
    style=st.sampled_from(STYLES),
    accuracy=st.floats(0, 10),
    whole=st.sampled_from([0.0, 0.5, 1.0]),
)


def innocent(tally):
    assert not tally.guilty, tally.guilty


# A row without any entry that stands at the multiplier itself: told from it by the last bit only.
@pytest.mark.slow
@example(replace(safety_cases.drawn(5187), whole=0.0))
@given(specs)
@settings(max_examples=300, deadline=None)
def test_no_rule_removes_wrongly(spec):
    case, tally = Case(spec), Tally()
    safety_cases.try_rules(case, safety_cases.safe_rules(case), tally)
    safety_cases.try_pair(case, tally)
    innocent(tally)


@pytest.mark.slow
@pytest.mark.parametrize("intercept", INTERCEPTS)
@pytest.mark.parametrize("recipe", RECIPES)
def test_every_rule_decides_rows_in_some_case(recipe, intercept):
    """A test of rules that decide nothing would prove nothing."""
    tally, nus = Tally(), recipe in ("nu_svc", "one_class")
    for seed in range(6):
        kernel = "rbf" if seed % 2 else "linear"
        spec = Spec(seed, recipe, intercept, kernel, single=seed > 3, accuracy=8, step=0.003,
                    n=40, value=1.0 if nus else -0.5)  # fmt: skip
        case = Case(spec)
        safety_cases.try_rules(case, safety_cases.safe_rules(case), tally)
    innocent(tally)
    deltas = ("greedy", "small", "full")
    names = [f"srbo-cut {delta}" for delta in deltas] if nus else ["dvi", "ssnsv", "essnsv"]
    for name in ("gap", "all", *names):
        assert tally.decided[name] > 0, (name, tally.decided)


# -- mutations: what this harness has to notice ----------------------------------------------------
def tried(rules, seeds, **spec):
    tally = Tally()
    for seed in seeds:
        case = Case(Spec(seed, **spec))
        for rule in rules:
            region = rule.region(case.dual(case.value), case.value, case.pasts, case.products)
            if region is not None:
                safety_cases.judge_region(case, rule.name, region, tally)
    return tally


def test_literal_dvi_after_an_early_stop_is_caught():
    early = {"style": "sweep", "accuracy": 0.0, "step": 0.05}
    tally = tried([printed_rules.LiteralDvi(), Dvi()], range(40), **early)
    assert tally.false["dvi (literal)"] > 0 and tally.outside["dvi (literal)"] > 0
    assert tally.false["dvi"] == 0 and tally.outside["dvi"] == 0


@pytest.mark.parametrize(
    ("rule", "recipe"),
    [
        (printed_rules.LiteralSsnsv(), "lad"),
        (printed_rules.LiteralEssnsv(), "c_svc"),
        (printed_rules.LiteralSrbo(), "nu_svc"),
    ],
)
def test_the_other_printed_rules_are_caught_too(rule, recipe):
    tally = tried([rule], range(60), recipe=recipe, style="sweep", accuracy=0.0, step=0.05)
    assert tally.outside[rule.name] > 0


@pytest.mark.slow
def test_the_gap_of_a_pair_around_the_wrong_w_is_caught():
    """r^2 = P(w) - D(alpha) around w(alpha), where w is another one."""
    tally = Tally()
    for seed in range(60):
        case = Case(Spec(seed, accuracy=0.0, value=1.0))
        _, _, of_alpha, gap = safety_cases.pair(case)
        region = Region(Scores(of_alpha, 1e-12), float(np.sqrt(gap)))
        safety_cases.judge_region(case, "mutant", region, tally)
        safety_cases.try_pair(case, tally)
    assert tally.outside["mutant"] > 0 and tally.false["mutant"] > 0
    assert tally.false["gap of a pair"] == 0 and tally.outside["gap of a pair"] == 0


def test_a_rule_without_slack_is_caught():
    """Scores of float32 entries that claim to be exact; with their slack they are right."""
    claimed, honest = Tally(), Tally()
    for seed in range(20):
        case = Case(Spec(seed, kernel="rbf", single=True, accuracy=14, step=0.0, value=1.5))
        point = case.pasts[0]
        region = Dvi().region(case.dual(case.value), case.value, [point], None)
        bare = Region(Scores(region.centre.values, 0.0), region.radius * 1e-3)
        safety_cases.judge_region(case, "claimed", bare, claimed)
        safety_cases.judge_region(case, "honest", region, honest)
    assert claimed.outside["claimed"] > 0
    innocent(honest)


# -- what the rules are ----------------------------------------------------------------------------
def test_dvi_in_its_two_forms_and_its_limits():
    """theta-form times C is the w-form; at eps0 = 0 it is the paper's, at C = C0 the gap ball."""
    for seed in range(8):
        case = Case(Spec(seed, "lad" if seed % 2 else "c_svc", step=0.2, down=seed > 4))
        point, C = case.pasts[0], case.value
        dual, C0 = case.dual(case.value), case.start
        region = Dvi().region(dual, C, [point], None)
        # Corollaries 7 and 13, with eps0.
        z0, z_sq, eps = point.scores.values / C0, point.w_sq / C0**2, point.gap / C0
        reach = np.sqrt(((C - C0) / (2 * C)) ** 2 * z_sq + eps / C)
        middle = (C + C0) / (2 * C) * z0
        lower, upper = region.intervals(case.norms)
        np.testing.assert_allclose(lower, C * (middle - reach * case.norms), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(upper, C * (middle + reach * case.norms), rtol=1e-5, atol=1e-5)
        same = Dvi().region(point.dual, C0, [point], None)
        np.testing.assert_allclose(same.radius**2, point.gap + 1e-13 * point.w_sq, rtol=1e-9)
        if C > C0:
            exact = printed_rules.LiteralDvi().region(dual, C, [point], None)
            assert exact.radius <= region.radius
            np.testing.assert_allclose(exact.centre.values, region.centre.values, rtol=1e-12)


def test_rules_have_no_region_for_problems_outside_their_conditions():
    svc, nu = Case(Spec(3)), Case(Spec(3, "nu_svc"))
    for rule in (Dvi(), Ssnsv(), Essnsv()):
        assert rule.region(nu.dual(nu.value), nu.value, nu.pasts, nu.products) is None
    for rule in (Srbo(), SrboCut()):
        assert rule.region(svc.dual(svc.value), svc.value, svc.pasts, svc.products) is None
        assert rule.region(nu.dual(nu.value), nu.value, nu.pasts, None) is None
    for rule in (GapAtPast(), Dvi(), Ssnsv(), Essnsv(), Srbo(), SrboCut()):
        assert rule.region(svc.dual(svc.value), svc.value, [], svc.products) is None
    # SSNSV needs a point on either side; SRBO a smaller nu, its cut does not.
    assert Ssnsv().region(svc.dual(svc.value), svc.value, svc.pasts[:1], None) is None
    low = nu.problem.nu * 0.9
    assert Srbo().region(nu.dual(low), low, nu.pasts[:1], nu.products) is None
    assert SrboCut().region(nu.dual(low), low, nu.pasts[:1], nu.products) is not None


def test_a_box_that_does_not_scale_is_noticed():
    """A point of another fold, whose held-out rows are others, is none of this path."""
    case = Case(Spec(1, weights="zeros"))
    point = case.pasts[0]
    assert box_factor(case.dual(case.value), point) == pytest.approx(case.value / case.start)
    case.row_weights = np.roll(case.row_weights, 1)
    dual = case.dual(case.value)
    assert box_factor(dual, point) is None
    for rule in (GapAtPast(), Dvi(), Ssnsv(), Essnsv()):
        assert rule.region(dual, case.value, case.pasts, None) is None


def test_srbo_of_a_one_class_machine_is_srbo_in_another_scale():
    """Box c / (nu mass) and total 1: scaled by nu it is the machine with box c / mass, total nu."""
    case = Case(Spec(2, "one_class", step=0.05, value=0.5))
    dual, k = case.dual(case.value), case.start / case.value
    found, (alpha, scores, _w_sq) = scale_to_box(dual, case.pasts[0])
    assert found == pytest.approx(k)
    np.testing.assert_allclose(alpha, k * case.pasts[0].alpha)
    np.testing.assert_allclose(scores.values, k * case.pasts[0].scores.values)
    assert alpha.sum() == pytest.approx(k)


@pytest.mark.parametrize("recipe", ["nu_svc", "one_class"])
@pytest.mark.parametrize("intercept", INTERCEPTS)
def test_the_region_of_srbo_cut_lies_in_the_ball_of_srbo(recipe, intercept):
    """At an exact optimum: never a wider interval, up to rounding, and most are shorter."""
    widths = []
    for seed in range(6):
        case = Case(Spec(seed, recipe, intercept, accuracy=14, step=0.01, value=1.0))
        args = case.dual(case.value), case.value, case.pasts, case.products
        low, high = Srbo().region(*args).intervals(case.norms)
        low_cut, high_cut = SrboCut().region(*args).intervals(case.norms)
        assert np.all(low_cut >= low - 1e-5 * case.norms)
        assert np.all(high_cut <= high + 1e-5 * case.norms)
        widths.append(np.mean(high_cut - low_cut) / np.mean(high - low))
    assert np.median(widths) < 0.8


@pytest.mark.parametrize("intercept", INTERCEPTS)
@pytest.mark.parametrize("recipe", ["nu_svc", "one_class"])
def test_every_delta_is_feasible_and_the_full_one_the_best(recipe, intercept):
    for seed in range(5):
        case = Case(Spec(seed, recipe, intercept, weights="zeros", accuracy=4, step=0.03))
        dual = case.dual(case.value)
        start = scale_to_box(dual, case.pasts[0])[1]
        before = scale_to_box(dual, case.pasts[1])[1][0]
        size = {}
        for delta in ("greedy", "small", "full"):
            found = choose_alpha(dual, start, before, delta, safety_cases.solver(case))
            assert np.all(found >= dual.lo) and np.all(found <= dual.hi)
            for own, total in reference.couplings(case.oracle(dual)):
                assert found[own].sum() == pytest.approx(total, abs=1e-12)
            middle = dual.sign * (start[0] + found) / 2
            size[delta] = middle @ case.K @ middle
        assert size["full"] <= min(size.values()) + 1e-9 * size["greedy"]


def test_filling_the_total_changes_few_rows():
    case = Case(Spec(4, "nu_svc", "true", n=40, step=0.01, value=0.0, accuracy=9))
    dual = case.dual(case.value)
    alpha, scores, _ = carry_alpha(dual, case.pasts[0], case.products)
    assert 1 <= np.count_nonzero(alpha != case.pasts[0].alpha) <= 10
    np.testing.assert_allclose(scores.values, case.K @ (dual.sign * alpha), atol=1e-12)


def test_bounds_of_gap_and_linear_minimum():
    for seed in range(30):
        case = Case(safety_cases.drawn(seed))
        q, point = case.oracle(case.pasts[0].dual), case.pasts[0]
        exact = case.K @ (q.s * point.alpha)
        gap = gap_bound(point.dual, point.alpha, point.scores)
        true = reference.linear_maximum(q, point.alpha, exact)
        assert gap >= true * (1 - 1e-9)
        # A gradient off by its slack, counted at a slack more: each row's, once over its box.
        unsure = point.scores.slack + 2e-15 * (np.max(np.abs(exact)) + np.max(np.abs(q.p)))
        assert gap <= true + 2 * np.sum((q.hi - q.lo) * unsure)
        if q.tube is None:
            best = reference.vertex(q, q.p - q.s * exact)
            value = (q.s * best) @ exact - q.p @ best
            assert dual_lower_bound(point.dual, point.scores) <= value + 1e-12 * (1 + abs(value))


# -- regions ---------------------------------------------------------------------------------------
@given(
    seed=st.integers(0, 10**6),
    radius=st.floats(0.01, 3),
    depth=st.floats(-1.2, 1.2),
    d=st.integers(1, 4),
)
@settings(max_examples=200, deadline=None)
def test_a_cut_ball_holds_and_touches_its_points(seed, radius, depth, d):
    """Against points of the region itself: none outside an interval, none far inside of its end."""
    rng = np.random.default_rng(seed)
    c, a, phi = rng.normal(size=d), rng.normal(size=d), rng.normal(size=(8, d))
    phi[0], phi[1], phi[2] = 0, a, -a
    norms = np.linalg.norm(phi, axis=1)
    beta = a @ c + depth * radius * np.linalg.norm(a)
    cut = make_cut(Scores(phi @ a, 0.0), a @ a, 0.0, beta - a @ c)
    lower, upper = Region(Scores(phi @ c, 0.0), radius, cut).intervals(norms)
    points = rng.normal(size=(4000, d))
    points *= radius * rng.random((4000, 1)) ** 0.2 / np.linalg.norm(points, axis=1)[:, None]
    # The extreme points of the region: of the ball, and of the disk that the cut makes.
    unit = a / np.linalg.norm(a)
    flat = points - np.outer(points @ unit, unit)
    h = np.sqrt(max(radius**2 * (1 - depth**2), 0.0))
    across = phi - np.outer(phi @ unit, unit)
    ends = [-phi, phi, -across, across]
    ends = np.vstack([e / np.maximum(np.linalg.norm(e, axis=1), 1e-300)[:, None] for e in ends])
    disk = depth * radius * unit + h * ends[16:]
    points = np.vstack([points, flat, radius * ends[:16], disk])
    inside = points[points @ unit >= depth * radius - 1e-12]
    inside = inside[np.linalg.norm(inside, axis=1) <= radius * (1 + 1e-12)]
    if depth > 1 or not len(inside):
        return
    values = (inside + c) @ phi.T
    room = 1e-9 * (1 + np.abs(lower) + np.abs(upper))
    assert np.all(values.min(axis=0) >= lower - room)
    assert np.all(values.max(axis=0) <= upper + room)
    if abs(depth) < 0.99:
        assert np.all(values.min(axis=0) <= lower + 1e-4 * (1 + radius * norms))
        assert np.all(values.max(axis=0) >= upper - 1e-4 * (1 + radius * norms))


def test_a_cut_outside_the_ball_is_left_out():
    centre, norms = Scores(np.zeros(2), 0.0), np.array([1.0, 0.0])
    ball = Region(centre, 1.0).intervals(norms)
    for excess in (-5.0, -1.0, 1.0 + 1e-9, 7.0):
        cut = make_cut(Scores(np.array([1.0, 0.0]), 0.0), 1.0, 0.0, excess)
        for one, other in zip(Region(centre, 1.0, cut).intervals(norms), ball, strict=True):
            np.testing.assert_array_equal(one, other)
    assert make_cut(Scores(np.zeros(2), 0.0), 0.0, 0.0, 1.0) is None
    assert make_cut(Scores(np.zeros(2), 0.0), 1.0, 0.9, 1.0) is None


def test_an_inexact_direction_widens_the_cut():
    """Slack in the scores of a, or of its norm, can only make intervals longer."""
    rng = np.random.default_rng(0)
    phi, a = rng.normal(size=(50, 3)), rng.normal(size=3)
    norms, plain = np.linalg.norm(phi, axis=1), None
    for slack, off in ((0.0, 0.0), (1e-3, 0.0), (0.0, 0.1), (0.1, 0.3)):
        cut = make_cut(Scores(phi @ a, slack), a @ a, off * (a @ a), 0.4)
        lower, upper = Region(Scores(phi @ a, 0.0), 1.0, cut).intervals(norms)
        if plain is not None:
            assert np.all(lower <= plain[0] + 1e-12) and np.all(upper >= plain[1] - 1e-12)
        plain = lower, upper


# -- screening as a whole --------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
def test_the_reduced_problem_has_the_same_optimum(recipe):
    decided = 0
    for seed in range(8):
        value = 1.0 if recipe in ("nu_svc", "one_class") else -0.5
        case = Case(Spec(seed, recipe, INTERCEPTS[seed % 3], "rbf" if seed % 2 else "linear",
                         accuracy=7, step=0.01, n=30, value=value, weights="zeros"))  # fmt: skip
        dual = case.dual(case.value)
        rules = safety_cases.safe_rules(case)
        found = screen(dual, case.value, rules, case.pasts, case.products, case.norms)
        kept = found.decided == FREE
        ends = [(found.decided == AT_HI, dual.hi), (found.decided == AT_LO, dual.lo),
                (found.decided == AT_ZERO, 0 * dual.hi)]  # fmt: skip
        at = np.select(*zip(*ends, strict=True), 0.0)
        q = case.oracle(dual)
        lo, hi = np.where(kept, q.lo, at), np.where(kept, q.hi, at)
        reduced = reference.Problem(q.phi, q.s, q.p, lo, hi, q.t, q.total, q.group)
        tube = 0.0
        if q.tube is not None:
            # A variable that stays where it is keeps its cost; the others' halves are split.
            tube = q.tube[~kept] @ np.abs(at[~kept])
            reduced = reduced_tube(q, kept, at)
        best = reference.solve(reduced)
        value = best.dual if q.tube is None else best.dual - tube
        size = abs(case.optimum.primal) + 1e-6 * np.abs(q.hi).sum()
        assert value == pytest.approx(case.optimum.dual, abs=1e-9 * size)
        decided += int(np.count_nonzero(~kept & (dual.hi > dual.lo)))
    assert decided > 20


def reduced_tube(q, kept, at):
    """The tube's rows split in two, those that stay at a point."""
    both = reference.split(q)
    ends = np.concatenate([np.maximum(at, 0), np.maximum(-at, 0)])
    twice = np.concatenate([kept, kept])
    lo, hi = np.where(twice, both.lo, ends), np.where(twice, both.hi, ends)
    p = np.where(twice, both.p, np.concatenate([q.p, -q.p]))
    return reference.Problem(both.phi, both.s, p, lo, hi, both.t, both.total, both.group)


def test_screen_counts_what_it_decides():
    case = Case(Spec(5, "svr", "true", "rbf", weights="zeros", accuracy=8, step=0.003, n=40))
    dual = case.dual(case.value)
    rules = [GapAtPast(), Dvi()]
    found = screen(dual, case.value, rules, case.pasts, None, case.norms, alone=True)
    live = dual.hi > dual.lo
    for name, place in (("lo", AT_LO), ("hi", AT_HI), ("zero", AT_ZERO)):
        count = np.count_nonzero(live & (found.decided == place))
        assert found.counts["all"][name] == count
        assert count >= max(found.counts[rule.name][name] for rule in rules)
    assert set(found.seconds) == {"gap", "dvi", "all"} and min(found.seconds.values()) > 0
    quick = screen(dual, case.value, rules, case.pasts, None, case.norms)
    np.testing.assert_array_equal(quick.decided, found.decided)
    assert set(quick.counts) == {"all"}
    nothing = screen(dual, case.value, rules, [], None, case.norms)
    assert np.all(nothing.decided == FREE)


def test_products_are_computed_once():
    case, asked = Case(Spec(6, "nu_svc", step=0.02)), []

    def products(coef):
        asked.append(coef)
        return case.products(coef)

    rules = [GapAtPast(), Srbo(), SrboCut()]
    screen(case.dual(case.value), case.value, rules, case.pasts, products, case.norms)
    assert len(asked) == 1


def test_rules_by_name():
    solve = safety_cases.solver(Case(Spec()))
    assert [make_path_rule(name).name for name in RULES] == list(RULES)
    assert make_path_rule("srbo", "full", solve).delta == "full"
    assert [make_path_rule(name).needs_both_sides for name in RULES] == [
        False,
        False,
        True,
        True,
        False,
        False,
    ]
    for make in (
        lambda: make_path_rule("all"),
        lambda: Srbo("best"),
        lambda: SrboCut("small"),
    ):
        with pytest.raises(InputError):
            make()


@pytest.mark.parametrize("ties", [False, True])
def test_the_multiplier_of_many_rows(ties):
    """Found by halving, it is the one that sorting finds."""
    rng = np.random.default_rng(0)
    n = 20_000
    scores, hi = rng.normal(size=n), rng.random(n) * (rng.random(n) < 0.7)
    scores = np.round(scores, 1) if ties else scores
    one, zero = np.ones(n), np.zeros(n)
    for share in (1e-6, 0.3, 0.5, 0.999):
        dual = Dual(one, zero, zero, hi, one, share * hi.sum())
        order = np.argsort(-scores, kind="stable")
        k = int(np.searchsorted(np.cumsum(hi[order]), dual.threshold))
        assert dual.multiplier(scores) == -scores[order[k]]
        low, high = dual.multiplier_interval(scores, scores)
        assert low <= -scores[order[k]] <= high and high - low < 1e-2
