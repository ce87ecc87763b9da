"""A certificate on screen begins with what a person asks: how near the best the model is."""

import pytest

from bigscreen.report.certificate import describe_distance


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
