"""What edits change at most: no bound is ever broken by the optimum of the edited rows."""

from dataclasses import replace

import edit_cases
import numpy as np
import pytest

import bigscreen.amend.bound as amend_bound
from bigscreen.amend.amend import bounds
from bigscreen.amend.edits import Edits
from bigscreen.amend.predictions import are_unchanged
from bigscreen.errors import InputError


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_no_bound_is_broken_however_rough_the_machine(part):
    still, found = 0, []
    for seed in range(30 * part, 30 * part + 30):
        case = edit_cases.Case(edit_cases.drawn(seed))
        assert not edit_cases.wrongs(case), case.spec
        still += case.bound().unchanged
        found.append(case.bound().relative_gap)
    assert still and np.median(found) < 0.5


def test_a_radius_that_is_too_small_would_be_caught():
    said = ""
    for seed in range(25):
        case = edit_cases.Case(edit_cases.drawn(seed))
        whole = case.bound()
        parts = {name: 0.3 * getattr(whole, name) for name in ("radius", "spread")}
        thin = replace(whole, dual=whole.primal - 0.3 * whole.gap, **parts)
        said += " ".join(edit_cases.wrongs(case, thin))
    assert "P' - P'*" in said and "w moves" in said and "outside" in said


def test_bounds_state_the_rounding_of_p_and_d_unless_the_model_is_old():
    for seed in range(6):
        case = edit_cases.Case(edit_cases.drawn(seed))
        said = case.bound().to_dict()
        proof = case.model.provenance["certificates"][0]
        for name in ("primal_rounding", "dual_rounding"):
            assert np.isfinite(said[name]) and said[name] >= proof[name]
            del proof[name]
        said = case.bound().to_dict()
        assert said["primal_rounding"] is None and said["dual_rounding"] is None
        assert np.isfinite(said["gap"]) and said["gap"] == max(said["primal"] - said["dual"], 0.0)


def test_predictions_counted_as_unchanged_equal_those_of_the_optimum():
    stay = changed = 0
    for seed in range(60):
        spec = edit_cases.drawn(seed)
        if spec.machine == "exact":
            continue
        case = edit_cases.Case(spec)
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(200, spec.d)).astype(np.float32)
        w, _ = case.w(case.model)
        best = edit_cases.reference.solve(case.oracle)
        phi = case.phi(X)
        if spec.intercept == "penalized":
            phi = np.column_stack([phi, np.ones(len(phi))])
        certain = are_unchanged(case.model, [case.bound().intervals(X)])
        moved = (phi @ w > 0) != (phi @ best.w > 0)
        stay, changed = stay + certain.sum(), changed + moved.sum()
        assert not np.any(certain & moved), spec
        ledger = case.model.ledger[0]
        assert amend_bound.count_unaffected(case.bound(), case.data, case.changes) <= len(ledger)
    assert stay > 2000 and changed > 50


def test_what_cannot_be_edited_is_said_in_a_sentence():
    case = edit_cases.Case(edit_cases.drawn(0))
    n = case.spec.n
    for edits, why in (
        (Edits(), "nothing to amend"),
        (Edits(remove=np.array([3, 3])), "names row 3 twice"),
        (Edits(remove=np.array([n])), f"row {n} is not in"),
        (Edits(remove=np.array([1]), relabel=(np.array([1]), [0])), "removed and changed"),
        (Edits(relabel=(np.array([1]), ["x"])), "none of"),
        (Edits(reweight=(np.array([1]), np.array([-1.0]))), "not negative"),
    ):
        with pytest.raises(InputError, match=why):
            bounds(case.model, case.data, edits)
    other = edit_cases.Case(edit_cases.drawn(1))
    with pytest.raises(InputError, match="is not what|features"):
        bounds(case.model, other.data, Edits(remove=np.array([1])))
    case.model.provenance["parameters"]["problem"] = "nu-svc"
    with pytest.raises(InputError, match="nu-svc cannot be amended"):
        bounds(case.model, case.data, Edits(remove=np.array([1])))
