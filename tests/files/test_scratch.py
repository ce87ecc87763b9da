"""Temporary folders: cleared after a kill, and never a place that another user has prepared."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import fsspec
import numpy as np
import pytest
from cli_world import process, succeed, write_csv
from fsspec.implementations.memory import MemoryFileSystem

from bigscreen.errors import InputError
from bigscreen.files.output import replacing
from bigscreen.files.scratch import LOCK, check_own, make_private_folder, scratch
from bigscreen.intake.ingest import ingest

HOLDS = """
import sys, tempfile, time
tempfile.tempdir = sys.argv[1]
from bigscreen.files.scratch import scratch
with scratch("test") as folder:
    print(folder, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A folder of this user that has no part in what is done."""
    folder = tmp_path / "precious"
    folder.mkdir()
    (folder / "file").write_text("kept")
    return folder


def test_folders_of_dead_processes_are_cleared(temporary: Path) -> None:
    (temporary / "bigscreen-test-of-somebody").mkdir()  # without a lock: no scratch folder
    command = [sys.executable, "-c", HOLDS, str(temporary)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        theirs = Path(holder.stdout.readline().strip())
        with scratch("test") as own:
            assert theirs.exists() and (own / LOCK).exists()
        holder.kill()
    assert theirs.exists() and not own.exists()
    with scratch("another kind"):
        assert not theirs.exists()
    assert [path.name for path in temporary.iterdir()] == ["bigscreen-test-of-somebody"]


@pytest.mark.parametrize("command", ["demo", "warmup"])
def test_folders_of_killed_commands_are_cleared(temporary: Path, command: str) -> None:
    with process(command, env={**os.environ, "TMPDIR": str(temporary)}) as killed:
        until = time.monotonic() + 120
        while not list(temporary.glob(f"bigscreen-{command}-*/{LOCK}")):
            assert killed.poll() is None and time.monotonic() < until
            time.sleep(0.05)
        killed.send_signal(signal.SIGKILL)
    with scratch("test"):
        pass
    assert list(temporary.iterdir()) == []


def test_folders_without_a_lock_or_of_others_are_left(temporary: Path, precious: Path) -> None:
    (precious / LOCK).touch()
    (temporary / "bigscreen-link").symlink_to(precious)
    open_to_all = temporary / "bigscreen-open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    (open_to_all / LOCK).touch()
    with scratch("test"):
        pass
    assert (precious / "file").read_text() == "kept" and open_to_all.exists()


def test_what_goes_elsewhere_leaves_nothing_here(temporary: Path) -> None:
    with replacing("memory://scratch/file") as file:
        file.write(b"written")
        assert list(temporary.iterdir())
    assert fsspec.filesystem("memory").cat("/scratch/file") == b"written"
    assert list(temporary.iterdir()) == []


# ------------------------------------------------------------- stores that are made here to go away


def interrupted(source: Path, store: str) -> None:
    """Ingest to a place elsewhere, up to the second pass."""

    def stop(event: dict[str, object]) -> None:
        if event["phase"] == "write":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match="is kept in"):
        ingest(source, store, progress=stop)


def test_a_prepared_folder_is_refused(temporary: Path, tmp_path: Path, precious: Path) -> None:
    source, store = write_csv(tmp_path / "a.csv"), "memory://scratch/prepared.store"
    interrupted(source, store)
    (folder,) = temporary.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.rename(temporary / "aside")
    # As another user would have it, who knows the URL: a link, or a folder that both can change.
    folder.symlink_to(precious)
    with pytest.raises(InputError, match="is not a folder that you own and only you can change"):
        ingest(source, store)
    folder.unlink()
    folder.mkdir(mode=0o755)
    (folder / "prepared.store").symlink_to(precious)
    with pytest.raises(InputError, match="is not a folder that you own and only you can change"):
        ingest(source, store)
    assert (precious / "file").read_text() == "kept" and len(list(precious.iterdir())) == 1
    (folder / "prepared.store").unlink()
    folder.rmdir()
    (temporary / "aside").rename(folder)
    assert ingest(source, store).store.n_rows == 600
    assert list(temporary.iterdir()) == []


class Unreachable(MemoryFileSystem):
    """A place elsewhere that can be looked at and not written to."""

    protocol = "unreachable"

    def put_file(self, *_: object, **__: object) -> None:
        raise OSError(5, "no network")


def test_nothing_is_left_of_an_ingest_that_fails(temporary: Path, tmp_path: Path) -> None:
    for source in (tmp_path / "none.csv", write_csv(tmp_path / "a.csv")):
        with pytest.raises(InputError):
            ingest(source, "memory://scratch/failing.store", label="nobody")
        assert list(temporary.iterdir()) == []
    fsspec.register_implementation("unreachable", Unreachable, clobber=True)
    with pytest.raises(OSError, match="no network"):
        ingest((np.eye(4), [0, 1, 0, 1]), "unreachable://scratch/failing.store")
    assert list(temporary.iterdir()) == []


# ----------------------------------------------- work folders where every user may put something


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder like /tmp."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


@pytest.mark.parametrize("suffix", [".ingest.wip", ".wip"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_an_ingest_works_in_no_prepared_folder(
    shared: Path, tmp_path: Path, precious: Path, suffix: str, overwrite: bool
) -> None:
    source = write_csv(tmp_path / "a.csv")
    (shared / f"a.store{suffix}").symlink_to(precious)
    with pytest.raises(InputError, match=r"was put there by another user, or is a link"):
        ingest(source, shared / "a.store", overwrite=overwrite)
    assert [file.name for file in precious.iterdir()] == ["file"]


def test_a_fit_resumes_in_no_prepared_folder(shared: Path, tmp_path: Path, precious: Path) -> None:
    succeed("ingest", write_csv(tmp_path / "a.csv"), tmp_path / "a.store")
    (precious / "problem.json").write_text("{}")
    (shared / "m.bsm.work").symlink_to(precious)
    words = ("fit", tmp_path / "a.store", shared / "m.bsm", "--resume", "--landmarks", 20)
    with process(*words) as fit:
        assert "was put there by another user, or is a link" in fit.communicate(timeout=120)[1]
    assert fit.returncode == 2 and (precious / "file").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_folders_of_other_users(shared: Path, temporary: Path) -> None:
    folder = shared / "folder"
    folder.mkdir()
    check_own(folder)
    check_own(shared / "none")
    os.chown(folder, 12345, 12345)
    with pytest.raises(InputError, match="by another user"):
        check_own(folder)
    shared.chmod(0o755)
    check_own(folder)
    made = make_private_folder("test")
    assert make_private_folder("test") == made
    os.chown(made, 12345, 12345)
    with pytest.raises(InputError, match="not a folder that you own"):
        make_private_folder("test")
