"""The end of a close block solve: all rows that could still move at once, in float64.

Where they are few, blocks that take turns until each is a tenth as far off cost more than the
optimum itself: their scores are computed from float64 entries, and kept so while they move; their
problem, all other rows fixed, is solved exactly (`face`); rows that then violate join them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bigscreen.fleet.blas import blas_threads
from bigscreen.solvers.block.face import Faces
from bigscreen.solvers.block.gram import BlockGram
from bigscreen.solvers.block.messages import received
from bigscreen.solvers.block.records import Proposal
from bigscreen.solvers.block.rounds import NOBODY, BlockRounds
from bigscreen.solvers.block.working_set import free


def open_rows(run: BlockRounds) -> NDArray[np.int64] | None:
    """Rows that are free or violate, ascending, if all are known, few, and mostly free."""
    if not run.survey.complete:
        return None
    tuning = run.tuning.ending
    inside = np.flatnonzero(free(run.dual, run.alpha))
    ids = np.unique(np.concatenate([inside, run.survey.ups.ids, run.survey.downs.ids]))
    steady = len(ids) <= max(tuning.few_rows, tuning.max_open_per_free * len(inside))
    return ids if len(ids) and steady and len(ids) <= tuning.max_open(len(run.dual)) else None


def face_optimum(run: BlockRounds, ids: NDArray[np.int64]) -> Proposal:
    """Where these rows, all others fixed, are at their optimum."""
    fine = run.fine
    if not fine:
        near = run.sharpen(ids, run.tuning.ending.join_distance * run.violation)
        ids = near if len(near) <= run.tuning.ending.max_open(len(run.dual)) else ids
    run.survey_again(ids)
    G = run.survey.watched * run.dual.ways[ids]
    X = received(run.fleet, run.data, ids)
    gram = BlockGram(run.gram.kernel, run.constant, run.gram.threads, np.float64)
    gram.enter(NOBODY, ids, X, len(ids))
    run.gram.entries += gram.entries
    part, alpha = run.dual[ids], run.alpha[ids]
    faces = Faces(gram.K, part, alpha, G, run.mu, run.noise)
    with blas_threads(1):  # bits are to be the same wherever the coordinator is
        faces.solve()
    end, watch = part.sign * faces.g, run.gram.ids[run.next.stay]
    return Proposal(part, ids, X, part.sign * faces.c + 0.0, G, end, watch, exact=not fine)
