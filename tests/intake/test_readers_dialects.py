"""How text is understood: numbers, quotes, delimiters, headers, categories, labels, indices."""

import csv
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reader_rows import read, written
from sklearn.datasets import dump_svmlight_file

from bigscreen.data.preparation import Preparation
from bigscreen.intake.readers.arff import ArffReader
from bigscreen.intake.readers.svmlight import SvmlightReader
from bigscreen.intake.readers.table import TableReader


@pytest.fixture
def write(tmp_path):
    return partial(written, tmp_path)


FLOATS = st.floats(allow_nan=False, allow_infinity=False, width=64)


@settings(max_examples=60, deadline=None)
@given(values=st.lists(FLOATS, min_size=1, max_size=40), style=st.sampled_from("rgefE+"))
def test_numbers_are_rounded_as_python_rounds_them(tmp_path_factory, values, style):
    write = {"r": repr, "+": lambda v: f"{v:+}"}.get(style, lambda v: format(v, f".17{style}"))
    path = tmp_path_factory.mktemp("numbers") / "a.svm"
    path.write_text("".join(f"1 1:{write(v)}\n" for v in values))
    X, _, _ = read(SvmlightReader(path))
    exact = np.array([float(write(v)) for v in values])
    np.testing.assert_array_equal(X.data, exact)


@pytest.mark.parametrize(
    "text", ["5", "-.5", "5.", "+1e3", "1E-3", "0." + "0" * 30 + "1", "1e-400"]
)
def test_number_spellings(write, text):
    X, _, _ = read(TableReader(write(f"1,{text},a\n2,7,b\n")))
    assert X[0, 1] == float(text)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.text(st.characters(codec="utf-8", exclude_characters="\r\0")), FLOATS),
        min_size=1,
    ),
    quoting=st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]),
    end=st.sampled_from(["\n", "\r\n"]),
)
def test_csv_quoting_round_trip(tmp_path_factory, rows, quoting, end):
    # White space around an unquoted field is no part of it; the prefix keeps it a text.
    texts = ["t" + text + "t" for text, _ in rows]
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, quoting=quoting, lineterminator=end)
        writer.writerow(["text", "number", "label"])
        writer.writerows([t, repr(v), t] for t, (_, v) in zip(texts, rows, strict=True))
    reader = TableReader(path, delimiter=",", header=True)
    X, y, _ = read(reader)
    assert [reader.categories[0][int(code)] for code in X[:, 0]] == texts == y
    np.testing.assert_array_equal(X[:, 1], np.array([v for _, v in rows]))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), base_=st.booleans(), piece=st.integers(30, 400))
def test_svmlight_round_trip(tmp_path_factory, seed, base_, piece):
    rng = np.random.default_rng(seed)
    dense = np.where(rng.random((7, 6)) < 0.4, rng.normal(size=(7, 6)), 0)
    dense[:, 0] = 1  # so that "auto" can see a base of 0
    y = rng.integers(-1, 3, 7)
    path = tmp_path_factory.mktemp("svm") / "a.svm"
    dump_svmlight_file(dense, y, str(path), zero_based=base_, comment="made: 1:1", query_id=y + 1)
    reader = SvmlightReader(path)
    X, labels, _ = read(reader, piece_bytes=piece)
    start = reader.index_base()
    assert start == (0 if base_ else 1) and reader.n_features == X.shape[1] - start
    np.testing.assert_allclose(X.toarray()[:, start:], dense[:, : reader.n_features], rtol=1e-14)
    assert labels == list(y)


def test_sparse_arff_values(write):
    head = "@relation r\n@attribute a real\n@attribute b {u,v}\n@attribute class {n,p}\n@data\n"
    path = write(head + "{0 2.5, 1 v}\n{ 2 p }\n{}\n", "a.arff")
    reader = ArffReader(path)
    X, y, places = read(reader)
    assert X.toarray().tolist() == [[2.5, 1], [0, 0], [0, 0]] and y == ["n", "p", "n"]
    assert reader.sparse and places[1] == f"{path}, line 7"
    other = ArffReader(path, like=Preparation(n_raw=2, categories={1: ["w", "u"]}))
    assert read(other)[0].toarray().tolist() == [[2.5, -1], [0, 1], [0, 1]]
    assert other.unseen == {1: 1}


DIALECTS = [
    ("a\tb c\ty\n1\tx y\t2\n", {}, ["a", "b c"], [[1, 0]], [2]),
    ("1;2;3\n4;5;6\n", {}, None, [[1, 2], [4, 5]], [3, 6]),
    ("  1  2\t3 \n4 5   6", {}, None, [[1, 2], [4, 5]], [3, 6]),
    ("1, 2, a b\r\n3, 4, c d\r\n", {}, None, [[1, 2], [3, 4]], ["a b", "c d"]),
    ("\ufeff# made by hand\n\n#y,a,b\n1,2,3\n", {}, ["a", "b"], [[2, 3]], [1]),
    ("y,w,a,id\n+1,.5,3,9\n", {"weight": "w", "drop": ["id"]}, ["a"], [[3]], [1]),
    ("7,8,9\n1,2,3\n", {"header": True, "label": "8"}, ["7", "9"], [[1, 3]], [2]),
    ("5,8,9\n", {"label": "-2"}, None, [[5, 9]], [8]),
    ("5,8\n", {"label": False}, None, [[5, 8]], []),
    ("5 'a' x\n6 b y\n", {"label": 0}, None, [[0, 0], [1, 1]], [5, 6]),
    ('"a b" 1 2\n"c d"\t3 4\n', {}, None, [[0, 1], [1, 3]], [2, 4]),
    ("10,1\n20,2\n", {"categorical": [0]}, None, [[0], [1]], [1, 2]),
]


@pytest.mark.parametrize(("text", "options", "names", "X", "y"), DIALECTS)
def test_dialects(write, text, options, names, X, y):
    reader = TableReader(write(text), **options)
    found, labels, _ = read(reader)
    assert (reader.names, found.tolist(), labels) == (names, X, y)


@pytest.mark.slow
def test_wide_rows(write):
    rows = np.arange(120_000.0).reshape(2, -1)
    text = "".join(",".join(f"{v:.1f}" for v in row) + "\n" for row in rows)
    X, y, _ = read(TableReader(write(text)))
    np.testing.assert_array_equal(np.column_stack([X, y]), rows)


def test_given_categories_count_the_unseen(write):
    path = write("b,1,0\nc,2,0\na,3,1\nc,4,1\n")
    reader = TableReader(path, like=Preparation(n_raw=2, categories={0: ["a", "b"]}))
    assert read(reader, piece_bytes=16)[0][:, 0].tolist() == [1, -1, 0, -1]
    assert reader.unseen == {0: 2} and reader.categories == {0: ["a", "b"]}
    assert read(reader, 2, 16)[0][:, 0].tolist() == [0, -1] and reader.unseen == {0: 2}


def test_many_categories_keep_their_codes(write):
    names = [f"name{i}" for i in range(3000)]
    reader = TableReader(write("".join(f"{name},{i},1\n" for i, name in enumerate(names * 2))))
    X, _, _ = read(reader)
    assert reader.categories[0] == names
    np.testing.assert_array_equal(X[:, 0], np.tile(np.arange(3000), 2))


def test_labels_are_numbers_where_they_read_as_numbers(write):
    _, y, _ = read(SvmlightReader(write(b"+1 1:2\n1.0 1:3\n\xe9t\xe9 1:4\n1e0\nx1\n")))
    assert y == [1.0, 1.0, "été", 1.0, "x1"]


def test_index_base(write):
    path = write("1 0:5 3:1\n0 1:1\n")
    for zero_based, start, width in [("auto", 0, 4), (True, 0, 4)]:
        reader = SvmlightReader(path, zero_based=zero_based)
        assert read(reader)[0].indices.tolist() == [0, 3, 1] and reader.index_base() == start
        assert reader.n_features == width
    reader = SvmlightReader(write("1 1:5 2147483647:1\n2\n"))
    assert read(reader)[0].shape == (2, 2**31) and reader.n_features == 2**31 - 1
    reader = SvmlightReader(write("1\n-1\n"))
    assert read(reader)[0].shape == (2, 0) and reader.n_features == 0
