"""One table as CSV, as Parquet and as a data frame ends in one store."""

import numpy as np
import pytest
from ingest_cases import in_source_order

from bigscreen.data.source_rows import prepare_rows
from bigscreen.data.texts import normalise_for_hash
from bigscreen.errors import InputError
from bigscreen.intake.ingest import ingest

pandas = pytest.importorskip("pandas")

COLUMNS = {
    "truth": [i % 3 == 0 for i in range(60)],
    "truth, some missing": [None if i % 7 == 3 else i % 3 == 0 for i in range(60)],
    "truth as texts": [["TRUE", "false", "true"][i % 3] for i in range(60)],
    "numbers": [None if i % 7 == 3 else float(i % 5) for i in range(60)],
    "numbers as texts": [f"0{i % 5}" for i in range(60)],
    "numbers and ?": ["?" if i % 7 == 3 else str(i % 5) for i in range(60)],
    "texts": [None if i % 7 == 3 else "ab"[i % 2] for i in range(60)],
    "texts and ?": ["?" if i % 7 == 3 else "ab"[i % 2] for i in range(60)],
    "texts and NA": ["NA" if i % 7 == 3 else "ab"[i % 2] for i in range(60)],
    "texts and blanks": [["", " a", "a", "b "][i % 4] for i in range(60)],
    "truth and words": [["True", "False", "maybe"][i % 3] for i in range(60)],
}


def made(folder, values, label, **how):
    """The store of a table from each of three sources: its rows, their labels, how it was made."""
    frame = pandas.DataFrame({"x": [i * i % 11 for i in range(60)]})
    frame["label" if label else "c"] = pandas.Series(values, dtype=object)
    if not label:
        frame["label"] = np.arange(60) % 2
    frame.to_csv(folder / "a.csv", index=False)
    frame.to_parquet(folder / "a.parquet")
    for k, source in enumerate([frame, folder / "a.csv", folder / "a.parquet"]):
        store = ingest(source, folder / str(k), **how).store
        yield *in_source_order(store), store.preparation.to_dict(), store.fingerprint


@pytest.mark.slow
@pytest.mark.parametrize("label", [False, True], ids=["feature", "label"])
@pytest.mark.parametrize("name", COLUMNS)
def test_every_source_gives_one_store(tmp_path, name, label):
    how = {"drop_missing": True} if label else {"impute": "most-frequent"}
    frame, *others = made(tmp_path, COLUMNS[name], label, **how)
    for other in others:
        for ours, theirs in zip(frame[:2], other[:2], strict=True):
            np.testing.assert_array_equal(ours, theirs)
        assert other[2:] == frame[2:]


@pytest.mark.parametrize("name", ["truth", "truth as texts"])
def test_truth_values_are_one_column_of_0_and_1(tmp_path, name):
    for X, _, preparation, _ in made(tmp_path, COLUMNS[name], False):
        assert not preparation["categories"]
        expected = [value in (True, "TRUE", "true") for value in COLUMNS[name]]
        np.testing.assert_array_equal(X[:, 1], expected)


def test_truth_values_may_be_named_as_kinds(tmp_path):
    (tmp_path / "a.csv").write_text("on,label\n" + "True,0\nfalse,1\nTRUE,1\n" * 5)
    store = ingest(tmp_path / "a.csv", tmp_path / "s", categorical=["on"]).store
    assert store.preparation.categories == {0: ["True", "false"]}


@pytest.mark.slow
def test_a_word_below_truth_values_is_refused_with_its_line(tmp_path):
    rows = ["True,0", "false,1"] * 100_000
    (tmp_path / "a.csv").write_text("\n".join(["on,label", *rows, "maybe,1"]) + "\n")
    with pytest.raises(InputError, match=r"line 200002, column 'on': 'maybe'"):
        ingest(tmp_path / "a.csv", tmp_path / "s")


def test_words_among_numbers_are_refused_in_a_frame_as_in_a_file(tmp_path):
    frame = pandas.DataFrame({"c": ["1", "2", "many"] * 5, "label": [0, 1, 1] * 5})
    frame.to_csv(tmp_path / "a.csv", index=False)
    for source in (frame, tmp_path / "a.csv"):
        with pytest.raises(InputError, match="'c'.*: 'many' stands among numbers"):
            ingest(source, tmp_path / "s")
        kinds = ingest(source, tmp_path / "k", categorical=["c"], overwrite=True).store.preparation
        assert kinds.categories == {0: ["1", "2", "many"]}


HASHED = {
    "truth": [i % 3 == 0 for i in range(60)],
    "truth, some missing": [None if i % 7 == 3 else i % 3 == 0 for i in range(60)],
    "floats": [float(i % 5) / 2 for i in range(60)],
    "float32": np.float32([i % 5 / 10 for i in range(60)]),
    "large and small": [[1e16, 1e-7, -0.0, 2.5e300][i % 4] for i in range(60)],
    "long whole numbers": [2**53 + i % 3 for i in range(60)],
    "numbers as texts": [["007", "7.0", "+7", "-0", "-07", "1e3"][i % 6] for i in range(60)],
    "texts": [["a", " b ", "True", "truest", "1_0", "12a"][i % 6] for i in range(60)],
    "missing": [[None, 3.0, 3.5][i % 3] for i in range(60)],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HASHED)
def test_every_source_and_predict_hash_a_value_alike(tmp_path, name):
    values = HASHED[name]
    frame = pandas.DataFrame({"x": np.arange(60) ** 2 % 11, "c": values, "label": [0, 1] * 30})
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_csv(tmp_path / "b.csv", index=False, decimal=",", sep=";")
    frame.to_parquet(tmp_path / "a.parquet")
    how = {"hashed": ["c:8"], "impute": "median"}
    store = ingest(frame, tmp_path / "s", **how).store
    expected = in_source_order(store)[0]
    for k, source in enumerate(["a.csv", "a.parquet"]):
        other = ingest(tmp_path / source, tmp_path / f"{k}", **how).store
        np.testing.assert_array_equal(in_source_order(other)[0], expected)
        assert other.preparation == store.preparation
    if name != "texts":
        commas = ingest(tmp_path / "b.csv", tmp_path / "c", **how, decimal=",").store
        np.testing.assert_array_equal(in_source_order(commas)[0], expected)
    records = frame.to_dict("records")
    for rows in (frame, records, pandas.read_parquet(tmp_path / "a.parquet")):
        np.testing.assert_array_equal(prepare_rows(store.preparation, rows), expected)


def test_numbers_are_hashed_by_their_value():
    for texts in (["3", "3.0", " +03", "3e0"], ["-0", "0.0", "000"], ["TRUE", "true ", "True"]):
        assert len({*map(normalise_for_hash, texts)}) == 1
    assert normalise_for_hash("0.10000000149011612") == "0.1"  # which is 0.1 as float32
    assert [*map(normalise_for_hash, ["2.50", "1e400", "-12", "a ", "1_0"])] == [
        *("2.5", "1e400", "-12", "a", "1_0")
    ]


def wrote(folder, name, values, **others):
    """One table as a frame, as CSV and as Parquet."""
    frame = pandas.DataFrame({"c": values, "label": np.arange(len(values)) % 2, **others})
    frame.to_csv(folder / f"{name}.csv", index=False)
    try:
        frame.to_parquet(folder / f"{name}.parquet")
    except (TypeError, ValueError):  # an object column of several types is CSV's alone
        return [frame, folder / f"{name}.csv"]
    return [frame, folder / f"{name}.csv", folder / f"{name}.parquet"]


def test_later_numbers_may_be_no_truth_values(tmp_path):
    known = ingest(wrote(tmp_path, "a", [0.5, 1.5] * 5)[0], tmp_path / "s").store
    assert known.preparation.truths == []
    values = ["0.5"] * 8 + ["TRUE", "2.5"]
    for source in wrote(tmp_path, "b", values):
        with pytest.raises(InputError, match=r"(row 8|line 10), column .*'c'.*: 'TRUE' is not"):
            ingest(source, tmp_path / "t", like=known)
    with pytest.raises(InputError, match=r"row 8, column 'c': 'TRUE' is no number"):
        prepare_rows(known.preparation, {"c": values})


@pytest.mark.slow
@pytest.mark.parametrize("rows", [10, 200_000])
@pytest.mark.parametrize("odd", ["37", "maybe"])
def test_what_is_no_truth_value_is_refused_in_every_row(tmp_path, rows, odd):
    known = ingest(wrote(tmp_path, "a", [True, False] * 5)[0], tmp_path / "s").store
    assert known.preparation.truths == [0]
    values = ["True", "False"] * (rows // 2) + [odd]
    tables = [(source, known) for source in wrote(tmp_path, "b", values)]
    if rows > 10:  # and so beyond the first rows, by which columns are known
        tables += [(source, None) for source, _ in tables]
    what = f"'{odd}' stands among truth values and is neither true nor false"
    for source, like in tables:
        with pytest.raises(
            InputError, match=rf"(row {rows}|line {rows + 2}), column .*'c'.*: {what}"
        ):
            ingest(source, tmp_path / "t", like=like)
    with pytest.raises(InputError, match=rf"row {rows}, column 'c': .*{odd}.* is neither true nor"):
        prepare_rows(known.preparation, {"c": values})


def test_numbers_are_no_truth_values_of_later_tables(tmp_path):
    known = ingest(wrote(tmp_path, "a", [True, False] * 5)[0], tmp_path / "s").store
    for source in wrote(tmp_path, "b", [0, 1] * 5):
        ingest(source, tmp_path / "t", like=known, overwrite=True)
    for source in wrote(tmp_path, "b", [0, 1] * 5 + [37]):
        with pytest.raises(InputError, match=r"(row 10|line 12), column .*'c'.*: '37' stands"):
            ingest(source, tmp_path / "u", like=known)
    with pytest.raises(InputError, match="row 1, column 'c': 37 is neither true nor false"):
        prepare_rows(known.preparation, {"c": [1, 37]})
    np.testing.assert_array_equal(
        prepare_rows(known.preparation, {"c": [" TRUE ", True, 0, "0.0"]}), [[1], [1], [0], [0]]
    )


def test_truth_values_in_one_file_and_numbers_in_another(tmp_path):
    truths, numbers = (wrote(tmp_path, *each)[1:] for each in TWO.items())
    for pair in [*zip(truths, numbers, strict=True), *zip(numbers, truths, strict=True)]:
        with pytest.raises(InputError, match="'c' holds truth values in one source and numbers in"):
            ingest([*pair], tmp_path / "s")
    blank = wrote(tmp_path, "blank", [None] * 10)[1]
    for pair in ([blank, truths[0]], [truths[0], blank]):
        store = ingest(pair, tmp_path / "b", impute="median", overwrite=True).store
        assert store.preparation.truths == [0] and store.n_features == 1


TWO = {"truths": [True, False] * 5, "numbers": [0, 1.5] * 5}


@pytest.mark.parametrize("text", ["1_0", "٣", "0x1", "TRUE"])
def test_predict_takes_no_number_that_ingest_does_not(tmp_path, text):
    known = ingest(wrote(tmp_path, "a", [0.5, 1.5] * 5)[0], tmp_path / "s").store
    with pytest.raises(InputError, match="row 1, column 'c'"):
        prepare_rows(known.preparation, {"c": ["1", text]})
    with pytest.raises(InputError, match=r"line 3, column 'c'"):
        ingest(wrote(tmp_path, "b", ["1", text])[1], tmp_path / "t", like=known)


def test_blanks_around_numbers_mean_nothing_in_predict(tmp_path):
    frame = wrote(tmp_path, "a", [0.5, None] * 5)[0]
    known = ingest(frame, tmp_path / "s", impute="zero").store
    rows = {"c": [" ", " 1.5 ", "?", None, b"2"]}
    np.testing.assert_array_equal(prepare_rows(known.preparation, rows).ravel(), [0, 1.5, 0, 0, 2])


CATEGORIES = {"whole": [3, 1, 2] * 4, "real": [0.5, 2.0] * 6, "truth": [True, False] * 6}


@pytest.mark.slow
@pytest.mark.parametrize("name", CATEGORIES)
def test_a_pandas_category_makes_kinds_of_anything(tmp_path, name):
    frame = wrote(tmp_path, "a", pandas.Categorical(CATEGORIES[name]))[0]
    frame.to_feather(tmp_path / "a.feather")
    store = ingest(tmp_path / "a.csv", tmp_path / "s", categorical=["c"]).store
    for source in (frame, tmp_path / "a.parquet", tmp_path / "a.feather"):
        other = ingest(source, tmp_path / "t", overwrite=True).store
        assert other.preparation == store.preparation and other.fingerprint == store.fingerprint
        later = ingest(source, tmp_path / "u", like=store, overwrite=True)
        assert later.store.fingerprint == store.fingerprint and not later.notes
    rows = prepare_rows(store.preparation, frame)
    np.testing.assert_array_equal(rows, in_source_order(store)[0])


def test_a_frame_may_hold_its_labels_and_its_weights(tmp_path):
    every = wrote(tmp_path, "a", [0.5, 1.5] * 5, w=np.arange(10.0))
    stores = [
        ingest(one, tmp_path / f"{k}", label="label", weight="w").store
        for k, one in enumerate(every)
    ]
    assert len({store.fingerprint for store in stores}) == 1
    assert sorted(stores[0].weights(0, 10).tolist()) == [*range(10)]


@pytest.mark.parametrize(
    ("weight", "why"),
    [(None, "the value is missing"), (-1.0, "the weight is negative"), (np.inf, "not a finite")],
)
def test_a_weight_that_is_none_is_refused_with_its_column(tmp_path, weight, why):
    every = wrote(tmp_path, "a", [0.5, 1.5] * 5, w=[1.0] * 9 + [weight])
    for one in every:
        for impute in (None, "median"):
            with pytest.raises(InputError, match=rf"(row 9|line 11), column .*'w'.*: .*{why}"):
                ingest(one, tmp_path / "s", weight="w", impute=impute)


def test_truth_values_are_no_weights(tmp_path):
    for one in wrote(tmp_path, "a", [0.5, 1.5] * 5, w=[True, False] * 5):
        with pytest.raises(InputError, match=r"(row 0|line 2), column .*'w'.*: '[Tt]rue' is not"):
            ingest(one, tmp_path / "s", weight="w")


def test_a_missing_label_is_called_one(tmp_path):
    frame = pandas.DataFrame({"x": [1.0, 2, 3], "target": [0, None, 1]})
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_parquet(tmp_path / "a.parquet")
    said = []
    for source in (frame, tmp_path / "a.csv", tmp_path / "a.parquet"):
        with pytest.raises(InputError, match="label") as caught:
            ingest(source, tmp_path / "s")
        said.append(str(caught.value).split(": ", 1)[1])
    assert len({*said}) == 1 and "impute" not in said[0]


def test_a_column_of_numbers_and_a_word_is_refused_with_its_row(tmp_path):
    for source in wrote(tmp_path, "a", pandas.Series([0, 1, "oops"] + [2.5] * 7, dtype=object)):
        with pytest.raises(InputError, match=r"(row 2|line 4), column .*'c'.*: 'oops' stands amon"):
            ingest(source, tmp_path / "s")


@pytest.mark.parametrize("values", [[""], ["?"], [" ", None, "NA"], [None]], ids=repr)
def test_a_column_without_values_is_one_number_everywhere(tmp_path, values):
    frame = pandas.DataFrame({"x": np.arange(12), "c": (values * 12)[:12], "label": [0, 1] * 6})
    frame["c"] = frame["c"].astype("str" if None not in values else object)
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_parquet(tmp_path / "a.parquet")
    sources = frame, tmp_path / "a.csv", tmp_path / "a.parquet"
    stores = [
        ingest(one, tmp_path / f"{k}", impute="median").store for k, one in enumerate(sources)
    ]
    assert stores[0].n_features == 2 and len({store.fingerprint for store in stores}) == 1
