"""The order of stored rows: each row's place follows from the seed and its number, nothing else.

A row's key is a bijective 64-bit hash of its source number, so the shuffle needs no memory, has no
ties, and comes out the same however the rows were read, split or interrupted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_SLICE = 1 << 20
_TOP_BITS = 16


def row_hash(seed: int, purpose: str, rows: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Hash row numbers: splitmix64's output for a stream chosen by `seed` and `purpose`.

    Parameters
    ----------
    seed : int
    purpose : str
        Different purposes give independent hashes.
    rows : int64 array, (n,)

    Returns
    -------
    uint64 array, (n,)
        Distinct for distinct rows.
    """
    digest = hashlib.blake2b(f"{purpose}:{seed}".encode(), digest_size=8).digest()
    z = rows.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z += np.frombuffer(digest, "<u8")[0]
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z ^= z >> np.uint64(shift)
        z *= np.uint64(factor)
    return z ^ (z >> np.uint64(31))


@dataclass(frozen=True)
class Order:
    """In which order rows are stored, and in which bucket each waits until then.

    Attributes
    ----------
    seed : int
    shuffle : bool
        Whether rows are ordered by their hash, or by their number.
    bits : int
        There are 2**bits buckets of equal key ranges (`shuffle`).
    rows_per_bucket : int
        Rows of a bucket (no `shuffle`).
    """

    seed: int
    shuffle: bool
    bits: int
    rows_per_bucket: int

    def keys(self, rows: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return what stored rows are sorted by."""
        return row_hash(self.seed, "order", rows) if self.shuffle else rows.astype(np.uint64)

    def buckets(self, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the bucket of each key; buckets are in the order of their keys."""
        if not self.shuffle:
            return (keys // np.uint64(self.rows_per_bucket)).astype(np.int64)
        if self.bits == 0:  # a shift by 64 bits is undefined
            return np.zeros(len(keys), np.int64)
        return (keys >> np.uint64(64 - self.bits)).astype(np.int64)

    def split(self, bucket: int, parts: int) -> list[tuple[int, int]]:
        """Cut a bucket's key range into at most `parts` ranges (low, high), both inclusive."""
        size = 1 << (64 - self.bits) if self.shuffle else self.rows_per_bucket
        low = bucket * size
        step = -(-size // max(parts, 1))
        return [(at, min(at + step, low + size) - 1) for at in range(low, low + size, step)]


@dataclass(frozen=True)
class Holdout:
    """Which rows are held out: those whose hash does not exceed a limit.

    Attributes
    ----------
    seed : int
    limit : int or None
        None: no row is held out.
    """

    seed: int
    limit: int | None

    def mask(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which of the rows are held out."""
        if self.limit is None:
            return np.zeros(len(rows), bool)
        return row_hash(self.seed, "holdout", rows) <= np.uint64(self.limit)

    @classmethod
    def choose(cls, seed: int, first: int, stop: int, count: int) -> Holdout:
        """Hold out exactly `count` of the rows first..stop-1, those with the smallest hashes."""

        def numbers() -> Iterator[NDArray[np.int64]]:
            for at in range(first, stop, _SLICE):
                yield np.arange(at, min(at + _SLICE, stop), dtype=np.int64)

        return cls.among(seed, numbers, count)

    @classmethod
    def among(
        cls, seed: int, numbers: Callable[[], Iterator[NDArray[np.int64]]], count: int
    ) -> Holdout:
        """Hold out exactly `count` of the rows whose numbers are given, some at a time.

        The hashes are counted by their leading bits and only one bin of them is ever sorted, so
        the memory stays small for any number of rows.
        """
        if count == 0:
            return cls(seed, None)

        def hashes() -> Iterator[NDArray[np.uint64]]:
            for rows in numbers():
                yield row_hash(seed, "holdout", rows)

        shift = np.uint64(64 - _TOP_BITS)
        counts = np.zeros(1 << _TOP_BITS, np.int64)
        for part in hashes():
            counts += np.bincount((part >> shift).astype(np.int64), minlength=len(counts))
        below = np.cumsum(counts)
        top = int(np.searchsorted(below, count))
        rank = count - 1 - (int(below[top - 1]) if top else 0)
        inside = np.concatenate([part[part >> shift == np.uint64(top)] for part in hashes()])
        return cls(seed, int(np.sort(inside)[rank]))
