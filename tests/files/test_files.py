"""Outputs appear complete or not at all, even if others write to the same path."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from cli_world import World, bigscreen, process, succeed, world  # noqa: F401

from bigscreen.errors import InputError
from bigscreen.files.output import lock_path, replacing


def write(path: Path, content: bytes) -> None:
    with replacing(path, durable=False) as file:
        file.write(content)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


PROGRAM = """
import os, signal, sys, time
from bigscreen.files.output import lock_path, replacing
what, path = sys.argv[1:3]
if what == "write":
    for _ in range(300):
        with replacing(path, durable=False) as file:
            for _ in range(20):
                file.write(sys.argv[3].encode() * 1000)
                file.flush()
else:
    with replacing(path) if what == "begin" else lock_path(path, "busy"):
        print("there", flush=True)
        time.sleep(60)
"""


def run(what: str, path: Path, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM, what, str(path), *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_two_writers_never_mix(tmp_path: Path) -> None:
    out = tmp_path / "x.csv"
    writers = [run("write", out, letter) for letter in "ab"]
    seen = set()
    while any(writer.poll() is None for writer in writers):
        if out.exists():
            content = out.read_bytes()
            assert len(content) == 20_000 and len(set(content)) == 1
            seen.add(content[:1])
    assert [writer.wait() for writer in writers] == [0, 0]
    assert names(tmp_path) == ["x.csv"] and seen


def test_what_a_dead_writer_left_is_removed(tmp_path: Path) -> None:
    out = tmp_path / "x.csv"
    with run("begin", out) as dead:
        assert dead.stdout is not None and dead.stdout.readline()
        left = names(tmp_path)
        dead.send_signal(signal.SIGKILL)
    assert left == names(tmp_path) != []
    write(out, b"new")
    assert names(tmp_path) == ["x.csv"] and out.read_bytes() == b"new"


def test_a_planted_link_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    for k in range(2):
        (tmp_path / f".x.csv.{k}.tmp").symlink_to(victim)
    write(tmp_path / "x.csv", b"new")
    assert victim.read_text() == "mine" and (tmp_path / "x.csv").read_bytes() == b"new"


def test_after_an_error_nothing_has_changed(tmp_path: Path) -> None:
    out = tmp_path / "x"
    out.write_text("old")
    with pytest.raises(ZeroDivisionError), replacing(out) as file:  # noqa: PT012
        file.write(b"half")
        raise ZeroDivisionError
    assert names(tmp_path) == ["x"] and out.read_text() == "old"


def test_a_long_name(tmp_path: Path) -> None:
    out = tmp_path / ("ü" * 127)
    write(out, b"1")
    with lock_path(out, "busy"):
        pass
    assert names(tmp_path) == [out.name]


def test_a_link_keeps_its_target(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    target, link, other = tmp_path / "there" / "x.json", tmp_path / "link", tmp_path / "other"
    link.symlink_to("there/x.json")
    other.symlink_to(link)
    for content in (b"1", b"2"):  # made, and replaced
        write(other, content)
        assert other.is_symlink() and link.is_symlink() and target.read_bytes() == content


def test_a_pipe_gets_all_and_stays(tmp_path: Path) -> None:
    pipe, got = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
    reader.start()
    write(pipe, b"all" * 50_000)
    reader.join(timeout=20)
    assert got == [b"all" * 50_000] and pipe.is_fifo()
    write(Path("/dev/null"), b"gone")
    assert Path("/dev/null").is_char_device()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["-", "/dev/stdout", "/dev/fd/1", "link"])
def test_json_to_standard_output(name: str, world: World, tmp_path: Path) -> None:  # noqa: F811
    """Also where that is a file: what stood there before and comes later is kept."""
    (tmp_path / "link").symlink_to("/dev/stdout")
    place = str(tmp_path / "link") if name == "link" else name
    program = "import sys; print('1'); from bigscreen.cli import main; main(sys.argv[1:])"
    with open(tmp_path / "out", "w") as out:
        command = [sys.executable, "-c", program, "info", str(world.model), "--json", place]
        done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, text=True, check=True)
    first, rest = (tmp_path / "out").read_text().split("\n", 1)
    assert first == "1" and json.loads(rest)["kind"] == "model"
    assert "Certificate" in done.stderr


@pytest.mark.slow
def test_predictions_to_standard_output(world: World, tmp_path: Path) -> None:  # noqa: F811
    # Two processes alike: BLAS may give other last bits in one that has done much before.
    with process("predict", world.model, world.store, tmp_path / "x.csv") as running:
        running.communicate(timeout=60)
    with process("predict", world.model, world.store, "-") as running:
        told, _ = running.communicate(timeout=60)
    assert told == (tmp_path / "x.csv").read_text()
    both = bigscreen("predict", world.model, world.store, "-", "--json", "/dev/stdout")
    assert both.exit_code == 2 and "another file of this command" in both.stderr


def test_an_output_that_is_a_link_of_another_argument(
    world: World,  # noqa: F811
    tmp_path: Path,
) -> None:
    (tmp_path / "link").symlink_to(world.model)
    done = bigscreen("info", world.model, "--json", tmp_path / "link")
    assert done.exit_code == 2 and "another file" in done.stderr


# -- one at a time ---------------------------------------------------------------------------------
@pytest.mark.parametrize("folder", [False, True])
def test_a_place_is_held_until_its_process_is_dead(folder: bool, tmp_path: Path) -> None:
    place = tmp_path / "place"
    if folder:
        place.mkdir()
    with run("hold", place) as holder:
        assert holder.stdout is not None and holder.stdout.readline()
        with pytest.raises(InputError, match="busy"), lock_path(place, "busy"):
            pass
        holder.send_signal(signal.SIGKILL)
    with lock_path(place, "busy"), pytest.raises(InputError), lock_path(place, "busy"):
        pass
    assert names(tmp_path) == (["place"] if folder else [])


@pytest.mark.parametrize("command", ["fit", "path"])
def test_a_second_run_says_that_the_first_one_is_there(
    command: str,
    world: World,  # noqa: F811
    tmp_path: Path,
) -> None:
    out = tmp_path / "m"
    args = [command, world.store, out, "--exact", "--gamma", "1", "--threads", "1"]
    args += ["--tol", "1e-14", "--C", "1e6" if command == "fit" else "1:1e6:500"]
    with process(*args) as running:
        work = tmp_path / "m.work"
        while not (work / "problem.json").exists():
            assert running.poll() is None
            time.sleep(0.01)
        before = names(tmp_path)
        for more in ([], ["--overwrite"], ["--resume"], ["--work", tmp_path / "w"]):
            second = bigscreen(*args, *more)
            assert second.exit_code == 2, second.output
            assert "another process is making" in second.stderr
        # Another model in the same work folder.
        second = bigscreen(*[other if other != out else tmp_path / "n" for other in args],
                           "--work", work)  # fmt: skip
        assert second.exit_code == 2 and "another process is at work" in second.stderr
        assert names(tmp_path) == before and running.poll() is None
        running.send_signal(signal.SIGKILL)
    again = bigscreen(*args)
    assert again.exit_code == 2 and "an interrupted run left" in again.stderr
