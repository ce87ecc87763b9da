"""The end of a block solve to a small gap: solve for all rows that can still move, in float64.

If these rows are few, one exact solve costs less than blocks that take turns until the violation
has fallen to a tenth again and again. Their scores are recomputed from float64 entries. Their
problem, with all other rows fixed, is solved exactly (`face`). Rows that violate afterwards join
them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bigscreen.fleet.blas import blas_threads
from bigscreen.solvers.block.face import Faces
from bigscreen.solvers.block.messages import fetch_rows
from bigscreen.solvers.block.records import Proposal
from bigscreen.solvers.block.rounds import NO_ROWS, BlockRounds
from bigscreen.solvers.block.working_set import is_free


def find_open_rows(run: BlockRounds) -> NDArray[np.int64] | None:
    """Find all rows that are free (inside their box) or violate optimality: int64, ascending.

    None if there are none, or too many for an exact solve, if they are not mostly free, or if not
    all violators are known. ``run``: the block solver's coordinator.
    """
    if not run.survey.complete:
        return None
    tuning = run.tuning.ending
    inside = np.flatnonzero(is_free(run.dual, run.alpha))
    ids = np.unique(np.concatenate([inside, run.survey.ups.ids, run.survey.downs.ids]))
    steady = len(ids) <= max(tuning.few_rows, tuning.max_open_per_free * len(inside))
    return ids if len(ids) and steady and len(ids) <= tuning.max_open(len(run.dual)) else None


def solve_face(run: BlockRounds, ids: NDArray[np.int64]) -> Proposal:
    """Solve for the rows ``ids`` exactly, with alpha of all other rows fixed.

    Without float64 scores yet, those of ``ids`` and of rows near their hinge point are recomputed
    first, and the near rows join unless that makes too many. ``run``: the block solver's
    coordinator, whose alpha does not change: `BlockRun.apply` applies the returned proposal.
    """
    fine = run.fine
    if not fine:
        near = run.recompute_near(ids, run.tuning.ending.join_distance * run.violation)
        ids = near if len(near) <= run.tuning.ending.max_open(len(run.dual)) else ids
    run.survey_again(ids)
    G = run.survey.watched * run.dual.step_signs[ids]
    X = fetch_rows(run.fleet, run.data, ids)
    gram = run.gram.empty(np.float64)
    gram.enter(NO_ROWS, ids, X, len(ids))
    run.gram.entries += gram.entries
    part, alpha = run.dual[ids], run.alpha[ids]
    faces = Faces(gram.K, part, alpha, G, run.mu, run.noise, run.tuning.ending.face)
    with blas_threads(1):  # one thread: the same bits on any machine
        faces.solve()
    end, watch = part.sign * faces.g, run.gram.ids[run.next.stay]
    return Proposal(part, ids, X, part.sign * faces.c + 0.0, G, end, watch, exact=not fine)
