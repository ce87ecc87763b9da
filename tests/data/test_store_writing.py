"""A dataset appears only when complete, also with several writers and killed processes."""

import os
import pickle
import signal
import subprocess
import sys

import numpy as np
import pytest
from places import SUPPORT
from scipy.sparse import csr_array
from store_tables import LABELS, assert_same_features, begin, fill, store, table

from bigscreen.data.dataset import Dataset
from bigscreen.data.memory import MemoryDataset
from bigscreen.errors import InputError


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300])
def test_values_beyond_float32_are_refused(tmp_path, sparse, value):
    X = np.ones((128, 3))
    X[70, 1] = value
    X = csr_array(X) if sparse else X
    y, ids = np.zeros(128, int), np.arange(128) + 1000
    writer = begin(tmp_path / "a", X, None)
    with pytest.raises(InputError, match=r"source row 1070: .*feature 1"):
        fill(writer, X, y, None, ids)
    assert writer.is_written(0) and not writer.is_written(1)
    with pytest.raises(InputError, match=r"row 70: .*feature 1"):
        MemoryDataset(X, y, LABELS)


def test_chunks_that_do_not_fit_the_plan_are_refused(tmp_path):
    X, y, weight, ids = table(128)
    writer = begin(tmp_path / "a", X, weight)
    a, b = slice(0, 64), slice(64, 128)
    wrong = [
        (X[:63], y[a], weight[a], ids[a]),
        (X[a, :6], y[a], weight[a], ids[a]),
        (X[a], y[:63], weight[a], ids[a]),
        (X[a], y[a].astype(float), weight[a], ids[a]),
        (X[a], y[a] + 5, weight[a], ids[a]),
        (X[a], y[a], None, ids[a]),
        (X[a], y[a], -weight[a], ids[a]),
        (X[a], y[a], weight[a], ids[:63]),
        (csr_array(X[a]), y[a], weight[a], ids[a]),
        (X[0], y[a], weight[a], ids[a]),
        (np.full((64, 7), "x"), y[a], weight[a], ids[a]),
    ]
    for arguments in wrong:
        with pytest.raises(InputError):
            writer.write(0, *arguments)
    assert not writer.is_written(0)
    writer.write(0, X[b], y[b], weight[b], ids[b])
    writer.write(0, X[a], y[a], weight[a], ids[a])
    writer.write(1, X[b], y[b], weight[b], ids[b])
    writer.finish().verify()
    assert (
        Dataset.open(tmp_path / "a").fingerprint
        == store(tmp_path / "b", (X, y, weight, ids)).fingerprint
    )


def test_a_dataset_gets_its_name_only_when_complete(tmp_path):
    X, y, weight, ids = data = table()
    path = tmp_path / "deep" / "set"
    writer = begin(path, X, weight, extra={"gamma": 0.5})
    fill(writer, *data, chunks=[0, 2])
    with pytest.raises(InputError, match="8 of 10 chunks .*chunk 1"):
        writer.finish()
    assert not path.exists()
    with pytest.raises(InputError, match="begun with another source"):
        begin(path, X, weight, extra={"gamma": 0.25})
    again = begin(path, X, weight, extra={"gamma": 0.5})
    assert [k for k in range(10) if again.is_written(k)] == [0, 2]
    fill(again, *data, chunks=[k for k in range(10) if not again.is_written(k)])
    dataset = again.finish()
    assert dataset.manifest["extra"] == {"gamma": 0.5}
    assert [p.name for p in path.parent.iterdir()] == ["set"]
    with pytest.raises(InputError, match="finished or given up"):
        writer.write(0, X[64:128], y[64:128], weight[64:128], ids[64:128])
    assert [p.name for p in path.parent.iterdir()] == ["set"]
    with pytest.raises(InputError, match="exists already"):
        begin(path, X, weight)


def test_overwriting_keeps_the_old_dataset_until_the_end(tmp_path):
    path = tmp_path / "set"
    old = store(path, table(seed=1))
    X, _, weight, _ = data = table(seed=2)
    writer = begin(path, X, weight, overwrite=True)
    fill(writer, *data, chunks=[0])
    assert Dataset.open(path).fingerprint == old.fingerprint
    stale = pickle.dumps(old)
    new = store(path, data, overwrite=True)
    with pytest.raises(InputError, match="replaced by another"):
        pickle.loads(stale)
    assert new.fingerprint == Dataset.open(path).fingerprint != old.fingerprint
    assert [p.name for p in tmp_path.iterdir()] == ["set"]
    (tmp_path / "mine").mkdir()
    with pytest.raises(InputError, match="not overwritten"):
        begin(tmp_path / "mine", X, weight, overwrite=True)


# A program that writes chunks of the table and prints a line after each.
WRITER = """
import pickle, sys
from store_tables import fill, table
writer = pickle.loads(bytes.fromhex(sys.argv[1]))
data = table(**eval(sys.argv[2]))
for k in eval(sys.argv[3]):
    if not writer.is_written(k):
        fill(writer, *data, chunks=[k])
        print(k, flush=True)
"""


def start_writer(writer, options, chunks):
    command = [
        sys.executable,
        "-c",
        WRITER,
        pickle.dumps(writer).hex(),
        repr(options),
        repr(chunks),
    ]
    return subprocess.Popen(command, cwd=SUPPORT, stdout=subprocess.PIPE, text=True, env=os.environ)


@pytest.mark.slow
@pytest.mark.parametrize("sparse", [False, True])
def test_two_processes_write_one_dataset(tmp_path, sparse):
    options = {"n_rows": 1500, "sparse": sparse}
    X, _, weight, _ = data = table(**options)
    writer = begin(tmp_path / "two", X, weight)
    halves = [list(range(i, writer.n_chunks, 2)) for i in (0, 1)]
    processes = [start_writer(writer, options, half) for half in halves]
    for process in processes:
        process.communicate(timeout=120)
        assert process.returncode == 0
    found = writer.finish()
    found.verify()
    assert found.fingerprint == store(tmp_path / "one", data).fingerprint
    assert_same_features(found.X(0, 1500), X)


@pytest.mark.slow
@pytest.mark.parametrize("sparse", [False, True])
def test_a_killed_writer_resumes_to_the_same_fingerprint(tmp_path, sparse):
    options = {"n_rows": 4000, "n_features": 200, "sparse": sparse}
    X, _, weight, _ = data = table(**options)
    path = tmp_path / "killed"
    writer = begin(path, X, weight)
    process = start_writer(writer, options, list(range(writer.n_chunks)))
    said = [int(process.stdout.readline()) for _ in range(5)]
    process.send_signal(signal.SIGKILL)
    said += [int(line) for line in process.stdout]
    assert process.wait() == -signal.SIGKILL
    process.stdout.close()
    again = begin(path, X, weight)
    done = [k for k in range(again.n_chunks) if again.is_written(k)]
    assert set(said) <= set(done) and len(done) < again.n_chunks
    with pytest.raises(InputError, match="unfinished"):
        Dataset.open(path)
    # A process that is killed in the middle of a file leaves such files behind.
    (path.with_name("killed.wip") / "X" / "c.0123.partial").write_bytes(b"half")
    fill(again, *data, chunks=[k for k in range(again.n_chunks) if k not in done])
    found = again.finish()
    found.verify()
    assert found.fingerprint == store(tmp_path / "whole", data).fingerprint
    assert not [p for p in found.path.rglob("*") if "partial" in p.name or "scratch" in p.name]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["killed", "whole"]
