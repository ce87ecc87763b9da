"""What a plan is asked for, what it says, and its arithmetic of bytes held by processes."""

from __future__ import annotations

from dataclasses import dataclass

from bigscreen.errors import in_units
from bigscreen.options.train import PROBLEMS
from bigscreen.plan.tuning import PLAN, PlanTuning


@dataclass(frozen=True)
class Plan:
    """The outline of a fit.

    Parameters
    ----------
    rows, columns, classifiers, landmarks : int
    data_bytes : int
        The rows as stored.
    solver, features : str
        ``newton``, ``cd``, ``interior``, ``block``, ``pairs``, ``snacks`` or ``pegasos``;
        ``stored`` (in memory or on disk), ``recomputed``, ``raw`` or ``exact``.
    features_in_memory : bool
    resident : float
        Part of the rows a pass goes over that is kept in memory; the others are read each time.
    peak_bytes, disk_bytes, cache_bytes : int
        Memory of all processes together; disk for features; of the memory, kernel columns kept.
    worker_bytes : int
        Of ``peak_bytes`` the part of each worker process, 0 without any; the rest is the
        coordinating process's.
    together : int
        Classifiers that are solved at once, over one pass a round.
    nearby_bytes : int
        What is left of the memory for rows that steps go over again and again, or, of an exact
        machine, for another solver that goes on.
    alone : bool
        Whether the fit is so small that the coordinating process does all of it, with the same
        solver and the same bits as without workers.
    refusal : str or None
        Why it cannot run in the memory allowed, with the arithmetic.
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


@dataclass(frozen=True)
class Held:
    """Bytes that processes hold.

    Parameters
    ----------
    own : float
        Of the coordinating process.
    each : float
        Of each worker process; 0 where there is none.
    workers : int
        How many worker processes there are.
    """

    own: float
    each: float
    workers: int

    def __add__(self, other: Held) -> Held:
        return Held(self.own + other.own, self.each + other.each, self.workers)

    def times(self, factor: float) -> Held:
        """``factor`` times as many bytes."""
        return Held(factor * self.own, factor * self.each, self.workers)

    def at_least(self, other: Held) -> Held:
        """The larger need of each process."""
        return Held(max(self.own, other.own), max(self.each, other.each), self.workers)

    @property
    def total(self) -> float:
        """Bytes of all processes together."""
        return self.own + self.workers * self.each


@dataclass(frozen=True)
class Request:
    """What the outline depends on besides the data.

    ``memory``: bytes that all processes may hold together. ``limit``: bytes that each worker may
    hold; None: its part of ``memory``, of which the coordinating process has another. ``idle``:
    worker processes that have no part in the fit.
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
    tuning: PlanTuning = PLAN

    def classifiers(self, labels: int) -> int:
        """Problems that so many labels make, in all fits to the same rows."""
        if labels == 2 or not PROBLEMS[self.problem].classifies:
            return self.fits
        return self.fits * (labels * (labels - 1) // 2 if self.strategy == "one" else labels)

    @property
    def is_linear(self) -> bool:
        """Whether the rows themselves are the features."""
        return self.kernel == "linear"

    @property
    def is_close(self) -> bool:
        """Whether the gap asked for is closer than the usual one."""
        return self.tol < self.tuning.usual_tol

    @property
    def worker_limit(self) -> float:
        """Bytes that each worker may hold."""
        return self.memory / (self.processes + 1) if self.limit is None else self.limit

    @property
    def processes(self) -> int:
        """Worker processes, idle ones among them."""
        return self.workers if self.cluster else self.idle

    @property
    def survivors(self) -> int:
        """Workers that hold all shards while one of them is dead."""
        return max(1, self.workers - 1)

    def once(self, own: float) -> Held:
        """What the coordinating process alone holds."""
        return Held(own, 0.0, self.processes)

    def everywhere(self, each: float) -> Held:
        """What each worker holds; without a cluster each thread of this process."""
        if self.cluster:
            return Held(0.0, each, self.workers)
        return self.once(self.workers * each)

    def over_shards(self, whole: float, reserve: bool = True) -> Held:
        """What is held with the shards of all rows.

        ``reserve``: with room in each worker for the shards of one that died.
        """
        if not self.cluster:
            return self.once(whole)
        return self.everywhere(whole / (self.survivors if reserve else self.workers))

    @property
    def base(self) -> Held:
        """What the processes take before they have any data."""
        each = self.tuning.worker_bytes if self.processes else 0
        return Held(self.tuning.process_bytes, each, self.processes)

    def room(self, held: Held, in_workers: bool) -> float:
        """Bytes that are left besides ``held``; in the workers, or for the coordinator."""
        left = self.memory - held.total
        if self.cluster and in_workers:
            return min(left, self.workers * (self.worker_limit - held.each))
        return left

    def refusal(self, held: Held, parts: dict[str, Held], advice: str) -> str | None:
        """Why a fit that holds so much cannot run, with its arithmetic; None if it can."""
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
    """What processes take before they have data, with what paths and searches leave free."""
    own = PLAN.process_bytes + PLAN.spare_process_bytes
    each = PLAN.worker_bytes + PLAN.spare_worker_bytes
    # (Only the workers of a cluster are processes.)
    return own + (workers * each if cluster else 0)
