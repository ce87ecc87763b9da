"""Which rule identifies most rows of real data, and what is saved? (Wang 2014, table 2, figure 2).

    python -m pipelines.wang2014.svm [--only wine ...] [--out FOLDER] [--rows N]

SSNSV, ESSNSV and DVI along 100 values of C; C-SVC without offset.
"""

from __future__ import annotations

import numpy as np

from bigscreen.problems.recipes import CSvc
from pipelines.papers import common as papers
from pipelines.papers import data_sets
from pipelines.wang2014 import common

SETS = {
    "ijcnn1": data_sets.ijcnn1,
    "wine": data_sets.wine,
    "covtype 6/7": data_sets.covtype_6_7,
}
PAPER = {
    "ijcnn1": {"SSNSV": 2.31, "ESSNSV": 3.01, "DVI": 5.64},
    "wine": {"SSNSV": 3.50, "ESSNSV": 4.47, "DVI": 6.59},
    "covtype 6/7": {"SSNSV": 7.60, "ESSNSV": 10.72, "DVI": 79.18},
}


def main() -> None:
    parser = papers.arguments(papers.question(__doc__), list(SETS))
    given = parser.parse_args()
    rows = [SETS[name]().first(given.rows) for name in given.only]
    sets = [
        common.experiment(one, CSvc(1.0, 1), (one.y > 0).astype(np.int32), list(common.RULES))
        for one in rows
    ]
    record = {
        "question": papers.question(__doc__),
        "notes": [
            *common.notes(sets),
            "the paper rejects about 80 % of ijcnn1, more than 80 % of wine, nearly all of covtype",
        ],
        "not_reproduced": [] if given.rows else common.missed(sets, PAPER),
        "tables": [common.times("Table 2: 100 values of C", sets, PAPER, given.rows is not None)],
        "sets": sets,
    }
    figures = {"figure-2": _figure(sets)} if given.out else {}
    papers.keep(given.out, "wang2014.svm", record, figures)


def _figure(sets: list[dict]) -> object:
    figure, axes = papers.canvas(len(sets), len(common.RULES))
    for row, found in zip(axes, sets, strict=True):
        for ax, rule in zip(row, common.RULES, strict=True):
            shares = np.array(found["rejection"][rule])
            papers.stacked(ax, common.VALUES, shares, f"{rule}, {found['name']}")
    return figure


if __name__ == "__main__":
    main()
