"""A model predicts for raw rows in the form of its source, with the user's labels."""

import csv
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import bigscreen
from bigscreen.errors import InputError
from bigscreen.evaluate.predict import write_predictions
from bigscreen.model.model import Model

COLUMNS = ["age", "income", "colour", "owner"]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A model of a mixed, scaled table, its rows as records, and what the store predicts."""
    folder = tmp_path_factory.mktemp("served")
    rng = np.random.default_rng(0)
    n = 400
    age, income = rng.integers(18, 80, n), rng.lognormal(10, 1, n)
    colour, owner = rng.choice(["red", "green", "blue"], n), rng.choice([True, False], n)
    buys = np.where((age > 45) ^ (colour == "red"), "yes", "no")
    with open(folder / "t.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*COLUMNS, "buys"])
        writer.writerows(zip(age, income.tolist(), colour, owner, buys, strict=True))
    made = bigscreen.ingest(folder / "t.csv", folder / "s", label="buys", scale="standard")
    machine = bigscreen.NystroemSVC(n_components=80, gamma=0.3, C=10).fit(made.store)
    machine.model_.save(folder / "m")
    model = Model.load(folder / "m")
    write_predictions(model, made.store, folder / "p.npy")
    columns = age.tolist(), income.tolist(), colour.tolist(), owner.tolist(), buys.tolist()
    records = [
        dict(zip([*COLUMNS, "buys"], row, strict=True)) for row in zip(*columns, strict=True)
    ]
    return model, records, np.load(folder / "p.npy"), folder


def test_records_columns_and_arrays_get_the_store_predictions(served):
    model, records, known, _ = served
    table = {name: [record[name] for record in records] for name in reversed(COLUMNS)}
    rows = np.array([[record[name] for name in COLUMNS] for record in records], dtype=object)
    texts = [{name: str(value) for name, value in record.items()} for record in records]
    for X in (records, table, rows, texts):
        np.testing.assert_array_equal(model.predict(X), known["label"])
        np.testing.assert_allclose(model.scores(X)[:, 0], known["score"], atol=1e-4)
    assert set(known["label"]) == {"yes", "no"}


def test_arrow_tables_get_the_store_predictions(served):
    csv_of_arrow = pytest.importorskip("pyarrow.csv", reason="pyarrow is an extra")
    model, _, known, folder = served
    table = csv_of_arrow.read_csv(folder / "t.csv")
    np.testing.assert_array_equal(model.predict(table), known["label"])
    np.testing.assert_array_equal(model.predict(table.select(COLUMNS[::-1])), known["label"])


class Frame:
    """What pandas and polars have in common."""

    def __init__(self, columns):
        self._columns = columns

    @property
    def columns(self):
        return list(self._columns)

    def __getitem__(self, name):
        return self._columns[name]


def test_data_frames_get_the_store_predictions(served):
    model, records, known, _ = served
    frame = Frame({name: np.array([r[name] for r in records]) for name in [*COLUMNS, "buys"]})
    np.testing.assert_array_equal(model.predict(frame), known["label"])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda r: r.pop("income"), "there is no 'income'"),
        (lambda r: r.update(age="old"), "row 0, column 'age': 'old' is no number"),
        (lambda r: r.update(age=None), "row 0, column 'age': the value is missing"),
        (lambda r: r.update(income=float("nan")), "column 'income': the value is missing"),
        (lambda r: r.update(income=float("inf")), "row 0"),
    ],
)
def test_rows_that_cannot_be_scored_are_refused(served, change, said):
    model, records, *_ = served
    record = dict(records[0])
    change(record)
    with pytest.raises(InputError, match=said):
        model.predict([record])


def test_impossible_shapes_are_refused(served):
    model, _records, *_ = served
    with pytest.raises(InputError, match="3 columns and the source had 4: age, income"):
        model.predict(np.zeros((2, 3)))
    with pytest.raises(InputError, match=r"a single row x is \[x\]"):
        model.predict(np.zeros(4))
    with pytest.raises(InputError, match="no column 'age'"):
        model.predict({name: [1] for name in COLUMNS[1:]})
    with pytest.raises(InputError, match="others have 2 rows"):
        model.predict({"age": [1, 2], "income": [1], "colour": ["red"], "owner": [True]})


def test_an_unknown_category_warns_and_contributes_nothing(served):
    model, records, *_ = served
    with pytest.warns(UserWarning, match="column 'colour': 1 value.*'pink', row 1"):
        pink = model.scores([records[0], dict(records[0], colour="pink")])
    prepared, first = model.preparation, records[0]
    source = np.array([[first["age"], first["income"], -1.0, float(first["owner"])]])
    features = prepared.scale(prepared.expand(source)).astype(np.float32)
    np.testing.assert_allclose(pink[1], model.scores(features, prepared=True)[0], atol=1e-5)


def test_a_model_knows_its_source_columns(served):
    model, *_ = served
    assert model.n_features_in_ == 4 and model.feature_names_in_.tolist() == COLUMNS
    bare = bigscreen.SVC().fit(np.eye(4), [0, 1, 0, 1]).model_
    assert bare.n_features_in_ == 4
    with pytest.raises(AttributeError, match="no names"):
        _ = bare.feature_names_in_


def test_threads_may_share_a_model(served):
    _model, records, known, folder = served
    fresh = Model.load(folder / "m")
    with ThreadPoolExecutor(8) as pool:
        parts = [records[k : k + 10] for k in range(0, len(records), 10)]
        found = np.concatenate(list(pool.map(fresh.predict, parts)))
    np.testing.assert_array_equal(found, known["label"])


def test_a_regressor_predicts_numbers(tmp_path):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(200, 2)) * [1, 1000]
    data = bigscreen.ingest((X, X[:, 0]), tmp_path / "s", scale="standard", regression=True).store
    model = bigscreen.SVR(C=10).fit(data).model_
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.abs(model.predict(X.tolist()) - X[:, 0]).mean() < 0.2
