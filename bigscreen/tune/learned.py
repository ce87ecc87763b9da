"""Search gamma and C again after learned metrics: a map changes how far rows are apart.

Each kind of map is learned in each fold, from a machine that has not seen the rows held out, and
its machines are compared with the best one without a map by the same folds.
"""

from __future__ import annotations

import shutil
import time
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bigscreen.data.rows import Rows
from bigscreen.data.views import Mapped, Recast
from bigscreen.files.work import PROBLEM
from bigscreen.fleet.protocol import Fleet
from bigscreen.options.train import TrainOptions
from bigscreen.path.folds import Fold
from bigscreen.path.scoring import Scoring, best_of
from bigscreen.train.metric import check_columns, learn_metric, options_of_first
from bigscreen.train.problems import Binary
from bigscreen.train.run import train
from bigscreen.tune.options import Candidate, TuneOptions
from bigscreen.tune.rung import OutOfTime, RungSolver
from bigscreen.tune.schedule import Rung


@dataclass(frozen=True)
class MetricSearch:
    """Searches of gamma and C, one for each kind of learned metric of `TuneOptions.metrics`.

    Parameters
    ----------
    data : Rows
    options : TuneOptions
    folds : sequence of Fold
        The rows that a fold holds out have no weight in its maps or its machines.
    binaries : list of Binary
        The binary problems of all rows, at any value.
    scoring : str or callable
        As of `score_held_out`.
    fleet : Fleet
    """

    data: Rows
    options: TuneOptions
    folds: Sequence[Fold]
    binaries: list[Binary]
    scoring: Scoring
    fleet: Fleet

    def judge(self, best: Candidate, scores: list[float], until: float | None) -> dict[str, Any]:
        """Judge the kinds, each by its best gamma and C (or nu).

        Parameters
        ----------
        best : Candidate
            The best candidate of the search without a map: the machines that maps are learned from
            have its parameters, and the searches begin at its gamma.
        scores : list of float
            Its score in each fold.
        until : float or None
            Value of ``time.monotonic()`` from which on no further kind is judged; the first always
            is.

        Returns
        -------
        dict
            scores: for each judged kind, the scores in the folds of its best candidate; chosen: its
            gamma, and C or nu, by name; best: the kind with the highest mean score, the first of
            equals; first: gamma, and C or nu, of the machines that maps are learned from.
        """
        found: dict[str, tuple[Candidate, list[float]]] = {}
        mapped: list[dict[str, Rows]] = []
        for kind in self.options.metrics:
            if found and until is not None and time.monotonic() > until:
                break
            if kind == "none":
                found[kind] = best, scores
                continue
            if not mapped:
                mapped = [self._mapped(best, f) for f in range(len(self.folds))]
            rows = {f"metric-{kind}-{f}": own[kind] for f, own in enumerate(mapped)}
            judged = self._climb(rows, best, until if found else None)
            if judged:
                found[kind] = _best(judged)
        kinds = list(found)
        means = [float(np.mean(found[kind][1])) for kind in kinds]
        return {
            "scores": {kind: found[kind][1] for kind in kinds},
            "chosen": {kind: self.named(found[kind][0]) for kind in kinds},
            "best": kinds[best_of(means)],
            "first": self.named(best),
        }

    def named(self, one: Candidate) -> dict[str, float]:
        """Return the gamma, and the C or nu, of a candidate by name."""
        return {"gamma": one.gamma, self.options.parameter: one.value}

    def _mapped(self, best: Candidate, f: int) -> dict[str, Rows]:
        """Learn the requested kinds of maps without the rows held out; return all rows, mapped.

        ``best``: the parameters of the machine that the maps are learned from; ``f``: the number of
        the fold that holds rows out.
        """
        rows, kinds = self.data, [kind for kind in self.options.metrics if kind != "none"]
        for kind in kinds:
            check_columns(rows, kind)
        fitted = Recast(rows, None, self.folds[f].weights)
        fit = self._inside(self.options.fit_of(*best), f"metric-first-{f}")
        fit = replace(fit, resume=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of gaps; the last fit warns for itself
            model = train(fitted, options_of_first(fit, rows.n_rows), self.fleet)
        if fit.work is not None:
            shutil.rmtree(fit.work, ignore_errors=True)
        return {k: Mapped(rows, learn_metric(model, fitted, k, self.fleet)) for k in kinds}

    def _inside(self, fit: TrainOptions, name: str) -> TrainOptions:
        """Return options without a time budget, whose work folder is one in the search's folder."""
        work = None if fit.work is None else fit.work / name
        resume = bool(work and fit.resume and (work / PROBLEM).exists())
        return replace(fit, work=work, resume=resume, time_budget=None)

    def _climb(
        self, mapped: dict[str, Rows], best: Candidate, until: float | None
    ) -> dict[Candidate, list[float]]:
        """Solve all values of C (or nu) for more and more gammas, until no neighbour is better.

        Parameters
        ----------
        mapped : dict from name to Rows
            For each fold all rows, mapped, by the name of a folder for finished work.
        best : Candidate
            The search begins with its gamma, and has its kernel and its number of landmarks.
        until : float or None
            Value of ``time.monotonic()`` at which it ends.

        Returns
        -------
        dict
            For each judged candidate its score in each fold; empty if the time ended before.
        """
        options = self.options
        gammas = options.gammas_of(best.kernel)
        values = np.asarray(options.values, float).tolist()
        found: dict[Candidate, list[float]] = {}
        with ExitStack() as stack:
            solvers = []
            for (name, rows), fold in zip(mapped.items(), self.folds, strict=True):
                own = replace(options, fit=self._inside(options.fit, name))
                given = [fold], self.binaries, until, self.scoring
                solver = RungSolver(rows, own, self.fleet, lambda event: None, *given)
                stack.enter_context(solver.hold())
                solvers.append(solver)
            at = gammas.index(best.gamma)
            solved: set[float] = set()
            while near := [g for g in gammas[max(0, at - 1) : at + 2] if g not in solved]:
                paths = {(best.kernel, best.landmarks, gamma): values for gamma in near}
                rung = Rung(None, len(near) * len(values))
                try:
                    parts = [
                        list(s.solve(len(solved), rung, paths, options.fit.tol)) for s in solvers
                    ]
                except OutOfTime:
                    break
                for some in parts:
                    for one, outcome in (item for batch in some for item in batch.items()):
                        found.setdefault(one, []).extend(outcome.scores)
                solved.update(near)
                at = gammas.index(_best(found)[0].gamma)
        return found


def _best(found: dict[Candidate, list[float]]) -> tuple[Candidate, list[float]]:
    """Return the candidate with the highest mean score, and its scores; the smallest of equals.

    ``found``: for each candidate its score in each fold.
    """
    ordered = sorted(found)
    one = ordered[best_of([float(np.mean(found[one])) for one in ordered])]
    return one, found[one]
