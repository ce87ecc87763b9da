"""After `bigscreen warmup`, the usual fits compile nothing."""

import gc
import json
import warnings

import numpy as np
import pytest
from scipy.sparse import csr_array

from bigscreen import SVC, LinearSVC, NystroemSVC
from tests.support.cli_world import succeed


def compiled() -> dict[str, int]:
    """Count the compiled versions of every function in this process."""
    found = [each for each in gc.get_objects() if type(each).__name__ == "CPUDispatcher"]
    own = [each for each in found if each.__module__.startswith("bigscreen.")]
    return {f"{each.__module__}.{each.__qualname__}": len(each.overloads) for each in own}


@pytest.mark.slow
@pytest.mark.parametrize("form", [np.asarray, csr_array])
def test_nothing_is_left_to_compile(form, tmp_path):
    told = succeed("warmup", "--json", tmp_path / "w.json")
    assert "exact" in json.loads((tmp_path / "w.json").read_text())["seconds"]
    assert "landmarks" in told and "exact" in told
    before = compiled()
    rng = np.random.default_rng(3)
    X = rng.normal(size=(200, 4))
    y = (X[:, 0] > 0).astype(int)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for machine in (SVC(), LinearSVC(), NystroemSVC(n_components=10)):
            machine.fit(form(X), y).predict(form(X[:5]))
    assert before and compiled() == before
