"""Search gamma and C again after learned metrics: a map changes how far rows are apart.

Each kind of map is learned in each fold, from a machine that has not seen the rows held out, and
its machines are compared with the best one without a map by the same folds. It is learned again,
from the best machine on the mapped rows, while the folds' mean score grows.
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
            equals; from: for each kind of map gamma, and C or nu, of the machines that it is
            learned from, in turn; first: gamma, and C or nu, of the first machine.
        """
        for kind in self.options.metrics:
            check_columns(self.data, kind)
        found: dict[str, tuple[Candidate, list[float]]] = {}
        machines: dict[str, list[Candidate]] = {}
        for kind in self.options.metrics:
            if found and until is not None and time.monotonic() > until:
                break
            if kind == "none":
                found[kind] = best, scores
                continue
            judged = self._learn(kind, best, until, not found)
            if judged is not None:
                found[kind], machines[kind] = judged
        kinds = list(found)
        means = [float(np.mean(found[kind][1])) for kind in kinds]
        return {
            "scores": {kind: found[kind][1] for kind in kinds},
            "chosen": {kind: self.named(found[kind][0]) for kind in kinds},
            "best": kinds[best_of(means)],
            "first": self.named(best),
            "from": {kind: [self.named(one) for one in own] for kind, own in machines.items()},
        }

    def _learn(
        self, kind: str, best: Candidate, until: float | None, once: bool
    ) -> tuple[tuple[Candidate, list[float]], list[Candidate]] | None:
        """Learn a kind of map, again and again while the folds' mean score grows, and search.

        Parameters
        ----------
        kind : {"diagonal", "full"}
        best : Candidate
            The first map is learned from its machine, each further one from the best machine on the
            rows as mapped so far.
        until : float or None
            As of `judge`.
        once : bool
            Whether ``until`` leaves time for the first map in any case.

        Returns
        -------
        judged : (Candidate, list of float)
            The best candidate on mapped rows, and its score in each fold.
        machines : list of Candidate
            The machines that its map is learned from, in turn.

        None if the time ended before anything was judged.
        """
        rows: list[Rows] = [self.data] * len(self.folds)
        machines, found = [best], None
        while len(machines) <= self.options.tuning.max_maps:
            rows = [self._mapped(own, kind, machines[-1], f) for f, own in enumerate(rows)]
            names = [f"metric-{kind}-{len(machines)}-{f}" for f in range(len(rows))]
            end = None if once and found is None else until
            judged = self._climb(dict(zip(names, rows, strict=True)), machines[-1], end)
            if not judged:
                break
            one, scores = _best(judged)
            if found is not None and not np.mean(scores) > np.mean(found[0][1]):
                break
            found = (one, scores), [*machines]
            machines.append(one)
        return found

    def named(self, one: Candidate) -> dict[str, float]:
        """Return the gamma, and the C or nu, of a candidate by name."""
        return {"gamma": one.gamma, self.options.parameter: one.value}

    def _mapped(self, rows: Rows, kind: str, machine: Candidate, f: int) -> Rows:
        """Learn a map of this kind without the rows held out; return all rows, mapped.

        ``rows``: all rows, perhaps mapped before; ``machine``: the parameters of the machine that
        the map is learned from; ``f``: the number of the fold that holds rows out.
        """
        fitted = Recast(rows, None, self.folds[f].weights)
        fit = self._inside(self.options.fit_of(*machine), f"metric-first-{f}")
        fit = replace(fit, resume=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of gaps; the last fit warns for itself
            model = train(fitted, options_of_first(fit, rows.n_rows), self.fleet)
        if fit.work is not None:
            shutil.rmtree(fit.work, ignore_errors=True)
        return Mapped(self.data, learn_metric(model, fitted, kind, self.fleet))

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
