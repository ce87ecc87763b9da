"""Names and files that somebody has made to confuse: one sentence, or as if they were harmless."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli_world import FIT, World, bigscreen, world, write_csv

from bigscreen.cli.common import _stop
from bigscreen.errors import reason_of
from bigscreen.report.journal import JOURNAL

__all__ = ["world"]  # a fixture


@pytest.mark.parametrize(
    "name", ["`label=1.2.3`", "`label='\\x'`", "`drop=1`", "`none`", "`label`"]
)
def test_columns_named_like_an_option(tmp_path: Path, name: str) -> None:
    for option in (["--label", f"no {name}"], ["--label", name, "--drop", name]):
        end = bigscreen("ingest", write_csv(tmp_path / "a.csv"), tmp_path / "a.store", *option)
        assert end.exit_code == 2 and isinstance(end.exception, SystemExit), end.output
        assert len(end.stderr.splitlines()) == 1


def line(**event: object) -> str:
    import json

    return json.dumps(event) + "\n"


START = {"event": "start", "command": "fit", "out": "m.bsm", "pid": 1, "host": "nowhere"}


@pytest.mark.parametrize(
    "text",
    [
        '{"event": ' + "[" * 100_000 + "]" * 100_000 + "}\n",
        line(event="start"),
        line(**{**START, "command": []}),
        line(**START) + line(event="progress"),
        line(**START) + line(event="pass"),
        line(**START) + line(event="end"),
        line(**START) + line(event="end", outcome=["done"]),
        line(**{**START, "host": os.uname().nodename, "pid": 10**30}),
        line(**{**START, "host": os.uname().nodename, "pid": "x"}),
    ],
)
def test_a_journal_that_no_run_wrote(tmp_path: Path, text: str) -> None:
    work = tmp_path / "m.bsm.work"
    work.mkdir()
    (work / JOURNAL).write_text(text)
    end = bigscreen("watch", tmp_path / "m.bsm", "--once")
    assert end.exit_code in (0, 2) and isinstance(end.exception, SystemExit | None), end.output
    assert len(end.output.splitlines()) == 1
    assert end.exit_code == 0 or "is damaged" in end.stderr


def test_names_that_are_not_utf8(world: World, tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/m\xff.bsm"
    commands = [
        ["fit", world.store, name, *FIT, "--report", name + b".html", "--log", name + b".log"],
        ["report", name, name + b".report.html", "--json", name + b".json"],
        ["report", name, tmp_path / "report.html"],
        ["info", name],
        ["path", world.store, name + b".bsp", *FIT, "--C", "1:10:3", "--report", name + b"p.html"],
        ["predict", name, world.store, name + b".csv"],
    ]
    code = "from bigscreen.cli import main; main(prog_name='bigscreen')"
    for words in commands:
        done = subprocess.run(
            [sys.executable, "-c", code, *words], capture_output=True, cwd=tmp_path
        )
        assert done.returncode == 0, (words, done.stderr.decode())
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "m\\udcff.bsm" in page


@pytest.mark.parametrize("error", [TimeoutError(), OSError(), MemoryError(), ConnectionError(" ")])
def test_no_sentence_is_empty(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        _stop(reason_of(error), 2)
    assert len(capsys.readouterr().err.removeprefix("error:").strip()) > 10
