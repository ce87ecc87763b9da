"""The bench of small fits, its own way."""

import subprocess
import sys

from places import ROOT

BENCH = ROOT / "pipelines" / "bench"


def test_quick() -> None:
    done = subprocess.run(
        [sys.executable, BENCH / "small.py", "--quick", "--repeat", "1"],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    head, line = done.stdout.splitlines()
    assert line.startswith("200 rows") and float(line.split()[-1]) <= 1e-3
