"""The options of a search for parameters, its tuned values, and its candidates."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
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
"""Ways to drop candidates, each with the sentence that records of searches have about it."""

SEARCHED = {"c-svc": "C", "nu-svc": "nu", "svr": "C"}
"""The problems that can be searched, each with the parameter whose values are searched."""

UNSEEN = (
    *CHANGEABLE,
    *("C", "nu", "kernel", "gamma", "landmarks", "metric_learning", "metric_from"),
)
"""Options of a fit that do not change a search: grids replace them, or they change no result."""


@dataclass(frozen=True)
class SearchTuning:
    """Tuned values of a search by rungs: rounds that solve fewer candidates on more rows.

    Parameters
    ----------
    search_fraction : float
        The search may use this fraction of a time budget; the final fit has the rest.
    rough_gap : float
        On rounds that use a part of the rows, solve to this relative gap, or to the fit's requested
        gap if that is larger.
    min_rows : int
        The first round of a search uses at least this many rows, or all rows of smaller data.
    min_held_rows : int
        On every round, all folds together score at least this many rows that were left out of their
        fits, or all rows that there are.
    min_finalists : int
        Solve at least this many candidates on all rows, in the last round.
    min_label_rows : int
        On every round, each fold fits at least this many rows of every label, and scores at least
        this many others, or all rows that it has.
    max_factor_fraction : float
        Store the factors of the landmarks' kernel matrices from round to round if they take at most
        this fraction of the memory that the search may use; otherwise compute them again.
    max_product_rows_per_feature : int
        Solve by pair steps (SMO) on the matrix of row products if there are at most this many rows
        for each feature; with more rows, solve problems without an equality constraint on the
        features (`ColumnsStage`).
    probed_rows : int
        After a path (solves of growing C) over float32 kernel entries, compute the scores of this
        many rows again in float64, to see the errors.
    max_probe_error : float
        Solve the path again with float64 kernel entries if the float32 score of a checked row is
        off by more than this fraction of the mean absolute score.
    max_maps : int
        Learn a metric at most this many times, each time from the best machine on the rows as
        mapped so far, while the folds' mean score grows.
    start_band : float
        A start's alpha is set strictly between its bounds for rows whose distance to the hinge
        point is at most this fraction of the mean distance, and at a bound for all others.
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
    max_maps: int = 3
    start_band: float = 0.05


GroupKey = tuple[Any, int | None, float]
"""Kernel, number of landmarks (None: the exact kernel) and gamma of a group of candidates."""

Unit = tuple[GroupKey, int]
"""A group of candidates, and the number of a fold."""

Solved = tuple[list[dict[str, Any]], Arrays]
"""The records of a fold's points, and the arrays of their machines."""


class Candidate(NamedTuple):
    """One point of the grid: kernel, number of landmarks, gamma, and a value of C (or of nu).

    ``landmarks`` is None for the exact kernel.
    """

    kernel: Any
    landmarks: int | None
    gamma: float
    value: float


class Outcome(NamedTuple):
    """A candidate's result on the last rung (round of the search) that it reached.

    ``scores`` has one score of held-out rows for each fold; ``rung`` is the rung's number, from 0,
    and ``rows`` its number of rows; ``gap`` is the largest relative gap of the folds (None if the
    kernel has no gap).
    """

    scores: list[float]
    rung: int
    rows: int
    gap: float | None

    @property
    def mean(self) -> float:
        """The mean score over the folds."""
        return float(np.mean(self.scores))


@dataclass(frozen=True)
class TuneOptions:
    """The options of a search.

    Parameters
    ----------
    fit : TrainOptions
        The options that all fits share: problem (c-svc, nu-svc or svr), kernel, offset, class
        weights, tolerance, memory, seed. ``work`` is the folder that keeps finished work, and
        ``resume`` continues with it. Three quarters of a time budget are for the search, the rest
        for the final fit.
    gammas : array or mapping from kernel to array
        Grid of gamma, ascending. A mapping names the kernels to search, each with its grid, in
        place of the kernel of ``fit``.
    values : array
        Values of C (or of nu, for nu-svc), ascending.
    landmarks : sequence of int or None
        Grid of numbers of landmarks, ascending; None: the exact kernel.
    folds : int or sequence of (rows to fit, rows to hold out)
    elimination : {"halving", "none"}
        "halving": from rung to rung the best candidates go on to `factor` times as many rows. The
        last ones are solved on all rows, and then the neighbours of the best one in the grid.
        "none": all candidates are solved on all rows.
    scoring : str, callable or None
        How candidates are judged on held-out rows; see `bigscreen.tune.metric`. None: by accuracy,
        or by R2 if the rows have targets.
    metrics : tuple of {"none", "diagonal", "full"}
        Kinds of learned metrics (`TrainOptions.metric_learning`) to judge for the best candidate,
        by the same folds; the last fit has the best kind.
    factor : int
        Halving keeps one candidate in `factor` from rung to rung.
    tuning : SearchTuning
    """

    fit: TrainOptions
    gammas: ArrayLike | Mapping[str, ArrayLike]
    values: ArrayLike
    landmarks: Sequence[int] | None = None
    folds: int | Sequence[Any] = 5
    elimination: str = "halving"
    scoring: str | Callable[..., float] | None = None
    metrics: tuple[str, ...] = ("none",)
    factor: int = 3
    tuning: SearchTuning = SearchTuning()

    def __post_init__(self) -> None:
        """Raise `InputError` if an option has a wrong value, or the problem cannot be searched."""
        fit = self.fit
        if fit.problem not in SEARCHED:
            raise InputError(f"a search is for {', '.join(SEARCHED)}, not for {fit.problem}")
        if self.elimination not in ELIMINATIONS:
            raise InputError(
                f"elimination must be {', '.join(ELIMINATIONS)}, got {self.elimination!r}"
            )
        if not (isinstance(self.factor, (int, np.integer)) and self.factor >= 2):
            raise InputError(f"factor must be a whole number, at least 2, got {self.factor!r}")
        checked_grid(self.values, self.parameter)
        self._check_kernels()
        self._check_landmarks()
        if not self.metrics or fit.metric_learning != "none":
            raise InputError("a search takes the kinds of learned metrics to judge as its metrics")
        for kernel, kind in itertools.product(self.grids, self.metrics):
            # Refuses what is no kind, or not for this machine.
            replace(fit, kernel=kernel, metric_learning=kind)
        if self.folds is None:
            raise InputError("a search needs folds to judge by: a number, or the rows of each")

    def _check_kernels(self) -> None:
        """Refuse kernels without a gamma, and grids of gamma that do not ascend."""
        if not self.grids:
            raise InputError("a search needs a kernel or more, each with its values of gamma")
        for kernel, grid in self.grids.items():
            if callable(kernel) or "gamma" not in KERNELS.get(kernel, ()):
                name = "one that is a function" if callable(kernel) else kernel
                raise InputError(
                    f"a search is over gamma, which the kernel ({name}) has not; solve a path with "
                    "folds instead"
                )
            checked_grid(grid, "gamma")

    def _check_landmarks(self) -> None:
        """Refuse numbers of landmarks that are not ascending whole numbers of at least 1."""
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
        """The parameter whose values are searched: "C" or "nu"."""
        return SEARCHED[self.fit.problem]

    @property
    def grids(self) -> dict[Any, Any]:
        """The grid of gamma of each kernel that is searched."""
        given = self.gammas
        return dict(given) if isinstance(given, Mapping) else {self.fit.kernel: given}

    def gammas_of(self, kernel: Any) -> list[float]:
        """Return the values of gamma that are searched with a kernel."""
        return list(np.asarray(self.grids[kernel], float).tolist())

    @property
    def gammas_record(self) -> Any:
        """The grid of gamma as JSON values: a list, or a list by kernel if there are several."""
        grids = {str(kernel): self.gammas_of(kernel) for kernel in self.grids}
        return grids if len(grids) > 1 else next(iter(grids.values()))

    @property
    def candidates(self) -> list[Candidate]:
        """All candidates: by kernel; fewer landmarks, smaller gammas, smaller values first."""
        values = np.asarray(self.values, float).tolist()
        counts: list[int | None] = [None] if self.landmarks is None else list(self.landmarks)
        return [
            Candidate(kernel, m, g, v)
            for kernel in self.grids
            for m in counts
            for g in self.gammas_of(kernel)
            for v in values
        ]

    def neighbours(self, one: Candidate) -> list[Candidate]:
        """Return the next candidates in the grid: with the next gamma, or with the next value."""
        gammas, values = self.gammas_of(one.kernel), np.asarray(self.values, float).tolist()
        at, of = gammas.index(one.gamma), values.index(one.value)
        gammas_of = [
            one._replace(gamma=gammas[k]) for k in (at - 1, at + 1) if 0 <= k < len(gammas)
        ]
        values_of = [values[k] for k in (of - 1, of + 1) if 0 <= k < len(values)]
        return [*gammas_of, *(one._replace(value=value) for value in values_of)]

    def fit_of(
        self, kernel: Any, landmarks: int | None, gamma: float, value: float
    ) -> TrainOptions:
        """Return the options of the fit of a candidate; no landmarks (None): an exact machine."""
        own: dict[str, Any] = {"kernel": kernel, "gamma": gamma, self.parameter: value}
        if landmarks is not None:
            own["landmarks"] = int(landmarks)
        return replace(self.fit, exact=landmarks is None, **own)

    @property
    def record(self) -> dict[str, Any]:
        """Every option that the result depends on, JSON-able; a resumed search needs equal ones."""
        folds = self.folds
        if not isinstance(folds, (int, np.integer)):
            folds = [[np.asarray(rows).tolist() for rows in split] for split in folds]
        fit = {name: v for name, v in self.fit.folder_record.items() if name not in UNSEEN}
        own = {"kernels": [str(kernel) for kernel in self.grids], "gammas": self.gammas_record}
        own["values"] = np.asarray(self.values, float).tolist()
        counts = None if self.landmarks is None else [int(m) for m in self.landmarks]
        how = {"elimination": self.elimination, "factor": int(self.factor)}
        how |= {"tuning": asdict(self.tuning), "scoring": str(self.scoring)}
        if self.metrics != ("none",):
            how["metrics"] = list(self.metrics)
        return {**fit, **own, "counts": counts, "folds": folds, **how}


def default_gammas(data: Rows, fleet: Fleet, kernel: str) -> list[float]:
    """Return nine values of gamma by factors of two around "scale" for the kernel of this name."""
    scale = gamma_scale(data, fleet, kernel)
    return [float(scale * factor) for factor in 2.0 ** np.arange(-4, 5)]


def unlike_search(
    provenance: Mapping[str, Any],
    data: Rows,
    fit: TrainOptions,
    grid: Mapping[str, Any],
    how: Mapping[str, Any],
) -> str:
    """Say how the search that made a model differs from a requested one; empty if it does not.

    Parameters
    ----------
    provenance : mapping
        The model's provenance.
    grid : mapping
        The requested grid by parameter; None: the default grid, whatever it is.
    how : mapping
        The requested kernels, folds, elimination, scoring and metrics.
    """
    found = provenance.get("search")
    if found is None:
        return "it is of no search"
    now = {
        name: values if values is None or isinstance(values, Mapping) else list(values)
        for name, values in grid.items()
        if values is not None or name == "landmarks"
    }
    names = ("folds", "elimination", "scoring")
    before = {name: found["grid"].get(name) for name in now}
    own = {**before, **{name: found[name] for name in names}}
    now |= {name: how[name] for name in names}
    grids = found["grid"]["gamma"]
    # (Records of older versions do not name the kernel.)
    kernel = found["best"].get("kernel", provenance["parameters"]["kernel"]["name"])
    own["kernels"] = list(grids) if isinstance(grids, Mapping) else [kernel]
    now["kernels"] = list(how["kernels"])
    own["metrics"] = list(found.get("metric_learning", {"scores": ["none"]})["scores"])
    now["metrics"] = list(how["metrics"])
    return describe_difference(provenance, data, fit, UNSEEN, (own, now))
