"""The check that solvers call: what a checkpoint keeps of it."""

import json

import numpy as np
import pytest

from bigscreen.fit.monitor import Limits, Monitor
from bigscreen.problems.point import Certificate, Point, Reading


@pytest.mark.parametrize("alpha", [None, np.array([0.1, 1 / 3, 0.0])])
def test_a_resumed_fit_remembers_its_best_point(alpha, tmp_path):
    """If the budget ends with a worse pass than one before the checkpoint, that one counts."""
    stats = dict.fromkeys(("rows_alive", "rows_visited", "fixed_hi", "fixed_lo"), 0)
    stats["stalled"] = False
    readings = () if alpha is not None else (Reading(np.array([0.7]), 0.2, 0.3, 1 / 3),)
    good, bad = (
        Point(np.array([1 / 3]), np.array([1e-300]), 0.1, 1.0, dual, True, readings, alpha)
        for dual in (0.9, 0.5)
    )
    meta, closed = [], []

    def certify(p):
        closed.append(p)
        return Certificate(1.0, p.dual, p.gap, p.relative_gap, 0, "float32", 3, 3)

    def monitor(passes):
        limits = Limits(1e-3, passes)
        return Monitor(
            certify=certify, limits=limits, rule=None, report=lambda e: None, folder=tmp_path
        )

    before = monitor(9)
    for point in (good, bad):
        before.saved = -1e9
        assert before(point, stats, lambda folder, record: meta.append(json.dumps(record)))
    # The best point is the checkpoint's own point: no other is kept.
    assert json.loads(meta[0])["best"] is None
    after = monitor(2)
    after.restored(json.loads(meta[1]))
    assert after(bad, stats, None) is None
    (found,) = closed
    for name in vars(good).keys() - {"readings"}:
        np.testing.assert_array_equal(getattr(found, name), getattr(good, name))
    assert str(found.readings) == str(good.readings)


@pytest.mark.parametrize("better", [False, True])
def test_the_deadline_ends_a_solve_with_held_rows(better):
    """The fit ends with the present point, or with a better one before it."""
    closed = []

    def certify(point):
        closed.append(point)
        gap = 2.0 * point.gap
        return Certificate(1.0, 1.0 - gap, gap, gap, 0, "float32", 3, 3)

    zeros = np.zeros(1), np.zeros(1), 0.0
    before = Point(*zeros, 1.0, 0.75 if better else 0.1, False)
    held = Point(*zeros, 1.0, 0.6, False, held=True)
    stats = dict.fromkeys(("rows_alive", "rows_visited", "fixed_hi", "fixed_lo"), 0)
    stats["stalled"] = False
    monitor = Monitor(certify, Limits(1e-3), None, lambda event: None)
    assert monitor(before, stats, None) is not None
    assert monitor(held, stats, None) is not None  # far from the gap: not worth a closing pass
    assert not closed
    monitor.limits = Limits(1e-3, deadline=0.0)
    assert monitor(held, stats, None) is None
    assert monitor.ended == "time" and len(monitor.history) == 2
    assert [id(point) for point in closed] == [id(held)] + [id(before)] * better
    assert monitor.closings.point is (before if better else held)
