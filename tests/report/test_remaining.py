"""The time left: ranges that hold what came, or nothing."""

import json
import math
import time

import numpy as np
import pytest

from bigscreen.report import remaining as of
from bigscreen.report.journal import Journal
from bigscreen.report.remaining import TimeLeft, in_words, remaining

A9A = """
    0.0 9.21; 2.7 9.17; 4.9 9.15; 6.3 9.11; 8.0 9.07; 9.4 9.05; 10.4 9.02; 11.4 8.96;
    12.4 8.99; 13.3 8.96; 14.5 8.90; 15.3 8.85; 15.8 8.77; 16.3 8.65; 16.9 8.60; 18.8 8.55;
    20.7 8.45; 22.4 8.37; 24.8 8.18; 27.1 7.90; 30.0 7.67; 31.1 7.33; 35.5 5.68; 38.3 4.28;
    39.5 2.98; 40.8 1.00; 49.9 0.00
"""
"""Seconds and log(gap / tol) of every pass of an exact machine; it took 54.9 s in all."""

IJCNN = """
    0.0 9.37; 3.6 9.32; 4.9 9.30; 5.4 9.26; 6.0 9.24; 6.4 9.22; 6.7 9.21; 7.0 9.18; 7.4 9.16;
    7.7 9.13; 8.3 9.10; 8.6 9.09; 8.9 9.06; 9.1 9.02; 9.5 8.97; 9.7 8.93; 10.2 8.91;
    10.6 8.89; 10.9 8.85; 11.3 8.79; 11.6 8.72; 12.0 8.65; 12.4 8.59; 12.7 8.57; 13.3 8.49;
    13.8 8.34; 14.2 8.25; 14.6 8.07; 15.4 7.95; 16.0 7.38; 16.8 6.61; 17.2 5.89; 17.6 4.88;
    18.0 4.06; 18.4 2.78; 18.7 0.92; 18.9 0.00
"""
"""The same of another, 20.2 s."""


def said(records, end):
    """Whether each range that is shown holds what was left; how many records have one."""
    ranges = [(remaining(records[: k + 1]), end - records[k][0]) for k in range(len(records))]
    return [low <= left <= high for (low, high), left in ((r, t) for r, t in ranges if r)]


def test_of_recorded_fits():
    found = []
    for history, end in ((A9A, 54.9), (IJCNN, 20.2)):
        records = [tuple(map(float, pair.split())) for pair in history.split(";")]
        found += said(records, end)
    assert len(found) >= 12 and np.mean(found) >= 0.8


def test_of_even_work():
    rng = np.random.default_rng(0)
    times = np.cumsum(rng.uniform(0.5, 1.5, 100)) * 3
    found = said([(t, 100.0 - k) for k, t in enumerate(times, start=1)], times[-1])
    assert len(found) >= 80 and np.mean(found) >= 0.95


def test_of_gaps_that_fall_ever_faster():
    times = np.arange(0.0, 300.0)
    found = said([(t, 7.0 - 0.1 * math.exp(t / 70)) for t in times], 70 * math.log(70))
    assert len(found) >= 100 and np.mean(found) >= 0.95


def test_nothing_is_said_without_evidence():
    few = [(float(t), 100.0 - t) for t in range(7)]
    assert remaining(few) is None and remaining([]) is None
    still = [(float(t), max(50.0, 100.0 - 5 * t)) for t in range(60)]
    assert remaining(still) is None
    slower = [(float(t), 100 / (1.0 + t)) for t in range(60)]
    assert remaining(slower) is None, "who can say when it comes to 0"
    done = [(float(t), 10.0 - t) for t in range(11)]
    assert remaining(done) is None
    assert remaining([(0.0, 9.0)] * 20) is None


def counted(clock, left, kind, number):
    clock[0] += 1
    return left({"event": kind, **number})


def test_events_that_count():
    clock = [0.0]
    left = TimeLeft(lambda: clock[0])
    found = [left({"event": "rung", "parts": 90})]
    for kind, number in (
        ("part", lambda k: {"rung": 0, "done": k}),
        ("progress", lambda k: {"phase": "features", "done": k, "total": 90}),
        ("point", lambda k: {"done": k, "total": 90}),
        ("ingest", lambda k: {"phase": "read", "bytes": k, "bytes_total": 90, "rows": 0}),
        ("ingest", lambda k: {"phase": "write", "rows": k, "rows_total": 90}),
    ):
        found = [counted(clock, left, kind, number(k)) for k in range(1, 61)]
        low, high = found[-1]
        assert found[5] is None and low < 30 < high
        assert counted(clock, left, kind, number(0)) is None, "it begins anew"
    assert left({"event": "ingest", "phase": "read", "bytes": 1, "bytes_total": 0}) is None
    assert left({"event": "phase", "phase": "solve"}) is None


@pytest.mark.parametrize("what", ["relative_gap", "violation"])
def test_events_of_passes(what):
    clock = [0.0]
    left = TimeLeft(lambda: clock[0])

    def passed(k, problems=1, most=10_000):
        gap = {"relative_gap": None, what: 10 ** (-k / 100)}
        return {"pass": k, **gap, "tol": 1e-3, "problems": problems, "max_iter": most}

    for _ in range(2):
        found = [counted(clock, left, "pass", passed(k)) for k in range(1, 202)]
        assert found[5] is None and found[-1][0] < 100 < found[-1][1]
    assert counted(clock, left, "pass", passed(202, problems=3)) is None
    found = [counted(clock, left, "pass", passed(k, most=250)) for k in range(1, 202)]
    assert found[-1][0] < 49 < found[-1][1] < 80, "it ends with the last pass that is allowed"
    for gap in (math.nan, 0.0, -1e-12):
        unknown = {"pass": 9, "relative_gap": gap, "tol": 1e-3, "problems": 1}
        assert counted(clock, left, "pass", unknown) is None


def test_long_histories_are_thinned():
    clock = [0.0]
    left = TimeLeft(lambda: clock[0])
    for k in range(1, 5001):
        found = counted(clock, left, "point", {"done": k, "total": 10_000})
    assert found[0] < 5000 < found[1]
    assert max(map(len, left._records.values())) <= of.MOST


def test_the_journal_has_it(tmp_path, monkeypatch):
    monkeypatch.setattr(of, "SHORTEST", 0.0)
    shown, log = [], tmp_path / "log.jsonl"
    with Journal(shown.append, "path", "p.bsp", str(log)) as tell:
        for k in range(1, 40):
            time.sleep(0.002)
            tell({"event": "point", "done": k, "total": 50})
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    low, high = lines[-2]["seconds_left"]
    assert 0 < low < high and shown[-1]["seconds_left"] == (low, high)
    assert "seconds_left" not in shown[0]


@pytest.mark.parametrize(
    ("left", "since", "words"),
    [
        (None, 0, ""),
        ((12.0, 31.0), 0, "10 to 35 s left"),
        ((2.0, 31.0), 0, "up to 35 s left"),
        ((130.0, 290.0), 0, "2 to 5 min left"),
        ((130.0, 290.0), 120, "up to 3 min left"),
        ((130.0, 290.0), 300, ""),
        ((7300.0, 20_000.0), 0, "2 to 6 h left"),
        ((4e6, 4e7), 0, "46 to 463 days left"),
    ],
)
def test_ranges_in_words(left, since, words):
    assert in_words(left, since) == words
