"""Raw rows in Python: column names of any type, and input that is not a table."""

import numpy as np
import pytest

import bigscreen
from bigscreen.data.preparation import Preparation
from bigscreen.data.source_rows import prepare_rows
from bigscreen.errors import InputError
from bigscreen.intake.ingest import ingest

NAMES = [
    [0, 1, 2],
    [0.5, 1.5, 2.0],
    [("x", 1), ("x", "b"), ("t", 2.5)],
    [("x", 1), "b", 3],
    [None, "b", True],
]


@pytest.mark.parametrize("names", NAMES, ids=str)
def test_a_model_predicts_for_columns_whose_names_are_not_texts(tmp_path, names):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(np.random.default_rng(0).normal(size=(20, 3)))
    frame[2] = np.arange(20) % 2
    multi = all(isinstance(name, tuple) for name in names)
    index = pandas.MultiIndex.from_tuples if multi else pandas.Index
    frame.columns = index(names)
    store = ingest(frame, tmp_path / "s").store
    model = bigscreen.LinearSVC().fit(store).model_
    columns = {name: frame[name].tolist() for name in frame.columns}
    for rows in (frame, frame[frame.columns[::-1]], frame.to_dict("records"), columns):
        np.testing.assert_allclose(model.scores(rows), model.scores(store), atol=1e-5)
    # Later frames are read by their names, too.
    later = ingest(frame[[frame.columns[k] for k in (1, 0, 2)]], tmp_path / "t", like=store).store
    np.testing.assert_array_equal(later.X(0, 20), store.X(0, 20))


def test_two_columns_with_names_of_equal_text_are_refused(tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({1: [0.0, 1.0], "1": [1.0, 0.0]})
    with pytest.raises(InputError, match="two columns are named '1'"):
        prepare_rows(Preparation(n_raw=1, names=["1"]), frame)


@pytest.mark.parametrize("row", [{"v": 1.0}, {"v": "red"}, {"v": 1, "w": [2]}, {"w": [1], "v": 2}])
def test_a_mapping_of_single_values_is_refused(row):
    known = Preparation(n_raw=len(row), names=list(row))
    with pytest.raises(InputError, match=r"column 'v' is a single value; give one row as a list"):
        prepare_rows(known, row)
