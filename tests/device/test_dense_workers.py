"""The textbook Newton on worker processes: any number of them, and a death, change no bit."""

import os
import signal
from dataclasses import replace

import pytest
from newton_world import feature_world

from bigscreen.data.writer import DatasetWriter
from bigscreen.device.newton import DENSE, DenseNewton
from bigscreen.fit.loop import fit
from bigscreen.fit.monitor import Limits
from bigscreen.fleet.inline import Inline
from bigscreen.fleet.local import local_cluster
from bigscreen.solvers.protocol import Case, Run

SOLVER = DenseNewton(1e-4, tuning=replace(DENSE, shard_entries=1, max_shards=3))


def stored(data, folder):
    writer = DatasetWriter(folder, data.layout, None)
    for k in range(writer.n_chunks):
        a, b = writer.chunk(k)
        writer.write(k, data.X(a, b), data.y(a, b), data.weights(a, b))
    return writer.finish()


class Killer:
    """A report that kills one worker with SIGKILL at the third pass."""

    def __init__(self, fleet):
        self.fleet, self.killed = fleet, False

    def __call__(self, event):
        if event["event"] == "pass" and event["pass"] == 3 and not self.killed:
            os.kill(next(iter(self.fleet.each(process_id, range(2)))), signal.SIGKILL)
            self.killed = True


def process_id(_):
    return os.getpid()


@pytest.mark.slow
def test_workers_and_a_death_change_no_bit(tmp_path):
    world = feature_world("c-svc true", "rbf", 1, n=300)
    design = replace(world.design, data=stored(world.design.data, tmp_path / "rows.store"))

    def solve(fleet, report=lambda event: None):
        # (There is room for the rows, and features are computed in every pass.)
        run = Run(design, world.problem, fleet, spare=30_000, resident=0.0)
        end = fit(run, SOLVER, Limits(1e-4, 100), report=report)
        return end.point.to_dict(), end.certificate.to_dict(), len(end.history)

    def solve_two(fleet):
        run = Run(design, world.problem, fleet, spare=2**30)
        cases = [Case(world.problem.at(C), design.data) for C in (0.1, 1.0)]
        return [point.to_dict() for point in SOLVER.solve_many(run, cases, None)]

    found, many = [], []
    for threads in (1, 3):
        with Inline(threads) as fleet:
            found.append(solve(fleet))
            many.append(solve_two(fleet))
    with local_cluster(2) as fleet:
        killer = Killer(fleet)
        found.append(solve(fleet, killer))
        many.append(solve_two(fleet))
    assert killer.killed and found[0][2] > 5
    assert all(other == found[0] for other in found) and many[0] == many[1] == many[2]
