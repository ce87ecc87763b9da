"""The records of the benchmark of linear paths are true, on a tiny data folder."""

import bz2
import json
import lzma
from pathlib import Path

import numpy as np
import pytest
from scripts import script


def folder_of_tiny_data(folder: Path) -> None:
    rng = np.random.default_rng(0)
    for name in ("ijcnn1/ijcnn1.trn.bz2", "ijcnn1/ijcnn1.tst.bz2"):
        (folder / name).parent.mkdir(exist_ok=True)
        with bz2.open(folder / name, "wt") as lines:
            for row in rng.normal(size=(300, 3)):
                values = " ".join(f"{j + 1}:{v:.6f}" for j, v in enumerate(row))
                lines.write(f"{1 if row[0] + rng.normal() > 0 else -1:+d} {values}\n")
    table = np.column_stack([rng.normal(3, 2, (4_300, 54)), rng.integers(1, 8, 4_300)])
    (folder / "covtype").mkdir()
    with lzma.open(folder / "covtype" / "covtype.20k.data.xz", "wt") as lines:
        np.savetxt(lines, table, fmt="%.3f", delimiter=",")


@pytest.mark.slow
def test_a_quick_run_records_true_gaps(tmp_path: Path) -> None:
    folder_of_tiny_data(tmp_path)
    args = ("--quick", "--out", tmp_path / "out")
    done = script("bench.path.linear", *args, BIGSCREEN_DATA=tmp_path)
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "out" / "path_linear.json").read_text())
    assert [s["shape"] for s in record["sets"]] == [[300, 22], [4300, 54]]
    for s in record["sets"]:
        assert max(s["path_gaps"]) <= 1e-4 and max(s["finer_gaps"]) <= 1e-6
        assert len(s["fit_gaps"]) == s["values"] == 10
        # An objective cannot lie below a proved dual value but by rounding.
        assert min(s["fit_gaps"]) > -1e-9 and np.median(s["fit_gaps"]) < 1e-2
        assert set(s["seconds"]) == {"path", "finer", "fits"}
        parts = s["parts"]
        assert len(parts) == 8 and max(part["largest_gap"] for part in parts.values()) <= 1e-4
        assert parts["none, warm"]["left"] == 1.0 and parts["none, warm"]["screened_later"] == 0
    assert "LinearSVC" in done.stdout and "DVI, gap ball, warm" in done.stdout
