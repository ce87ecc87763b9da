"""Ingest: bad input ends in one sentence, and the real files come in as they are."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from ingest_cases import dense
from places import DATA
from scipy.sparse import csr_array

from bigscreen.errors import InputError
from bigscreen.intake.ingest import ingest
from bigscreen.intake.source import LabelEncoder


def real(name: str) -> Path:
    if not (DATA / name).exists():
        pytest.skip(f"{DATA / name} is missing: set BIGSCREEN_DATA to the folder of real data")
    return DATA / name


nan = np.eye(4)
nan[2, 1] = np.nan
EYE = np.eye(4)
BAD = {
    "NaN": ((nan, [0, 1, 0, 1]), {}, "row 2: the value nan of feature 1"),
    "too large": ((EYE * 1e300, [0, 1, 0, 1]), {}, "row 0: .*too large"),
    "one class": ((EYE, [3, 3, 3, 3]), {}, "every row has the label 3"),
    "no labels": (EYE, {}, "row 0: the row has no label"),
    "one without": ((EYE, [0, 1, None, 1]), {}, "row 2: the row has no label"),
    "NaN label": ((EYE, [0, 1, 0, np.nan]), {}, "row 3: the row has no label"),
    "ragged": ([(EYE, [0, 1, 0, 1]), (np.eye(3), [0, 1, 0])], {}, "row 4: the row has 3 columns"),
    "mixed": ([(EYE, [0, 1] * 2), (csr_array(EYE), [0, 1] * 2)], {}, "row 4: sparse and dense"),
    "weights": ([(EYE, [0, 1] * 2, [1] * 4), (EYE, [0, 1] * 2)], {}, "row 4: either all"),
    "no rows": ([], {}, "no row"),
    "scale": ((EYE, [0, 1] * 2), {"scale": "divide:0"}, "no scaling 'divide:0'"),
    "layout": ((EYE, [0, 1] * 2), {"layout": "csc"}, "no layout 'csc'"),
    "holdout": ((EYE, [0, 1] * 2), {"holdout": 4}, "holding out 4 of 4"),
    "holdout 1.5": ((EYE, [0, 1] * 2), {"holdout": 1.5}, "holdout=1.5"),
    "range": ((EYE, [0, 1] * 2), {"rows": "3:2"}, "'3:2' is no range"),
    "beyond": ((EYE, [0, 1] * 2), {"rows": "4:"}, "no row in the range 4:"),
    "all held": ((EYE, [0, 0, 0, 1]), {"holdout": 3, "seed": 0}, "without the rows held out"),
    "option": ((EYE, [0, 1] * 2), {"delimiter": ","}, "option delimiter"),
    "like nothing": ((EYE, [0, 1] * 2), {"like": "nowhere"}, "nowhere"),
    "file": ("nowhere.csv", {}, "nowhere.csv cannot be opened"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence_and_leaves_nothing(case, tmp_path):
    source, options, message = BAD[case]
    with pytest.raises(InputError, match=message):
        ingest(source, tmp_path / "a", **options)
    assert os.listdir(tmp_path) == []


def test_regression_targets_are_no_labels():
    labels = LabelEncoder(max_labels=100)
    with pytest.raises(InputError, match="row 100: there are more than 100 different labels"):
        labels.encode(np.arange(500) / 7, 500, lambda i: f"row {i}")


# --- real data -------------------------------------------------------------------------------


def test_a9a_train_and_test(tmp_path):
    train = ingest(real("a9a/a9a.xz"), tmp_path / "train").store
    assert (train.n_rows, train.n_features, train.labels) == (32561, 123, [-1, 1])
    assert train.label_counts.tolist() == [24720, 7841]
    test = ingest(real("a9a/a9a.t.xz"), tmp_path / "test", like=tmp_path / "train").store
    assert (test.n_rows, test.n_features) == (16281, 123)  # the file itself stops at 122
    first = int(np.flatnonzero(train.row_ids(0, 32561) == 0)[0])
    ones = np.flatnonzero(train.X(first, first + 1)[0]) + 1
    assert ones.tolist() == [3, 11, 14, 19, 39, 42, 55, 64, 67, 73, 75, 76, 80, 83]


@pytest.mark.slow
def test_mnist_seven_against_the_rest(tmp_path):
    images = real("mnist/t10k-images-idx3-ubyte.gz")
    store = ingest(images, tmp_path / "a", positive=7, scale="divide:255").store
    assert (store.n_rows, store.n_features, store.labels) == (10000, 784, ["rest", 7])
    assert store.label_counts.tolist() == [8972, 1028]
    X = dense(store)
    assert X.max() == 1 and X.min() == 0 and 0.1 < X.mean() < 0.2


@pytest.mark.slow
def test_kddcup_categories(tmp_path):
    path = real("kddcup99/kddcup.data_10_percent.gz")
    made = ingest(path, tmp_path / "a", rows="0:4000", positive="normal.", scale="minmax")
    assert made.store.n_rows == 4000 and made.store.labels == ["rest", "normal."]
    categories = made.store.preparation.categories
    assert sorted(categories) == [1, 2, 3] and "tcp" in categories[1]
    X = dense(made.store)
    assert X.min() == 0 and X.max() == 1
    later = ingest(path, tmp_path / "b", rows="4000:9000", like=made.store)
    assert later.store.n_features == made.store.n_features
    unseen = sum(int(note.split()[0]) for note in later.notes)
    at = 1 + len(categories[1])
    services = dense(later.store)[:, at : at + len(categories[2])].sum(axis=1)
    assert set(services) <= {0, 1} and unseen >= np.count_nonzero(services == 0)
