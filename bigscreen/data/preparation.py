"""How source columns become features and source labels become codes: one JSON-able record."""

from __future__ import annotations

import hashlib
import json
import math
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

OF_FEATURES = ("categories", "dates", "hashed", "missing", "fill", "offset", "factor")
"""What decides the meaning of a feature."""


@dataclass(eq=False)
class Preparation:
    """What was done to the source before it was stored, to be done again to new rows.

    Attributes
    ----------
    n_raw : int or None
        Columns of the source; None if they are stored as they came.
    names : list of str or None
        Names of the source columns.
    categories : dict of int to list of str
        Categorical source columns; a value of theirs is the index into the list.
    dates : dict of int to str
        Source columns of dates and times, as days since 1970, and how texts write them: a format of
        `strptime`, or "" (ISO 8601).
    hashed : dict of int to int
        Categorical columns whose texts are hashed to so many bits; `categories` names the buckets.
    scaling : str
        Name of the scaling, for people: "none", "standard", "minmax", "divide:255".
    missing : list of str
        What says in the source that a value is missing, beside what always does: see `Missing`.
    truths : list of int
        Numeric source columns of truth values, which are 0 and 1. Older stores do not say.
    fill : float64 ndarray of shape (n_raw,) or None
        What stands for a missing number of every source column; None: none may be missing.
    offset, factor : float64 ndarray of shape (n_features,) or None
        A stored feature is (x - offset) * factor; None stands for zeros and for ones. Those of
        categories are 0 and 1, which leaves them as they are; older stores scaled them, too.
    labels : list of str, int or float, or None
        The label of every code; None: rows have the targets of a regression.
    positive : str, int, float or None
        The label that counts as positive in a two-class problem.
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

    def __post_init__(self) -> None:
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
        if self.fill is not None:
            self.fill = np.ascontiguousarray(self.fill, dtype=np.float64)
            if self.fill.shape != (self.n_raw,) or not np.isfinite(self.fill).all():
                raise InputError(f"what is missing needs a number for {self.n_raw} columns")
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

    @classmethod
    def none(cls) -> Preparation:
        """The preparation that leaves everything as it came."""
        return cls()

    @property
    def n_features(self) -> int | None:
        """Features after `expand`; None if `n_raw` is."""
        if self.n_raw is None:
            return None
        return self.n_raw + sum(len(values) - 1 for values in self.categories.values())

    @property
    def numeric(self) -> NDArray[np.int64]:
        """The source columns that are amounts, not categories; `n_raw` must be known."""
        return np.delete(np.arange(self.n_raw or 0), list(self.categories))

    @property
    def places(self) -> NDArray[np.int64]:
        """The first feature of every source column, (n_raw,)."""
        widths = np.ones(self.n_raw or 0, np.int64)
        for column, values in self.categories.items():
            widths[column] = len(values)
        return np.cumsum(widths) - widths

    def widened(self, n_raw: int) -> Preparation:
        """Return the preparation with columns added that are 0 in every row it was learnt from.

        Parameters
        ----------
        n_raw : int
            Source columns of the result, at least as many as here; none may be categorical.
        """
        more = n_raw - (n_raw if self.n_raw is None else self.n_raw)
        by = divisor(self.scaling) if self.scaling.startswith("divide") else None

        def padded(values: NDArray[np.float64] | None, value: float) -> NDArray[Any] | None:
            return None if values is None else np.append(values, np.full(more, value))

        return replace(
            self,
            n_raw=n_raw,
            fill=padded(self.fill, 0),
            offset=padded(self.offset, 0),
            factor=padded(self.factor, 1 / by if by else 1),
        )

    def fills(self, sparse: bool) -> bool:
        """Whether the scaling leaves no zeros in rows that come `sparse`, or in categories."""
        if self.offset is None or not self.offset.any():
            return False
        if sparse or not self.categories:
            return True
        categories = np.ones(len(self.offset), bool)
        categories[self.places[self.numeric]] = False
        return bool(self.offset[categories].any())

    def expand(self, X: ArrayLike | csr_array) -> Features:
        """One feature for every numeric column and for every category of a categorical one.

        Parameters
        ----------
        X : array or csr_array of shape (rows, n_raw)
            Categorical columns hold category numbers; -1, a category never seen, gives zeros.
            A sparse array may have fewer columns: the missing ones are zero.

        Returns
        -------
        ndarray or csr_array of shape (rows, n_features)
            float32 where it holds all numbers of the type of X, else float64.

        Raises
        ------
        InputError
            If the number of columns or a category number is not possible.
        """
        if issparse(X):
            return self._expand_sparse(csr_array(X))
        X = np.asarray(X)
        if X.ndim != 2 or (self.n_raw is not None and X.shape[1] != self.n_raw):
            raise InputError(f"expected rows of {self.n_raw} columns, got shape {X.shape}")
        X = self.filled(X)
        if not self.categories:
            return _floats(X, may_need_float64(X.dtype))
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
                    f"row {wrong[0]}, column {column + 1}: {codes[wrong[0]]} is not the number of "
                    f"one of its {len(values)} categories"
                )
            seen = np.flatnonzero(codes >= 0)
            out[seen, at + codes[seen].astype(np.int64)] = 1.0
            at += len(values)
        return out

    def filled(self, X: NDArray[Any]) -> NDArray[Any]:
        """Rows of the source (rows, n_raw) with a number in place of each that is missing."""
        if self.fill is None or X.dtype.kind != "f" or not np.isnan(X).any():
            return X
        return np.where(np.isnan(X), self.fill.astype(X.dtype), X)

    def _expand_sparse(self, X: csr_array) -> csr_array:
        if self.categories:
            raise InputError("sparse rows cannot have categorical columns; give them as dense rows")
        d = X.shape[1] if self.n_raw is None else self.n_raw
        if X.shape[1] > d:
            raise InputError(f"expected rows of at most {d} columns, got {X.shape[1]}")
        return csr(_floats(X.data, may_need_float64(X.data.dtype)), X.indices, X.indptr, d)

    def scale(self, X: Features) -> Features:
        """(X - offset) * factor, computed in float64 and returned in the type of X.

        Parameters
        ----------
        X : ndarray or csr_array of shape (rows, n_features)

        Raises
        ------
        InputError
            If the widths differ, or sparse rows would have to be filled by an offset.
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

    def thin(self, X: NDArray[np.floating[Any]]) -> csr_array:
        """Dense rows of the source, expanded and scaled, as CSR: the same features as dense ones.

        Parameters
        ----------
        X : (rows, n_raw) float32 or float64 ndarray
            As `expand` takes it.

        Raises
        ------
        InputError
            If the scaling would fill the zeros of categories.
        """
        if self.categories and self.fills(sparse=False):
            raise InputError(f"the scaling {self.scaling!r} would fill the columns of categories")
        X = self.filled(X)
        places = np.arange(X.shape[1]) if self.n_raw is None else self.places
        columns = np.tile(places, (X.shape[0], 1))
        values = X.astype(np.float64)
        for column in self.categories:
            seen = X[:, column] >= 0
            columns[seen, column] += X[seen, column].astype(np.int64)
            values[:, column] = seen
        kept = np.ones(X.shape, bool)
        kept[:, list(self.categories)] = values[:, list(self.categories)] > 0
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
        """Plain JSON values; `from_dict` gives the same preparation back, bit for bit."""
        record = dict(self.__dict__)
        record["categories"] = {str(c): list(values) for c, values in self.categories.items()}
        for name in ("fill", "offset", "factor"):
            record[name] = None if record[name] is None else record[name].tolist()
        for name in ("dates", "hashed"):
            record[name] = {str(c): value for c, value in record[name].items()} or None
        for name in ("fill", "dates", "hashed", "missing", "truths"):
            if not record[name]:
                del record[name]  # (so have the records of before none)
        return record

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> Preparation:
        """The preparation that `to_dict` recorded.

        Raises
        ------
        InputError
            If the record is not one.
        """
        try:
            categories = {int(c): list(values) for c, values in record["categories"].items()}
            kinds = {name: by_column(record.get(name)) for name in ("dates", "hashed")}
            return cls(**{**record, **kinds, "categories": categories})
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(f"the record of the preparation cannot be read: {error!r}") from error

    @property
    def fingerprint(self) -> str:
        """Hash of everything that decides what a stored feature or label code means."""
        return _hash(self.to_dict())

    @property
    def of_features(self) -> str:
        """Hash of what decides the meaning of a feature.

        Labels differ between stores that one model serves, and names are optional.
        """
        record = self.to_dict()
        return _hash({key: record[key] for key in OF_FEATURES if key in record})

    @property
    def changes(self) -> bool:
        """Whether a feature is anything but the column of the source as it came."""
        scaled = self.offset is not None or self.factor is not None
        return bool(self.categories or self.missing) or scaled or self.fill is not None

    @property
    def gaps(self) -> Missing:
        """What says that a value is missing, and whether one may be."""
        return Missing(tuple(self.missing), self.fill is not None)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Preparation) and self.to_dict() == other.to_dict()


def _hash(record: dict[str, Any]) -> str:
    text = json.dumps(record, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _floats(values: NDArray[Any], wide: bool) -> NDArray[np.floating[Any]]:
    """Values as float64 if ``wide``, else as float32."""
    # A value beyond float32 becomes inf here and is refused, with its row, where rows are stored.
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(values, dtype=np.float64 if wide else np.float32)


def divisor(scale: str) -> float | None:
    """Check a scaling's name; returns N of "divide:N", and None for all others.

    Raises
    ------
    InputError
        If there is no such scaling.
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
    """Mean, spread and range of every column, rows being added a few thousand at a time.

    Means and sums of squared deviations are merged by Chan's formula, so that a column far from
    zero keeps its digits; the zeros of sparse rows enter as one block of zeros at the end.

    Parameters
    ----------
    n_features : int
    """

    def __init__(self, n_features: int) -> None:
        self.rows = 0
        self.counts = np.zeros(n_features)
        self.mean = np.zeros(n_features)
        self.deviation = np.zeros(n_features)
        self.low = np.full(n_features, np.inf)
        self.high = np.full(n_features, -np.inf)

    def add(self, X: Features) -> None:
        """Take rows in, ndarray or csr_array of shape (rows, n_features)."""
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
        total = self.counts + counts
        share = counts / np.maximum(total, 1)
        delta = mean - self.mean
        self.deviation += deviation + delta * delta * self.counts * share
        self.mean += delta * share
        self.counts = total

    def scaling(self, scale: str, shift: bool) -> tuple[NDArray[Any] | None, NDArray[Any]]:
        """Return offset and factor of a feature's (x - offset) * factor, float64 (n_features,).

        Parameters
        ----------
        scale : {"standard", "minmax"}
            The spread is the population's standard deviation, or the range; a column without
            any is left unscaled.
        shift : bool
            Whether the mean or the minimum is subtracted: not from sparse rows, whose zeros must
            stay zeros. The offset is None then.
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
