"""The tour of docs/tour.md runs, block by block, as a new user would run it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT

BLOCKS = re.findall(
    r"^```(bash|python)\n(.*?)^```", (ROOT / "docs/tour.md").read_text(), re.M | re.S
)


@pytest.mark.slow
def test_the_tour(tmp_path: Path) -> None:
    assert [kind for kind, _ in BLOCKS] == ["python", "bash", "bash", "bash", "python", "python"]
    # The commands and the interpreter of this environment, whatever is on the path.
    (tmp_path / "bigscreen").write_text(
        f'#!/bin/sh\nexec {sys.executable} -c "from bigscreen.cli import main; main()" "$@"\n'
    )
    (tmp_path / "bigscreen").chmod(0o755)
    said = []
    for kind, block in BLOCKS:
        if kind == "bash":
            command = ["sh", "-e", "-c", f'PATH="{tmp_path}:$PATH"\n{block}']
        else:
            command = [sys.executable, "-c", block]
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
        said.append(" ".join(done.stdout.split()))
    made, fitted, tuned, used, asked, estimated = said
    assert (
        made == ""
        and "of the best possible objective, over all" in fitted
        and "relative gap" in fitted
    )
    assert all("error" in text and "auc" in text for text in (fitted, tuned))
    assert (tmp_path / "best.html").stat().st_size > 50_000
    assert len((tmp_path / "predictions.csv").read_text().splitlines()) == 1001
    decided = [int(n.replace(",", "")) for n in re.findall(r"([\d,]+) (?:not|at|open)", used)]
    assert decided[2] < 1000 < decided[0], "most rows are decided at a gap of 1e-5"
    assert "predictions.csv" in used and asked in ("['yes']", "['no']")
    accuracy, gap = map(float, estimated.split())
    assert accuracy > 0.9 and 0 < gap <= 1e-3
