"""Features `auto`: recomputed where that is quicker, stored where float32 columns fall short."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from trained import fitted_by

from bigscreen.data.memory import MemoryDataset
from bigscreen.fleet.inline import Inline
from bigscreen.options.train import TrainOptions
from bigscreen.plan.plan import plan, plan_on, plan_stored
from bigscreen.train.features import FeaturesJob
from bigscreen.train.run import train

HARD = TrainOptions(landmarks=60, gamma=0.03, C=1e7, tol=1e-5, solver="newton")
"""What float32 columns prove to 1.4e-4 at best (three kinds of BLAS), features in memory to tol."""


@pytest.fixture(scope="module")
def fleet():
    with Inline(2) as fleet:
        yield fleet


def recomputed_first(data, options, fleet, report=None):
    """Fit with a plan that recomputes features, though the options leave it to the plan."""
    first = plan_on(fleet, data, options.tuned(features="recomputed"))
    instead = partial(plan_stored, data, options, fleet, first)
    return fitted_by(FeaturesJob, data, options, fleet, first, report, over_stored=instead)


def rows(labels=2):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 3)).astype(np.float32)
    score = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.3 * rng.normal(size=600)
    return MemoryDataset(X, (score > 0).astype(int) + (labels - 2) * (score > 1.5), range(labels))


def wide(columns, n):
    """Rows that take no memory."""
    X = np.broadcast_to(np.zeros((1, columns), np.float32), (n, columns))
    return MemoryDataset(X, np.arange(n) % 2, [0, 1])


def proved(model):
    return max(one["relative_gap"] for one in model.provenance["certificates"])


@pytest.mark.slow
def test_a_solve_that_rounding_ends_goes_on_over_stored_features(fleet):
    """Of several classifiers, solved together, too: one that falls short is enough."""
    events, data = [], rows(labels=3)
    model = recomputed_first(data, HARD, fleet, events.append)
    assert model.provenance["features"] == "stored" and proved(model) <= HARD.tol
    assert [event["phase"] for event in events if event["event"] == "phase"].count("landmarks") == 2
    assert model.provenance["history"][0]["pass"] == 1  # of the features that it has


def test_requested_recomputed_features_stay_with_a_warning(fleet):
    with pytest.warns(ConvergenceWarning, match="ask for features stored"):
        model = train(rows(), HARD.tuned(features="recomputed"), fleet)
    assert model.provenance["features"] == "recomputed" and proved(model) > HARD.tol


def test_without_room_or_time_features_stay_recomputed(fleet):
    short = replace(HARD, time_budget=1e-6)
    with pytest.warns(ConvergenceWarning):
        model = recomputed_first(rows(), short, fleet)
    assert model.provenance["features"] == "recomputed"
    many, loose = wide(18, 2_000_000), TrainOptions(landmarks=1000, memory=2**36)
    found = plan(many, loose.tuned(features="recomputed"))
    instead = plan_stored(many, loose, fleet, found)
    assert instead.features == "stored" and instead.features_in_memory
    for other in (replace(loose, memory=2**32), loose.tuned(features="recomputed")):
        assert plan_stored(many, other, fleet, found) is None
    assert plan_stored(many, loose, fleet, instead) is None


@pytest.mark.slow
def test_an_interrupted_fit_ends_in_the_same_model(fleet, tmp_path, checkpoint_every):
    """Whether it was stopped over recomputed features, or over stored ones."""
    checkpoint_every(-1.0)
    whole = recomputed_first(rows(), HARD, fleet)
    same = train(rows(), HARD.tuned(features="stored"), fleet)
    np.testing.assert_array_equal(whole.coef, same.coef)

    def stopping(at, stored):
        seen = []

        def report(event):
            seen.append(event)
            over = sum(one.get("phase") == "landmarks" for one in seen) == 1 + stored
            if over and event["event"] == "pass" and event["pass"] == at:
                raise KeyboardInterrupt

        return report

    for at, stored in ((3, False), (9, True)):
        work = replace(HARD, work=tmp_path / f"{at}-{stored}")
        with pytest.raises(KeyboardInterrupt):
            recomputed_first(rows(), work, fleet, stopping(at, stored))
        again = recomputed_first(rows(), replace(work, resume=True), fleet)
        np.testing.assert_array_equal(again.coef, whole.coef)
        assert again.provenance["certificates"] == whole.provenance["certificates"]
        assert again.provenance["features"] == "stored"


def test_which_features_the_plan_takes():
    """Narrow rows from some 450 landmarks on are computed again; to closer gaps they are kept."""

    def taken(columns, m, n=50_000, **more):
        return plan(wide(columns, n), TrainOptions(landmarks=m, memory=2**36, **more)).features

    assert [taken(18, m) for m in (100, 300, 600, 1000, 2000)] == ["stored"] * 2 + [
        "recomputed"
    ] * 3
    assert taken(18, 1000, tol=1e-2) == "recomputed" and taken(18, 1000, tol=1e-4) == "stored"
    assert [taken(123, m) for m in (800, 1500, 2000)] == ["stored", "stored", "recomputed"]
    assert taken(784, 1000) == "stored"
    # Of many rows entries are all there is to a pass.
    assert taken(18, 1000, n=99_000, tol=1e-6) == "stored"
    assert taken(18, 1000, n=101_000, tol=1e-6) == "recomputed"
    assert taken(18, 1000, n=2_000_000, tol=1e-6) == "recomputed"
