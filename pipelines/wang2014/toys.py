"""How much does DVI save on toy classes that overlap more and more? (Wang 2014, table 1, figure 1).

    python -m pipelines.wang2014.toys [--out FOLDER] [--rows N]

C-SVC without offset on two normal classes of 1,000 points around +-(mu, mu).
"""

from __future__ import annotations

import numpy as np

from bigscreen.problems.recipes import CSvc
from pipelines.papers import common as papers
from pipelines.papers import data_sets
from pipelines.wang2014 import common

PAPER = {"toy 1.5": 59.15, "toy 0.75": 26.31, "toy 0.5": 25.16}


def main() -> None:
    given = papers.arguments(papers.question(__doc__)).parse_args()
    rows = [data_sets.toy(mu, (given.rows or 2000) // 2) for mu in (1.5, 0.75, 0.5)]
    sets = [
        common.experiment(one, CSvc(1.0, 1), (one.y > 0).astype(np.int32), ["DVI"]) for one in rows
    ]
    printed = {name: {"DVI": speedup} for name, speedup in PAPER.items()}
    record = {
        "question": papers.question(__doc__),
        "notes": common.notes(sets),
        "not_reproduced": [] if given.rows else common.missed(sets, printed),
        "tables": [common.times("Table 1: 100 values of C", sets, printed, given.rows is not None)],
        "sets": sets,
    }
    figures = {"figure-1": _figure(rows, sets)} if given.out else {}
    papers.keep(given.out, "wang2014.toys", record, figures)


def _figure(rows: list[data_sets.Rows], sets: list[dict]) -> object:
    figure, axes = papers.canvas(2, 3)
    for k, (one, found) in enumerate(zip(rows, sets, strict=True)):
        top, below = axes[0, k], axes[1, k]
        for side, colour in ((1, "tab:red"), (-1, "tab:blue")):
            own = one.X[one.y == side]
            top.plot(own[:, 0], own[:, 1], ".", color=colour, markersize=2)
        for (a, b), colour, C in zip(found["machines"], "cm", (0.01, 10), strict=True):
            x = np.array([-4.0, 4.0])
            top.plot(x, -a / b * x, ":", color=colour, label=f"C = {C:g}")
        top.set_xlim(-4, 4)
        top.set_ylim(-4, 4)
        top.set_title(one.name, fontsize=9)
        top.legend(fontsize=7)
        shares = np.array(found["rejection"]["DVI"])
        papers.stacked(below, common.VALUES, shares, f"DVI, {one.name}")
    return figure


if __name__ == "__main__":
    main()
