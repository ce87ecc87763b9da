"""The metric of a search: what its candidates are judged by on the rows held out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bigscreen.data.rows import Rows
from bigscreen.errors import InputError
from bigscreen.options.metrics import METRICS, rare_labels
from bigscreen.path.scoring import SCORINGS, Scoring


def default_metric(data: Rows) -> tuple[str, str]:
    """Return the name of the metric that suits the rows, and a sentence that says why, or "".

    It is balanced accuracy if a label is rare (`RARE_FRACTION`): the label that is predicted for
    every row then has a high accuracy.
    """
    if data.regression:
        return "r2", ""
    counts = data.label_counts
    rows, k = int(np.sum(counts)), int(np.argmin(counts))
    if not rare_labels(counts.tolist()):
        return "accuracy", ""
    return "balanced-accuracy", (
        f"{counts[k] / rows:.2g} of the rows have the label {data.labels[k]}, so candidates are "
        "judged by balanced accuracy, the mean over labels of the share of their rows that are "
        "predicted rightly (--metric accuracy: the share of all rows)"
    )


def find_scoring(
    asked: str | Callable[..., float] | None, data: Rows, problem: str
) -> tuple[str, Scoring]:
    """Return the name on screen of a search's metric, and how it scores held-out rows.

    Parameters
    ----------
    asked : str, callable or None
        A name of `METRICS`, or of one of scikit-learn's scorers, or such a scorer. None: the score
        of the problem.
    data : Rows
    problem : str

    Raises
    ------
    InputError
        If there is no such metric, or it cannot judge these rows.
    """
    if asked is None:
        return SCORINGS[problem], SCORINGS[problem]
    if asked in ("log-loss", "neg_log_loss"):
        raise InputError(
            "the log loss is of probabilities, and the folds of a search have scores alone; search "
            "by auc or average-precision, and fit the best with probabilities"
        )
    known = METRICS.get(asked) if isinstance(asked, str) else None
    if known is not None and known.targets != data.regression:
        has, of = ("targets", "labels") if data.regression else ("labels", "targets")
        raise InputError(f"{asked} is of {of}, and these rows have {has}")
    many = len(data.labels) > 2
    if known is not None and many and known.many is None:
        raise InputError(
            f"{asked} is of two labels, and these rows have {len(data.labels)}; use "
            "balanced-accuracy or f1, the mean over labels"
        )
    if known is not None and known.shown in SCORINGS.values():
        return known.shown, known.shown
    # Imported only here: to import scikit-learn takes as long as a small search.
    from bigscreen.train.metrics import HeldOutScorer

    scorer: Any = asked if known is None else known.many if many else known.scorer
    made = HeldOutScorer(scorer, None if data.regression else data.labels)
    return made.name if known is None else known.shown, made
