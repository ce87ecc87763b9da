"""The race of a kernel path on tiny data, and its verdict."""

import json
import lzma
from pathlib import Path

import numpy as np
import pytest
from scripts import script

from pipelines.bench.path import kernel


@pytest.mark.slow
def test_a_race_records_every_way(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    (tmp_path / "a9a").mkdir()
    for name, n in (("a9a.xz", 150), ("a9a.t.xz", 20)):
        X = rng.normal(size=(n, 3))
        y = np.where((X**2).sum(axis=1) + 0.3 * rng.normal(size=n) < 2.0, 1, -1)
        with lzma.open(tmp_path / "a9a" / name, "wt") as lines:
            for row, label in zip(X, y, strict=True):
                values = " ".join(f"{j + 1}:{v:.6f}" for j, v in enumerate(row) if v > 0)
                lines.write(f"{label:+d} {values}\n")
    done = script(
        *("bench.path.kernel", "--quick", "--peer", "sklearn", "--repeat", 1, "--threads", 1),
        *("--only", "warm, screening", "cold", "--out", tmp_path),
        BIGSCREEN_DATA=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "path_kernel.json").read_text())
    assert list(record["results"]) == ["sklearn", "warm, screening", "cold"]
    assert len(record["values"]) == 4
    for name, part in record["results"].items():
        assert all(-1e-9 < gap < 1e-2 for gap in part["gaps"])
        assert name == "sklearn" or record["summary"][name]["gaps_no_larger"]
    ways = record["results"]
    assert ways["warm, screening"]["entries"] < ways["cold"]["entries"]


def test_a_point_with_a_larger_gap_is_said() -> None:
    part = {"seconds": 1.0, "gaps": [1e-6, 2e-6]}
    theirs = {"seconds": 8.0, "gaps": [1e-6, 1e-6]}
    summary = kernel.compared({"sklearn": theirs, "warm": part}, "sklearn")
    assert summary == {"warm": {"ratio": 0.125, "gaps_no_larger": False}}
    part["gaps"] = [1e-6, 5e-7]
    assert kernel.compared({"sklearn": theirs, "warm": part}, "sklearn")["warm"]["gaps_no_larger"]
