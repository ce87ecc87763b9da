"""What readers of tables share: the columns that were chosen, and the codes of texts."""

from __future__ import annotations

from typing import Any

from bigscreen.data.missing import Missing
from bigscreen.intake.readers.categories import Categories, Dates, Hashed, Typed
from bigscreen.intake.readers.columns import TableColumns


class TypedReader:
    """A reader of columns of numbers, texts and dates.

    Parameters
    ----------
    columns : TableColumns
    names : list of str or None
        Names of all columns of the source.
    typed : Typed
        The columns of X that are anything but numbers.
    missing : Missing
        What says that a value is missing, and whether features may be.
    has_types : bool
        Whether the source has types and nulls of its own: see `Categories`.
    """

    sparse = False

    def __init__(
        self,
        columns: TableColumns,
        names: list[str] | None,
        typed: Typed,
        missing: Missing,
        has_types: bool = False,
    ) -> None:
        self.columns, self._typed, self._missing = columns, typed, missing
        self._has_types = has_types
        self.left_out, self.index_names = columns.left_out, columns.index_names
        self.n_features: int | None = len(columns.features)
        self.names = [names[f] for f in columns.features] if names else None
        self.dates, self.hashed = typed.dates, typed.hashed
        # Columns of X that hold nothing but missing values in the first rows.
        self.blank: set[int] = set()
        self._restart()

    def _restart(self) -> None:
        """Forget the texts that were read."""
        typed, missing = self._typed, self._missing
        self._coders: dict[int, Any] = {
            j: Categories(known, typed.closed, missing, self._has_types)
            for j, known in typed.categories.items()
        }
        self._coders |= {j: Hashed(bits, missing) for j, bits in typed.hashed.items()}
        self._dates = {j: Dates(form, missing) for j, form in typed.dates.items()}
        self.categories = {j: coder.names for j, coder in self._coders.items()}
        self.unseen = {j: 0 for j, known in typed.categories.items() if known is not None}

    def _set_codes(self, X: Any, texts: dict[int, Any], skip: int = 0) -> None:
        """Give the texts of all rows but the first `skip` the codes that they have in X."""
        for j, found in texts.items():
            codes = self._coders[j].encode(found)
            if j in self.unseen:
                self.unseen[j] = self._coders[j].unseen
            if X is not None:
                X[:, j] = codes[skip:]
