"""The benchmark of features measures machines that approximate the same kernel."""

import pytest

from bigscreen import ingest
from pipelines.bench import features


@pytest.mark.parametrize("way", features.WAYS.values())
def test_each_way_approximates_the_kernel(way: str, tmp_path) -> None:
    rows, columns = 600, 2
    if way == "disk":
        X = features.make_rows(rows, columns)
        ingest(X, tmp_path / "rows.store", unlabelled=True, scale="none")
    found = features.measure(way, rows, columns, 60, tmp_path)
    assert found["error"] < 1e-3 and found["seconds"] > 0 <= found["memory"]
    assert (tmp_path / "work").exists() == (way == "disk")
