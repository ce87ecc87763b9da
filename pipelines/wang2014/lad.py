"""How many residuals' signs does DVI know in advance? (Wang 2014, table 3, figure 3: LAD).

    python -m pipelines.wang2014.lad [--only magic ...] [--out FOLDER] [--rows N]

Least absolute deviations without offset, 100 values of C.
"""

from __future__ import annotations

import numpy as np

from bigscreen.problems.recipes import Lad
from pipelines.papers import common as papers
from pipelines.papers import data_sets
from pipelines.wang2014 import common

SETS = {
    "magic": data_sets.magic,
    "computer": data_sets.computer,
    "houses": data_sets.houses,
}
PAPER = {"magic": 9.86, "computer": 19.21, "houses": 114.91}


def main() -> None:
    parser = papers.arguments(papers.question(__doc__), list(SETS))
    given = parser.parse_args()
    rows = [SETS[name]().first(given.rows) for name in given.only]
    sets = [common.experiment(one, Lad(1.0), one.y, ["DVI"]) for one in rows]
    printed = {name: {"DVI": speedup} for name, speedup in PAPER.items()}
    record = {
        "question": papers.question(__doc__),
        "notes": [
            *common.notes(sets),
            "the paper rejects about 90 % of magic, nearly all of computer and houses",
        ],
        "not_reproduced": [] if given.rows else common.missed(sets, printed),
        "tables": [common.times("Table 3: 100 values of C", sets, printed, given.rows is not None)],
        "sets": sets,
    }
    figures = {}
    if given.out:
        figure, axes = papers.canvas(1, len(sets))
        for ax, found in zip(axes[0], sets, strict=True):
            shares = np.array(found["rejection"]["DVI"])
            papers.stacked(ax, common.VALUES, shares, f"DVI, {found['name']}")
        figures["figure-3"] = figure
    papers.keep(given.out, "wang2014.lad", record, figures)


if __name__ == "__main__":
    main()
