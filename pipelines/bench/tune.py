"""The search beside scikit-learn's: bigscreen's halving and HalvingRandomSearchCV, same candidates.

    python -m pipelines.bench.tune [--only a9a ijcnn1] [--landmarks 500] [--full] [--out DIR]

110 pairs of gamma (2^-8 to 2^2) and C (1e-2 to 1e3), 5 folds, from the rows in float arrays.
scikit-learn searches over make_pipeline(Nystroem, LinearSVC) with two processes, and ends on all
rows (min_resources "exhaust"); bigscreen has two threads. In turns: ours, theirs, ours. With
``--full`` the whole grid is solved on all rows, too, to see what halving loses.
"""

from __future__ import annotations

import json
import time
import warnings
from typing import Any

import numpy as np
from sklearn.datasets import load_svmlight_file
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.kernel_approximation import Nystroem
from sklearn.model_selection import HalvingRandomSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.svm import LinearSVC

from bigscreen import NystroemSVCCV
from pipelines.bench import common

GAMMAS = 2.0 ** np.arange(-8, 3)
CS = np.geomspace(1e-2, 1e3, 10)
SETS = {"a9a": ("a9a/a9a.xz", 123), "ijcnn1": ("ijcnn1/ijcnn1.trn.bz2", 22)}


def rows(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Rows, float32, and labels 0 and 1."""
    import bz2
    import lzma

    place, columns = SETS[name]
    opened = lzma.open if place.endswith("xz") else bz2.open
    with opened(common.file(place)) as file:
        X, y = load_svmlight_file(file, n_features=columns)
    return X.toarray().astype(np.float32), (y > 0).astype(int)


def ours(X: np.ndarray, y: np.ndarray, landmarks: int, elimination: str) -> dict[str, Any]:
    """Seconds of the search and its last fit, and what was chosen."""
    machine = NystroemSVCCV(GAMMAS, CS, n_components=landmarks, elimination=elimination, n_jobs=2)
    began = time.perf_counter()
    machine.fit(X, y)
    seconds = time.perf_counter() - began
    k = machine.best_index_
    spread = float(machine.cv_results_["std_test_score"][k]) / np.sqrt(5)
    chosen = {"best": machine.best_params_, "score": machine.best_score_, "error": spread}
    return {"seconds": seconds, **chosen, "stages": machine.search_["stages"]}


def theirs(X: np.ndarray, y: np.ndarray, landmarks: int) -> dict[str, Any]:
    """The same of scikit-learn's halving search."""
    pipe = make_pipeline(Nystroem(n_components=landmarks, random_state=0), LinearSVC())
    grid = {"nystroem__gamma": GAMMAS, "linearsvc__C": CS}
    search = HalvingRandomSearchCV(
        pipe, grid, n_candidates=110, min_resources="exhaust", cv=5, n_jobs=2, random_state=0
    )
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        search.fit(X, y)
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "best": search.best_params_, "score": search.best_score_}


def main() -> None:
    parser = common.arguments(__doc__ or "", list(SETS))
    parser.add_argument("--landmarks", type=int, default=500)
    parser.add_argument("--full", action="store_true", help="solve the whole grid, too")
    args = parser.parse_args()
    record: dict[str, Any] = {"machine": common.machine(), "landmarks": args.landmarks}
    table = []
    for name in args.only:
        X, y = rows(name)
        first = ours(X, y, args.landmarks, "halving")
        peer = theirs(X, y, args.landmarks)
        second = ours(X, y, args.landmarks, "halving")
        record[name] = {"ours": [first, second], "scikit-learn": peer}
        least = min(first["seconds"], second["seconds"])
        cells = [name, f"{least:.1f}", f"{peer['seconds']:.1f}", f"{least / peer['seconds']:.2f}"]
        cells += [f"{second['score']:.4f}", f"{peer['score']:.4f}", ""]
        if args.full:
            record[name]["full"] = full = ours(X, y, args.landmarks, "none")
            cells[-1] = f"{full['score']:.4f} +- {full['error']:.4f}, {full['seconds']:.0f} s"
        table.append(cells)
    heads = ["rows", "ours, s", "scikit-learn, s", "ratio", "our score", "theirs", "full grid"]
    common.show(f"110 candidates, 5 folds, {args.landmarks} landmarks", heads, table)
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "tune.json").write_text(json.dumps(record, default=str, indent=1))


if __name__ == "__main__":
    main()
