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
        Read a file or row group whole, in any process, if its numbers take at most this many bytes;
        read a larger one piece by piece.
    text_growth : int
        Estimated bytes of float32 rows for each byte of a plain text file; rather too high than too
        low.
    packed_growth : int
        Estimated bytes of float32 rows for each byte of a compressed file; rather too high than too
        low.
    unknown_bytes : int
        Estimated bytes of the rows of a source whose size is unknown.
    checkpoint_bytes : int
        Write the rows read since the last write to disk once they take this many bytes; an
        interrupted ingest resumes after the last write.
    checkpoint_seconds : float
        Write the rows read since the last write to disk after this many seconds; an interrupted
        ingest resumes after the last write.
    max_listed_rows : int
        List the places (file and line) of at most this many rows dropped for missing values.
    bucket_bytes : int
        Choose the number of buckets (files of rows that are sorted one after another) so that each
        has about this many bytes.
    max_bucket_bits : int
        Use at most ``2**max_bucket_bits`` buckets (files of rows that are sorted one after
        another), even if each is larger than `bucket_bytes`.
    flush_threads : int
        Number of threads that write buckets (files of rows); they mostly wait for the disk.
    part_bytes : int
        Sort at most this many bytes of rows in memory at once, by ranges of their sort keys.
    slab_bytes : int
        Read a bucket (file of rows) this many bytes at a time.
    slice_bytes : int
        Transform rows, and sum their moments, this many bytes at a time. The last digits of a
        scaling depend on it.
    fill_sample_rows : int
        Compute the medians and commonest values that replace missing values from at most this many
        rows, evenly spread over the data.
    fill_sample_bytes : int
        Compute the medians that replace missing values from fewer than ``fill_sample_rows`` rows if
        these would take more bytes than this as float64.
    min_sparse_features : int
        Store rows as dense arrays, never sparse, if there are at most this many features.
    max_sparse_fraction : float
        Choose the sparse layout only if it takes less than this fraction of the bytes of the dense
        layout.
    max_profile_columns : int
        Tables with more columns than this have no profile (statistics of each column), and a fit
        does not look for columns of other scales in sparse rows with more columns than this.
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
