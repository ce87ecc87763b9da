"""Which rule identifies most rows of real data, and what is saved? (Wang 2014, table 2, figure 2).

    python pipelines/wang_svm.py [--only wine ...] [--out FOLDER] [--rows N]

SSNSV, ESSNSV and DVI along 100 values of C; C-SVC without offset.
"""

from __future__ import annotations

import numpy as np
import paper_paths
import paper_sets
import wang

from bigscreen.problems.recipes import CSvc

SETS = {
    "ijcnn1": paper_sets.ijcnn1,
    "wine": paper_sets.wine,
    "covtype 6/7": paper_sets.covtype_6_7,
}
PAPER = {
    "ijcnn1": {"SSNSV": 2.31, "ESSNSV": 3.01, "DVI": 5.64},
    "wine": {"SSNSV": 3.50, "ESSNSV": 4.47, "DVI": 6.59},
    "covtype 6/7": {"SSNSV": 7.60, "ESSNSV": 10.72, "DVI": 79.18},
}


def main() -> None:
    parser = paper_paths.arguments(str(__doc__).splitlines()[0], list(SETS))
    given = parser.parse_args()
    rows = [SETS[name]().first(given.rows) for name in given.only]
    sets = [
        wang.experiment(one, CSvc(1.0, 1), (one.y > 0).astype(np.int32), list(wang.RULES))
        for one in rows
    ]
    record = {
        "question": str(__doc__).splitlines()[0],
        "notes": [
            *wang.notes(sets),
            "the paper rejects about 80 % of ijcnn1, more than 80 % of wine, nearly all of covtype",
        ],
        "not_reproduced": [] if given.rows else wang.missed(sets, PAPER),
        "tables": [wang.times("Table 2: 100 values of C", sets, PAPER)],
        "sets": sets,
    }
    figures = {"figure-2": _figure(sets)} if given.out else {}
    paper_paths.keep(given.out, "wang_svm", record, figures)


def _figure(sets: list[dict]) -> object:
    figure, axes = paper_paths.canvas(len(sets), len(wang.RULES))
    for row, found in zip(axes, sets, strict=True):
        for ax, rule in zip(row, wang.RULES, strict=True):
            shares = np.array(found["rejection"][rule])
            paper_paths.stacked(ax, wang.VALUES, shares, f"{rule}, {found['name']}")
    return figure


if __name__ == "__main__":
    main()
