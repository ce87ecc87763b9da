"""What may be removed at which duality gap? (Zimmert et al. 2015, table 1 and figure 1).

    python -m pipelines.zimmert2015.screening [--data FOLDER] [--out FOLDER] [--rows N]

Table 1 (MNIST digits 0 and 7): the duality gap at which a rule has removed a half, 75 %, 87.5 % and
93.8 % of the rows, how often all rows had to come back, and kernel evaluations until LIBSVM's
stopping rule holds over all rows; figure 1 (digits 3 and 5): the gap against kernel evaluations.
C = 1, sigma = 6 (gamma = 1/72), no offset, working sets of size one; the paper does not say how
pixels are scaled: pixels / 255 is assumed, nor how often its rules look: after every step here.
The paper's numbers are shown next to ours. Its headline, that f-safe shrinking spares evaluations,
is not reproduced: bringing rows back at the end costs what leaving them out has saved.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from bigscreen.data.memory import MemoryDataset
from bigscreen.features.design import Design
from bigscreen.fit.loop import fit
from bigscreen.fit.monitor import Limits
from bigscreen.fleet.inline import Inline
from bigscreen.kernels.standard import Rbf
from bigscreen.problems.recipes import CSvc
from bigscreen.screening.dynamic import Adaptive, FSafe, GapBall, Joachims, Rule
from bigscreen.solvers.protocol import Run
from bigscreen.solvers.smo.solver import Pairs
from pipelines.papers import common as papers

EVERY = 1
"""A rule checks for removable rows once in this many steps."""

SPARED = 0.8
"""f-safe counts as a saving if it takes at most this part of the others' evaluations."""

REMOVED = (0.5, 0.75, 0.875, 0.938)

RULES: dict[str, Rule | None] = {
    "unscreened": None,
    "safe": GapBall(),
    "f = .32": FSafe(0.32),
    "f = .1": FSafe(0.1),
    "f = .032": FSafe(0.032),
    "f = .01": FSafe(0.01),
    "Joachims": Joachims(1),
    "adaptive f": Adaptive(),
}

PAPER: dict[str, tuple[Any, ...]] = {
    "safe": (0.83, 0.35, 0, 0, 0, 6.2e6),
    "f = .32": (7.9, 3.5, 1.0, 0, 0, 3.3e6),
    "f = .1": (61, 33, 10, 0.97, 0, 1.8e6),
    "f = .032": (260, 150, 65, 15, 14, 7.7e6),
    "f = .01": (1100, 430, 230, 60, 37, 4.4e6),
    "Joachims": (160, 72, 27, 9.3, 270, 9.4e6),
}
"""The paper's table 1: gap at 50, 75, 87.5 and 93.8 % removal, re-shrinkings, evaluations."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Zimmert et al. 2015: table 1 and figure 1.")
    default = Path(__file__).resolve().parents[3] / "shared" / "data"
    folder = Path(os.environ.get("BIGSCREEN_DATA", default))
    parser.add_argument("--data", type=Path, default=folder, help="folder that holds mnist/")
    parser.add_argument("--rows", type=int, help="the first N rows of the two digits only")
    parser.add_argument("--eps", type=float, default=1e-3, help="LIBSVM's stopping rule [1e-3]")
    parser.add_argument(
        "--out", type=Path, help="write zimmert2015.screening.json and its figure there"
    )
    given = parser.parse_args()
    record: dict[str, Any] = {
        "question": papers.question(__doc__),
        "notes": [
            "the paper says neither how pixels are scaled nor how often its rules look: pixels / "
            "255 and after every step are assumed",
            *([f"the first {given.rows:,} rows of the two digits"] if given.rows else []),
        ],
        "not_reproduced": [],
        "tables": [],
        "eps": given.eps,
        "every": EVERY,
    }
    for name, digits in (("table 1", (0, 7)), ("figure 1", (3, 5))):
        data = digit_pair(given.data, *digits, given.rows)
        runs = {rule: one(data, RULES[rule], given.eps) for rule in RULES}
        record[name] = runs
        title = f"{name.capitalize()}: digits {digits[0]} and {digits[1]}, {data.n_rows:,} rows"
        paper = PAPER if name == "table 1" and given.rows is None else {}
        record["tables"].append(show(title, runs, paper))
        record["not_reproduced"] += [] if given.rows else missed(title, runs)
    figures = {"figure-1": figure(record["figure 1"])} if given.out else {}
    papers.keep(given.out, "zimmert2015.screening", record, figures)


def digit_pair(folder: Path, one: int, other: int, rows: int | None) -> MemoryDataset:
    """Load the training images of two digits, pixels / 255; the first digit is class +1."""
    files = [folder / "mnist" / f"train-{part}-ubyte.gz" for part in ("images-idx3", "labels-idx1")]
    for file in files:
        if not file.exists():
            sys.exit(f"error: {file} is missing; name the folder that holds mnist/ with --data")
    with gzip.open(files[0]) as images, gzip.open(files[1]) as labels:
        X = np.frombuffer(images.read(), np.uint8, offset=16).reshape(-1, 784)
        y = np.frombuffer(labels.read(), np.uint8, offset=8)
    pick = np.flatnonzero((y == one) | (y == other))[:rows]
    codes = (y[pick] == one).astype(np.int32)
    return MemoryDataset((X[pick] / 255).astype(np.float32), codes, [other, one])


def one(data: MemoryDataset, rule: Rule | None, eps: float) -> dict[str, Any]:
    """Solve to LIBSVM's stopping rule; return the history, and what the screening rule did."""
    # (Evaluations that steps request are counted, so there is no matrix of all open rows.)
    solver = Pairs("second", 1, cache=4 * data.n_rows**2, whole=0, eps=eps, every=EVERY)
    limits = Limits(0.0, 10**6, restarts=10**6)
    began = time.monotonic()
    with Inline(1) as fleet:
        run = Run(Design(data, Rbf(1 / 72)), CSvc(1.0, 1), fleet)
        found = fit(run, solver, limits, rule=rule)
    seconds = time.monotonic() - began
    history = found.history
    alive = [(event["rows_alive"], event["primal"] - event["dual"]) for event in history]
    most = [data.n_rows * (1 - part) for part in REMOVED]
    # (Only until rows come back for the first time: the end updates all of them anyway.)
    pairs = itertools.pairwise(history)
    back = (a for a, b in pairs if b["rows_alive"] > a["rows_alive"])
    before = next(back, history[-1])["kernel_entries"]
    return {
        "gap_at_removal": [next((gap for n, gap in alive if n <= few), 0.0) for few in most],
        "reshrinkings": found.screening["taken_back"],
        "false_removals": found.screening.get("false_removals", 0),
        "kernel_entries": history[-1]["kernel_entries"],
        "entries_before_back": before,
        "steps": history[-1]["steps"],
        "gap": found.certificate.gap,
        "dual": found.certificate.dual,
        "seconds": seconds,
        "curve": [(e["kernel_entries"], e["primal"] - e["dual"]) for e in history],
    }


HEADS = (
    *("", "gap at 50 %", "75 %", "87.5 %", "93.8 %", "back", "evaluations"),
    *("before rows came back", "removed wrongly", "steps", "gap at the end", "seconds", "verdict"),
)


def show(title: str, runs: dict[str, dict[str, Any]], paper: dict[str, tuple[Any, ...]]) -> Any:
    """Print our numbers, with the paper's in brackets and a verdict."""
    shown = ["gaps"] * len(REMOVED) + ["rows back", "evaluations"]
    lines = []
    for name, run in runs.items():
        ours = [*run["gap_at_removal"], run["reshrinkings"], run["kernel_entries"]]
        theirs = paper.get(name, (None,) * len(ours))
        cells = [
            f"{value:.3g}" + ("" if printed is None else f" ({printed:.3g})")
            for value, printed in zip(ours, theirs, strict=True)
        ]
        rest = (
            f"{run['entries_before_back']:.3g}",
            f"{run['false_removals']:,}",
            f"{run['steps']:,}",
            f"{run['gap']:.2g}",
        )
        claims = [
            papers.Claim(what, *pair, papers.alike)
            for what, *pair in zip(shown, ours, theirs, strict=True)
        ]
        lines.append((name, *cells, *rest, f"{run['seconds']:.1f}", papers.judge(claims)))
    return papers.table(title, HEADS, lines, (title.partition(":")[0].lower(),))


def missed(title: str, runs: dict[str, dict[str, Any]]) -> list[str]:
    """Compare the paper's headline with these runs, if f-safe does not take much less."""
    plain, joachims = (runs[rule]["kernel_entries"] for rule in ("unscreened", "Joachims"))
    safe = {rule: run["kernel_entries"] for rule, run in runs.items() if rule.startswith("f = ")}
    if min(safe.values()) < SPARED * min(plain, joachims):
        return []
    printed = ", ".join(f"{rule} {PAPER[rule][-1]:.2g}" for rule in ("Joachims", "safe", *safe))
    ours = ", ".join(f"{rule} {entries:.2g}" for rule, entries in safe.items())
    return [
        f"f-safe shrinking spares kernel evaluations (digits 0 and 7 as printed: {printed}). "
        f"{title}: unscreened {plain:.2g}, safe {runs['safe']['kernel_entries']:.2g}, {ours}, "
        f"Joachims {joachims:.2g}"
    ]


def figure(runs: dict[str, dict[str, Any]]) -> Any:
    """Plot the duality gap against kernel evaluations."""
    drawn, ((axes,),) = papers.canvas(1, 1)
    for name, run in runs.items():
        entries, gaps = zip(*((e, gap) for e, gap in run["curve"] if gap > 0), strict=True)
        axes.loglog(entries, gaps, label=name)
    axes.set_xlabel("kernel evaluations")
    axes.set_ylabel("duality gap of the rows alive")
    axes.legend(fontsize=7)
    return drawn


if __name__ == "__main__":
    main()
