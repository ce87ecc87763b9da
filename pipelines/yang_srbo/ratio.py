"""How does SRBO's screening ratio depend on the step of nu and on the dimension? (Yang's outlook).

    python -m pipelines.yang_srbo.ratio [--only Pima ...] [--rows 400] [--finest .0005] [--step .01]

The paper's two open questions, for SRBO and for the tighter region made of the same two facts (a
ball cut by a half-space: "cut"). Steps: one path of the finest grid, each value screened from the
one a step before it. Dimensions: two normal classes whose Bayes error stays 16 %, whatever d.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bigscreen.screening.sequential import screen
from bigscreen.screening.srbo import Srbo, SrboCut
from pipelines.papers import common as papers
from pipelines.papers import data_sets
from pipelines.yang_srbo import common

RULES = {"SRBO": Srbo(), "cut": SrboCut()}
STEPS = (0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001, 0.0005)
DIMENSIONS = (2, 5, 10, 20, 50, 100, 200, 500, 1000)
THREE = ["Sonar", "Pima", "Abalone"]


def main() -> None:
    parser = papers.arguments(papers.question(__doc__), list(data_sets.SUPERVISED), rows=400)
    parser.set_defaults(only=THREE)
    parser.add_argument("--finest", type=float, default=0.0005, help="step of nu [.0005]")
    parser.add_argument("--step", type=float, default=0.01, help="with dimensions [.01]")
    given = parser.parse_args()
    steps = [step for step in STEPS if step >= given.finest * (1 - 1e-9)]
    by_step, by_dimension = [], []
    for name in given.only:
        rows = data_sets.SUPERVISED[name]().first(given.rows)
        for sigma in (None, common.usual_sigma(rows)):
            ratios = against_steps(common.Bench(rows, rows, sigma), steps, given.finest)
            by_step.append({"name": name, "rows": len(rows.y), "sigma": sigma, "ratios": ratios})
    for d in DIMENSIONS:
        rows = classes(d, given.rows)
        for sigma in (None, common.usual_sigma(rows)):
            bench = common.Bench(rows, rows, sigma)
            ratios = against_steps(bench, [given.step], given.step)
            by_dimension.append({"d": d, "sigma": sigma, "ratios": ratios})
    lines = [
        [_label(one), rule, *(f"{100 * ratio:.2f}" for ratio in one["ratios"][rule])]
        for one in by_step
        for rule in RULES
    ]
    heads = ("screened % at a step of", "rule", *(f"{step:g}" for step in steps))
    wide = [
        [kernel, rule, *(f"{100 * ratio:.2f}" for ratio in _of(by_dimension, kernel, rule))]
        for kernel in ("linear", "RBF")
        for rule in RULES
    ]
    record: dict[str, Any] = {
        "question": papers.question(__doc__),
        "notes": [
            f"at most {given.rows:,} rows of every set; sigma is the power of 2 next to the median "
            "distance between rows",
            "means over all values of nu but the first, which nothing comes before",
            f"dimensions: {given.rows:,} rows, classes N(-m, I) and N(m, I), ||m|| = 1, a step of "
            f"nu of {given.step:g}",
            "the paper leaves both questions open: there are no numbers of its own",
        ],
        "tables": [
            papers.table("Screening ratio against the step of nu", heads, lines),
            papers.table(
                "Screening ratio against the dimension",
                ("screened % at d =", "rule", *(f"{d:,}" for d in DIMENSIONS)),
                wide,
            ),
        ],
        "steps": steps,
        "sets": by_step,
        "dimensions": by_dimension,
    }
    figures = {}
    if given.out:
        figures = {"steps": _steps(by_step, steps), "dimensions": _dimensions(by_dimension)}
    papers.keep(given.out, "yang_srbo.ratio", record, figures)


def against_steps(bench: common.Bench, steps: list[float], finest: float) -> dict[str, list[float]]:
    """Compute the mean share of rows that each rule decides, for every step of nu."""
    values = common.nus(len(bench.codes), finest)
    run = papers.walked(
        bench.stage, bench.problem, bench.codes, values, common.WAYS["nu-SVM, warm"]
    )
    points, stage = run["steps"], bench.stage
    out: dict[str, list[float]] = {name: [] for name in RULES}
    for step in steps:
        stride = max(1, round(step / finest))
        for name, rule in RULES.items():
            shares = []
            for k in range(stride, len(points), stride):
                dual, value = points[k].dual, points[k].record["value"]
                past = [points[k - stride].past]
                found = screen(dual, value, [rule], past, stage.products, stage.norms)
                shares.append(sum(found.counts["all"].values()) / len(dual))
            out[name].append(float(np.mean(shares)))
    return out


def classes(d: int, rows: int, seed: int = 0) -> data_sets.Rows:
    """Make two normal classes whose means are 2 apart."""
    y = np.where(np.arange(rows) % 2 == 0, 1.0, -1.0)
    X = np.random.default_rng(seed).standard_normal((rows, d)) + y[:, None] / np.sqrt(d)
    return data_sets.Rows(f"d = {d}", X, y, "generated")


def _label(one: dict[str, Any]) -> str:
    kernel = "linear" if one["sigma"] is None else f"RBF, sigma {one['sigma']:g}"
    return f"{one['name']} {one['rows']:,}, {kernel}"


def _of(found: list[dict[str, Any]], kernel: str, rule: str) -> list[float]:
    own = [one for one in found if (one["sigma"] is None) == (kernel == "linear")]
    return [one["ratios"][rule][0] for one in own]


def _steps(found: list[dict[str, Any]], steps: list[float]) -> Any:
    figure, axes = papers.canvas(1, len(RULES))
    for ax, rule in zip(axes[0], RULES, strict=True):
        for one in found:
            style = "-" if one["sigma"] is None else "--"
            ax.semilogx(steps, one["ratios"][rule], f"o{style}", markersize=3, label=_label(one))
        ax.set_xlabel("step of nu")
        ax.set_ylim(0, 1)
        ax.set_title(rule, fontsize=9)
    axes[0, 0].set_ylabel("mean share of rows screened")
    axes[0, 0].legend(fontsize=6)
    return figure


def _dimensions(found: list[dict[str, Any]]) -> Any:
    figure, axes = papers.canvas(1, 1)
    for kernel, style in (("linear", "-"), ("RBF", "--")):
        for rule in RULES:
            ratios = _of(found, kernel, rule)
            axes[0, 0].semilogx(DIMENSIONS, ratios, f"o{style}", label=f"{rule}, {kernel}")
    axes[0, 0].set_xlabel("dimension")
    axes[0, 0].set_ylabel("mean share of rows screened")
    axes[0, 0].set_ylim(0, 1)
    axes[0, 0].legend(fontsize=7)
    return figure


if __name__ == "__main__":
    main()
