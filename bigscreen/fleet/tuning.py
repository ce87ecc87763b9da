"""Tuned values of the fleet on a Dask cluster: time limits, numbers of tries, sizes of messages."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ClusterTuning:
    """Time limits, numbers of tries and sizes of messages of a `Cluster` (workers under Dask).

    Attributes
    ----------
    patience_seconds : float
        Wait at most this long for a worker to appear, or for a worker to answer; then give up with
        an error.
    min_patience_seconds : float
        Wait at least this long for a worker to appear or answer, even if the time limit of the fit
        has passed: a worker that died may be restarting.
    frozen_seconds : float
        Give up a worker whose heartbeats the scheduler has not received for this time. (Dask itself
        waits 5 minutes.)
    look_seconds : float
        Look for new, leaving and frozen workers at intervals of this many seconds.
    start_seconds : float
        Kill worker processes of this machine that have not started after this time.
    max_starts : int
        Start a cluster on this machine at most this often, as a worker may die while it starts;
        then raise InputError.
    max_deaths : int
        Raise ConnectionError if this many workers, one after the other, died while they computed
        the same answer for the same shard (part of the rows). Also ask the scheduler at most this
        often to retire a worker.
    log_bytes : int
        Messages to the workers are kept, to be replayed after a worker's death; once they take more
        bytes than this, copy the states of all shards to this machine and drop the messages.
    max_gather_bytes : int
        Fetch the results of several items at once if they are ready and take at most this many
        bytes together, by the size of results before. One message for each item takes this process
        1.5 ms more (`python -m pipelines.scale.rounds`).
    min_shared_bytes : int
        If the integer sums of a round take at least this many bytes, the workers add them up among
        themselves; smaller sums are sent to this process, which adds them.
    min_sharing_machines : int
        Let the workers add up large sums among themselves only if they run on at least this many
        machines: then not all sums pass one network interface. (On one machine it is no faster, and
        half as fast if the machine is busy.)
    max_sharing_hosts : int
        Divide the adding of large sums among at most this many workers; with more, each would send
        many small messages.
    """

    patience_seconds: float = 60.0
    min_patience_seconds: float = 5.0
    frozen_seconds: float = 30.0
    look_seconds: float = 2.0
    start_seconds: float = 120.0
    max_starts: int = 3
    max_deaths: int = 3
    log_bytes: int = 32 * 2**20
    max_gather_bytes: int = 64 * 2**20
    min_shared_bytes: int = 2**20
    min_sharing_machines: int = 2
    max_sharing_hosts: int = 32


CLUSTER = ClusterTuning()
"""The default values, which tests override."""
