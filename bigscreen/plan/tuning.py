"""Tuned values of the planner: measured sizes in bytes, fractions, times and thresholds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

MIB = 2**20
"""Bytes of a mebibyte."""


class FeatureCost(NamedTuple):
    """Times that decide between stored and recomputed features, in nanoseconds a feature.

    Parameters
    ----------
    passes : float
        Number of passes over all rows that a Newton solve takes (measured: 5 to 40).
    projection : float
        Time for each landmark of the product with T that makes one stored feature.
    stored_algebra, recomputed_algebra : float
        Time of the m x m algebra of a solve over either kind, times m^2 / rows (m landmarks).
    """

    passes: float
    projection: float
    stored_algebra: float
    recomputed_algebra: float


@dataclass(frozen=True)
class PlanTuning:
    """Sizes and thresholds of the planner, measured on 2 cores with AVX-512.

    They are the same on every machine, so that plans and results are, too.
    """

    # -- bytes of processes ------------------------------------------------------------------------
    # Memory of an idle process after all imports (measured: 140 to 156 MiB).
    process_bytes: int = 160 * MIB
    # Memory of a worker process before it has data, including its part of Dask's other processes.
    worker_bytes: int = 150 * MIB
    # Memory that paths and searches leave free in the coordinating process.
    spare_process_bytes: int = 240 * MIB
    # Memory that paths and searches leave free in each worker process.
    spare_worker_bytes: int = 100 * MIB
    # Memory of each thread that reads a block of rows and computes with it.
    block_bytes: int = 2**26
    # Memory of each thread of a solver on features, except the solvers newton and cd (coordinate
    # descent).
    tile_bytes: int = 2**25
    # Memory of each thread of coordinate descent (measured: 5 to 20 MiB).
    descent_bytes: int = 2**24
    # Memory of each thread that computes kernel entries.
    exact_tile_bytes: int = 2**26
    # -- bytes of a row, or of a feature -----------------------------------------------------------
    # Memory of a row's scores, label, norms and temporaries, but not its features.
    row_bytes: int = 72
    # In a fit without landmarks: memory of a row's alpha, score, box and norms in the process that
    # has the row's shard.
    exact_shard_row_bytes: int = 240
    # In a fit without landmarks: memory of a row's present and previous alpha in the coordinating
    # process.
    exact_host_row_bytes: int = 80
    # Memory for each feature of each row that the final pass over all rows samples for its error
    # bounds.
    closing_feature_bytes: int = 24
    # Memory of the inverted index of sparse landmarks (or rows, without landmarks), for each column
    # of the data.
    index_feature_bytes: int = 32
    # Memory of the inverted index of each shard of sparse rows, for each column of the data.
    shard_index_feature_bytes: int = 12
    # Further memory of the inverted index if pair steps (SMO) solve a fit without landmarks, for
    # each column of the data.
    pair_index_feature_bytes: int = 16
    # -- copies ------------------------------------------------------------------------------------
    # In a linear fit the coordinating process stores this many float64 vectors with an entry for
    # each column.
    vectors: int = 6
    # If several classifiers are solved at once, this many second-moment matrices (m x m for m
    # features) are stored for each.
    moments: int = 4
    # Rows that the Newton solver gathers in one process, for steps over these rows alone, take this
    # many copies of their features while they are gathered.
    gathered_copies: float = 1.5
    # A fit without landmarks stores this many copies of its rows: as read, and laid out for
    # products.
    row_copies: int = 2
    # If each pair of labels is solved on its own rows (one against one), this many more copies of
    # the rows are stored.
    label_copies: int = 3
    # If features are computed from float64 entries, they are computed for this many rows at a time.
    made_rows: int = 2048
    # -- fractions ---------------------------------------------------------------------------------
    # Store rows or features in memory only as far as they take at most this fraction of the free
    # memory; each pass over the data reads or computes the others again.
    kept_share: float = 0.8
    # Cached kernel columns take this fraction of the allowed memory, unless the options give the
    # size of the cache.
    cache_share: float = 0.3
    # Assume that Hessian-vector products of the Newton solver use at most this fraction of all
    # rows.
    band_fraction: float = 0.2
    # Count memory for this fraction of the kernel matrix, as a solve computes only a part of the
    # columns (measured: .07 to .7).
    computed_fraction: float = 0.4
    # -- devices -----------------------------------------------------------------------------------
    # With the option device at auto, compute on a device if rows x features x fits are at least
    # this many. (Two processors take 13 to 20 s for 5e9, so some 3 s for 1e9: as long as a device
    # may take to load its libraries and to compile, which has not been measured.)
    device_entries: float = 1e9
    # Use at most this fraction of the device memory that is free.
    device_share: float = 0.9
    # -- cache of kernel columns -------------------------------------------------------------------
    # Memory of the cache of rows of the Gram matrix (products of features) for pair steps (SMO).
    pair_cache_bytes: int = 256 * MIB
    # Refuse a fit without landmarks if the memory has no room for this many kernel columns, unless
    # the options give the size of the cache.
    min_columns: int = 16
    # Use at most this much memory to cache kernel columns that are cheap to compute again. (Time
    # with 256 MiB compared with a full cache: ijcnn1, 22 columns, .7; covtype, 54, .87; a9a, 123
    # flags, .6; mnist, 784 pixels, .88.)
    cheap_cache_bytes: int = 2**28
    # Treat kernel columns as cheap to compute again if rows are dense and have at most this many
    # features; then ``cheap_cache_bytes`` limits the cache.
    cheap_columns: int = 64
    # Treat kernel columns as cheap to compute again if rows have at most this many features, all
    # small whole numbers (8 bits); then ``cheap_cache_bytes`` limits the cache.
    cheap_byte_columns: int = 1024
    # To find out whether features are small whole numbers (8 bits), look at this many rows of each
    # of 3 chunks.
    byte_rows: int = 64
    # -- which solver ------------------------------------------------------------------------------
    # Solve a fit without landmarks by pair steps (SMO) if it has at most this many rows, and share
    # its kernel matrix with the final pass over all rows (measured: .3 to 1.2 times as long as by
    # blocks at 3,000 to 5,000 rows).
    few_rows: int = 4096
    # Solve on features by the interior point method if there are fewer rows than this for each
    # feature, and at most ``max_columns`` features.
    interior_rows: int = 3
    # Replaces ``interior_rows`` if the requested relative gap is below ``usual_tol``.
    interior_rows_close: int = 20
    # Solve on more features than this by coordinate descent, not by the Newton solver or the
    # interior point (but see ``newton_rows``).
    max_columns: int = 4000
    # Use the Newton solver, for any number of features, if there are at least this many rows for
    # each landmark.
    newton_rows: int = 64
    # Solve at most this many classifiers in common passes over the rows; more at once are no
    # faster.
    max_together: int = 32
    # -- stored or recomputed features -------------------------------------------------------------
    # A requested relative gap below this counts as small: it takes more passes over the data,
    # perhaps another solver.
    usual_tol: float = 1e-3
    # If the requested relative gap is below ``usual_tol``, count more time for features that are
    # computed again in each pass if there are fewer rows than this for each landmark.
    rows_per_landmark: int = 100
    # Nanoseconds to read one feature of one row that is in memory.
    read: float = 0.3
    # Nanoseconds to read one feature of one row that is not in memory.
    read_again: float = 36.0
    # Costs of up to MAX_EIGH_LANDMARKS landmarks; recomputed_algebra is for gaps below usual_tol.
    few_landmarks: FeatureCost = FeatureCost(16.0, 0.022, 0.0, 2.88)
    # Costs of more landmarks, for which second moments are summed over sampled rows only.
    many_landmarks: FeatureCost = FeatureCost(12.0, 0.036, 0.36, 0.054)


PLAN = PlanTuning()
