"""Many classes: all at once or one after the other; one against one compared with scikit-learn.

    python -m pipelines.bench.multiclass [--only mnist letter news20] [--repeat 3] [--out FOLDER]

mnist: `NystroemSVC`, 1,000 landmarks, one class (7) against the rest, all ten classes over one pass
a round, and the ten one after the other. letter: rows of letter's shape (26 classes, 15,000 x 16),
made up by scikit-learn's `make_classification`; `SVC`, one against one, against scikit-learn's
(with scikit-learn-intelex if it is installed). news20: 20 classes of sparse text, 15,935 x 62,061,
rows of length 1; linear, and 1,000 landmarks. In turns, in one process, after a first fit that is
not counted; the least of the repeats of wall and processor seconds. The processor's, which a busy
machine changes less, do not count what one of two threads waits for the other. The largest relative
gap of all classes is printed, and whether the machines of both ways are the same bit for bit.
"""

from __future__ import annotations

import argparse
import bz2
import gzip
import importlib
import importlib.util
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.datasets import load_svmlight_file, make_classification
from sklearn.preprocessing import normalize

import bigscreen
from bigscreen.plan import plan
from pipelines.bench import common

TOL = 1e-3
Task = tuple[dict[str, Callable[[], Any]], Callable[[dict[str, float]], list[tuple[str, bool]]]]


@contextmanager
def one_by_one() -> Iterator[None]:
    """Make fits inside this context solve one class after the other."""
    usual, plan.PLAN = plan.PLAN, replace(plan.PLAN, max_together=1)
    try:
        yield
    finally:
        plan.PLAN = usual


def alone(fit: Callable[[], Any]) -> Callable[[], Any]:
    """Fit with the classes solved one after the other."""

    def fitted() -> Any:
        with one_by_one():
            return fit()

    return fitted


def mnist() -> Task:
    images, labels = (
        gzip.decompress(common.file(f"mnist/train-{part}-ubyte.gz").read_bytes())
        for part in ("images-idx3", "labels-idx1")
    )
    X = np.frombuffer(images, np.uint8, offset=16).reshape(-1, 784).astype(np.float32) / 255
    y = np.frombuffer(labels, np.uint8, offset=8)

    def fit(target: np.ndarray) -> Any:
        how = {"n_components": 1000, "gamma": 0.02, "tol": TOL, "random_state": 0}
        return bigscreen.NystroemSVC(**how).fit(X, target)

    fits = {
        "7 against the rest": lambda: fit(y == 7),
        "10 classes at once": lambda: fit(y),
        "one after the other": alone(lambda: fit(y)),
    }
    return fits, lambda wall: [
        (
            f"10 classes in {wall['10 classes at once'] / wall['7 against the rest']:.2f} times "
            f"the time of one (asked: 3), one after the other in "
            f"{wall['one after the other'] / wall['7 against the rest']:.2f}",
            wall["10 classes at once"] <= 3 * wall["7 against the rest"],
        )
    ]


def letter() -> Task:
    X, y = make_classification(
        15_000, 16, n_informative=14, n_classes=26, n_clusters_per_class=2, class_sep=1.5,
        random_state=0,
    )  # fmt: skip
    name, peer = "scikit-learn", "sklearn.svm"
    if importlib.util.find_spec("sklearnex") is not None:
        name, peer = "scikit-learn-intelex", "sklearnex.svm"
    machine = importlib.import_module(peer).SVC
    fits = {
        "325 pairs": lambda: bigscreen.SVC(C=10.0, tol=TOL).fit(X, y),
        name: lambda: machine(C=10.0, cache_size=1000).fit(X, y),
    }
    return fits, lambda wall: [
        (
            f"325 pairs in {wall['325 pairs'] / wall[name]:.2f} times {name}'s time (asked: 1)",
            wall["325 pairs"] <= wall[name],
        )
    ]


def news20() -> Task:
    with bz2.open(common.file("news20/news20.bz2")) as file:
        X, y = load_svmlight_file(file, dtype=np.float32)
    X = normalize(X)

    def landmarks() -> Any:
        how = {"n_components": 1000, "gamma": 1.0, "tol": TOL, "random_state": 0}
        return bigscreen.NystroemSVC(**how).fit(X, y)

    fits = {
        "linear": lambda: bigscreen.LinearSVC(loss="hinge", tol=TOL, random_state=0).fit(X, y),
        "landmarks, 20 at once": landmarks,
        "landmarks, one after the other": alone(landmarks),
    }
    return fits, lambda wall: []


TASKS = {"mnist": mnist, "letter": letter, "news20": news20}


def measured(name: str, repeat: int) -> dict[str, Any]:
    """Run the fits of a task in turns, and print a table."""
    fits, asked = TASKS[name]()
    seconds: dict[str, list[tuple[float, float]]] = {title: [] for title in fits}
    machines: dict[str, Any] = {}
    for turn in range(repeat + 1):
        for title, fit in fits.items():
            wall, cpu = time.perf_counter(), time.process_time()
            machines[title] = fit()
            if turn:
                spent = time.perf_counter() - wall, time.process_time() - cpu
                seconds[title].append(spent)
    best = {title: np.min(runs, axis=0).tolist() for title, runs in seconds.items()}
    gaps = {title: getattr(each, "relative_gap_", None) for title, each in machines.items()}
    common.show(
        name,
        ["fit", "wall s", "processor s", "largest gap"],
        [
            (
                title,
                f"{wall:.2f}",
                f"{cpu:.2f}",
                "" if gaps[title] is None else f"{gaps[title]:.1e}",
            )
            for title, (wall, cpu) in best.items()
        ],
    )
    checks = asked({title: wall for title, (wall, _) in best.items()})
    checks += [
        (f"{title}: every class within {TOL:g}", gap <= TOL)
        for title, gap in gaps.items()
        if gap is not None
    ]
    ways = [each for title, each in machines.items() if "at once" in title or "after" in title]
    if ways:
        same = np.array_equal(ways[0].coef_, ways[1].coef_)
        checks.append(("at once and one after the other: the same bits", same))
    for sentence, met in checks:
        print(f"{common.verdict(met)}: {sentence}")
    return {
        "seconds": seconds,
        "gaps": gaps,
        "checks": [{"check": sentence, "met": bool(met)} for sentence, met in checks],
    }


def main() -> None:
    parser = common.arguments(__doc__ or "", list(TASKS))
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--repeat", type=int, default=3, help="[3]")
    given = parser.parse_args()
    record = {name: measured(name, given.repeat) for name in given.only}
    common.save(given.out, "multiclass", record)


if __name__ == "__main__":
    main()
