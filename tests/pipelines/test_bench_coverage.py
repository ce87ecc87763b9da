"""Label sets contain the true label as often as promised, for good and bad machines."""

import pytest

from pipelines.bench import coverage


@pytest.mark.slow
@pytest.mark.parametrize("name", ["collapsed", "collapsed, tol 1e-5", "tiny", "three labels"])
def test_sets_cover_what_they_promise(name):
    found = coverage.judged(name, 1)
    overall, by_label = coverage.off(found)
    # One draw of 700 rows of a label leaves a standard error of 1.5 % at .2.
    assert overall <= 0.03 and by_label <= 0.05
    assert found["probability"] == pytest.approx(found["share"], abs=0.03)
