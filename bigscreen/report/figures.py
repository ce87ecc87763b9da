"""Figures of fits and evaluations, drawn into matplotlib axes, and any figure as a picture."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDE, TALL = 6.0, 3.8
MOST_LINES = 12
"""Lines of a figure that still can be told apart; of more, all are drawn in one colour."""


def picture(draw: Callable[[Axes], None], width: float = WIDE, height: float = TALL) -> str:
    """What `draw` puts into axes, as the SVG address of an image that needs no other file.

    Parameters
    ----------
    draw : callable
        Takes the matplotlib axes to draw into.
    width, height : float
        In inches of 72 points.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    # Equal records are equal pages: no date, and names inside the picture that do not change.
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
    """The relative gap (or the KKT violation) at every look of the solver, a line a score."""
    unproved = any(event.get("violation") is not None for event in history)
    key = "violation" if unproved else "relative_gap"
    for label, events in _by_score(history).items():
        numbers = [float(event[key]) for event in events]
        # A solved problem's computed gap can be 0, or less by rounding.
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
    """Rows that are not yet decided at every look of the solver, and rows that it has read."""
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
    key = "rows_read" if known else "rows_visited"  # of models of before, and other solvers
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
    """The part of the rows of every score that is proved out, proved at its bound, or open."""
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
    """The events of every label or pair that has a score of its own."""
    parts: dict[Any, list[Mapping[str, Any]]] = {}
    for event in history:
        label = event.get("class")
        parts.setdefault(str(label) if isinstance(label, list) else label, []).append(event)
    return parts


def _line(history: Sequence[Mapping[str, Any]], label: Any) -> dict[str, Any]:
    many = len(_by_score(history)) > MOST_LINES
    return {"color": "tab:blue", "alpha": 0.4} if many else {"label": str(label), "marker": "."}


def _legend(ax: Axes, history: Sequence[Mapping[str, Any]]) -> None:
    if 1 < len(_by_score(history)) <= MOST_LINES:
        ax.legend(frameon=False, fontsize=8)


# -- an evaluation ---------------------------------------------------------------------------------
def roc(ax: Axes, curve: Mapping[str, Sequence[float]]) -> None:
    """Rows of the positive label that are found, against the others that are taken for it."""
    ax.plot(curve["false_positive_rate"], curve["recall"])
    ax.plot([0, 1], [0, 1], linestyle=":", color="0.5")
    ax.set_xlabel("false positive rate")
    ax.set_ylabel("recall")
    ax.set_aspect("equal")


def precision_recall(ax: Axes, curve: Mapping[str, Sequence[float]], share: float) -> None:
    """The part of the rows found that are right, against the part that is found.

    Parameters
    ----------
    ax : matplotlib axes
    curve : mapping
        Of `bigscreen.evaluate.curves.curve`.
    share : float
        The positive label's part of the rows: the precision of a guess.
    """
    ax.plot(curve["recall"], curve["precision"])
    ax.axhline(share, linestyle=":", color="0.5")
    ax.set_xlabel("recall")
    ax.set_ylabel("precision")
    ax.set_xlim(-0.02, 1.02)
    ax.set_ylim(-0.02, 1.02)


def reliability(ax: Axes, tenths: Sequence[Mapping[str, float]]) -> None:
    """How often what was given a probability came true."""
    ax.plot([0, 1], [0, 1], linestyle=":", color="0.5")
    said, came = ([part[key] for part in tenths] for key in ("probability", "share"))
    ax.plot(said, came, marker="o")
    ax.set_xlabel("probability")
    ax.set_ylabel("share that came true")
    ax.set_aspect("equal")


def histograms(ax: Axes, found: Mapping[str, Any], names: Sequence[str]) -> None:
    """How the scores of two groups of rows are spread, each group's area being its rows."""
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
    """Rows by true and by predicted label; colours are shares of the true label's rows."""
    names = list(counts)
    cells = np.array([[counts[true][guess] for guess in names] for true in names], dtype=float)
    shares = cells / np.maximum(cells.sum(axis=1, keepdims=True), 1)
    ax.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    if len(names) <= MOST_LINES:
        for (row, column), number in np.ndenumerate(cells):
            ink = "white" if shares[row, column] > 0.6 else "black"
            ax.text(column, row, f"{int(number):,}", ha="center", va="center", color=ink)
        ax.set_xticks(range(len(names)), names, rotation=45 if len(names) > 4 else 0)
        ax.set_yticks(range(len(names)), names)
    ax.set_xlabel("predicted")
    ax.set_ylabel("true")


def predicted(ax: Axes, found: Mapping[str, Any]) -> None:
    """Rows by target and by prediction, darker where there are more."""
    low, high = found["low"], found["high"]
    counts = np.log1p(np.array(found["rows"], dtype=float))
    ax.imshow(counts, origin="lower", extent=(low, high, low, high), cmap="Blues", aspect="auto")
    ax.plot([low, high], [low, high], linestyle=":", color="0.5")
    ax.set_xlabel("target")
    ax.set_ylabel("prediction")
