"""What a published model states is so; and the judge of it convicts what is not."""

from dataclasses import replace

import certificate_cases
import numpy as np
import published
import pytest
from certificate_cases import PROBLEMS, SECONDS, Rows, Spec, drawn, machine, tried

CASES = 300


def fitted(spec):
    """Rows, and the estimator fitted to them."""
    rows = Rows(spec)
    one = machine(spec, rows)
    if rows.problem == "one-class":
        return rows, one.fit(rows.given, sample_weight=rows.weights)
    return rows, one.fit(rows.given, rows.y, sample_weight=rows.weights)


def faults(spec, rows, one):
    return published.Published(spec, rows, one).faults(*certificate_cases._outputs(one, rows), True)


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("weights", ["none", "some"])
def test_plain_rows_are_certified_truly(name, weights):
    kernel = "linear" if name.startswith("Linear") else "rbf"
    spec = Spec(7, name, kernel, single=True, weights=weights, tol=1e-4)
    if name in certificate_cases.EXACT:
        assert not tried(spec).found


LIES = {
    "P stated too low": lambda m: m.certificate_[0].update(
        primal=m.certificate_[0]["primal"] - 1e-4
    ),
    "P stated too high": lambda m: m.certificate_[0].update(
        primal=m.certificate_[0]["primal"] + 1e-4
    ),
    "D stated too high": lambda m: m.certificate_[0].update(dual=m.certificate_[0]["dual"] + 1e-4),
    "gap stated too low": lambda m: m.certificate_[0].update(gap=m.certificate_[0]["gap"] - 1e-4),
    "not finite": lambda m: m.certificate_[0].update(relative_gap=np.nan),
    "scores": lambda m: setattr(m, "intercept_", m.intercept_ + 1e-3),
    "infeasible alpha": lambda m: setattr(m, "dual_coef_", 1.01 * m.dual_coef_),
    "rounding beyond tol": lambda m: m.certificate_[0].update(rounding_bound=1.0),
}


@pytest.mark.parametrize("kind", LIES)
@pytest.mark.parametrize("name", ["SVC", "NuSVC", "SVR", "QuantileRegressor"])
def test_the_judge_convicts_a_lie(kind, name):
    if kind == "infeasible alpha" and name == "NuSVC":
        pytest.skip("its scale is that of the published coefficients")
    spec = Spec(5, name, single=True, tol=1e-4)
    rows, one = fitted(spec)
    assert kind not in faults(spec, rows, one)
    LIES[kind](one)
    assert kind in faults(spec, rows, one)


def test_the_judge_finds_a_better_machine_than_one_that_states_too_small_a_gap():
    spec = Spec(5, "LinearSVC", "linear", intercept=True, single=True, tol=1e-2)
    rows, one = fitted(spec)
    assert "D above the optimum" not in faults(spec, rows, one)
    one.certificate_[0].update(dual=one.certificate_[0]["primal"] + 1e-3)
    assert "D above the optimum" in faults(spec, rows, one)
    one.coef_, one.certificate_[0]["gap"] = 1.1 * one.coef_, 0.0
    assert "gap too small" in faults(spec, rows, one)


def test_a_traceback_is_not_a_refusal(monkeypatch):
    def broken(spec, rows):
        raise np.linalg.LinAlgError("singular")

    monkeypatch.setattr(certificate_cases, "machine", broken)
    verdict = tried(Spec())
    assert verdict.outcome == "traceback" and verdict.found


@pytest.mark.parametrize("part", range(6))
def test_random_machines_state_what_is_so(part):
    size = CASES // 6
    seeds = range(part * size, (part + 1) * size)
    # Without time budgets: where those end a fit, and whether it ends alike, is up to the clock.
    verdicts = [tried(replace(drawn(seed), seconds=SECONDS)) for seed in seeds]
    assert not {str(v.spec): v.found for v in verdicts if v.found}
