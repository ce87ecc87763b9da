"""The exact kernel machine on 250,000 rows of KDD-99, a kernel matrix of 250 GB, in 4 GiB.

    python -m pipelines.bench.exact.kdd99 [--only inline "2 workers" "worker killed"] [--out FOLDER]

Each run is a `bigscreen fit --exact` of its own from the ingested store; memory is the peak PSS of
all its processes. Errors are of the held-out rows, and of the held-out rows whose features occur in
no training row (72 % of this table's rows are copies). "worker killed" is 2 workers, one of which
gets a SIGKILL halfway: not a bit of the objectives may change.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import psutil

from bigscreen.data.dataset import Dataset
from bigscreen.model.model import Model
from pipelines.bench import common
from pipelines.bench.accuracy import unseen_error

ROWS, TRAINED = 494_021, 250_000
TOL, MOST_BYTES = 1e-3, 4 * 2**30
PREPARED = ("--no-header", "--label", "-1", "--positive", "normal.", "--scale", "minmax")
FIT = ("--exact", "--C", 10, "--gamma", 0.1, "--memory", "4GiB", "--tol", TOL)
UNDISTURBED, KILLED = "2 workers", "worker killed"
RUNS = {"inline": (), UNDISTURBED: ("--workers", 2), KILLED: ("--workers", 2)}


def one(train: Path, test: Path, model: Path, options: tuple[object, ...]) -> dict[str, Any]:
    """Run a fit on the command line, and compute its errors."""
    fit = common.bigscreen("fit", train, model, "--overwrite", *FIT, *options)
    known = ("primal", "dual", "gap", "relative_gap", "rounding_bound", "n_iter", "rows")
    known += ("seconds", "peak_pss_bytes")
    return {
        **{name: fit[name] for name in known},
        "error": common.bigscreen("evaluate", model, test)["error"],
        "unseen": unseen_error(Model.load(model), Dataset.open(train), Dataset.open(test)),
    }


def kill_a_worker(killed: list[int]) -> None:
    """Kill the larger worker of the running fit by SIGKILL (Dask spawns its workers)."""
    below = psutil.Process().children(recursive=True)
    workers = [each for each in below if "spawn_main" in " ".join(each.cmdline())]
    victim = max(workers, key=lambda each: each.memory_info().rss)
    victim.kill()
    killed.append(victim.pid)


def main() -> None:
    parser = common.arguments("The exact machine on KDD-99.", list(RUNS))
    given = parser.parse_args()
    if KILLED in given.only and UNDISTURBED not in given.only:
        parser.error(f"--only '{KILLED}' needs '{UNDISTURBED}' beside it, to compare with")
    results: dict[str, Any] = {}
    with common.work_folder(given.work) as work:
        source = common.file("kddcup99/kddcup.data_10_percent.gz")
        train = common.ingested(work / "kdd.store", source, *PREPARED, "--holdout", ROWS - TRAINED)
        for name in (each for each in RUNS if each in given.only):
            killed: list[int] = []
            if name == KILLED:
                halfway = 0.5 * results[UNDISTURBED]["seconds"]["total"]
                threading.Timer(halfway, kill_a_worker, [killed]).start()
            results[name] = one(train, work / "kdd-holdout.store", work / "kdd.bsm", RUNS[name])
            if name == KILLED and not killed:
                sys.exit("error: the fit was over before one of its workers was killed")
    rows = [
        (
            *(name, f"{run['seconds']['total']:.1f}", f"{run['relative_gap']:.2e}"),
            f"{run['peak_pss_bytes'] / 2**30:.2f} GiB",
            f"{run['error']:.3%}",
            f"{run['unseen']['error']:.3%} of {run['unseen']['rows']:,}",
            f"gap <= {TOL:g}, {MOST_BYTES / 2**30:g} GiB",
            common.verdict(run["relative_gap"] <= TOL and run["peak_pss_bytes"] <= MOST_BYTES),
        )
        for name, run in results.items()
    ]
    heads = ("how", "seconds", "gap", "peak PSS", "error", "error on unseen rows", "asked", "")
    common.show(f"KDD-99, {TRAINED:,} rows, exact kernel, C=10, gamma=.1", heads, rows)
    objectives = {(run["primal"], run["dual"]) for run in results.values()}
    if len(results) > 1:
        print(f"all runs have the same objectives to the bit: {len(objectives) == 1}")
    common.save(given.out, "exact_kdd", {"results": results})


if __name__ == "__main__":
    main()
