"""What a fit will need, before it runs: memory, disk, time, and where its features live.

The constants are nanoseconds and bytes measured on 2-core machines with AVX-512. Choices rest on
them alone, the same on every machine; times on how fast this machine is (`train.speed`), too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from bigscreen.certify.sample import SAMPLE_ROWS as COMPARED_ROWS
from bigscreen.data.layout import row_grid
from bigscreen.data.rows import Rows
from bigscreen.errors import in_units
from bigscreen.features.landmarks import choosing_bytes
from bigscreen.features.nystrom import LARGE
from bigscreen.fleet.lockstep import MOST
from bigscreen.kernels import amx, vnni
from bigscreen.kernels.standard import made_of_products, on_matrix_unit
from bigscreen.solvers.block.coordinator import WHOLE
from bigscreen.solvers.block.kernel_columns import PIECE
from bigscreen.solvers.newton.coordinator import ENTRIES, LARGE_ROWS, PART, PRODUCT_ROWS
from bigscreen.solvers.newton.sampled import SAMPLE_ROWS, TILE_ROWS, TOGETHER
from bigscreen.solvers.smo.solver import WHOLE as WHOLE_MATRIX
from bigscreen.solvers.snacks.draws import HELD_BYTES
from bigscreen.train.options import PROBLEMS, STOCHASTIC, coupled
from bigscreen.train.speed import USUAL, Speed

BASE_BYTES = 160 * 2**20
"""An idle process with everything imported (measured: 140 to 156)."""
WORKER_BYTES = 150 * 2**20
"""A worker process, and its part of what Dask's processes have beside."""
SOLVER_ROW_BYTES = 72
"""Solver state of a row: scores, labels, norms, side, temporaries of a pass."""
BLOCK_BYTES = 2**26
"""Rows that a thread holds while it reads them: a block, and what is made of it."""
SPARE_BYTES, WORKER_SPARE_BYTES = 240 * 2**20, 100 * 2**20
"""What paths and searches leave beside these for what they do not count."""
NEARBY = 1.5
"""Copies of the rows that the coordinator has at hand, while they come."""
MADE_ROWS = 2048
"""Rows whose features are made at once, of float64 entries."""
READ_COST = 0.3
"""Nanoseconds that a pass takes for a feature in memory."""
KEPT_SHARE = 0.8
"""Part of the memory left over that rows may take: of more of them, some are read in every pass."""
PAIR_ROWS_BYTES = 256 * 2**20
"""Rows of products that pair steps on features keep where nobody says how many."""
VECTOR_BYTES, VECTORS = 8, 6
"""A linear machine holds so many vectors of all features at once, and one for each thread."""
INDEX_BYTES = 32
"""A feature of sparse landmarks: how many have it, its place, where it begins in the index."""
MOMENTS = 4
"""Matrices of moments that the coordinator holds of each of several classifiers at once."""
PASSES = 16.0
"""Full passes over all rows that a Newton solve comes to (measured: 5 to 40, lazy rows less), as
far as choices rest on them."""
USUAL_TOL = 1e-3
"""Relative gap down to which features that are recomputed are as quick as stored ones in all but
their entries (measured: .5 to 1.1 times as long where they are chosen)."""
ROWS_A_LANDMARK = 100
"""Of so many that is true of closer gaps, too (measured: .5 to .9 times as long)."""
TIMED_PASSES = 7.0
"""The same as far as times do: five, those over an eighth of the rows, the closing one."""
READ_AGAIN = 36.0
"""Nanoseconds that a solve takes to read a stored feature again and again which is not kept."""
OF_ROW = 40.0
"""Operations on a row of a pass beside its features."""
STEPS_AT_HAND = 8.0
"""Second moments of the rows at hand that a Newton solve comes to."""
LARGE_PASSES, HESSIANS, T_COST = 12.0, 12.0, 1.0
"""Passes over all rows that the entries of a solve come to where landmarks are many; Hessians of
samples; and multiplications of T, in float32 ones, in m^3 (measured: 2,000 to 4,000 landmarks)."""
STORED_CUBES = 20.0
"""What a solve over their stored features comes to, in m^3 (measured: 2,500 landmarks)."""
KEPT_BYTES, ZONE = 2, 0.2
"""An entry that products go over again and again; part of all rows that they are with, at most."""
DESCENT_BYTES = 2**24
"""What a thread of coordinate descent has beside the rows (measured: 5 to 20 MiB)."""
SAMPLE_BYTES = 24
"""A feature of the rows that the closing pass looks at in float64."""
ALONE = ("cd", "pairs", "interior")
"""Solvers that work in the coordinating process, whatever workers there are."""
MOST_COLUMNS = 4000
"""Columns up to which m x m algebra is small."""
MANY_ROWS = 64
"""Rows a landmark from which on kernel machines are a Newton's, of however many landmarks."""
MOMENT_ROWS = 16
"""Rows a feature whose second moment a pass takes, at most."""
FEW_PASSES, MANY_PASSES = 12.0, 48.0
"""Passes that take one; of fewer rows a feature than the above they are more."""
FEW_ROWS_A_COLUMN, INTERIOR_WORK = (3, 20), 5e9
"""Of fewer rows a column, to the usual gap and to closer ones, an interior point solves machines on
features, if a step takes so many products at most (measured: 45 to 6,000 rows of 30 to 1,200
columns; steps over a smoothed loss, or on single rows, can be endless there)."""
INTERIOR_STEPS, INTERIOR_COPIES = 30.0, 3
"""Steps that it takes (measured: 8 to 35), and float64 copies of the rows that it has."""
EPOCHS, STEP_COST = 90.0, 25.0
"""Of coordinate descent, on one thread, and nanoseconds of a nonzero of its steps."""
FLOAT64_COST = 8.0
"""Nanoseconds of a float64 kernel entry beside its product."""
NONZERO_COST = 2.4
"""The same, of a nonzero of a sparse row, entry by entry."""
START_SECONDS, WORKERS_SECONDS = 0.4, 2.0


@dataclass(frozen=True)
class Plan:
    """The outline of a fit.

    Parameters
    ----------
    rows, columns, classifiers, landmarks : int
    data_bytes : int
        The rows as stored.
    solver, features : str
        ``newton``, ``cd``, ``block``, ``pairs``, ``snacks`` or ``pegasos``; ``stored`` (in memory
        or on disk), ``recomputed``, ``raw`` or ``exact``.
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
        What steps may take for what they go over again and again: what is left of the memory, and
        what rows at hand took before. (Of exact machines, what else may solve them.)
    alone : bool
        Whether the coordinating process does all of it, as it is too small for the workers that
        there are: the same solver, and the same bits, as without any.
    seconds : float
        Rough time on this number of workers.
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
    seconds: float
    refusal: str | None
    cache_bytes: int = 0
    together: int = 1
    nearby_bytes: int = 0
    worker_bytes: int = 0
    alone: bool = False

    def interior_within(self, room: int) -> bool:
        """Whether an interior point could solve a machine on these features in so many bytes."""
        n, m = self.rows, self.landmarks or self.columns
        return interior_work(n, m) <= INTERIOR_WORK and interior_bytes(n, m) <= room


def is_small(data: Rows, request: Request, exact: bool) -> bool:
    """Whether one process solves it about as quickly as several, so that it is the coordinator."""
    n, linear = data.n_rows, request.kernel == "linear"
    if exact:
        return n <= FEW_ROWS and request.solver in ("auto", "pairs")
    return (
        _solver(request, linear, n, data.n_features if linear else request.landmarks) == "interior"
    )


def interior_work(n: int, m: int) -> float:
    """Products of a step of an interior point, n rows of m columns."""
    return float(n) * m * min(n, m)


def interior_bytes(n: int, m: int) -> int:
    """Its float64 copies of the rows, and of a system's matrix."""
    return 8 * (INTERIOR_COPIES * n * m + 3 * min(n, m) ** 2)


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
        """So many times as many bytes."""
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
    tol: float = USUAL_TOL
    limit: int | None = None
    idle: int = 0

    def classifiers(self, labels: int) -> int:
        """Problems that so many labels make, in all fits to the same rows."""
        if labels == 2 or not PROBLEMS[self.problem].classifies:
            return self.fits
        return self.fits * (labels * (labels - 1) // 2 if self.strategy == "one" else labels)

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
        return Held(BASE_BYTES, WORKER_BYTES if self.processes else 0, self.processes)

    def room(self, held: Held, in_workers: bool) -> float:
        """Bytes that are left beside what is held; in the workers, or for the coordinator."""
        left = self.memory - held.total
        if self.cluster and in_workers:
            return min(left, self.workers * (self.worker_limit - held.each))
        return left

    def refusal(self, held: Held, parts: dict[str, Held], advice: str) -> str | None:
        """Why a fit that holds so much cannot run, with its arithmetic; None if it can."""
        if held.total > self.memory:
            totals = {name: part.total for name, part in parts.items()}
            return refused(held.total, self.memory, totals, advice)
        if held.each > self.worker_limit:
            each = {name: part.each for name, part in parts.items()}
            limit = int(self.worker_limit)
            return refused(held.each, limit, each, advice, f"each of {self.processes} workers")
        return None


def process_bytes(workers: int, cluster: bool, spare: bool = False) -> int:
    """What processes take before they have any data, with some to spare or without."""
    own, each = BASE_BYTES, WORKER_BYTES
    if spare:
        own, each = own + SPARE_BYTES, each + WORKER_SPARE_BYTES
    # (Only the workers of a cluster are processes.)
    return own + (workers * each if cluster else 0)


class Cost(NamedTuple):
    """Seconds that parts of a fit take.

    Parameters
    ----------
    speed : Speed
    rows : int
    width : float
        Features of a row that are not 0.
    threads : int
    """

    speed: Speed
    rows: int
    width: float
    threads: int

    def features(self, row_bytes: float, sparse: bool) -> float:
        """To make stored features, of float64 entries."""
        product = self.speed.product64
        entry = FLOAT64_COST + (NONZERO_COST * row_bytes / 8 if sparse else product * row_bytes / 4)
        return 1e-9 * self.rows * self.width * (entry + product * self.width) / self.threads

    def newton(self, of_entry: float, away: float, many: bool) -> float:
        """To solve; a pass takes so long for an entry, and a part of all is away from memory.

        ``many``: by products with the landmarks' factor and no sums of m x m over rows.
        """
        n, m, few = self.rows, self.width, self.rows < MOMENT_ROWS * self.width
        passes = MANY_PASSES if few else FEW_PASSES
        entries = n * m * (TIMED_PASSES * of_entry + READ_AGAIN * away)
        moments = passes * min(n / 2, MOMENT_ROWS * m) + STEPS_AT_HAND * min(PART * n, ENTRIES / m)
        products = moments * m**2 + passes * m**3
        if many:
            # Of T, in float64, and of the Hessians of samples; entries of products with the zone.
            hessian = 1.5 * SAMPLE_ROWS * TOGETHER**2 + TOGETHER**3 / 6
            products = (T_COST + HESSIANS * hessian) * m**3
            entries = n * m * LARGE_PASSES * of_entry
        of_rows = TIMED_PASSES * n * OF_ROW * self.speed.row
        return 1e-9 * (entries + self.speed.product * products + of_rows) / self.threads

    def interior(self) -> float:
        """To solve by an interior point, on one thread."""
        n, m = self.rows, self.width
        return 1e-9 * INTERIOR_STEPS * n * m * min(n, m) * self.speed.product64

    def descent(self) -> float:
        """To solve by steps on one row at a time."""
        return 1e-9 * EPOCHS * STEP_COST * self.rows * self.width * self.speed.row / USUAL.row


def outline(data: Rows, request: Request, speed: Speed = USUAL) -> Plan:
    """Choose solver, features and what stays in memory; refuse what cannot fit."""
    n, d = data.n_rows, data.n_features
    row_bytes = data.row_bytes
    classifiers = request.classifiers(len(data.labels))
    linear = request.kernel == "linear"
    m = d if linear else request.landmarks
    solver = _solver(request, linear, n, m)
    entry = entry_cost(data)
    threads, base = request.workers, request.base
    # What a solver holds that works through the shards here, its workers do not.
    over_shards = request.once if solver in ALONE else request.over_shards
    square = 8 * (m + 1) ** 2
    work = request.once(0)
    if solver == "newton":
        # The coordinator's moments and Hessian; every thread's; the factor of every process.
        work = request.once(4 * square) + request.everywhere(square * (5 if request.cluster else 1))
    many = solver == "newton" and not linear and m > LARGE and request.features != "stored"
    if many:
        # T in float64, in every process, and a Hessian in float32; tiles of its sample.
        sampled = int(square * TOGETHER**2 / 2) + 3 * 4 * TILE_ROWS * m
        work = request.once(square + sampled + SAMPLE_BYTES * COMPARED_ROWS * m)
        work += request.everywhere(square if request.cluster else 0)
    if solver == "interior":
        work = request.once(interior_bytes(n, m))
    if solver in STOCHASTIC and not linear:
        work = request.once(square)  # T in either precision, and the machines that are tried
    tile = DESCENT_BYTES if solver == "cd" else 2**25
    tiles = request.everywhere(2048 * (m + 1) * (4 + 4) if solver == "newton" else tile)
    # Pair steps keep rows of the matrix of products between the rows.
    cache = min(request.cache or PAIR_ROWS_BYTES, 4 * n * n) if solver == "pairs" else 0
    states = over_shards(n * SOLVER_ROW_BYTES) + request.once(cache)
    nearby = int(min(4 * ENTRIES, 4 * PART * n * m)) if solver == "newton" and m >= 64 else 0
    nearby = 0 if many else nearby
    # On a cluster they are on their way in the workers, and here.
    copies = request.once(NEARBY * nearby)
    copies += request.over_shards(NEARBY * nearby) if request.cluster else request.once(0)
    wide = _wide(data, linear, request)
    fixed = base + work + tiles + states + wide + copies
    room = request.room(fixed, solver not in ALONE)
    data_bytes = int(n * row_bytes)
    blocks = threads * BLOCK_BYTES
    features = "raw"
    if not linear:
        kept = min(1.0, max(0.0, KEPT_SHARE * room - blocks) / (4 * n * m))
        features = _features(request, solver, data, entry, classifiers, kept)
    feature_bytes = (8 if solver == "interior" else 4) * n * m if features == "stored" else 0
    in_memory = bool(feature_bytes) and not request.cluster and feature_bytes <= KEPT_SHARE * room
    passed_over = feature_bytes or data_bytes
    resident, kept = 1.0, float(passed_over)
    read = request.once(kept) if solver in ALONE else request.over_shards(kept, reserve=False)
    if passed_over > KEPT_SHARE * room and solver != "pairs":
        kept = max(0.0, KEPT_SHARE * room - blocks) if solver == "newton" else 0.0
        resident = kept / passed_over
        if solver in STOCHASTIC:
            kept = min(passed_over, max(blocks + kept, HELD_BYTES)) - blocks
        read = request.everywhere(BLOCK_BYTES) + request.over_shards(kept, reserve=False)
    # What each of several Newtons holds: moments and their sums, rows nearby, the rows' state.
    own = request.once(square // 2)
    if not many:
        own = request.once(square * MOMENTS) + request.everywhere(square)
    own += request.once(NEARBY * nearby) + request.over_shards(n * SOLVER_ROW_BYTES)
    together = 1
    if solver == "newton" and classifiers > 1:
        left = request.room(fixed + read, False) / own.total
        if request.cluster:
            left = min(left, (request.worker_limit - fixed.each - read.each) / own.each)
        together += min(classifiers - 1, MOST - 1, max(0, int(left)))
    peak = fixed + read + own.times(together - 1)
    if features == "stored":
        # Features are made of blocks of rows before any of the solver's memory is taken.
        made = request.once(feature_bytes if in_memory else 0)
        peak = peak.at_least(base + made + request.everywhere(_chunk_bytes(data, m)))
    # What products of a step go over again and again stays in what is left, and where rows at hand
    # are at other times.
    spare = _spare(request, peak, copies)
    if solver == "newton" and features == "recomputed":
        zone = min(ZONE * n, (LARGE_ROWS if many else PRODUCT_ROWS) * m)
        more = max(0.0, min(spare, KEPT_BYTES * zone * m) - copies.total)
        peak += request.over_shards(more, reserve=False)
    # Landmarks are chosen before any of that is there.
    choosing = 0 if linear else choosing_bytes(request.sampling, n, m, row_bytes)
    first = base + request.once(choosing)
    refusal = None
    if peak.total < first.total:
        refusal = request.refusal(
            first,
            {"for the processes": base, f"to choose {m} landmarks": request.once(choosing)},
            "allow more memory, use fewer landmarks, or sampling uniform",
        )
    if refusal is None:
        # But for pair steps nothing is resident here: what would be kept fits by definition.
        instead = "use solver cd" if linear else "use fewer landmarks"
        refusal = request.refusal(
            peak,
            {
                "for the processes": base,
                f"for {m} columns ({threads} threads)": work + tiles + copies,
                f"for the state of {n} rows": states,
                f"for vectors of {d} features": wide,
                "for blocks of rows as they are read": read,
            },
            f"allow more memory, or {instead}" if solver == "newton" else "allow more memory",
        )
    peak = peak.at_least(first)
    width = m if features == "stored" or not data.is_sparse or not linear else row_bytes / 8
    cost = Cost(speed, n, width, max(1, threads))
    build = cost.features(row_bytes, data.is_sparse) if features == "stored" else 0.0
    each = cost.descent()
    if solver == "newton":
        per_pass = READ_COST if features != "recomputed" else entry * speed.entry / USUAL.entry
        each = cost.newton(per_pass, 1.0 - resident, many)
    elif solver == "interior":
        each = cost.interior()
    seconds = build + classifiers * each + START_SECONDS
    seconds += WORKERS_SECONDS if request.processes else 0.0
    return Plan(
        rows=n,
        columns=d,
        classifiers=classifiers,
        landmarks=0 if linear else m,
        data_bytes=data_bytes,
        solver=solver,
        features=features,
        features_in_memory=in_memory,
        resident=resident,
        peak_bytes=int(peak.total),
        worker_bytes=int(peak.each),
        disk_bytes=0 if in_memory else feature_bytes,
        seconds=seconds,
        refusal=refusal,
        cache_bytes=cache,
        together=together,
        nearby_bytes=int(spare),
        alone=request.idle > 0,
    )


def _chunk_bytes(data: Rows, m: int) -> float:
    """Bytes of a thread that makes a chunk of features: its rows, a tile of them in float64.

    Features that are made stand twice: some wait to be taken.
    """
    rows = min(row_grid(data.n_rows, 4 * m)[1], data.shard_rows)
    tile = min(rows, MADE_ROWS) * (2 * 8 * m + 2 * data.row_bytes)
    return rows * (data.row_bytes + 2 * 4 * m) + tile


def _wide(data: Rows, linear: bool, request: Request) -> Held:
    """Bytes of what has an entry for every feature, whether any row has it or not."""
    if linear:
        vectors = VECTOR_BYTES * data.n_features
        return request.once(VECTORS * vectors) + request.everywhere(vectors)
    index = INDEX_BYTES * data.n_features if data.is_sparse else 0
    return request.everywhere(index) if request.cluster else request.once(index)


def _spare(request: Request, peak: Held, copies: Held) -> float:
    """Bytes that steps may take, in all workers together, or in the coordinating process instead.

    What rows at hand take at other times is among them.
    """
    spare = max(0.0, request.memory - peak.total) + copies.total
    if request.cluster:
        left = max(0.0, request.worker_limit - peak.each) + copies.each
        spare = min(spare, request.survivors * left)
    return spare


def entry_cost(data: Rows) -> float:
    """Nanoseconds that one thread takes for a kernel entry."""
    # A CSR entry costs about four dense ones; a row holds row_bytes / 8 of them.
    width = data.row_bytes / (2 if data.is_sparse else 4)
    return 0.6 + 0.02 * width


def refused(
    peak: float, memory: int, parts: dict[str, float], advice: str, who: str = "this fit"
) -> str:
    """The sentence that says why a fit cannot run, with its arithmetic."""
    sums = ", ".join(f"{in_units(part)} {name}" for name, part in parts.items() if part)
    return (
        f"{who} needs about {in_units(peak)} and the memory allowed is {in_units(memory)}: "
        f"{sums}; {advice}"
    )


def _solver(request: Request, linear: bool, n: int, m: int) -> str:
    """Newton while its m x m algebra is small beside a pass, else coordinate descent.

    The latter only where variables can move alone. Of few rows an interior point.
    """
    if request.solver != "auto":
        return request.solver
    # (Features that are to be computed again are a Newton's.)
    own = linear or request.features in ("auto", "stored")
    if own and not PROBLEMS[request.problem].squared:
        few = n < FEW_ROWS_A_COLUMN[request.tol < USUAL_TOL] * m
        if few and m <= MOST_COLUMNS and interior_work(n, m) <= INTERIOR_WORK:
            return "interior"
    if coupled(request.problem, request.intercept):
        return "newton"
    if not linear and n >= MANY_ROWS * m:
        return "newton"  # features of so many rows are dearer than all the rest
    return "newton" if m <= MOST_COLUMNS and (n >= 2 * m or not linear) else "cd"


def _features(
    request: Request, solver: str, data: Rows, entry: float, classifiers: int, kept: float
) -> str:
    """Stored features cost an n m^2 product once, recomputed ones their entries in every pass.

    In nanoseconds an entry; to closer gaps recomputed ones, unless rows are many, also take the
    features of some 16 m rows a pass, stored ones the reading of those that are not ``kept``, a
    part of them, in memory.
    """
    n, m = data.n_rows, request.landmarks
    if solver in ("cd", "interior", "pairs"):
        return "stored"
    if request.features != "auto":
        return request.features
    if solver == "newton" and m > LARGE:
        cost = Cost(USUAL, n, m, 1)
        read = n * m * (PASSES * READ_COST + READ_AGAIN * (1.0 - kept))
        each = 1e-9 * (read + USUAL.product * STORED_CUBES * m**3)
        stored = cost.features(data.row_bytes, data.is_sparse) + classifiers * each
        recomputed = classifiers * cost.newton(entry, 0.0, True)
    else:
        made = 0.18 * m**2 / n if request.tol < USUAL_TOL and n < ROWS_A_LANDMARK * m else 0.0
        recomputed = PASSES * classifiers * (entry + made)
        stored = entry + 0.022 * m + classifiers * (PASSES * READ_COST + READ_AGAIN * (1.0 - kept))
    return "stored" if stored < recomputed else "recomputed"


CACHE_SHARE = 0.3
"""Part of the memory allowed that kernel columns may take where nobody says how much."""
AGAIN_BYTES = 2**28
"""Kept where an entry of them is computed about as fast as memory that was never written can be
had: of more, nothing is gained, or time is lost (measured, with 256 MiB for all: ijcnn1, 22
columns, .7 of the time; covtype, 54, .87; a9a, 123 flags, .6; mnist, 784 pixels, .88)."""
AGAIN_COLUMNS, AGAIN_UNIT_COLUMNS, AGAIN_BYTE_COLUMNS = 64, 256, 1024
"""Columns of dense rows up to which that is so: by BLAS, by the matrix unit, and of bytes."""
BYTE_ROWS = 64
"""Rows of some chunks by which data are taken for bytes."""
EXACT_SHARD_BYTES, EXACT_HOST_BYTES = 240, 80
"""State of a row: alpha, score, box, norms in its shard; alpha and what it was at the host."""
COPIES = 2
"""Of the rows: as they are, and as products want them (columns and an index, or centred; the matrix
unit wants a larger one)."""
BY_LABEL = 3
"""Copies more where pairs of labels are solved on their own rows: by label, and in float64."""
SHARD_INDEX_BYTES, PAIR_INDEX_BYTES = 12, 16
"""A feature of sparse rows in the index of a shard, and in what pair steps hold beside it."""
THREAD_BYTES = 2**26
"""A thread's tiles of the kernel matrix."""
FEW_ROWS = 4096
"""Up to here pair steps on the whole matrix are as quick as blocks or
quicker (measured with 2 threads: .3 to 1.2 times as long at 3,000 to 5,000 rows), and go on in
float64 where float32 entries cannot prove the gap that is asked for."""
FEWEST = 16
"""Kernel columns without which no fit is begun, unless fewer are asked for."""
LOOKED_UP, STEPS_COST = 0.4, 75.0
"""Part of the kernel matrix that a solve computes (measured: 0.07 to 0.7), and nanoseconds that its
steps and scores take for each of those entries (measured: 3 to 180)."""


def _computed_again(data: Rows, kernel: str) -> bool:
    """Whether kernel columns are computed about as fast as memory for them can be had."""
    d = data.n_features
    if data.is_sparse or not made_of_products(kernel) or d > AGAIN_BYTE_COLUMNS:
        return False
    if d <= AGAIN_COLUMNS or on_matrix_unit(kernel, d):
        return d <= AGAIN_UNIT_COLUMNS
    return vnni.available() and all(
        vnni.grid_of(data.X(start, min(start + BYTE_ROWS, stop))) is not None
        for start, stop in {data.chunk(k) for k in (0, data.n_chunks // 2, data.n_chunks - 1)}
    )


def worth_keeping(data: Rows, kernel: str, share: int) -> int:
    """Of so many bytes for kernel columns those that are worth it."""
    return min(share, AGAIN_BYTES) if _computed_again(data, kernel) else share


def outline_exact(data: Rows, request: Request, speed: Speed = USUAL) -> Plan:
    """Say how many kernel columns can be kept; refuse what cannot fit."""
    n, d = data.n_rows, data.n_features
    threads, pairs = request.workers, request.solver == "pairs"
    if request.solver == "auto":
        pairs = n <= FEW_ROWS
    row_bytes = data.row_bytes
    classifiers = request.classifiers(len(data.labels))
    column = 4 * n
    base = request.base
    over_shards = request.once if pairs else request.over_shards
    # The closing pass, which writes no entries down, has its rows packed in any case.
    packed = not data.is_sparse and on_matrix_unit(request.kernel, d)
    wanted = amx.row_bytes(d) if packed else row_bytes
    rows = over_shards(int(n * ((COPIES - 1 + pairs) * row_bytes + wanted)))
    if request.strategy == "one" and classifiers > 1:
        rows += request.once(BY_LABEL * int(n * row_bytes))
    states = over_shards(n * EXACT_SHARD_BYTES) + request.once(n * EXACT_HOST_BYTES)
    block = min(WHOLE, n)
    pieces = 4 * PIECE * min(n, data.shard_rows) + THREAD_BYTES
    # What pairs compute at once.
    work = request.everywhere(THREAD_BYTES) + request.once(min(WHOLE_MATRIX, 8 * n**2))
    if not pairs:
        # The matrix, and while it grows that of a block of half as many rows.
        work = request.once(5 * block**2 + int(4 * block * row_bytes)) + request.everywhere(pieces)
    # Of sparse rows also what has an entry for every feature, whether any row has it or not.
    index = d if data.is_sparse else 0
    wide = request.once(INDEX_BYTES * index)
    if pairs:
        wide += request.once(PAIR_INDEX_BYTES * index)
    else:
        wide += request.over_shards(SHARD_INDEX_BYTES * (data.n_shards + 1) * index)
    fixed = base + rows + states + work + wide
    # Survivors hold the columns of a dead worker's shards, too.
    room = int(request.room(fixed, not pairs))
    if request.cluster and not pairs:
        room = room * request.survivors // request.workers
    share = int(CACHE_SHARE * request.memory)
    if not pairs:
        share = worth_keeping(data, request.kernel, share)
    cache = request.cache or max(min(share, room), min(FEWEST, n) * column)
    cache = min(cache, column * n)
    refusal = None
    if cache > room:
        kept = over_shards(cache)
        refusal = request.refusal(
            fixed + kept,
            {
                "for the processes": base,
                f"for {n} rows and what products need of them": rows,
                "for their state": states,
                f"for indices of {d} features": wide,
                f"for a block and its columns ({threads} threads)": work,
                f"for {cache // column} kernel columns": kept,
            },
            "allow more memory, or "
            + ("use landmarks" if request.cache is None else "give less of it to the cache"),
        )
    # Columns are kept as they are wanted: not all come to be.
    held = cache if refusal else min(cache, int(LOOKED_UP * column * n))
    peak = fixed + over_shards(held)
    entries = LOOKED_UP * float(n) * n
    if request.strategy == "one" and classifiers > 1:
        # Each is of the rows of two labels.
        entries *= (2 / len(data.labels)) ** 2
    cost = classifiers * entries * (entry_cost(data) + STEPS_COST) * speed.entry / USUAL.entry
    seconds = 1e-9 * cost / max(1, threads) + START_SECONDS
    seconds += WORKERS_SECONDS if request.processes else 0.0
    return Plan(
        rows=n,
        columns=d,
        classifiers=classifiers,
        landmarks=0,
        data_bytes=int(n * row_bytes),
        solver="pairs" if pairs else "block",
        features="exact",
        features_in_memory=False,
        resident=1.0,
        peak_bytes=int(peak.total),
        worker_bytes=int(peak.each),
        disk_bytes=0,
        seconds=seconds,
        refusal=refusal,
        cache_bytes=int(cache),
        nearby_bytes=max(0, room - int(held)),
        alone=request.idle > 0,
    )
