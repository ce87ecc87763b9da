"""Tuned values of the fleet on a Dask cluster: time limits, numbers of tries, sizes of messages."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ClusterTuning:
    """Time limits, numbers of tries and sizes of messages of a `Cluster`."""

    # -- waiting -----------------------------------------------------------------------------------
    patience_seconds: float = 60.0  # wait this long for a worker, or for its answer
    min_patience_seconds: float = 5.0  # wait this long even after the time budget: a worker that
    # died may be restarting
    frozen_seconds: float = 30.0  # give up a worker that its scheduler has not heard from for this
    # time; Dask's own limit is 5 minutes
    look_seconds: float = 2.0  # look for new, dead and frozen workers this often
    start_seconds: float = 120.0  # kill local workers that have not started after this time
    # -- tries -------------------------------------------------------------------------------------
    max_starts: int = 3  # start a local cluster this often: a worker may die while it starts
    max_deaths: int = 3  # give up if this many workers died in one round with the same shard
    # -- messages ----------------------------------------------------------------------------------
    log_bytes: int = 32 * 2**20  # copy the states once the messages kept for replay exceed this
    min_shared_bytes: int = 2**20  # hosts add up totals of at least this size among themselves,
    min_sharing_machines: int = 2  # if they run on this many machines: not all totals then pass one
    # network interface (on one machine no faster, and twice as slow if the machine is busy)
    max_sharing_hosts: int = 32  # this many hosts add up a share each: more send small messages


CLUSTER = ClusterTuning()
