"""Ingest: killed, stopped or out of disk, it ends in the same store or says what to do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from ingest_cases import (
    csv,
    in_source_order,
    mixed_files,
    rows_and_labels,
    sparse_file,
    take_small_steps,
    tune_ingest,
)

from bigscreen.data.dataset import Dataset
from bigscreen.data.folder import unfinished_path
from bigscreen.data.writer import DatasetWriter
from bigscreen.errors import InputError
from bigscreen.intake import spill as spill_module
from bigscreen.intake.ingest import ingest


@pytest.fixture
def arrays() -> tuple[np.ndarray, np.ndarray]:
    return rows_and_labels()


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    take_small_steps(monkeypatch)


CHILD = """
import json, sys, time
from bigscreen.intake import ingest as ingest_module
from bigscreen.intake.ingest import ingest
from bigscreen.intake.tuning import IngestTuning

ingest_module.TUNING = IngestTuning(
    piece_bytes=20_000, bucket_bytes=60_000, part_bytes=30_000, checkpoint_bytes=60_000
)

def progress(event):
    print(json.dumps(event), flush=True)
    time.sleep(float(sys.argv[3]))

sys.path.insert(0, "")
made = ingest(sys.argv[1].split(","), sys.argv[2], progress=progress, **json.loads(sys.argv[4]))
print(json.dumps({"phase": "done", "fingerprint": made.store.fingerprint}), flush=True)
"""


def child(sources: list[Path], store: Path, options: dict, pause: float) -> subprocess.Popen:
    return subprocess.Popen(
        [
            *(sys.executable, "-c", textwrap.dedent(CHILD), ",".join(map(str, sources))),
            *(str(store), str(pause), json.dumps(options)),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_until(process: subprocess.Popen, phase: str, number: int, kill: int) -> list[dict]:
    """Let a child run to its number-th report of a phase, then send it a signal."""
    seen: list[dict] = []
    for line in process.stdout:
        seen.append(json.loads(line))
        if [event["phase"] for event in seen].count(phase) == number:
            process.send_signal(kill)
            break
    process.stdout.read()
    return seen


READ, MEASURE, WRITE = ("read", 9), ("measure", 2), ("write", 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "ends", "more"),
    [
        (
            mixed_files,
            [(READ, signal.SIGKILL), (MEASURE, signal.SIGKILL), (WRITE, signal.SIGKILL)],
            {},
        ),
        (sparse_file, [(READ, signal.SIGINT), (WRITE, signal.SIGKILL)], {}),
        (
            mixed_files,
            [(READ, signal.SIGKILL), (WRITE, signal.SIGKILL)],
            {"regression": True, "label": "r", "drop": ["class"]},
        ),
    ],
)
def test_killed_at_any_moment_it_ends_in_the_same_store(make, ends, more, tmp_path):
    options = {"holdout": 0.25, "scale": "standard", **more}
    sources = make(tmp_path)
    expected = ingest(sources, tmp_path / "whole", **options)
    store = tmp_path / "killed"
    read_rows = []
    for (phase, number), end in ends:
        process = child(sources, store, options, 0.01)
        seen = run_until(process, phase, number, end)
        assert process.wait() == -end, process.stderr.read()
        assert (end == signal.SIGINT) == ("run the same command again" in process.stderr.read())
        assert not store.exists()
        read_rows.append([event["rows"] for event in seen if event["phase"] == "read"])
    assert read_rows[1][0] > read_rows[0][0]  # the second run did not begin at the beginning
    assert not any(read_rows[2:])  # and a third one has nothing left to read
    process = child(sources, store, options, 0)
    out, err = process.communicate()
    assert process.returncode == 0, err
    final = json.loads(out.splitlines()[-1])
    assert final["fingerprint"] == expected.store.fingerprint
    holdout = Dataset.open(tmp_path / "killed-holdout")
    holdout.verify()
    assert holdout.fingerprint == expected.holdout.fingerprint
    left = {path.name for path in tmp_path.iterdir()} - {path.name for path in sources}
    assert left == {"whole", "whole-holdout", "killed", "killed-holdout"}


def test_chunks_written_before_a_kill_are_not_written_again(tmp_path, monkeypatch):
    rng = np.random.default_rng(9)
    source = rng.standard_normal((9000, 300)).astype(np.float32), rng.integers(0, 2, 9000)
    tune_ingest(monkeypatch, part_bytes=1 << 20)

    def stop(event):
        if event["phase"] == "write" and event["rows"] > 4500:
            raise KeyboardInterrupt

    def chunks(folder):
        files = folder.glob("X/c/*/0")
        return {file.parent.name: file.stat().st_mtime_ns for file in files}

    with pytest.raises(KeyboardInterrupt, match="run the same command again"):
        ingest(source, tmp_path / "a", progress=stop)
    before = chunks(unfinished_path(tmp_path / "a"))
    store = ingest(source, tmp_path / "a").store
    after = chunks(tmp_path / "a")
    assert len(before) == 4 and len(after) == store.n_chunks == 9
    assert {name: after[name] for name in before} == before
    assert np.array_equal(in_source_order(store)[0], source[0])


def test_death_between_the_two_names(tmp_path, arrays, monkeypatch):
    real_finish = DatasetWriter.finish

    def finish(self, *told):
        if self.path.name == "a":
            raise KeyboardInterrupt
        return real_finish(self, *told)

    expected = ingest(arrays, tmp_path / "whole", holdout=0.1)
    with monkeypatch.context() as patch:
        patch.setattr(DatasetWriter, "finish", finish)
        with pytest.raises(KeyboardInterrupt):
            ingest(arrays, tmp_path / "a", holdout=0.1)
    assert (tmp_path / "a-holdout").exists() and not (tmp_path / "a").exists()
    made = ingest(arrays, tmp_path / "a", holdout=0.1)
    assert made.store.fingerprint == expected.store.fingerprint
    assert made.holdout.fingerprint == expected.holdout.fingerprint


def interrupt_in(phase: str):
    def progress(event):
        if event["phase"] == phase:
            raise KeyboardInterrupt

    return progress


def test_changed_source_or_options_are_refused(tmp_path):
    source = csv(tmp_path / "a.csv", "v,y", *(f"{i},{i % 2}" for i in range(100)))
    store = tmp_path / "a"
    with pytest.raises(KeyboardInterrupt, match="kept in .*a.ingest.wip"):
        ingest(source, store, progress=interrupt_in("write"))
    with pytest.raises(InputError, match="with other seed and scale: .*delete that folder"):
        ingest(source, store, seed=1, scale="minmax")
    assert (tmp_path / "a.ingest.wip").exists()
    csv(source, "v,y", *(f"{i},{i % 2}" for i in range(50)))
    with pytest.raises(InputError, match="with other sources"):
        ingest(source, store)
    assert ingest(source, store, overwrite=True).store.n_rows == 50
    with pytest.raises(InputError, match="exists already"):
        ingest(source, store)
    before = Dataset.open(store).fingerprint
    with pytest.raises(KeyboardInterrupt):
        ingest(source, store, scale="minmax", overwrite=True, progress=interrupt_in("write"))
    assert Dataset.open(store).fingerprint == before  # the old one stands until the new is whole
    assert ingest(source, store, scale="minmax", overwrite=True).store.fingerprint != before
    assert sorted(os.listdir(tmp_path)) == ["a", "a.csv"]


def test_iterables_leave_nothing_behind(tmp_path):
    blocks = [(np.eye(3), [0, 1, 0])] * 4
    with pytest.raises(KeyboardInterrupt, match="nothing is kept"):
        ingest(blocks, tmp_path / "a", progress=interrupt_in("write"))
    assert os.listdir(tmp_path) == []
    assert ingest(blocks, tmp_path / "a").store.n_rows == 12


def test_two_processes_do_not_share_a_folder(tmp_path):
    sources = mixed_files(tmp_path)
    process = child(sources, tmp_path / "a", {}, 0.2)
    try:
        process.stdout.readline()
        with pytest.raises(InputError, match="another process is ingesting"):
            ingest(sources, tmp_path / "a")
    finally:
        process.kill()
        process.communicate()


def test_full_disk_is_said_and_then_gone_on_from(tmp_path, arrays, monkeypatch, small_steps):
    expected = ingest(arrays, tmp_path / "whole").store
    real_extend, calls = spill_module._append_durably, []

    def extend(path, length, pieces):
        calls.append(path)
        if len(calls) == 5:
            with open(path, "ab") as file:
                file.write(b"half a row")
            raise OSError(28, "No space left on device", str(path))
        return real_extend(path, length, pieces)

    with monkeypatch.context() as patch:
        patch.setattr(spill_module, "_append_durably", extend)
        with pytest.raises(InputError, match="disk of .* is full: make room"):
            ingest(arrays, tmp_path / "a")
    assert not (tmp_path / "a").exists()
    assert ingest(arrays, tmp_path / "a").store.fingerprint == expected.fingerprint


def test_folder_that_cannot_be_written(tmp_path, arrays):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file"):
        ingest(arrays, tmp_path / "file" / "a")
    if os.geteuid() != 0:  # root may write anywhere
        (tmp_path / "locked").mkdir(mode=0o500)
        with pytest.raises(InputError, match="locked"):
            ingest(arrays, tmp_path / "locked" / "a")
