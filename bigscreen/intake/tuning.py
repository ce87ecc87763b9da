"""Tuned values of an ingest: sizes of steps, buckets and samples, and when a store is sparse."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class IngestTuning:
    """Sizes that trade memory and files against time; the stored rows depend on few of them.

    A bucket is a file of rows in the order they were read; a part is a range of sort keys within a
    bucket, which is sorted in memory.

    Attributes
    ----------
    piece_bytes : int
        Read this many uncompressed bytes at a time; a text reader parses one piece in memory at
        once.
    max_whole_bytes : int
        Read a file or row group as one piece, in any process, if its numbers take at most this;
        larger ones are read in pieces.
    text_growth : int
        Expected bytes of float32 rows per byte of a plain text file; a high estimate.
    packed_growth : int
        Expected bytes of float32 rows per byte of a compressed file; a high estimate.
    unknown_bytes : int
        Expected bytes of rows if the size of a source is unknown.
    checkpoint_bytes : int
        Write the rows read since the last write to disk once they take this many bytes.
    checkpoint_seconds : float
        Write the rows read since the last write to disk after this many seconds.
    max_listed_rows : int
        List the places (file and line) of at most this many rows dropped for missing values.
    bucket_bytes : int
        Choose the number of buckets so that each has about this size.
    max_bucket_bits : int
        Use at most ``2**max_bucket_bits`` buckets, even if each is larger than `bucket_bytes`.
    flush_threads : int
        Threads that write buckets; they mostly wait for the disk.
    part_bytes : int
        Sort at most this many bytes of rows in memory at once.
    slab_bytes : int
        Read a bucket in slabs: this many bytes at a time.
    slice_bytes : int
        Transform and measure rows in slices of this many bytes. A scaling depends on it in the
        last digits of its sums.
    fill_sample_rows : int
        Compute medians and commonest values, which replace missing values, from at most this many
        evenly spread rows.
    fill_sample_bytes : int
        Use fewer of these rows if they would take more than this many bytes as float64.
    min_sparse_features : int
        Never choose the sparse layout for this many features or fewer.
    max_sparse_fraction : float
        Choose the sparse layout only if it takes less than this fraction of the bytes of the dense
        layout.
    max_profile_columns : int
        Tables with more columns than this have no profile (statistics of each column).
    """

    piece_bytes: int = 8 << 20
    max_whole_bytes: int = 32 << 20
    text_growth: int = 4
    packed_growth: int = 20
    unknown_bytes: int = 1 << 29
    checkpoint_bytes: int = 64 << 20
    checkpoint_seconds: float = 5.0
    max_listed_rows: int = 1000
    bucket_bytes: int = 32 << 20
    max_bucket_bits: int = 12
    flush_threads: int = 8
    part_bytes: int = 64 << 20
    slab_bytes: int = 16 << 20
    slice_bytes: int = 8 << 20
    fill_sample_rows: int = 100_000
    fill_sample_bytes: int = 64 << 20
    min_sparse_features: int = 256
    max_sparse_fraction: float = 0.5
    max_profile_columns: int = 1000


TUNING = IngestTuning()
"""The default values, which tests override."""
