"""The memory that `bigscreen plan` predicts, compared with the memory of twelve fits.

    python -m pipelines.scale.plan [--only NAME ...] [--scale 1] [--out FOLDER] [--work FOLDER]

Dense, wide and sparse rows, landmarks and exact machines, threads and worker processes, an
allowance that holds the rows and some that do not. Every row is made up. The plan is made first,
then the same options are fitted; required: a peak within 25 %.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bigscreen.data.synthetic import susy_like
from bigscreen.intake.ingest import ingest
from pipelines.bench import common
from pipelines.scale.shapes import rcv1_like

MEMORY_WITHIN = 1.25


def normal(n: int, d: int, seed: int = 0) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Make standard normal rows, and two labels by a sum of squares and noise."""
    for k, start in enumerate(range(0, n, 1 << 14)):
        rng = np.random.default_rng([seed, k])
        X = rng.standard_normal((min(1 << 14, n - start), d)).astype(np.float32)
        signal = X[:, 0] + 0.5 * (X[:, 1] ** 2 - 1) + 0.5 * rng.standard_normal(len(X))
        yield X, (signal > 0).astype(np.int64)


class Case(NamedTuple):
    """A case: how its rows are made, how many, and the options of its fit."""

    rows: Callable[[int], Any]
    n: int
    options: tuple[object, ...]


SUSY = ("--gamma", 1 / 32, "--C", 1.25)
CASES = {
    "18 columns, m=300": Case(susy_like, 500_000, ("--landmarks", 300, *SUSY)),
    "18 columns, m=300, stored": Case(
        susy_like, 300_000, ("--landmarks", 300, "--features", "stored", *SUSY)
    ),
    "18 columns, m=300, stored, 1 GiB": Case(
        susy_like, 700_000, ("--landmarks", 300, "--features", "stored", "--memory", "1GiB", *SUSY)
    ),
    "18 columns, m=1000": Case(susy_like, 500_000, ("--landmarks", 1000, *SUSY)),
    "18 columns, m=300, 2 workers": Case(
        susy_like, 500_000, ("--landmarks", 300, "--workers", 2, *SUSY)
    ),
    "784 columns, m=500": Case(
        lambda n: normal(n, 784), 40_000, ("--landmarks", 500, "--gamma", 1 / 784)
    ),
    "18 columns, linear": Case(susy_like, 1_000_000, ("--kernel", "linear")),
    "3,000 columns, linear": Case(lambda n: normal(n, 3000), 20_000, ("--kernel", "linear")),
    "sparse, linear": Case(rcv1_like, 150_000, ("--kernel", "linear", "--solver", "cd")),
    "sparse, m=300": Case(rcv1_like, 60_000, ("--landmarks", 300, "--gamma", 1)),
    "18 columns, exact": Case(susy_like, 20_000, ("--exact", *SUSY)),
    "sparse, exact": Case(rcv1_like, 15_000, ("--exact", "--gamma", 1)),
}


def main() -> None:
    """Ingest, plan and fit every case; print the table."""
    parser = common.arguments("What plan says beside what fits take.", list(CASES))
    parser.add_argument("--scale", type=float, default=1.0, metavar="S", help="rows times S [1]")
    given = parser.parse_args()
    results: dict[str, dict[str, Any]] = {}
    with common.work_folder(given.work) as work:
        for number, name in enumerate(CASES):
            if name in given.only:
                results[name] = one(CASES[name], work, number, given.scale)
    rows = []
    for name, found in results.items():
        memory = found["planned_bytes"] / found["peak_bytes"]
        within = 1 / MEMORY_WITHIN <= memory <= MEMORY_WITHIN
        rows.append(
            (
                name,
                f"{found['planned_bytes'] / 2**20:,.0f} / {found['peak_bytes'] / 2**20:,.0f} MiB",
                f"{memory:.2f}",
                common.verdict(within),
            )
        )
    heads = ("fit", "peak, planned / measured", "", "25 %")
    common.show("Plan beside measured (made-up rows)", heads, rows)
    common.save(given.out, "plan", {"scale": given.scale, "results": results})


def one(case: Case, work: Path, number: int, scale: float) -> dict[str, Any]:
    """Plan and measure one case."""
    n = max(1000, int(case.n * scale))
    # Cases of the same rows share their store.
    alike = (k for k, other in enumerate(CASES.values()) if (other.rows, other.n) == case[:2])
    first = next(alike, number)
    store, model = work / f"rows-{first}-{n}.store", work / f"model-{number}.bsm"
    if not store.exists():
        ingest(case.rows(n), store)
    plan = common.bigscreen("plan", store, *case.options)
    fit = common.bigscreen("fit", store, model, "--overwrite", *case.options)
    return {
        "rows": n,
        "options": list(map(str, case.options)),
        "features": plan["features"],
        "resident": plan["resident"],
        "planned_bytes": plan["peak_bytes"],
        "peak_bytes": fit["peak_pss_bytes"],
        "seconds": fit["seconds"]["total"],
        "parts": fit["seconds"],
        "n_iter": fit["n_iter"],
    }


if __name__ == "__main__":
    main()
