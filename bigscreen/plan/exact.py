"""Plan the fit of an exact kernel machine: how many columns of its kernel matrix to keep."""

from __future__ import annotations

from bigscreen.data.rows import Rows
from bigscreen.kernels import vnni
from bigscreen.kernels.cache import CHUNK_COLUMNS
from bigscreen.kernels.standard import is_made_of_products
from bigscreen.plan.memory import Held, Plan, Request
from bigscreen.plan.tuning import PLAN
from bigscreen.solvers.block.tuning import BlockTuning
from bigscreen.solvers.smo.solver import Pairs


def plan_exact(data: Rows, request: Request) -> Plan:
    """Plan an exact fit: how many kernel columns memory can keep, or why the fit is refused."""
    n, d, tuning = data.n_rows, data.n_features, request.tuning
    pairs = is_solved_by_pairs(request, n)
    over_shards = request.once if pairs else request.over_shards
    column = 4 * n
    parts = _memory_parts(data, request, pairs)
    fixed = sum(parts.values(), request.once(0))
    # If a worker dies, the others also hold the columns of its shards.
    room = int(request.room(fixed, not pairs))
    if request.cluster and not pairs:
        room = room * request.survivors // request.workers
    share = int(tuning.cache_share * request.memory)
    if not pairs:
        share = useful_cache_bytes(data, request.kernel, share)
    cache = request.cache or max(min(share, room), min(tuning.min_columns, n) * column)
    cache = min(cache, column * n)
    found = request.on_device
    if found is not None:  # (Columns are in its memory.)
        cache = 0
    refusal = None if found is None else found.refusal
    if cache > room:
        kept = over_shards(cache)
        refusal = request.refusal(
            fixed + kept,
            {**parts, f"for {cache // column} kernel columns": kept},
            "allow more memory, or "
            + ("use landmarks" if request.cache is None else "give less of it to the cache"),
        )
    # Columns are computed when they are needed: some never are.
    held = cache if refusal else min(cache, int(tuning.computed_fraction * column * n))
    peak = fixed + over_shards(held)
    return Plan(
        rows=n,
        columns=d,
        classifiers=request.classifiers(len(data.labels)),
        landmarks=0,
        data_bytes=int(n * data.row_bytes),
        solver="pairs" if pairs else "block",
        features="exact",
        features_in_memory=False,
        resident=1.0,
        peak_bytes=int(peak.total),
        worker_bytes=int(peak.each),
        disk_bytes=0,
        refusal=refusal,
        cache_bytes=int(cache) if found is None else found.devices * found.feature_bytes,
        nearby_bytes=max(0, room - int(held)),
        alone=request.idle > 0,
        on_device=found,
    )


def is_solved_by_pairs(request: Request, n: int) -> bool:
    """Whether an exact machine of n rows is solved by pair steps (SMO), in one process."""
    free = request.solver == "auto" and request.on_device is None
    few = free and n <= request.tuning.few_rows
    return few or request.solver == "pairs"


def _memory_parts(data: Rows, request: Request, pairs: bool) -> dict[str, Held]:
    """Return the bytes held in addition to kernel columns, by what they are for.

    ``pairs``: whether pair steps solve the fit, in one process.
    """
    n, d, tuning = data.n_rows, data.n_features, request.tuning
    over_shards = request.once if pairs else request.over_shards
    rows = over_shards(int(n * (tuning.row_copies + pairs) * data.row_bytes))
    if request.strategy == "one" and request.classifiers(len(data.labels)) > 1:
        rows += request.once(tuning.label_copies * int(n * data.row_bytes))
    states = over_shards(n * tuning.exact_shard_row_bytes)
    states += request.once(n * tuning.exact_host_row_bytes)
    # Sparse rows have an index with an entry for every feature, even if no row has it.
    index = d if data.is_sparse else 0
    wide = request.once(tuning.index_feature_bytes * index)
    if pairs:
        wide += request.once(tuning.pair_index_feature_bytes * index)
        # Kernel entries that pair steps compute at once.
        work = request.everywhere(tuning.exact_tile_bytes)
        work += request.once(min(Pairs.whole, 8 * n**2))
    else:
        shards = data.n_shards + 1
        wide += request.over_shards(tuning.shard_index_feature_bytes * shards * index)
        # The kernel matrix of a block; while it grows, also that of half as many rows.
        block = min(BlockTuning().max_whole_block, n)
        pieces = 4 * CHUNK_COLUMNS * min(n, data.shard_rows) + tuning.exact_tile_bytes
        work = request.once(5 * block**2 + int(4 * block * data.row_bytes))
        work += request.everywhere(pieces)
    return {
        "for the processes": request.base,
        f"for {n} rows and what products need of them": rows,
        "for their state": states,
        f"for indices of {d} features": wide,
        f"for a block and its columns ({request.workers} threads)": work,
    }


def useful_cache_bytes(data: Rows, kernel: str, share: int) -> int:
    """Return how many of ``share`` bytes to use for kernel columns: fewer if they are cheap."""
    return min(share, PLAN.cheap_cache_bytes) if _is_cheap(data, kernel) else share


def _is_cheap(data: Rows, kernel: str) -> bool:
    """Whether computing a kernel column takes about as long as obtaining memory to keep it."""
    d = data.n_features
    if data.is_sparse or not is_made_of_products(kernel) or d > PLAN.cheap_byte_columns:
        return False
    if d <= PLAN.cheap_columns:
        return True
    return vnni.is_available() and all(
        vnni.find_grid(data.X(start, min(start + PLAN.byte_rows, stop))) is not None
        for start, stop in {data.chunk(k) for k in (0, data.n_chunks // 2, data.n_chunks - 1)}
    )
