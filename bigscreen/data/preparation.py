"""Preparation of rows: how source columns become features and source labels become codes."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array, issparse

from bigscreen.data.layout import Features, Label, csr
from bigscreen.data.missing import Missing
from bigscreen.data.targets import may_need_float64
from bigscreen.data.texts import by_column
from bigscreen.errors import InputError


def describe_column(c: int, names: Sequence[str] | None = None) -> str:
    """Name a column of a source in a sentence; by its position if columns have no names.

    ``c``: its position among the columns of ``names``, or of the source, from 0.
    """
    return f"column {names[c]!r}" if names else f"column {c} (from 0)"


def source_position(c: int, skipped: Iterable[int]) -> int:
    """Return the position in its source, from 0, of the feature column at position ``c``.

    ``skipped``: positions in the source of columns that are no features, ascending.
    """
    for place in skipped:
        c += place <= c
    return c


_LATER_FIELDS = (
    *("fill", "dates", "hashed", "missing", "truths", "metric", "skipped", "indicators"),
    *("targets", "decimal", "label_at"),
)
"""Fields of `Preparation` that the records of older stores lack."""

FEATURE_FIELDS = (
    *("categories", "dates", "hashed", "missing", "fill", "indicators"),
    *("offset", "factor"),
)
"""Fields of `Preparation` on which the meaning of a feature depends."""


@dataclass(eq=False)
class Preparation:
    """The encoding and scaling of source rows, to be repeated on new rows.

    Attributes
    ----------
    n_raw : int or None
        Number of source columns; None if the columns are stored unchanged.
    names : list of str or None
        Names of the source columns.
    skipped : list of int
        Positions in the source of columns that are no features, such as a label's, up to the last
        feature: options and messages name columns without names by their position in the source.
    label_at : list of int
        Position in the source of the column of the label, or of the only target. Empty if no
        column held it, if there are several targets, and in older stores.
    categories : dict of int to list of str
        Categories of each categorical source column, keyed by column number. The code of a value
        is its index in the list.
    dates : dict of int to str
        Source columns of dates and times, which become days since 1970; the value is the format of
        the texts as `strptime` has it, or "" for ISO 8601.
    hashed : dict of int to int
        Categorical columns whose texts are hashed, with the number of bits of the hash;
        `categories` names the buckets.
    scaling : str
        Name of the scaling, for display: "none", "standard", "minmax", "divide:255".
    missing : list of str
        Texts that mean "missing" in the source, in addition to `data.missing.MISSING_TEXTS`.
    truths : list of int
        Numeric source columns of truth values, stored as 0 and 1. Empty in older stores.
    decimal : {".", ","} or None
        What stands before the decimals of numbers in texts of the source, whose other mark may
        separate thousands; None: a point, and nothing separates thousands.
    fill : float64 ndarray of shape (n_raw,) or None
        Replacement of a missing number in each source column; None if no number may be missing.
    indicators : list of int
        Numeric source columns, ascending, that have one more feature each: 1 where the number is
        missing, else 0. These features come after all others, in this order.
    offset, factor : float64 ndarray of shape (n_features,) or None
        A stored feature is (x - offset) * factor; None means zeros and ones. One-hot features have
        offset 0 and factor 1, so they stay 0 and 1; older stores scaled them, too. Features of
        `indicators` have offset 0 and factor 1.
    metric : float64 ndarray of shape (n_features,) or (n_features, n_features), or None
        A learned linear map of the features, which `map` applies: a factor for each column, or a
        matrix that multiplies rows from the right. Stores hold features before the map; only
        machines have one.
    labels : list of str, int or float, or None
        The label of every code; None if rows have regression targets.
    positive : str, int, float or None
        The positive label of a two-class problem.
    targets : list of str or int
        If rows have several targets: the source columns that hold them, by name, or by position if
        columns have no names. Empty for one target, and for targets that are no columns.
    """

    n_raw: int | None = None
    names: list[str] | None = None
    categories: dict[int, list[str]] = field(default_factory=dict)
    scaling: str = "none"
    fill: NDArray[np.float64] | None = None
    offset: NDArray[np.float64] | None = None
    factor: NDArray[np.float64] | None = None
    labels: list[Label] | None = field(default_factory=list)
    positive: Label | None = None
    dates: dict[int, str] = field(default_factory=dict)
    hashed: dict[int, int] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    truths: list[int] = field(default_factory=list)
    decimal: str | None = None
    metric: NDArray[np.float64] | None = None
    skipped: list[int] = field(default_factory=list)
    label_at: list[int] = field(default_factory=list)
    indicators: list[int] = field(default_factory=list)
    targets: list[str | int] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Convert arrays and labels; InputError if the fields do not fit each other."""
        if self.categories and self.n_raw is None:
            raise InputError("categorical columns need the number of source columns")
        if any(not 0 <= c < (self.n_raw or 0) for c in self.categories):
            raise InputError(f"a categorical column is not one of the {self.n_raw} source columns")
        if self.names is not None and self.n_raw is not None and len(self.names) != self.n_raw:
            raise InputError(f"{len(self.names)} names for {self.n_raw} source columns")
        if self.labels is not None:
            self.labels = [v.item() if isinstance(v, np.generic) else v for v in self.labels]
        if isinstance(self.positive, np.generic):
            self.positive = self.positive.item()
        self._check_fill()
        for name in ("offset", "factor"):
            values = getattr(self, name)
            if values is None:
                continue
            values = np.ascontiguousarray(values, dtype=np.float64)
            if values.ndim != 1 or not np.isfinite(values).all():
                raise InputError(f"the {name} of a scaling must be a finite vector")
            if self.n_features not in (None, len(values)):
                raise InputError(f"the {name} has {len(values)} values for {self.n_features}")
            setattr(self, name, values)
        if self.metric is not None:
            self.metric = np.ascontiguousarray(self.metric, dtype=np.float64)
            if len({*self.metric.shape}) != 1 or self.metric.ndim > 2:
                raise InputError("a learned metric is a factor per column, or a square matrix")
            if not np.isfinite(self.metric).all():
                raise InputError("a learned metric must be of finite numbers")

    def _check_fill(self) -> None:
        """Convert `fill`; InputError unless it and `indicators` are for these columns."""
        if self.fill is not None:
            self.fill = np.ascontiguousarray(self.fill, dtype=np.float64)
            if self.fill.shape != (self.n_raw,) or not np.isfinite(self.fill).all():
                raise InputError(f"what is missing needs a number for {self.n_raw} columns")
        numeric = {*self.numeric_columns.tolist()} if self.fill is not None else set()
        if not {*self.indicators} <= numeric:
            raise InputError("an indicator needs a column of numbers, and a number to fill it with")

    @classmethod
    def none(cls) -> Preparation:
        """Return the preparation that changes nothing."""
        return cls()

    @property
    def n_features(self) -> int | None:
        """Number of features after `expand`; None if `n_raw` is None."""
        if self.n_raw is None:
            return None
        kinds = sum(len(values) - 1 for values in self.categories.values())
        return self.n_raw + kinds + len(self.indicators)

    def name_targets(self, n_targets: int) -> list[str]:
        """Return the name of each of several targets; empty for fewer than two."""
        if n_targets < 2:
            return []
        known = [t if isinstance(t, str) else f"column {t}" for t in self.targets]
        return known or [f"target {j}" for j in range(n_targets)]

    def column_name(self, c: int) -> str:
        """Return the name of a source column; "column" and its position if it has none."""
        return self.names[c] if self.names else f"column {source_position(c, self.skipped)}"

    def describe_column(self, c: int) -> str:
        """Name a source column in a sentence, by its name or by its position in the source."""
        place = c if self.names else source_position(c, self.skipped)
        return describe_column(place, self.names)

    @property
    def numeric_columns(self) -> NDArray[np.int64]:
        """Numbers of the source columns that are not categorical; `n_raw` must be known."""
        return np.delete(np.arange(self.n_raw or 0), list(self.categories))

    @property
    def places(self) -> NDArray[np.int64]:
        """Index of the first feature of every source column, (n_raw,)."""
        widths = np.ones(self.n_raw or 0, np.int64)
        for column, values in self.categories.items():
            widths[column] = len(values)
        return np.cumsum(widths) - widths

    def widened(self, n_raw: int) -> Preparation:
        """Return the preparation for more source columns, which were 0 in every training row.

        Parameters
        ----------
        n_raw : int
            Number of source columns of the result, at least the present number. No column may be
            categorical.
        """
        more = n_raw - (n_raw if self.n_raw is None else self.n_raw)
        by = parse_divisor(self.scaling) if self.scaling.startswith("divide") else None
        metric = self.metric
        if metric is not None:
            metric = np.pad(metric, (0, n_raw - len(metric)))

        def padded(values: NDArray[np.float64] | None, value: float) -> NDArray[Any] | None:
            """Append `value` for every new column; None stays None."""
            return None if values is None else np.append(values, np.full(more, value))

        return replace(
            self,
            n_raw=n_raw,
            fill=padded(self.fill, 0),
            offset=padded(self.offset, 0),
            factor=padded(self.factor, 1 / by if by else 1),
            metric=metric,
        )

    def makes_dense(self, sparse: bool) -> bool:
        """Whether the scaling's offset would turn zeros that are not stored into nonzeros.

        Features without stored zeros: all of them if ``sparse``, else the one-hot features alone.
        """
        if self.offset is None or not self.offset.any():
            return False
        if sparse or not self.categories:
            return True
        categories = np.ones(len(self.offset), bool)
        categories[self.places[self.numeric_columns]] = False
        return bool(self.offset[categories].any())

    def expand(self, X: ArrayLike | csr_array) -> Features:
        """Turn source columns into features: one per numeric column, one per category (one-hot).

        The features that say where numbers are missing (`indicators`) come last.

        Parameters
        ----------
        X : array or csr_array of shape (rows, n_raw)
            Categorical columns hold category codes; the code -1, an unknown category, gives zeros.
            A sparse array may have fewer columns: the absent ones count as zero.

        Returns
        -------
        ndarray or csr_array of shape (rows, n_features)
            float32 if it can represent all numbers of X's type, else float64.

        Raises
        ------
        InputError
            If the number of columns is wrong or a category code is out of range.
        """
        if issparse(X):
            return self._expand_sparse(csr_array(X))
        X = np.asarray(X)
        if X.ndim != 2 or (self.n_raw is not None and X.shape[1] != self.n_raw):
            raise InputError(f"expected rows of {self.n_raw} columns, got shape {X.shape}")
        holes = self._find_holes(X)
        X = self.fill_missing(X)
        if not self.categories:
            made = _floats(X, may_need_float64(X.dtype))
            return np.hstack([made, holes.astype(made.dtype)]) if self.indicators else made
        out = np.zeros(
            (X.shape[0], self.n_features or 0),
            np.float64 if may_need_float64(X.dtype) else np.float32,
        )
        at = 0
        for column in range(X.shape[1]):
            values = self.categories.get(column)
            if values is None:
                out[:, at] = _floats(X[:, column], may_need_float64(X.dtype))
                at += 1
                continue
            codes = X[:, column]
            wrong = np.flatnonzero(~((codes >= -1) & (codes < len(values)) & (codes % 1 == 0)))
            if len(wrong):
                raise InputError(
                    f"row {wrong[0]}, {self.describe_column(column)}: {codes[wrong[0]]} is "
                    f"not the number of one of its {len(values)} categories"
                )
            seen = np.flatnonzero(codes >= 0)
            out[seen, at + codes[seen].astype(np.int64)] = 1.0
            at += len(values)
        out[:, at:] = holes
        return out

    def _find_holes(self, X: NDArray[Any]) -> NDArray[np.bool_]:
        """Return where numbers of source rows are missing, bool (rows, indicators)."""
        return np.isnan(X[:, self.indicators].astype(np.float64))

    def fill_missing(self, X: NDArray[Any]) -> NDArray[Any]:
        """Replace the NaNs of source rows (rows, n_raw) by the columns' `fill` values."""
        if self.fill is None or X.dtype.kind != "f" or not np.isnan(X).any():
            return X
        return np.where(np.isnan(X), self.fill.astype(X.dtype), X)

    def _expand_sparse(self, X: csr_array) -> csr_array:
        """Check sparse source rows and pad them with zero columns to `n_raw` columns."""
        if self.categories:
            raise InputError("sparse rows cannot have categorical columns; give them as dense rows")
        d = X.shape[1] if self.n_raw is None else self.n_raw
        if X.shape[1] > d:
            raise InputError(f"expected rows of at most {d} columns, got {X.shape[1]}")
        return csr(_floats(X.data, may_need_float64(X.data.dtype)), X.indices, X.indptr, d)

    def scale(self, X: Features) -> Features:
        """Scale features: (X - offset) * factor, computed in float64, returned in X's type.

        Parameters
        ----------
        X : ndarray or csr_array of shape (rows, n_features)

        Raises
        ------
        InputError
            If the widths differ, or an offset would turn zeros of sparse rows into nonzeros.
        """
        for values in (self.offset, self.factor):
            if values is not None and len(values) != X.shape[1]:
                raise InputError(f"the scaling is for {len(values)} features, got {X.shape[1]}")
        if isinstance(X, csr_array):
            if self.offset is not None and self.offset.any():
                raise InputError(
                    f"the scaling {self.scaling!r} subtracts an offset, which would fill sparse "
                    "rows; give dense rows or a scaling without one"
                )
            data = X.data if self.factor is None else X.data * self.factor[X.indices]
            return csr(
                _floats(data, may_need_float64(X.data.dtype)), X.indices, X.indptr, X.shape[1]
            )
        if self.offset is None and self.factor is None:
            return _floats(X, may_need_float64(X.dtype))
        wide = X.astype(np.float64)
        if self.offset is not None:
            wide -= self.offset
        if self.factor is not None:
            wide *= self.factor
        return _floats(wide, may_need_float64(X.dtype))

    def map(self, X: Features) -> Features:
        """Apply the learned metric to features, in float64; return the columns in X's type.

        X is dense or CSR, (rows, n_features), as a store holds it. A factor for each column keeps
        CSR rows sparse; a full matrix makes dense rows of them. X itself without a metric.
        """
        metric = self.metric
        if metric is None:
            return X
        if len(metric) != X.shape[1]:
            raise InputError(f"the metric is for {len(metric)} features, got {X.shape[1]}")
        wide = may_need_float64(X.dtype)
        if metric.ndim == 2:
            return _floats(X @ metric, wide)
        if isinstance(X, csr_array):
            data = _floats(X.data * metric[X.indices], wide)
            return csr(data, X.indices, X.indptr, X.shape[1])
        return _floats(X * metric, wide)

    def to_csr(self, X: NDArray[np.floating[Any]]) -> csr_array:
        """Expand and scale dense source rows directly to CSR; equal to `scale(expand(X))`.

        Parameters
        ----------
        X : (rows, n_raw) float32 or float64 ndarray
            Source rows, as `expand` takes them.

        Raises
        ------
        InputError
            If the scaling would turn zeros of one-hot features into nonzeros.
        """
        if self.categories and self.makes_dense(sparse=False):
            raise InputError(f"the scaling {self.scaling!r} would fill the columns of categories")
        holes = self._find_holes(X)
        X = self.fill_missing(X)
        places = np.arange(X.shape[1]) if self.n_raw is None else self.places
        columns = np.tile(places, (X.shape[0], 1))
        values = X.astype(np.float64)
        for column in self.categories:
            seen = X[:, column] >= 0
            columns[seen, column] += X[seen, column].astype(np.int64)
            values[:, column] = seen
        kept = np.ones(X.shape, bool)
        kept[:, list(self.categories)] = values[:, list(self.categories)] > 0
        if self.indicators:
            last = np.arange(-len(self.indicators), 0) + (self.n_features or 0)
            columns = np.hstack([columns, np.tile(last, (X.shape[0], 1))])
            values, kept = np.hstack([values, holes]), np.hstack([kept, holes])
        if self.offset is not None:
            values -= self.offset[columns]
        if self.factor is not None:
            values *= self.factor[columns]
        narrow = _floats(values, may_need_float64(X.dtype))
        kept &= narrow != 0
        ends = np.cumsum(np.count_nonzero(kept, axis=1))
        d = X.shape[1] if self.n_features is None else self.n_features
        return csr(narrow[kept], columns[kept], np.concatenate([[0], ends]), d)

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON values, from which `from_dict` restores the preparation exactly."""
        record = dict(self.__dict__)
        record["categories"] = {str(c): list(values) for c, values in self.categories.items()}
        for name in ("fill", "offset", "factor", "metric"):
            record[name] = None if record[name] is None else record[name].tolist()
        for name in ("dates", "hashed"):
            record[name] = {str(c): value for c, value in record[name].items()} or None
        for name in _LATER_FIELDS:
            if not record[name]:
                del record[name]  # keeps the fingerprints of stores older than this field
        return record

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> Preparation:
        """Restore a preparation from the record that `to_dict` made.

        Raises
        ------
        InputError
            If the record is not valid.
        """
        try:
            categories = {int(c): list(values) for c, values in record["categories"].items()}
            kinds = {name: by_column(record.get(name)) for name in ("dates", "hashed")}
            return cls(**{**record, **kinds, "categories": categories})
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(f"the record of the preparation cannot be read: {error!r}") from error

    @property
    def fingerprint(self) -> str:
        """Hash of what stored features and codes mean: all but how the source was laid out."""
        return _hash(replace(self, skipped=[], label_at=[], decimal=None).to_dict())

    @property
    def features_fingerprint(self) -> str:
        """Hash of the fields on which the meaning of a feature depends.

        Labels and names are left out: a model can score stores with other labels or without names.
        """
        record = self.to_dict()
        return _hash({key: record[key] for key in FEATURE_FIELDS if key in record})

    @property
    def changes_features(self) -> bool:
        """Whether features differ from the source's columns in any way."""
        scaled = self.offset is not None or self.factor is not None
        return bool(self.categories or self.missing) or scaled or self.fill is not None

    @property
    def missing_marks(self) -> Missing:
        """The marks of missing values, and whether values may be missing."""
        return Missing(tuple(self.missing), self.fill is not None)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Preparation) and self.to_dict() == other.to_dict()


def _hash(record: dict[str, Any]) -> str:
    """Return the SHA-256, in hex, of a record of JSON values with sorted keys."""
    text = json.dumps(record, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _floats(values: NDArray[Any], wide: bool) -> NDArray[np.floating[Any]]:
    """Convert values to float64 if ``wide``, else to float32."""
    # A value beyond float32 becomes inf here; `as_features` then refuses it and names its row.
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(values, dtype=np.float64 if wide else np.float32)


def parse_divisor(scale: str) -> float | None:
    """Check `scale`, a scaling's name; return N for "divide:N" and None for every other scaling.

    Raises
    ------
    InputError
        If the name is unknown, or N is not a positive number.
    """
    if scale in ("none", "standard", "minmax"):
        return None
    kind, _, text = scale.partition(":")
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if kind != "divide" or not (math.isfinite(value) and value > 0):
        raise InputError(
            f"there is no scaling {scale!r}: use none, standard, minmax or divide:N, N above 0."
        )
    return value


class Moments:
    """Mean, spread and range of every column, accumulated over blocks of rows.

    Means and sums of squared deviations are merged by Chan's formula, so a column far from zero
    loses no digits. The zeros of sparse rows are merged as one block at the end.

    Parameters
    ----------
    n_features : int
    """

    def __init__(self, n_features: int) -> None:
        """Begin with no rows; all arrays have an entry per column.

        Of sparse rows, only the stored values (usually the nonzeros) are accumulated: ``counts`` of
        them, their ``mean``, ``deviation`` (sum of squared differences from the mean), ``low`` and
        ``high``.
        """
        self.rows = 0
        self.counts = np.zeros(n_features)
        self.mean = np.zeros(n_features)
        self.deviation = np.zeros(n_features)
        self.low = np.full(n_features, np.inf)
        self.high = np.full(n_features, -np.inf)

    def add(self, X: Features) -> None:
        """Add rows, an ndarray or csr_array of shape (rows, n_features)."""
        self.rows += X.shape[0]
        if isinstance(X, csr_array):
            d = len(self.mean)
            counts = np.bincount(X.indices, minlength=d).astype(np.float64)
            sums = np.bincount(X.indices, X.data, minlength=d)
            mean = sums / np.maximum(counts, 1)
            squares = np.square(X.data - mean[X.indices])
            self._merge(counts, mean, np.bincount(X.indices, squares, minlength=d))
            np.minimum.at(self.low, X.indices, X.data)
            np.maximum.at(self.high, X.indices, X.data)
            return
        wide = X.astype(np.float64)
        mean = wide.mean(axis=0)
        np.minimum(self.low, wide.min(axis=0), out=self.low)
        np.maximum(self.high, wide.max(axis=0), out=self.high)
        wide -= mean
        counts = np.full(len(mean), float(len(wide)))
        self._merge(counts, mean, np.einsum("ij,ij->j", wide, wide))

    def _merge(self, counts: NDArray[Any], mean: NDArray[Any], deviation: NDArray[Any]) -> None:
        """Merge the moments of a block of rows into the totals, column by column (Chan's formula).

        ``counts`` values per column, their ``mean``, and their ``deviation``: the sum of squared
        differences from this mean.
        """
        total = self.counts + counts
        share = counts / np.maximum(total, 1)
        delta = mean - self.mean
        self.deviation += deviation + delta * delta * self.counts * share
        self.mean += delta * share
        self.counts = total

    @property
    def are_truths(self) -> NDArray[np.bool_]:
        """Which columns hold 0 and 1 only, bool (n_features,); for dense rows.

        Of numbers x from 0 to 1 only 0 and 1 have x = x**2, so the sums of both are then equal.
        """
        squares = self.deviation + self.mean**2 * self.counts
        inside = (self.low >= 0) & (self.high <= 1)
        truths: NDArray[np.bool_] = inside & np.isclose(
            squares, self.mean * self.counts, rtol=1e-12, atol=0
        )
        return truths

    def scaling(self, scale: str, shift: bool) -> tuple[NDArray[Any] | None, NDArray[Any]]:
        """Return offset and factor of the scaling (x - offset) * factor, float64 (n_features,).

        Parameters
        ----------
        scale : {"standard", "minmax"}
            Divide by the population standard deviation, or by the range. A constant column is not
            divided.
        shift : bool
            Whether to subtract the mean or the minimum. False for sparse rows, whose zeros must
            stay zeros; the offset is None then.
        """
        zeros = self.rows - self.counts
        absent = zeros > 0
        low = np.where(absent, np.minimum(self.low, 0), self.low)
        high = np.where(absent, np.maximum(self.high, 0), self.high)
        mean = self.mean * self.counts / self.rows
        if scale == "standard":
            squares = self.deviation + self.mean**2 * self.counts * zeros / self.rows
            offset, spread = mean, np.sqrt(squares / self.rows)
        else:
            offset, spread = low, high - low
        constant = (high <= low) | (spread <= 0)
        factor = 1.0 / np.where(constant, 1.0, spread)
        return (offset if shift else None), factor
