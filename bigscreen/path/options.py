"""The options of a path: grid, folds, screening rules; and the checks of a grid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bigscreen.data.rows import Rows
from bigscreen.errors import InputError
from bigscreen.numerics.rows import FloatArray
from bigscreen.options.train import CHANGEABLE, PROBLEMS, TrainOptions
from bigscreen.train.records import describe_difference

FREE_OPTIONS = (*CHANGEABLE, "C", "nu", "lam", "screening", "f")
"""Options of a fit (`TrainOptions`) that do not change a path's result: a path ignores them, or
they say only how and where to compute."""

RULES = {
    **dict.fromkeys(("dvi", "ssnsv", "essnsv"), "C"),
    **dict.fromkeys(("srbo", "srbo-cut"), "nu"),
    "gap": None,
}
"""Names of the screening rules that a path can apply, each with the parameter whose grids it serves
("C" or "nu"; None: both)."""


@dataclass(frozen=True)
class PathOptions:
    """The options of a path.

    Parameters
    ----------
    fit : TrainOptions
        Problem, kernel, offset, class weights, tolerance, memory, seed. ``work`` is the folder that
        keeps points until the path is complete, and ``resume`` continues with them. A time budget
        is divided among the folds and all rows. With ``solver="dense"`` all values and folds are
        solved together. C, nu and all other options of solvers, starts and screening are ignored: a
        path has its own.
    values : array (points,)
        The grid of C (or of nu, if the problem has one), strictly ascending.
    folds : int, sequence of (rows to fit, rows to hold out), or None
        The number of folds, or the row numbers of each as int arrays. Each fold's held-out rows
        score every value.
    rules : sequence of str or None
        Screening rules applied before each solve: "dvi", "ssnsv", "essnsv", "srbo", "srbo-cut" or
        "gap". None: the rules that suit the problem (no rule suits a kernel that is not positive
        semidefinite).
    dynamic : bool
        Whether to screen during a solve as well.
    warm : bool
        Whether to start every solve at the solution for the previous value (a warm start).
    alone : bool
        Whether to record also which rows each screening rule would decide without the other rules
        (for the walk over all rows, not for the folds).
    """

    fit: TrainOptions
    values: ArrayLike
    folds: int | Sequence[Any] | None = None
    rules: Sequence[str] | None = ()
    dynamic: bool = True
    warm: bool = True
    alone: bool = True

    @property
    def parameter(self) -> str:
        """The parameter whose values the grid has: "C" or "nu"."""
        return "nu" if "nu" in PROBLEMS[self.fit.problem].parameters else "C"

    def __post_init__(self) -> None:
        """Raise `InputError` for a problem without paths, and for rules that do not suit it."""
        kind = PROBLEMS[self.fit.problem]
        if kind.squared or kind.twice:
            raise InputError(f"a path does not solve {self.fit.problem}: fit each value by itself")
        given = self.rules or ()
        for k, name in enumerate(given):
            if name in given[:k]:
                raise InputError(f"rule {name} is named twice; give each rule once")
            if RULES.get(name) not in (None, self.parameter):
                raise InputError(
                    f"rule {name} is for grids of {RULES[name]} and {self.fit.problem} has a grid "
                    f"of {self.parameter}; leave it out"
                )
        if self.fit.indefinite:
            refuse_rules(self.rules)

    @property
    def effective_rules(self) -> tuple[str, ...]:
        """The screening rules to use: the named ones, or the rules that suit the problem."""
        return default_rules(self.fit.problem) if self.rules is None else tuple(self.rules)

    def unlike(self, record: Mapping[str, Any], data: Rows) -> str:
        """Say how a saved path differs from this one's data and options; empty if it does not.

        ``record``: the saved path's record (`SolvedPath`), with its values, folds and provenance.
        """
        folds = None if record["folds"] is None else len(record["folds"])
        asked = self.folds if self.folds is None or isinstance(self.folds, int) else len(self.folds)
        own = {"values": record["values"], "folds": folds}
        now = {"values": np.asarray(self.values, np.float64).tolist(), "folds": asked}
        return describe_difference(record["provenance"], data, self.fit, FREE_OPTIONS, (own, now))

    @property
    def record(self) -> dict[str, Any]:
        """The options that change the path's result, JSON-able; a resumed path needs equal ones."""
        names = ("dynamic", "warm", "alone")
        own = {**{name: getattr(self, name) for name in names}, "rules": list(self.effective_rules)}
        folds = self.folds
        if folds is not None and not isinstance(folds, (int, np.integer)):
            folds = [[np.asarray(rows).tolist() for rows in split] for split in folds]
        own["folds"] = folds
        fit = {name: v for name, v in self.fit.folder_record.items() if name not in FREE_OPTIONS}
        return {**fit, **own, "values": np.asarray(self.values).tolist()}


def refuse_rules(rules: Sequence[str] | None) -> None:
    """Refuse screening rules for a kernel that is not positive semidefinite.

    Raises
    ------
    InputError
        If any rule was named.
    """
    if rules:
        raise InputError(
            f"rule {rules[0]} rests on gaps, and a kernel that is not positive semidefinite has "
            "none; leave rules out"
        )


def default_rules(problem: str) -> tuple[str, ...]:
    """Return the screening rules that suit a problem: one for its grid's parameter, and "gap"."""
    return ("srbo-cut", "gap") if "nu" in PROBLEMS[problem].parameters else ("dvi", "gap")


MAX_C = 1e30
"""Refuse values of C outside of [1 / MAX_C, MAX_C] with an error: squares of their ratios overflow
float64."""


def checked_grid(values: ArrayLike, name: str) -> FloatArray:
    """Check a grid, and return its values: float64 (points,), in range and strictly ascending.

    Parameters
    ----------
    name : {"C", "nu"}

    Raises
    ------
    InputError
        If the values are not numbers, out of range, or not strictly ascending. (They are not sorted
        silently: the caller must know which point is which.)
    """
    try:
        grid = np.atleast_1d(np.asarray(values, dtype=np.float64))
    except (TypeError, ValueError) as error:
        raise InputError(f"the values of {name} must be numbers, got {values!r}") from error
    if grid.ndim != 1 or not len(grid):
        raise InputError(f"the values of {name} must be a list of one number or more")
    least, most = (0.0, 1.0) if name == "nu" else (1 / MAX_C, MAX_C)
    wrong = ~((grid > 0) & (grid >= least) & (grid <= most))
    if wrong.any():
        k = int(np.argmax(wrong))
        allowed = "lie in (0, 1]" if name == "nu" else f"lie from {least:g} to {most:g}"
        raise InputError(f"the values of {name} must {allowed}, and value {k + 1} is {grid[k]:g}")
    steps = np.diff(grid)
    if (steps <= 0).any():
        k = int(np.argmax(steps <= 0))
        how = "comes twice" if steps[k] == 0 else f"comes after {grid[k]:g}"
        raise InputError(
            f"the values of {name} must ascend without repeats, and {grid[k + 1]:g} {how} "
            f"(value {k + 2}); sort them, and give each once"
        )
    return grid
