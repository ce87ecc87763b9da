"""Bad text input: each mistake ends in one sentence that names the file and the line."""

import os
from functools import partial

import pytest
from reader_rows import read, written

from bigscreen.data.preparation import Preparation
from bigscreen.errors import InputError
from bigscreen.intake.ingest import ingest
from bigscreen.intake.readers.arff import ArffReader
from bigscreen.intake.readers.svmlight import SvmlightReader
from bigscreen.intake.readers.table import TableReader

ARFF = "@relation r\n@attribute a real\n@attribute b {u,v}\n@attribute class {n,p}\n@data\n"
ROWS = "".join(f"{i},{i % 5}.5,{i % 2}\n" for i in range(120_000))
"""More than the first MiB, by which the types of columns are judged."""

SVMLIGHT = [
    ("1 1:2\n1 3:1 2:1\n", "data, line 2: index 2 follows index 3; .* must ascend"),
    ("1 1:2 1:3\n", "line 1: index 1 follows index 1"),
    ("1 -1:2\n", "line 1: index -1 is outside"),
    ("1 2147483648:2\n", "line 1: index 2147483648 is outside"),
    ("1 99999999999999999999:2\n", "line 1: '99999999999999999999:2' is not index:value"),
    ("\n# no\n1 1:abc\n", "line 3, index 1: 'abc' is not a number"),
    ("1 1:1.2.3\n", "line 1, index 1: '1.2.3' is not a number"),
    ("1 1:1_000\n", "line 1, index 1: '1_000' is not a number"),
    ("1 1:\n", "line 1, index 1: the value is missing"),
    ("1 1: 2\n", "line 1, index 1: the value is missing"),
    ("1 1:2\n1 1:nan\n", "line 2, index 1: 'nan' is not a finite number"),
    ("1 1:-inf\n", "line 1, index 1: '-inf' is not a finite number"),
    ("1 one:1\n", "line 1: 'one:1' is not index:value"),
    ("1 2\n", "line 1: '2' is not index:value"),
    ("1,2 1:1\n", "line 1: '1,2' is several labels"),
    ("1 1:1\n 1:1 2:1\n", "line 2: the line begins with '1:1', not with a label"),
    ("# nothing\n# here\n", "data holds no row"),
    (" \n\n", "data is empty"),
    ("", "data is empty"),
    (b"\xff\xfe1\x00 \x00", "data is UTF-16 text"),
]


@pytest.fixture
def write(tmp_path):
    return partial(written, tmp_path)


@pytest.mark.parametrize(("text", "message"), SVMLIGHT)
def test_svmlight(write, text, message):
    with pytest.raises(InputError, match=message):
        read(SvmlightReader(write(text)))


def test_index_0_in_a_1_based_file(write):
    path = write("1 1:1\n1 0:1\n")
    with pytest.raises(InputError, match="line 2: index 0 in a 1-based file"):
        read(SvmlightReader(path, zero_based=False))


TABLE = [
    ("1,2,3\n4,5\n", {}, "data, line 2: 2 fields where 3 are expected"),
    ("1,2,3\n4,5,6\n7,8,9,\n", {}, "line 3: 4 fields where 3 are expected"),
    ("a,b,y\n1,,2\n", {}, r"line 2, column 'b': the value is missing"),
    ("1,?,2\n3,4,5\n", {}, "line 1, column 1 .from 0.: the value is missing"),
    ("u,1,2\nNA,4,5\n", {}, "line 2, column 0 .from 0.: the value is missing"),
    ("1,nan,2\n3,4,5\n", {}, "line 1, column 1 .from 0.: the value is missing"),
    ("1,2,0\n2,x,1\n3,4,1\n", {}, "line 2, column 1 .from 0.: 'x' stands among numbers"),
    ("1;2,5;0\n3;4,5;1\n", {"delimiter": ";"}, "line 1, column 1 .from 0.: '2,5' has a comma"),
    ("1;2,5;0\n3;4,5;1\n", {}, "its delimiter may be comma or semicolon; say which"),
    ("a,b,a\n1,2,3\n", {}, "two columns are named 'a'"),
    ("a,b\n1,2,3\n4,5,6\n", {"header": True}, "header has 2 names and the rows have 3 fields"),
    ("x,1,2\n3,4,5\n6,7,8\n", {}, "whether its first row is a header cannot be told"),
    ("size,kind\nbig,u\nsmall,v\n", {}, "header cannot be told .all columns hold text"),
    ("a,b,y\n", {}, "data has no row after its header"),
    ("# only\n# this\n", {}, "data has no row among its first lines"),
    ("1,2\n3,4\n", {"label": "class"}, "has no column 'class': it has no header"),
    ("a,b\n3,4\n", {"label": "class"}, "has no column 'class': its columns are a, b"),
    ("1,2\n3,4\n", {"label": 2}, "has no column 2: its columns are 0 to 1"),
    ("1,2\n3,4\n", {"drop": [0]}, "none is left as a feature"),
    ("1,2,3\n3,4,5\n", {"weight": 2}, "cannot be the weight or a feature"),
    ("1\n2\n", {}, "none is left as a feature; check the delimiter"),
    ("1,2,3\n3,-4,5\n", {"weight": 1}, "line 2, column 1 .from 0.: the weight is negative"),
    ('1,"a b"c,3\n', {}, "line 1, column 1 .from 0.: text follows a closing quote"),
    ('1,2,3\n1,"2,3\n4,5,6\n', {}, "line 2: a quoted field is opened and never closed"),
    ("1,2\n", {"delimiter": "ab"}, "'ab' is no delimiter"),
    (ROWS + "1,oops,1\n", {}, "line 120001, column 1 .from 0.: 'oops' is not a number"),
    (ROWS + "1,2\n", {}, "line 120001: 2 fields where 3 are expected"),
    (
        "1,u,0\n2,v,1\n",
        {"like": Preparation(n_raw=2)},
        "line 1, column 1 .from 0.: 'u' is not a number",
    ),
]


@pytest.mark.parametrize(("text", "options", "message"), TABLE)
def test_table(write, text, options, message):
    with pytest.raises(InputError, match=message):
        read(TableReader(write(text), **options), piece_bytes=1 << 16)


BAD_ARFF = [
    (ARFF + "1,u,n\n?,v,p\n", {}, r"a.arff, line 7, column 'a': the value is missing"),
    (ARFF + "1,w,n\n", {}, "line 6, column 'b': 'w' is not one of the column's declared"),
    (ARFF + "1,u\n", {}, "line 6: 2 fields where 3 are expected"),
    (ARFF + "{0 1, 1 w}\n", {}, "line 6: 'w' is not one of the column's declared categories"),
    (ARFF + "{0 x}\n", {}, r"line 6, attribute 0 \('a'\): 'x' is not a number"),
    (ARFF + "{0 1, 3 1}\n", {}, "line 6: '3 1' is not an attribute's number"),
    (ARFF + "{1 u, 0 1}\n", {}, "line 6: '0 1' is not an attribute's number, ascending"),
    (ARFF + "{0 1}\n1,u,n\n", {}, "line 7: a row without braces"),
    (ARFF + "{0 -1}\n", {"weight": "a"}, "line 6: the weight is negative"),
    (ARFF, {}, "has no row after @data"),
    (ARFF.replace("@data", ""), {}, "has no @data line"),
    (ARFF.replace(" b ", " a ") + "1,u,n\n", {}, "line 3: a second attribute is named 'a'"),
    (ARFF.replace("real", "string") + "x,u,n\n", {}, "'a' is neither numeric nor nominal but 'str"),
    (ARFF.replace("v}", "u}") + "1,u,n\n", {}, "line 3: a category is declared twice"),
    (ARFF.replace("v}", "v") + "1,u,n\n", {}, "line 3: the categories do not end with a brace"),
    ("a,b\n1,2\n", {}, "line 1: 'a,b' does not belong in an ARFF header"),
]


@pytest.mark.parametrize(("text", "options", "message"), BAD_ARFF)
def test_arff(write, text, options, message):
    with pytest.raises(InputError, match=message):
        read(ArffReader(write(text, "a.arff"), **options))


@pytest.mark.parametrize("make", [SvmlightReader, TableReader, ArffReader])
def test_no_file(tmp_path, make):
    with pytest.raises(InputError, match="gone does not exist"):
        make(tmp_path / "gone")
    with pytest.raises(InputError, match="is a folder, not a data file"):
        make(tmp_path)


@pytest.mark.parametrize("make", [SvmlightReader, TableReader, ArffReader])
def test_an_endless_line_does_not_fill_the_memory(write, make):
    path = write("1 1:1 ")
    os.truncate(path, 300 << 20)  # a line of zeros, which take no room on the disk
    with pytest.raises(InputError, match="data, line 1: the line or an unclosed quoted field"):
        read(make(path))


@pytest.mark.slow
def test_too_many_different_texts(write):
    path = write("".join(f"id{i},{i},1\n" for i in range(100_002)))
    with pytest.raises(
        InputError, match="line 1, column 0 .from 0.: there are more than 100000 different"
    ):
        read(TableReader(path))
    with pytest.raises(InputError, match="more than 65536 different labels; say which"):
        ingest(path, path.with_name("s"), label=0, header=False)
