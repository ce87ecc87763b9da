"""`fit_many` proves every fit, and each agrees with a separate fit."""

import warnings

import numpy as np
import pytest
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning

from bigscreen import (
    SVC,
    LinearSVC,
    LinearSVR,
    NystroemSVC,
    QuantileRegressor,
    fit_many,
)
from bigscreen.data.memory import MemoryDataset
from bigscreen.data.views import Recast
from bigscreen.data.writer import DatasetWriter
from bigscreen.features import nystrom
from bigscreen.features.design import Design
from bigscreen.fleet.inline import Inline
from bigscreen.fleet.local import local_cluster
from bigscreen.numerics.cholesky import factorise
from bigscreen.options.train import TrainOptions
from bigscreen.options.tuning import Tuning
from bigscreen.plan.plan import plan_on
from bigscreen.problems.recipes import CSvc
from bigscreen.solvers.newton import many
from bigscreen.solvers.protocol import Case
from bigscreen.train.many import ManyJob, Outcomes
from bigscreen.train.run import train_many

RNG = np.random.default_rng(5)
X = RNG.normal(size=(700, 4)).astype(np.float32)
Y = np.where(X[:, 0] + X[:, 1] ** 2 + 0.5 * RNG.normal(size=700) > 0.7, "yes", "no")
DRAWS = RNG.multinomial(700, np.full(700, 1 / 700), 5).T
PERMUTED = np.stack([Y, *(RNG.permutation(Y) for _ in range(4))], axis=1)
HOW = {"n_components": 40, "gamma": 0.3, "C": 2.0, "random_state": 0}


def near(one, other):
    """Assert that both are proved, and no farther apart than their gaps allow."""
    for a, b in zip(one.certificate_, other.certificate_, strict=True):
        room = [proof["gap"] + proof["rounding_bound"] for proof in (a, b)]
        assert abs(a["primal"] - b["primal"]) <= max(room)
    assert one.relative_gap_ <= one.tol and other.relative_gap_ <= one.tol


@pytest.mark.parametrize("tol", [1e-2, 1e-3, 1e-6])
@pytest.mark.parametrize("offset", ["penalized", False])
def test_label_vectors_agree_with_single_fits(tol, offset):
    machine = NystroemSVC(**HOW, tol=tol, fit_intercept=offset)
    found = fit_many(machine, X, PERMUTED)
    assert len(found) == 5 and not hasattr(machine, "model_")
    for j, each in enumerate(found):
        own = NystroemSVC(**HOW, tol=tol, fit_intercept=offset).fit(X, PERMUTED[:, j])
        near(each, own)
        assert np.mean(each.predict(X) == own.predict(X)) > 0.97
        assert len(each.ledger_.status) == 700
    assert found[0].score(X, Y) > 0.85 > found[1].score(X, Y)


def test_weight_vectors_agree_with_single_fits():
    machine = LinearSVC(loss="hinge", C=0.5, tol=1e-4)
    for j, each in enumerate(fit_many(machine, X, Y, DRAWS)):
        near(each, LinearSVC(loss="hinge", C=0.5, tol=1e-4).fit(X, Y, DRAWS[:, j]))
        copies = np.repeat(np.arange(700), DRAWS[:, j])
        near(each, LinearSVC(loss="hinge", C=0.5, tol=1e-4).fit(X[copies], Y[copies]))


@pytest.mark.parametrize(
    "machine",
    [
        NystroemSVC(**HOW, fit_intercept=True),
        NystroemSVC(**HOW, loss="squared_hinge"),
        NystroemSVC(**HOW, tuning=Tuning(features="recomputed")),
        NystroemSVC(**HOW, class_weight="balanced"),
        NystroemSVC(**HOW, solver="cd"),
    ],
    ids=["offset", "squared", "recomputed", "balanced", "cd"],
)
def test_every_machine_on_features_agrees_with_single_fits(machine):
    """Machines whose steps cannot be combined share the features nevertheless."""
    found = fit_many(machine, X, PERMUTED[:, :2])
    for j, each in enumerate(found):
        near(each, type(machine)(**machine.get_params()).fit(X, PERMUTED[:, j]))


def test_sparse_rows_and_regressions():
    targets = np.stack([X[:, 0] + 0.1 * RNG.normal(size=700) for _ in range(2)], axis=1)
    for machine, rows in (
        (LinearSVR(epsilon=0.1, tol=1e-4), X),
        (LinearSVR(epsilon=0.0, tol=1e-4), sparse.csr_array(X)),
        (QuantileRegressor(quantile=0.8, n_components=30, tol=1e-4, random_state=0), X),
    ):
        for j, each in enumerate(fit_many(machine, rows, targets)):
            near(each, type(machine)(**machine.get_params()).fit(rows, targets[:, j]))


def test_more_than_two_labels():
    y = np.digitize(X[:, 0], [-0.5, 0.5])
    columns = np.stack([y, RNG.permutation(y)], axis=1)
    for j, each in enumerate(fit_many(NystroemSVC(**HOW), X, columns)):
        assert each.coef_.shape == (3, 40) and len(each.certificate_) == 3
        near(each, NystroemSVC(**HOW).fit(X, columns[:, j]))


def test_features_are_made_once_and_steps_together():
    class Counted(Inline):
        made, steps = 0, ()

        def each(self, function, items, in_flight=None):
            self.made += isinstance(function, nystrom._Block)
            return super().each(function, items, in_flight)

        def round(self, message):
            if message["kind"] == "take":
                self.steps += (len(message["left"]),)
            return super().round(message)

    data = MemoryDataset(X, (Y == "yes").astype(np.int32), ["no", "yes"])
    outcomes = [Outcomes(None, DRAWS[:, j]) for j in range(5)]
    with Counted(1) as fleet:
        found = train_many(data, TrainOptions(gamma=0.3, landmarks=40, C=2.0), fleet, outcomes)
    assert fleet.made == 1
    assert fleet.steps[0] == 5 and len(fleet.steps) < 60
    proofs = [model.provenance["certificates"][0] for model in found]
    assert all(proof["passes"]["closing"] == 1 for proof in proofs)
    assert all(model.landmarks is found[0].landmarks for model in found)


def test_a_fit_with_too_large_a_gap_is_solved_alone():
    class Short(ManyJob):
        solve_tuning = many.ManyTuning(max_steps=2)

    options = TrainOptions(gamma=0.3, landmarks=40, C=2.0, tol=1e-3)
    data = MemoryDataset(X, (Y == "yes").astype(np.int32), ["no", "yes"])
    outcomes = [Outcomes(None, DRAWS[:, j]) for j in range(3)]
    with Inline(1) as fleet:
        plan = plan_on(fleet, data, options, 3)
        with Short(data, options, fleet, plan, outcomes) as job:
            job.begin()
            for some in job.turns():
                job.solve(some)
            for model in job.models():
                (proof,) = model.provenance["certificates"]
                assert proof["relative_gap"] <= 1e-3 and len(model.provenance["history"]) > 1


@pytest.mark.slow
def test_threads_and_workers_change_no_bit(tmp_path):
    options = TrainOptions(gamma=0.3, landmarks=40, C=2.0)
    data = MemoryDataset(X, (Y == "yes").astype(np.int32), ["no", "yes"], shard_rows=256)
    outcomes = [Outcomes(None, DRAWS[:, j].astype(np.uint8)) for j in range(3)]
    writer = DatasetWriter(tmp_path / "rows.store", data.layout, None)
    for k in range(writer.n_chunks):
        a, b = writer.chunk(k)
        writer.write(k, data.X(a, b), data.y(a, b))
    store, models = writer.finish(), []
    for threads in (1, 3):
        with Inline(threads) as fleet:
            models.append(train_many(data, options, fleet, outcomes))
    with local_cluster(2) as fleet:
        work = TrainOptions(gamma=0.3, landmarks=40, C=2.0, work=tmp_path / "work")
        models.append(train_many(store, work, fleet, outcomes))
    for others in models[1:]:
        for one, other in zip(models[0], others, strict=True):
            np.testing.assert_array_equal(one.coef, other.coef)
            assert one.provenance["certificates"] == other.provenance["certificates"]


@pytest.mark.parametrize("offset", ["none", "constant"])
def test_rows_that_do_not_fit_are_read_in_every_pass(offset):
    """In parts, and to the same bits as those that are kept."""
    read: list[int] = []

    class Counted(MemoryDataset):
        def X(self, start, stop):
            read.append(stop - start)
            return super().X(start, stop)

    data = Counted(X, (Y == "yes").astype(np.int32), ["no", "yes"], shard_rows=128)
    cases = [Case(CSvc(1.0, 1, (), offset), Recast(data, None, DRAWS[:, j])) for j in range(3)]
    points, counts = [], []
    with Inline(2) as fleet:
        for resident in (1.0, 0.5, 0.0):
            read.clear()
            how = {"resident": resident, "tuning": many.ManyTuning(tile=100)}
            points.append(many.solve_many(Design(data), cases, fleet, 1e-4, **how))
            counts.append(sum(read))
    assert max(read) <= 128 and len(read) > 50
    assert counts[0] < 0.1 * counts[2] and 0.4 < counts[1] / counts[2] < 0.7
    for each in zip(*points, strict=True):
        assert all(np.array_equal(each[0].w, other.w) for other in each[1:])
        assert each[0].relative_gap <= 1e-4


@pytest.mark.parametrize("ridge", [many.MANY.ridge, 1e-12])
def test_a_curvature_that_rounding_leaves_indefinite_is_damped(ridge):
    """Repeated columns, and C so large that float32 rounds C + 1 to C."""
    repeated = np.repeat(X, 20, axis=1)
    curvature = 1e8 * (repeated.T @ repeated)
    diagonal = np.einsum("ii->i", curvature)
    diagonal += 1 + np.float32(ridge) * diagonal
    assert (factorise(curvature) is None) == (ridge == 1e-12)
    data = MemoryDataset(repeated, (Y == "yes").astype(np.int32), ["no", "yes"])
    cases = [Case(CSvc(C, 1, (), "none"), data) for C in (1e8, 2e8)]
    with Inline(1) as fleet:
        tuning = many.ManyTuning(ridge=ridge)
        points = many.solve_many(Design(data), cases, fleet, 1e-3, tuning=tuning)
    assert all(point.relative_gap <= 1e-3 for point in points)


def test_a_shard_moves_to_another_worker():
    data = MemoryDataset(X, (Y == "yes").astype(np.int32), ["no", "yes"])
    cases = tuple(Case(CSvc(1.0, 1), Recast(data, None, DRAWS[:, j])) for j in range(3))
    program = many.ManyProgram(Design(data), cases, 0.0)
    along = RNG.normal(size=(2, 4)).astype(np.float32)
    left, h = np.array([0, 2]), np.full(2, 0.5)
    line = {"kind": "line", "left": left, "along": along, "h": h, "steps": np.array([0.0, 1.0])}
    take = {"kind": "take", "left": left, "t": np.ones(2), "h": h}
    here = program.open(0)
    program.step(here, line, {})
    there = program.load(0, program.save(here))
    for state in (here, there):
        state.found = program.step(state, take, {})
    np.testing.assert_array_equal(here.found, there.found)
    for name in ("problems", *many._Shard.BY_PROBLEM):
        np.testing.assert_array_equal(getattr(here, name), getattr(there, name))


def test_a_budget_is_for_all_fits():
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = fit_many(NystroemSVC(**HOW, time_budget=1e-9), X, Y, DRAWS)
    said = [str(each.message) for each in told if each.category is ConvergenceWarning]
    assert len(said) == 1 and "5 of 5 machines missed tol" in said[0] and "fit 0" in said[0]
    assert all(np.isfinite(each.dual_gap_) for each in found)


def test_recast_rows_are_the_others_with_outcomes_of_their_own():
    base = MemoryDataset(X, (Y == "yes").astype(np.int32), ["no", "yes"])
    found = Recast(base, np.zeros(700, np.uint8), None)
    assert found.shared is base and found.X(0, 700) is not None
    assert found.label_counts.tolist() == [700, 0] and not found.has_weights
    weighted = Recast(base, None, DRAWS[:, 0])
    assert weighted.has_weights and weighted.weights(3, 9).tolist() == DRAWS[3:9, 0].tolist()
    np.testing.assert_array_equal(weighted.y(0, 700), base.y(0, 700))


@pytest.mark.parametrize(
    ("machine", "y", "weights", "said"),
    [
        (SVC(), Y, DRAWS, "an exact kernel machine has none"),
        (NystroemSVC(**HOW, probability=True), Y, DRAWS, "leave out `probability`"),
        (NystroemSVC(**HOW), Y, None, "there is one fit; use fit"),
        (NystroemSVC(**HOW), PERMUTED, DRAWS[:, :3], "y has 5 columns"),
        (NystroemSVC(**HOW), PERMUTED[:600], None, "600"),
        (NystroemSVC(**HOW), Y, DRAWS[:600], "sample_weight has 600"),
        (NystroemSVC(**HOW), Y, -DRAWS.astype(float), "weight"),
        (NystroemSVC(**HOW), Y, DRAWS * (Y == "yes")[:, None], "fit 0: all rows that have any"),
        (NystroemSVC(**HOW), Y, np.zeros((700, 2)), "fit 0: every row has the weight zero"),
        (NystroemSVC(**HOW), np.stack([Y, np.full(700, "yes")], 1), None, "column 1 of y has the"),
        (LinearSVR(), np.stack([X[:, 0], np.full(700, np.inf)], 1), None, "column 1 of y"),
        ("a text", Y, DRAWS, "str is none"),
    ],
)
def test_bad_input_is_refused(machine, y, weights, said):
    with pytest.raises(ValueError, match=said):  # scikit-learn's own, and ours, which are some, too
        fit_many(machine, X, y, weights)


def test_features_that_are_computed_again_whose_rank_is_less_than_their_landmarks():
    rows = RNG.normal(size=(600, 2))
    labels = (rows[:, 0] > 0).astype(int)
    how = {
        "n_components": 40,
        "gamma": 0.05,
        "tuning": Tuning(features="recomputed"),
        "random_state": 0,
    }
    machines = fit_many(NystroemSVC(**how), rows, np.stack([labels, 1 - labels], axis=1))
    for machine, own in zip(machines, (labels, 1 - labels), strict=True):
        assert machine.certificate_[0]["rank"] < 40
        near(machine, NystroemSVC(**how).fit(rows, own))
