"""Is SRBO faster than no screening, over all our experiments? (Yang, table XII).

    python -m pipelines.yang_srbo.wilcoxon --out FOLDER

Wilcoxon's signed rank test over the seconds in the records that the other experiments have left in
FOLDER. What the paper calls W+, the ranks of time(SVM) - time(SRBO) > 0, is W-: its few sets
where SRBO is slower. Its p is one-sided for some columns and two-sided for others; both stand here.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import wilcoxon

from pipelines.papers import common as papers

PAPER = (
    ("nu-SVM, 26 small sets, linear", 13, 20, 0.0402),
    ("nu-SVM, 26 small sets, RBF", 26, 39, 0.0007),
    ("OC-SVM, 26 small sets, linear", 26, 47, 0.0003),
    ("OC-SVM, 26 small sets, RBF", 26, 38, 0.0002),
    ("5 medium sets, quadprog, linear", 4, 0, 0.125),
    ("5 medium sets, quadprog, RBF", 4, 0, 0.125),
    ("5 medium sets, DCDM, linear", 5, 0, 0.0313),
    ("5 medium sets, DCDM, RBF", 5, 0, 0.0313),
    ("MNIST, quadprog, linear", 9, 0, 0.0020),
    ("MNIST, quadprog, RBF", 9, 3, 0.0098),
    ("MNIST, DCDM, linear", 9, 0, 0.0020),
    ("MNIST, DCDM, RBF", 9, 1, 0.0039),
)
"""The paper's number of sets, W and p."""

PRINTED = 1e-4
"""A printed p agrees with a computed one up to its last digit, rounded or cut."""

RECORDS = {
    "yang_srbo.supervised": "nu-SVM, sets at hand",
    "yang_srbo.one_class": "OC-SVM, sets at hand",
    "yang_srbo.mnist": "MNIST",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=papers.question(__doc__))
    parser.add_argument("--out", type=Path, required=True, help="folder with the other records")
    given = parser.parse_args()
    if not given.out.is_dir():
        sys.exit(f"error: there is no folder {given.out}; run the other experiments with it first")
    found, lines, missing = [], [], []
    for label, cold, warm, ruled in samples(given.out, missing):
        for against, seconds in (("cold", cold), ("warm", warm)):
            if not seconds:
                continue
            one = tested(np.array(seconds), np.array(ruled))
            found.append({"name": label, "against": against, **one})
            cells = (f"{one['n']}", f"{one['plus']:g}", f"{one['minus']:g}")
            ps = (f"{one['p_one_sided']:.4f}", f"{one['p_two_sided']:.4f}")
            lines.append((f"{label}, {against}", *cells, *ps))
    printed = []
    for label, n, w, p in PAPER:
        one, two = exact(n, w)
        sides = (("one-sided", one), ("two-sided", two))
        fits = [side for side, own in sides if abs(own - p) <= PRINTED]
        verdict = f"agrees: {fits[0]}" if fits else "differs: p"
        printed.append((label, f"{n}", f"{w}", f"{p:.4f}", f"{one:.4f}", f"{two:.4f}", verdict))
    record: dict[str, Any] = {
        "question": papers.question(__doc__),
        "notes": [
            "W+: ranks of the sets where SRBO is faster, W-: of those where it is slower; "
            "one-sided: the alternative is that SRBO is faster",
            "the paper prints W- as W+, and p of one side or of both: from its own n and W both "
            "are computed in the second table",
            "with 5 sets no one-sided p is below .0313, no two-sided one below .0625",
            *missing,
        ],
        "tables": [
            papers.table("Ours", ("", "n", "W+", "W-", "p one-sided", "p two-sided"), lines),
            papers.table(
                "Table XII, and what its n and W give",
                ("", "n", "W printed", "p printed", "p one-sided", "p two-sided", "verdict"),
                printed,
                ("table XII",),
            ),
        ],
        "sets": found,
    }
    papers.keep(given.out, "yang_srbo.wilcoxon", record, {})


def samples(folder: Path, missing: list[str]) -> list[tuple[str, list, list, list]]:
    """Collect the seconds of all runs: (label, cold, warm, SRBO)."""
    out = []
    for name, label in RECORDS.items():
        file = folder / f"{name}.json"
        if not file.exists():
            missing.append(f"{file.name} is not there: {label} left out")
            continue
        sets = json.loads(file.read_text())["sets"]
        for kernel in ("linear", "RBF"):
            own = [one for one in sets if one["kernel"] == kernel]
            if own:
                ways = ("nu-SVM", "nu-SVM, warm", "SRBO")
                cold, warm, ruled = ([one[way]["seconds"] for one in own] for way in ways)
                out.append((f"{label}, {kernel}", cold, warm, ruled))
    file = folder / "yang_srbo.solvers.json"
    if not file.exists():
        missing.append(f"{file.name} is not there: the solvers left out")
        return out
    runs = [one["runs"] for one in json.loads(file.read_text())["sets"]]
    for solver in ("QP", "pairs"):
        plain, ruled = (
            [run[way]["seconds"] for run in runs] for way in (solver, f"{solver} + SRBO")
        )
        warm = [run[f"{solver}, warm"]["seconds"] for run in runs if f"{solver}, warm" in run]
        out.append((f"solvers, {solver}", plain, warm, ruled))
    return out


def tested(plain: np.ndarray, ruled: np.ndarray) -> dict[str, Any]:
    """Run the test over pairs of seconds."""
    plus = wilcoxon(plain, ruled, alternative="greater")
    n = len(plain)
    return {
        "n": n,
        "plus": float(plus.statistic),
        "minus": n * (n + 1) / 2 - float(plus.statistic),
        "p_one_sided": float(plus.pvalue),
        "p_two_sided": float(wilcoxon(plain, ruled).pvalue),
    }


def exact(n: int, w: int) -> tuple[float, float]:
    """Compute the exact one- and two-sided p of a rank sum w of n untied pairs."""
    ways = np.zeros(n * (n + 1) // 2 + 1)
    ways[0] = 1.0
    for rank in range(1, n + 1):
        ways[rank:] += ways[:-rank].copy()
    one = float(np.sum(ways[: w + 1]) / 2.0**n)
    return one, min(1.0, 2 * one)


if __name__ == "__main__":
    main()
