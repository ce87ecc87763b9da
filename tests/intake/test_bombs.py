"""Files that declare, or unpack to, more than they hold: refused before memory is taken for it."""

import gzip
import io
import json
import lzma
import os
import re
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path

import h5py
import numpy as np
import pytest

from bigscreen.data.dataset import Dataset
from bigscreen.data.limits import parse_json
from bigscreen.errors import InputError
from bigscreen.intake.ingest import ingest
from bigscreen.intake.readers.formats import open_source
from bigscreen.intake.readers.table import detect_layout
from bigscreen.model.file import is_path
from bigscreen.model.model import Model

LIMIT = 3 << 30
"""Address space of a process that meets a bomb: far above what it needs, far below the bomb."""

AGAINST = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, ({limit}, {limit}))
from bigscreen.errors import InputError
from bigscreen.intake.ingest import ingest
from bigscreen.model.model import Model
try:
    {call}
except InputError as error:
    print("REFUSED:", error)
# Not ru_maxrss: that begins at what the process held that started this one.
with open("/proc/self/status") as file:
    print("PEAK", int(file.read().partition("VmHWM:")[2].split()[0]) // 1024)
"""


def refused(call: str) -> tuple[str, int]:
    """The sentence by which a process of its own refuses a bomb, and its memory in MiB."""
    code = AGAINST.format(limit=LIMIT, call=call)
    env = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, env=env
    )
    assert done.returncode == 0, done.stderr
    said, _, peak = done.stdout.rpartition("PEAK")
    return said.strip(), int(peak)


def npy(shape, dtype="<f8", fortran=False, version=1) -> bytes:
    """The header of an array, and none of its values."""
    out = io.BytesIO()
    header = {"descr": dtype, "fortran_order": fortran, "shape": shape}
    write = [np.lib.format.write_array_header_1_0, np.lib.format.write_array_header_2_0]
    write[version - 1](out, header)
    return out.getvalue()


def zeros_npz(path: Path, **members: tuple[bytes, int]) -> Path:
    """Write a zip file; each member begins with given bytes, and a number of zeros follows."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as bundle:
        for name, (head, zeros) in members.items():
            with bundle.open(name.replace("__", "/").replace("_", "."), "w") as part:
                part.write(head)
                for at in range(0, zeros, 1 << 20):
                    part.write(bytes(min(1 << 20, zeros - at)))
    return path


NPY = {
    "declared": (npy((2, 400_000_000)), "ends too early: its header promises.*5.96 GiB"),
    "by columns": (npy((2, 400_000_000), fortran=True), "ends too early: its header promises"),
    "overflow": (npy((2**40, 2**40)), "ends too early"),
    "negative": (npy((-2, 5)), "its header says"),
    "no bytes": (npy((2, 5), dtype="<U0"), "its header says"),
    "header": (b"\x93NUMPY\x02\x00\xff\xff\xff\xffabc", "header has 4294967295 bytes"),
    "brackets": (b"\x93NUMPY\x01\x00\x10\x27" + b"(" * 10_000, "header cannot be read"),
    "signs": (b"\x93NUMPY\x01\x00\x10\x27" + b"-" * 9_999 + b"1", "header|not an array"),
    "cut": (b"\x93NUMPY\x02\x00\xff\0\0", "header is cut off"),
}


@pytest.mark.parametrize("case", NPY)
def test_npy(case, tmp_path):
    content, said = NPY[case]
    (tmp_path / "a.npy").write_bytes(content)
    np.save(tmp_path / "y.npy", np.zeros(2))
    for options in ({"label": "none"}, {"labels_file": tmp_path / "y.npy"}):
        with pytest.raises(InputError, match=said):
            open_source(tmp_path / "a.npy", **options)
    np.save(tmp_path / "x.npy", np.zeros((2, 2)))
    with pytest.raises(InputError, match=said):
        open_source(tmp_path / "x.npy", labels_file=tmp_path / "a.npy")


def test_arrays_that_must_be_held_whole_are_beside_the_memory(tmp_path):
    np.save(tmp_path / "a.npy", np.asfortranarray(np.zeros((3000, 50))))
    assert open_source(tmp_path / "a.npy", label="none", memory=4 << 20).n_rows == 3000
    with pytest.raises(InputError, match="Fortran order.*1 MiB must be held whole"):
        open_source(tmp_path / "a.npy", label="none", memory=1 << 20)


@pytest.mark.slow
def test_npz_members_are_streamed_and_their_rows_bounded(tmp_path):
    head = npy((2, 200_000_000), dtype="|u1")
    path = zeros_npz(tmp_path / "a.npz", X_npy=(head, 400_000_000), y_npy=(npy((2,)), 16))
    assert path.stat().st_size < 8 << 20
    with pytest.raises(InputError, match="one row of the shape.*takes 191 MiB"):
        open_source(path)
    # Labels, too: many rows are read at once because those of X are short.
    labels = npy((400,), dtype="|S1000000")
    path = zeros_npz(tmp_path / "b.npz", X_npy=(npy((400, 1)), 3200), y_npy=(labels, 4 * 10**8))
    said, peak = refused(f"ingest({str(path)!r}, {str(tmp_path / 'b.store')!r})")
    assert "REFUSED" in said and peak < 500
    header = b"\x93NUMPY\x02\x00\x00\xe1\xf5\x05"
    path = zeros_npz(tmp_path / "c.npz", X_npy=(header, 10**8))
    with pytest.raises(InputError, match="header has 100000000 bytes"):
        open_source(path, label="none")


def test_hdf5_chunks(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        X = file.create_dataset("X", (2**17, 1024), "f8", chunks=(2**17, 1024), compression="gzip")
        chunk = zlib.compress(bytes(2**30), 1)
        X.id.write_direct_chunk((0, 0), chunk)
    assert path.stat().st_size < 8 << 20
    with pytest.raises(InputError, match="dataset X is stored in chunks of 1.00 GiB.*h5repack"):
        open_source(path, label="none")
    with h5py.File(path, "w") as file:
        X = file.create_dataset("X", (3000, 512), "f4", chunks=(3000, 512), compression="gzip")
        X[0] = 1
    assert open_source(path, label="none", memory=1 << 30).n_rows == 3000
    with pytest.raises(InputError, match="at most 4 MiB are taken"):
        open_source(path, label="none", memory=16 << 20)


def test_idx_sizes(tmp_path):
    head = b"\0\0\x08\x03" + np.array([60_000, 50_000, 50_000], ">u4").tobytes()
    (tmp_path / "a-ubyte").write_bytes(head)
    with pytest.raises(InputError, match="ends too early: it promises the shape"):
        open_source(tmp_path / "a-ubyte", label="none")
    (tmp_path / "b-ubyte.gz").write_bytes(gzip.compress(head))
    with pytest.raises(InputError, match="one row of the shape.*2.33 GiB"):
        open_source(tmp_path / "b-ubyte.gz", label="none")


@pytest.mark.slow
def test_parquet_sizes(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    x = pyarrow.array(np.arange(200_000.0))
    parquet.write_table(pyarrow.table({"x": x, "label": x}), path)
    assert open_source(path, memory=1 << 30).n_rows == 200_000
    with pytest.raises(InputError, match="column 'x' takes 2 MiB in one row group"):
        open_source(path, memory=4 << 20)
    # A text that occurs often is in the file once: it must not be written out for every row.
    text = pyarrow.DictionaryArray.from_arrays(
        pyarrow.array(np.arange(20_000, dtype=np.int32) % 2), ["a" * 10**6, "b" * 10**6]
    )
    table = pyarrow.table({"x": x[:20_000], "t": text, "label": text})
    parquet.write_table(table, path, store_schema=False)
    assert path.stat().st_size < 8 << 20
    said, peak = refused(f"ingest({str(path)!r}, {str(tmp_path / 'a.store')!r})")
    assert said == "" and peak < 1000
    assert Dataset.open(tmp_path / "a.store").n_features == 3
    content = path.read_bytes()
    path.write_bytes(content[:2000] + bytes(2000) + content[4000:])
    with pytest.raises(InputError, match="is not a readable Parquet file"):
        list(open_source(path).blocks())


def _varint(count: int) -> bytes:
    """A count as the footer of a Parquet file has it."""
    out, count = b"", 2 * count
    while count > 127:
        out, count = out + bytes([count & 127 | 128]), count >> 7
    return out + bytes([count])


@pytest.mark.parametrize("text", [False, True])
def test_parquet_that_promises_more_rows_than_it_has(tmp_path, text):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path, n = tmp_path / "a.parquet", 12_345
    x, names = np.arange(n) / 7, np.array(["a", "b"])[np.arange(n) % 2]
    table = pyarrow.table({"t": names, "x": x, "y": names} if text else {"x": x, "y": names})
    parquet.write_table(table, path)
    content = path.read_bytes()
    size = int.from_bytes(content[-8:-4], "little")
    footer = content[-8 - size : -8].replace(_varint(n), _varint(10**9))
    path.write_bytes(
        content[: -8 - size] + footer + len(footer).to_bytes(4, "little") + content[-4:]
    )
    said = r"a.parquet is damaged: its row group 0 says that it has 1000000000 rows, and it gives"
    with pytest.raises(InputError, match=said + " 12345"):
        ingest(path, tmp_path / "a.store", memory=1 << 40)
    assert not list(tmp_path.glob("a.store*"))


@pytest.mark.slow
@pytest.mark.parametrize("part", ["model_json", "arrays__coef_npy"])
def test_model_files_that_unpack_to_gigabytes(part, tmp_path):
    path = zeros_npz(tmp_path / "m.bsm", **{part: (b"[", 600 << 20)})
    said, peak = refused(f"Model.load({str(path)!r})")
    assert said.startswith("REFUSED") and peak < 400


def test_a_model_that_declares_more_than_its_file(tmp_path):
    path = tmp_path / "m.bsm"
    record = json.dumps({"format": "bigscreen model", "schema": 3, "n_features": 10**400})
    with zipfile.ZipFile(path, "w") as bundle:
        bundle.writestr("model.json", record)
        bundle.writestr("arrays/coef.npy", npy((2, 4 * 10**8)))
    with pytest.raises(InputError, match="is damaged"):
        Model.load(path)
    content = path.read_bytes()
    end = content.rindex(b"PK\x01\x02", 0, content.rindex(b"PK\x01\x02"))
    sizes = (2**31 - 1).to_bytes(4, "little") * 2
    path.write_bytes(content[: end + 20] + sizes + content[end + 28 :])
    with pytest.raises(InputError, match="is damaged"):
        Model.load(path)


def test_deep_brackets(tmp_path):
    for text in ("[" * 10**6, '{"a":' * 10**6):
        with pytest.raises(ValueError, match="nested too deeply"):
            parse_json(text)
        path = tmp_path / "m.bsm"
        with zipfile.ZipFile(path, "w") as bundle:
            bundle.writestr("model.json", text)
        with pytest.raises(InputError, match="is damaged .*nested too deeply"):
            Model.load(path)
        assert not is_path(path)
        store = tmp_path / "a.store"
        store.mkdir(exist_ok=True)
        (store / "manifest.json").write_text(text)
        with pytest.raises(InputError, match="manifest.json is damaged"):
            Dataset.open(store)


def repeated(path: Path, piece: bytes, times: int, head: bytes = b"") -> Path:
    """A packed file that is small for what is in it."""
    xz = path.suffix == ".xz"
    with lzma.open(path, "wb", preset=0) if xz else gzip.open(path, "wb", 1) as file:
        file.write(head)
        for _ in range(times):
            file.write(piece)
    return path


TEXTS = {
    "one line of zeros": ("a.csv.gz", b"0" * (1 << 20), 250, b"", "longer than 128 MiB"),
    "one line of fields": ("a.csv.gz", b"0," * (1 << 19), 100, b"", "4194304 columns or more"),
    "one svmlight line": ("a.svm.xz", b" " * (1 << 20), 250, b"1 1:1", "longer than 128 MiB"),
    "tokens that are none": (
        "a.svm.gz",
        b"a " * (1 << 19),
        100,
        b"1 1:1 ",
        "line 1: 'a' is not index:value",
    ),
    "nothing": ("a.csv.gz", b"\n" * (1 << 20), 300, b"", "is empty|no row"),
    "categories": (
        "a.arff.gz",
        b"a," * (1 << 19),
        100,
        b"@relation r\n@attribute a {",
        "do not end with a brace",
    ),
    "blanks in a category": (
        "b.arff.gz",
        b" " * (1 << 20),
        20,
        b"@relation r\n@attribute a {a",
        "do not end with a brace",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", TEXTS)
def test_packed_texts(case, tmp_path):
    name, piece, times, head, said = TEXTS[case]
    path = repeated(tmp_path / name, piece, times, head)
    assert path.stat().st_size < 8 << 20
    told, peak = refused(f"ingest({str(path)!r}, {str(tmp_path / 'a.store')!r})")
    assert told.startswith("REFUSED")

    assert re.search(said, told), told
    assert peak < 1500


def test_blanks_within_a_sparse_row_take_no_square_of_time(tmp_path):
    head = "@relation r\n@attribute a real\n@attribute class {n,p}\n@data\n"
    rows = "{0 1" + " " * 300_000 + ", 1 p}\n{0 2, 1 n}\n"
    (tmp_path / "a.arff").write_text(head + rows)
    (block,) = open_source(tmp_path / "a.arff").blocks()
    assert block.X.toarray().tolist() == [[1], [2]] and list(block.y) == ["p", "n"]


def test_texts_of_a_column_are_bounded_in_all(tmp_path):
    lines = "".join(f"{'x' * 1000}{i},{i % 2}\n" for i in range(70_000))
    (tmp_path / "a.csv").write_text("t,label\n" + lines)
    with pytest.raises(InputError, match="column 't'.*more than 64 MiB of texts"):
        list(open_source(tmp_path / "a.csv").blocks())


def test_tables_with_too_many_columns_are_refused(tmp_path):
    (tmp_path / "a.csv").write_text((",".join(["1.5"] * 100) + "\n") * 3)
    assert open_source(tmp_path / "a.csv", header=False).n_features == 99
    (tmp_path / "b.csv").write_text((",".join(["1.5"] * 102) + "\n") * 3)
    with pytest.raises(InputError, match="line 1: the line has 101 columns or more"):
        detect_layout(tmp_path / "b.csv", header=False, max_columns=101)


@pytest.mark.parametrize("suffix", ["csv", "svm", "npy", "npz", "h5", "parquet", "arff", "idx"])
def test_a_pipe_nobody_writes_to_is_no_source(suffix, tmp_path):
    os.mkfifo(tmp_path / f"a.{suffix}")
    with pytest.raises(InputError, match="is a pipe and no file"):
        ingest(tmp_path / f"a.{suffix}", tmp_path / "a.store")
    np.save(tmp_path / "x.npy", np.zeros((4, 2)))
    with pytest.raises(InputError, match="is a pipe and no file"):
        ingest(tmp_path / "x.npy", tmp_path / "a.store", labels_file=tmp_path / f"a.{suffix}")


def test_pipes_and_devices_are_no_models(tmp_path):
    os.mkfifo(tmp_path / "m.bsm")
    for path, kind in ((tmp_path / "m.bsm", "a pipe"), (Path("/dev/zero"), "a device")):
        with pytest.raises(InputError, match=f"is {kind}.* and no file"):
            Model.load(path)
        with pytest.raises(InputError, match=f"is {kind}.* and no file"):
            is_path(path)
    (tmp_path / "s.store").mkdir()
    os.mkfifo(tmp_path / "s.store" / "manifest.json")
    with pytest.raises(InputError, match="is damaged"):
        Dataset.open(tmp_path / "s.store")


@pytest.mark.slow
def test_standard_input_from_a_file_is_read(tmp_path):
    (tmp_path / "a.csv").write_text("x,label\n" + "".join(f"{i},{i % 2}\n" for i in range(50)))
    call = [
        *(sys.executable, "-c", "from bigscreen.cli import main; main()", "ingest"),
        *("/dev/stdin", str(tmp_path / "a.store")),
    ]
    with open(tmp_path / "a.csv") as file:
        done = subprocess.run(call, stdin=file, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert Dataset.open(tmp_path / "a.store").n_rows == 50
    done = subprocess.run(
        [*call[:-1], str(tmp_path / "b.store")], input="x\n1\n", capture_output=True, text=True
    )
    assert done.returncode == 2 and "/dev/stdin is a pipe and no file" in done.stderr


@pytest.mark.parametrize("text", ["[" * 10**5 + "\n", "{}\n", "3\n", "not json\n"])
def test_a_damaged_journal_is_named(text, tmp_path):
    work = tmp_path / "a.store.ingest.wip"
    work.mkdir()
    (work / "journal.jsonl").write_text(text)
    source = np.eye(20), np.arange(20) % 2
    with pytest.raises(InputError, match="journal.jsonl is damaged.*: delete"):
        ingest(source, tmp_path / "a.store")
    assert ingest(source, tmp_path / "a.store", overwrite=True).store.n_rows == 20
