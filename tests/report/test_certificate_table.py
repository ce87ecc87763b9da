"""A certificate on screen begins with what a person asks: how near the best the model is."""

import pytest

from bigscreen.report.certificate import _distance


@pytest.mark.parametrize(
    ("gap", "said"),
    [
        (6e-4, "within 0.06 % of the best possible objective"),
        (0.5, "within 100 % of the best possible objective"),
        (-1e-9, "within 0 % of the best possible objective"),  # (rounding)
        (1.5, "nothing near the best possible objective"),
    ],
)
def test_the_distance_from_the_best_objective_is_in_percent(gap, said):
    assert _distance(gap) == said
