"""Numbers with decimal commas and marks of thousands, in text tables."""

import numpy as np
import pyarrow
import pytest
from click.testing import CliRunner
from hypothesis import example, given, settings
from hypothesis import strategies as st
from ingest_cases import in_source_order, take_small_steps

from bigscreen import SVC, Dataset
from bigscreen.cli.commands import group
from bigscreen.data.texts import normalise_number
from bigscreen.errors import InputError
from bigscreen.intake.ingest import ingest
from bigscreen.intake.readers.decimals import check_points, normalise_numbers

GROUPERS = [" ", "'", "\u2019", "\u00a0", "\u2009", "\u202f"]
WAYS = {",": [".", *GROUPERS], ".": [",", *GROUPERS]}


def written(value, decimal, group, digits=2):
    """A number with marks of thousands."""
    text = f"{value:,.{digits}f}"
    return text.replace(",", "#").replace(".", decimal).replace("#", group)


@pytest.mark.slow
@pytest.mark.parametrize("decimal", [",", "."])
@pytest.mark.parametrize("way", range(7))
def test_numbers_are_those_that_are_meant(tmp_path, monkeypatch, decimal, way):
    take_small_steps(monkeypatch)
    rng = np.random.default_rng(0)
    X = np.round(rng.normal(size=(1200, 2)) * [10, 1e6], 2)
    y = np.round(rng.normal(size=1200) * 5000, 2)
    group = WAYS[decimal][way]
    rows = [
        [written(v, decimal, group) for v in (*row, own)] for row, own in zip(X, y, strict=True)
    ]
    rows = [[*row[:2], f"t{i % 3}", "2020-01-02", row[2]] for i, row in enumerate(rows)]
    lines = [";".join(f'"{cell}"' if i % 2 else cell for cell in row) for i, row in enumerate(rows)]
    source = tmp_path / "a.csv"
    source.write_bytes(b"\xef\xbb\xbf" + "\n".join(["a;b;town;day;price", *lines]).encode())
    made = ingest(source, tmp_path / "s", decimal=decimal, regression=True, label="price").store
    assert list(made.preparation.categories) == [2] and made.preparation.dates == {3: ""}
    order = np.argsort(made.row_ids(0, made.n_rows))
    np.testing.assert_allclose(made.X(0, 1200)[order][:, :2], X, rtol=1e-6)
    np.testing.assert_array_equal(made.y(0, 1200)[order], y)
    like = ingest(source, tmp_path / "t", like=made, decimal=decimal, label="price").store
    np.testing.assert_array_equal(like.X(0, 1200), made.X(0, 1200))


def test_a_model_reads_numbers_as_its_source_had_them(tmp_path):
    """A file, a store like it and records mean the same numbers without `decimal` said again."""
    lines = [
        f"{written(1000.0 * k, ',', '.', 0)};{k},5;{'hi' if k > 5 else 'lo'}" for k in range(12)
    ]
    (tmp_path / "a.csv").write_text("\n".join(["a;b;label", *lines]) + "\n")
    made = ingest(tmp_path / "a.csv", tmp_path / "s", decimal=",", shuffle=False).store
    again = ingest(tmp_path / "a.csv", tmp_path / "t", like=made, shuffle=False).store
    np.testing.assert_array_equal(again.X(0, 12), made.X(0, 12))
    assert again.preparation == made.preparation == Dataset.open(tmp_path / "s").preparation
    model = SVC(gamma=1e-7).fit(made).model_
    records = [dict(zip("ab", line.split(";"), strict=False)) for line in lines]
    np.testing.assert_array_equal(model.scores(records), model.scores(made))
    with pytest.raises(InputError, match=r"row 0, column 'b': '2\.5' is no number"):
        model.predict([{"a": "1.000", "b": "2.5"}])
    model.save(tmp_path / "m.bsm")
    args = ["predict", str(tmp_path / "m.bsm"), str(tmp_path / "a.csv"), "-"]
    said = CliRunner().invoke(group, args).stdout.splitlines()
    assert [line.split(",")[1] for line in said[1:]] == [line.split(";")[2] for line in lines]


def test_what_is_no_such_number_is_said(tmp_path):
    def of(*rows):
        (tmp_path / "a.csv").write_text("\n".join(["a;b;label", *rows]) + "\n")
        return tmp_path / "a.csv"

    with pytest.raises(InputError, match=r"line 2, column 'a'.*'1,5' has a comma.*decimal=','"):
        ingest(of("1,5;2;0", "2,5;3;1"), tmp_path / "s")
    with pytest.raises(
        InputError, match=r"line 3, column 'b'.*'3.5' has a point where no thousands"
    ):
        ingest(of("1,5;2;0", "2,5;3.5;1"), tmp_path / "s", decimal=",")
    with pytest.raises(InputError, match="'1,2,3' stands among numbers"):
        ingest(of("1,2,3;2;0", "2,5;3,5;1"), tmp_path / "s", decimal=",")
    with pytest.raises(InputError, match="'31.12.2020' looks like a date"):
        ingest(of("31.12.2020;2;0", "30.12.2020;3,5;1"), tmp_path / "s", decimal=",")
    with pytest.raises(InputError, match="no decimal mark"):
        ingest(of("1,5;2;0", "2,5;3;1"), tmp_path / "s", decimal=";")
    with pytest.raises(InputError, match="cannot be read with the option decimal"):
        ingest((np.ones((4, 2)), [0, 1, 0, 1]), tmp_path / "s", decimal=",")
    dates = {"date": ["a=%d.%m.%Y"], "decimal": ","}
    store = ingest(of("31.12.2020;2,5;0", "30.12.2020;3,5;1"), tmp_path / "d", **dates).store
    np.testing.assert_allclose(in_source_order(store)[0], [[18627, 2.5], [18626, 3.5]])
    args = ["ingest", str(of("1.234,5;2;0", "2,5;3;1")), str(tmp_path / "c"), "--decimal", ","]
    assert CliRunner().invoke(group, args).exit_code == 0


@settings(max_examples=300, deadline=None)
@given(
    st.text("0123456789.,' +-eE\u2019\u00a0\u2009\u202f\u2014", max_size=12).map(str.strip),
    st.sampled_from(",."),
)
@example("1\u202f234\u00a0567,8", ",")
@example("1.234.567,8", ",")
@example("12.34", ",")
@example("-1,5E+03", ",")
@example(",", ",")
def test_an_array_is_written_as_its_texts_are(text, decimal):
    texts = pyarrow.array([text])
    assert normalise_numbers(texts, decimal).to_pylist() == [normalise_number(text, decimal)]
    if decimal == "," and normalise_number(text, decimal) == text and "." in text:
        try:
            float(text)
        except ValueError:
            return
        with pytest.raises(InputError, match="has a point"):
            check_points(texts, decimal, lambda row: "here")


def test_thousands_in_latin_1(tmp_path):
    lines = ["a;price", "1\xa0234,5;2\xa0000", "2,5;1\xa0000\xa0000"]
    (tmp_path / "a.csv").write_bytes("\n".join(lines).encode("latin-1"))
    made = ingest(tmp_path / "a.csv", tmp_path / "s", decimal=",", regression=True).store
    order = np.argsort(made.row_ids(0, 2))
    assert made.X(0, 2)[order, 0].tolist() == [1234.5, 2.5]
    assert made.y(0, 2)[order].tolist() == [2000, 1_000_000]


AMOUNTS = {
    "1\u00a0234": "has marks of thousands",
    "1\u202f234,5": "has a comma",
    "1\u2019234.5": "has marks of thousands",
    "-12 345": "has marks of thousands",
    "1,234": "has a comma",
    "5 %": "is a number with a unit",
    "5%": "is a number with a unit",
    "1,5\u202f%": "is a number with a unit",
    "10 EUR": "is a number with a unit",
    "EUR 10": "is a number with a unit",
    "$1,200": "is a number with a unit",
    "10\u20ac": "is a number with a unit",
    "3 kg": "is a number with a unit",
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["csv", "among numbers", "frame", "parquet"])
@pytest.mark.parametrize("text", AMOUNTS)
def test_amounts_are_no_kinds(tmp_path, kind, text):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [text, text, "" if kind == "csv" else text], "label": [0, 1, 0]})
    source, how = frame, {}
    if kind == "parquet":
        source = tmp_path / "a.parquet"
        frame.to_parquet(source)
    elif kind != "frame":
        source, how = tmp_path / "a.csv", {"delimiter": ";"}
        first = "a;label\n7;0\n" if kind == "among numbers" else "a;label\n"
        source.write_text(first + frame.to_csv(sep=";", index=False, header=False))
    with pytest.raises(InputError, match=AMOUNTS[text]) as found:
        ingest(source, tmp_path / "s", drop_missing=True, **how)
    assert "`categorical`" in str(found.value) and "'a'" in str(found.value)
    if "unit" not in AMOUNTS[text]:
        assert ("`decimal=','`" in str(found.value)) == (source is not frame and kind != "parquet")
    made = ingest(source, tmp_path / "s", categorical=["a"], drop_missing=True, **how)
    assert text in made.store.preparation.categories[0]


@pytest.mark.parametrize("texts", [["4wd", "2wd"], ["10 Mar", "3 Apr"], ["1 Oak St", "2 Elm St"]])
def test_texts_with_numbers_are_kinds(tmp_path, texts):
    (tmp_path / "a.csv").write_text(
        "a,label\n" + "".join(f"{t},{i}\n" for i, t in enumerate(texts))
    )
    assert ingest(tmp_path / "a.csv", tmp_path / "s").store.preparation.categories == {
        0: sorted(texts)
    }
