"""What an exact kernel machine will need, before it runs: memory, kernel columns kept, time."""

from __future__ import annotations

from bigscreen import amx
from bigscreen.kernels import on_matrix_unit
from bigscreen.plan import INDEX_BYTES, Plan, Request, entry_cost, refused, row_size
from bigscreen.solvers.block_columns import PIECE
from bigscreen.solvers.block_solve import WHOLE
from bigscreen.solvers.pairs import WHOLE as WHOLE_MATRIX
from bigscreen.store import Rows

CACHE_SHARE = 0.3
"""Part of the memory allowed that kernel columns may take where nobody says how much."""
AGAIN_BYTES, AGAIN_COLUMNS = 2**28, 256
"""Kept where rows are so narrow that the matrix unit computes kernel columns as fast as memory that
was never written can be had: of more, nothing is gained (measured: a9a, ijcnn1, covtype)."""
ROW_BYTES = 320
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
"""Up to here, and without a cluster, pair steps on the whole matrix are as quick as blocks or
quicker (measured with 2 threads: .3 to 1.2 times as long at 3,000 to 5,000 rows), and go on in
float64 where float32 entries cannot prove the gap that is asked for."""
FEWEST = 16
"""Kernel columns without which no fit is begun, unless fewer are asked for."""
LOOKED_UP, STEPS_COST = 0.4, 3.0
"""Part of the kernel matrix that a solve computes (measured: 0.07 to 0.7), and nanoseconds that its
steps and scores take for each of those entries."""


def outline_exact(data: Rows, request: Request) -> Plan:
    """Say how many kernel columns can be kept; refuse what cannot fit."""
    n, d = data.n_rows, data.n_features
    threads, pairs = request.workers, request.solver == "pairs"
    if request.solver == "auto":
        pairs = n <= FEW_ROWS and not request.cluster
    row_bytes = row_size(data)
    classifiers = request.classifiers(len(data.labels))
    column = 4 * n
    base = request.base_bytes
    # The closing pass, which writes no entries down, has its rows packed in any case.
    packed = not data.is_sparse and on_matrix_unit(request.kernel, d, written=False)
    on_unit = packed and on_matrix_unit(request.kernel, d)
    wanted = amx.row_bytes(d) if packed else row_bytes
    rows = int(n * ((COPIES - 1 + pairs) * row_bytes + wanted))
    if request.strategy == "one" and classifiers > 1 and not request.cluster:
        rows += BY_LABEL * int(n * row_bytes)
    states = n * ROW_BYTES
    block = min(WHOLE, n)
    pieces = 4 * PIECE * min(n, data.shard_rows) + THREAD_BYTES
    # What pairs compute at once.
    work = threads * THREAD_BYTES + min(WHOLE_MATRIX, 8 * n**2)
    if not pairs:
        # The matrix, and while it grows that of a block of half as many rows.
        work = 5 * block**2 + int(4 * block * row_bytes) + threads * pieces
    # Of sparse rows also what has an entry for every feature, whether any row has it or not.
    wide = (PAIR_INDEX_BYTES if pairs else SHARD_INDEX_BYTES * (data.n_shards + 1)) + INDEX_BYTES
    wide *= d if data.is_sparse else 0
    fixed = base + rows + states + work + wide
    room = int(request.memory - fixed)
    share = int(CACHE_SHARE * request.memory)
    if on_unit and d <= AGAIN_COLUMNS and not pairs:
        share = min(share, AGAIN_BYTES)
    cache = request.cache or max(min(share, room), min(FEWEST, n) * column)
    cache = min(cache, column * n)
    refusal = None
    if cache > room:
        refusal = refused(
            fixed + cache,
            request.memory,
            {
                "for the processes": base,
                f"for {n} rows and what products need of them": rows,
                "for their state": states,
                f"for indices of {d} features": wide,
                f"for a block and its columns ({threads} threads)": work,
                f"for {cache // column} kernel columns": cache,
            },
            "allow more memory, or "
            + ("use landmarks" if request.cache is None else "give less of it to the cache"),
        )
    entries = LOOKED_UP * float(n) * n
    if request.strategy == "one" and classifiers > 1:
        # Each is of the rows of two labels.
        entries *= (2 / len(data.labels)) ** 2
    cost = classifiers * entries * (entry_cost(data) + STEPS_COST)
    seconds = 1e-9 * cost / max(1, threads) + 1.0
    return Plan(
        rows=n,
        columns=d,
        classifiers=classifiers,
        landmarks=0,
        data_bytes=int(n * row_bytes),
        solver="pairs" if pairs else "block",
        features="exact",
        features_in_memory=False,
        resident=True,
        peak_bytes=int(fixed + cache),
        disk_bytes=0,
        seconds=seconds,
        refusal=refusal,
        cache_bytes=int(cache),
    )
