"""Edits that are fitted over the rows nearby: all others are linear, and looked at in the end."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from newton_world import tune_near

from bigscreen.amend import refit
from bigscreen.amend.amend import amend
from bigscreen.amend.edits import Edits
from bigscreen.data.memory import MemoryDataset
from bigscreen.features import nystrom
from bigscreen.fit import ladder
from bigscreen.fleet.inline import Inline
from bigscreen.kernels.operand import Operand
from bigscreen.options.train import TrainOptions
from bigscreen.solvers.newton import near
from bigscreen.train.run import train

OPTIONS = TrainOptions(landmarks=40, gamma=0.2, C=0.5, tol=1e-6)


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


def amended(edits, options=OPTIONS, threads=1):
    with Inline(threads) as fleet, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return amend(train(rows(), options, fleet), rows(), edits, fleet)


@pytest.fixture(autouse=True)
def waited_for(monkeypatch):
    """Steps over all rows, however many: rows nearby are an edit's alone."""
    tune_near(monkeypatch, max_late_checks=10**6)
    monkeypatch.setattr(ladder, "LADDER", replace(ladder.LADDER, min_checks=10**6))


@pytest.fixture
def rounds(monkeypatch):
    """Rows that have features in every round of steps over the rows nearby."""
    seen, add = [], near._NearRows.add

    def counted(self, *arguments):
        add(self, *arguments)
        seen.append(int(self.inside.sum()))

    monkeypatch.setattr(near._NearRows, "add", counted)
    return seen


@pytest.fixture
def stored(monkeypatch):
    """Of how many rows features were stored, every time."""
    seen, store = [], nystrom.store_features

    def counted(design, *arguments):
        seen.append(design.data.n_rows)
        return store(design, *arguments)

    monkeypatch.setattr(nystrom, "store_features", counted)
    return seen


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


@pytest.mark.parametrize("intercept", ["none", "penalized"])
@pytest.mark.parametrize("kind", EDITS)
def test_an_edit_computes_features_of_few_rows_and_is_proved_over_all(
    kind, intercept, rounds, monkeypatch
):
    options = replace(OPTIONS, intercept=intercept)
    after = amended(EDITS[kind], options)
    proof, n = proof_of(after), after.data.n_rows
    assert rounds and rounds[-1] < near.NEARBY.max_part * n
    assert proof["gap"] + proof["rounding_bound"] <= 1e-6 * proof["primal"]
    assert proof["rows"] == n
    assert abs(objective(after, 0.5) - proof["primal"]) <= 1e-6 * proof["primal"]
    # The fit of all rows' features ends at the same objective.
    monkeypatch.setattr(refit, "pick_first_rows", lambda far, gap, dual, size: None)
    before = len(rounds)
    other = proof_of(amended(EDITS[kind], options))
    assert len(rounds) == before
    both = sum(each["gap"] + each["rounding_bound"] for each in (proof, other))
    assert abs(proof["primal"] - other["primal"]) <= both


def test_rows_that_cross_their_hinge_point_join_the_steps(rounds, stored, monkeypatch):
    tune_near(monkeypatch, part_per_root_gap=0.0)
    tune_near(monkeypatch, part_per_root_gap_far=0.0)
    tune_near(monkeypatch, min_part=0.05)
    after = amended(relabelled(5))
    assert len(rounds) > 1 and rounds == sorted(rounds) and rounds[0] < rounds[-1]
    proof = proof_of(after)
    assert proof["gap"] + proof["rounding_bound"] <= 1e-6 * proof["primal"]
    assert stored == [1500]  # of the machine that is edited


def test_features_of_all_rows_are_stored_if_too_many_rows_cross(rounds, stored, monkeypatch):
    edits = relabelled(300)
    tune_near(monkeypatch, part_per_root_gap_far=1.0)
    tune_near(monkeypatch, max_first_part=1.0, max_first_part_many=1.0)
    all_of_them = proof_of(amended(edits))
    assert not rounds
    tune_near(monkeypatch, part_per_root_gap_far=0.0)
    began_nearby = proof_of(amended(edits))
    assert rounds and stored == [1500] * 4
    for proof in (all_of_them, began_nearby):
        assert proof["gap"] + proof["rounding_bound"] <= 1e-6 * proof["primal"]
    both = sum(each["gap"] + each["rounding_bound"] for each in (all_of_them, began_nearby))
    assert abs(all_of_them["primal"] - began_nearby["primal"]) <= both


def test_features_of_all_rows_are_stored_without_room_for_rows_nearby(rounds, monkeypatch):
    monkeypatch.setattr(refit, "max_rows_in", lambda room, width, dtype: 0)
    proof = proof_of(amended(EDITS["remove"]))
    assert not rounds
    assert proof["gap"] + proof["rounding_bound"] <= 1e-6 * proof["primal"]


def test_the_number_of_threads_does_not_change_an_edit(rounds):
    one, two = (amended(EDITS["add"], threads=threads).model for threads in (1, 2))
    assert rounds
    assert np.array_equal(one.coef, two.coef)
    assert np.array_equal(one.ledger[0].margins, two.ledger[0].margins)
    same = ("primal", "dual", "gap", "rounding_bound")
    proofs = (model.provenance["certificates"][0] for model in (one, two))
    assert len({tuple(proof[name] for name in same) for proof in proofs}) == 1
