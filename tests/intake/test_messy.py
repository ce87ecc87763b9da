"""Tables as people have them: blanks, dates, names of rows, odd line ends, folders of files."""

import datetime
import json

import numpy as np
import pytest
from click.testing import CliRunner
from ingest_cases import in_source_order, take_small_steps

import bigscreen
from bigscreen import Model
from bigscreen.cli.commands import group
from bigscreen.data.dataset import Dataset
from bigscreen.data.missing import MISSING_CATEGORY
from bigscreen.data.texts import array_to_days, hash_bucket, parse_days, to_days
from bigscreen.errors import InputError
from bigscreen.intake.ingest import ingest


def table(path, rows, end="\n", encoding="utf-8"):
    """Write lines of fields, the first of which are names."""
    path.write_bytes("".join(",".join(map(str, row)) + end for row in rows).encode(encoding))
    return path


def people(n=60, seed=0):
    """Rows of a number, a text, a date and a label."""
    rng = np.random.default_rng(seed)
    out = [["age", "town", "joined", "label"]]
    for i in range(n):
        day = datetime.date(2020, 1, 1) + datetime.timedelta(days=int(rng.integers(900)))
        out.append([int(rng.integers(20, 80)), f"t{rng.integers(4)}", day, "ab"[i % 2]])
    return out


@pytest.mark.parametrize("holdout", [0, 0.25])
def test_rows_that_lack_something_are_dropped_counted_and_listed(tmp_path, monkeypatch, holdout):
    take_small_steps(monkeypatch)
    rows = people(80)
    rows[3][0], rows[10][1], rows[11][2], rows[40][3] = "", "N/A", "?", ""
    rows[40][0] = "nan"
    source = table(tmp_path / "a.csv", rows)
    with pytest.raises(InputError, match=r"line \d+, .*missing.*impute.*drop_missing"):
        ingest(source, tmp_path / "s")
    made = ingest(source, tmp_path / "s", drop_missing=True, holdout=holdout)
    stores = [made.store] + ([made.holdout] if holdout else [])
    numbers = np.sort(np.concatenate([s.row_ids(0, s.n_rows) for s in stores]))
    assert numbers.tolist() == [i for i in range(80) if i not in (2, 9, 10, 39)]
    assert not holdout or made.holdout.n_rows == 19
    assert made.dropped == 4 and made.dropped_rows == [
        f"{source}, line 4: 'age'",
        f"{source}, line 11: 'town'",
        f"{source}, line 12: 'joined'",
        f"{source}, line 41: 'age'",
    ]
    assert any("4 row(s) lack something and are left out: " in note for note in made.notes)
    assert MISSING_CATEGORY not in made.store.preparation.categories[1]
    later = ingest(source, tmp_path / "t", like=made.store, drop_missing=True)
    assert later.dropped == 4 and later.store.n_rows == 76


def test_dropping_goes_on_where_it_was_stopped(tmp_path, monkeypatch):
    take_small_steps(monkeypatch)
    X = np.arange(4000.0).reshape(1000, 4)
    X[::7, 1] = np.nan
    np.savez(tmp_path / "a.npz", X=X, y=np.arange(1000) % 2)
    calls = iter(range(100))

    def stop(event):
        if event["phase"] == "write" and next(calls) == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ingest(tmp_path / "a.npz", tmp_path / "s", drop_missing=True, holdout=0.1, progress=stop)
    made = ingest(tmp_path / "a.npz", tmp_path / "s", drop_missing=True, holdout=0.1)
    whole = ingest(tmp_path / "a.npz", tmp_path / "w", drop_missing=True, holdout=0.1)
    assert made.dropped == whole.dropped == 143 and made.dropped_rows == whole.dropped_rows
    assert made.store.fingerprint == whole.store.fingerprint
    assert made.holdout.n_rows == 86


def test_where_nothing_is_whole_it_says_so(tmp_path):
    source = table(tmp_path / "a.csv", [["a", "b", "label"], [1, "", 0], ["", 2, 1]])
    with pytest.raises(InputError, match="every row lacks something: .*line 2: 'b'"):
        ingest(source, tmp_path / "s", drop_missing=True)
    with pytest.raises(InputError, match="choose one"):
        ingest(source, tmp_path / "s", drop_missing=True, impute="mean")


def test_dropped_rows_on_the_command_line(tmp_path):
    rows = people()
    rows[5][0] = "NULL"
    source = table(tmp_path / "a.csv", rows)
    args = ["ingest", str(source), str(tmp_path / "s"), "--drop-missing", "--json", "-"]
    done = CliRunner().invoke(group, args)
    assert done.exit_code == 0, done.output
    record = json.loads(done.stdout)
    assert record["dropped"] == {"rows": 1, "first": [f"{source}, line 6: 'age'"]}


def test_columns_are_chosen(tmp_path):
    source = table(tmp_path / "a.csv", people())
    assert ingest(source, tmp_path / "a", columns=["age"]).store.preparation.names == ["age"]
    args = ["ingest", str(source), str(tmp_path / "b"), "--columns", "town,age"]
    assert CliRunner().invoke(group, args).exit_code == 0
    assert Dataset.open(tmp_path / "b").preparation.names == ["age", "town"]
    args = ["ingest", str(source), str(tmp_path / "c"), "--drop", "town, joined"]
    assert CliRunner().invoke(group, args).exit_code == 0
    assert Dataset.open(tmp_path / "c").preparation.names == ["age"]
    with pytest.raises(InputError, match="no column 'size': its columns are age, town"):
        ingest(source, tmp_path / "d", columns=["size"])
    later = ingest(source, tmp_path / "e", like=tmp_path / "b", columns=["age", "town"]).store
    assert later.n_rows == 60


def test_dates_become_days_everywhere(tmp_path):
    rows = people()
    made = ingest(table(tmp_path / "a.csv", rows), tmp_path / "s", scale="standard")
    assert made.store.preparation.dates == {2: ""}
    assert "column 'joined' holds dates, taken as days since 1970." in made.notes
    bare = ingest(tmp_path / "a.csv", tmp_path / "bare").store
    X, _ = in_source_order(bare)
    wanted = [(row[2] - datetime.date(1970, 1, 1)).days for row in rows[1:]]
    np.testing.assert_array_equal(X[:, -1], wanted)
    other = [[*row[:2], row[2].strftime("%d.%m.%y"), row[3]] for row in rows[1:]]
    second = table(tmp_path / "b.csv", [rows[0], *other])
    with pytest.raises(InputError, match=r"line 2, column 'joined'.*date='COLUMN="):
        ingest(second, tmp_path / "t")
    again = ingest(second, tmp_path / "t", date=["joined=%d.%m.%y"], scale="standard").store
    np.testing.assert_array_equal(in_source_order(again)[0], in_source_order(made.store)[0])
    kinds = ingest(tmp_path / "a.csv", tmp_path / "u", categorical=["joined"], max_kinds=60).store
    assert 2 in kinds.preparation.categories
    model = bigscreen.LinearSVC().fit(made.store).model_
    model.save(tmp_path / "m")
    model = Model.load(tmp_path / "m")
    like = ingest(tmp_path / "a.csv", tmp_path / "v", like=tmp_path / "m").store
    expected = model.scores(like)
    columns = {name: [row[c] for row in rows[1:]] for c, name in enumerate(rows[0])}
    texts = columns | {"joined": [str(day) for day in columns["joined"]]}
    exact = columns | {"joined": np.array(columns["joined"], "M8[ns]")}
    for given in (columns, texts, exact):
        np.testing.assert_allclose(model.scores(given), expected, atol=1e-6)
    with pytest.raises(InputError, match="row 0, column 'joined': 'soon' is no date"):
        model.scores({name: ["soon"] if name == "joined" else v[:1] for name, v in columns.items()})


@pytest.mark.parametrize(
    ("text", "form", "wanted"),
    [
        ("1970-01-02", "", 1),
        ("1970-01-01T12:00:00Z", "", 0.5),
        ("1970-01-01 02:00+02:00", "", 0),
        ("31/12/1969", "%d/%m/%Y", -1),
        ("06:00", "%H:%M", 0.25),
    ],
)
def test_what_dates_are(text, form, wanted):
    assert parse_days(text, form) == wanted


def test_dates_of_numpy_and_python_are_alike():
    when = datetime.datetime(2024, 2, 29, 23, 59, 59, 500_000)
    for unit in ("us", "ns", "ms"):
        assert (
            array_to_days(np.array([when], f"M8[{unit}]"))[0]
            == to_days(when)
            == parse_days(str(when))
        )
    assert to_days(datetime.time(18)) == 0.75 and to_days(datetime.timedelta(hours=12)) == 0.5
    assert np.isnan(array_to_days(np.array(["NaT"], "M8[ns]")))[0]


def test_what_is_no_date_is_refused(tmp_path):
    rows = people()
    rows[7][2] = "2020-02-31"
    source = table(tmp_path / "a.csv", rows)
    with pytest.raises(InputError, match=r"line 8, column 'joined': '2020-02-31' is no date"):
        ingest(source, tmp_path / "s")
    with pytest.raises(InputError, match="no format of dates"):
        ingest(source, tmp_path / "s", date=["joined=%Q"])
    with pytest.raises(InputError, match="cannot be categorical and date at once"):
        ingest(source, tmp_path / "s", date=["joined"], categorical=["joined"])


def test_names_of_rows_can_be_hashed(tmp_path):
    rng = np.random.default_rng(0)
    rows = [[f" user-{k}é " if k % 5 else f"u{k}", rng.normal(), k % 2] for k in range(1500)]
    source = table(tmp_path / "a.csv", [["who", "x", "label"], *rows])
    with pytest.raises(
        InputError, match="'who' has more than 1000 kinds.*drop.*hashed=.COLUMN:BITS"
    ):
        ingest(source, tmp_path / "s")
    made = ingest(source, tmp_path / "s", hashed=["who:5"], scale="standard")
    X, _ = in_source_order(made.store)
    assert X.shape == (1500, 33)
    wanted = [hash_bucket(row[0].strip(), 5) for row in rows]
    np.testing.assert_array_equal(X[:, :32].argmax(axis=1), wanted)
    assert len(set(wanted)) == 32 and np.all(X[:, :32].sum(axis=1) == 1)
    model = bigscreen.LinearSVC().fit(made.store).model_
    model.save(tmp_path / "m")
    records = [{"who": row[0], "x": row[1]} for row in rows]
    like = ingest(source, tmp_path / "t", like=tmp_path / "m").store
    expected = model.scores(like)
    np.testing.assert_allclose(Model.load(tmp_path / "m").scores(records), expected, atol=1e-6)
    for wrong in ("who", "who:0", "who:40", ":3"):
        with pytest.raises(InputError, match="COLUMN:BITS"):
            ingest(source, tmp_path / "u", hashed=[wrong])


def test_an_export_says_that_it_cannot_hash(tmp_path):
    rows = [[f"u{k}", k % 7, k % 2] for k in range(100)]
    source = table(tmp_path / "a.csv", [["who", "x", "label"], *rows])
    store = ingest(source, tmp_path / "s", hashed=["who:3"]).store
    bigscreen.LinearSVC().fit(store).model_.save(tmp_path / "m")
    for kind in ("onnx", "sklearn"):
        args = ["export", str(tmp_path / "m"), str(tmp_path / "s"), str(tmp_path / "o"), "--to"]
        done = CliRunner().invoke(group, [*args, kind])
        assert done.exit_code == 2 and "hash" in done.output, done.output


@pytest.mark.parametrize("end", ["\r", "\r\n", "\n"])
def test_line_ends_of_every_kind(tmp_path, monkeypatch, end):
    take_small_steps(monkeypatch)
    plain = ingest(table(tmp_path / "a.csv", people()), tmp_path / "s").store
    other = ingest(table(tmp_path / "b.csv", people(), end), tmp_path / "t").store
    assert other.fingerprint == plain.fingerprint
    (tmp_path / "a.svm").write_bytes(end.join(["1 1:2", "0 2:3", ""]).encode())
    assert ingest(tmp_path / "a.svm", tmp_path / "u").store.n_rows == 2


def test_folders_and_patterns(tmp_path):
    folder = tmp_path / "parts"
    folder.mkdir()
    rows = people(90)
    for k in range(3):
        table(folder / f"part-{k}.csv", [rows[0], *rows[1 + 30 * k : 31 + 30 * k]])
    (folder / "_SUCCESS").write_text("")
    whole = ingest(table(tmp_path / "a.csv", rows), tmp_path / "s").store
    for k, source in enumerate([folder, str(folder / "part-*.csv"), str(tmp_path / "part*")]):
        made = ingest(source, tmp_path / f"{k}").store
        assert made.fingerprint == whole.fingerprint
    with pytest.raises(InputError, match="no file is called like"):
        ingest(str(folder / "*.tsv"), tmp_path / "x")
    with pytest.raises(InputError, match="dataset already"):
        ingest(tmp_path / "s", tmp_path / "x")
    with pytest.raises(InputError, match="holds the folder 0"):
        ingest(tmp_path, tmp_path / "x")


def test_a_label_of_hundreds_of_values_is_refused(tmp_path):
    rows = [["x", "price"], *([i % 7, 100 + i % 300] for i in range(3000))]
    source = table(tmp_path / "a.csv", rows)
    with pytest.raises(InputError, match="300 different values.*regression.*another column.*300"):
        ingest(source, tmp_path / "s")
    assert ingest(source, tmp_path / "s", regression=True).store.n_rows == 3000
    assert len(ingest(source, tmp_path / "t", max_kinds=300).store.labels) == 300
    assert len(ingest(source, tmp_path / "u", positive=100).store.labels) == 2
    words = [["x", "town"], *([i % 7, f"t{i % 300}"] for i in range(3000))]
    with pytest.raises(InputError, match="300 different values .'t0', .*: name another column"):
        ingest(table(tmp_path / "b.csv", words), tmp_path / "v")


def test_blanks_around_quoted_fields_mean_nothing(tmp_path):
    text = 'a,b,label\n" 1 "," u ", yes\n2,u,"yes "\n"3",v ,no\n'
    (tmp_path / "a.csv").write_bytes(b"\xef\xbb\xbf" + text.encode())
    store = ingest(tmp_path / "a.csv", tmp_path / "s").store
    assert store.labels == ["no", "yes"] and store.preparation.categories == {1: ["u", "v"]}
    assert store.preparation.names == ["a", "b"]
    assert in_source_order(store)[0][:, 0].tolist() == [1, 2, 3]


def test_numbers_with_marks_of_thousands_are_named(tmp_path):
    (tmp_path / "a.csv").write_text('a,label\n"1,200",0\n"12,345.5",1\n')
    with pytest.raises(InputError, match=r"line 2, column 'a': '1,200' has a comma"):
        ingest(tmp_path / "a.csv", tmp_path / "s")


def test_latin_1_texts(tmp_path):
    rows = [["town", "x", "label"], *([["Köln", "Malmö"][i % 2], i, i % 2] for i in range(20))]
    store = ingest(table(tmp_path / "a.csv", rows, encoding="latin-1"), tmp_path / "s").store
    assert store.preparation.categories == {0: ["Köln", "Malmö"]}
