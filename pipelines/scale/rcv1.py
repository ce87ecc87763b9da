"""rcv1 (697,641 x 47,236, sparse, two labels): a linear machine, and one on landmarks.

    python -m pipelines.scale.rcv1 [--data rcv1_test.binary.bz2 rcv1_train.binary.bz2] [--rows N]
                             [--landmarks M] [--scheduler tcp://HOST:8786 | --workers N]
                             [--peer] [--work FOLDER] [--pages FOLDER] [--json FILE]

The files are at the LIBSVM site; the larger one trains, a part of the size of the smaller one is
held out. Without them the rows are made up: a stand-in of the same shape, 2 % of whose labels are
turned round, which every output says. `--peer` fits scikit-learn's LinearSVC to the same rows, in
memory and in a process of its own: the same C, hinge and penalised offset, at its own tolerance.
"""

from __future__ import annotations

import multiprocessing
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array
from sklearn.svm import LinearSVC

from bigscreen.data.dataset import Dataset
from bigscreen.report import report
from pipelines.scale.common import Experiment, arguments
from pipelines.scale.shapes import RCV1_NOISE, rcv1_like

ROWS = 697_641
HOLDOUT = 20_242 / ROWS


def main() -> None:
    parser = arguments("rcv1: a linear machine on sparse rows, and one on landmarks.")
    parser.add_argument("--landmarks", type=int, default=1000, metavar="M", help="[1000]")
    parser.add_argument("--C", type=float, default=1.0, help="[1]")
    parser.add_argument("--peer", action="store_true", help="fit LinearSVC, too")
    given = parser.parse_args()
    about = "Zipf's words, unit rows, a sparse linear rule, 2 % of the labels wrong"
    run = Experiment("rcv1", given, rcv1_like, ROWS, about)
    with run.ready(HOLDOUT):
        run.fit("linear", kernel="linear", solver="cd", C=given.C)
        if given.peer:
            run.record["linear_svc"] = beside(run.folder, given.C)
        run.fit("rbf", kernel="rbf", gamma=1.0, C=given.C, landmarks=given.landmarks)
        if not given.data:
            run.record["bayes_error"] = RCV1_NOISE
        run.finish()
    if given.peer:
        show(run.record)


def beside(folder: Path, C: float) -> dict[str, Any]:
    """Fit LinearSVC to the rows in a folder: seconds, primal objective, error, memory."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_fit, (folder, C))


def _fit(folder: Path, C: float) -> dict[str, Any]:
    (X, y), (X_test, y_test) = (_rows(folder / name) for name in ("data", "data-holdout"))
    began, core = time.perf_counter(), time.process_time()
    machine = LinearSVC(loss="hinge", C=C).fit(X, y)
    seconds, core = time.perf_counter() - began, time.process_time() - core
    w, offset = machine.coef_.ravel(), float(machine.intercept_[0])
    hinge = np.maximum(0, 1 - (2 * y - 1) * (X @ w + offset))
    return {
        "primal": (w @ w + offset**2) / 2 + C * float(hinge.sum()),
        "seconds": seconds,
        "core_seconds": core,
        "n_iter": int(np.max(machine.n_iter_)),
        "error": 1 - machine.score(X_test, y_test),
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def _rows(path: Path) -> tuple[csr_array, Any]:
    """Load all rows of a store, and the codes of their labels."""
    data = Dataset.open(path.with_suffix(".store"))
    return data.X(0, data.n_rows), data.y(0, data.n_rows)


def show(record: dict[str, Any]) -> None:
    """Print a line each for our linear machine and LinearSVC."""
    ours, theirs = record["fits"]["linear"], record["linear_svc"]
    lines = (
        ("ours", ours["primal"], ours["seconds"]["total"], ours["peak_pss_bytes"],
         f"{ours['evaluation']['error']:.2%}, at most {ours['relative_gap']:.1e} above the least"),
        ("LinearSVC", theirs["primal"], theirs["seconds"], theirs["peak_bytes"],
         f"{theirs['error']:.2%}, {theirs['n_iter']} epochs"),
    )  # fmt: skip
    for name, primal, seconds, peak, rest in lines:
        took = report.seconds(seconds)
        print(f"{name}: primal objective {primal:.6g}, {took}, {report.size(peak)}, error {rest}")


if __name__ == "__main__":
    main()
