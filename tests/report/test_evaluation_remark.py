"""An evaluation warns of a model that is no better than a constant."""

import pytest

from bigscreen.report.evaluation import remark


def classified(confusion, balanced):
    labels = list(confusion)
    table = {true: dict(zip(labels, row, strict=True)) for true, row in confusion.items()}
    return {"confusion": table, "balanced_accuracy": balanced}


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (classified({"no": [95, 0], "yes": [5, 0]}, 0.5), "every row is predicted to be no"),
        (classified({"no": [94, 1], "yes": [5, 0]}, 0.495), "to call every row no is right"),
        (classified({"no": [60, 35], "yes": [1, 4]}, 0.72), None),  # balanced, and of use
        (classified({"no": [90, 5], "yes": [1, 4]}, 0.87), None),
        (classified({"no": [95, 0], "yes": [0, 0]}, 1.0), None),  # there is one label only
        ({"r2": -0.01}, "the mean of the targets"),
        ({"r2": -0.5, "pinball": 0.2}, None),  # of the ninth tenth, say
        ({"r2": 0.4}, None),
        ({"outside": 0.1}, None),
    ],
)
def test_a_model_no_better_than_a_constant_is_named(record, said):
    found = remark(record)
    assert (found is None) if said is None else found.startswith(said) and "gamma" in found


MISSED = classified({"no": [940, 10], "yes": [40, 10]}, 0.6)


def test_a_rare_label_that_is_missed_is_named():
    """At 20 % of two labels, or half of its rows found, it is not."""
    said = "10 of the 50 rows of the rare label yes are found: fit with --class-weight balanced"
    assert remark(MISSED).startswith(said)
    weighted = remark(MISSED, weighted=True)
    assert "are found: try another gamma" in weighted and "balanced" not in weighted
    assert remark(classified({"no": [940, 10], "yes": [25, 25]}, 0.74)) is None
    assert remark(classified({"no": [790, 10], "yes": [150, 50]}, 0.62)) is None
    three = {"a": [480, 0, 0], "b": [10, 470, 0], "c": [30, 0, 10]}
    assert remark(classified(three, 0.7)).startswith("10 of the 40 rows of the rare label c")
    never = classified({"no": [95, 0], "yes": [5, 0]}, 0.5)
    assert "balanced" not in remark(never, weighted=True)


def test_a_sample_is_named_as_such():
    seen = {"r2": -0.01, "rows": 5000, "unlabelled": 0}
    assert remark(seen, 5000).startswith("the mean of the targets")
    assert remark(seen, 80000).startswith("on 5,000 sampled rows, the mean of the targets")
