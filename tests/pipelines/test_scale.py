"""The scripts of scale run, at sizes that are nothing."""

import pytest

from pipelines.bench import common
from pipelines.scale import plan


def test_plan_beside_measured(tmp_path):
    case = plan.CASES["18 columns, linear"]._replace(n=2000)
    found = plan.one(case, tmp_path, 6, 1.0)
    assert found["rows"] == 2000 and found["features"] == "raw"
    assert found["planned_bytes"] < 2 * found["peak_bytes"]
    assert found["planned_seconds"] > 0 and found["seconds"] > 0


def test_ingest_beside_pyarrow(tmp_path):
    pytest.importorskip("pyarrow")
    from pipelines.scale import ingest

    found = ingest.timed(tmp_path, 500)
    assert {*ingest.ASKED, "read rows.npy", "ingest rows.npy"} < set(found)
    assert all(size > 0 for size, _ in found.values())


def test_reference_passes_grow_with_the_rows():
    assert 0 < common.reference(4096, 4, 8, most=4096)
    one = common.reference(10**9, 4, 8, most=4096)
    assert one > common.reference(4096, 4, 8, most=4096)
