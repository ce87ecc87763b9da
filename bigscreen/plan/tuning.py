"""Tuned values of the planner: measured sizes in bytes, fractions, times and thresholds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

MIB = 2**20


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
    process_bytes: int = 160 * MIB  # an idle process, all imported (measured: 140 to 156)
    worker_bytes: int = 150 * MIB  # a worker process, and its share of Dask's other processes
    spare_process_bytes: int = 240 * MIB  # paths and searches leave this many bytes free
    spare_worker_bytes: int = 100 * MIB  # paths and searches leave this free in each worker
    block_bytes: int = 2**26  # memory of a thread that reads a block of rows and computes with it
    tile_bytes: int = 2**25  # memory of a solver's thread on features, except newton and cd
    descent_bytes: int = 2**24  # memory of a thread of coordinate descent (measured: 5 to 20 MiB)
    exact_tile_bytes: int = 2**26  # memory of a thread that computes kernel entries
    # -- bytes of a row, or of a feature -----------------------------------------------------------
    row_bytes: int = 72  # a row's scores, label, norms and temporaries in a solver on features
    exact_shard_row_bytes: int = 240  # alpha, score, box and norms of an exact solver's shard
    exact_host_row_bytes: int = 80  # alpha, and alpha before, of a row in the coordinating process
    closing_feature_bytes: int = 24  # memory for a feature of a row that the closing pass samples
    index_feature_bytes: int = 32  # memory for a column in the index of sparse landmarks
    shard_index_feature_bytes: int = 12  # memory for a column in a shard's sparse index
    pair_index_feature_bytes: int = 16  # memory for a column in pair steps' sparse index
    # -- copies ------------------------------------------------------------------------------------
    vectors: int = 6  # float64 vectors, one entry a column, that a linear fit's coordinator holds
    moments: int = 4  # second-moment matrices of each classifier, if several are solved at once
    gathered_copies: float = 1.5  # copies of the rows for local steps while they are gathered
    row_copies: int = 2  # copies of an exact machine's rows: stored, and laid out for products
    label_copies: int = 3  # more copies, if pairs of labels are solved on their own rows
    made_rows: int = 2048  # compute the features of this many rows at once, from float64 entries
    # -- fractions ---------------------------------------------------------------------------------
    kept_share: float = 0.8  # part of the memory left that rows may take; others are read again
    cache_share: float = 0.3  # kernel columns take this part of the memory allowed by default
    band_fraction: float = 0.2  # Hessian-vector products use at most this part of all rows
    computed_fraction: float = 0.4  # of the kernel matrix that a solve computes (measured: .07-.7)
    # -- cache of kernel columns -------------------------------------------------------------------
    pair_cache_bytes: int = 256 * MIB  # size of the cache for pair steps on features
    min_columns: int = 16  # refuse an exact fit with room for fewer columns, unless requested
    cheap_cache_bytes: int = 2**28  # cache at most this much if columns are cheap to recompute
    # (Time with 256 MiB compared with a full cache: ijcnn1, 22 columns, .7; covtype, 54, .87; a9a,
    # 123 flags, .6; mnist, 784 pixels, .88.)
    cheap_columns: int = 64  # kernel columns are cheap for dense rows of at most this many columns
    cheap_byte_columns: int = 1024  # the limit for rows of small whole numbers, multiplied as bytes
    byte_rows: int = 64  # rows of each of 3 chunks looked at for small whole numbers
    # -- which solver ------------------------------------------------------------------------------
    few_rows: int = 4096  # solve exact machines of at most this many rows by pair steps (measured:
    # .3 to 1.2 times as long as by blocks at 3,000 to 5,000 rows), and share its kernel matrix
    interior_rows: int = 3  # use an interior point below this many rows for each feature
    interior_rows_close: int = 20  # the limit if the requested gap is smaller than usual_tol
    max_columns: int = 4000  # use coordinate descent, not Newton, for more features than this
    newton_rows: int = 64  # but Newton if there are this many rows for each landmark
    max_together: int = 32  # classifiers solved in common passes: more are no faster
    # -- stored or recomputed features -------------------------------------------------------------
    usual_tol: float = 1e-3  # smaller gaps take more passes over recomputed features,
    rows_per_landmark: int = 100  # unless the data have this many rows for each landmark
    read: float = 0.3  # nanoseconds to read a feature in memory
    read_again: float = 36.0  # nanoseconds to read a feature that is not in memory
    few_landmarks: FeatureCost = FeatureCost(16.0, 0.022, 0.0, 2.88)  # last: for small gaps
    many_landmarks: FeatureCost = FeatureCost(12.0, 0.036, 0.36, 0.054)  # sampled moments


PLAN = PlanTuning()
