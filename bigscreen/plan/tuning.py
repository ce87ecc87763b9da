"""What a plan's choices and byte counts rest on: measured sizes, shares and thresholds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

MIB = 2**20


class FeatureCost(NamedTuple):
    """What decides between stored and recomputed features, in nanoseconds for each feature.

    Parameters
    ----------
    passes : float
        Passes over all rows that a Newton solve takes (measured: 5 to 40).
    projection : float
        The product with T that makes one stored feature, for each landmark.
    stored_algebra, recomputed_algebra : float
        Landmark-by-landmark algebra of a solve over either, times (landmarks^2 / rows).
    """

    passes: float
    projection: float
    stored_algebra: float
    recomputed_algebra: float


@dataclass(frozen=True)
class PlanTuning:
    """Sizes and thresholds of the planner, measured on 2 cores with AVX-512.

    The same on every machine, so that choices, and with them results, are.
    """

    # -- bytes of processes ------------------------------------------------------------------------
    process_bytes: int = 160 * MIB  # an idle process, all imported (measured: 140 to 156)
    worker_bytes: int = 150 * MIB  # a worker process with its part of Dask's other processes
    spare_process_bytes: int = 240 * MIB  # that paths and searches leave for the rest
    spare_worker_bytes: int = 100 * MIB  # the same in each worker
    block_bytes: int = 2**26  # of a thread that reads a block of rows, and works on it
    tile_bytes: int = 2**25  # of a thread of a solver on features other than Newton and descent
    descent_bytes: int = 2**24  # of a thread of coordinate descent (measured: 5 to 20 MiB)
    exact_tile_bytes: int = 2**26  # of a thread that computes kernel entries
    # -- bytes of a row, or of a feature -----------------------------------------------------------
    row_bytes: int = 72  # scores, label, norms, side and temporaries of a solver on features
    exact_shard_row_bytes: int = 240  # alpha, score, box and norms of an exact solver's shard
    exact_host_row_bytes: int = 80  # alpha now and before in the coordinating process
    closing_feature_bytes: int = 24  # of the rows that the closing pass looks at in float64
    index_feature_bytes: int = 32  # of sparse landmarks: who has the feature, its place, its start
    shard_index_feature_bytes: int = 12  # of a shard's sparse rows
    pair_index_feature_bytes: int = 16  # of what pair steps hold of sparse rows
    # -- copies ------------------------------------------------------------------------------------
    vectors: int = 6  # float64 vectors of all features that a linear machine's coordinator holds
    moments: int = 4  # matrices of second moments of each of several classifiers at once
    gathered_copies: float = 1.5  # of the rows gathered for local steps, while they arrive
    row_copies: int = 2  # of an exact machine's rows: as they are, and as products want them
    label_copies: int = 3  # more, if pairs of labels are solved on their own rows
    made_rows: int = 2048  # rows whose features are made at once, from float64 entries
    # -- shares ------------------------------------------------------------------------------------
    kept_share: float = 0.8  # of the memory left that rows may take; more are read in each pass
    cache_share: float = 0.3  # of the memory allowed that kernel columns take by default
    band_fraction: float = 0.2  # of all rows that Hessian-vector products use, at most
    computed_fraction: float = 0.4  # of the kernel matrix that a solve computes (measured: .07-.7)
    # -- kernel columns that are kept --------------------------------------------------------------
    pair_cache_bytes: int = 256 * MIB  # of pair steps on features
    min_columns: int = 16  # begin no exact fit with fewer kernel columns, unless asked to
    cheap_cache_bytes: int = 2**28  # keep no more of columns that are as quickly computed again
    # (measured with 256 MiB for all: ijcnn1, 22 columns, .7 of the time; covtype, 54, .87; a9a, 123
    # flags, .6; mnist, 784 pixels, .88): rows of at most so many columns by BLAS, and of
    # bytes, as so many rows of three chunks show.
    cheap_columns: int = 64
    cheap_byte_columns: int = 1024
    byte_rows: int = 64
    # -- which solver ------------------------------------------------------------------------------
    few_rows: int = 4096  # solve an exact machine by pairs up to here (measured: .3 to 1.2 times
    # as long as by blocks at 3,000 to 5,000 rows), and share its kernel matrix with the proof
    interior_rows: int = 3  # use an interior point below so many rows for each column,
    interior_rows_close: int = 20  # and below so many for gaps closer than usual_tol
    max_columns: int = 4000  # of more columns coordinate descent takes over from Newton,
    newton_rows: int = 64  # but for landmarks with so many rows each
    max_together: int = 32  # classifiers solved over one pass a round: more gain nothing
    # -- stored or recomputed features -------------------------------------------------------------
    usual_tol: float = 1e-3  # gaps closer than this cost recomputed features more passes,
    rows_per_landmark: int = 100  # unless rows are so many
    read: float = 0.3  # nanoseconds to read a feature in memory
    read_again: float = 36.0  # nanoseconds to read a feature that is not in memory
    few_landmarks: FeatureCost = FeatureCost(16.0, 0.022, 0.0, 2.88)  # the last: of close gaps
    many_landmarks: FeatureCost = FeatureCost(12.0, 0.036, 0.36, 0.054)  # T by Cholesky, samples


PLAN = PlanTuning()
