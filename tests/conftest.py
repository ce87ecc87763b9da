"""What every test needs of its process."""

import signal
import tempfile
from dataclasses import replace

import numpy as np
import pytest

from bigscreen.fit import monitor

# Started in the background without job control, a process ignores SIGINT and so do its children:
# the tests that press Ctrl-C on real processes would wait in vain.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def same_draws():
    """Landmarks without a seed come from numpy's own state: the same in every run of a test."""
    np.random.seed(0)  # noqa: NPY002 (whose state it is)


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The folder to which this process writes temporary files."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def checkpoint_every(monkeypatch):
    """A function that sets how many seconds lie between the checkpoints of all later fits."""

    def every(seconds):
        tuning = replace(monitor.MONITOR, checkpoint_seconds=seconds)
        monkeypatch.setattr(monitor, "MONITOR", tuning)

    return every
