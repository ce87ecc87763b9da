"""`bigscreen cluster-check` finds what would stop a fit, on real workers."""

import json
import time

import pytest
from cli_world import World, bigscreen, succeed, world
from cluster_processes import processes

__all__ = ["world"]  # a fixture


def checked(address, folder, *more):
    """Run the command; return output, exit code, and the workers of the record."""
    out = folder / "check.json"
    result = bigscreen("cluster-check", *more, "--scheduler", address, "--json", out)
    workers = json.loads(out.read_text())["workers"] if out.exists() else None
    return " ".join(result.output.split()), result.exit_code, workers


@pytest.mark.slow
def test_workers_that_can_take_part_and_one_that_cannot(world: World, tmp_path):
    # A package of the same name and another version.
    other = tmp_path / "other" / "numba-9.9.9.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: numba\nVersion: 9.9.9\n")
    (tmp_path / "work").mkdir()
    with processes(ports=(0, 0)) as fleet:
        said, code, workers = checked(
            fleet.address, tmp_path, world.store, "--work", tmp_path / "work"
        )
        assert code == 0 and "all 2 workers can take part" in said, said
        assert [worker["faults"] for worker in workers] == [[], []]
        facts = workers[0]["facts"]
        assert facts["threads"] == 1 and facts["cores"] >= 1 and facts["computes"]
        assert 0 < facts["memory_free"] <= facts["memory"] and abs(facts["clock"]) < 1
        assert facts["pid"] in [process.pid for process in fleet.processes]
        unset = [r for r in workers[0]["remarks"] if "MALLOC_TRIM_THRESHOLD_" in r]
        assert unset, "these workers were started without the settings that cluster/ has"
        assert list((tmp_path / "work").iterdir()) == []
        said, code, workers = checked(
            fleet.address, tmp_path, world.store, "--work", tmp_path / "not" / "yet"
        )
        assert code == 0 and not (tmp_path / "not").exists(), said  # a fit makes it
        said, code, workers = checked(
            fleet.address, tmp_path, world.store, "--work", "/proc/nowhere"
        )
        assert code == 2 and "could not take part" in said and "cannot write to" in said
        fleet.add(path=[tmp_path / "other"])
        deadline = time.monotonic() + 60
        while len(workers) < 3:
            assert time.monotonic() < deadline
            said, code, workers = checked(fleet.address, tmp_path)
        assert code == 2 and "1 of 3 workers could not take part" in said
        assert "numba 9.9.9 where this process has" in said


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--scheduler-timeout", "2s"), "no Dask scheduler answers"),
        (("--tls-ca", "ca.pem"), "is for a --scheduler of the form tls://"),
        (("nowhere.store",), "nowhere.store"),
    ],
)
def test_no_cluster_to_check(tmp_path, more, words):
    said, code, workers = checked("tcp://127.0.0.1:9", tmp_path, *more)
    assert code == 2 and words in said and workers is None


def test_the_help_names_the_example():
    assert "bigscreen cluster-check train.store" in succeed("cluster-check", "--help")
