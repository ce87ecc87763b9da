"""How many rows a small gap proves, and how many rows fits read with and without screening.

    python -m pipelines.bench.proved [--only a9a] [--kinds nystrom] [--tol 1e-7] [--out FOLDER]
    python -m pipelines.bench.proved --passes [--rows 1000000] [--tol 1e-6] [--out FOLDER]

The first fits every data set, with landmarks and exactly, to a gap of ``--tol`` and shows what the
ledger says of its rows: proved out, proved at their bound, open. The second fits SUSY's shape with
``--screening gap`` and ``none``, in turns, and shows the rows that every pass has left open and
has read; with ``--out`` it draws them, too.
"""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from bigscreen.data.dataset import Dataset
from bigscreen.data.memory import MemoryDataset
from bigscreen.data.rows import Rows
from bigscreen.fleet.inline import Inline
from bigscreen.intake.ingest import ingest
from bigscreen.options.train import TrainOptions
from bigscreen.train.run import train
from pipelines.bench import common, susy_million
from pipelines.bench.exact import tasks

MACHINES: dict[str, dict[str, Any]] = {
    "susy": {"landmarks": 1000, "gamma": 1 / 32, "C": 1.25},
    "a9a": {"landmarks": 800, "gamma": 0.05, "C": 1.0},
    "ijcnn1": {"landmarks": 1000, "gamma": 2.0, "C": 32.0},
    "kdd": {"landmarks": 1000, "gamma": 0.1, "C": 20.0},
    "mnist": {"landmarks": 1000, "gamma": 1 / 72, "C": 1.0},
    "covtype": {"landmarks": 1000, "gamma": 32.0, "C": 32.0},
}
KINDS = ("nystrom", "exact")
TOO_MANY = 100_000
"""Do not fit exact machines to more rows: they take too long to reach so small a gap."""

SUSY_PROVED = 0.8


def rows_of(name: str, work: Path, rows: int) -> Rows:
    """Load a data set's rows, or make the given number of rows of SUSY's shape."""
    if name == "susy":
        path = work / f"susy-{rows}.store"
        if not path.exists():
            ingest(susy_million.blocks(rows), path)
        return Dataset.open(path)
    if name == "covtype":
        X, y, *_ = tasks.covtype()
        return MemoryDataset(X, (y > 0).astype(np.int32), [0, 1])
    prepared: dict[str, tuple[object, ...]] = {
        "a9a": ("a9a/a9a.xz",),
        "ijcnn1": ("ijcnn1/ijcnn1.trn.bz2",),
        "mnist": ("mnist/train-images-idx3-ubyte.gz", "--scale", "divide:255", "--positive", 7),
        "kdd": ("kddcup99/kddcup.data_10_percent.gz", "--no-header", "--label", "-1", "--positive",
                "normal.", "--scale", "minmax"),
    }  # fmt: skip
    source, *options = prepared[name]
    path = common.ingested(work / f"{name}.store", common.file(str(source)), *options)
    return Dataset.open(path)


def fitted(data: Rows, options: TrainOptions) -> dict[str, Any]:
    """Fit; return what is proved of the rows, the history, and the seconds."""
    began = np.array([time.perf_counter(), time.process_time()])
    with Inline() as fleet, warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the table has the gap
        model = train(data, options, fleet)
    seconds = np.array([time.perf_counter(), time.process_time()]) - began
    proof = model.provenance["certificates"][0]
    assert model.ledger is not None
    return {
        "rows": data.n_rows,
        "relative_gap": proof["relative_gap"],
        "rounding": proof["rounding_bound"] / abs(proof["primal"]),
        **model.ledger[0].counts,
        "seconds": seconds.tolist(),
        "history": model.provenance["history"],
    }


def shares(names: list[str], kinds: list[str], tol: float, work: Path, rows: int) -> dict[str, Any]:
    """Print the table of the rows that fits prove."""
    found, lines = {}, []
    for name in names:
        data = rows_of(name, work, rows)
        for kind in kinds:
            if kind == "exact" and data.n_rows > TOO_MANY:
                continue
            wanted = {**MACHINES[name], "intercept": False, "tol": tol}
            if kind == "exact":
                wanted = {**wanted, "exact": True}
                del wanted["landmarks"]
            record = fitted(data, TrainOptions(**wanted))
            n, proved = data.n_rows, record["out"] + record["bound"]
            found[f"{name}, {kind}"] = record
            asked = name == "susy" and tol == 1e-7
            lines.append(
                (
                    name,
                    kind,
                    f"{n:,}",
                    f"{record['relative_gap']:.1e} + {record['rounding']:.1e}",
                    *(f"{record[key] / n:.1%}" for key in ("out", "bound", "open")),
                    f"{record['seconds'][1]:.1f} s",
                    common.verdict(proved >= SUSY_PROVED * n) if asked else "",
                )
            )
            print(*lines[-1], flush=True)
    heads = ("data", "machine", "rows", "gap + rounding", "out", "bound", "open", "processor", "")
    common.show(f"rows that a fit to {tol:g} proves", heads, lines)
    return found


def passes(tol: float, work: Path, rows: int, out: Path | None) -> dict[str, Any]:
    """Measure the rows that every pass leaves open and reads, with and without screening."""
    data, found, lines = rows_of("susy", work, rows), {}, []
    for rule in ("gap", "none"):
        options = TrainOptions(**MACHINES["susy"], intercept=False, tol=tol, screening=rule)
        record = found[rule] = fitted(data, options)
        lines += [
            (
                rule,
                event["pass"],
                f"{event['relative_gap']:.1e}",
                f"{event['rows_alive']:,}",
                f"{event['rows_read']:,}",
                f"{event['bytes_read'] / 2**20:,.0f} MiB",
            )
            for event in record["history"]
        ]
        total = sum(event["rows_read"] for event in record["history"])
        both = "{:.1f} s, {:.1f} s".format(*record["seconds"])
        lines.append((rule, "all", f"{record['relative_gap']:.1e}", both, f"{total:,}", ""))
    heads = ("screening", "pass", "relative gap", "open", "read", "bytes read")
    common.show(
        f"SUSY's shape, {rows:,} rows, to {tol:g}; seconds, processor seconds", heads, lines
    )
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        drawn(found, out / f"passes-{tol:g}.svg")
    return found


def drawn(found: dict[str, Any], path: Path) -> None:
    """Plot the rows read, pass by pass."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.8), layout="constrained")
    ax = figure.add_subplot()
    for rule, record in found.items():
        history = record["history"]
        read = [event["rows_read"] for event in history]
        ax.semilogy([event["pass"] for event in history], read, ".-", label=f"screening {rule}")
    ax.set_xlabel("pass")
    ax.set_ylabel("rows read since the pass before")
    ax.legend(frameon=False)
    figure.savefig(path, format="svg", metadata={"Date": None})
    print(f"drawn: {path}")


def main() -> None:
    parser = common.arguments("Rows that a small gap proves.", list(MACHINES))
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--tol", type=float, default=1e-7, help="[1e-7]")
    parser.add_argument("--rows", type=int, default=1_000_000, help="of SUSY's shape [1,000,000]")
    parser.add_argument("--passes", action="store_true", help="the rows that every pass reads")
    given = parser.parse_args()
    with common.work_folder(given.work) as work:
        if given.passes:
            results = passes(given.tol, work, given.rows, given.out)
        else:
            results = shares(given.only, given.kinds, given.tol, work, given.rows)
    name = "passes" if given.passes else "proved"
    common.save(given.out, name, {"tol": given.tol, "results": results})


if __name__ == "__main__":
    main()
