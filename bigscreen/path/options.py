"""Everything a path can be asked for."""

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
"""Options of a fit on which no path depends."""

RULES = {
    **dict.fromkeys(("dvi", "ssnsv", "essnsv"), "C"),
    **dict.fromkeys(("srbo", "srbo-cut"), "nu"),
    "gap": None,
}
"""The rules of paths, and the parameter that each is for, where it is one."""


@dataclass(frozen=True)
class PathOptions:
    """Everything a path can be asked for.

    Parameters
    ----------
    fit : TrainOptions
        Problem, kernel, offset, class weights, tolerance, memory, seed; ``work`` is where points
        are kept until the path is whole, with ``resume`` to go on with those; a time budget is
        shared out among the folds and all rows. Its C and nu are not looked at, nor are options of
        solvers, starts and screening: a path has its own.
    values : array (points,)
        The grid of C (or nu, where the problem has one), strictly ascending.
    folds : int, sequence of (rows to fit, rows to hold out), or None
        Parts of the rows, each held out once to judge every value; or which, as int arrays.
    rules : sequence of str or None
        Of "dvi", "ssnsv", "essnsv", "srbo", "srbo-cut" and "gap": which rows are left out before
        a solve. None: those that suit the problem, and for a kernel that is not positive
        semidefinite, which suits no rule, none.
    dynamic : bool
        Screen during a solve, too.
    warm : bool
        Start every solve at the point before.
    alone : bool
        Record also what each rule decides by itself, of all rows (not for the folds).
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
        """What the grid is of: "C" or "nu"."""
        return "nu" if "nu" in PROBLEMS[self.fit.problem].parameters else "C"

    def __post_init__(self) -> None:
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
    def suited(self) -> tuple[str, ...]:
        """The rules, those that suit the problem where none were named."""
        return default_rules(self.fit.problem) if self.rules is None else tuple(self.rules)

    def unlike(self, record: Mapping[str, Any], data: Rows) -> str:
        """What makes a path with this record another one than is asked for, in words."""
        folds = None if record["folds"] is None else len(record["folds"])
        asked = self.folds if self.folds is None or isinstance(self.folds, int) else len(self.folds)
        own = {"values": record["values"], "folds": folds}
        now = {"values": np.asarray(self.values, np.float64).tolist(), "folds": asked}
        return describe_difference(record["provenance"], data, self.fit, FREE_OPTIONS, (own, now))

    @property
    def record(self) -> dict[str, Any]:
        """All on which the result depends, as JSON can hold it."""
        names = ("dynamic", "warm", "alone")
        own = {**{name: getattr(self, name) for name in names}, "rules": list(self.suited)}
        folds = self.folds
        if folds is not None and not isinstance(folds, (int, np.integer)):
            folds = [[np.asarray(rows).tolist() for rows in split] for split in folds]
        own["folds"] = folds
        fit = {name: v for name, v in self.fit.folder_record.items() if name not in FREE_OPTIONS}
        return {**fit, **own, "values": np.asarray(self.values).tolist()}


def refuse_rules(rules: Sequence[str] | None) -> None:
    """Refuse what was named for a kernel that no rule suits (``Design.definite``)."""
    if rules:
        raise InputError(
            f"rule {rules[0]} rests on gaps, and a kernel that is not positive semidefinite has "
            "none; leave rules out"
        )


def default_rules(problem: str) -> tuple[str, ...]:
    """The rules that suit a problem: those of its parameter, and the gap ball."""
    return ("srbo-cut", "gap") if "nu" in PROBLEMS[problem].parameters else ("dvi", "gap")


MAX_C = 1e30
"""Values of C must lie between 1 / MAX_C and MAX_C: float64 holds squares of their ratios."""


def checked_grid(values: ArrayLike, name: str) -> FloatArray:
    """The values of a grid, float64 (points,): in range and strictly ascending.

    Parameters
    ----------
    name : {"C", "nu"}

    Raises
    ------
    InputError
        If they are not; sorting them silently would hide from the caller which point is which.
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
