"""Files without names, read like a store, have their features where the store's source had them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bigscreen.errors import InputError
from bigscreen.intake.ingest import ingest

X = np.random.default_rng(0).normal(size=(40, 3)).round(3)
Y = (X[:, 0] > 0).astype(float)
MORE = np.arange(40) + 100.0


def written(path: Path, *columns: np.ndarray, header: str = "") -> Path:
    np.savetxt(path, np.column_stack(columns), delimiter=",", fmt="%g", header=header, comments="")
    return path


@pytest.mark.parametrize(
    ("columns", "how"),
    [
        ((Y, X), {"label": 0}),
        ((X[:, :1], Y, X[:, 1:]), {"label": 1}),
        ((X, Y), {"label": 3}),
        ((MORE, X, Y), {"label": 4, "drop": [0]}),
        ((X, MORE, Y), {"label": 4, "drop": [3]}),
        ((Y, X, MORE, MORE), {"label": 0, "columns": [1, 2, 3]}),
    ],
)
def test_features_and_labels_stand_as_in_the_source(
    columns: tuple[np.ndarray, ...], how: dict[str, Any], tmp_path: Path
) -> None:
    source = written(tmp_path / "a.csv", *columns)
    made = ingest(source, tmp_path / "s", header=False, shuffle=False, **how).store
    again = ingest(source, tmp_path / "t", like=made, shuffle=False).store
    np.testing.assert_array_equal(again.X(0, 40), made.X(0, 40))
    np.testing.assert_array_equal(again.y(0, 40), made.y(0, 40))
    alone = ingest(written(tmp_path / "b.csv", X), tmp_path / "u", like=made, shuffle=False).store
    np.testing.assert_array_equal(alone.X(0, 40), made.X(0, 40))


def test_a_source_with_names_says_where_its_features_are(tmp_path: Path) -> None:
    named = written(tmp_path / "a.csv", Y, X, header="y,a,b,c")
    made = ingest(named, tmp_path / "s", label="y", shuffle=False).store
    bare = written(tmp_path / "b.csv", Y, X)
    again = ingest(bare, tmp_path / "t", like=made, shuffle=False).store
    np.testing.assert_array_equal(again.X(0, 40), made.X(0, 40))
    np.testing.assert_array_equal(again.y(0, 40), made.y(0, 40))


def test_a_source_without_labels_is_read_again(tmp_path: Path) -> None:
    rows = written(tmp_path / "a.csv", MORE, X)
    made = ingest(rows, tmp_path / "s", unlabelled=True, header=False, drop=[0], shuffle=False)
    again = ingest(rows, tmp_path / "t", like=made.store, shuffle=False).store
    np.testing.assert_array_equal(again.X(0, 40), made.store.X(0, 40))
    assert again.n_unlabelled == 40


def test_columns_that_may_be_any_are_refused(tmp_path: Path) -> None:
    source = written(tmp_path / "a.csv", Y, X[:, :1], MORE, X[:, 1:])
    made = ingest(source, tmp_path / "s", header=False, label=0, drop=[2]).store
    rows = written(tmp_path / "b.csv", X[:, :1], MORE, X[:, 1:])
    with pytest.raises(InputError, match=r"4 columns and no names, .* the 3 features alone"):
        ingest(rows, tmp_path / "t", like=made)


def test_a_file_may_lack_the_label_or_another_column(tmp_path: Path) -> None:
    source = written(tmp_path / "a.csv", MORE, X, Y)
    made = ingest(source, tmp_path / "s", header=False, label=4, drop=[0], shuffle=False).store
    for columns in ((MORE, X), (X, Y)):
        rows = written(tmp_path / "b.csv", *columns)
        with pytest.raises(InputError, match="which of them are the features"):
            ingest(rows, tmp_path / "t", like=made)
    two = written(tmp_path / "c.csv", MORE, MORE, X, Y)
    made = ingest(two, tmp_path / "u", header=False, label=5, drop=[0, 1], shuffle=False).store
    rows = written(tmp_path / "d.csv", MORE, MORE, X)
    again = ingest(rows, tmp_path / "v", like=made, shuffle=False).store
    np.testing.assert_array_equal(again.X(0, 40), made.X(0, 40))
    assert again.n_unlabelled == 40
