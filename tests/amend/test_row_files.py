"""Files that name rows: what is wrong in them is one sentence, and none is read without end."""

import os
from pathlib import Path

import numpy as np
import pytest

from bigscreen.amend.edits import read_labels, read_rows, read_weights
from bigscreen.errors import InputError

BAD = {
    "a superscript": ("1\n²\n", "'²' is no row number"),
    "digits of another script": ("1\n٣\n", "is no row number"),
    "5,000 digits": ("1" * 5000, r"'1{57}\.\.\.' is no row number"),
    "beyond int64": (f"{2**63}\n", "is no row number"),
    "a fraction": ("1\n1.5\n", "'1.5' is no row number"),
    "a long field": ('1\n"' + "x" * 200_000, "line 2: field larger than"),
    "no column row": ("ids\n1\n", "begins with 'ids'"),
}


def written(folder, text):
    (folder / "rows.txt").write_text(text, encoding="utf-8")
    return folder / "rows.txt"


@pytest.mark.parametrize("kind", BAD)
def test_a_wrong_row_number_is_named_in_the_error(kind, tmp_path):
    text, said = BAD[kind]
    with pytest.raises(InputError, match=f"rows.txt.*{said}") as found:
        read_rows(written(tmp_path, text))
    assert len(str(found.value)) < 300


@pytest.mark.parametrize("text", ["²", "1_0", "٣", "x", ""])
def test_a_wrong_weight_is_named_in_the_error(text, tmp_path):
    with pytest.raises(InputError, match="rows.txt: row 1 has the weight .* no number"):
        read_weights(written(tmp_path, f"1,{text}\n"))


@pytest.mark.parametrize("read", [read_rows, read_labels, read_weights])
def test_pipes_and_devices_are_refused_before_they_are_opened(read, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("/dev/zero")
    for path in (tmp_path / "fifo", tmp_path / "link", Path("/dev/zero")):
        with pytest.raises(InputError, match=f"{path} is a .* and no file"):
            read(path)


def test_a_file_that_memory_cannot_hold_is_refused(tmp_path):
    path = written(tmp_path, "1\n")
    os.truncate(path, 1 << 42)  # 4 TiB of nothing, which take no room on the disk
    with pytest.raises(InputError, match="too large for a file that names rows"):
        read_rows(path)


def test_lines_are_counted_as_an_editor_counts_them(tmp_path):
    with pytest.raises(InputError, match="line 4: 2 columns are needed"):
        read_labels(written(tmp_path, "row,label\n\n1,a\n2\n"))


def test_a_byte_order_mark_and_columns_in_any_order(tmp_path):
    np.testing.assert_array_equal(read_rows(written(tmp_path, "\ufeff007\n12\n")), [7, 12])
    rows, labels = read_labels(written(tmp_path, "\ufefflabel,row\na,3\nb,1\n"))
    np.testing.assert_array_equal(rows, [3, 1])
    assert labels == ["a", "b"]
    assert read_rows(written(tmp_path, str(10**18 - 1)))[0] == 10**18 - 1
