"""If the output is no terminal, a line shows from time to time that the work goes on."""

import io
import time

import pytest
from rich.console import Console

from bigscreen.report import report
from bigscreen.report.path import PathBar
from bigscreen.report.tune import TuneReport

BEAT = 0.05
"""Seconds without another line after which a report prints one."""


def until(text, said, seconds=20):
    """Wait for a text to be printed; return whether it was."""
    end = time.monotonic() + seconds
    while said not in text.getvalue() and time.monotonic() < end:
        time.sleep(0.01)
    return said in text.getvalue()


@pytest.mark.parametrize("kind", [report.FitReport, TuneReport, PathBar])
def test_it_beats_where_nothing_else_is_said(kind):
    text = io.StringIO()
    with kind(Console(file=text), BEAT) as show:
        assert until(text, "... starting  after 0.")
        if kind is report.FitReport:
            show({"event": "phase", "phase": "features"})
            assert until(text, "... features  after")
    lines = len(text.getvalue().splitlines())
    time.sleep(0.2)
    assert len(text.getvalue().splitlines()) == lines, "it ends with the report"


def test_it_is_silent_on_a_terminal():
    text = io.StringIO()
    with report.FitReport(Console(file=text, force_terminal=True), BEAT):
        time.sleep(0.2)
    assert "... " not in text.getvalue()


def test_an_ingest_says_how_far_it_is(capfd):
    with report.IngestBar(BEAT) as show:
        show({"event": "ingest", "phase": "read", "rows": 1234, "bytes": 5, "bytes_total": 10})
        time.sleep(0.5)
    assert "... read  1,234 rows  after 0." in capfd.readouterr().err
