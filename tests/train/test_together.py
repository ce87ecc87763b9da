"""Several classes over one pass a round: each ends at the machine that it has alone."""

import os
import signal
import threading
import warnings
from dataclasses import fields, replace

import numpy as np
import pytest
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from trained import fitted_by

from bigscreen.data.layout import Layout
from bigscreen.data.memory import MemoryDataset
from bigscreen.data.writer import DatasetWriter
from bigscreen.errors import InputError
from bigscreen.features.design import Design
from bigscreen.fit import monitor as fit_monitor
from bigscreen.fleet.inline import Inline
from bigscreen.fleet.local import local_cluster
from bigscreen.options.train import TrainOptions
from bigscreen.options.tuning import Tuning
from bigscreen.plan.plan import plan, plan_on
from bigscreen.train.features import FeaturesJob
from bigscreen.train.job import STORED, TOGETHER


def rows(n=2400, classes=5, thin=False, weights=False, wide=True, apart=0.0):
    """Rows of several classes, the last of them far from the others."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=(n, 6)).astype(np.float32)
    field = X[:, 0] + np.sin(2 * X[:, 1]) + 0.3 * rng.normal(size=n)
    y = np.digitize(field, np.quantile(field, np.arange(1, classes) / classes))
    X[y == classes - 1, 2] += 20.0 * wide
    X[np.arange(n), y] += np.float32(apart)
    if thin:
        X = sparse.csr_array(np.where(np.abs(X) > 0.8, X, 0))
    weight = rng.uniform(0, 3, n) * (rng.random(n) < 0.8) if weights else None
    grid = {"shard_rows": 512, "chunk_rows": 256}
    return MemoryDataset(X, y, list(range(classes)), weight, **grid)


def trained(data, fleet, report=None, together=32, **how):
    """Fit a model, solving this many classes at once."""
    options = TrainOptions(**{"landmarks": 80, "gamma": 0.2, "tol": 1e-4, "C": 3.0, **how})
    planned = plan_on(fleet, data, options)
    planned = replace(planned, together=min(planned.together, together))
    return fitted_by(FeaturesJob, data, options, fleet, planned, report)


def passes(model):
    """What is recorded of every pass, without its clock."""
    return [
        {name: value for name, value in event.items() if name not in ("seconds", "memory")}
        for event in model.provenance["history"]
    ]


def same(one, other):
    np.testing.assert_array_equal(one.coef, other.coef)
    np.testing.assert_array_equal(one.intercept, other.intercept)
    assert one.provenance["certificates"] == other.provenance["certificates"]
    assert passes(one) == passes(other)


@pytest.fixture(scope="module")
def fleet():
    with Inline(2) as fleet:
        yield fleet


@pytest.mark.slow
@pytest.mark.parametrize("features", ["stored", "recomputed"])
@pytest.mark.parametrize(
    ("made", "how"),
    [
        ({}, {}),
        ({"thin": True}, {"intercept": "penalized"}),
        ({"weights": True}, {"class_weight": "balanced", "intercept": "true"}),
        ({}, {"problem": "squared-svc"}),
        ({"apart": 3.0}, {"problem": "nu-svc", "nu": 0.2, "intercept": "true"}),
        ({"weights": True}, {"strategy": "one", "intercept": "true"}),
        ({}, {"screening": "none", "tol": 1e-6}),
    ],
    ids=["plain", "csr", "weights", "squared", "nu", "pairs", "near"],
)
def test_every_class_ends_where_it_ends_alone(made, how, features, fleet):
    data, how = rows(**made), {"tuning": Tuning(features=features), **how}
    at_once = trained(data, fleet, **how)
    same(at_once, trained(data, fleet, together=1, **how))
    same(at_once, trained(data, fleet, together=3, **how))
    proofs = at_once.provenance["certificates"]
    assert len(proofs) == (10 if "strategy" in how else 5)
    assert all(part["relative_gap"] <= at_once.provenance["parameters"]["tol"] for part in proofs)


@pytest.mark.slow
@pytest.mark.parametrize("thin", [False, True])
def test_linear_classes_end_where_they_end_alone(thin, fleet):
    how = {"kernel": "linear", "solver": "newton"}
    same(*(trained(rows(thin=thin), fleet, together=most, **how) for most in (32, 1)))


def test_threads_change_no_bit(fleet):
    with Inline(1) as one, Inline(3) as three:
        found = [trained(rows(), each) for each in (one, fleet, three)]
    same(found[0], found[1])
    same(found[0], found[2])


def test_classes_end_when_they_are_proved(fleet):
    """The class that is far from the others ends first, and its rows are not read again."""
    model = trained(rows(), fleet, tol=1e-6)
    made = [sum(event["class"] == k for event in model.provenance["history"]) for k in range(5)]
    assert made[-1] < max(made)


def test_what_is_asked_alike_is_computed_once(fleet):
    """At w = 0 all classes look at all rows: one product, and one moment, for all of them."""
    asked = []

    class Counted(Design):
        def dots(self, X, coefs, dtype=np.float32):
            asked.append(("dots", X.shape[0], coefs.shape[1]))
            return super().dots(X, coefs, dtype)

        def columns(self, X, dtype=np.float32, passing=""):
            asked.append(("columns", X.shape[0], 0))
            return super().columns(X, dtype, passing)

    class CountedJob(FeaturesJob):
        def _prepare(self):
            super()._prepare()
            parts = {own.name: getattr(self.design, own.name) for own in fields(Design)}
            self.design = self.source = Counted(**parts)

    options = TrainOptions(
        landmarks=80, gamma=0.2, tol=1e-4, C=3.0, screening="none",
        tuning=Tuning(features="recomputed"),
    )  # fmt: skip
    entries, data = {}, rows()
    for together in (5, 1):
        asked.clear()
        plan = replace(plan_on(fleet, data, options), together=together)
        fitted_by(CountedJob, data, options, fleet, plan)
        entries[together] = sum(n for _, n, _ in asked)
        widest = max(k for kind, _, k in asked if kind == "dots")
        assert widest >= 5 if together > 1 else widest == 2
    assert entries[5] < 0.75 * entries[1]


def test_pairs_look_at_their_own_rows_alone(fleet):
    data = rows()
    model = trained(data, fleet, strategy="one")
    counts = np.bincount(data.y(0, data.n_rows))
    for event in model.provenance["history"]:
        one, other = map(int, event["class"].split(" vs "))
        assert event["rows_visited"] <= event["rows_alive"] <= counts[one] + counts[other]


class Interrupt:
    """Ctrl-C at a pass: a signal that the main thread hears, or an error in the class's own."""

    def __init__(self, at, heard):
        self.at, self.heard, self.seen = at, heard, 0

    def __call__(self, event):
        self.seen += event["event"] == "pass"
        if event["event"] == "pass" and self.seen == self.at:
            assert threading.current_thread() is not threading.main_thread()
            if not self.heard:
                raise KeyboardInterrupt
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.slow
@pytest.mark.parametrize(("features", "heard"), [("stored", True), ("recomputed", False)])
def test_an_interrupted_fit_ends_in_the_same_model(features, heard, tmp_path, checkpoint_every):
    data, how = rows(), {"tuning": Tuning(features=features), "tol": 1e-5}
    with Inline(2) as fleet:
        whole = trained(data, fleet, work=tmp_path / "whole", **how)
        count = len(whole.provenance["history"])
        if not heard:
            checkpoint_every(-1.0)
        for work, at in (("early", count // 3), ("late", count - 3)):
            with pytest.raises(KeyboardInterrupt):
                trained(data, fleet, Interrupt(at, heard), work=tmp_path / work, **how)
            assert list((tmp_path / work).glob(f"{TOGETHER}*/*/checkpoint.json"))
    seen = []
    with Inline(1) as fleet:
        for work in ("early", "late"):
            seen.clear()
            again = trained(
                data, fleet, seen.append, work=tmp_path / work, resume=True, memory=2**32, **how
            )
            same(again, whole)
            assert sum(event["event"] == "pass" for event in seen) < count
        # With less memory the classes of a checkpoint are solved alone, from the beginning.
        same(trained(data, fleet, together=1, work=tmp_path / "early", resume=True, **how), whole)


@pytest.mark.slow
@pytest.mark.parametrize("together", [32, 1])
def test_a_ctrl_c_within_steps_over_subsamples_changes_no_bit(together, tmp_path, monkeypatch):
    """It keeps nothing of them, and of classes that are beyond them a checkpoint."""
    data, how = rows(n=33_000, classes=3, apart=2.0), {"landmarks": 12, "together": together}
    paused, pause, stop = [], fit_monitor.Monitor.pause, set()

    def pressed(monitor, save=None):
        if len(paused) in stop:
            os.kill(os.getpid(), signal.SIGINT)
        paused.append(len(monitor.history))
        pause(monitor, save)

    monkeypatch.setattr(fit_monitor.Monitor, "pause", pressed)
    with Inline(2) as fleet:
        whole = trained(data, fleet, work=tmp_path / "whole", **how)
        calls = len(paused)
        assert calls > 6 and not any(paused)
        for at in (1, calls - 1) if together > 1 else (calls // 2,):
            paused.clear()
            stop = {at}
            work = tmp_path / str(at)
            with pytest.raises(KeyboardInterrupt):
                trained(data, fleet, work=work, **how)
            assert len(paused) < min(calls, at + 10) or at == calls - 1
            beyond = list(work.glob(f"{TOGETHER}*/*/checkpoint.json"))
            assert bool(beyond) == (together > 1 and at == calls - 1)
            same(trained(data, fleet, work=work, resume=True, **how), whole)


def test_checkpoints_of_another_problem_are_refused(tmp_path, checkpoint_every, fleet):
    checkpoint_every(-1.0)
    for work in ("one", "two"):
        seed = {"one": 1, "two": 2}[work]
        with pytest.raises(KeyboardInterrupt):
            trained(rows(), fleet, Interrupt(12, False), work=tmp_path / work, seed=seed)
    name = TOGETHER + STORED
    (tmp_path / "one" / name).rename(tmp_path / "gone")
    (tmp_path / "two" / name).rename(tmp_path / "one" / name)
    with pytest.raises(InputError, match="checkpoint of another problem"):
        trained(rows(), fleet, work=tmp_path / "one", seed=1, resume=True)


def test_classes_share_a_time_budget(fleet):
    data = rows(wide=False)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        model = trained(data, fleet, tol=1e-9, time_budget=1e-9)
    said = [str(each.message) for each in told if each.category is ConvergenceWarning]
    assert len(said) == 1 and "5 of 5 machines missed tol 1e-09" in said[0]
    proofs = model.provenance["certificates"]
    assert len(proofs) == 5 and all(part["rows"] == 2400 for part in proofs)
    assert np.isfinite(model.coef).all()


def test_an_error_of_one_class_ends_the_fit(fleet):
    """An error of one class is the fit's, and the fleet and its threads are free again."""

    def fail(event):
        if event["event"] == "pass" and event["class"] == 3:
            raise ArithmeticError("told by a report")

    before = threading.active_count()
    with pytest.raises(InputError, match="overflow float64"):
        trained(rows(), fleet, fail)
    assert threading.active_count() <= before + fleet.workers
    same(trained(rows(), fleet), trained(rows(), fleet, together=1))


def test_memory_bounds_how_many_are_solved_at_once():
    data = rows(classes=5)
    options = {"gamma": 0.2, "landmarks": 2000}
    wide = plan(data, TrainOptions(**options, memory=2**34), workers=2)
    scant = plan(data, TrainOptions(**options, memory=wide.peak_bytes - 2**20), workers=2)
    assert wide.together == 5 and 1 <= scant.together < 5
    assert scant.refusal is None and scant.peak_bytes < wide.peak_bytes
    assert plan(data, TrainOptions(gamma=0.2, exact=True)).together == 1


@pytest.mark.slow
def test_workers_and_their_deaths_change_no_bit(tmp_path):
    data = rows()
    X, y = data.X(0, 2400), data.y(0, 2400)
    layout = Layout.of(
        n_rows=2400, n_features=6, sparse=False, labels=list(range(5)), weights=False,
        shard_rows=512, chunk_rows=256,
    )  # fmt: skip
    writer = DatasetWriter(tmp_path / "rows.store", layout, None)
    for k in range(writer.n_chunks):
        a, b = writer.chunk(k)
        writer.write(k, X[a:b], y[a:b])
    store = writer.finish()
    with Inline(2) as fleet:
        inline = trained(store, fleet, tuning=Tuning(features="recomputed"))

    def kill(event):
        if event["event"] == "pass" and event["pass"] == 2 and not killed:
            killed.append(next(iter(set(fleet.each(process_id, range(8))))))
            os.kill(killed[0], signal.SIGKILL)

    for workers, report in ((1, None), (2, kill)):
        killed = []
        with local_cluster(workers) as fleet:
            same(trained(store, fleet, report, tuning=Tuning(features="recomputed")), inline)
        assert len(killed) == workers - 1


def process_id(_):
    return os.getpid()
