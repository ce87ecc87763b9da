"""How many rows does SRBO leave at each nu, and how many have to be left? (Yang, figure 6).

    python -m pipelines.yang_srbo.remaining [--only Pima ...] [--step .005] [--rows N]

Active rows are strictly within the box at the optimum: no rule can leave them out. What is left
beyond them is inactive, at a bound, but not proved to be there. The paper does not name its four
sets; sigma is the power of 2 next to the median distance between rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bigscreen.path.walk import PathSettings
from bigscreen.problems.dual import FREE
from bigscreen.screening.srbo import Srbo, SrboCut
from pipelines.papers import common as papers
from pipelines.papers import data_sets
from pipelines.yang_srbo import common

FOUR = ["BreastCancer569", "Pima", "Abalone", "Winequality"]
COARSE = common.Grid(1000, 0.005, ())
GRIDS = dict.fromkeys(("BreastCancer569", "Pima", "Abalone"), common.PAPERS)
"""Sets with the paper's own grid: those that take less than a minute of a processor."""

EDGE = 1e-9
"""Alpha counts as at a bound if it is within this part of the box."""

TOL = 1e-8
"""Relative gap of the solves, small enough for alpha to show which rows are active."""


def main() -> None:
    parser = common.arguments(papers.question(__doc__), list(data_sets.SUPERVISED), COARSE)
    parser.set_defaults(only=FOUR)
    given = parser.parse_args()
    found, lines, notes = [], [], []
    for name in given.only:
        grid = common.grid(given, GRIDS.get(name, COARSE))
        train, test = data_sets.SUPERVISED[name]().first(grid.rows).split(0.2, 0)
        notes.append(f"{name}: a step of nu of {grid.step:g} (the paper: .001); {train.about}")
        values = common.nus(len(train.y), grid.step)
        for sigma in (None, common.usual_sigma(train)):
            one = shares(common.Bench(train, test, sigma), values)
            found.append({"name": name, "sigma": sigma, "nu": values.tolist(), **one})
            kernel = "linear" if sigma is None else f"RBF, sigma {sigma:g}"
            means = [100 * float(np.mean(one[of])) for of in ("active", "left", "cut")]
            lost = max(one["active_lost"])
            cells = [f"{mean:.2f}" for mean in means] + [f"{lost:,}"]
            lines.append([f"{name} {len(train.y):,}, {kernel}", *cells])
    heads = ("", "active %", "left by SRBO %", "with cut %", "active rows left out")
    record: dict[str, Any] = {
        "question": papers.question(__doc__),
        "notes": [
            "the paper names neither its four sets nor sigma: ours are guesses",
            *(note.rstrip("; ") for note in notes),
        ],
        "tables": [papers.table("Figure 6: means over nu", heads, lines)],
        "sets": found,
    }
    figures = {"figure-6": _figure(found, given.only)} if given.out else {}
    papers.keep(given.out, "yang_srbo.remaining", record, figures)


def shares(bench: common.Bench, values: np.ndarray) -> dict[str, Any]:
    """Compute the shares of rows at every nu: active ones, and those that the rules leave."""
    manner = PathSettings(TOL, (Srbo(),), False, True, False)
    run = papers.walked(bench.stage, bench.problem, bench.codes, values, manner)
    steps, n = run["steps"], len(bench.codes)
    out: dict[str, Any] = {"active": [], "left": [], "cut": [], "active_lost": []}
    for k, step in enumerate(steps):
        room = EDGE * step.dual.hi
        alpha = step.solved.alpha
        active = (alpha > room) & (alpha < step.dual.hi - room)
        found = [papers.screened(bench.stage, steps, rule, k) for rule in RULES]
        # (The first value is solved from zero, with no row left out.)
        free = [one.decided == FREE if k else np.ones(n, np.bool_) for one in found]
        out["active"].append(float(np.mean(active)))
        out["left"].append(float(np.mean(free[0])))
        out["cut"].append(float(np.mean(free[1])))
        out["active_lost"].append(int(np.sum(active & ~(free[0] & free[1]))))
    return out


RULES = (Srbo(), SrboCut())


def _figure(found: list[dict[str, Any]], names: list[str]) -> Any:
    figure, axes = papers.canvas(2, len(names))
    for one in found:
        ax = axes[int(one["sigma"] is not None), names.index(one["name"])]
        active, left = np.array(one["active"]), np.array(one["left"])
        areas = [np.minimum(active, left), np.maximum(left - active, 0)]
        labels, colours = ["active", "inactive, left by SRBO"], ["tab:red", "tab:blue"]
        ax.stackplot(one["nu"], areas, labels=labels, colors=colours, alpha=0.7)
        ax.plot(one["nu"], one["cut"], "k--", linewidth=0.8, label="left with cut")
        kernel = "linear" if one["sigma"] is None else f"RBF, sigma {one['sigma']:g}"
        ax.set_title(f"{one['name']}, {kernel}", fontsize=8)
        ax.set_xlabel("nu")
        ax.set_ylim(0, 1)
    axes[0, 0].set_ylabel("share of rows")
    axes[0, 0].legend(fontsize=7)
    return figure


if __name__ == "__main__":
    main()
