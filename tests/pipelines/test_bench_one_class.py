"""The one-class benchmark runs as documented, on a table in the real one's format."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from scripts import script


@pytest.mark.slow
def test_a_small_run_states_the_share_outside(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 5))
    X[:12] += 6
    lines = [
        ",".join([*map("{:.4f}".format, row), "tcp" if row[0] > 0 else "udp", "normal."])
        for row in X
    ]
    (tmp_path / "kddcup99").mkdir()
    with gzip.open(tmp_path / "kddcup99" / "kddcup.data_10_percent.gz", "wt") as file:
        file.write("\n".join([*lines[:-1], lines[-1].replace("normal.", "smurf.")]) + "\n")
    args = ("--rows", 1500, "--landmarks", 40, "--out", tmp_path / "out", "--work", tmp_path)
    done = script("bench.one_class", *args, BIGSCREEN_DATA=tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "out" / "one_class.json").read_text())["result"]
    assert result["rows"] == 1500 and result["solver"] == "newton"
    assert result["relative_gap"] <= 1e-3 and result["dual"] <= result["primal"] < 0
    assert 0 < result["outside"] <= 0.02
    assert "met" in done.stdout and "nu=0.01" in done.stdout
