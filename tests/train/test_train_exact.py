"""Training the exact machine from end to end: records, starts, strategies, interruptions."""

import json
import warnings
from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import make_classification
from sklearn.exceptions import ConvergenceWarning

from bigscreen.data.layout import Layout
from bigscreen.data.memory import MemoryDataset
from bigscreen.data.writer import DatasetWriter
from bigscreen.errors import InputError
from bigscreen.fleet.inline import Inline
from bigscreen.fleet.local import local_cluster
from bigscreen.kernels.operand import Operand
from bigscreen.kernels.standard import clustering_kernel, make_kernel
from bigscreen.model.model import Model
from bigscreen.options.train import TrainOptions
from bigscreen.options.tuning import Tuning
from bigscreen.plan.plan import plan
from bigscreen.train.run import train

GRID = {"shard_rows": 256, "chunk_rows": 128}
SOLVERS = ["block", "pairs"]


def rows(classes=2, n=700, thin=False, seed=0, **grid):
    X, y = make_classification(
        n,
        6,
        n_informative=5,
        n_redundant=1,
        n_classes=classes,
        n_clusters_per_class=1,
        flip_y=0.1,
        random_state=seed,
    )
    X = X.astype(np.float32)
    if thin:
        X[np.abs(X) < 0.5] = 0
        X = sparse.csr_array(X)
    return MemoryDataset(X, y, list("abcd"[:classes]), **(grid or GRID))


@pytest.fixture(scope="module")
def fleet():
    with Inline(2) as threads:
        yield threads


def trained(data, fleet, report=None, **options):
    options = {"exact": True, "gamma": 0.1, "tol": 1e-4, **options}
    return train(data, TrainOptions(**options), fleet, report)


def objectives(model, data, C=1.0):
    """P of every classifier of a model, by the definition and in float64."""
    n = data.n_rows
    X, codes = data.X(0, n), data.y(0, n)
    scores = model.scores(X)
    gram = model.kernel.block(
        model.landmarks, Operand(model.landmarks, model.support), dtype=np.float64
    )
    constant = model.provenance["parameters"]["intercept"] == "penalized"
    out = []
    for k, (coef, b) in enumerate(zip(model.coef, model.intercept, strict=True)):
        sign = np.where(codes == (1 if len(model.coef) == 1 else k), 1.0, -1.0)
        losses = np.maximum(0.0, 1.0 - sign * scores[:, k])
        out.append(0.5 * (coef @ gram @ coef + constant * b * b) + C * losses.sum())
    return np.array(out)


@pytest.mark.parametrize("thin", [False, True])
@pytest.mark.parametrize("intercept", ["none", "constant", "true"])
@pytest.mark.parametrize("solver", SOLVERS)
def test_the_certificate_is_the_models(solver, intercept, thin, fleet):
    data = rows(3, thin=thin)
    model = trained(data, fleet, solver=solver, intercept=intercept, C=2.0)
    known = model.provenance
    stated = np.array([part["primal"] for part in known["certificates"]])
    np.testing.assert_allclose(objectives(model, data, 2.0), stated, rtol=1e-5)
    assert all(part["relative_gap"] <= 1e-4 for part in known["certificates"])
    assert [part["label"] for part in known["certificates"]] == ["a", "b", "c"]
    assert (known["solver"], known["features"]) == (solver, "exact")
    assert known["rows"] == 700 and known["parameters"]["kernel"]["name"] == "rbf"
    assert all(part["kernel_entries"] > 0 for part in known["screening"])
    assert {"solve", "certify", "total"} <= set(known["seconds"])
    # The support rows of all three.
    assert np.all(np.diff(model.support) > 0) and np.all(np.any(model.coef != 0, axis=0))
    found, there = model.landmarks, data.rows(model.support)
    assert (abs(found - there).sum() if thin else np.abs(found - there).sum()) == 0


def test_both_solvers_find_the_same_machine(fleet):
    data = rows()
    for options in ({}, {"class_weight": "balanced"}, {"lam": 0.01}, {"strategy": "one"}):
        block, pairs = (
            trained(data, fleet, solver=solver, tol=1e-6, **options) for solver in SOLVERS
        )
        X = data.X(0, 700)
        np.testing.assert_allclose(block.scores(X), pairs.scores(X), atol=1e-2)
    assert trained(data, fleet).provenance["solver"] == "pairs"
    assert trained(rows(n=4100), fleet, tol=0.1).provenance["solver"] == "block"


@pytest.mark.parametrize(
    "options", [{"exact": True}, {"landmarks": 60}, {"kernel": "linear"}], ids=str
)
def test_a_pairs_classifier_depends_on_its_rows_alone(options, fleet):
    """A pair's classifier is that of its own rows alone."""
    data = rows(3)
    options = {"exact": False, "tol": 1e-6, **options}
    model = trained(data, fleet, strategy="one", class_weight={"b": 2.0}, **options)
    names = [part["label"] for part in model.provenance["certificates"]]
    assert names == ["a vs b", "a vs c", "b vs c"] and model.strategy == "one"
    if "landmarks" in options:
        return  # of the pair alone there would be other ones
    X, codes = data.X(0, 700), data.y(0, 700)
    for k, (one, other) in enumerate([(0, 1), (0, 2), (1, 2)]):
        own = np.isin(codes, (one, other))
        labels = ["abc"[one], "abc"[other]]
        pair = MemoryDataset(X[own], (codes[own] == other).astype(int), labels, **GRID)
        weights = {"b": 2.0} if "b" in labels else None
        alone = trained(pair, fleet, class_weight=weights, **options)
        np.testing.assert_allclose(model.scores(X)[:, k], alone.scores(X)[:, 0], atol=2e-2)
    votes = np.zeros((700, 3))
    for k, (one, other) in enumerate([(0, 1), (0, 2), (1, 2)]):
        won = model.scores(X)[:, k] > 0
        votes[won, other] += 1
        votes[~won, one] += 1
    found = model.decide(model.scores(X))
    np.testing.assert_array_equal(found, votes.argmax(axis=1))
    np.testing.assert_array_equal(model.predict(X), np.array(list("abc"))[found])


@pytest.mark.slow
@pytest.mark.parametrize("intercept", ["none", "constant", "true"])
@pytest.mark.parametrize("start", ["divide", "nystrom"])
@pytest.mark.parametrize(
    "job",
    [
        {"exact": True, "solver": "block"},
        {"exact": True, "solver": "pairs"},
        {"landmarks": 80, "tuning": Tuning(features="stored")},
        {"kernel": "linear"},
    ],
    ids=str,
)
def test_a_start_leads_to_the_same_optimum(job, start, intercept, fleet):
    if start == "nystrom" and job.get("kernel") == "linear":
        with pytest.raises(InputError, match="a linear machine has no landmarks"):
            trained(rows(), fleet, **{"exact": False, **job, "tuning": Tuning(start=start)})
        return
    data, options = rows(), {"exact": False, "intercept": intercept, **job}
    asked = replace(job.get("tuning", Tuning()), start=start)
    divided = replace(asked, parts=4) if start == "divide" else asked
    cold = trained(data, fleet, **options)
    warm = trained(data, fleet, **{**options, "tuning": divided})
    (one,), (other,) = cold.provenance["certificates"], warm.provenance["certificates"]
    assert other["relative_gap"] <= 1e-4
    assert one["dual"] <= other["primal"] * (1 + 1e-6)
    assert other["dual"] <= one["primal"] * (1 + 1e-6)
    (record,) = warm.provenance["start"]
    assert record["start"] == start and record["seconds"] > 0
    assert warm.provenance["seconds"]["start"] > 0 and "start" not in cold.provenance
    if "exact" in job:  # it begins where the smaller problems ended, not at 0
        assert warm.provenance["history"][0]["dual"] > 0.5 * other["dual"]


def test_several_levels_lead_to_the_same_optimum(fleet):
    model = trained(rows(), fleet, tuning=Tuning(start="divide", parts=8, levels=2))
    assert [part["parts"] for part in model.provenance["start"][0]["levels"]] == [8, 2]


@pytest.mark.parametrize("strategy", ["rest", "one"])
@pytest.mark.parametrize("kernel", ["rbf", "polynomial"])
def test_early_is_every_parts_own_machine(kernel, strategy, fleet, tmp_path):
    data = rows(3)
    model = trained(
        data,
        fleet,
        early=True,
        kernel=kernel,
        coef0=1.0,
        degree=2,
        strategy=strategy,
        tuning=Tuning(parts=3),
    )
    known = model.provenance
    assert known["certificates"] is None and "no global" in known["no_certificate"]
    assert known["history"] == [] and len(known["start"]) == 3
    assert model.gate.n_parts == 3 and model.intercept.shape == (3, 3)
    X, codes = data.X(0, 700), data.y(0, 700)
    part = model.gate.nearest(clustering_kernel(model.kernel), X)
    scores, right = model.scores(X), 0
    for p in range(3):
        own = part == p
        alone = MemoryDataset(X[own], codes[own], list("abc"), **GRID)
        kernel_options = {"kernel": kernel, "coef0": 1.0, "degree": 2, "strategy": strategy}
        expected = trained(alone, fleet, **kernel_options)
        right += np.sum(model.predict(X[own]) == expected.predict(X[own]))
        np.testing.assert_allclose(scores[own], expected.scores(X[own]), atol=0.3)
    assert right > 0.97 * 700
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(Model.load(tmp_path / "model").scores(X), scores)


def test_early_of_several_levels_and_labels_is_refused(fleet):
    with pytest.raises(InputError, match="early needs one level"):
        trained(rows(3), fleet, early=True, tuning=Tuning(parts=8, levels=2))
    assert trained(rows(), fleet, early=True, tuning=Tuning(parts=8, levels=2)).gate.n_parts == 2


class Interrupt:
    """Ctrl-C, or a crash, when a pass is reported."""

    def __init__(self, at):
        self.at, self.seen = at, 0

    def __call__(self, event):
        self.seen += event["event"] == "pass"
        if event["event"] == "pass" and self.seen == self.at:
            raise KeyboardInterrupt


@pytest.mark.slow
@pytest.mark.parametrize("start", ["cold", "divide"])
@pytest.mark.parametrize("solver", SOLVERS)
def test_an_interrupted_fit_ends_in_the_same_model(
    solver, start, fleet, tmp_path, checkpoint_every
):
    checkpoint_every(-1.0)
    data = rows(n=1500)
    options = {"solver": solver, "tol": 1e-5, "C": 10.0, "intercept": "true"}
    options["tuning"] = Tuning(start=start)
    whole = trained(data, fleet, work=tmp_path / "whole", **options)
    count = len(whole.provenance["history"])
    assert count > 2
    with pytest.raises(KeyboardInterrupt):
        trained(data, fleet, Interrupt(count - 1), work=tmp_path / "work", **options)
    # How much is kept of the kernel is no part of the problem.
    events, more = [], {"resume": True, "cache": 1 << 16}
    again = trained(data, fleet, events.append, work=tmp_path / "work", **more, **options)
    assert {event["phase"] for event in events if event["event"] == "phase"} == {"solve", "certify"}
    np.testing.assert_array_equal(again.coef, whole.coef)
    np.testing.assert_array_equal(again.intercept, whole.intercept)
    np.testing.assert_array_equal(again.support, whole.support)
    assert again.provenance["certificates"] == whole.provenance["certificates"]
    assert again.provenance.get("start") == json.loads(json.dumps(again.provenance.get("start")))
    with pytest.raises(InputError, match=r"cannot be resumed: C was 10\.0, now 1\.0"):
        trained(data, fleet, work=tmp_path / "work", resume=True, **{**options, "C": 1.0})


def test_a_finished_pair_is_not_fitted_again(fleet, tmp_path):
    data = rows(3)
    whole = trained(data, fleet, strategy="one")
    seen = []

    def stop_in_the_second(event):
        if event["event"] == "pass":
            seen.append(event["class"])
            if event["class"] == "a vs c":
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(data, fleet, stop_in_the_second, strategy="one", work=tmp_path)
    seen.clear()
    again = trained(
        data, fleet, lambda event: seen.append(event.get("class")),
        strategy="one", work=tmp_path, resume=True,
    )  # fmt: skip
    assert "a vs b" not in seen and "b vs c" in seen
    np.testing.assert_array_equal(again.coef, whole.coef)


@pytest.mark.parametrize("cache", [1, 40_000, 1 << 30])
def test_a_cache_of_any_size_gives_the_same_model(cache, fleet):
    data = rows(n=1500)
    whole, some = (
        trained(data, fleet, solver="block", screening="gap", cache=size) for size in (None, cache)
    )
    np.testing.assert_array_equal(some.coef, whole.coef)
    np.testing.assert_array_equal(some.support, whole.support)


@pytest.mark.slow
@pytest.mark.parametrize("start", ["cold", "divide"])
def test_workers_change_no_bit(start, tmp_path):
    data = rows(n=1500)
    writer = DatasetWriter(
        tmp_path / "store",
        Layout.of(
            n_rows=1500,
            n_features=6,
            sparse=False,
            labels=data.labels,
            weights=False,
            **GRID,
        ),
        None,
    )
    for k in range(writer.n_chunks):
        a, b = writer.chunk(k)
        writer.write(k, data.X(a, b), data.y(a, b))
    store, found = writer.finish(), []
    with Inline(2) as threads, Inline(1) as one, local_cluster(1) as cluster:
        for fleet in (threads, one, cluster):
            model = trained(store, fleet, solver="block", tuning=Tuning(start=start))
            found.append((model.coef.tobytes(), model.support.tobytes()))
    assert found[0] == found[1] == found[2]
    assert model.provenance["fingerprint"] == store.fingerprint


def test_a_label_without_rows(fleet):
    """A store may know labels that none of its rows has."""
    X = rows().X(0, 700)
    codes = (X[:, 0] > 0).astype(int) * 2
    data = MemoryDataset(X, codes, ["a", "b", "c"], **GRID)
    for solver in SOLVERS:
        for intercept in ("none", "constant", "true"):
            for strategy in ("rest", "one"):
                options = {"solver": solver, "intercept": intercept, "strategy": strategy}
                model = trained(data, fleet, **options)
                assert all(c["relative_gap"] <= 1e-4 for c in model.provenance["certificates"])
                assert np.mean(model.decide(model.scores(X)) == codes) > 0.9


def test_a_kernel_of_zeros_has_a_model(fleet):
    """A kernel of 0 between all rows: alpha is at its bounds, and w is 0."""
    data = MemoryDataset(np.zeros((40, 2)), np.arange(40) % 2, [0, 1])
    for solver in SOLVERS:
        model = trained(data, fleet, kernel="linear", intercept="none", solver=solver)
        assert model.scores(np.ones((3, 2), np.float32)).tolist() == [[0.0]] * 3


def test_what_a_budget_leaves(fleet):
    with pytest.warns(ConvergenceWarning, match="missed tol"):
        model = trained(rows(n=1500), fleet, solver="block", max_iter=2, tol=1e-6)
    assert len(model.provenance["history"]) == 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = trained(rows(n=1500), fleet, solver="block", time_budget=1e-6, tol=1e-6)
    assert model.provenance["certificates"][0]["gap"] >= 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"exact": True, "solver": "newton"}, "use block or pairs"),
        ({"exact": True, "solver": "cd"}, "use block or pairs"),
        ({"solver": "block"}, "solver block is for exact machines"),
        ({"kernel": "precomputed"}, "precomputed kernel .* is for exact machines"),
        ({"kernel": min}, "one that is a function is for exact machines"),
        ({"cache": 100}, "cache is for exact machines"),
        ({"early": True}, "early is for exact machines"),
        ({"screening": "joachims"}, "joachims is for exact machines"),
        ({"exact": True, "parts": 2}, "tuning.parts is for tuning.start='divide' and for early"),
        ({"exact": True, "levels": 2}, "tuning.levels is for tuning.start='divide'"),
        ({"exact": True, "levels": 0}, "tuning.levels must be a whole number, at least 1"),
        ({"exact": True, "patience": 0}, "tuning.patience must be a whole number, at least 1"),
        ({"exact": True, "strategy": "all"}, "strategy must be one of rest, one"),
        ({"exact": True, "start": "nystrom", "kernel": min}, "needs a kernel with a name"),
        ({"solver": "pairs", "features": "recomputed"}, "needs stored features"),
    ],
    ids=str,
)
def test_contradicting_options_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        TrainOptions.from_record(options)


def test_a_start_needs_stored_features(fleet):
    with pytest.raises(InputError, match="use `tuning.features='stored'`"):
        trained(
            rows(),
            fleet,
            exact=False,
            landmarks=50,
            tuning=Tuning(features="recomputed", start="divide"),
        )


def test_given_kernels_need_rows_in_memory(fleet, tmp_path):
    data = rows(n=300)
    X = data.X(0, 300)
    gram = make_kernel("rbf", 0.1).block(X, Operand(X))
    square = MemoryDataset(gram, data.y(0, 300), data.labels, **GRID)
    model = trained(square, fleet, kernel="precomputed")
    expected = trained(data, fleet)
    np.testing.assert_allclose(model.scores(gram), expected.scores(X), atol=1e-2)
    model = trained(data, fleet, kernel=lambda A, B: A @ B.T, work=tmp_path / "work")
    with pytest.raises(InputError, match="function of your own"):
        model.save(tmp_path / "model")
    with pytest.raises(InputError, match="a square matrix"):
        trained(data, fleet, kernel="precomputed")
    writer = DatasetWriter(
        tmp_path / "store",
        Layout.of(
            n_rows=300,
            n_features=300,
            sparse=False,
            labels=data.labels,
            weights=False,
        ),
        None,
    )
    for k in range(writer.n_chunks):
        a, b = writer.chunk(k)
        writer.write(k, square.X(a, b), square.y(a, b))
    with pytest.raises(InputError, match="needs rows in memory"):
        trained(writer.finish(), fleet, kernel="precomputed")


def test_pairs_on_features(fleet):
    """The pair solver also takes rows or stored features as they are."""
    for options in ({"kernel": "linear"}, {"landmarks": 50}):
        for intercept in ("constant", "true"):
            made = {"exact": False, "intercept": intercept, **options}
            pairs = trained(rows(), fleet, solver="pairs", **made)
            newton = trained(rows(), fleet, solver="newton", **made)
            (one,), (other,) = (m.provenance["certificates"] for m in (pairs, newton))
            assert one["relative_gap"] <= 1e-4
            assert one["primal"] == pytest.approx(other["primal"], rel=2e-4)
    assert plan(rows(), TrainOptions(kernel="linear", solver="pairs")).cache_bytes == 4 * 700**2
