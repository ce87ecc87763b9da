"""The options of `ingest` that decide what a store holds; checked before any row is read."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bigscreen.data.dataset import Dataset
from bigscreen.data.layout import Label
from bigscreen.data.missing import MISSING_CATEGORY, Missing
from bigscreen.data.preparation import Preparation, parse_divisor
from bigscreen.errors import InputError
from bigscreen.files.remote import as_path
from bigscreen.model.model import Model

Column = str | int
"""A column of a table, by name or by position."""


@dataclass(frozen=True)
class Pattern:
    """An existing store or model that a new store takes its columns, categories and labels from.

    Attributes
    ----------
    preparation : Preparation
        Columns, categories, scaling and labels of the existing store or model.
    sparse : bool or None
        Whether the existing store is sparse; None for a model, which has no layout.
    index_base : int or None
        Number of the first column (0 or 1) in the svmlight files that the store was made of.
    exact : bool
        Whether the features are known to equal the numbers of the source: float32 rounded none.
    n_targets : int or None
        Number of targets of each row; None for rows with labels.
    """

    preparation: Preparation
    sparse: bool | None = None
    index_base: int | None = None
    exact: bool = False
    n_targets: int | None = None

    def record(self) -> list[Any]:
        """Return all that a new store takes over from this one, as JSON values."""
        known = [self.preparation.fingerprint, self.sparse, self.index_base, self.exact]
        return known if self.n_targets in (None, 1) else [*known, self.n_targets]


def read_pattern(
    like: str | os.PathLike[str] | Dataset | Model | Preparation | None,
) -> Pattern | None:
    """Return what a new store takes over from the store or model `like`; None if `like` is None.

    Parameters
    ----------
    like : path, Dataset, Model, Preparation or None
        The existing store or model; a path to a folder is opened as a dataset, to a file as a
        model.

    Raises
    ------
    InputError
        If `like` is a path, and neither a dataset nor a model is there.
    """
    if like is None:
        return None
    if isinstance(like, Preparation):
        targets = max(1, len(like.targets)) if like.labels is None else None
        return Pattern(like, n_targets=targets)
    if isinstance(like, (str, os.PathLike)):
        like = Dataset.open(like, verify=False) if as_path(like).is_dir() else Model.load(like)
    if isinstance(like, Model):
        preparation = like.preparation
        if preparation.n_raw is None:  # an imported model, or one fitted to arrays
            preparation = replace(preparation, n_raw=like.n_features)
        if like.kind == "regressor":  # a model that was fitted to arrays may not record this
            preparation = replace(preparation, labels=None)
        exact = like.landmarks is not None and like.landmarks.dtype == np.float64
        base, n_targets = like.provenance.get("index_base"), like.n_targets or None
        return Pattern(preparation, None, base, exact, n_targets)
    extra = like.manifest["extra"]
    exact = like.layout.wide or extra.get("rounded") is False
    base, n_targets = extra.get("index_base"), like.n_targets or None
    return Pattern(like.preparation, like.is_sparse, base, exact, n_targets)


def add_absent_category(known: Preparation) -> Preparation:
    """Return a preparation with `MISSING_CATEGORY` in each text column, for missing texts.

    Scaling, labels, fill values and marks are left out; hashed columns keep their categories.

    Parameters
    ----------
    known : Preparation
        Columns and categories of an existing store; it is not changed.
    """
    texts = {c: kinds for c, kinds in known.categories.items() if c not in known.hashed}
    more = {
        c: [*kinds, MISSING_CATEGORY] for c, kinds in texts.items() if MISSING_CATEGORY not in kinds
    }
    out = Preparation(known.n_raw, known.names, {**known.categories, **more})
    out = replace(out, dates=known.dates, hashed=known.hashed, truths=known.truths)
    out = replace(out, skipped=known.skipped, label_at=known.label_at)
    return replace(out, targets=known.targets, decimal=known.decimal)


@dataclass(frozen=True)
class Choices:
    """Options of `ingest` that decide what a store holds; `ingest` documents each of them.

    Attributes
    ----------
    holdout : float
        Fraction (below 1) or number of rows for the held-out dataset; 0: none.
    seed : int
        Seed of the shuffle and of the choice of the held-out rows.
    rows : (int, int or None)
        First row number to take, and one past the last (None: to the end).
    scale : str
        "none", "standard", "minmax" or "divide:N": scaling of the numeric columns; "auto":
        "standard" for dense tables but their columns of 0 and 1, else "none".
    impute : str or None
        How a missing number is replaced: "mean", "median", "most-frequent" or "zero"; None: not.
    add_indicator : bool
        Whether each column that lacks numbers gets one more feature, which says where.
    drop_missing : bool
        Whether rows that lack a feature value or a label are left out.
    missing : tuple of str
        Texts that mark a missing value, in addition to the usual ones.
    positive : label or None
        The label with code 1; all other labels become one class.
    regression, unlabelled : bool
        Whether rows have numeric targets, and whether rows have neither labels nor targets.
    shuffle : bool
        Whether rows are stored in a random order instead of source order.
    layout : str
        "auto", "dense" or "sparse".
    max_kinds : int or None
        Most categories of a text column, and most labels; None: the limits of `DistinctLimits`.
    """

    holdout: float
    seed: int
    rows: tuple[int, int | None]
    scale: str
    impute: str | None
    add_indicator: bool
    drop_missing: bool
    missing: tuple[str, ...]
    positive: Label | None
    regression: bool
    unlabelled: bool
    shuffle: bool
    layout: str
    max_kinds: int | None

    def check(self, like: Preparation | None) -> Choices:
        """Return the options, checked, and completed from the store or model that `like` describes.

        `like` is the preparation (columns, categories, labels) of that existing store or model;
        None if the new store takes nothing from one.

        Raises
        ------
        InputError
            If an option has no meaning, or contradicts another one.
        """
        if self.scale != "auto":
            parse_divisor(self.scale)
        if self.max_kinds is not None and self.max_kinds < 1:
            raise InputError(f"max_kinds={self.max_kinds}: a column needs at least one kind.")
        if self.layout not in ("auto", "dense", "sparse"):
            raise InputError(f"there is no layout {self.layout!r}: use auto, dense or sparse.")
        if not (0 <= self.holdout < 1 or self.holdout == int(self.holdout)):
            raise InputError(
                f"holdout={self.holdout}: give a fraction below 1 or a number of rows."
            )
        if self.impute not in (None, "mean", "median", "most-frequent", "zero"):
            raise InputError(
                f"there is no way {self.impute!r} to impute: use mean, median, most-frequent or "
                "zero."
            )
        if self.add_indicator and self.impute is None:
            raise InputError(
                "add_indicator says where impute has filled a number, and impute is not asked for"
                + (": like brings its own features." if like is not None else ": give it, too.")
            )
        if self.impute is not None and self.drop_missing:
            raise InputError("impute fills what is missing and drop_missing drops it: choose one.")
        if self.regression and self.unlabelled:
            raise InputError(
                "unlabelled rows have no targets: ask for regression or for unlabelled."
            )
        if self.positive is not None and (self.regression or self.unlabelled):
            asked = "regression" if self.regression else "unlabelled"
            raise InputError(f"positive chooses a label and {asked} rows have none: leave out one.")
        return self if like is None else self._complete_from(like)

    def _complete_from(self, like: Preparation) -> Choices:
        """Return the options completed from the existing store or model that `like` describes.

        Its marks of missing values are taken over, and rows have targets if it has no labels.

        Raises
        ------
        InputError
            If an option was given that `like` settles: imputation, scaling, labels or missing
            marks.
        """
        if self.impute is not None:
            raise InputError("like brings its own numbers for what is missing: leave out impute.")
        if self.scale not in ("none", "auto") or (self.positive is not None and like.labels != []):
            raise InputError(
                "like brings its own scaling and labels: leave out scale and positive."
            )
        if self.regression and like.labels:
            raise InputError(
                "the store it shall be like has labels and no targets: leave out regression, or "
                "like."
            )
        if self.missing:
            raise InputError("like knows what means missing where it came from: leave out missing.")
        return replace(
            self,
            scale="none",
            missing=tuple(like.missing),
            regression=self.regression or like.labels is None,
        )

    def missing_rule(self, like: Preparation | None) -> Missing:
        """Return the marks of missing values, and whether the sources may have missing values.

        They may if missing numbers are imputed (here or by the store that `like` describes), or if
        rows with missing values are dropped.
        """
        filled = self.impute is not None or (like is not None and like.fill is not None)
        return Missing(self.missing, filled or self.drop_missing)

    def record(self, like: Preparation | None) -> dict[str, Any]:
        """Return the options as JSON values by name, for the journal and the manifests.

        Options for missing values that were not used are left out; so are marks of missing values
        that come from `like`, the preparation of an existing store or model (None: there is none).
        """
        out = {**self.__dict__, "rows": [*self.rows], "missing": [*self.missing]}
        # Options that were not used are left out, so that journals from before these options match.
        gone = {"impute": self.impute is None, "drop_missing": not self.drop_missing}
        gone["add_indicator"] = not self.add_indicator
        gone["missing"] = not self.missing or like is not None
        return {name: value for name, value in out.items() if not gone.get(name)}


def settle_label(
    label: Column | Sequence[Column] | None, choices: Choices, pattern: Pattern | None
) -> Column | tuple[Column, ...] | None:
    """Return the label column of tables, or the columns of several targets, as `ingest` takes them.

    Raises
    ------
    InputError
        If several columns are named for rows without targets, or for rows like others that have
        another number of targets.
    """
    if label is None or isinstance(label, (str, int)):
        return label
    columns = tuple(label)
    if len(columns) < 2:
        return columns[0] if columns else None
    given = ", ".join(map(str, columns))
    if not choices.regression:
        raise InputError(
            f"`label` names {len(columns)} columns ({given}), and a row has one label: several are "
            "the targets of a regression (`regression`); a name that contains a comma stands in "
            "double quotes."
        )
    known = None if pattern is None else pattern.n_targets
    if pattern is not None and known not in (None, len(columns)):
        names = ", ".join(pattern.preparation.name_targets(known or 1))
        raise InputError(
            f"`label` names {len(columns)} targets ({given}), and the store or model the rows "
            f"shall be like has {known}{f' ({names})' if names else ''}: name as many, in that "
            "order."
        )
    return columns


def parse_row_range(rows: str | None) -> tuple[int, int | None]:
    """Parse "A:B" into the first row and one past the last (None: to the end).

    ``None`` is the range of all rows, (0, None).

    Raises
    ------
    InputError
        If the text has another form, or A is not below B.
    """
    if rows is None:
        return 0, None
    match = re.fullmatch(r"(\d*):(\d*)", rows.strip())
    if match:
        first, stop = int(match[1] or 0), int(match[2]) if match[2] else None
        if stop is None or first < stop:
            return first, stop
    raise InputError(f"rows={rows!r} is no range: write A:B with A below B, rows counted from 0.")
