"""How source columns become features and source labels become codes: one JSON-able record."""

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array, issparse

from bigscreen.errors import InputError
from bigscreen.store.layout import Features, Label, csr


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
    scaling : str
        Name of the scaling, for people: "none", "standard", "minmax", "divide:255".
    offset, factor : float64 ndarray of shape (n_features,) or None
        A stored feature is (x - offset) * factor; None stands for zeros and for ones.
    labels : list of str, int or float, or None
        The label of every code; None: rows have the targets of a regression.
    positive : str, int, float or None
        The label that counts as positive in a two-class problem.
    """

    n_raw: int | None = None
    names: list[str] | None = None
    categories: dict[int, list[str]] = field(default_factory=dict)
    scaling: str = "none"
    offset: NDArray[np.float64] | None = None
    factor: NDArray[np.float64] | None = None
    labels: list[Label] | None = field(default_factory=list)
    positive: Label | None = None

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
    def none(cls) -> "Preparation":
        """The preparation that leaves everything as it came."""
        return cls()

    @property
    def n_features(self) -> int | None:
        """Features after `expand`; None if `n_raw` is."""
        if self.n_raw is None:
            return None
        return self.n_raw + sum(len(values) - 1 for values in self.categories.values())

    def feature_names(self) -> list[str] | None:
        """Names of the features after `expand`: "colour=red" for a category; None if unnamed."""
        if self.names is None:
            return None
        out: list[str] = []
        for column, name in enumerate(self.names):
            values = self.categories.get(column)
            out += [name] if values is None else [f"{name}={value}" for value in values]
        return out

    def expand(self, X: ArrayLike | csr_array) -> Features:
        """One feature for every numeric column and for every category of a categorical one.

        Parameters
        ----------
        X : array or csr_array of shape (rows, n_raw)
            Categorical columns hold category numbers; -1, a category never seen, gives zeros.
            A sparse array may have fewer columns: the missing ones are zero.

        Returns
        -------
        ndarray or csr_array of shape (rows, n_features), float64 if X is, else float32

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
        if not self.categories:
            return _floats(X, _is_wide(X))
        out = np.zeros(
            (X.shape[0], self.n_features or 0), np.float64 if _is_wide(X) else np.float32
        )
        at = 0
        for column in range(X.shape[1]):
            values = self.categories.get(column)
            if values is None:
                out[:, at] = _floats(X[:, column], _is_wide(X))
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

    def _expand_sparse(self, X: csr_array) -> csr_array:
        if self.categories:
            raise InputError("sparse rows cannot have categorical columns; give them as dense rows")
        d = X.shape[1] if self.n_raw is None else self.n_raw
        if X.shape[1] > d:
            raise InputError(f"expected rows of at most {d} columns, got {X.shape[1]}")
        return csr(_floats(X.data, _is_wide(X.data)), X.indices, X.indptr, d)

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
            return csr(_floats(data, _is_wide(X.data)), X.indices, X.indptr, X.shape[1])
        if self.offset is None and self.factor is None:
            return _floats(X, _is_wide(X))
        wide = X.astype(np.float64)
        if self.offset is not None:
            wide -= self.offset
        if self.factor is not None:
            wide *= self.factor
        return _floats(wide, _is_wide(X))

    def encode_labels(self, y: ArrayLike | None, n_rows: int | None = None) -> NDArray[np.int32]:
        """Codes of labels: indices into `labels`, -1 where there is none.

        Parameters
        ----------
        y : array of shape (rows,) or None
            Labels as read; None, NaN and the empty text mean "no label". Numbers and texts that
            spell the same number are the same label.
        n_rows : int, optional
            Rows to answer for when `y` is None.

        Raises
        ------
        InputError
            If a label is not one of `labels`.
        """
        if y is None:
            return np.full(n_rows or 0, -1, dtype=np.int32)
        source = np.asarray(y)
        if source.ndim != 1:
            raise InputError(f"labels must be one for every row, got shape {source.shape}")
        labels = self.labels or []
        exact: dict[Any, int] = {label: code for code, label in enumerate(labels)}
        spelled: dict[Any, int] = {}
        for code, label in enumerate(labels):
            spelled.setdefault(_number(label), code)
        # Texts and numbers are looked up once for each distinct value; objects do not sort.
        distinct = source.dtype != object
        values, inverse = np.unique(source, return_inverse=True) if distinct else (source, None)
        codes = np.empty(len(values), dtype=np.int32)
        for i, value in enumerate(values.tolist()):
            number = _number(value)
            known = None if number is None else exact.get(value, spelled.get(number))
            if number is not None and known is None:
                some = ", ".join(map(str, labels[:10]))
                raise InputError(f"the label {value!r} is not one of the known labels {some}")
            codes[i] = -1 if known is None else known
        return codes if inverse is None else codes[inverse]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `from_dict` gives the same preparation back, bit for bit."""
        record = dict(self.__dict__)
        record["categories"] = {str(c): list(values) for c, values in self.categories.items()}
        for name in ("offset", "factor"):
            record[name] = None if record[name] is None else record[name].tolist()
        return record

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> "Preparation":
        """The preparation that `to_dict` recorded.

        Raises
        ------
        InputError
            If the record is not one.
        """
        try:
            categories = {int(c): list(values) for c, values in record["categories"].items()}
            return cls(**{**record, "categories": categories})
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(f"the record of the preparation cannot be read: {error!r}") from error

    @property
    def fingerprint(self) -> str:
        """Hash of everything that decides what a stored feature or label code means."""
        text = json.dumps(self.to_dict(), sort_keys=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Preparation) and self.to_dict() == other.to_dict()


def _floats(values: NDArray, wide: bool) -> NDArray[np.floating[Any]]:
    """Values as float64 if ``wide``, else as float32."""
    # A value beyond float32 becomes inf here and is refused, with its row, where rows are stored.
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(values, dtype=np.float64 if wide else np.float32)


def _is_wide(values: NDArray) -> bool:
    return values.dtype == np.float64


def _number(label: Any) -> Any:
    """The number a label spells, the label itself if none, None for "no label"."""
    if label is None or label == "":
        return None
    try:
        value = float(label)
    except ValueError:
        return label
    return None if np.isnan(value) else value
