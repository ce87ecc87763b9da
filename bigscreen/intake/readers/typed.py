"""Base of readers of tables: column roles and types, and the encoders of text columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigscreen.data.missing import Missing
from bigscreen.intake.readers.base import Reader
from bigscreen.intake.readers.categories import (
    BLANK,
    TEXT,
    TRUTH,
    Categories,
    Dates,
    Hashed,
    Kind,
)
from bigscreen.intake.readers.columns import ColumnRoles


class TypedReader(Reader):
    """Base class of readers of tables with columns of numbers, texts and dates.

    Parameters
    ----------
    columns : ColumnRoles
        Positions of label, weight and features in the source.
    names : list of str or None
        Names of all columns of the source.
    kinds : mapping of int to Kind
        Types of features, by position among the features; features without an entry hold numbers.
    missing : Missing
        Marks of missing values, and whether features may be missing.
    closed : bool
        Whether a text that is not among given categories is an error.
    """

    def __init__(
        self,
        columns: ColumnRoles,
        names: list[str] | None,
        kinds: Mapping[int, Kind],
        missing: Missing,
        closed: bool = False,
    ) -> None:
        """Set names and types of the features, and make the encoder of each text or date column.

        `names` holds the names of all columns of the source, and `kinds` the types of features, by
        position among the features; features without a type hold numbers. With `closed`, a text
        outside given categories is an error.
        """
        super().__init__()
        self.columns, self._kinds, self._missing, self._closed = columns, kinds, missing, closed
        self.left_out, self.index_names = columns.left_out, columns.index_names
        if len(columns.labels) == 1:
            self.label_at = [f for f in columns.labels if f is not None]
        else:
            self.targets = [names[f] if names else f for f in columns.labels if f is not None]
        self.n_features = len(columns.features)
        self.names = [names[f] for f in columns.features] if names else None
        self.skip_all_but(columns.features)
        self.dates = {j: kind.how for j, kind in kinds.items() if kind.name == "date"}
        self.hashed = {j: kind.how for j, kind in kinds.items() if kind.name == "hash"}
        self.truths = {j for j, kind in kinds.items() if kind == TRUTH}
        self.blank = {j for j, kind in kinds.items() if kind == BLANK}
        self._reset_encoders()

    def _stack_labels(self, parse: Callable[[int], NDArray[Any]], rows: int) -> NDArray[Any] | None:
        """Return the labels of rows, (rows,), or (rows, targets) if there are several targets.

        ``parse(f)`` returns the labels in the column at position f. A target that the source lacks
        is NaN; None without any label.
        """
        parts = [np.full(rows, np.nan) if f is None else parse(f) for f in self.columns.labels]
        if len(parts) < 2:
            return parts[0] if parts else None
        return np.stack(parts, axis=1)

    def _reset_encoders(self) -> None:
        """Make new encoders: all categories that were learnt from rows are forgotten."""
        missing = self._missing
        texts = {j: kind.how for j, kind in self._kinds.items() if kind.name == TEXT.name}
        self._coders: dict[int, Any] = {
            j: Categories(known, self._closed, missing) for j, known in texts.items()
        }
        self._coders |= {j: Hashed(bits, missing) for j, bits in self.hashed.items()}
        self._dates = {j: Dates(form, missing) for j, form in self.dates.items()}
        self.categories = {j: coder.names for j, coder in self._coders.items()}
        self.unseen = {j: 0 for j, known in texts.items() if known is not None}

    def _encode_texts(self, X: Any, texts: dict[int, Any], skip: int = 0) -> None:
        """Encode the texts of each column; write the codes to X, without the first `skip` rows.

        Parameters
        ----------
        X : float64 array (rows, d) or None
            Features of the rows after the skipped ones; None if all rows are skipped.
        texts : dict of int to Tokens or int32 array
            For each text feature, its texts (or hashes) in all rows.
        skip : int
            Number of first rows that are encoded (they may have new categories) but not written.
        """
        for j, found in texts.items():
            codes = self._coders[j].encode(found)
            if j in self.unseen:
                self.unseen[j] = self._coders[j].unseen
            if X is not None:
                X[:, j] = codes[skip:]
