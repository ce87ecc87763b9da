"""Options that only measurements can choose: one object in Python, single values in records."""

import copy
import inspect
import pickle
from dataclasses import FrozenInstanceError, fields

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

from bigscreen import (
    SVC,
    SVR,
    InputError,
    LADRegressor,
    NuSVC,
    NuSVR,
    NystroemSVC,
    NystroemSVCCV,
    OneClassSVM,
    QuantileRegressor,
    TrainOptions,
    Tuning,
)

NAMES = {"start", "parts", "levels", "features", "truncation", "certify", "f", "patience"}
MACHINES = (
    *(SVC, NuSVC, SVR, NuSVR, LADRegressor, QuantileRegressor, OneClassSVM),
    *(NystroemSVC, NystroemSVCCV),
)


def rows():
    X = np.random.default_rng(0).normal(size=(90, 3))
    return X, (X[:, 0] + X[:, 1] ** 2 > 0.5).astype(int)


def test_no_option_is_in_two_places():
    assert {own.name for own in fields(Tuning)} == NAMES
    for kind in (TrainOptions, *MACHINES):
        taken = inspect.signature(kind).parameters
        assert "tuning" in taken and not NAMES & taken.keys()


def test_tuning_objects_are_equal_by_value():
    tuning = Tuning(start="divide", parts=3)
    assert tuning == Tuning(parts=3, start="divide") and tuning != Tuning()
    assert repr(tuning) == "Tuning(start='divide', parts=3)" and repr(Tuning()) == "Tuning()"
    assert copy.deepcopy(tuning) == pickle.loads(pickle.dumps(tuning)) == tuning
    assert hash(tuning) == hash(Tuning(start="divide", parts=3))
    with pytest.raises(FrozenInstanceError):
        tuning.parts = 4
    assert all(f"\n{name} : " in Tuning.__doc__ for name in NAMES)


@pytest.mark.parametrize("kind", MACHINES)
def test_scikit_learn_knows_it(kind):
    tuning = Tuning(certify="float64")
    machine = kind(tuning=tuning)
    assert machine.get_params()["tuning"] is tuning and kind().get_params()["tuning"] is None
    assert clone(machine).tuning == tuning
    assert kind().set_params(tuning=tuning).get_params() == machine.get_params()
    assert machine._options().tuning == tuning and kind()._options().tuning == Tuning()


def test_a_grid_can_hold_it():
    X, y = rows()
    grid = {"tuning": [None, Tuning(start="divide", parts=2)]}
    found = GridSearchCV(SVC(gamma=0.5), grid, cv=2).fit(X, y)
    assert found.cv_results_["mean_test_score"].min() > 0.6


@pytest.mark.parametrize("wrong", [{"f": 0.2}, {}, "f", 0, TrainOptions()], ids=repr)
def test_there_is_one_way_to_say_it(wrong):
    X, y = rows()
    for kind in (SVC, NystroemSVC):
        with pytest.raises(InputError, match="^tuning must be a bigscreen.Tuning, got "):
            kind(tuning=wrong).fit(X, y)
    for nothing in (wrong, None):
        with pytest.raises(InputError, match="^tuning must be a bigscreen.Tuning, got "):
            TrainOptions(tuning=nothing)


def test_errors_name_options_as_the_user_wrote_them():
    with pytest.raises(InputError, match=r"^tuning\.f must lie strictly between 0 and 1, got 2$"):
        Tuning(f=2)
    with pytest.raises(InputError, match=r"^tuning\.start must be one of auto, cold, divide"):
        Tuning(start="warm")
    with pytest.raises(InputError, match=r"^tuning\.levels is for tuning\.start='divide' and"):
        TrainOptions(tuning=Tuning(levels=2))
    with pytest.raises(InputError, match="`tuning.features='auto'`"):
        TrainOptions(solver="cd", tuning=Tuning(features="recomputed"))


def test_records_are_flat():
    options = TrainOptions(C=2.0, tuning=Tuning(features="stored", truncation=1e-4))
    record = options.record
    assert "tuning" not in record and {name: record[name] for name in NAMES} == {
        "start": "auto",
        "parts": None,
        "levels": 1,
        "features": "stored",
        "truncation": 1e-4,
        "certify": "float32",
        "f": 0.1,
        "patience": 3,
    }
    assert TrainOptions.from_record(record) == options
    assert options.tuned(truncation=None) == TrainOptions(C=2.0, tuning=Tuning(features="stored"))
