"""How many residuals' signs does DVI know in advance? (Wang 2014, table 3, figure 3: LAD).

    python pipelines/wang_lad.py [--only magic ...] [--out FOLDER] [--rows N]

Least absolute deviations without offset, 100 values of C.
"""

from __future__ import annotations

import numpy as np
import paper_paths
import paper_sets
import wang

from bigscreen.problems.recipes import Lad

SETS = {
    "magic": paper_sets.magic,
    "computer": paper_sets.computer,
    "houses": paper_sets.houses,
}
PAPER = {"magic": 9.86, "computer": 19.21, "houses": 114.91}


def main() -> None:
    parser = paper_paths.arguments(str(__doc__).splitlines()[0], list(SETS))
    given = parser.parse_args()
    rows = [SETS[name]().first(given.rows) for name in given.only]
    sets = [wang.experiment(one, Lad(1.0), one.y, ["DVI"]) for one in rows]
    printed = {name: {"DVI": speedup} for name, speedup in PAPER.items()}
    record = {
        "question": str(__doc__).splitlines()[0],
        "notes": [
            *wang.notes(sets),
            "the paper rejects about 90 % of magic, nearly all of computer and houses",
        ],
        "not_reproduced": [] if given.rows else wang.missed(sets, printed),
        "tables": [wang.times("Table 3: 100 values of C", sets, printed)],
        "sets": sets,
    }
    figures = {}
    if given.out:
        figure, axes = paper_paths.canvas(1, len(sets))
        for ax, found in zip(axes[0], sets, strict=True):
            shares = np.array(found["rejection"]["DVI"])
            paper_paths.stacked(ax, wang.VALUES, shares, f"DVI, {found['name']}")
        figures["figure-3"] = figure
    paper_paths.keep(given.out, "wang_lad", record, figures)


if __name__ == "__main__":
    main()
