"""Edits that are applied: the machine is that of the edited rows, and proved to be."""

import warnings
from dataclasses import replace

import edit_cases
import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

from bigscreen import SVC
from bigscreen.amend.amend import amend
from bigscreen.amend.edits import Edits
from bigscreen.fleet.inline import Inline


def amended(case, edits=None, **how):
    with Inline(1) as fleet, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return amend(case.model, case.data, case.edits if edits is None else edits, fleet, **how)


def some(count, **like):
    """Cases of some kind, as they are drawn."""
    found, seed = [], 0
    while len(found) < count:
        spec = edit_cases.drawn(seed)
        seed += 1
        if all(getattr(spec, name) in values for name, values in like.items()):
            found.append(edit_cases.Case(spec))
    return found


@pytest.mark.parametrize("machine", edit_cases.MACHINES)
def test_the_objective_is_that_of_the_optimum_to_the_gap(machine):
    for case in some(8, machine=(machine,)):
        assert not edit_cases.wrongs_after(case), case.spec
        made = amended(case)
        (proof,) = made.model.provenance["certificates"]
        assert proof["rows"] == made.data.n_rows == made.model.provenance["rows"]
        X, y, _weights = case.rows()
        n = made.data.n_rows
        assert np.array_equal(made.data.X(0, n)[made.data.weights(0, n) > 0], X)
        assert np.array_equal(made.data.y(0, n)[made.data.weights(0, n) > 0], y)
        assert len(made.model.ledger[0]) <= n and made.record["what"] == case.edits.counts


def test_a_solve_that_is_at_the_optimum_before_its_closing_pass_is_ends():
    # The solver's gap is one bit of P while alpha as it is read off is still 5e-4 away: h went down
    # to 0, and the sentence was that of sums that overflow.
    case = edit_cases.Case(replace(edit_cases.drawn(300158), whole=0.0))
    made = amended(case)
    (proof,) = made.model.provenance["certificates"]
    assert abs(proof["relative_gap"]) <= 1e-14
    assert not edit_cases.wrongs_after(case, made)


def test_removing_rows_without_influence_keeps_the_machine():
    seen = 0
    for case in some(40, machine=("nystrom", "linear")):
        if not case.bound().unchanged:
            continue
        made = amended(case)
        assert made.record["how"] == "carried over"
        assert np.array_equal(made.model.coef, case.model.coef)
        before, after = (m.provenance["certificates"][0] for m in (case.model, made.model))
        assert {**before, "rows": after["rows"]} == after
        # What is said of the rows that are left holds for their optimum.
        best = edit_cases.reference.solve(case.oracle)
        status = made.model.ledger[0].status
        kept = made.data.weights(0, made.data.n_rows) > 0
        alpha = np.zeros(made.data.n_rows)
        alpha[kept] = best.alpha
        assert np.all(alpha[: len(status)][status == "out"] < 1e-4 * case.spec.C)
        seen += 1
    assert seen > 3


def test_edits_follow_each_other_and_are_listed():
    (case,) = some(1, machine=("nystrom",))
    first = amended(case, Edits(remove=np.array([5, 7])))
    case.model, case.data = first.model, first.data
    second = amended(case, Edits(relabel=(np.array([9]), [0])))
    edits = second.model.provenance["edits"]
    assert [edit["what"]["removed"] for edit in edits] == [2, 0]
    assert edits[0]["to"] == edits[1]["from"] == first.data.fingerprint
    assert edits[1]["to"] == second.model.provenance["fingerprint"]


def test_a_strict_edit_draws_landmarks_from_the_remaining_rows():
    (case,) = some(1, machine=("nystrom",))
    (place,) = np.flatnonzero((case.data.X(0, case.spec.n) == case.model.landmarks[-1]).all(axis=1))
    edits = Edits(remove=np.array([place]))
    kept, anew = amended(case, edits), amended(case, edits, strict=True)
    assert np.array_equal(kept.model.landmarks, case.model.landmarks)
    assert "1 of the rows that leave are landmarks" in " ".join(kept.record["notes"])
    assert not np.any((anew.model.landmarks == case.model.landmarks[-1]).all(axis=1))


def test_an_edit_drops_the_sigmoids_of_the_rows_as_they_were():
    X, y = np.random.default_rng(0).normal(size=(60, 2)), np.arange(60) % 2
    with pytest.warns(FutureWarning):
        machine = SVC(probability=True).fit(X, y)
    assert machine.predict_proba(X).shape == (60, 2)
    machine.amend(X, y, remove=[0])
    with pytest.raises(NotFittedError, match="nor after `amend`"):
        machine.predict_proba(X)
