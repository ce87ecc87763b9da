"""Edits of 1 % of the rows compared with a cold fit, and compressed stores with whole ones.

    python -m pipelines.bench.amend [--only a9a] [--C 1] [--draws 10] [--exact] [--out FOLDER]
    python -m pipelines.bench.amend --compress [--only a9a]

For every draw, in turns: a cold fit of the edited rows, the bound (`--bound`, including the lookup
of rows), and the fit that continues from the old machine. Printed: seconds and processor seconds,
the median of the ratios, the objectives' difference next to the two gaps, and the share of the
store's predictions that provably stay. A cold fit draws new landmarks; objectives are compared only
if the landmarks are equal (rows relabelled).
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bigscreen.amend.amend import amend, bounds
from bigscreen.amend.bound import count_unaffected
from bigscreen.amend.compress import compress
from bigscreen.amend.edits import Edits
from bigscreen.amend.predictions import count_unchanged
from bigscreen.data.dataset import Dataset
from bigscreen.data.memory import MemoryDataset
from bigscreen.data.rows import Rows
from bigscreen.fleet.inline import Inline
from bigscreen.intake.ingest import ingest
from bigscreen.model.model import Model
from bigscreen.options.train import TrainOptions
from bigscreen.train.run import train
from pipelines.bench import common, susy_million

TOL = 1e-6
MACHINES: dict[str, dict[str, Any]] = {
    "a9a": {"landmarks": 800, "gamma": 0.05},
    "ijcnn1": {"landmarks": 1000, "gamma": 2.0},
    "susy": {"landmarks": 500, "gamma": 1 / 32},
}
KINDS = ("remove", "relabel", "add")
MOST_BOUND, MOST_FIT = 0.01, 0.15


def store(name: str, work: Path, rows: int) -> Dataset:
    """Make the training store of a data set."""
    if name == "susy":
        path = work / f"susy-{rows}.store"
        if not path.exists():
            ingest(susy_million.blocks(rows), path)
        return Dataset.open(path)
    source = {"a9a": "a9a/a9a.xz", "ijcnn1": "ijcnn1/ijcnn1.trn.bz2"}[name]
    return Dataset.open(common.ingested(work / f"{name}.store", common.file(source)))


def clocked(what: Callable[[], Any]) -> tuple[Any, np.ndarray]:
    """Call a function; return its result, and its wall and processor seconds."""
    began = np.array([time.perf_counter(), time.process_time()])
    found = what()
    return found, np.array([time.perf_counter(), time.process_time()]) - began


def part(data: Rows, places: np.ndarray) -> MemoryDataset:
    """Copy some rows of a data set to memory."""
    n = data.n_rows
    y, weights = data.y(0, n)[places], data.weights(0, n)[places] if data.has_weights else None
    return MemoryDataset(data.rows(places), y, data.labels, weights, preparation=data.preparation)


def drawn(kind: str, data: Rows, rng: np.random.Generator) -> tuple[Rows, Edits, Rows]:
    """Draw the rows that are fitted first, the edits, and the edited rows."""
    n = data.n_rows
    some = np.sort(rng.choice(n, n // 100, replace=False))
    rest = np.setdiff1d(np.arange(n), some)
    if kind == "add":
        return part(data, rest), Edits(add=part(data, some)), part(data, np.append(rest, some))
    whole = part(data, np.arange(n))
    if kind == "remove":
        return whole, Edits(remove=some), part(data, rest)
    codes = data.y(0, n).copy()
    codes[some] = 1 - codes[some]
    labels = [data.labels[code] for code in codes[some]]
    edited = MemoryDataset(whole.X(0, n), codes, data.labels, preparation=data.preparation)
    return whole, Edits(relabel=(some, labels)), edited


def edits(
    name: str, data: Rows, options: TrainOptions, kind: str, draws: int, fleet: Inline
) -> dict[str, Any]:
    """Measure one kind of edit."""
    runs = []
    for draw in range(draws):
        first, edited, after = drawn(kind, data, np.random.default_rng(draw))
        model = train(first, options, fleet)
        cold, seconds = clocked(lambda: train(after, options, fleet))  # noqa: B023
        (found, changed), quick = clocked(lambda: bounds(model, first, edited))  # noqa: B023
        made, warm = clocked(lambda: amend(model, first, edited, fleet))  # noqa: B023
        proof, other = (m.provenance["certificates"][0] for m in (made.model, cold))
        runs.append(
            {
                "cold": seconds.tolist(),
                "bound": quick.tolist(),
                "amend": warm.tolist(),
                "bound_gap": found[0].relative_gap,
                "relative_gap": proof["relative_gap"],
                "apart": abs(proof["primal"] - other["primal"]) / other["primal"],
                "stay": count_unchanged(model, found, first) / first.n_rows,
                "stay_by_ledger": count_unaffected(found[0], first, changed) / first.n_rows,
                "stayed": float(np.mean(_codes(model, first) == _codes(made.model, first))),
            }
        )
    clocks = {what: np.array([run[what] for run in runs]) for what in ("cold", "bound", "amend")}
    ratios = {what: np.median(clocks[what] / clocks["cold"], axis=0) for what in ("bound", "amend")}
    medians = {key: float(np.median([run[key] for run in runs])) for key in runs[0] if key[0] != "c"
               and not isinstance(runs[0][key], list)}  # fmt: skip
    return {
        "data": name, "C": options.C, "exact": options.exact, "kind": kind, "draws": draws,
        "cold_seconds": np.median(clocks["cold"], axis=0).tolist(),
        "bound_ratio": ratios["bound"].tolist(), "amend_ratio": ratios["amend"].tolist(),
        **medians, "runs": runs,
    }  # fmt: skip


def _codes(model: Model, data: Rows) -> np.ndarray:
    return model.decide(model.scores(data.X(0, data.n_rows), prepared=True))


def compressed(
    name: str, data: Rows, options: dict[str, Any], work: Path, fleet: Inline
) -> dict[str, Any]:
    """Compare a store with its compressed form: their sizes, and the fits of both to 1e-8."""
    tight = TrainOptions(**{**options, "tol": 1e-8})
    whole, seconds = clocked(lambda: train(data, tight, fleet))
    path = work / f"{name}-{options['C']:g}.small"
    model = train(data, TrainOptions(**{**options, "tol": 1e-7}), fleet)
    (small, record), writing = clocked(lambda: compress(model, data, path, fleet, overwrite=True))
    own = {key: value for key, value in options.items() if key not in ("landmarks", "gamma")}
    again, quick = clocked(
        lambda: train(small, TrainOptions(**{**own, "kernel": "linear", "tol": 1e-8}), fleet)
    )
    P, Q = (m.provenance["certificates"][0]["primal"] for m in (whole, again))
    size = [sum(f.stat().st_size for f in Path(d.path).rglob("*") if f.is_file())
            for d in (data, small)]  # fmt: skip
    return {
        "data": name, "C": options["C"], "rows": data.n_rows, "left": record["left"],
        "bytes": size, "apart": abs(P - Q) / P, "whole": seconds.tolist(),
        "small": quick.tolist(), "writing": writing.tolist(),
    }  # fmt: skip


def line(run: dict[str, Any]) -> tuple[object, ...]:
    """Format a run as a line of the table."""
    wall, processor = run["cold_seconds"]
    ratios = [f"{own[0]:.1%} ({own[1]:.1%})" for own in (run["bound_ratio"], run["amend_ratio"])]
    small = [f"{run[key]:.1e}" for key in ("bound_gap", "relative_gap", "apart")]
    shares = [f"{run[key]:.1%}" for key in ("stay", "stay_by_ledger", "stayed")]
    cold = f"{wall:.2f} ({processor:.2f})"
    return (run["data"], run["C"], run["kind"], cold, *ratios, *small, *shares)


def main() -> None:
    parser = common.arguments("Edits and compressed stores.", list(MACHINES))
    parser.add_argument("--C", type=float, nargs="+", default=[0.01, 0.1, 1.0], help="[.01 .1 1]")
    parser.add_argument("--draws", type=int, default=10, help="[10]")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="[all]")
    parser.add_argument("--rows", type=int, default=200_000, help="of SUSY's shape [200,000]")
    parser.add_argument("--exact", action="store_true", help="the exact machine")
    parser.add_argument("--compress", action="store_true", help="compressed stores")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    found, table = [], []
    with common.work_folder(given.work) as work, Inline() as fleet:
        for name in given.only:
            data = store(name, work, given.rows)
            for C in given.C:
                options = {**MACHINES[name], "C": C, "tol": TOL}
                if given.exact:
                    del options["landmarks"]
                    options["exact"] = True
                if given.compress:
                    found.append(compressed(name, data, options, work, fleet))
                    print(found[-1], flush=True)
                    continue
                for kind in given.kinds:
                    run = edits(name, data, TrainOptions(**options), kind, given.draws, fleet)
                    found.append(run)
                    table.append(line(run))
                    print(*table[-1], flush=True)
    if table:
        heads = ("data", "C", "1 %", "cold s (cpu)", "bound", "amend", "gap bound", "gap")
        heads += ("P apart", "stay", "by ledger", "stayed")
        common.show("Edits of 1 % of the rows; ratios to a cold fit, wall (cpu)", heads, table)
        for what, most in (("bound", MOST_BOUND), ("amend", MOST_FIT)):
            worst = max(run[f"{what}_ratio"][0] for run in found)
            print(f"{what}: at most {worst:.1%} of a cold fit, asked {most:.0%}:", end=" ")
            print(common.verdict(worst <= most))
    common.save(given.out, "amend", {"runs": found})


if __name__ == "__main__":
    main()
