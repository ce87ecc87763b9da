"""The plan of a fit, the request that it answers, and bytes of memory by process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bigscreen.device.find import HOST, Device
from bigscreen.errors import in_units
from bigscreen.options.train import PROBLEMS
from bigscreen.plan.tuning import PLAN, PlanTuning


@dataclass(frozen=True)
class Plan:
    """The plan of a fit, made before it runs: solver, features, memory, or why it is refused.

    Parameters
    ----------
    rows, columns, classifiers, landmarks : int
        Numbers of rows, of columns of the data, of binary problems, and of landmarks (0: none).
    data_bytes : int
        Size of the rows as stored.
    solver, features : str
        ``newton``, ``dense``, ``cd``, ``interior``, ``block``, ``pairs``, ``snacks`` or
        ``pegasos``;
        ``stored`` (in memory or on disk), ``recomputed``, ``raw`` or ``exact``.
    features_in_memory : bool
        Whether stored features are kept in memory; else they are on disk.
    resident : float
        Fraction of the rows (or features) kept in memory; each pass reads the others.
    peak_bytes, disk_bytes, cache_bytes : int
        Memory of all processes together; disk space for features; memory for kernel columns.
    worker_bytes : int
        The part of ``peak_bytes`` in each worker process, 0 without workers; the coordinating
        process has the rest.
    together : int
        Number of classifiers that are solved at once, with common passes.
    nearby_bytes : int
        Memory left for the rows of local steps; for an exact machine, for a solver that continues
        when the first one stalls.
    alone : bool
        The fit is so small that the coordinating process does all of it, with the same solver and
        the same bits as without workers.
    refusal : str or None
        Why the fit cannot run in the memory allowed, with the arithmetic.
    on_device : DevicePlan or None
        What is kept on devices; None: the CPU computes.
    """

    rows: int
    columns: int
    classifiers: int
    landmarks: int
    data_bytes: int
    solver: str
    features: str
    features_in_memory: bool
    resident: float
    peak_bytes: int
    disk_bytes: int
    refusal: str | None
    cache_bytes: int = 0
    together: int = 1
    nearby_bytes: int = 0
    worker_bytes: int = 0
    alone: bool = False
    on_device: DevicePlan | None = None

    @property
    def device(self) -> Device:
        """The device that computes."""
        return HOST if self.on_device is None else self.on_device.device


@dataclass(frozen=True)
class DevicePlan:
    """What a fit keeps on its devices, each of which has a part of the rows.

    Parameters
    ----------
    device : Device
    devices : int
        The number of devices, one for each worker process; 1 without workers.
    limit_bytes : int
        Memory to stay within on each device.
    work_bytes : int
        Memory on each device for the state of its rows, for tiles and for Hessians.
    feature_bytes : int
        Memory on each device for the features of its rows; 0 if each pass computes them again. Of
        an exact fit: for the cached kernel columns of its rows.
    row_bytes : int
        Memory on each device for its rows; 0 if the features are kept instead, or if each pass
        reads the rows from the host.
    refusal : str or None
        Why the fit cannot run within the limit, with the arithmetic.
    """

    device: Device
    devices: int
    limit_bytes: int
    work_bytes: int
    feature_bytes: int
    row_bytes: int
    refusal: str | None = None

    @property
    def room(self) -> int:
        """The bytes that features, or else rows, may take on all devices together."""
        return self.devices * max(0, self.limit_bytes - self.work_bytes)

    @property
    def spare_bytes(self) -> int:
        """The bytes that the fit leaves free within the limit, on all devices together."""
        return max(0, self.room - self.devices * (self.feature_bytes + self.row_bytes))

    @property
    def record(self) -> dict[str, Any]:
        """The plan as JSON values."""
        names = ("devices", "limit_bytes", "work_bytes", "feature_bytes", "row_bytes")
        return {**self.device.record, **{name: getattr(self, name) for name in names}}


@dataclass(frozen=True)
class Held:
    """Bytes of memory, in the coordinating process and in each worker.

    Parameters
    ----------
    own : float
        Bytes of the coordinating process.
    each : float
        Bytes of each worker process; 0 if there is none.
    workers : int
        Number of worker processes.
    """

    own: float
    each: float
    workers: int

    def __add__(self, other: Held) -> Held:
        """Return the sums of both needs, process by process."""
        return Held(self.own + other.own, self.each + other.each, self.workers)

    def times(self, factor: float) -> Held:
        """Return these bytes multiplied by ``factor``."""
        return Held(factor * self.own, factor * self.each, self.workers)

    def at_least(self, other: Held) -> Held:
        """Return the larger of both needs, process by process."""
        return Held(max(self.own, other.own), max(self.each, other.each), self.workers)

    @property
    def total(self) -> float:
        """The bytes of all processes together."""
        return self.own + self.workers * self.each


@dataclass(frozen=True)
class Request:
    """The options of a fit and the machine, for which a plan is made.

    ``workers``: threads of this process or, with ``cluster``, worker processes. ``memory``: the
    bytes that all processes may hold together; ``limit``: those that each worker may hold, None for
    an equal share of ``memory`` for each worker and the coordinating process. ``idle``: the number
    of worker processes that take no part in the fit. ``fits``: how many fits share the rows.
    ``on_device``: what devices keep; None: the CPU computes. The
    other fields are options of the fit (see `TrainOptions`).
    """

    kernel: str
    landmarks: int
    solver: str
    features: str
    intercept: str
    memory: int
    workers: int
    cluster: bool
    strategy: str = "rest"
    cache: int | None = None
    problem: str = "c-svc"
    sampling: str = "uniform"
    fits: int = 1
    tol: float = PLAN.usual_tol
    limit: int | None = None
    idle: int = 0
    on_device: DevicePlan | None = None
    tuning: PlanTuning = PLAN

    def classifiers(self, labels: int) -> int:
        """Return the number of problems that this many labels make, in all fits to the rows."""
        if labels == 2 or not PROBLEMS[self.problem].classifies:
            return self.fits
        return self.fits * (labels * (labels - 1) // 2 if self.strategy == "one" else labels)

    @property
    def is_linear(self) -> bool:
        """Whether the rows themselves are the features."""
        return self.kernel == "linear"

    @property
    def is_close(self) -> bool:
        """Whether the requested gap is smaller than the usual one."""
        return self.tol < self.tuning.usual_tol

    @property
    def worker_limit(self) -> float:
        """The bytes that each worker may hold."""
        return self.memory / (self.processes + 1) if self.limit is None else self.limit

    @property
    def processes(self) -> int:
        """The number of worker processes, including idle ones."""
        return self.workers if self.cluster else self.idle

    @property
    def survivors(self) -> int:
        """The number of workers that hold all shards when one worker has died."""
        return max(1, self.workers - 1)

    def once(self, own: float) -> Held:
        """Return the memory of something that only the coordinating process holds."""
        return Held(own, 0.0, self.processes)

    def everywhere(self, each: float) -> Held:
        """Return the memory of something of which each worker holds ``each`` bytes.

        Without a cluster the threads of this process are the workers.
        """
        if self.cluster:
            return Held(0.0, each, self.workers)
        return self.once(self.workers * each)

    def over_shards(self, whole: float, reserve: bool = True) -> Held:
        """Return the memory of ``whole`` bytes that are divided among the workers, by shards.

        With ``reserve``, each worker has room for its part of the shards of a worker that died.
        """
        if not self.cluster:
            return self.once(whole)
        return self.everywhere(whole / (self.survivors if reserve else self.workers))

    @property
    def base(self) -> Held:
        """The memory of the processes before they have any data."""
        each = self.tuning.worker_bytes if self.processes else 0
        return Held(self.tuning.process_bytes, each, self.processes)

    def room(self, held: Held, in_workers: bool) -> float:
        """Return the bytes left next to ``held``, in the workers or in the coordinating process.

        ``in_workers``: whether the memory is divided among the workers of a cluster.
        """
        left = self.memory - held.total
        if self.cluster and in_workers:
            return min(left, self.workers * (self.worker_limit - held.each))
        return left

    def refusal(self, held: Held, parts: dict[str, Held], advice: str) -> str | None:
        """Explain why a fit that needs ``held`` cannot run, with the arithmetic; None if it can.

        ``parts``: the memory that adds up to ``held``, by what it is for; ``advice``: what the user
        can do.
        """
        who, needed, allowed = "this fit", held.total, float(self.memory)
        sizes = {name: part.total for name, part in parts.items()}
        if needed <= allowed:
            who, needed, allowed = f"each of {self.processes} workers", held.each, self.worker_limit
            sizes = {name: part.each for name, part in parts.items()}
        if needed <= allowed:
            return None
        sums = ", ".join(f"{in_units(size)} {name}" for name, size in sizes.items() if size)
        return (
            f"{who} needs about {in_units(needed)} and the memory allowed is "
            f"{in_units(int(allowed))}: {sums}; {advice}"
        )


def process_bytes(workers: int, cluster: bool) -> int:
    """Return the bytes of the processes of a path or a search before they hold any data.

    A reserve is included. ``workers``: worker processes of a ``cluster``, else threads.
    """
    own = PLAN.process_bytes + PLAN.spare_process_bytes
    each = PLAN.worker_bytes + PLAN.spare_worker_bytes
    # (Without a cluster, workers are threads.)
    return own + (workers * each if cluster else 0)
