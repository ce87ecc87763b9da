"""The memory that a process may use: limits of the machine, control groups and shell."""

import resource
import subprocess
import sys

import numpy as np
import pytest
from fleet_programs import Gradient

from bigscreen.fleet.inline import Inline
from bigscreen.fleet.local import local_cluster
from bigscreen.fleet.memory import (
    allowed_memory,
    held_within,
    limit_of,
    machine_memory,
    usable_memory,
)
from bigscreen.fleet.shards import Shards

GIB = 2**30


def groups(root, lines, limits):
    """A file system whose control groups have these limits."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text("\n".join(lines) + "\n")
    for name, text in limits.items():
        file = root / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")


@pytest.mark.parametrize(
    ("lines", "limits", "found"),
    [
        (["0::/a/b"], {"a/b/memory.max": "max", "a/memory.max": GIB}, GIB),
        (["0::/a/b"], {"a/b/memory.max": GIB // 2, "a/memory.max": GIB}, GIB // 2),
        (["0::/a/b"], {"a/b/memory.max": "max", "a/b/memory.high": GIB}, GIB),
        # Within a container: the group's own path is one of the machine outside.
        (["0::/docker/x"], {"memory.max": GIB}, GIB),
        (["0::/"], {"memory.max": "max"}, None),
        (
            ["9:cpu:/", "4:memory,hugetlb:/a/b"],
            {
                "memory/a/b/memory.limit_in_bytes": 9223372036854771712,
                "memory/a/memory.limit_in_bytes": GIB,
            },
            GIB,
        ),
        (["4:memory:/docker/x"], {"memory/memory.limit_in_bytes": GIB // 4}, GIB // 4),
        (["4:memory:/a", "0::/a"], {"memory/a/memory.limit_in_bytes": "nothing"}, None),
    ],
)
def test_limits_of_control_groups(tmp_path, lines, limits, found):
    groups(tmp_path, lines, limits)
    physical = machine_memory(tmp_path / "no file system")
    assert machine_memory(tmp_path) == (found or physical)


LIMITED = """
import resource, sys
import numpy as np
from bigscreen.fleet.memory import usable_memory, machine_memory
free, most = usable_memory(), machine_memory()
assert free == most, (free, most)
resource.setrlimit(getattr(resource, sys.argv[1]), (2**30, 2**30))
some = usable_memory()
assert 0 < some < 2**30, some
held = np.ones(2**25)
# What is held already is not taken from it twice.
assert abs(usable_memory() - some) < 2**24, (usable_memory(), some)
"""


@pytest.mark.parametrize("kind", ["RLIMIT_AS", "RLIMIT_DATA"])
def test_limits_of_the_shell(kind):
    code = LIMITED.replace("free == most", "free <= most")
    ran = subprocess.run([sys.executable, "-c", code, kind], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(
    ("kind", "mib", "flag"),
    [("RLIMIT_AS", 400, "-v"), ("RLIMIT_AS", 700, "-v"), ("RLIMIT_DATA", 100, "-d")],
)
def test_a_shell_that_leaves_no_room_is_told_so(kind, mib, flag):
    """BLAS hangs while it is loaded, deaf to signals; threads cannot be started."""
    limit = mib << 20
    ran = subprocess.run(
        [
            sys.executable,
            "-c",
            "from bigscreen.cli import main; main(prog_name='bigscreen')",
            "info",
            "nothing",
        ],
        preexec_fn=lambda: resource.setrlimit(getattr(resource, kind), (limit, limit)),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 2 and ran.stdout == ""
    (sentence,) = ran.stderr.splitlines()
    assert sentence.startswith(f"error: a process may have {mib} MiB here (`ulimit {flag}`)")


def test_a_job_takes_a_part_of_what_its_process_may_use():
    assert allowed_memory() == int(0.8 * usable_memory()) and allowed_memory(GIB) == GIB


def test_the_limit_of_a_worker_and_what_it_may_hold():
    for held in (2**20, 400 * 2**20, 2**35):
        assert 0 <= held - held_within(limit_of(held)) <= 2
    assert held_within(2**20) == 0


def test_a_fleet_reports_the_least_memory_of_its_workers():
    with Inline(1) as fleet:
        assert fleet.worker_memory is None
    with local_cluster(1, limit_of(700 * 2**20)) as fleet:
        assert fleet.worker_memory == pytest.approx(700 * 2**20, abs=2)


class Keeping(Gradient):
    """A program that keeps a row of numbers in each shard, and reads them anew without it."""

    rows = 4 * 2**20

    def kept_bytes(self, shard):
        return self.rows

    def lean(self):
        return Lean(*self.given) if hasattr(self, "given") else Lean()

    def give_up(self, state):
        return 0 if state.pop("rows", None) is None else self.rows

    def open(self, shard):
        return {"rows": np.ones(self.rows // 8), "shard": shard}

    def load(self, shard, arrays):
        return {**self.open(shard), **arrays}


class Lean(Keeping):
    """A program that keeps no rows between rounds."""

    def open(self, shard):
        return {"shard": shard}


def test_rows_are_kept_as_far_as_a_process_has_room():
    resident = [0]
    room = Shards(1, most=10 * 2**20, resident=lambda: resident[0])
    program = Keeping.__new__(Keeping)
    room.restore(program, [0, 1], None)
    resident[0] = 8 * 2**20  # these two
    room.restore(program, [2], None)
    room.take(program, 3, {"more": np.ones(1)})
    assert [shard for shard, state in room.states.items() if "rows" in state] == [0, 1]
    room.relieve(program)  # no more than it may hold
    assert "rows" in room.states[0] and "rows" in room.states[1]
    resident[0] = 13 * 2**20
    room.relieve(program)
    assert "rows" in room.states[0] and "rows" not in room.states[1]
    resident[0] = 2**30
    room.relieve(program)
    assert not any("rows" in state for state in room.states.values())
    free = Shards(1)
    free.restore(program, [0], None)
    free.relieve(program)
    assert "rows" in free.states[0]
