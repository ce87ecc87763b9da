"""Profile of a table, from its rows as they pass: categories, gaps, ranges, skew, equal rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from bigscreen.data.layout import Features
from bigscreen.data.missing import MISSING_CATEGORY
from bigscreen.data.order import row_hash
from bigscreen.data.preparation import Preparation
from bigscreen.numerics.rows import njit


@dataclass(frozen=True)
class ProfileTuning:
    """Sizes of the samples that a profile of a table keeps in memory.

    Attributes
    ----------
    max_hashes : int
        To count duplicate rows, store the hashes of at most this many distinct rows; beyond it, a
        sample of the hashes is stored, and the count is an estimate.
    first_rows : int
        Store the values of this many first rows, to recognise columns that only number the rows,
        and undeclared marks of missing values (such as -999).
    min_values : int
        Search a column for undeclared marks of missing values (such as -999) only if it has at
        least this many distinct values.
    slice_values : int
        Add rows to the statistics in slices of this many values (rows times columns).
    """

    max_hashes: int = 1 << 17
    first_rows: int = 20_000
    min_values: int = 10
    slice_values: int = 1 << 20


TUNING = ProfileTuning()
"""The default values."""


def find_nearly_equal(texts: Iterable[Any]) -> str | None:
    """Return the first two texts that differ only in case or blanks, quoted; None if none do."""
    folded: dict[str, str] = {}
    for text in texts:
        if isinstance(text, str):
            other = folded.setdefault(" ".join(text.casefold().split()), text)
            if other != text:
                return f"{other!r} and {text!r}"
    return None


def describe_scales(profile: dict[str, Any], factor: float = 100.0) -> str | None:
    """Name the columns that vary most and least; None unless they differ by more than ``factor``.

    ``profile`` is a table's (`TableProfile.record`). How much a column varies is its standard
    deviation; columns of one value do not count.
    """
    varying = [column for column in profile["columns"] if column.get("deviation", 0.0) > 0]
    if not varying:
        return None
    least, most = (f(varying, key=lambda column: column["deviation"]) for f in (min, max))
    if most["deviation"] <= factor * least["deviation"]:
        return None
    return (
        f"columns differ in scale: {most['name']!r} deviates by {most['deviation']:.2g} from its "
        f"mean, {least['name']!r} by {least['deviation']:.2g}, and the largest decide how far rows "
        "are apart"
    )


def describe_entries(
    X: Features, name: Callable[[int], str], factor: float = 100.0, min_share: float = 0.01
) -> str | None:
    """Name the columns with the largest and smallest entries; None unless they differ much.

    Entries that are 0 do not count, so that sparse columns are not taken for small ones.

    Parameters
    ----------
    X : ndarray or csr_array (n, d)
        Some rows.
    name : callable
        Of the number of a column: what it is called.
    factor : float
        Differences in size up to this are not named.
    min_share : float
        A column counts if at least this share of its entries is not 0.
    """
    entries = csr_array(X)
    squares, d = entries.data.astype(np.float64) ** 2, entries.shape[1]
    rows = np.bincount(entries.indices, squares > 0, d)
    sums = np.bincount(entries.indices, squares, d)
    some = np.flatnonzero(rows > min_share * entries.shape[0])
    if not len(some):
        return None
    sizes = np.sqrt(sums[some] / rows[some])
    least, most = int(np.argmin(sizes)), int(np.argmax(sizes))
    if sizes[most] <= factor * sizes[least]:
        return None
    return (
        f"columns differ in scale: entries of {name(int(some[most]))!r} are about "
        f"{sizes[most]:.2g}, of {name(int(some[least]))!r} {sizes[least]:.2g}, and the largest "
        "decide how far rows are apart"
    )


class CopyCounter:
    """Estimates the fraction of rows that equal an earlier row, by a sample of hashes.

    Only hashes below a limit are kept, and the limit is halved whenever there are more than
    `max_hashes`. So the result does not depend on the order of the rows.

    Parameters
    ----------
    seed : int
        Chooses the hash function.
    max_hashes : int
        Keep at most this many distinct hashes.
    """

    def __init__(self, seed: int = 0, max_hashes: int = TUNING.max_hashes) -> None:
        """Begin without hashes; all 64-bit hashes are kept until there are over `max_hashes`.

        `seed` chooses the hash function. ``_times`` counts the rows with each of ``_hashes``,
        ``_weights`` has a factor of each column for the hash of a row, and ``_shift`` counts how
        often the largest hash that is kept was halved.
        """
        self._max_hashes = max_hashes
        self._hashes, self._times = np.empty(0, np.uint64), np.empty(0, np.int64)
        self._shift, self._seed = 0, seed
        self._weights = np.empty(0, np.uint64)

    def add(self, X: NDArray[Any], y: NDArray[Any]) -> None:
        """Count the rows of X, (rows, d), with their labels or targets y, (rows, ...)."""
        if y.ndim == 2:
            X, y = np.column_stack([X, y[:, 1:]]), np.ascontiguousarray(y[:, 0])
        if len(self._weights) != X.shape[1] + 1:
            numbers = np.arange(X.shape[1] + 1, dtype=np.int64)
            self._weights = row_hash(self._seed, "copies", numbers) | np.uint64(1)
        contents = np.empty(len(X), np.uint64)
        _hash_rows(np.ascontiguousarray(X), y, self._weights, contents)
        hashes = row_hash(self._seed, "content", contents.view(np.int64))
        self._merge(*np.unique(hashes[self._is_sampled(hashes)], return_counts=True))

    def _merge(self, hashes: NDArray[np.uint64], times: NDArray[np.int64]) -> None:
        """Add distinct hashes, in ascending order, and how often each occurred (both (n,))."""
        places = np.searchsorted(self._hashes, hashes)
        known = np.zeros(len(hashes), bool)
        inside = places < len(self._hashes)
        known[inside] = self._hashes[places[inside]] == hashes[inside]
        self._times[places[known]] += times[known]
        self._hashes = np.insert(self._hashes, places[~known], hashes[~known])
        self._times = np.insert(self._times, places[~known], times[~known])
        while len(self._hashes) > self._max_hashes:
            self._shift += 1
            below = self._is_sampled(self._hashes)
            self._hashes, self._times = self._hashes[below], self._times[below]

    def _is_sampled(self, hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Return a mask of the hashes that are below the current limit."""
        return hashes <= np.uint64(0xFFFFFFFFFFFFFFFF) >> np.uint64(self._shift)

    @property
    def fraction(self) -> float:
        """Return the fraction of rows that equal an earlier row."""
        rows = int(self._times.sum())
        return 1 - len(self._times) / rows if rows else 0.0

    @property
    def is_exact(self) -> bool:
        """Whether all rows were counted, rather than a sample of their hashes."""
        return self._shift == 0


@njit(cache=True, nogil=True)
def _hash_rows(
    X: NDArray[Any], y: NDArray[Any], weights: NDArray[np.uint64], out: NDArray[np.uint64]
) -> None:
    """Write a hash of each row of X, (rows, d), and its label to `out`, (rows,).

    Equal rows get equal hashes; -0 equals 0, and all NaN are equal.

    Parameters
    ----------
    X : array (rows, d)
    y : array (rows,)
        Labels or targets.
    weights : uint64 array (d + 1,)
        Odd random factor of each column, and of the label.
    out : uint64 array (rows,)
    """
    d = X.shape[1]
    for r in range(X.shape[0]):
        total = np.uint64(0)
        for j in range(d + 1):
            value: Any = np.float64(X[r, j]) if j < d else np.float64(y[r])
            value += 0.0  # (-0 is 0)
            if value != value:
                value = np.nan
            bits = np.float64(value).view(np.uint64)
            mixed = (bits ^ (bits >> np.uint64(29))) * weights[j]
            total += mixed ^ (mixed >> np.uint64(32))
        out[r] = total


class Sums(NamedTuple):
    """Sums over each numeric column: powers 1 to 3 of (value - shift), counts, extremes.

    The shift of a column is a number near its values, so that the powers lose no digits.

    Attributes
    ----------
    powers : float64 array (3, columns)
        Sums of the first, second and third power of value minus shift.
    counts, zeros : int64 array (columns,)
        Number of values that are not missing, and of zeros.
    low, high : float64 array (columns,)
        Smallest and largest value.
    """

    powers: NDArray[np.float64]
    counts: NDArray[np.int64]
    zeros: NDArray[np.int64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


@njit(cache=True, nogil=True)
def _add_numbers(
    X: NDArray[Any], columns: NDArray[np.int64], shift: NDArray[np.float64], out: Sums
) -> None:
    """Add the rows of X to the sums of their columns; missing values (NaN) are not counted.

    Parameters
    ----------
    X : array (rows, d)
    columns : int64 array (k,)
        Numbers of the numeric columns.
    shift : float64 array (k,)
        Subtracted from each value before its powers are summed, to keep digits.
    out : Sums
        Updated in place.
    """
    own = np.zeros(
        out.powers.shape
    )  # a separate total for each call: long sums lose less to rounding
    for r in range(X.shape[0]):
        for k in range(len(columns)):
            value = np.float64(X[r, columns[k]])
            if value != value:
                continue
            off = value - shift[k]
            out.counts[k] += 1
            out.zeros[k] += value == 0
            out.low[k] = min(out.low[k], value)
            out.high[k] = max(out.high[k], value)
            own[0, k] += off
            own[1, k] += off * off
            own[2, k] += off * off * off
    out.powers[:] += own


class TableProfile:
    """Collects statistics of each column of the dense rows of a source.

    Parameters
    ----------
    preparation : Preparation
        Says which columns are categories or dates, and their names.
    tuning : ProfileTuning
        Sizes of the samples that are kept.
    """

    def __init__(self, preparation: Preparation, tuning: ProfileTuning = TUNING) -> None:
        """Begin without rows: all counts are zero.

        ``_kinds`` counts the rows of each category by categorical column, ``_sums`` has sums over
        the numeric columns, and ``_first`` their values in the first rows, (rows, columns).
        """
        self._known, self._tuning = preparation, tuning
        self._numeric = preparation.numeric_columns
        self._rows, self._copies = 0, CopyCounter(max_hashes=tuning.max_hashes)
        self._kinds = {c: np.zeros(0, np.int64) for c in preparation.categories}
        self._shift: NDArray[np.float64] | None = None
        width = len(self._numeric)
        ends = np.full(width, np.inf), np.full(width, -np.inf)
        counts = np.zeros((2, width), np.int64)
        self._sums = Sums(np.zeros((3, width)), counts[0], counts[1], *ends)
        self._first = np.empty((0, len(self._numeric)))

    def add(self, X: Features, y: NDArray[Any]) -> None:
        """Add dense rows X, (rows, n_raw), with categories as codes, and labels y, (rows, ...)."""
        step = max(self._tuning.slice_values // max(X.shape[1], 1), 1)
        for at in range(0, X.shape[0], step):
            self._add(np.asarray(X[at : at + step]), y[at : at + step])

    def _add(self, X: NDArray[Any], y: NDArray[Any]) -> None:
        """Add some dense rows X, (rows, n_raw), and labels y, (rows, ...), to all statistics."""
        self._copies.add(X, y)
        for c, counts in self._kinds.items():
            found = np.bincount(X[X[:, c] >= 0, c].astype(np.int64), minlength=len(counts))
            found[: len(counts)] += counts
            self._kinds[c] = found
        if (missing := self._tuning.first_rows - len(self._first)) > 0:
            first = X[:missing, self._numeric]
            self._first = np.concatenate([self._first, first])
        self._rows += len(X)
        if self._shift is None:
            values = X[:, self._numeric].astype(np.float64)
            holes = np.isnan(values)
            fine = np.where(holes, 0, values).sum(axis=0) / np.maximum((~holes).sum(axis=0), 1)
            self._shift = fine
        _add_numbers(np.ascontiguousarray(X), self._numeric, self._shift, self._sums)

    def record(self, recode: dict[int, NDArray[np.int32]]) -> dict[str, Any]:
        """Return the profile as a dict of JSON values: rows, copies, and statistics by column.

        Parameters
        ----------
        recode : dict of int to int array
            For each categorical column, the final code of each code; absent columns keep theirs.
        """
        known, columns = self._known, []
        place = {int(c): k for k, c in enumerate(self._numeric)}
        for c in range(known.n_raw or 0):
            said = (
                self._describe_number(place[c], c)
                if c in place
                else self._describe_category(c, recode)
            )
            columns.append({"name": known.column_name(c), **said})
        return {
            "rows": self._rows,
            "copies": self._copies.fraction,
            "copies_exact": self._copies.is_exact,
            "columns": columns,
        }

    def _describe_number(self, k: int, c: int) -> dict[str, Any]:
        """Return the statistics of numeric column number `k`, which is source column `c`.

        The dict holds counts of missing values and zeros, range, mean, standard deviation, skew,
        and remarks for the user.
        """
        sums, n = self._sums, int(self._sums.counts[k])
        kind = "date" if c in self._known.dates else "number"
        out = {"kind": kind, "missing": self._rows - n, "zeros": int(sums.zeros[k])}
        if not n or self._shift is None:
            return {**out, "remarks": ["nothing is known of it: drop it"]}
        # Central moments from sums of powers about a number near the mean.
        m1, m2, m3 = (float(s) / n for s in sums.powers[:, k])
        variance = max(m2 - m1**2, 0.0)
        deviation = variance**0.5
        third = m3 - 3 * m1 * m2 + 2 * m1**3
        low, high = float(sums.low[k]), float(sums.high[k])
        small = 1e-9 * max(abs(low), abs(high), 1e-300)
        skew = third / deviation**3 if deviation > small else 0.0
        remarks = []
        if low == high:
            remarks.append("one value only: drop it")
        elif (mark := self._find_undeclared_mark(k)) is not None:
            remarks.append(
                f"{mark:g} lies far from all other values: is it a mark of missing ones?"
            )
        elif self._numbers_the_rows(k):
            remarks.append("a different whole number in every row: drop it if it numbers them")
        elif abs(skew) > 5 and kind == "number":
            remarks.append("far from even: most values lie at one end")
        mean = m1 + float(self._shift[k])
        found = {"low": low, "high": high, "mean": mean, "deviation": deviation, "skew": skew}
        return {**out, **found, "remarks": remarks}

    def _find_undeclared_mark(self, k: int) -> float | None:
        """Return the smallest or largest value of a column if it may mark missing values, or None.

        It may if it is frequent and lies far from all other values, as -999 does. `k` is the
        position of the column among the numeric columns.
        """
        values, times = np.unique(self._first[:, k], return_counts=True)
        values, times = values[~np.isnan(values)], times[~np.isnan(values)]
        if len(values) < self._tuning.min_values:
            return None
        for end, rest in ((values[0], values[1:]), (values[-1], values[:-1])):
            often = times[values == end][0] >= max(5, 0.01 * times.sum())
            if often and np.min(np.abs(rest - end)) > 3 * (rest[-1] - rest[0]):
                return float(end)
        return None

    def _numbers_the_rows(self, k: int) -> bool:
        """Whether numeric column number `k` may number the rows: whole numbers, all different.

        Only the first rows count: at least 50 of them, and 90 %, must have a value.
        """
        first = self._first[:, k]
        first = first[~np.isnan(first)]
        whole = len(first) >= 50 and not np.any(first % 1)
        return bool(whole and len(np.unique(first)) == len(first) >= 0.9 * len(self._first))

    def _describe_category(self, c: int, recode: dict[int, NDArray[np.int32]]) -> dict[str, Any]:
        """Return the statistics of the categorical source column `c`.

        The dict holds the number of missing values, of categories that occur, of rows with the
        commonest one, of categories in fewer than 5 rows, and remarks for the user. `recode` maps
        a column's codes, in order of first appearance, to its final codes.
        """
        texts = self._known.categories[c]
        counts = np.zeros(len(texts), np.int64)
        own = self._kinds[c]
        codes = recode.get(c, np.arange(len(texts), dtype=np.int32))[: len(own)]
        np.add.at(counts, codes, own[: len(codes)])
        missing = int(counts[texts.index(MISSING_CATEGORY)]) if MISSING_CATEGORY in texts else 0
        present = {text: int(n) for text, n in zip(texts, counts, strict=True) if n}
        common = max(present, key=lambda text: present[text]) if present else None
        remarks = []
        if c not in self._known.hashed:
            remarks += ["one kind only: drop it"] if len(present) == 1 else []
            if pair := find_nearly_equal(present):
                remarks.append(f"{pair} differ in case or blanks alone")
        return {
            "kind": "hashed" if c in self._known.hashed else "category",
            "missing": missing,
            "kinds": len(present),
            "commonest": common,
            "commonest_rows": 0 if common is None else present[common],
            "rare": sum(1 for n in present.values() if n < 5),
            "remarks": remarks,
        }
