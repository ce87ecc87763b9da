"""What a table holds: kinds, missing values, ranges, skew and copies of rows, seen as they pass."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.data.layout import Features
from bigscreen.data.missing import ABSENT
from bigscreen.data.order import row_hash
from bigscreen.data.preparation import Preparation

MOST_COLUMNS = 1000
"""Wider tables have no profile."""

KEPT = 1 << 17
"""Different rows that are remembered to count copies: all, or those whose hash is below a limit."""

FIRST_ROWS = 20_000
"""Rows among which a column of whole numbers is looked at for numbers of rows."""

FEW_VALUES = 10
"""Columns of fewer values hold no mark that stands out."""

_SLICE = 1 << 20


def nearly_alike(texts: Iterable[Any]) -> str | None:
    """The first texts that differ in case or blanks alone, quoted; None if there are none."""
    folded: dict[str, str] = {}
    for text in texts:
        if isinstance(text, str):
            other = folded.setdefault(" ".join(text.casefold().split()), text)
            if other != text:
                return f"{other!r} and {text!r}"
    return None


class Copies:
    """Counts rows that are copies of others: of a part of all contents, chosen by their hashes.

    What comes out does not depend on the order of the rows: contents are kept below a limit that
    is halved whenever there are too many.
    """

    def __init__(self, seed: int = 0) -> None:
        self._hashes, self._times = np.empty(0, np.uint64), np.empty(0, np.int64)
        self._shift, self._seed = 0, seed
        self._weights = np.empty(0, np.uint64)

    def add(self, X: NDArray[Any], y: NDArray[Any]) -> None:
        """Count rows (rows, d) of one type, and what they are to be predicted as (rows,)."""
        whole = np.empty((len(X), X.shape[1] + 1))
        whole[:, :-1], whole[:, -1] = X, y
        whole += 0.0  # (-0 is 0)
        whole[np.isnan(whole)] = np.nan
        if len(self._weights) != whole.shape[1]:
            numbers = np.arange(whole.shape[1], dtype=np.int64)
            self._weights = row_hash(self._seed, "copies", numbers) | np.uint64(1)
        bits = whole.view(np.uint64)
        # In place: this is done for every number of a table.
        mixed = bits >> np.uint64(29)
        mixed ^= bits
        mixed *= self._weights
        mixed ^= np.right_shift(mixed, np.uint64(32), out=bits)
        contents = mixed.sum(axis=1, dtype=np.uint64)
        hashes = row_hash(self._seed, "content", contents.view(np.int64))
        self._merge(hashes, np.ones(len(hashes), np.int64))

    def _merge(self, hashes: NDArray[np.uint64], times: NDArray[np.int64]) -> None:
        below = self._below(hashes)
        joined = np.concatenate([self._hashes, hashes[below]])
        counts = np.concatenate([self._times, times[below]])
        self._hashes, places = np.unique(joined, return_inverse=True)
        self._times = np.bincount(places, weights=counts, minlength=len(self._hashes)).astype(int)
        while len(self._hashes) > KEPT:
            self._shift += 1
            below = self._below(self._hashes)
            self._hashes, self._times = self._hashes[below], self._times[below]

    def _below(self, hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
        return hashes <= np.uint64(0xFFFFFFFFFFFFFFFF) >> np.uint64(self._shift)

    @property
    def share(self) -> float:
        """The part of the rows that are copies of another row, the first of each left out."""
        rows = int(self._times.sum())
        return 1 - len(self._times) / rows if rows else 0.0

    @property
    def exact(self) -> bool:
        """Whether all rows were counted."""
        return self._shift == 0


class TableProfile:
    """Sums up the columns of dense rows of a source.

    Parameters
    ----------
    preparation : Preparation
        Says which columns are categories or dates, and what they are called.
    """

    def __init__(self, preparation: Preparation) -> None:
        self._known, d = preparation, preparation.n_raw or 0
        self._numeric = preparation.numeric
        self._rows, self._copies = 0, Copies()
        self._kinds = {c: np.zeros(0, np.int64) for c in preparation.categories}
        self._shift: NDArray[np.float64] | None = None
        self._sums, self._counts = np.zeros((3, len(self._numeric))), np.zeros(d, np.int64)
        self._low = np.full(len(self._numeric), np.inf)
        self._high, self._zeros = -self._low, np.zeros(len(self._numeric), np.int64)
        self._first = np.empty((0, len(self._numeric)))

    def add(self, X: Features, y: NDArray[Any]) -> None:
        """Take dense rows (rows, n_raw), categories by their codes, and labels (rows,)."""
        step = max(_SLICE // max(X.shape[1], 1), 1)
        for at in range(0, X.shape[0], step):
            self._add(np.asarray(X[at : at + step]), y[at : at + step])

    def _add(self, X: NDArray[Any], y: NDArray[Any]) -> None:
        self._copies.add(X, y)
        for c, counts in self._kinds.items():
            found = np.bincount(X[X[:, c] >= 0, c].astype(np.int64), minlength=len(counts))
            found[: len(counts)] += counts
            self._kinds[c] = found
        values = X[:, self._numeric].astype(np.float64)
        if len(self._first) < FIRST_ROWS:
            self._first = np.concatenate([self._first, values[: FIRST_ROWS - len(self._first)]])
        self._rows += len(X)
        if not values.size:
            return
        holes = np.isnan(values)
        self._counts[self._numeric] += len(values) - np.count_nonzero(holes, axis=0)
        self._zeros += np.count_nonzero(values == 0, axis=0)
        self._low = np.fmin(self._low, np.fmin.reduce(values, axis=0))
        self._high = np.fmax(self._high, np.fmax.reduce(values, axis=0))
        if self._shift is None:
            fine = np.where(holes, 0, values).sum(axis=0) / np.maximum((~holes).sum(axis=0), 1)
            self._shift = fine
        off = values - self._shift
        off[holes] = 0
        power = off.copy()
        for k in range(3):
            self._sums[k] += power.sum(axis=0)
            power *= off

    def record(self, recode: dict[int, NDArray[np.int32]]) -> dict[str, Any]:
        """What was seen, as JSON has it.

        Parameters
        ----------
        recode : dict of int to int array
            Of every categorical column, the category of each code; without it codes are those.
        """
        known, columns = self._known, []
        place = {int(c): k for k, c in enumerate(self._numeric)}
        for c in range(known.n_raw or 0):
            name = known.names[c] if known.names else f"column {c + 1}"
            said = self._number(place[c], c) if c in place else self._category(c, recode)
            columns.append({"name": name, **said})
        return {
            "rows": self._rows,
            "copies": self._copies.share,
            "copies_exact": self._copies.exact,
            "columns": columns,
        }

    def _number(self, k: int, c: int) -> dict[str, Any]:
        n = int(self._counts[c])
        kind = "date" if c in self._known.dates else "number"
        out = {"kind": kind, "missing": self._rows - n, "zeros": int(self._zeros[k])}
        if not n or self._shift is None:
            return {**out, "remarks": ["nothing is known of it: drop it"]}
        # Central moments from sums of powers about a number near the mean.
        m1, m2, m3 = (float(s) / n for s in self._sums[:, k])
        variance = max(m2 - m1**2, 0.0)
        deviation = variance**0.5
        third = m3 - 3 * m1 * m2 + 2 * m1**3
        small = 1e-9 * max(abs(self._low[k]), abs(self._high[k]), 1e-300)
        skew = third / deviation**3 if deviation > small else 0.0
        low, high = float(self._low[k]), float(self._high[k])
        remarks = []
        if low == high:
            remarks.append("one value only: drop it")
        elif (mark := self._apart(k)) is not None:
            remarks.append(
                f"{mark:g} lies far from all other values: is it a mark of missing ones?"
            )
        elif self._numbers_rows(k):
            remarks.append("a different whole number in every row: drop it if it numbers them")
        elif abs(skew) > 5 and kind == "number":
            remarks.append("far from even: most values lie at one end")
        mean = m1 + float(self._shift[k])
        found = {"low": low, "high": high, "mean": mean, "deviation": deviation, "skew": skew}
        return {**out, **found, "remarks": remarks}

    def _apart(self, k: int) -> float | None:
        """The smallest or largest value, where it is frequent and far from all others."""
        values, times = np.unique(self._first[:, k], return_counts=True)
        values, times = values[~np.isnan(values)], times[~np.isnan(values)]
        if len(values) < FEW_VALUES:
            return None
        for end, rest in ((values[0], values[1:]), (values[-1], values[:-1])):
            often = times[values == end][0] >= max(5, 0.01 * times.sum())
            if often and np.min(np.abs(rest - end)) > 3 * (rest[-1] - rest[0]):
                return float(end)
        return None

    def _numbers_rows(self, k: int) -> bool:
        first = self._first[:, k]
        first = first[~np.isnan(first)]
        whole = len(first) >= 50 and not np.any(first % 1)
        return bool(whole and len(np.unique(first)) == len(first) >= 0.9 * len(self._first))

    def _category(self, c: int, recode: dict[int, NDArray[np.int32]]) -> dict[str, Any]:
        texts = self._known.categories[c]
        counts = np.zeros(len(texts), np.int64)
        own = self._kinds[c]
        codes = recode.get(c, np.arange(len(texts), dtype=np.int32))[: len(own)]
        np.add.at(counts, codes, own[: len(codes)])
        missing = int(counts[texts.index(ABSENT)]) if ABSENT in texts else 0
        present = {text: int(n) for text, n in zip(texts, counts, strict=True) if n}
        common = max(present, key=lambda text: present[text]) if present else None
        remarks = []
        if c not in self._known.hashed:
            remarks += ["one kind only: drop it"] if len(present) == 1 else []
            if pair := nearly_alike(present):
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
