"""The scripts of `pipelines.scale` run at tiny sizes."""

import json
from collections import Counter

import numpy as np
import pytest

from pipelines.bench import common
from pipelines.scale import model, plan, processes, rounds, scaling, shards


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


def make_requests(shards, **counts):
    """Return the requests of a fit of 1,000 rows on 10 landmarks."""
    return model.Requests(1000, 10, shards, Counter(counts))


def test_costs_are_found_with_errors_and_what_data_cannot_tell_is_left_out():
    rng = np.random.default_rng(0)
    units = [{"a": a, "b": b, "same": 2 * b, "none": 1} for a in (1, 4, 9) for b in (1, 2, 5, 7)]
    spent = [(0.5 * u["a"] + 3.0 * u["b"]) * rng.normal(1, 1e-3) for u in units]
    found = model.Costs.of(units, spent)
    assert len(found.names) == 2 and "a" in found.names and "none" not in found.names
    at = found.names.index("a")
    assert abs(found.seconds[at] - 0.5) < 4 * found.errors[at] < 0.01
    assert found.total({"a": 2, "b": 1, "same": 2}) == pytest.approx(4, rel=1e-2)
    assert 0 < found.variance({"a": 2, "b": 1, "same": 2}) < 1e-3


def test_units_grow_with_workers_that_have_shards_alone():
    requests = make_requests(
        5, **{"rounds": 10, "starts": 2, "vector bytes": 100, "total bytes": 70, "large rounds": 1}
    )
    few, many = requests.units(4, False), requests.units(100, False)
    assert few["rounds"]["call"] == 40 and many["rounds"]["call"] == 50
    assert few["rounds"]["byte"] == 100 + 4 * 70 and many["rounds"]["byte"] == 100 + 5 * 70
    assert many["starts"]["host begun"] == 200
    shared = requests.units(4, True)["rounds"]
    assert shared["byte"] == 170 and shared["call"] == 44
    assert requests.with_shards(2).units(100, False)["rounds"]["call"] == 100


def test_steps_of_shards_fall_in_stairs_and_calls_limit_the_workers():
    costs = {
        who: model.Costs([name], np.array([each]), np.zeros((1, 1)), 0.0)
        for who, name, each in (
            ("workers", "step of a shard", 1.0),
            ("starts", "start", 0.0),
            ("rounds", "call", 0.1),
            ("algebra", "fit", 2.0),
            ("tasks", "task", 0.0),
            ("scheduler", "task", 0.0),
        )
    }
    of, requests = model.Model(costs, 0.0), make_requests(8, rounds=10)
    seconds = {w: of.seconds(requests, w)[0] for w in (1, 4, 5, 7, 8, 1000)}
    assert seconds[1] == pytest.approx(80 + 1 + 2)
    assert seconds[4] == pytest.approx(20 + 4 + 2)
    assert seconds[5] > seconds[4] and seconds[7] > seconds[4]  # two shards on some worker, still
    assert seconds[8] == seconds[1000] == pytest.approx(10 + 8 + 2)
    assert of.most_useful(requests)["fastest"] == 8
    assert of.seconds(requests, 8, relayed=4)[0] == pytest.approx(10 + 10 * 0.1 * (2 + 4) + 2)
    assert of.seconds(requests.with_shards(2), 16)[0] == pytest.approx(10 + 16 + 2)


@pytest.mark.slow
def test_scaling_measures_and_predicts(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(scaling, "SHAPES", ((6000, 300),))
    found = scaling.measure(tmp_path, [1, 3], [3000, 6000], [300])
    assert scaling.have_same_bits(found["fits"])
    unseen = [fit for fit in found["fits"] if not fit["seen"]]
    assert len(found["fits"]) == 2 * 4 + 2 + 3 and len(unseen) == 3
    each, shared = (fit["requests"].units(3, fit["shared"]) for fit in unseen[1:])
    assert shared["rounds"]["byte"] < each["rounds"]["byte"]
    (requests, spent) = found["targets"][0]
    inline = [f["requests"] for f in found["fits"] if f["requests"].rows == 6000]
    same = [r for r in inline if r.landmarks == 300 and r.shards == requests.shards]
    assert spent > 0 and all(r == requests for r in same)  # counts do not depend on the fleet
    scaling.show(found)
    assert "1000" in capsys.readouterr().out
    assert json.loads(json.dumps(scaling.as_json(found)))["predicted"][0]["fastest"] >= 1


def test_fits_in_smaller_shards_are_timed(tmp_path):
    (found,) = shards.measure(tmp_path, 3000, 1, (20,)).values()
    assert list(found) == [256, 64] and all(seconds > 0 for seconds in found.values())


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
