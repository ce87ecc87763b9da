"""The scripts of `pipelines.scale` run at tiny sizes."""

import pytest

from pipelines.bench import common
from pipelines.scale import plan, processes, rounds, scaling


@pytest.mark.slow
def test_plan_beside_measured(tmp_path):
    case = plan.CASES["18 columns, linear"]._replace(n=2000)
    found = plan.one(case, tmp_path, 6, 1.0)
    assert found["rows"] == 2000 and found["features"] == "raw"
    assert found["planned_bytes"] < 2 * found["peak_bytes"]
    assert found["seconds"] > 0


@pytest.mark.slow
def test_ingest_beside_pyarrow(tmp_path):
    pytest.importorskip("pyarrow")
    from pipelines.scale import ingest

    found = ingest.timed(tmp_path, 500)
    assert {*ingest.ASKED, "read rows.npy", "ingest rows.npy on one thread"} < set(found)
    assert all(size > 0 for size, *_ in found.values())


def test_reference_passes_grow_with_the_rows():
    assert 0 < common.reference(4096, 4, 8, most=4096)
    one = common.reference(10**9, 4, 8, most=4096)
    assert one > common.reference(4096, 4, 8, most=4096)


@pytest.mark.slow
def test_scaling_measures_and_predicts(tmp_path):
    pytest.importorskip("matplotlib")
    found = scaling.measured(tmp_path, [1, 3], 3000, 400)
    assert found["same_bits"]
    fits = {(fit["kind"], fit["way"], fit["workers"]): fit for fit in found["fits"]}
    assert len(fits) == 8
    each, shared = (fits["strong", way, 3] for way in scaling.WAYS)
    assert shared["rounds_shared"] > 0 and each["rounds_shared"] == 0
    assert shared["bytes_received"] < each["bytes_received"]
    many = [guess[1000]["network"] for guess in found["predicted"].values()]
    assert many[1] < many[0]
    assert len(scaling.plot(found).axes) == 2


@pytest.mark.slow
def test_rounds_of_hosts_and_futures(tmp_path):
    (found,) = rounds.measured(tmp_path, [3], 2).values()
    assert set(found) == {
        *(f"{who}, {what}" for who in ("hosts", "futures") for what in ("a vector", "a matrix")),
        "hosts, a matrix, shared",
    }
    assert all(kind["wall_ms"] > 0 for kind in found.values())


@pytest.mark.slow
def test_processes_beside_their_plan(tmp_path):
    case = processes.CASES["1,000,000 rows, linear"]._replace(n=3000)
    found = processes.one(case, tmp_path, 1.0)
    assert found["rows"] == 3000 and found["within"] and found["killed"] == 0
    assert min(found["planned"]) > 0 and min(found["peaks"]) > 0
