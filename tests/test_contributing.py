"""What CONTRIBUTING.md shows is applied to a copy of the package, and runs."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT

TEXT = (ROOT / "CONTRIBUTING.md").read_text()
MOST_FILES = {
    "A kernel": 3,
    "A problem": 4,
    "A screening rule": 2,
    "A solver": 3,
    "A file format": 2,
}
"""Files of the package that each of these may touch."""

SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", TEXT, flags=re.MULTILINE | re.DOTALL))


def blocks(language: str, text: str = TEXT) -> list[str]:
    """The code of this language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def changed(diff: str) -> str:
    """The file that a diff is of."""
    return re.search(r"^\+\+\+ b/(.*)$", diff, flags=re.MULTILINE)[1]


def apply(diff: str, root: Path) -> None:
    """Change a file as a diff says, whose parts are found by their text."""
    path = root / changed(diff)
    head, *hunks = re.split(r"^@@\n", diff, flags=re.MULTILINE)
    text = "" if "/dev/null" in head else path.read_text()
    for hunk in hunks:
        lines = hunk.splitlines(keepends=True)
        before = "".join(line[1:] for line in lines if line[0] != "+")
        after = "".join(line[1:] for line in lines if line[0] != "-")
        assert not before or text.count(before) == 1, f"{path} has not once:\n{before}"
        text = text.replace(before, after) if before else after
    path.write_text(text)


@pytest.mark.parametrize("section", MOST_FILES)
def test_few_files_change(section: str) -> None:
    assert 0 < len({changed(diff) for diff in blocks("diff", SECTIONS[section])})
    assert len({changed(diff) for diff in blocks("diff", SECTIONS[section])}) <= MOST_FILES[section]


def test_what_is_added_works(tmp_path: Path) -> None:
    """All of it at once, as a new process imports it."""
    # With what is compiled already, but for the kernels' entries.
    shutil.copytree(ROOT / "bigscreen", tmp_path / "bigscreen")
    for diff in blocks("diff"):
        apply(diff, tmp_path)
    code = "\n".join(blocks("python"))
    known = {**os.environ, "PYTHONPATH": str(tmp_path)}
    for command in (
        ["-c", code],
        ["-m", "ruff", "check", "--config", str(ROOT / "pyproject.toml"), "bigscreen"],
    ):
        done = subprocess.run(
            [sys.executable, *command], cwd=tmp_path, env=known, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
    help_ = "import bigscreen.cli; bigscreen.cli.main(['fit', '--help'])"
    shown = subprocess.run(
        [sys.executable, "-c", help_], cwd=tmp_path, env=known, capture_output=True, text=True
    ).stdout
    for word in ("cauchy", "shortfall", "wide", "frank-wolfe"):
        assert word in shown
