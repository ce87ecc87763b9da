"""The metrics by which a search can judge its candidates, by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

RARE_FRACTION = 0.4
"""A label is rare if it has less than this fraction of the rows that it would have if all labels
were equally frequent: of two labels, less than a fifth of the rows."""


def rare_labels(counts: Sequence[int]) -> list[int]:
    """Return the positions of rare labels (`RARE_FRACTION`); ``counts``: rows of each label."""
    most = RARE_FRACTION * sum(counts) / max(len(counts), 1)
    return [k for k, count in enumerate(counts) if count < most]


class Metric(NamedTuple):
    """A metric of a search.

    ``shown``: its name on screen; ``scorer``: its name among scikit-learn's scorers, for two labels
    or targets; ``many``: its name there for more labels, None if it is for two labels only;
    ``targets``: whether it is of targets, not of labels.
    """

    shown: str
    scorer: str
    many: str | None = None
    targets: bool = False


METRICS = {
    "accuracy": Metric("accuracy", "accuracy", "accuracy"),
    "balanced-accuracy": Metric("balanced accuracy", "balanced_accuracy", "balanced_accuracy"),
    "auc": Metric("AUC", "roc_auc"),
    "average-precision": Metric("average precision", "average_precision"),
    "f1": Metric("f1", "f1", "f1_macro"),
    "r2": Metric("R2", "r2", targets=True),
    "mae": Metric("negated mae", "neg_mean_absolute_error", targets=True),
}
"""The metrics of a search by name.

Log loss is not among them: it is of probabilities, which come from folds of the final fit, and the
folds of a search have decision values only.
"""
