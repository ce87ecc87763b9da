"""Gauges of running jobs at a Dask scheduler, for Prometheus: its ``/metrics`` shows them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

GAUGES = {
    "bigscreen_pass": "Passes done of the problem that was last heard of",
    "bigscreen_relative_gap": "Its relative gap, as of the last pass",
    "bigscreen_rows_alive": "Its rows that no screening rule has removed",
}

_made: dict[str, Any] = {}
"""What this process, a scheduler, has registered."""


def show(run: str, values: Mapping[str, float]) -> bool:
    """Set the gauges of a run, in the scheduler; False where it has no ``prometheus_client``."""
    try:
        from prometheus_client import Gauge
    except ImportError:
        return False
    for name, value in values.items():
        if name not in _made:
            _made[name] = Gauge(name, GAUGES[name], ["run"])
        _made[name].labels(run).set(value)
    return True


def forget(run: str) -> None:
    """Take the gauges of a run away, in the scheduler."""
    for gauge in _made.values():
        with contextlib.suppress(KeyError):
            gauge.remove(run)
