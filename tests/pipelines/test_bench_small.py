"""The benchmark of small fits runs as documented."""

import numpy as np
import pytest
from scripts import script

from pipelines.bench import small


@pytest.mark.slow
def test_a_quick_run_prints_every_line() -> None:
    done = script("bench.small", "--quick", "--repeat", 1)
    assert done.returncode == 0, done.stderr
    _head, line = done.stdout.splitlines()
    assert line.startswith("200 rows") and float(line.split()[-1]) <= 1e-3


@pytest.mark.slow
def test_pairs_prints_every_line() -> None:
    done = script("bench.small", "--pairs", "--quick", "--repeat", 1)
    assert done.returncode == 0, done.stderr
    _head, line = done.stdout.splitlines()
    assert line.startswith("digits") and float(line.split()[-1]) <= 1e-3


def test_stand_ins_have_the_shapes_of_the_sets() -> None:
    shapes = {"letter": (4000, 16, 26, 15), "pendigits": (7494, 16, 10, 100)}
    for name, (n, d, classes, most) in {**shapes, "skin": (15000, 3, 2, 255)}.items():
        X, y = getattr(small, name)()
        assert X.shape == (n, d) and len(np.unique(y)) == classes
        assert X.min() >= 0 and X.max() <= most and np.array_equal(X, np.round(X))
