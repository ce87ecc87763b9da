"""Runs modules of the pipelines as users do: in processes of their own, from the root."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from places import ROOT


def script(name: str, *args: object, **environment: object) -> subprocess.CompletedProcess[str]:
    """Run ``python -m pipelines.NAME`` with arguments, the environment's variables added."""
    return subprocess.run(
        [sys.executable, "-m", f"pipelines.{name}", *map(str, args)],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=ROOT,
        env={**os.environ, **{key: str(value) for key, value in environment.items()}},
    )


def record(out: Path, name: str, args: str) -> dict[str, Any]:
    """Run a script of the papers on one BLAS thread; return the record that it writes to `out`."""
    done = script(name, "--out", out, *args.split(), OPENBLAS_NUM_THREADS=1, OMP_NUM_THREADS=1)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads((out / f"{name}.json").read_text())
    assert found["question"].endswith(")") and found["notes"] and found["tables"]
    for table in found["tables"]:
        assert all(len(row) == len(table["heads"]) for row in table["rows"])
    for figure in found["figures"]:
        assert (out / figure["file"]).read_bytes().startswith(b"\x89PNG")
    return found
