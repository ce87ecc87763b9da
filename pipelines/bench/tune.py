"""The search by halving, compared with scikit-learn's search over the same candidates.

    python -m pipelines.bench.tune [--only a9a ijcnn1 covtype] [--parts ours peer full] [--out DIR]

a9a and ijcnn1: 110 pairs of gamma (2^-8 to 2^2) and C (1e-2 to 1e3), 5 folds, ``--landmarks`` 500,
from the rows in float arrays; scikit-learn's HalvingRandomSearchCV searches over
make_pipeline(Nystroem, LinearSVC) and ends on all rows (min_resources "exhaust"). covtype: the
exact kernel, class 2 against the rest, ``--rows`` 8,000 of the file's 20,000, drawn at random, the
columns standardised; 4 gammas, 3 values of C, 5 folds; the peer is GridSearchCV over SVC, the
whole grid (with scikit-learn-intelex, where that is installed). The peer has two processes,
bigscreen two threads. "full" is bigscreen's whole grid on all rows, to see what halving loses.

The parts run in turns, "ours" once more after the peer; with ``--out`` each is kept in
DIR/tune.json as it ends, and a part that stands there is not run again unless ``--again`` is given.
"""

from __future__ import annotations

import bz2
import json
import lzma
import time
import warnings
from typing import Any

import numpy as np
import psutil
from sklearn.base import BaseEstimator
from sklearn.datasets import load_svmlight_file
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.kernel_approximation import Nystroem
from sklearn.model_selection import GridSearchCV, HalvingRandomSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC

from bigscreen import SVCCV, NystroemSVCCV
from pipelines.bench import common

GAMMAS = 2.0 ** np.arange(-8, 3)
CS = np.geomspace(1e-2, 1e3, 10)
EXACT_GAMMAS = 2.0 ** np.arange(-6, 1, 2)
EXACT_CS = np.geomspace(1, 100, 3)
SETS = {"a9a": ("a9a/a9a.xz", 123), "ijcnn1": ("ijcnn1/ijcnn1.trn.bz2", 22)}
PARTS = ("ours", "peer", "full")


def rows(name: str, count: int = 8000) -> tuple[np.ndarray, np.ndarray]:
    """Load float32 rows, and labels 0 and 1; of covtype, the given number of rows."""
    if name == "covtype":
        with lzma.open(common.file("covtype/covtype.20k.data.xz")) as file:
            table = np.loadtxt(file, delimiter=",")
        X = StandardScaler().fit_transform(table[:, :-1]).astype(np.float32)
        # (In no order: the file has areas one after the other, and folds would be unlike.)
        some = np.random.default_rng(0).permutation(len(X))[:count]
        return X[some], (table[some, -1] == 2).astype(int)
    place, columns = SETS[name]
    opened: Any = lzma.open if place.endswith("xz") else bz2.open
    with opened(common.file(place)) as file:
        X, y = load_svmlight_file(file, n_features=columns)
    return X.toarray().astype(np.float32), (y > 0).astype(int)


def timed(search: BaseEstimator, X: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    """Run a search; return wall seconds, processor seconds, and its choice."""
    cpu, began = _processor_seconds(), time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        search.fit(X, y)
    seconds = time.perf_counter() - began
    spread = float(search.cv_results_["std_test_score"][search.best_index_]) / np.sqrt(5)
    found = {"best": search.best_params_, "score": search.best_score_, "error": spread}
    return {"seconds": seconds, "processor": _processor_seconds() - cpu, **found}


def _processor_seconds() -> float:
    """Sum the processor seconds of this process and of the processes that it has started."""
    own = psutil.Process()
    return sum(sum(one.cpu_times()[:2]) for one in [own, *own.children(recursive=True)])


def search(part: str, name: str, landmarks: int) -> BaseEstimator:
    """Make the search of a part."""
    if part == "peer":
        return theirs(name, landmarks)
    elimination = "none" if part == "full" else "halving"
    if name == "covtype":
        return SVCCV(EXACT_GAMMAS, EXACT_CS, elimination=elimination, n_jobs=2)
    return NystroemSVCCV(GAMMAS, CS, n_components=landmarks, elimination=elimination, n_jobs=2)


def theirs(name: str, landmarks: int) -> BaseEstimator:
    """Make scikit-learn's search."""
    if name == "covtype":
        return GridSearchCV(_svc()(), {"gamma": EXACT_GAMMAS, "C": EXACT_CS}, cv=5, n_jobs=2)
    pipe = make_pipeline(Nystroem(n_components=landmarks, random_state=0), LinearSVC())
    grid = {"nystroem__gamma": GAMMAS, "linearsvc__C": CS}
    how = {"min_resources": "exhaust", "cv": 5, "n_jobs": 2, "random_state": 0}
    return HalvingRandomSearchCV(pipe, grid, n_candidates=110, **how)


def _svc() -> Any:
    """Return the SVC of scikit-learn-intelex, or scikit-learn's if intelex is not installed."""
    try:
        from sklearnex.svm import SVC as Faster
    except ImportError:
        return SVC
    return Faster


def main() -> None:
    parser = common.arguments(__doc__ or "", [*SETS, "covtype"])
    parser.add_argument("--landmarks", type=int, default=500)
    parser.add_argument("--rows", type=int, default=8000, help="of covtype")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=["ours", "peer"])
    parser.add_argument("--again", action="store_true", help="run parts that are kept, too")
    args = parser.parse_args()
    record: dict[str, Any] = {}
    kept = args.out / "tune.json" if args.out else None
    if kept is not None and kept.exists():
        record = json.loads(kept.read_text())
    for name in args.only:
        X, y = rows(name, args.rows)
        of = f"{name}, {args.rows} rows" if name == "covtype" else f"{name}, m = {args.landmarks}"
        own = record.setdefault(of, {})
        turns = [part for part in PARTS if part in args.parts]
        turns += ["ours again"] if {"ours", "peer"} <= set(turns) else []
        for part in turns:
            if args.again or part not in own:
                library = _svc().__module__.split(".")[0] if name == "covtype" else "sklearn"
                of_part = {"of": library if part == "peer" else "bigscreen"}
                own[part] = {
                    **of_part,
                    **timed(search(part, name, args.landmarks), X, y),
                    "on": common.machine(),
                }
            if kept is not None:
                kept.parent.mkdir(parents=True, exist_ok=True)
                kept.write_text(json.dumps(record, default=float, indent=1))
    heads = ["rows", "part", "seconds", "of the peer's", "processor", "score", "+-"]
    common.show("searches, 5 folds", heads, table(record))


def table(record: dict[str, Any]) -> list[list[str]]:
    """Print a line for each part that was run."""
    lines = []
    for name, parts in record.items():
        peer = parts.get("peer", {}).get("seconds")
        for part, one in parts.items():
            ratio = f"{one['seconds'] / peer:.2f}" if peer else ""
            cells = [name, part, f"{one['seconds']:.1f}", ratio, f"{one['processor']:.1f}"]
            lines.append([*cells, f"{one['score']:.4f}", f"{one['error']:.4f}"])
    return lines


if __name__ == "__main__":
    main()
