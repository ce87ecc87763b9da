"""A certificate on screen begins with what a person asks: how near the best the model is."""

import numpy as np
import pytest

from bigscreen.data.memory import MemoryDataset
from bigscreen.fleet.inline import Inline
from bigscreen.options.train import TrainOptions
from bigscreen.report.certificate import describe_distance, facts, fit_record, warnings
from bigscreen.train.run import train


@pytest.mark.parametrize(
    ("gap", "said"),
    [
        (6e-4, "within 0.06 % of the best possible objective"),
        (0.5, "within 100 % of the best possible objective"),
        (-1.6e-16, "within 2e-07 % of the best possible objective"),  # (P and D but for rounding)
        (1.5, "nothing near the best possible objective"),
    ],
)
def test_the_distance_from_the_best_objective_is_in_percent(gap, said):
    part = {"primal": -2.0, "rounding_bound": 4e-9}
    assert describe_distance({"relative_gap": gap, "certificates": [part]}) == said


def test_targets_that_are_fitted_without_error_leave_a_distance_that_is_absolute():
    """P is 0 but for rounding: no gap is relative to it."""
    X = np.random.default_rng(0).normal(size=(50, 2))
    data = MemoryDataset(X, np.full(50, 3.0), None)
    options = TrainOptions(problem="lad", kernel="linear", intercept="true", screening="none")
    with Inline(1) as fleet, pytest.warns(match="P is 0 but for rounding"):
        record = fit_record(train(data, options, fleet))
    assert abs(record["primal"]) <= record["rounding_bound"] < 1e-10
    (said,) = warnings(record)
    assert said.startswith("no relative gap is proved: P is 0 but for rounding")
    assert "at most" in said and "above the best possible objective" in facts(record)["proved"]
