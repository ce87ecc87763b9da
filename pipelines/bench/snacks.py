"""The stochastic solver (Snacks) compared with scikit-learn's averaged SGD and with Newton.

    python -m pipelines.bench.snacks [--only a9a ijcnn1 mnist susy] [--rows 1000000] [--out FOLDER]

On the same stored features scikit-learn's `SGDClassifier(average=True)` runs 1, 3, 10, ... epochs,
at its own step sizes and at the best of three constant ones, in turns with ours; each line says
what it reached and when ours had come as low. Nothing of ours is tuned. P* is the certified
Newton's. `susy` is the streaming job: kernel entries of the rows drawn alone, one pass over the
rows of an ingested store, and the held-out error compared with every point of Newton.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_svmlight_file
from sklearn.linear_model import SGDClassifier

from bigscreen.data.dataset import Dataset
from bigscreen.data.memory import MemoryDataset
from bigscreen.features import nystrom
from bigscreen.features.design import Design
from bigscreen.fit.loop import fit
from bigscreen.fit.monitor import Limits
from bigscreen.fleet.inline import Inline
from bigscreen.fleet.shards import blas_threads
from bigscreen.intake.ingest import ingest
from bigscreen.kernels.standard import make_kernel
from bigscreen.problems.point import Point
from bigscreen.problems.recipes import CSvc
from bigscreen.solvers.newton.solver import Newton
from bigscreen.solvers.protocol import Run, Verdict
from bigscreen.solvers.snacks.solver import Pegasos, Snacks
from pipelines.bench import common
from pipelines.bench.susy_million import blocks

Table = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""Rows and signs to train on, and rows and signs to test with."""

SETS = {
    "a9a": (800, 0.01, 1e-5),
    "ijcnn1": (1000, 2.0, 1e-8),
    "mnist": (3000, 0.002, 1 / 6e6),
}
"""Landmarks, gamma and lambda of Tanji et al.'s authors; mnist's gamma is of pixels / 255."""

EPOCHS = (1, 3, 10, 30, 100)
CONSTANT = (0.01, 0.1, 1.0)
WITHIN = 0.01
RESIDENT = 2_000_000
"""Newton keeps at most this many rows in memory."""
PUBLISHED = Snacks(1e-12, step=1.5, radius=1100.0, batch=1, first=12_000, growth=1.0, plain=True)


def svmlight(name: str, opened: Callable[..., Any], files: tuple[str, str], columns: int) -> Table:
    found = []
    for file in files:
        X, y = load_svmlight_file(opened(common.file(f"{name}/{file}")), n_features=columns)
        found += [X.toarray().astype(np.float32), np.where(y > 0, 1.0, -1.0)]
    return tuple(found)  # type: ignore[return-value]


def table(name: str) -> Table:
    """Load a data set's rows; of mnist, digit 7 against the rest."""
    if name == "a9a":
        return svmlight(name, lzma.open, ("a9a.xz", "a9a.t.xz"), 123)
    if name == "ijcnn1":
        return svmlight(name, bz2.open, ("ijcnn1.trn.bz2", "ijcnn1.tst.bz2"), 22)
    found = []
    for part in ("train", "t10k"):
        for kind, skip in (("images-idx3", 16), ("labels-idx1", 8)):
            with gzip.open(common.file(f"mnist/{part}-{kind}-ubyte.gz")) as file:
                found.append(np.frombuffer(file.read(), np.uint8, offset=skip))
    X, y, other, held = found
    rows = [part.reshape(-1, 784) / np.float32(255) for part in (X, other)]
    return rows[0], np.where(y == 7, 1.0, -1.0), rows[1], np.where(held == 7, 1.0, -1.0)


@dataclass
class Clock:
    """A solver's check that only stops the clock; the time of measuring a point is not counted."""

    measure: Callable[[Point], dict[str, float]]
    seconds: float = np.inf
    stages: float = np.inf
    rows: float = np.inf
    target: float = 0.0
    began: float = field(default_factory=time.perf_counter)
    out: float = 0.0
    seen: list[dict[str, Any]] = field(default_factory=list)

    def __call__(self, point: Point, stats: dict[str, Any], save: Any) -> Verdict | None:
        now = time.perf_counter()
        rows = stats["rows_visited"] + (self.seen[-1]["rows"] if self.seen else 0)
        told = {"seconds": now - self.began - self.out, "rows": rows, **self.measure(point)}
        self.seen.append(told)
        self.out += time.perf_counter() - now
        enough = told["seconds"] >= self.seconds or rows >= self.rows
        enough = enough or len(self.seen) >= self.stages or stats["stalled"]
        return None if enough else Verdict()

    def expired(self) -> bool:
        return False

    def pause(self, save: Any = None) -> None:
        pass

    def restored(self, meta: Any) -> None:
        raise AssertionError


def stored(name: str, given: Any) -> dict[str, Any]:
    """Run both on the same features of one data set, in memory."""
    m, gamma, lam = SETS[name]
    X, y, held, signs = table(name)
    order = np.random.default_rng(0).permutation(len(y))
    X, y = np.ascontiguousarray(X[order]), y[order]
    data = MemoryDataset(X, (y > 0).astype(np.int32), [-1, 1])
    made, C = make_kernel("rbf", gamma), 1.0 / (2.0 * len(y) * lam)
    problem = CSvc(C, 1)
    with Inline() as fleet, blas_threads(1):
        side, _ = nystrom.choose_landmarks(data, made, m, "uniform", 0)
        source = nystrom.factor_by_eigenvectors(made, side, nystrom.FLOAT64_CUTOFF).of(
            Design(data, made), side
        )
        design = nystrom.store_features(source, fleet, None)
        phi = design.data.X(0, len(y))
        other = source.features_of(source.columns(held, np.float64)).astype(np.float32)
        best = fit(Run(design, problem, fleet), Newton(given.tol), Limits(given.tol))

    def told(w: np.ndarray) -> dict[str, float]:
        loss = np.maximum(0.0, 1.0 - y * (phi @ w.astype(np.float32))).sum(dtype=np.float64)
        wrong = np.mean((other @ w.astype(np.float32) > 0) != (signs > 0))
        above = (0.5 * w @ w + C * loss) / best.certificate.primal - 1
        return {"above": float(above), "error": float(wrong)}

    record: dict[str, Any] = {"best": best.certificate.to_dict(), **told(best.point.w), "ours": []}
    runs = [("ours", Snacks(), given.seconds, 1000), ("pegasos", Pegasos(), given.seconds, 1000)]
    if name == "a9a":
        runs.append(("published", PUBLISHED, np.inf, 10))
    with Inline() as fleet, blas_threads(1):
        # A first stage loads compiled code.
        Snacks().solve(Run(design, problem, fleet), Clock(lambda p: {}, stages=1))
        for label, solver, seconds, stages in runs:
            clock = Clock(lambda p: told(p.w), seconds, stages)
            solver.solve(Run(design, problem, fleet), clock)
            record[label] = clock.seen
    record["sklearn"] = sgd(phi, y, 1.0 / (len(y) * C), told, given.seconds)
    return record


def sgd(phi: Any, y: Any, alpha: float, told: Any, most: float) -> list[dict[str, Any]]:
    """Run averaged SGD at its own and at constant step sizes, until it is near or time is up."""
    found: list[dict[str, Any]] = []
    for eta in (None, *CONSTANT):
        how = {} if eta is None else {"learning_rate": "constant", "eta0": eta}
        for epochs in EPOCHS:
            model = SGDClassifier(
                alpha=alpha, average=True, fit_intercept=False, max_iter=epochs, tol=None,
                random_state=0, **how,
            )  # fmt: skip
            began = time.perf_counter()
            model.fit(phi, y)
            seconds = time.perf_counter() - began
            found.append({"eta": eta, "epochs": epochs, "seconds": seconds, **told(model.coef_[0])})
            if found[-1]["above"] <= WITHIN or 3 * seconds > most:
                break
    return found


def susy(given: Any, work: Path) -> dict[str, Any]:
    """Run one pass over an ingested store, and Newton on the same landmarks."""
    path = work / f"susy-{given.rows}.store"
    if not path.exists():
        ingest(blocks(given.rows), path)
    data = Dataset.open(path)
    X, codes = (np.concatenate(part) for part in zip(*blocks(200_000, seed=1), strict=True))
    made, problem = make_kernel("rbf", 1 / 32), CSvc(1.25, 1)
    side, _ = nystrom.choose_landmarks(data, made, 1000, "uniform", 0)
    design = Design(data, made, side, nystrom.factor_matrix(made, side))
    positive = codes == int(data.labels[1])

    def told(point: Point) -> dict[str, float]:
        wrong = (design.dots(X, point.coef[:, None])[:, 0] > 0) != positive
        return {"primal": point.primal, "error": float(np.mean(wrong))}

    record: dict[str, Any] = {}
    with Inline() as fleet, blas_threads(1):
        for label, solver in (("snacks", Snacks()), ("newton", Newton()), ("again", Snacks())):
            # (Another stage would go beyond one pass.)
            clock = Clock(told, rows=np.inf if label == "newton" else data.n_rows / 2)
            if label == "newton":
                run = Run(design, problem, fleet, resident=given.rows <= RESIDENT)
                found = fit(run, _Timed(solver, clock), Limits(1e-3))
                record["best"] = {**found.certificate.to_dict(), **told(found.point)}
            else:
                solver.solve(Run(design, problem, fleet, resident=False), clock)
            record[label] = clock.seen
    return record


@dataclass
class _Timed:
    """Newton's check with a clock."""

    solver: Any
    clock: Clock

    def solve(self, run: Run, check: Any) -> Point:
        clock = self.clock
        clock.began = time.perf_counter()

        class Both:
            target = check.target
            expired = staticmethod(check.expired)
            restored = staticmethod(check.restored)

            def __call__(self, point: Point, stats: dict[str, Any], save: Any) -> Verdict | None:
                clock(point, stats, save)
                return check(point, stats, save)

        return self.solver.solve(run, Both())


def show(name: str, record: dict[str, Any]) -> None:
    """Print the tables of a data set."""
    if name == "susy":
        goal = record["best"]["error"] + 0.002
        rows = [
            (label, f"{t['seconds']:.2f} s", t["rows"], f"{t['primal']:.6g}",
             f"{100 * t['error']:.2f} %", "within .2 points" if t["error"] <= goal else "")
            for label in ("snacks", "newton", "again") for t in record[label]
        ]  # fmt: skip
        title = f"held-out error of the certified optimum {100 * record['best']['error']:.2f} %"
        common.show(title, ("solver", "after", "rows drawn", "P", "error", ""), rows)
        return

    def reached(above: float) -> str:
        found = [t["seconds"] for t in record["ours"] if t["above"] <= above]
        return f"{found[0]:.2f} s" if found else "not in this time"

    rows = []
    for label in ("ours", "pegasos", "published"):
        for t in record.get(label, ())[-10:]:
            what = f"{label}, {t['rows']:,} rows"
            above, error = f"{t['above']:.4f}", f"{100 * t['error']:.2f} %"
            rows.append((what, f"{t['seconds']:.2f} s", above, error, ""))
    for t in record["sklearn"]:
        what = f"sklearn, {t['epochs']} epochs, " + (f"eta {t['eta']}" if t["eta"] else "its own")
        above, error = f"{t['above']:.4f}", f"{100 * t['error']:.2f} %"
        rows.append((what, f"{t['seconds']:.2f} s", above, error, reached(t["above"])))
    title = f"{name}: optimum's error {100 * record['error']:.2f} %; P / P* - 1"
    common.show(title, ("what", "seconds", "P / P* - 1", "test error", "ours as low after"), rows)


def main() -> None:
    parser = common.arguments("Stochastic steps, not tuned.", [*SETS, "susy"])
    parser.add_argument("--rows", type=int, default=1_000_000, help="of susy [1,000,000]")
    parser.add_argument("--seconds", type=float, default=20.0, help="for each solver [20]")
    parser.add_argument("--tol", type=float, default=1e-3, help="proved gap of P* [1e-3]")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    results = {}
    with common.work_folder(given.work) as work:
        for name in given.only:
            results[name] = susy(given, work) if name == "susy" else stored(name, given)
            show(name, results[name])
    common.save(given.out, "snacks", {"rows": given.rows, "results": results})


if __name__ == "__main__":
    main()
