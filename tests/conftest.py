"""What every test needs of its process."""

import signal

import numpy as np
import pytest

# Started in the background without job control, a process ignores SIGINT and so do its children:
# the tests that press Ctrl-C on real processes would wait in vain.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def same_draws():
    """Landmarks that nobody seeds come from numpy's own state: the same in every run of a test."""
    np.random.seed(0)  # noqa: NPY002 (whose state it is)
