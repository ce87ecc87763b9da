"""Everything a path can be asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bigscreen.data.rows import Rows
from bigscreen.errors import InputError
from bigscreen.numerics.rows import FloatArray
from bigscreen.options.train import FREE, PROBLEMS, TrainOptions
from bigscreen.path.folds import SCORINGS, assign, check_spread
from bigscreen.problems.recipes import (
    NuSvc,
    OneClass,
    Problem,
    check_feasible,
    classes,
    rows_weights,
)
from bigscreen.train.problems import Binary
from bigscreen.train.records import unlike

FREE_OPTIONS = (*FREE, "C", "nu", "lam", "screening", "f")
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
        return unlike(record["provenance"], data, self.fit, FREE_OPTIONS, (own, now))

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


Folds = int | list[tuple[NDArray[np.int64], NDArray[np.int64]]]
"""How many, or the rows to fit and the rows to hold out of each."""


class Fold(NamedTuple):
    """Weights of all rows, 0 for those that are not fitted; the rows held out, int64."""

    weights: FloatArray
    held: NDArray[np.int64]


def make_folds(
    data: Rows,
    y: NDArray[Any],
    weights: FloatArray,
    options: PathOptions,
    binaries: list[Binary],
    values: FloatArray,
) -> list[Fold]:
    """The folds that a path asks for.

    Raises
    ------
    InputError
        If one would have rows of one class only, or makes a nu infeasible; or given ones name rows
        that there are not.
    """
    given, fit = checked_folds(options.folds, len(y)), options.fit
    if given is None:
        return []
    if fit.problem == "one-class" and (len(data.labels) != 2 or np.any(y < 0)):
        raise InputError(
            "the folds of a one-class path are judged by two labels, one for every row; give "
            "labels, or no folds"
        )
    # A one-class machine's rows without weight are judged, though not fitted.
    counted = np.ones(len(y)) if fit.problem == "one-class" else weights
    if isinstance(given, int):
        strata = y if data.labels else np.zeros(len(y), np.int8)
        labels: list[Any] | None = list(data.labels) or None
        fold = assign(strata, counted, given, fit.seed, labels)
        masks = [fold == f for f in range(given)]
        folds = [Fold(np.where(held, 0.0, weights), np.flatnonzero(held)) for held in masks]
    else:
        folds = [_given(fitted, held, weights) for fitted, held in given]
    for f, (own, held) in enumerate(folds):
        if not own.any() or not counted[held].any():
            raise InputError(f"fold {f + 1} fits or holds out no row with a weight")
        if fit.problem == "one-class" and len(np.unique(y[held])) < 2:
            raise InputError(
                f"fold {f + 1} holds out rows of one label only, and is judged by how it tells two "
                "apart; hold out rows of both"
            )
        if not fit.classifies:
            if SCORINGS[fit.problem] == "R2":
                check_spread(y[held], f"fold {f + 1}")
            continue
        there = np.unique(y[own > 0])
        if len(there) < len(data.labels):
            lacking = next(c for c in range(len(data.labels)) if c not in there)
            raise InputError(
                f"fold {f + 1} fits no row of label {data.labels[lacking]!r}, and its machines "
                "would not know the label; give every fold rows of each label to fit"
            )
        if fit.problem == "nu-svc":
            for binary in binaries:
                problem = binary.problem
                assert isinstance(problem, NuSvc)
                c, sign = rows_weights(y, own, problem.code_weight), classes(y, problem.positive)
                sides = float(np.sum(c[sign > 0])), float(np.sum(c[sign < 0]))
                where = f" without the rows of fold {f + 1}"
                check_feasible(float(values[-1]), *sides, problem.intercept, where)
    return folds


def of_rows(problem: Problem, y: NDArray[Any], weights: FloatArray) -> Problem:
    """The problem of these weights: what nu is a share of goes with them."""
    if isinstance(problem, NuSvc):
        own = rows_weights(y, weights, problem.code_weight)
    elif isinstance(problem, OneClass):
        own = weights
    else:
        return problem
    return replace(problem, mass=float(np.sum(own)) or 1.0)


def checked_folds(folds: Any, n: int) -> Folds | None:
    """Folds as a caller gives them: a number, or row numbers in int64 arrays; None: none.

    Raises
    ------
    InputError
        If they are neither, or rows are named that there are not.
    """
    if folds is None or isinstance(folds, (int, np.integer)):
        return None if folds is None else int(folds)
    try:
        parts = [tuple(np.asarray(rows) for rows in split) for split in folds]
    except (TypeError, ValueError) as error:
        raise InputError(
            f"folds must be a number, or a list of (rows to fit, rows to hold out), got "
            f"{str(folds)[:60]}"
        ) from error
    for f, split in enumerate(parts):
        if len(split) != 2 or not all(_are_rows(rows, n) for rows in split):
            raise InputError(
                f"fold {f + 1} must be two lists of row numbers from 0 to {n - 1}, those to fit "
                "and those to hold out"
            )
    return [(fitted.astype(np.int64), held.astype(np.int64)) for fitted, held in parts]


def _are_rows(rows: NDArray[Any], n: int) -> bool:
    """Whether these are row numbers: not a mask, whose numbers would all be 0 and 1."""
    if rows.ndim != 1 or not len(rows):
        return rows.ndim == 1
    return rows.dtype.kind in "iu" and int(rows.min()) >= 0 and int(rows.max()) < n


def _given(fitted: NDArray[np.int64], held: NDArray[np.int64], weights: FloatArray) -> Fold:
    """A fold that the caller made."""
    own = np.zeros(len(weights))
    own[fitted] = weights[fitted]
    return Fold(own, held)
