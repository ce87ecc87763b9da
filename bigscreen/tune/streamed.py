"""Machines of a search that are solved all at once: on a device, on workers, or beyond memory."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import Any

from bigscreen.data.rows import Rows
from bigscreen.device.find import HOST, Device, explain_failures
from bigscreen.options.train import TrainOptions
from bigscreen.path.folds import Fold
from bigscreen.path.folds_job import FoldsJob
from bigscreen.path.scoring import Scoring
from bigscreen.plan.plan import plan_on
from bigscreen.problems.point import largest_gaps
from bigscreen.train.problems import Binary
from bigscreen.tune.options import Solved


def solve_streamed(  # noqa: PLR0913
    data: Rows,
    options: TrainOptions,
    fleet: Any,
    folds: Sequence[Fold],
    binaries: Sequence[Binary],
    values: Sequence[float],
    deadline: float | None,
    scoring: Scoring,
    device: Device = HOST,
) -> tuple[list[Solved], bool]:
    """Solve the paths of all folds to the options' gap, in shared passes over the data.

    Parameters
    ----------
    options : TrainOptions
        ``work`` is a folder for features, or None; it is removed at the end.
    scoring : str or callable
        As of `score_held_out`.
    device : Device
        What computes, see `choose_shared_device`.

    Returns
    -------
    solved : list of (records, arrays)
        For each fold the records of its points; no arrays, from which another rung could start.
    late : bool
        Whether the deadline passed before all points were solved.

    Raises
    ------
    InputError
        If the solve does not fit in the memory allowed; the message has the numbers of bytes.
    DeviceFailed
        If the device fails.
    TimeOver
        If the time ends before the features are computed.
    """
    fits, has_folder = len(folds) * len(values), options.work is not None
    found = plan_on(fleet, data, options, fits, device=device, has_folder=has_folder)
    if options.work is not None:
        shutil.rmtree(options.work, ignore_errors=True)  # left by a run that was killed
    try:
        given = folds, binaries, values, None, deadline
        with (
            explain_failures(found.device),
            FoldsJob(data, options, fleet, found, *given) as job,
        ):
            job.run()
            return _solved(job, scoring), job.is_late
    finally:
        fleet.stop()
        if options.work is not None:
            shutil.rmtree(options.work, ignore_errors=True)


def _solved(job: FoldsJob, scoring: Scoring) -> list[Solved]:
    """Collect the records of every fold from a job that has run.

    ``scoring``: how held-out rows are scored, as of `score_held_out`.
    """
    scores = job.scores(scoring)
    found: list[Solved] = []
    for f in range(len(job.folds)):
        machines = [job.machines(f, v) for v in range(len(job.values))]
        gaps = [
            largest_gaps([one["certificate"] for one in own])["relative_gap"] for own in machines
        ]
        records = [
            {"relative_gap": gap, "score": float(score)}
            for gap, score in zip(gaps, scores[f], strict=True)
        ]
        found.append((records, {}))
    return found
