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
    # Memory of a worker process before it has data, and its share of Dask's other processes.
    worker_bytes: int = 150 * MIB
    # Paths and searches leave this much memory free in the coordinating process.
    spare_process_bytes: int = 240 * MIB
    # Paths and searches leave this much memory free in each worker process.
    spare_worker_bytes: int = 100 * MIB
    block_bytes: int = 2**26  # memory of a thread that reads a block of rows and computes with it
    # Memory of a thread of a solver on features, except newton and coordinate descent (cd).
    tile_bytes: int = 2**25
    descent_bytes: int = 2**24  # memory of a thread of coordinate descent (measured: 5 to 20 MiB)
    exact_tile_bytes: int = 2**26  # memory of a thread that computes kernel entries
    # -- bytes of a row, or of a feature -----------------------------------------------------------
    row_bytes: int = 72  # memory of a row's scores, label, norms and temporaries, features apart
    # Memory of a row's alpha, score, box and norms in the process that has its shard (exact fits).
    exact_shard_row_bytes: int = 240
    # Memory of a row's alpha, now and before, in the coordinating process (exact fits).
    exact_host_row_bytes: int = 80
    # Memory of one feature of one row that the closing pass samples for its error bounds.
    closing_feature_bytes: int = 24
    # Memory of the inverted index of sparse landmarks (or rows), for each column of the data.
    index_feature_bytes: int = 32
    # Memory of the inverted index of each shard of sparse rows, for each column of the data.
    shard_index_feature_bytes: int = 12
    # More memory of the index if pair steps solve an exact fit, for each column of the data.
    pair_index_feature_bytes: int = 16
    # -- copies ------------------------------------------------------------------------------------
    # Float64 vectors with an entry for each column that the coordinator of a linear fit holds.
    vectors: int = 6
    # Second-moment matrices (m x m) of each classifier, if several are solved at once.
    moments: int = 4
    # Copies of the rows that Newton's local steps use, while they are gathered in one process.
    gathered_copies: float = 1.5
    row_copies: int = 2  # copies of an exact machine's rows: stored, and laid out for products
    # More copies of the rows, if pairs of labels are solved on their own rows (one against one).
    label_copies: int = 3
    made_rows: int = 2048  # compute the features of this many rows at once, from float64 entries
    # -- fractions ---------------------------------------------------------------------------------
    # Rows or features stay in memory up to this part of what is left; each pass reads the others.
    kept_share: float = 0.8
    # Cached kernel columns take this part of the allowed memory, unless the options say how much.
    cache_share: float = 0.3
    # Hessian-vector products of Newton's method use at most this part of all rows.
    band_fraction: float = 0.2
    # The plan counts memory for this part of the kernel matrix: a solve does not need all columns
    # (measured: .07 to .7).
    computed_fraction: float = 0.4
    # -- cache of kernel columns -------------------------------------------------------------------
    # Memory of the cache of Gram matrix rows for pair steps (SMO) on features.
    pair_cache_bytes: int = 256 * MIB
    # Refuse an exact fit if memory has no room for this many kernel columns, unless the options
    # give the size of the cache.
    min_columns: int = 16
    # Use at most this much memory to cache kernel columns that are cheap to compute again. (Time
    # with 256 MiB compared with a full cache: ijcnn1, 22 columns, .7; covtype, 54, .87; a9a, 123
    # flags, .6; mnist, 784 pixels, .88.)
    cheap_cache_bytes: int = 2**28
    # Kernel columns are cheap to compute again for dense rows of at most this many features.
    cheap_columns: int = 64
    # Kernel columns are also cheap for rows of at most this many small whole numbers (bytes).
    cheap_byte_columns: int = 1024
    # To see if rows consist of small whole numbers, look at this many rows of each of 3 chunks.
    byte_rows: int = 64
    # -- which solver ------------------------------------------------------------------------------
    # Solve exact machines of at most this many rows by pair steps, and share their kernel matrix
    # with the closing pass (measured: .3 to 1.2 times as long as by blocks at 3,000 to 5,000 rows).
    few_rows: int = 4096
    # Use the interior point method if there are fewer rows than this for each feature.
    interior_rows: int = 3
    # Use the interior point method below this many rows for each feature, if the requested gap is
    # smaller than usual_tol.
    interior_rows_close: int = 20
    max_columns: int = 4000  # use coordinate descent, not Newton, for more features than this
    # Use Newton, whatever the number of features, with at least this many rows for each landmark.
    newton_rows: int = 64
    # Solve at most this many classifiers in common passes over the rows: more are no faster.
    max_together: int = 32
    # -- stored or recomputed features -------------------------------------------------------------
    # Relative gaps below this count as small: they take more passes, perhaps another solver.
    usual_tol: float = 1e-3
    # For gaps below usual_tol, count more time for recomputed features if there are fewer rows than
    # this for each landmark.
    rows_per_landmark: int = 100
    read: float = 0.3  # nanoseconds to read a feature in memory
    read_again: float = 36.0  # nanoseconds to read a feature that is not in memory
    # Costs of up to MAX_EIGH_LANDMARKS landmarks; recomputed_algebra is for gaps below usual_tol.
    few_landmarks: FeatureCost = FeatureCost(16.0, 0.022, 0.0, 2.88)
    # Costs of more landmarks, for which second moments are summed over sampled rows only.
    many_landmarks: FeatureCost = FeatureCost(12.0, 0.036, 0.36, 0.054)


PLAN = PlanTuning()
