"""The lines of docs/traps.md print what the page says."""

import doctest
import re
from pathlib import Path

import pytest
from cli_world import bigscreen
from places import ROOT

PAGE = (ROOT / "docs/traps.md").read_text()
BLOCKS = re.findall(r"^```(python|console|pycon)\n(.*?)^```", PAGE, re.M | re.S)


def plain(text: str) -> str:
    """Return the words of an output, without the frames and columns of tables."""
    return " ".join(re.sub(r"[─-╿]", " ", text).split())


@pytest.mark.slow
def test_the_page_shows_what_commands_print(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    compared = 0
    for kind, block in BLOCKS:
        if kind == "python":
            exec(block, names)
        elif kind == "pycon":
            lines = doctest.DocTestParser().get_doctest(block, names, "traps.md", None, None)
            assert doctest.DocTestRunner().run(lines, clear_globs=False).failed == 0, (
                capsys.readouterr().out
            )
            names |= lines.globs
        else:
            for line in block.splitlines():
                if line.startswith("$ bigscreen "):
                    done = bigscreen(*line.split()[2:])
                    said = plain(done.stdout + done.stderr)
                else:
                    assert plain(line) in said, f"{line}\n{said}"
                    compared += 1
    assert compared > 15
