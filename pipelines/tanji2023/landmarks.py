"""Which rows make the best landmarks? (Tanji 2023, section II-A; Rudi et al. 2018).

    python -m pipelines.tanji2023.landmarks [--only a9a ...] [--landmarks 100 300 1000] [--seeds 3]
                                            [--rows N] [--out FOLDER]

For every way to choose landmarks, on the same rows: the error of the kernel's approximation (of the
trace, and of the Frobenius norm), the test error of the machine fitted to them (certified to 1e-3),
the seconds that choosing takes (one thread), and the effective dimension of the kernel next to the
number of landmarks. All numbers are means over the seeds.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

from bigscreen.data.memory import MemoryDataset
from bigscreen.evaluate.evaluate import evaluate
from bigscreen.features import landmarks, nystrom
from bigscreen.fleet.inline import Inline
from bigscreen.kernels.operand import Operand
from bigscreen.kernels.standard import Rbf
from bigscreen.options.train import TrainOptions
from bigscreen.train.run import train
from pipelines.papers import common as papers
from pipelines.tanji2023 import sets

WAYS = ("uniform", "rpcholesky", "leverage", "kmeans")
PARAMETERS = {
    "a9a": (0.01, 1e-5),
    "ijcnn1": (2.0, 3e-7),
    "mnist-bin": (1 / 72, 2e-7),
    "SUSY": (1 / 32, 1e-6),
    "kdd99": (0.1, 1e-7),
}
"""gamma and lambda of every set."""
SHOWN = ("a9a", "ijcnn1", "mnist-bin", "SUSY", "kdd99")
SAMPLE = 2000
"""Number of held-out rows between which the approximation is measured."""
RIDGES = (1e-1, 1e-2, 1e-3, 1e-4)
DIMENSION_ROWS = 5000
"""Number of rows from which the effective dimension is estimated."""


def main() -> None:
    parser = papers.arguments(papers.question(__doc__), SHOWN)
    parser.add_argument("--landmarks", nargs="+", type=int, default=[100, 300, 1000], metavar="M")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="[3]")
    sets.files(parser)
    given = parser.parse_args()
    tasks = sets.loaded(given, 60_000)
    found = [compared(task, given.landmarks, given.seeds) for task in tasks]
    heads = (
        "data, landmarks",
        "",
        "trace missed",
        "of new rows",
        "Frobenius",
        "test error",
        "choosing s",
        "fit s",
    )
    lines = [
        (f"{one['shown']}, {run['landmarks']}", run["sampling"], f"{run['trace']:.2e}",
            f"{run['new']:.2e}",
         f"{run['frobenius']:.2e}", f"{run['error']:.3%} +- {run['error_spread']:.3%}",
         f"{run['choosing']:.3f}", f"{run['fit']:.2f}")
        for one in found for run in one["runs"]
    ]  # fmt: skip
    dimensions = [
        (one["shown"], *(f"{one['dimension'][f'{ridge:g}']:.1f}" for ridge in RIDGES))
        for one in found
    ]
    record = {
        "question": papers.question(__doc__),
        "notes": [
            *sets.notes(tasks),
            f"means over {given.seeds} seeds; one fifth of the rows held out; the parts missed are "
            f"those of {SAMPLE:,} training rows, and of as many held-out ones",
            f"the effective dimension, trace K (K + lambda n I)^-1, is that of {DIMENSION_ROWS:,} "
            "training rows, by leverage scores",
            "kmeans takes the rows nearest to the centres: a landmark is a row of the data",
            *said(found),
        ],
        "tables": [
            papers.table("Landmarks by four ways", heads, lines),
            papers.table(
                "Effective dimension", ("", *(f"lambda {ridge:g}" for ridge in RIDGES)), dimensions
            ),
        ],
        "sets": found,
    }
    figures = {"landmarks": figure(found)} if given.out else {}
    papers.keep(given.out, "tanji2023.landmarks", record, figures)


def compared(task: sets.Task, counts: Sequence[int], seeds: int) -> dict[str, Any]:
    """Compare all ways on one set, for all numbers of landmarks."""
    gamma, lam = PARAMETERS[task.name]
    inside, outside = task.fold(0, 5, 0)
    learn, test = (
        MemoryDataset(task.X[part], (task.y[part] > 0).astype(np.int32), [-1, 1])
        for part in (inside, outside)
    )
    counts = [m for m in counts if m <= learn.n_rows]
    kernel = Rbf(gamma)
    pool = some(learn, DIMENSION_ROWS)
    dimension = {}
    for ridge in RIDGES:
        rng = np.random.default_rng(0)
        with threadpool_limits(1, "blas"):
            found = landmarks.estimate_leverage(kernel, pool, rng, ridge=ridge * len(pool))
        dimension[f"{ridge:g}"] = found.dimension
    seen, new = some(learn, SAMPLE), some(test, SAMPLE)
    looked = Looked(seen, kernel.block(seen, seen, dtype=np.float64), new)
    runs = []
    with Inline() as fleet:
        for m in counts:
            for way in WAYS:
                each = [
                    one(learn, test, looked, fleet, way, m, (gamma, lam), seed)
                    for seed in range(seeds)
                ]
                mean = {name: float(np.mean([run[name] for run in each])) for name in each[0]}
                spread = float(np.std([run["error"] for run in each], ddof=min(1, seeds - 1)))
                runs.append({"landmarks": m, "sampling": way, **mean, "error_spread": spread})
                runs[-1]["trace_spread"] = float(np.std([run["trace"] for run in each]))
                print(task.name, m, way, {k: f"{v:.4g}" for k, v in mean.items()}, flush=True)
    return {
        "name": task.name,
        "shown": task.shown,
        "rows": learn.n_rows,
        "gamma": gamma,
        "lambda": lam,
        "dimension": dimension,
        "runs": runs,
    }


def some(rows: MemoryDataset, count: int) -> Operand:
    """Draw at most the given number of rows at random, for files may be sorted."""
    picked = np.random.default_rng(0).permutation(rows.n_rows)[:count]
    return Operand(rows.rows(np.sort(picked)))


class Looked(NamedTuple):
    """Rows on which approximations are measured: some training rows, and some held-out rows."""

    seen: Operand
    exact: np.ndarray
    new: Operand


def one(
    learn: MemoryDataset,
    test: MemoryDataset,
    looked: Looked,
    fleet: Inline,
    way: str,
    m: int,
    parameters: tuple[float, float],
    seed: int,
) -> dict[str, float]:
    """Measure one choice: its approximation error, its machine's error, and both seconds."""
    gamma, lam = parameters
    kernel = Rbf(gamma)
    with threadpool_limits(1, "blas"):  # as in a fit
        began = time.perf_counter()
        side, _ = nystrom.choose_landmarks(learn, kernel, m, way, seed)
        choosing = time.perf_counter() - began
    factor = nystrom.factor_matrix(kernel, side)
    phi, new = (kernel.block(X, side, dtype=np.float64) @ factor for X in (looked.seen, looked.new))
    near, exact = phi @ phi.T, looked.exact
    options = TrainOptions(
        gamma=gamma, landmarks=m, sampling=way, lam=lam, intercept="none", seed=seed
    )
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = train(learn, options, fleet)
    return {
        "choosing": choosing,
        "fit": time.perf_counter() - began,
        "trace": 1.0 - float(np.trace(near) / np.trace(exact)),
        "new": 1.0 - float(np.sum(new**2) / np.sum(kernel.diag(looked.new))),
        "frobenius": float(np.linalg.norm(exact - near) / np.linalg.norm(exact)),
        "error": evaluate(model, test, fleet.each)["error"],
        "gap": model.provenance["certificates"][0]["relative_gap"],
    }


def said(found: list[dict[str, Any]]) -> list[str]:
    """Say which ways are better than uniform landmarks by more than chance."""
    lines = []
    for way in WAYS[1:]:
        better = []
        for one in found:
            runs = {(run["landmarks"], run["sampling"]): run for run in one["runs"]}
            m = max(run["landmarks"] for run in one["runs"])
            trace = runs[m, way]["trace"] / max(runs[m, "uniform"]["trace"], 1e-12)
            apart = 100 * (runs[m, way]["error"] - runs[m, "uniform"]["error"])
            better.append(f"{one['name']} {trace:.2f} and {apart:+.2f} points")
        lines.append(
            f"{way} with the most landmarks, trace missed over uniform's, and error less "
            f"uniform's: {'; '.join(better)}"
        )
    return lines


PANELS = {
    "trace": "part of the trace missed",
    "new": "the same of new rows",
    "error": "test error",
    "choosing": "choosing, s",
}


def figure(found: list[dict[str, Any]]) -> Any:
    """Plot all ways against the number of landmarks."""
    drawn, axes = papers.canvas(len(PANELS), len(found))
    for column, one in zip(axes.T, found, strict=True):
        for ax, (name, title) in zip(column, PANELS.items(), strict=True):
            for way in WAYS:
                own = [run for run in one["runs"] if run["sampling"] == way]
                m = [run["landmarks"] for run in own]
                ax.plot(m, [run[name] for run in own], "o-", label=way, markersize=3)
            ax.set_xscale("log")
            if name != "error":
                ax.set_yscale("log")
            ax.set_title(f"{one['shown']}: {title}", fontsize=9)
            ax.set_xlabel("landmarks")
        column[0].legend(fontsize=7)
    return drawn


if __name__ == "__main__":
    main()
