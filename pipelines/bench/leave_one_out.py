"""Leave-one-out of an exact C-SVC, and fits without some of its rows, by LIBSVM, to compare.

    python -m pipelines.bench.leave_one_out [--rows 3000] [--C 10] [--refits 30] [--out FOLDER]

Rows of magic, drawn by chance and standardised, with gamma .1. Printed: processor seconds of the
fit and of all scores, how many rows needed a solve without them, how many predictions the bounds
leave undecided, and the largest distance from LIBSVM's scores of rows drawn by chance, in bounds.
"""

from __future__ import annotations

import lzma
import time

import numpy as np
from sklearn import svm

from bigscreen import SVC
from pipelines.bench import common

GAMMA = 0.1


def magic(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of magic (count, 10), standardised, and their labels, in an order by chance."""
    with lzma.open(common.file("magic/magic04.data.xz"), "rt") as lines:
        table = [line.strip().split(",") for line in lines if line.strip()]
    X, y = np.array([row[:-1] for row in table], float), np.array([row[-1] == "g" for row in table])
    rows = np.random.default_rng(0).permutation(len(y))[:count]
    return ((X - X.mean(axis=0)) / X.std(axis=0))[rows].astype(np.float32), y[rows].astype(int)


def main() -> None:
    """Run, print, and write the record."""
    parser = common.arguments(__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=3000)
    parser.add_argument("--C", type=float, default=10.0)
    parser.add_argument("--refits", type=int, default=30, help="rows that LIBSVM is fitted without")
    options = parser.parse_args()
    X, y = magic(options.rows)
    began = time.process_time()
    machine = SVC(C=options.C, gamma=GAMMA).fit(X, y)
    fitted = time.process_time() - began
    began, wall = time.process_time(), time.monotonic()
    found = machine.leave_one_out(X, y)
    spent, wall = time.process_time() - began, time.monotonic() - wall
    far, others = [], 0.0
    support = np.random.default_rng(1).permutation(machine.support_)[: options.refits]
    for row in support.tolist():
        kept = np.arange(len(y)) != row
        began = time.process_time()
        other = svm.SVC(C=options.C, gamma=GAMMA, tol=1e-6, cache_size=2000).fit(X[kept], y[kept])
        others += time.process_time() - began
        apart = abs(other.decision_function(X[row : row + 1])[0] - found.scores[row, 0])
        far.append(float(apart / found.bounds[row, 0]))
    record = {
        **found.record(),
        "C": options.C,
        "support": len(machine.support_),
        "fit": fitted,
        "processor_seconds": spent,
        "wall": wall,
        "libsvm_fit": others / len(support),
        "farthest": max(far),
    }
    shown = {name: f"{value:.4g}" for name, value in record.items()}
    common.show("each row left out", list(shown), [list(shown.values())])
    common.save(options.out, "leave_one_out", record)


if __name__ == "__main__":
    main()
