"""Figures of fits and evaluations, drawn into matplotlib axes, and conversion to SVG images."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def picture(draw: Callable[[Axes], None], width: float = 6.0, height: float = 3.8) -> str:
    """Draw a figure, and return it as a data URL of an SVG image.

    Parameters
    ----------
    draw : callable
        Receives the matplotlib axes to draw into.
    width, height : float
        Size in inches (72 points each).
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    # Equal records must make equal pages: no date, and fixed names inside the image.
    settings: Any = {"svg.fonttype": "none", "svg.hashsalt": "bigscreen", "font.size": 10}
    settings |= {"axes.spines.top": False, "axes.spines.right": False}
    with rc_context(settings):
        figure = Figure(figsize=(width, height), layout="constrained")
        draw(figure.add_subplot())
        file = io.BytesIO()
        figure.savefig(file, format="svg", metadata={"Date": None}, transparent=True)
    return f"data:image/svg+xml;base64,{base64.b64encode(file.getvalue()).decode()}"


# -- a fit -----------------------------------------------------------------------------------------
def gaps(ax: Axes, history: Sequence[Mapping[str, Any]], tol: float) -> None:
    """Draw the relative gap (or the KKT violation) at every check, one line for each score.

    ``history``: a fit's events, one for each check; ``tol``: the requested gap, drawn as a line.
    """
    unproved = any(event.get("violation") is not None for event in history)
    key = "violation" if unproved else "relative_gap"
    for label, events in _by_score(history).items():
        numbers = [float(event[key]) for event in events]
        # (The computed gap of a solved problem can be 0, or below by rounding.)
        least = min((number for number in numbers if number > 0), default=tol)
        shown = [max(number, least) for number in numbers]
        ax.plot([event["pass"] for event in events], shown, **_line(history, label))
    ax.axhline(tol, linestyle=":", color="0.5")
    ax.annotate("asked for", (1, tol), (0, 3), textcoords="offset points", color="0.4", fontsize=9)
    ax.set_yscale("log")
    ax.set_xlabel("pass")
    ax.set_ylabel("KKT violation" if unproved else "relative gap")
    _legend(ax, history)


def rows_open(ax: Axes, history: Sequence[Mapping[str, Any]]) -> None:
    """Draw the number of undecided rows at every check, and the rows that were read.

    ``history``: a fit's events, one for each check.
    """
    for label, events in _by_score(history).items():
        passes = [event["pass"] for event in events]
        ax.step(
            passes,
            [event["rows_alive"] for event in events],
            where="post",
            **_line(history, label),
        )
    several = len(_by_score(history)) > 1
    known = any("rows_read" in event for event in history)
    key = "rows_read" if known else "rows_visited"  # of older models, and other solvers
    read = [event[key] for event in history if key in event]
    if not several and len(read) == len(history):
        ax.plot([event["pass"] for event in history], read, "o", ms=4, label="read")
        ax.lines[0].set_label("open")
        ax.legend(frameon=False)
    ax.set_ylim(bottom=0)
    ax.set_xlabel("pass")
    ax.set_ylabel("rows")
    _legend(ax, history)


def statuses(ax: Axes, scores: Sequence[Mapping[str, Any]]) -> None:
    """Draw for every score the parts of its rows that are out, at their bound, or open.

    ``scores``: for each its label, its rows, and the number of rows of each status.
    """
    names = ["all" if part["label"] is None else str(part["label"]) for part in scores]
    left = np.zeros(len(scores))
    for key, colour in (("out", "tab:blue"), ("bound", "tab:orange"), ("open", "0.8")):
        shares = np.array([part[key] / max(1, part["rows"]) for part in scores])
        ax.barh(names, 100 * shares, left=100 * left, label=key, color=colour)
        left += shares
    ax.set_xlim(0, 100)
    ax.invert_yaxis()
    ax.set_xlabel("% of the rows")
    ax.legend(frameon=False, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0))


def _by_score(history: Sequence[Mapping[str, Any]]) -> dict[Any, list[Mapping[str, Any]]]:
    """Group the events by their score's label or pair of labels."""
    parts: dict[Any, list[Mapping[str, Any]]] = {}
    for event in history:
        label = event.get("class")
        parts.setdefault(str(label) if isinstance(label, list) else label, []).append(event)
    return parts


def _is_crowded(count: int, most: int = 12) -> bool:
    """Whether a figure has too many lines or labels to tell them apart."""
    return count > most


def _line(history: Sequence[Mapping[str, Any]], label: Any) -> dict[str, Any]:
    """Return the matplotlib style of a score's line: with a label, or faint if there are many."""
    if _is_crowded(len(_by_score(history))):
        return {"color": "tab:blue", "alpha": 0.4}
    return {"label": str(label), "marker": "."}


def _legend(ax: Axes, history: Sequence[Mapping[str, Any]]) -> None:
    """Add a legend of the scores, if there are several, but not too many."""
    lines = len(_by_score(history))
    if lines > 1 and not _is_crowded(lines):
        ax.legend(frameon=False, fontsize=8)


# -- an evaluation ---------------------------------------------------------------------------------
def roc(ax: Axes, curve: Mapping[str, Sequence[float]]) -> None:
    """Draw the ROC curve: recall of the positive label against the false positive rate.

    ``curve``: the result of `bigscreen.evaluate.curves.curve`.
    """
    ax.plot(curve["false_positive_rate"], curve["recall"])
    ax.plot([0, 1], [0, 1], linestyle=":", color="0.5")
    ax.set_xlabel("false positive rate")
    ax.set_ylabel("recall")
    ax.set_aspect("equal")


def precision_recall(ax: Axes, curve: Mapping[str, Sequence[float]], share: float) -> None:
    """Draw the precision-recall curve.

    Parameters
    ----------
    ax : matplotlib axes
    curve : mapping
        The result of `bigscreen.evaluate.curves.curve`.
    share : float
        The positive label's share of the rows: the precision of guessing.
    """
    ax.plot(curve["recall"], curve["precision"])
    ax.axhline(share, linestyle=":", color="0.5")
    ax.set_xlabel("recall")
    ax.set_ylabel("precision")
    ax.set_xlim(-0.02, 1.02)
    ax.set_ylim(-0.02, 1.02)


def reliability(ax: Axes, tenths: Sequence[Mapping[str, float]]) -> None:
    """Draw the share of rows that came true against the predicted probability.

    ``tenths``: for each tenth of the probability its rows' mean probability, and share.
    """
    ax.plot([0, 1], [0, 1], linestyle=":", color="0.5")
    said, came = ([part[key] for part in tenths] for key in ("probability", "share"))
    ax.plot(said, came, marker="o")
    ax.set_xlabel("probability")
    ax.set_ylabel("share that came true")
    ax.set_aspect("equal")


def histograms(ax: Axes, found: Mapping[str, Any], names: Sequence[str]) -> None:
    """Draw histograms of the scores of two groups of rows.

    ``found``: the result of `bigscreen.evaluate.curves.histogram`; ``names``: of the negative and
    the positive group.
    """
    edges = np.array(found["edges"])
    for name, key, colour in zip(
        names, ("negative", "positive"), ("tab:blue", "tab:orange"), strict=True
    ):
        ax.stairs(found[key], edges, fill=True, alpha=0.5, label=name, color=colour)
    ax.axvline(0, linestyle=":", color="0.5")
    ax.set_xlabel("score")
    ax.set_ylabel("rows")
    ax.legend(frameon=False)


def confusion(ax: Axes, counts: Mapping[str, Mapping[str, int]]) -> None:
    """Draw the confusion matrix; colours are shares of the true label's rows.

    ``counts``: rows by true label and by predicted label.
    """
    names = list(counts)
    cells = np.array([[counts[true][guess] for guess in names] for true in names], dtype=float)
    shares = cells / np.maximum(cells.sum(axis=1, keepdims=True), 1)
    ax.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    if not _is_crowded(len(names)):
        for (row, column), number in np.ndenumerate(cells):
            ink = "white" if shares[row, column] > 0.6 else "black"
            ax.text(column, row, f"{int(number):,}", ha="center", va="center", color=ink)
        ax.set_xticks(range(len(names)), names, rotation=45 if len(names) > 4 else 0)
        ax.set_yticks(range(len(names)), names)
    ax.set_xlabel("predicted")
    ax.set_ylabel("true")


def predicted(ax: Axes, found: Mapping[str, Any]) -> None:
    """Draw a 2-d histogram of targets and predictions, darker for more rows.

    ``found``: the entry "joint" in the result of `evaluate`: range low, high, and rows by bin.
    """
    low, high = found["low"], found["high"]
    counts = np.log1p(np.array(found["rows"], dtype=float))
    ax.imshow(counts, origin="lower", extent=(low, high, low, high), cmap="Blues", aspect="auto")
    ax.plot([low, high], [low, high], linestyle=":", color="0.5")
    ax.set_xlabel("target")
    ax.set_ylabel("prediction")
