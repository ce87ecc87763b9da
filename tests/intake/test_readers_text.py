"""Text readers: every row of the real files, whatever the pieces, the skipping, the packing."""

import bz2
import csv
import gzip
import io
import lzma
import random
import re
import tracemalloc
import zlib
from collections import Counter
from functools import partial

import numpy as np
import pyarrow
import pytest
from places import DATA
from reader_rows import read, written
from sklearn.datasets import load_svmlight_file

from bigscreen.errors import InputError
from bigscreen.intake.readers.arff import ArffReader
from bigscreen.intake.readers.svmlight import SvmlightReader
from bigscreen.intake.readers.table import TableReader

real = pytest.mark.skipif(
    not DATA.is_dir(), reason=f"no real data in {DATA}; name their folder in BIGSCREEN_DATA"
)
OPENERS = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}


@pytest.fixture
def write(tmp_path):
    return partial(written, tmp_path)


SVMLIGHT = [
    ("a9a/a9a.xz", 32561, 123, 7841),
    ("a9a/a9a.t.xz", 16281, 122, None),
    ("ijcnn1/ijcnn1.trn.bz2", 49990, 22, 4853),
    ("ijcnn1/ijcnn1.tst.bz2", 91701, 22, None),
    ("rcv1/rcv1_small.svm.xz", 1000, 47117, None),
    ("rcv1/rcv1_small_test.svm.xz", 500, None, None),
    ("small/heart_scale", 270, 13, 120),
]


@pytest.mark.slow
@real
@pytest.mark.parametrize(("name", "rows", "width", "positive"), SVMLIGHT)
def test_svmlight_files_agree_with_sklearn(name, rows, width, positive):
    path = DATA / name
    reader = SvmlightReader(path)
    X, y, _ = read(reader)
    assert X.shape[0] == rows and reader.index_base() == 1
    if width is not None:
        assert reader.n_features == width
    if positive is not None:
        assert sum(label == 1.0 for label in y) == positive
    text = OPENERS.get(path.suffix, open)(path, "rb").read()
    theirs, labels = load_svmlight_file(
        io.BytesIO(text), zero_based=False, n_features=reader.n_features, dtype=np.float32
    )
    np.testing.assert_array_equal(X.indptr, theirs.indptr)
    np.testing.assert_array_equal(X.indices - 1, theirs.indices)
    np.testing.assert_array_equal(X.data.astype(np.float32), theirs.data)
    np.testing.assert_array_equal(y, labels)


@pytest.mark.slow
@real
@pytest.mark.parametrize(("name", "rows", "width", "classes"), [
    ("news20/news20.bz2", 15935, 62061, 20),
    ("sector/sector.scale.bz2", 6412, 55197, 105),
    ("sector/sector.t.scale.bz2", 3207, 55197, 105),
])  # fmt: skip
def test_svmlight_multiclass_files(name, rows, width, classes):
    reader = SvmlightReader(DATA / name)
    X, y, places = read(reader)
    assert (X.shape[0], reader.n_features, len(set(y))) == (rows, width, classes)
    assert places[-1].endswith(f"line {rows}")
    assert reader.progress() == ((DATA / name).stat().st_size,) * 2


TABLES = [
    ("covtype/covtype.20k.data.xz", {}, 20000, 54, {2.0: 6022, 6.0: 2160, 7.0: 2160}),
    ("winequality/winequality-red.csv", {}, 1599, 11, {}),
    ("winequality/winequality-white.csv", {"label": "quality"}, 4898, 11, {7.0: 880}),
    ("magic/magic04.data.xz", {}, 19020, 10, {"g": 12332, "h": 6688}),
    ("susy/SUSY_1K.csv", {"label": 0}, 1000, 18, {1.0: 447}),
    ("small/ionosphere.data", {}, 351, 34, {"g": 225}),
    ("small/wdbc.data", {"label": 1, "drop": [0]}, 569, 30, {"M": 212}),
    ("houses/cal.housing.arff.xz", {}, 20640, 8, {}),
    ("computer/cpu.small.arff.xz", {}, 8192, 12, {}),
    ("small/sonar.arff", {}, 208, 60, {"Mine": 111}),
    ("small/diabetes.arff", {}, 768, 8, {"tested_positive": 268}),
    ("small/credit.g.arff", {}, 1000, 20, {"bad": 300}),
]


@real
@pytest.mark.parametrize(("name", "options", "rows", "width", "counts"), TABLES)
def test_real_tables(name, options, rows, width, counts):
    kind = ArffReader if ".arff" in name else TableReader
    reader = kind(DATA / name, **options)
    X, y, _ = read(reader)
    assert X.shape == (rows, width) == (rows, reader.n_features)
    found = Counter(y)
    assert {label: found[label] for label in counts} == counts
    if "winequality" in name:
        assert reader.names[0] == "fixed acidity" and len(reader.names) == 11
        expected = np.loadtxt(DATA / name, skiprows=1)
        np.testing.assert_array_equal(np.column_stack([X, y]), expected)
    if "credit" in name:
        assert reader.categories[0] == ["<0", "0<=X<200", ">=200", "no checking"]
        assert X[:, 0].max() == 3


@real
def test_kddcup():
    reader = TableReader(DATA / "kddcup99/kddcup.data_10_percent.gz")
    rows = normal = 0
    tcp = []
    for block in reader.blocks():
        rows += len(block.X)
        normal += int(np.count_nonzero(block.y == "normal."))
        tcp.append(block.X[:, 1] == reader.categories[1].index("tcp"))
    assert (rows, reader.n_features, normal) == (494021, 41, 97278)
    assert {j: len(names) for j, names in reader.categories.items()} == {1: 3, 2: 66, 3: 11}
    assert np.concatenate(tcp).sum() == 190065


MANY = {
    "svm": (SvmlightReader, "# top\n\n" + "".join(
        f"{'abc'[i % 3]} {i % 7 + 1}:{i}.5 9:1 # {i}\n" + "\n" * (i % 2) for i in range(200)
    )),
    "csv": (TableReader, "x,kind,label\n" + "".join(
        f'{i}.25,"k""{i % 9},{"" if i % 4 else chr(10)}",{i % 2}\n' + "\n" * (i % 2)
        for i in range(200)
    )),
    "arff": (ArffReader, "@relation r\n@attribute a real\n@ATTRIBUTE 'b c' {u,'v w',\"x'y\"}\n"
        "@attribute class {n,p}\n@data\n" + "".join(
        f"{i}, {('u', chr(39) + 'v w' + chr(39), chr(39) + 'x' + chr(92) + chr(39) + 'y' + chr(39))[i % 3]},{'np'[i % 2]}\n%\n"  # noqa: E501
        for i in range(200)
    )),
    "sparse.arff": (ArffReader, "@relation r\n@attribute a real\n@attribute b {u,v}\n"
        "@attribute class {n,p}\n@data\n" + "".join(
        f"{{{f'0 {i}.5, ' if i % 3 else ''}1 {'uv'[i % 2]}{', 2 p' if i % 5 else ''}}}\n"
        for i in range(200)
    )),
}  # fmt: skip


@pytest.mark.parametrize("kind", MANY)
def test_rows_do_not_depend_on_pieces_or_skipping(write, kind):
    make, text = MANY[kind]
    path = write(text, "data." + kind)
    whole = make(path)
    X, y, places = read(whole)
    dense = X.toarray() if whole.sparse else X
    assert len(dense) == 200 and len(set(y)) == (3 if kind == "svm" else 2)
    if not kind.startswith("svm"):
        assert [len(names) for names in whole.categories.values()] == [
            {"csv": 9, "arff": 3, "sparse.arff": 2}[kind]
        ]
    for piece, skip in [(37, 0), (64, 1), (300, 77), (1000, 199), (1 << 20, 120)]:
        reader = make(path)
        assert reader.progress() == (0, path.stat().st_size)
        X, later, at = read(reader, skip, piece)
        np.testing.assert_array_equal(X.toarray() if reader.sparse else X, dense[skip:])
        assert (later, at) == (y[skip:], places[skip:])
        assert reader.categories == whole.categories
    assert list(make(path).blocks(200)) == []


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", ["csv", "arff"])
def test_a_head_longer_than_a_piece(write, kind, packed):
    """The first rows, from which types are detected, are in the second piece of 8 MiB."""
    head, reader = {
        "csv": ('x,text,label\n1.5,"one\n' + "z" * (9 << 20) + '",0\n', TableReader),
        "arff": (
            "@relation r\n@attribute x real\n" + ("%" * 99 + "\n") * 100_000
            + "@attribute text {u,v}\n@attribute class {0,1}\n@data\n1.5,u,0\n",
            ArffReader,
        ),
    }[kind]  # fmt: skip
    text = (head + "2.5,v,1\n").encode()
    found = reader(write(gzip.compress(text, 1) if packed else text, f"a.{kind}"))
    X, y, places = read(found)
    assert X.tolist() == [[1.5, 0], [2.5, 1]] and [float(label) for label in y] == [0, 1]
    line = text.count(b"\n")
    assert places[1].endswith(f"line {line}") and list(found.categories) == [1]


@pytest.mark.parametrize("packed", [False, True])
def test_blank_lines_longer_than_a_piece(write, packed):
    text = b"\n" * (9 << 20) + b"1 1:2.5\n"
    X, y, places = read(SvmlightReader(write(gzip.compress(text, 1) if packed else text)))
    assert X.toarray().tolist() == [[0, 2.5]] and y == [1]
    assert places[0].endswith(f"line {(9 << 20) + 1}")


def test_zstandard_and_gzip_of_several_members(write):
    text = "".join(f"1 1:{i} 2:{i * i}\n" for i in range(5000)).encode()
    parts = [gzip.compress(text[at : at + 9000]) for at in range(0, len(text), 9000)]
    whole = read(SvmlightReader(write(text, "plain")))[0]
    for packed in (pyarrow.compress(text, "zstd", asbytes=True), b"".join(parts)):
        found = read(SvmlightReader(write(packed, "packed")))[0]
        np.testing.assert_array_equal(found.toarray(), whole.toarray())


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz"])
def test_compressed_whole_cut_and_damaged(write, suffix):
    text = "".join(f"1 1:{i} 2:{i * i}\n" for i in range(5000)).encode()
    packed = {".gz": gzip, ".bz2": bz2, ".xz": lzma}[suffix].compress(text)
    assert read(SvmlightReader(write(packed, "named-otherwise")))[0].shape == (5000, 3)
    with pytest.raises(InputError, match="cut ends too early after byte"):
        read(SvmlightReader(write(packed[: len(packed) // 2], "cut")))
    middle = len(packed) // 2
    broken = packed[:middle] + bytes(b ^ 255 for b in packed[middle : middle + 8])
    with pytest.raises(InputError, match="broken is damaged after byte|line \\d+"):
        read(SvmlightReader(write(broken + packed[middle + 8 :], "broken")))


@pytest.mark.parametrize("how", ["ends too early", "is damaged"])
def test_a_damaged_gzip_file_names_the_place(write, how):
    text = "".join(f"1 1:{i} 2:{i * i}\n" for i in range(50_000)).encode()
    packed = gzip.compress(text)
    cut = packed[: len(packed) // 2]
    whole = len(zlib.decompressobj(31).decompress(cut))
    total = len(cut)
    if how == "is damaged":
        cut, total = cut + bytes(b ^ 255 for b in packed[len(cut) :]), len(packed)
    with pytest.raises(InputError, match=how) as found:
        read(SvmlightReader(write(cut, "a.gz")))
    said = [int(n.replace(",", "")) for n in re.findall(r"([\d,]+) of", str(found.value))]
    assert said[0] == pytest.approx(whole, abs=200_000)
    assert len(packed) // 2 - 20_000 <= said[1] <= len(packed)
    assert f"of the file's {total:,}: fetch the file again" in str(found.value)


def test_memory_is_bounded_by_the_piece(write):
    path = write("".join(f"{i},{i}.5,{i % 3}\n" for i in range(120_000)))
    read_all = TableReader(path)
    assert sum(len(block.X) for block in read_all.blocks()) == 120_000  # compiles, untraced
    reader = TableReader(path)
    reader.piece_bytes = 1 << 16
    tracemalloc.start()
    try:
        rows = sum(len(block.X) for block in reader.blocks())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert rows == 120_000 and peak < 1 << 20 < path.stat().st_size


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_a_table_of_nothing_but_numbers(write, ending):
    """It takes a shorter way, to the same numbers as fields that are quoted between blank lines."""
    rng = np.random.default_rng(0)
    table = rng.normal(size=(400, 4)) * 10.0 ** rng.integers(-9, 9, (400, 4))
    lines = [f"{a:.17g},{b:+.3e},x,{c:.0f}.,{int(d > 0)}" for a, b, c, d in table]
    odd = ['"' + line.replace(",", '",', 1) + ending * (at % 3) for at, line in enumerate(lines)]
    odd = [
        one if at % 7 == 0 else line for at, (one, line) in enumerate(zip(odd, lines, strict=True))
    ]
    plain, mixed = write(ending.join(lines), "a.csv"), write(ending.join(odd), "b.csv")
    for piece in (40, 1 << 23):
        for drop in ((2,), (0, 2)):
            rows = [
                read(TableReader(path, header=False, drop=drop), piece_bytes=piece)
                for path in (plain, mixed)
            ]
            for ours, theirs in zip(*(found[:2] for found in rows), strict=True):
                np.testing.assert_array_equal(ours, theirs)
    lines[50] = lines[50].replace(",x,", ",,x,")
    with pytest.raises(InputError, match=r"a.csv, line 51: 6 fields where 5"):
        read(TableReader(write(ending.join(lines), "a.csv"), header=False, drop=[2]))


@pytest.mark.parametrize("seed", range(8))
def test_quotes_blanks_and_lines_are_those_of_python(write, seed):
    """Fields in quotes after blanks, inch marks, blank lines, records that cross pieces."""
    chance = random.Random(seed)
    words = [
        "ab",
        '5"',
        '"q ""q"" q"',
        '"one\ntwo"',
        '"\n\nz"',
        ' "a,b"',
        '"c,\n7,8"',
        ' "d\n" ',
        "é",
    ]
    lines = ["x,text,y"]
    for row in range(60):
        lines += [f"{row}.5,{chance.choice(words)},{row % 2}"] + [""] * (chance.random() < 0.2)
    end = chance.choice(["\n", "\r\n"])
    text = end.join(lines) + end
    reader = csv.reader(io.StringIO(text, newline=""), skipinitialspace=True)
    expected, starts, at = [], [], 0
    for fields in reader:
        if fields:
            expected.append([field.strip() for field in fields])
            starts.append(at + 1)
        at = reader.line_num
    path = write(text.encode("latin-1" if seed % 2 else "utf-8"), "a.csv")
    for piece in (30, 200, 1 << 20):
        found = TableReader(path, delimiter=",", header=True, categorical=["text"])
        X, y, places = read(found, piece_bytes=piece)
        texts = [found.categories[1][int(code)].replace("\r\n", "\n") for code in X[:, 1]]
        assert texts == [row[1].replace("\r\n", "\n") for row in expected[1:]]
        assert X[:, 0].tolist() == [float(row[0]) for row in expected[1:]]
        assert y == [float(row[2]) for row in expected[1:]]
        assert places == [f"{path}, line {line}" for line in starts[1:]]
