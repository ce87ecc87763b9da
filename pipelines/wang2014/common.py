"""Shared parts of the experiments of Wang et al. 2014: 100 values of C, and ways to solve them.

Rejection is the share of ALL rows that a rule identifies, at both bounds together. Init is the time
of the points solved from zero (the smallest C, for SSNSV and ESSNSV also the largest); it is part
of the total. Speedup is the time of cold solves of all points without screening, by the same
solver, divided by the total. "Beyond warm starts" is the time of the warm-started path without a
rule, divided by the total: the effect of screening alone. Every solve reaches a relative gap of
1e-6, proved over all rows; the two points that SSNSV and ESSNSV need beforehand reach 1e-9. These
two rules use the gaps of the points on either side of a value, and their safe forms identify less
the larger these gaps are: the last column is what each rule identifies if EVERY point reaches 1e-9,
close to the exact solutions that the paper assumes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bigscreen.path.explicit import ColumnsStage
from bigscreen.path.stage import PointTask
from bigscreen.path.walk import PathSettings
from bigscreen.problems.recipes import Problem
from bigscreen.screening.sequential import Dvi, Essnsv, Ssnsv
from pipelines.papers import common as papers
from pipelines.papers.data_sets import Rows

VALUES = np.logspace(-2, 1, 100)
TOL, CLOSE = 1e-6, 1e-9
RULES = {"SSNSV": Ssnsv(), "ESSNSV": Essnsv(), "DVI": Dvi()}


def experiment(rows: Rows, problem: Problem, y: np.ndarray, rules: list[str]) -> dict[str, Any]:
    """Solve one data set's path in all ways, and measure what each rule alone identifies."""
    X = rows.X.astype(np.float32)
    ColumnsStage(X[:64]).solve(
        PointTask(  # compiles, so that no walk pays for it
            problem.dual(y[:64], np.ones(64)), np.zeros(64), np.full(64, 2, np.int8), 1e-3
        )
    )
    ways = {
        "cold": PathSettings(TOL, (), False, False),
        "warm": PathSettings(TOL, (), False, True),
        **{name: PathSettings(TOL, (RULES[name],), False, True, False) for name in rules},
    }
    found: dict[str, Any] = {"name": rows.name, "about": rows.about, "shape": rows.X.shape}
    found["ways"], found["rejection"], found["closer"] = {}, {}, {}
    for way, manner in ways.items():
        stage = ColumnsStage(X)
        both = way in RULES and RULES[way].needs_both_sides
        run = papers.walked(stage, problem, y, VALUES, manner, CLOSE if both else None)
        if way in RULES:
            shares = papers.rejected(stage, run, RULES[way], both)
            found["rejection"][way] = shares.tolist()
        found["ways"][way] = {key: run[key] for key in ("total", "init", "rules", "largest_gap")}
        found["ways"][way]["objectives"] = [p["dual"] for p in run["points"]]
        if way == rules[-1]:
            found["machines"] = [
                stage.machine(step.dual, step.solved)["coef"].tolist()
                for step in (run["steps"][0], run["steps"][-1])
            ]
    stage = ColumnsStage(X)
    close = papers.walked(stage, problem, y, VALUES, PathSettings(CLOSE, (), False, True))
    for name in rules:
        shares = papers.rejected(stage, close, RULES[name], RULES[name].needs_both_sides)
        found["closer"][name] = shares.tolist()
    cold, warm = (found["ways"][way]["total"] for way in ("cold", "warm"))
    for run in found["ways"].values():
        run["speedup"], run["beyond_warm"] = cold / run["total"], warm / run["total"]
    return found


def rejection(found: dict[str, Any], rule: str, gaps: str = "rejection") -> float:
    """Average what a rule identified over the grid; gaps "closer": every point solved to CLOSE."""
    return float(np.mean(np.sum(found[gaps][rule], axis=1)))


def times(
    title: str,
    sets: list[dict[str, Any]],
    paper: dict[str, dict[str, float]],
    trial: bool = False,
) -> Any:
    """Make the tables of seconds: ours, with the paper's speedups in brackets and a verdict."""
    lines = []
    for found in sets:
        for way, run in found["ways"].items():
            ruled = way in found["rejection"]
            printed = paper.get(found["name"], {}).get(way)
            lines.append(
                (
                    f"{found['name']} {found['shape'][0]:,} x {found['shape'][1]}",
                    f"solver, {way}" if not ruled else f"solver + {way}",
                    f"{run['rules']:.3f}" if ruled else "",
                    f"{run['init']:.3f}",
                    f"{run['total']:.3f}",
                    papers.beside(run["speedup"], printed),
                    f"{run['beyond_warm']:.2f}" if ruled else "",
                    f"{rejection(found, way):.1%}" if ruled else "",
                    f"{rejection(found, way, 'closer'):.1%}" if ruled else "",
                    f"{run['largest_gap']:.0e}",
                    papers.judge([speedup(found, way, printed)], papers.FEWER if trial else ""),
                )
            )
    heads = (
        *("", "", "rule s", "init s", "total s", "speedup (paper's)", papers.BEYOND),
        *("rejected", f"with all gaps {CLOSE:g}", "largest gap", "verdict"),
    )
    return papers.table(title, heads, lines, (title.partition(":")[0].lower(),))


def speedup(found: dict[str, Any], way: str, printed: float | None) -> papers.Claim:
    """Put our speedup of a rule next to the paper's."""
    return papers.Claim("speedup", found["ways"][way]["speedup"], printed, papers.at_least)


def missed(sets: list[dict[str, Any]], paper: dict[str, dict[str, float]]) -> list[str]:
    """Make a sentence on the speedups that are not reproduced, if there are any."""
    lines = [
        f"{found['name']} {rule} {found['ways'][rule]['speedup']:.3g} ({printed:g})"
        for found in sets
        for rule, printed in paper.get(found["name"], {}).items()
        if papers.judge([speedup(found, rule, printed)]) != "agrees"
    ]
    how = "the screened path is so many times as fast as cold solves (in brackets as printed)"
    return [f"{how}: {', '.join(lines)}"] if lines else []


def notes(sets: list[dict[str, Any]]) -> list[str]:
    """Make the notes: stand-ins, assumptions, and the effect of the solves' gaps."""
    lines = [f"{found['name']}: {found['about']}" for found in sets if found["about"]]
    if any(rule in found["closer"] for found in sets for rule in ("SSNSV", "ESSNSV")):
        lines.append(
            f"SSNSV and ESSNSV are limited by the gaps of the points that they rest on: all of "
            f"them are to {TOL:g} here but the first and the last, {CLOSE:g}; the column beside "
            f"is with all to {CLOSE:g}"
        )
    return lines
