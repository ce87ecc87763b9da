"""Everything a path can be asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bigscreen.errors import InputError
from bigscreen.train_options import PARAMETERS, SQUARED, TrainOptions

FREE_OPTIONS = ("memory", "cache", "max_iter", "time_budget", "C", "nu", "lam", "screening", "f")
"""Options of a fit on which no path depends."""

OF_ONE = {"dvi": "C", "ssnsv": "C", "essnsv": "C", "srbo": "nu", "srbo-cut": "nu"}
"""The parameter that a rule is for, where it is one."""


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
        """ "C" or "nu"."""
        return "nu" if "nu" in PARAMETERS[self.fit.problem] else "C"

    def __post_init__(self) -> None:
        if self.fit.problem in (*SQUARED, "nu-svr"):
            raise InputError(f"a path does not solve {self.fit.problem}: fit each value by itself")
        given = self.rules or ()
        for k, name in enumerate(given):
            if name in given[:k]:
                raise InputError(f"rule {name} is named twice; give each rule once")
            if name in OF_ONE and OF_ONE[name] != self.parameter:
                raise InputError(
                    f"rule {name} is for grids of {OF_ONE[name]} and {self.fit.problem} has a grid "
                    f"of {self.parameter}; leave it out"
                )

        if self.fit.indefinite:
            refuse_rules(self.rules)

    @property
    def suited(self) -> tuple[str, ...]:
        """The rules, those that suit the problem where none were named."""
        return default_rules(self.fit.problem) if self.rules is None else tuple(self.rules)

    @property
    def record(self) -> dict[str, Any]:
        """All on which the result depends, as JSON can hold it."""
        names = ("dynamic", "warm", "alone")
        own = {**{name: getattr(self, name) for name in names}, "rules": list(self.suited)}
        folds = self.folds
        if folds is not None and not isinstance(folds, (int, np.integer)):
            folds = [[np.asarray(rows).tolist() for rows in split] for split in folds]
        own["folds"] = folds
        fit = {name: v for name, v in self.fit.record.items() if name not in FREE_OPTIONS}
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
    return ("srbo-cut", "gap") if "nu" in PARAMETERS[problem] else ("dvi", "gap")
