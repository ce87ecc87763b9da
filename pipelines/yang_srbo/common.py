"""Shared parts of the experiments of Yang et al. (SRBO-nu-SVM): grids, paths of nu, test scores.

A nu-SVM here is the paper's bounded one: a 1 is appended to every phi, and sum alpha >= nu. Time is
the mean over the grid of nu (and of sigma) of what one value costs; the kernel matrix, which all
values share, is not in it. "cold" solves every value from nothing, as the paper's nu-SVM does (on
the paper's own grid one value in ten, which is enough for a mean); SRBO starts at the value before
and leaves out what the rule has decided: its time is that of delta, screening and reduced solve
together, and "beyond warm starts" is how much faster that is than the same path, warm-started, with
no rule. Every set and kernel that takes less than a minute of a processor on the paper's own grid,
with all its rows, is walked on that by default, the others on a coarser one. Every point is proved
to a relative gap of 1e-4, or, where the optimum is next to nothing, to 1e-8 of the largest of its
grid; a machine whose optimum is no more than ten times that is not scored. Accuracy and AUC are
those of the best parameters on the test rows, as in the paper. Columns are as published: so they
are in the one real set that the paper's authors publish, and its sigmas only fit such columns.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score

from bigscreen.data.memory import MemoryDataset
from bigscreen.features.design import Design
from bigscreen.kernels.operand import Operand
from bigscreen.kernels.standard import Linear, Rbf
from bigscreen.path.gram import GramStage
from bigscreen.path.stage import PathPoint, PointTask
from bigscreen.path.walk import PathSettings, Step
from bigscreen.problems.dual import FREE, Dual
from bigscreen.problems.recipes import CSvc, NuSvc, OneClass, Problem
from bigscreen.screening.srbo import Srbo, SrboCut
from pipelines.papers import common as papers
from pipelines.papers.data_sets import Rows, toy

TOL = 1e-4
FLOOR = 1e-8
"""A gap that is small enough, as a part of the largest objective of the grid: with a small nu the
optimum is 0 where the classes overlap, and nothing is a small part of it."""

STEP = 0.001
SIGMAS = 2.0 ** np.arange(-3, 9)
COSTS = 2.0 ** np.arange(-3, 9)
"""Values of C of the C-SVM column: the powers of 2 that the paper has for sigma."""

WAYS = {
    "nu-SVM": PathSettings(TOL, (), False, False),
    "nu-SVM, warm": PathSettings(TOL, (), False, True),
    "SRBO": PathSettings(TOL, (Srbo(),), False, True, False),
    "SRBO + cut": PathSettings(TOL, (SrboCut(),), False, True, False),
}


PARTS = 10
"""On the paper's own grid, one value in this many is solved cold."""


@dataclass(frozen=True)
class Grid:
    """The grid of an experiment: rows of the set (None: all), step of nu, powers of 2 for sigma."""

    rows: int | None
    step: float
    powers: tuple[int, ...]

    @property
    def sigmas(self) -> list[float | None]:
        return [2.0**power for power in self.powers]

    @property
    def papers(self) -> bool:
        """Whether it has the paper's values of nu, and all rows."""
        return self.rows is None and self.step == STEP

    def described(self, kernel: str) -> str:
        """Describe the grid for a table."""
        if self.papers and (kernel == "linear" or self.powers == PAPERS.powers):
            return "the paper's"
        count = len(self.powers)
        widths = "" if kernel == "linear" else f", {count} sigma{'s' * (count > 1)}"
        return f"step {self.step:g}{widths}"


PAPERS = Grid(None, STEP, tuple(range(-3, 9)))
FEWER = Grid(None, STEP, (0, 4, 8))
"""The paper's rows and values of nu, for three of its sigmas."""


def arguments(description: str, sets: list[str], coarse: Grid) -> argparse.ArgumentParser:
    """Make the parser of an experiment with grids; ``coarse``: the grid of slow sets."""
    parser = papers.arguments(description, sets)
    powers = " ".join(map(str, coarse.powers))
    quick = "the paper's where that takes less than a minute, else"
    parser.add_argument("--step", type=float, help=f"of nu [{quick} {coarse.step:g}]")
    if coarse.powers:
        parser.add_argument("--powers", type=int, nargs="+", help=f"sigma = 2^i [{quick} {powers}]")
    else:
        parser.set_defaults(powers=None)
    return parser


def grid(given: argparse.Namespace, default: Grid) -> Grid:
    """Return a default grid, changed by the given options."""
    return Grid(
        default.rows if given.rows is None else given.rows,
        default.step if given.step is None else given.step,
        default.powers if given.powers is None else tuple(given.powers),
    )


def nus(rows: int, step: float = STEP) -> np.ndarray:
    """Return the paper's values of nu, .01 : .001 : 1 - 1/l, or coarser ones."""
    return np.arange(0.01, 1.0 - 1.0 / rows, step)


def usual_sigma(rows: Rows) -> float:
    """Return the power of 2 next to the median distance of rows, within the paper's range."""
    X = rows.first(500).X
    squares = np.sum(X**2, axis=1)
    distances = np.sqrt(np.maximum(squares[:, None] + squares - 2 * X @ X.T, 0.0))
    power = np.log2(np.median(distances[np.triu_indices(len(X), 1)]))
    return float(np.clip(2.0 ** np.round(power), SIGMAS[0], SIGMAS[-1]))


@dataclass
class Bench:
    """A training set and its kernel matrix, and the entries between test and training rows.

    Attributes
    ----------
    one_class : bool
        Train on the positive rows alone, without a constant.
    """

    train: Rows
    test: Rows
    sigma: float | None
    one_class: bool = False

    def __post_init__(self) -> None:
        own = self.train.y > 0 if self.one_class else np.ones(len(self.train.y), np.bool_)
        self.X = self.train.X[own].astype(np.float32)
        self.codes = (self.train.y[own] > 0).astype(np.int32)
        self.kernel = Linear() if self.sigma is None else Rbf(1.0 / (2.0 * self.sigma**2))
        data = MemoryDataset(self.X, self.codes, [-1, 1])
        design = Design(data, None if self.sigma is None else self.kernel)
        self.stage = GramStage(design, not self.one_class, 8 << 30)
        self.stage.floor = FLOOR * abs(self.solved(1.0).dual)
        self.entries = self.against(self.test.X)

    def against(self, X: np.ndarray) -> np.ndarray:
        """Compute the products of phi between rows and the training rows: (rows, training rows)."""
        side = Operand(X.astype(np.float32))
        entries = self.kernel.block(side, Operand(self.X), dtype=np.float64)
        return entries + float(not self.one_class)

    @property
    def problem(self) -> Problem:
        mass = float(len(self.codes))
        return OneClass(0.5, mass) if self.one_class else NuSvc(0.5, 1, mass, (), "constant")

    def solved(self, nu: float, tol: float = TOL) -> PathPoint:
        """Solve one value from zero."""
        n = len(self.codes)
        dual = self.problem.at(nu).dual(self.codes, np.ones(n))
        free = np.full(n, FREE)
        return self.stage.solve(PointTask(dual, dual.feasible(np.zeros(n)), free, tol, None, False))

    @property
    def least(self) -> float:
        """Return the smallest objective to which gaps are relative."""
        return self.stage.floor / TOL

    def walked(self, values: np.ndarray, manner: PathSettings) -> dict[str, Any]:
        """Solve a path of nu: mean seconds per value, share screened, best score on test rows."""
        run = papers.walked(self.stage, self.problem, self.codes, values, manner)
        points = run["points"]
        rows = len(self.codes)
        found = {
            "seconds": run["total"] / len(values),
            "rules": run["rules"] / len(values),
            "screened": float(np.mean([1 - p["left"] / rows for p in points])),
            "left": [p["left"] / rows for p in points],
            "largest_gap": max(p["gap"] / max(abs(p["primal"]), self.least) for p in points),
            "least": self.least,
            "objectives": [p["dual"] for p in points],
        }
        scored = [step for step in run["steps"] if self.scored(step)]
        found["score"] = max(self.score(step.dual, step.solved.alpha) for step in scored)
        if self.one_class:
            found["accuracy"] = max(self.accuracy(step) for step in scored)
        return found

    def scored(self, step: Step) -> bool:
        """Whether the optimum is larger than the gap, so that the machine is worth scoring."""
        return abs(step.solved.dual) > 10 * self.stage.floor

    def score(self, dual: Dual, alpha: np.ndarray) -> float:
        """Compute the accuracy on the test rows, or the AUC of a one-class machine."""
        scores = self.entries @ (dual.sign * alpha)
        if self.one_class:
            return float(roc_auc_score(self.test.y > 0, scores))
        return float(np.mean((scores > 0) == (self.test.y > 0)))

    def accuracy(self, step: Step) -> float:
        """Compute the share of test rows on the right side of a machine's own threshold."""
        scores = self.entries @ (step.dual.sign * step.solved.alpha) + step.offset
        return float(np.mean((scores >= 0) == (self.test.y > 0)))

    def c_svm(self) -> dict[str, Any]:
        """Solve the C-SVM column: every C from zero."""
        problem, n = CSvc(1.0, 1, (), "constant"), len(self.codes)
        began, best = time.perf_counter(), 0.0
        for C in COSTS:
            dual = problem.at(C).dual(self.codes, np.ones(n))
            solved = self.stage.solve(
                PointTask(dual, np.zeros(n), np.full(n, FREE), TOL, None, False)
            )
            best = max(best, self.score(dual, solved.alpha))
        return {"seconds": (time.perf_counter() - began) / len(COSTS), "score": best}


MEANS = {"seconds", "rules", "screened"}
SCORES = {"score", "accuracy"}
BESTS = {*SCORES, "largest_gap"}


def compared(
    train: Rows,
    test: Rows,
    sigmas: list[float | None],
    values: np.ndarray,
    ways: list[str],
    one_class: bool = False,
    c_svm: bool = True,
    stride: int = 1,
) -> dict[str, Any]:
    """Solve the grid of nu in every way for every sigma: mean seconds and shares, best scores.

    Cold solves are of every ``stride``-th value; their score is then the warm path's, which has the
    same optima. A C-SVM is added if requested, and if the machine has two classes.
    """
    compiled()
    found: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
    c_svm = c_svm and not one_class
    if c_svm:
        found["C-SVM"] = []
    for sigma in sigmas:
        bench = Bench(train, test, sigma, one_class)
        for way in ways:
            part = values if WAYS[way].warm else values[::stride]
            found[way].append(bench.walked(part, WAYS[way]))
        if c_svm:
            found["C-SVM"].append(bench.c_svm())
    out: dict[str, Any] = {"name": train.name, "about": train.about, "rows": len(train.y)}
    out["trained"] = int(np.sum(train.y > 0)) if one_class else len(train.y)
    for way, runs in found.items():
        means = {key: float(np.mean([run[key] for run in runs])) for key in MEANS & set(runs[0])}
        best = {key: max(run[key] for run in runs) for key in BESTS & set(runs[0])}
        out[way] = {**means, **best}
    if stride > 1:
        out["nu-SVM"] |= {key: out["nu-SVM, warm"][key] for key in SCORES & set(out["nu-SVM"])}
    # With and without the rule every point must have the same objective.
    out["objectives_apart"] = max(
        abs(a - b) / max(abs(a), run["least"])
        for first in ways[:2]
        for other in ways[1:]
        for run, against in zip(found[first], found[other], strict=True)
        for a, b in zip(
            run["objectives"],
            against["objectives"][:: 1 if WAYS[first].warm else stride],
            strict=True,
        )
    )
    out["speedup"] = out["nu-SVM"]["seconds"] / out["SRBO"]["seconds"]
    out["beyond_warm"] = out["nu-SVM, warm"]["seconds"] / out["SRBO"]["seconds"]
    return out


def missed(found: list[dict[str, Any]], printed: dict[tuple[str, str], tuple]) -> list[str]:
    """Make sentences on ratios and speedups that are not reproduced on the paper's own grid.

    ``found``: records with set, kernel and grid; ``printed``: rows of the paper's tables, the
    last two numbers of which are ratio and speedup.
    """
    names = ("screens", "% of the rows"), ("is", "times as fast as cold solves")
    out = []
    for place, (verb, what) in enumerate(names, -2):
        lines = []
        for one in found:
            theirs = printed.get((one["set"], one["kernel"]), (0.0, 0.0))[place]
            ours = one["speedup"] if place == -1 else 100 * one["SRBO"]["screened"]
            if one["grid"] == "the paper's" and ours < papers.SHORT * theirs:
                lines.append(f"{one['set']} {one['kernel']} {ours:.3g} ({theirs:.3g})")
        if lines:
            out.append(
                f"SRBO {verb} so many {what}, on the paper's own rows and grid (in brackets as "
                f"printed): {', '.join(lines)}"
            )
    return out


def verdict(
    one: dict[str, Any], printed: Sequence[float | None], accuracies: Mapping[str, float]
) -> str:
    """Judge accuracies, screening ratio and speedup, which the paper prints with seconds between.

    ``printed``: a row of the paper's table, or Nones; ``accuracies``: ours in percent, in the
    order of the row (nan: not measured).
    """
    claims = [
        papers.Claim(f"{way} accuracy", ours, None if np.isnan(ours) else theirs, papers.near)
        for (way, ours), theirs in zip(accuracies.items(), printed[:-2:2], strict=True)
    ]
    claims += [
        papers.Claim("screened", 100 * one["SRBO"]["screened"], printed[-2], papers.at_least),
        papers.Claim("speedup", one["speedup"], printed[-1], papers.at_least),
    ]
    return papers.judge(claims, "" if one["grid"] == "the paper's" else papers.FEWER)


def beside(ours: float, printed: float | None) -> str:
    """Format a number to four digits, with the paper's in brackets."""
    return f"{ours:.4g}" + ("" if printed is None else f" ({printed:.4g})")


@cache
def compiled() -> None:
    """Run every way once on a few rows, so that no timed run compiles."""
    rows = toy(0.75, 20)
    for one_class in (False, True):
        for manner in WAYS.values():
            Bench(rows, rows, 1.0, one_class).walked(np.array([0.3, 0.5, 0.7]), manner)


def win_draw_loss(rows: list[dict[str, Any]], of: Any) -> str:
    """Count how often the first of two numbers is above, equal to or below the second."""
    pairs = [of(row) for row in rows]
    signs = [int(np.sign(round(a - b, 12))) for a, b in pairs]
    return "/".join(str(signs.count(sign)) for sign in (1, 0, -1))


def grid_notes(values: np.ndarray, sigmas: list[float | None]) -> list[str]:
    """Say which part of the paper's grid was solved, and for which sets a coarser one."""
    full = len(nus(1000))
    notes = [f"{len(values)} values of nu, {values[0]:g} to {values[-1]:.3g} (the paper: {full})"]
    if sigmas != [None]:
        powers = ", ".join(f"{np.log2(sigma):g}" for sigma in sigmas if sigma)
        notes.append(f"sigma = 2^i, i = {powers} (the paper: -3 to 8)")
    return notes
