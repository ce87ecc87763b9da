"""Everything a search can be asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from bigscreen.data.rows import Rows
from bigscreen.errors import InputError
from bigscreen.files.sealed import Arrays
from bigscreen.fleet.protocol import Fleet
from bigscreen.options.train import CHANGEABLE, KERNELS, TrainOptions
from bigscreen.path.options import checked_grid
from bigscreen.train.kernel import gamma_scale
from bigscreen.train.records import describe_difference

ELIMINATIONS = {
    "halving": "a heuristic: the best part of the candidates went on to more rows, and the best "
    "one's neighbours to all",
    "none": "every candidate was solved on all rows",
}
"""How candidates are dropped, and what that is worth."""

SEARCHED = {"c-svc": "C", "nu-svc": "nu", "svr": "C"}
"""The problems that can be searched, and the parameter of their paths."""

UNSEEN = (*CHANGEABLE, "C", "nu", "gamma", "landmarks")
"""Options of a fit on which no search depends: it has its own, or they change no result."""


@dataclass(frozen=True)
class SearchTuning:
    """Sizes and shares that a search works with.

    Parameters
    ----------
    search_fraction : float
        Part of a time budget that is for the search; the rest is for the last fit.
    rough_gap : float
        Relative gap of points on a part of the rows, unless the fit's is larger.
    min_rows : int
        Rows of the first rung, at least.
    min_held_rows : int
        Rows that all folds together hold out on every rung, at least, if they have as many.
    min_finalists : int
        Candidates that reach all rows, at least.
    min_label_rows : int
        Rows of every label that a fold fits at least, and holds out at least, if it has as many.
    max_factor_fraction : float
        Part of the memory that factors of landmarks may take from rung to rung.
    max_product_rows_per_feature : int
        Solve by pair steps on products of rows up to as many rows for each feature, of more by
        Newton steps on the features.
    probed_rows : int
        Rows whose scores are computed again in float64 after a path over float32 entries.
    max_probe_error : float
        Solve that path again with float64 entries if a score was off by a larger part of the mean.
    start_band : float
        Width of the smoothing band in which a start's alpha is between its bounds, as part of the
        mean distance from the hinge point.
    """

    search_fraction: float = 0.75
    rough_gap: float = 3e-2
    min_rows: int = 400
    min_held_rows: int = 400
    min_finalists: int = 4
    min_label_rows: int = 5
    max_factor_fraction: float = 0.1
    max_product_rows_per_feature: int = 6
    probed_rows: int = 64
    max_probe_error: float = 0.01
    start_band: float = 0.05


Pair = tuple[int | None, float]
"""Landmarks and gamma."""

Unit = tuple[Pair, int]
"""A fold of these."""

Solved = tuple[list[dict[str, Any]], Arrays]
"""Records of a fold's points, and their machines."""


class Candidate(NamedTuple):
    """One point of the grid; None for landmarks: the kernel itself."""

    landmarks: int | None
    gamma: float
    value: float


class Outcome(NamedTuple):
    """What is known of a candidate's score on held-out rows.

    ``gap`` is the largest relative gap of the folds (None: the kernel has none).
    """

    scores: list[float]
    rung: int
    rows: int
    gap: float | None

    @property
    def mean(self) -> float:
        """Over the folds."""
        return float(np.mean(self.scores))


@dataclass(frozen=True)
class TuneOptions:
    """Everything a search can be asked for.

    Parameters
    ----------
    fit : TrainOptions
        All that the fits have in common: problem (c-svc, nu-svc or svr), kernel, offset, class
        weights, tolerance, memory, seed; ``work`` is where what is done is kept, with ``resume`` to
        go on with that. Three quarters of a time budget are for the search, the rest for the last
        fit.
    gammas, values : array
        Ascending; the values are those of C (of a nu-svc: nu).
    landmarks : sequence of int or None
        Ascending; None: the exact kernel.
    folds : int or sequence of (rows to fit, rows to hold out)
    elimination : {"halving", "none"}
        "halving": a part of the candidates goes on to `factor` times the rows, until the last are
        solved on all rows, and then the best one's neighbours in the grid. "none": all candidates
        are solved on all rows.
    factor : int
        Of halving: one in so many goes on.
    tuning : SearchTuning
    """

    fit: TrainOptions
    gammas: ArrayLike
    values: ArrayLike
    landmarks: Sequence[int] | None = None
    folds: int | Sequence[Any] = 5
    elimination: str = "halving"
    factor: int = 3
    tuning: SearchTuning = SearchTuning()

    def __post_init__(self) -> None:
        fit = self.fit
        if fit.problem not in SEARCHED:
            raise InputError(f"a search is for {', '.join(SEARCHED)}, not for {fit.problem}")
        if callable(fit.kernel) or "gamma" not in KERNELS.get(fit.kernel, ()):
            name = "one that is a function" if callable(fit.kernel) else fit.kernel
            raise InputError(
                f"a search is over gamma, which the kernel ({name}) has not; solve a path with "
                "folds instead"
            )
        if self.elimination not in ELIMINATIONS:
            raise InputError(
                f"elimination must be {', '.join(ELIMINATIONS)}, got {self.elimination!r}"
            )
        if not (isinstance(self.factor, (int, np.integer)) and self.factor >= 2):
            raise InputError(f"factor must be a whole number, at least 2, got {self.factor!r}")
        for name, grid in (("gamma", self.gammas), (self.parameter, self.values)):
            checked_grid(grid, name)
        self._check_landmarks()
        if self.folds is None:
            raise InputError("a search needs folds to judge by: a number, or the rows of each")

    def _check_landmarks(self) -> None:
        if self.landmarks is None:
            return
        counts = list(self.landmarks)
        for k, count in enumerate(counts):
            whole = isinstance(count, (int, np.integer)) and not isinstance(count, bool)
            if not whole or count < 1:
                raise InputError(f"landmarks must be whole numbers, at least 1, got {count!r}")
            if k and count <= counts[k - 1]:
                how = "comes twice" if count == counts[k - 1] else f"comes after {counts[k - 1]}"
                raise InputError(
                    f"the numbers of landmarks must ascend without repeats, and {count} {how}"
                )
        if not counts:
            raise InputError("landmarks must be a list of one number or more")

    @property
    def parameter(self) -> str:
        """What the values are of: "C" or "nu"."""
        return SEARCHED[self.fit.problem]

    @property
    def candidates(self) -> list[Candidate]:
        """The grid: fewer landmarks, smaller gammas and smaller values first."""
        gammas, values = (np.asarray(grid, float).tolist() for grid in (self.gammas, self.values))
        counts: list[int | None] = [None] if self.landmarks is None else list(self.landmarks)
        return [Candidate(m, g, v) for m in counts for g in gammas for v in values]

    def neighbours(self, one: Candidate) -> list[Candidate]:
        """Those beside a candidate in the grid: another gamma, or another value."""
        gammas, values = (np.asarray(grid, float).tolist() for grid in (self.gammas, self.values))
        at, of = gammas.index(one.gamma), values.index(one.value)
        beside = [one._replace(gamma=gammas[k]) for k in (at - 1, at + 1) if 0 <= k < len(gammas)]
        values_of = [values[k] for k in (of - 1, of + 1) if 0 <= k < len(values)]
        return [*beside, *(one._replace(value=value) for value in values_of)]

    def fit_of(self, landmarks: int | None, gamma: float, value: float) -> TrainOptions:
        """The options of one candidate's fit."""
        own: dict[str, Any] = {"gamma": gamma, self.parameter: value}
        if landmarks is not None:
            own["landmarks"] = int(landmarks)
        return replace(self.fit, exact=landmarks is None, **own)

    @property
    def record(self) -> dict[str, Any]:
        """All on which the result depends, as JSON can hold it."""
        folds = self.folds
        if not isinstance(folds, (int, np.integer)):
            folds = [[np.asarray(rows).tolist() for rows in split] for split in folds]
        fit = {name: v for name, v in self.fit.folder_record.items() if name not in UNSEEN}
        grids = {"gammas": self.gammas, "values": self.values}
        own = {name: np.asarray(grid, float).tolist() for name, grid in grids.items()}
        counts = None if self.landmarks is None else [int(m) for m in self.landmarks]
        how = {"elimination": self.elimination, "factor": int(self.factor)}
        how |= {"tuning": asdict(self.tuning)}
        return {**fit, **own, "counts": counts, "folds": folds, **how}


def default_gammas(data: Rows, fleet: Fleet) -> list[float]:
    """Nine values of gamma by factors of two around scikit-learn's "scale", for a search."""
    scale = gamma_scale(data, fleet)
    return [float(scale * factor) for factor in 2.0 ** np.arange(-4, 5)]


def unlike_search(
    provenance: Mapping[str, Any],
    data: Rows,
    fit: TrainOptions,
    grid: Mapping[str, Any],
    how: Mapping[str, Any],
) -> str:
    """What makes a model another search's than is asked for, in words; empty where nothing.

    Parameters
    ----------
    provenance : mapping
        Its own.
    grid : mapping
        The grid asked for by its parameters; None: the one by default, whatever that is.
    how : mapping
        folds and elimination asked for.
    """
    found = provenance.get("search")
    if found is None:
        return "it is of no search"
    now = {
        name: None if values is None else np.asarray(values).tolist()
        for name, values in grid.items()
        if values is not None or name == "landmarks"
    }
    names = ("folds", "elimination")
    before = {name: found["grid"].get(name) for name in now}
    own = {**before, **{name: found[name] for name in names}}
    return describe_difference(
        provenance, data, fit, UNSEEN, (own, {**now, **{n: how[n] for n in names}})
    )
