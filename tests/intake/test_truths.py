"""Truth values as labels: 0 and 1, whatever format they come from."""

import numpy as np
import pytest
from ingest_cases import in_source_order

from bigscreen.data.preparation import Preparation
from bigscreen.data.source_rows import prepare_rows
from bigscreen.errors import InputError
from bigscreen.intake.ingest import ingest

pandas = pytest.importorskip("pandas")


def sources(folder):
    """Return equal rows in every format that has truth values."""
    frame = pandas.DataFrame({"x": np.arange(12.0) ** 2, "ok": np.arange(12) % 3 == 0})
    frame.to_csv(folder / "a.csv", index=False)
    (folder / "b.csv").write_text((folder / "a.csv").read_text().lower())
    (folder / "c.csv").write_text((folder / "a.csv").read_text().replace("True", "TRUE"))
    frame.to_parquet(folder / "a.parquet")
    paths = [folder / name for name in ("a.csv", "b.csv", "c.csv", "a.parquet")]
    return [frame, (frame[["x"]], frame["ok"].to_numpy()), *paths]


@pytest.mark.slow
@pytest.mark.parametrize("k", range(6))
def test_labels_are_0_and_1_from_every_format(tmp_path, k):
    every = sources(tmp_path)
    made = ingest(every[k], tmp_path / "s")
    assert made.store.labels == [0, 1] and not made.notes
    assert in_source_order(made.store)[1].tolist() == [int(i % 3 == 0) for i in range(12)]
    for positive in ("True", True, 1):
        one = ingest(every[k], tmp_path / "p", positive=positive, overwrite=True).store
        assert one.labels == ["rest", 1] and one.preparation.positive == 1
        later = ingest(every[0], tmp_path / "q", like=one, overwrite=True)
        np.testing.assert_array_equal(in_source_order(later.store)[1], in_source_order(one)[1])
    with pytest.raises(InputError, match="no row has the label 'maybe'"):
        ingest(every[k], tmp_path / "r", positive="maybe")


@pytest.mark.parametrize("labels", [[0, 1], ["False", "True"], ["false", "true"]])
def test_later_rows_have_the_labels_of_the_store(tmp_path, labels):
    every = sources(tmp_path)
    store = ingest(every[0], tmp_path / "s").store
    store.preparation.labels = labels  # as stores of before have them
    for k, source in enumerate(every):
        later = ingest(source, tmp_path / f"{k}", like=store.preparation)
        assert not later.notes and later.store.labels == labels
        found = [labels.index(label) for label in in_source_order(later.store)[1].tolist()]
        assert found == [int(i % 3 == 0) for i in range(12)]


def test_files_of_several_formats_have_the_same_labels(tmp_path):
    every = sources(tmp_path)
    made = ingest(every[2:], tmp_path / "s")
    assert made.store.labels == [0, 1] and not made.notes


def test_truth_values_beside_other_labels_are_texts(tmp_path):
    (tmp_path / "a.csv").write_text("x,label\n1,True\n2,False\n3,maybe\n")
    assert ingest(tmp_path / "a.csv", tmp_path / "s").store.labels == ["False", "True", "maybe"]
    (tmp_path / "a.csv").write_text("x,label\n1,0\n2,1\n3,2\n")
    assert ingest(tmp_path / "a.csv", tmp_path / "t").store.labels == [0, 1, 2]


@pytest.mark.parametrize("text", ["True", "true"])
def test_a_feature_of_truth_values_keeps_its_kinds(tmp_path, text):
    frame = pandas.DataFrame({"on": [True, False] * 4, "label": [0, 1, 1, 0] * 2})
    written = frame.to_csv(index=False).replace("True", text).replace("False", "false")
    (tmp_path / "a.csv").write_text(written)
    store = ingest(tmp_path / "a.csv", tmp_path / "s").store
    later = ingest(frame, tmp_path / "t", like=store)
    assert not later.notes
    np.testing.assert_array_equal(in_source_order(later.store)[0], in_source_order(store)[0])


@pytest.mark.parametrize("old", [False, True])
def test_later_files_and_rows_may_write_truth_values_as_texts(tmp_path, old):
    frame = pandas.DataFrame({"on": [True, False] * 4, "label": [0, 1, 1, 0] * 2})
    known = ingest(frame, tmp_path / "s").store.preparation
    if old:  # as stores of CSV files had them before
        known = Preparation(1, ["on"], {0: ["False", "True"]}, labels=[0, 1])
    (tmp_path / "a.csv").write_text(frame.to_csv(index=False).replace("True", "TRUE"))
    texts = frame.assign(on=frame["on"].astype(str))
    expected = in_source_order(ingest(frame, tmp_path / "t", like=known).store)[0]
    for k, source in enumerate([tmp_path / "a.csv", texts]):
        later = ingest(source, tmp_path / f"{k}", like=known)
        assert not later.notes
        np.testing.assert_array_equal(in_source_order(later.store)[0], expected)
    np.testing.assert_array_equal(prepare_rows(known, texts[["on"]]), expected)


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 70_000, 200_000])
def test_zeros_and_ones_may_stand_among_truth_values_in_every_row(tmp_path, first):
    values = ["True", "False"] * (first // 2) + ["1", "0", "True", "0"]
    frame = pandas.DataFrame({"on": values, "label": np.arange(len(values)) % 2})
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_parquet(tmp_path / "a.parquet")
    for k, source in enumerate([frame, tmp_path / "a.csv", tmp_path / "a.parquet"]):
        store = ingest(source, tmp_path / f"{k}").store
        assert store.preparation.truths == [0]
        assert in_source_order(store)[0][-4:].tolist() == [[1], [0], [1], [0]]
