"""Plan a fit on explicit features: its solver, stored or recomputed features, memory."""

from __future__ import annotations

from dataclasses import dataclass

from bigscreen.certify.sample import SAMPLE
from bigscreen.data.layout import row_grid
from bigscreen.data.rows import Rows
from bigscreen.device.newton import dense_bytes
from bigscreen.features.landmarks import choosing_bytes
from bigscreen.features.nystrom import MAX_EIGH_LANDMARKS
from bigscreen.options.train import PROBLEMS, STOCHASTIC, has_coupling
from bigscreen.plan.memory import Held, Plan, Request
from bigscreen.solvers.interior import interior_bytes, interior_is_quick
from bigscreen.solvers.newton.tuning import NEWTON
from bigscreen.solvers.snacks.draws import CHUNK_BUFFER_BYTES

SINGLE_PROCESS = ("cd", "pairs", "interior")
"""Solvers that run in the coordinating process only, and leave workers idle."""


def plan_features(data: Rows, request: Request) -> Plan:
    """Plan a fit on features: solver, features and what stays in memory, or why it is refused."""
    fit = _Fit(data, request)
    fixed = fit.fixed
    room = request.room(fixed.total, not fit.is_alone)
    features = _choose_features(fit, room)
    stored = features == "stored"
    feature_bytes = (8 if fit.solver == "interior" else 4) * fit.n * fit.m if stored else 0
    in_memory = bool(feature_bytes) and not request.cluster
    in_memory = in_memory and feature_bytes <= request.tuning.kept_share * room
    resident, read = _kept_rows(fit, feature_bytes or fit.data_bytes, room)
    together, more = _count_together(fit, fixed.total + read)
    peak = fixed.total + read + more
    if stored:
        # Features are computed before the solver allocates its memory.
        made = request.once(feature_bytes if in_memory else 0)
        making = request.everywhere(_chunk_bytes(fit))
        peak = peak.at_least(request.base + made + making)
    spare = _spare_bytes(request, peak, fixed.copies)
    if fit.solver == "newton" and features == "recomputed":
        # The kernel columns of the smoothing band (16 bits) use what is left, and the memory of
        # gathered rows.
        rows = NEWTON.hessian_rows(fit.has_many)
        band = min(request.tuning.band_fraction * fit.n, rows * fit.m)
        columns = max(0.0, min(spare, 2 * band * fit.m) - fixed.copies.total)
        peak += request.over_shards(columns, reserve=False)
    on_host = fit.solver == "dense" and request.on_device is None
    if on_host and 4 * fit.n * fit.m <= spare and features == "recomputed":
        peak += request.over_shards(4 * fit.n * fit.m, reserve=False)
    refusal = _explain_refusal(fit, fixed, read, peak)
    if request.on_device is not None:
        refusal = refusal or request.on_device.refusal
    return Plan(
        rows=fit.n,
        columns=data.n_features,
        classifiers=fit.classifiers,
        landmarks=0 if request.is_linear else fit.m,
        data_bytes=fit.data_bytes,
        solver=fit.solver,
        features=features,
        features_in_memory=in_memory,
        resident=resident,
        peak_bytes=int(peak.at_least(fit.choosing).total),
        worker_bytes=int(peak.at_least(fit.choosing).each),
        disk_bytes=0 if in_memory else feature_bytes,
        refusal=refusal,
        cache_bytes=fit.cache,
        together=together,
        nearby_bytes=int(spare),
        alone=request.idle > 0,
        on_device=request.on_device,
    )


@dataclass(frozen=True)
class _Fixed:
    """Bytes that a fit needs even if it keeps no rows in memory, by what they are for.

    ``base``: the processes. ``columns``: matrices and tiles of features. ``states``: the state of
    rows and the cache. ``wide``: vectors with an entry for every column of the data. ``copies``:
    rows gathered for local steps.
    """

    base: Held
    columns: Held
    states: Held
    wide: Held
    copies: Held

    @property
    def total(self) -> Held:
        """The sum of all kinds of memory, for the coordinating process and for each worker."""
        return self.base + self.columns + self.states + self.wide + self.copies


class _Fit:
    """The fit to plan: n rows of m features, its solver, and its memory.

    ``is_alone``: one process solves it. ``classifiers``: the number of binary problems.
    ``data_bytes``: the size of the rows. ``square``: bytes of a float64 matrix of m + 1 rows and
    columns. ``cache``: bytes of the Gram matrix's rows that pair steps keep.
    """

    def __init__(self, data: Rows, request: Request) -> None:
        """Choose the solver of the request, and derive sizes from the data and the solver."""
        self.data, self.request, self.tuning = data, request, request.tuning
        self.n = data.n_rows
        self.m = data.n_features if request.is_linear else request.landmarks
        self.solver = choose_solver(request, self.n, self.m)
        self.is_alone = self.solver in SINGLE_PROCESS
        self.classifiers = request.classifiers(len(data.labels))
        self.data_bytes = int(self.n * data.row_bytes)
        self.square = 8 * (self.m + 1) ** 2
        large = not request.is_linear and self.m > MAX_EIGH_LANDMARKS
        self.has_many = self.solver == "newton" and large and request.features != "stored"
        """Whether landmarks are so numerous that their second moments are only sampled."""
        # Pair steps keep rows of the Gram matrix.
        cache = min(request.cache or self.tuning.pair_cache_bytes, 4 * self.n**2)
        self.cache = cache if self.solver == "pairs" else 0

    @property
    def fixed(self) -> _Fixed:
        """The memory that the fit needs even if it keeps no rows."""
        request, gathered = self.request, self.tuning.gathered_copies * self.gathered
        over_shards = request.once if self.is_alone else request.over_shards
        # On a cluster, gathered rows are both in the workers and, once sent, in this process.
        copies = request.once(gathered)
        if request.cluster:
            copies += request.over_shards(gathered)
        return _Fixed(
            request.base,
            self._work + self._tiles,
            over_shards(self.n * self.tuning.row_bytes) + request.once(self.cache),
            self._wide,
            copies,
        )

    @property
    def gathered(self) -> int:
        """Bytes of the rows that are gathered for Newton's local steps."""
        if self.solver != "newton" or self.m < NEWTON.min_columns or self.has_many:
            return 0
        most = NEWTON.max_local_fraction * self.n * self.m
        return int(4 * min(NEWTON.max_local_entries, most))

    @property
    def _work(self) -> Held:
        """The memory of matrices whose size depends on the number of features only."""
        request, square = self.request, self.square
        if self.solver == "interior":
            return request.once(interior_bytes(self.n, self.m))
        if self.solver in STOCHASTIC and not request.is_linear:
            return request.once(square)  # T in both precisions, and the candidate machines
        if self.solver == "dense" and request.on_device is not None:
            # The Hessians of devices, summed in each process and factored.
            return request.once(2 * square) + request.everywhere(2 * square)
        if self.solver == "dense":
            dense = dense_bytes(self.n, self.m)
            own = request.once(dense.own) + request.everywhere(dense.thread)
            return own + request.over_shards(dense.rows)
        if self.solver != "newton":
            return request.once(0)
        if self.has_many:
            # T in float64, in every process; a Hessian in float32, and tiles of its row sample.
            sampled = int(square * NEWTON.joint_fraction_wide**2 / 2)
            sampled += 3 * 4 * NEWTON.sample_tile_rows * self.m
            closing = self.tuning.closing_feature_bytes * SAMPLE.rows * self.m
            work = request.once(square + sampled + closing)
            return work + request.everywhere(square if request.cluster else 0)
        # Moments and Hessian of the coordinator and of each thread; T in each process.
        own = request.everywhere(square * (5 if request.cluster else 1))
        return request.once(4 * square) + own

    @property
    def _tiles(self) -> Held:
        """The memory of the tiles that threads compute."""
        each = self.tuning.descent_bytes if self.solver == "cd" else self.tuning.tile_bytes
        if self.solver == "newton":
            each = 2048 * (self.m + 1) * (4 + 4)
        return self.request.everywhere(each)

    @property
    def _wide(self) -> Held:
        """The memory of vectors with an entry for every column of the data."""
        request, d = self.request, self.data.n_features
        if request.is_linear:
            return request.once(self.tuning.vectors * 8 * d) + request.everywhere(8 * d)
        index = self.tuning.index_feature_bytes * d if self.data.is_sparse else 0
        return request.everywhere(index) if request.cluster else request.once(index)

    @property
    def choosing(self) -> Held:
        """The memory for choosing landmarks, which happens before anything else is allocated."""
        request = self.request
        if request.is_linear:
            return request.base
        bytes_ = choosing_bytes(request.sampling, self.n, self.m, self.data.row_bytes)
        return request.base + request.once(bytes_)


def choose_solver(request: Request, n: int, m: int) -> str:
    """Choose the solver of n rows of m features.

    Newton if its m x m algebra is cheap compared with a pass, else coordinate descent, if the dual
    has no coupling constraint. An interior point if rows are few: Newton on a smoothed loss, and
    steps on single rows, may not converge there (measured: 45 to 6,000 rows of 30 to 1,200
    columns).
    """
    tuning, linear = request.tuning, request.is_linear
    if request.solver != "auto":
        return request.solver
    if request.on_device is not None:
        return "dense"
    # (Only Newton works with recomputed features.)
    own = linear or request.features in ("auto", "stored")
    if own and not PROBLEMS[request.problem].squared:
        rows = tuning.interior_rows_close if request.is_close else tuning.interior_rows
        if n < rows * m and m <= tuning.max_columns and interior_is_quick(n, m):
            return "interior"
    if has_coupling(request.problem, request.intercept):
        return "newton"
    if not linear and n >= tuning.newton_rows * m:
        return "newton"  # with this many rows the features take longer than the algebra
    return "newton" if m <= tuning.max_columns and (n >= 2 * m or not linear) else "cd"


def _choose_features(fit: _Fit, room: float) -> str:
    """Choose "stored" features, which cost n m^2 once, or features "recomputed" in each pass.

    ``room``: bytes of memory left. The choice is the cheaper one, in nanoseconds for each feature.
    Stored features that do not fit in memory are read in each pass. With recomputed features, a
    small gap takes the features of about 16 m more rows in each pass. "raw" for linear machines.
    """
    request, tuning, data, n, m = fit.request, fit.tuning, fit.data, fit.n, fit.m
    if request.is_linear:
        return "raw"
    if fit.solver == "dense":  # (It keeps the features that it computes, if they fit.)
        return "recomputed" if request.features == "auto" else request.features
    if fit.solver in SINGLE_PROCESS:
        return "stored"
    if request.features != "auto":
        return request.features
    many = fit.solver == "newton" and m > MAX_EIGH_LANDMARKS
    cost = tuning.many_landmarks if many else tuning.few_landmarks
    # A CSR entry costs about four dense ones; a row holds row_bytes / 8 of them.
    entry = 0.6 + 0.02 * data.row_bytes / (2 if data.is_sparse else 4)
    kept = max(0.0, tuning.kept_share * room - _block_bytes(request)) / (4 * n * m)
    read = cost.passes * tuning.read + tuning.read_again * (1.0 - min(1.0, kept))
    algebra = m**2 / n
    stored = entry + cost.projection * m
    stored += fit.classifiers * (read + cost.stored_algebra * algebra)
    recomputed = cost.passes * entry
    if many or (request.is_close and n < tuning.rows_per_landmark * m):
        recomputed += cost.recomputed_algebra * algebra
    return "stored" if stored < fit.classifiers * recomputed else "recomputed"


def _kept_rows(fit: _Fit, passed_over: int, room: float) -> tuple[float, Held]:
    """Return the fraction of the rows, or of their features, kept in memory, and its bytes.

    ``passed_over``: bytes of all rows or features, which each pass needs; ``room``: bytes left.
    """
    request, room = fit.request, fit.tuning.kept_share * room
    if passed_over <= room or fit.solver == "pairs":
        if fit.is_alone:
            return 1.0, request.once(float(passed_over))
        return 1.0, request.over_shards(float(passed_over), reserve=False)
    blocks = _block_bytes(request)
    kept = max(0.0, room - blocks) if fit.solver == "newton" else 0.0
    resident = kept / passed_over
    if fit.solver in STOCHASTIC:
        kept = min(passed_over, max(blocks, CHUNK_BUFFER_BYTES)) - blocks
    each = request.everywhere(fit.tuning.block_bytes)
    return resident, each + request.over_shards(kept, reserve=False)


def _count_together(fit: _Fit, held: Held) -> tuple[int, Held]:
    """Return how many classifiers to solve at once, and the memory of all but one of them.

    ``held``: the memory of the fit with one classifier at a time.
    """
    request, tuning, square = fit.request, fit.tuning, fit.square
    # Each classifier has second moments and their sums, gathered rows, and row states.
    own = request.once(square // 2)
    if not fit.has_many:
        own = request.once(square * tuning.moments) + request.everywhere(square)
    own += request.once(tuning.gathered_copies * fit.gathered)
    own += request.over_shards(fit.n * tuning.row_bytes)
    more = 0
    if fit.solver == "newton" and fit.classifiers > 1:
        left = request.room(held, False) / own.total
        if request.cluster:
            left = min(left, (request.worker_limit - held.each) / own.each)
        more = min(fit.classifiers - 1, tuning.max_together - 1, max(0, int(left)))
    return 1 + more, own.times(more)


def _block_bytes(request: Request) -> int:
    """Return the bytes of the blocks that all workers process at once."""
    return request.workers * request.tuning.block_bytes


def _chunk_bytes(fit: _Fit) -> float:
    """Return the bytes of a thread that computes a chunk of features.

    These are its rows, a tile in float64, and the features twice: a finished chunk waits until it
    is fetched.
    """
    row_bytes, m = fit.data.row_bytes, fit.m
    rows = min(row_grid(fit.n, 4 * m)[1], fit.data.shard_rows)
    tile = min(rows, fit.tuning.made_rows) * (2 * 8 * m + 2 * row_bytes)
    return rows * (row_bytes + 2 * 4 * m) + tile


def _spare_bytes(request: Request, peak: Held, copies: Held) -> float:
    """Return the bytes left for steps, in all workers or instead in the coordinating process.

    They include the memory of gathered rows, which are not there at the same time.
    """
    spare = max(0.0, request.memory - peak.total) + copies.total
    if request.cluster:
        left = max(0.0, request.worker_limit - peak.each) + copies.each
        spare = min(spare, request.survivors * left)
    return spare


def _explain_refusal(fit: _Fit, fixed: _Fixed, read: Held, peak: Held) -> str | None:
    """Explain why the fit does not fit in the memory allowed, with the arithmetic, or None."""
    request, refusal = fit.request, None
    if peak.total < fit.choosing.total:
        choosing = request.once(fit.choosing.own - fixed.base.own)
        refusal = request.refusal(
            fit.choosing,
            {"for the processes": fixed.base, f"to choose {fit.m} landmarks": choosing},
            "allow more memory, use fewer landmarks, or sampling uniform",
        )
    # Rows that stay in memory fit by definition, except those of pair steps.
    instead = "use solver cd" if request.is_linear else "use fewer landmarks"
    return refusal or request.refusal(
        peak,
        {
            "for the processes": fixed.base,
            f"for {fit.m} columns ({request.workers} threads)": fixed.columns + fixed.copies,
            f"for the state of {fit.n} rows": fixed.states,
            f"for vectors of {fit.data.n_features} features": fixed.wide,
            "for blocks of rows as they are read": read,
        },
        f"allow more memory, or {instead}" if fit.solver == "newton" else "allow more memory",
    )
