"""Edits that are fitted over the rows nearby: all others are linear, and looked at in the end."""

import warnings
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import pytest
from newton_world import tune_near
from trained import fitted_by

from bigscreen.amend.amend import Amended, amend, bounds
from bigscreen.amend.edits import Edits
from bigscreen.amend.refit import _AmendedFeatures, start_after_edits
from bigscreen.amend.request import check_amendable, options_of
from bigscreen.amend.store import make_edited_rows
from bigscreen.data.memory import MemoryDataset
from bigscreen.fleet.inline import Inline
from bigscreen.kernels.operand import Operand
from bigscreen.options.train import TrainOptions
from bigscreen.plan.plan import plan_on
from bigscreen.solvers.newton import near
from bigscreen.train.run import train

OPTIONS = TrainOptions(landmarks=40, gamma=0.2, C=0.5, tol=1e-6, solver="newton")


def rows(seed=0, n=1500):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4)).astype(np.float32)
    y = (X[:, 0] + X[:, 1] ** 2 + 0.4 * rng.normal(size=n) > 0.7).astype(np.int32)
    return MemoryDataset(X, y, [0, 1], rng.uniform(0.5, 2.0, n))


def relabelled(count, seed=1):
    data = rows()
    some = np.sort(np.random.default_rng(seed).choice(data.n_rows, count, replace=False))
    return Edits(relabel=(some, (1 - data.y(0, data.n_rows)[some]).tolist()))


EDITS = {
    "remove": Edits(remove=np.arange(100, 115)),
    "relabel": relabelled(15),
    "reweight": Edits(reweight=(np.arange(30), np.zeros(30))),
    "add": Edits(add=rows(seed=5, n=12)),
}


class Noting(Inline):
    """A fleet that notes each time how many rows nearby have features."""

    def __init__(self, threads):
        super().__init__(threads)
        self.nearby = []

    def each(self, function, items, in_flight=None):
        if isinstance(function, near._Features):
            items = list(items)
            self.nearby.append(sum([*self.nearby[-1:], *map(len, items)]))
        return super().each(function, items, in_flight)


class Noted(NamedTuple):
    """An edited machine, rows nearby with features (each time), and how often all were stored."""

    after: Amended
    nearby: list[int]
    stored: int


def noted(edits, options=OPTIONS, threads=1):
    events = []
    with Noting(threads) as fleet, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = train(rows(), options, fleet, events.append)
        after = amend(model, rows(), edits, fleet, report=events.append)
    stored = sum(event.get("phase") == "features" for event in events if event["event"] == "phase")
    return Noted(after, fleet.nearby, stored)


@pytest.fixture(autouse=True)
def waited_for(monkeypatch):
    """Steps over all rows, however many: rows nearby are an edit's alone."""
    tune_near(monkeypatch, max_late_checks=10**6)


def objective(after, C):
    """P of the published machine, in float64."""
    model, n = after.model, after.data.n_rows
    sign = np.where(after.data.y(0, n) == 1, 1.0, -1.0)
    margins = sign * model.scores(after.data.X(0, n).astype(np.float64), prepared=True)[:, 0]
    side = Operand(model.landmarks.astype(np.float64))
    gram = model.kernel.block(side.X, side, dtype=np.float64)
    half = model.coef[0] @ gram @ model.coef[0] + model.intercept[0] ** 2
    return 0.5 * half + C * after.data.weights(0, n) @ np.maximum(0.0, 1.0 - margins)


def proof_of(after):
    (proof,) = after.model.provenance["certificates"]
    return proof


@pytest.mark.slow
@pytest.mark.parametrize("intercept", ["none", "penalized"])
@pytest.mark.parametrize("kind", EDITS)
def test_an_edit_computes_features_of_few_rows_and_is_proved_over_all(kind, intercept, monkeypatch):
    options = replace(OPTIONS, intercept=intercept)
    after, nearby, _ = noted(EDITS[kind], options)
    proof, n = proof_of(after), after.data.n_rows
    assert nearby and nearby[-1] < near.NEARBY.max_part * n
    assert proof["gap"] + proof["rounding_bound"] <= 1e-6 * proof["primal"]
    assert proof["rows"] == n
    assert abs(objective(after, 0.5) - proof["primal"]) <= 1e-6 * proof["primal"]
    # The fit of all rows' features ends at the same objective.
    tune_near(monkeypatch, max_part=0.0)
    whole = noted(EDITS[kind], options)
    other = proof_of(whole.after)
    assert not whole.nearby
    both = sum(each["gap"] + each["rounding_bound"] for each in (proof, other))
    assert abs(proof["primal"] - other["primal"]) <= both


def test_rows_that_cross_their_hinge_point_join_the_steps(monkeypatch):
    tune_near(monkeypatch, part_per_root_gap=0.0)
    tune_near(monkeypatch, part_per_root_gap_far=0.0)
    tune_near(monkeypatch, min_part=0.05)
    after, nearby, stored = noted(relabelled(5))
    assert len(nearby) > 1 and nearby == sorted(nearby) and nearby[0] < nearby[-1]
    proof = proof_of(after)
    assert proof["gap"] + proof["rounding_bound"] <= 1e-6 * proof["primal"]
    assert stored == 1  # of the machine that is edited


def test_features_of_all_rows_are_stored_if_too_many_rows_cross(monkeypatch):
    edits = relabelled(300)
    tune_near(monkeypatch, part_per_root_gap_far=1.0)
    tune_near(monkeypatch, max_first_part=1.0, max_first_part_many=1.0)
    after, nearby, stored = noted(edits)
    all_of_them = proof_of(after)
    assert not nearby and stored == 2
    tune_near(monkeypatch, part_per_root_gap_far=0.0)
    after, nearby, stored = noted(edits)
    began_nearby = proof_of(after)
    assert nearby and stored == 2
    for proof in (all_of_them, began_nearby):
        assert proof["gap"] + proof["rounding_bound"] <= 1e-6 * proof["primal"]
    both = sum(each["gap"] + each["rounding_bound"] for each in (all_of_them, began_nearby))
    assert abs(all_of_them["primal"] - began_nearby["primal"]) <= both


def test_features_of_all_rows_are_stored_without_room_for_rows_nearby():
    with Noting(1) as fleet, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, data = train(rows(), OPTIONS, fleet), rows()
        (found,), edited = bounds(model, data, EDITS["remove"])
        (binary,) = check_amendable(model, data)
        start = start_after_edits(model, 0, binary, data, edited, found)
        after, options = make_edited_rows(data, edited, None, {}), options_of(model)
        outlined = plan_on(fleet, after, options, prefers_stored=True)
        kind = partial(_AmendedFeatures, model, {binary.folder: start})
        made = fitted_by(kind, after, options, fleet, replace(outlined, nearby_bytes=0))
    (proof,) = made.provenance["certificates"]
    assert not fleet.nearby
    assert proof["gap"] + proof["rounding_bound"] <= 1e-6 * proof["primal"]


def test_the_number_of_threads_does_not_change_an_edit():
    both = [noted(EDITS["add"], threads=threads) for threads in (1, 2)]
    one, two = (each.after.model for each in both)
    assert both[0].nearby == both[1].nearby != []
    assert np.array_equal(one.coef, two.coef)
    assert np.array_equal(one.ledger[0].margins, two.ledger[0].margins)
    same = ("primal", "dual", "gap", "rounding_bound")
    proofs = (model.provenance["certificates"][0] for model in (one, two))
    assert len({tuple(proof[name] for name in same) for proof in proofs}) == 1
