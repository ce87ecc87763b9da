"""Runs modules of the pipelines as users do: in processes of their own, from the root."""

import os
import subprocess
import sys

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
