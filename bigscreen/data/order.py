"""Shuffle rows and choose held-out rows by a hash of the seed and the row number alone.

A row's sort key is a bijective 64-bit hash of its source number. So the shuffle needs no memory,
has no ties, and does not depend on how the rows were read, split or interrupted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


def row_hash(seed: int, purpose: str, rows: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Hash row numbers with splitmix64, in a stream chosen by `seed` and `purpose`.

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
    """The order in which rows are stored, and the bucket of each row during an external sort.

    Attributes
    ----------
    seed : int
    shuffle : bool
        Whether rows are ordered by their hash (else by their source number).
    bits : int
        With `shuffle`: there are 2**bits buckets of equal key ranges.
    rows_per_bucket : int
        Without `shuffle`: the number of rows in a bucket.
    """

    seed: int
    shuffle: bool
    bits: int
    rows_per_bucket: int

    def keys(self, rows: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return the sort keys of source rows."""
        return row_hash(self.seed, "order", rows) if self.shuffle else rows.astype(np.uint64)

    def buckets(self, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the bucket number of each key; a larger key has no smaller bucket number."""
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
    """Hold out the rows whose hash does not exceed a limit.

    Attributes
    ----------
    seed : int
    limit : int or None
        Largest hash of a held-out row; None holds out no row.
    """

    seed: int
    limit: int | None

    def mask(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return a mask of the rows that are held out."""
        if self.limit is None:
            return np.zeros(len(rows), bool)
        return row_hash(self.seed, "holdout", rows) <= np.uint64(self.limit)

    @classmethod
    def choose(cls, seed: int, first: int, stop: int, count: int) -> Holdout:
        """Hold out exactly `count` of the rows first..stop-1, those with the smallest hashes."""

        def numbers() -> Iterator[NDArray[np.int64]]:
            """Yield the row numbers first..stop-1 in blocks."""
            block = 1 << 20  # rows at once, to bound the memory
            for at in range(first, stop, block):
                yield np.arange(at, min(at + block, stop), dtype=np.int64)

        return cls.among(seed, numbers, count)

    @classmethod
    def among(
        cls, seed: int, numbers: Callable[[], Iterator[NDArray[np.int64]]], count: int
    ) -> Holdout:
        """Hold out exactly `count` of the rows that `numbers` gives, those with smallest hashes.

        ``numbers`` returns a new iterator over blocks of row numbers; it is called twice.

        A histogram of the leading bits finds the bin of the `count`-th smallest hash, and only
        this bin is sorted. So the memory stays small for any number of rows.
        """
        if count == 0:
            return cls(seed, None)

        def hashes() -> Iterator[NDArray[np.uint64]]:
            """Yield the hashes of the rows, block by block; called once for each pass."""
            for rows in numbers():
                yield row_hash(seed, "holdout", rows)

        leading_bits = 16
        shift = np.uint64(64 - leading_bits)
        counts = np.zeros(1 << leading_bits, np.int64)
        for part in hashes():
            counts += np.bincount((part >> shift).astype(np.int64), minlength=len(counts))
        below = np.cumsum(counts)
        top = int(np.searchsorted(below, count))
        rank = count - 1 - (int(below[top - 1]) if top else 0)
        inside = np.concatenate([part[part >> shift == np.uint64(top)] for part in hashes()])
        return cls(seed, int(np.sort(inside)[rank]))
