"""What an ingest is asked for: its sources, its range of rows, the store it shall be like."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bigscreen.errors import InputError
from bigscreen.store.dataset import Dataset
from bigscreen.store.layout import Label
from bigscreen.store.model import Model
from bigscreen.store.prepare import Preparation
from bigscreen.store.readers import Reader, is_path, open_source

# Bytes of float32 rows per byte on disk, rather too many: of text or packed numbers, and of the
# same compressed.
_GROWTH, _PACKED_GROWTH = 4, 20
UNKNOWN_BYTES = 1 << 29
_PACKED = (".gz", ".bz2", ".xz", ".npz", ".parquet", ".pq")


@dataclass(frozen=True)
class Input:
    """One source.

    Attributes
    ----------
    name : str
    identity : list or str or None
        Equal for equal content, as far as can be told without reading it; None: it cannot.
    size, expected_bytes : int
        Bytes of the source (0: not known), and a guess of its rows' bytes as float32.
    """

    name: str
    identity: Any
    size: int
    expected_bytes: int
    _source: Any

    def open(self, options: dict[str, Any]) -> Reader:
        """Return a reader of the source."""
        return open_source(self._source, **options) if is_path(self._source) else self._source


def inputs_of(sources: Any, options: dict[str, Any]) -> list[Input]:
    """Take apart what was given as sources.

    Raises
    ------
    InputError
        If a file is missing, or it is no source at all.
    """
    if is_path(sources):
        sources = [sources]
    if isinstance(sources, (list, tuple)) and len(sources) and all(map(is_path, sources)):
        return [_file(Path(source)) for source in sources]
    reader = open_source(sources, **options)
    size = reader.progress()[1]
    kind = type(sources).__name__
    return [Input(kind, getattr(reader, "identity", None), size, size or UNKNOWN_BYTES, reader)]


def _file(path: Path) -> Input:
    try:
        stat = path.stat()
    except OSError as error:
        raise InputError(f"{path} cannot be opened: {error.strerror}.") from None
    growth = _PACKED_GROWTH if path.name.lower().endswith(_PACKED) else _GROWTH
    identity = [str(path.absolute()), stat.st_size, stat.st_mtime_ns]
    return Input(str(path), identity, stat.st_size, growth * stat.st_size, path)


@dataclass(frozen=True)
class Pattern:
    """The store or model that a new store shall be like.

    Attributes
    ----------
    preparation : Preparation
    sparse : bool or None
    index_base : int or None
        Number of the first column in the svmlight files it came from.
    """

    preparation: Preparation
    sparse: bool | None = None
    index_base: int | None = None


def pattern_of(like: str | os.PathLike[str] | Dataset | Model | Preparation) -> Pattern:
    """Return what a new store takes over from `like`.

    Raises
    ------
    InputError
        If it is the path of neither a dataset nor a model.
    """
    if isinstance(like, Preparation):
        return Pattern(like)
    if isinstance(like, (str, os.PathLike)):
        like = Dataset.open(like, verify=False) if Path(like).is_dir() else Model.load(like)
    if isinstance(like, Model):
        preparation = like.preparation
        if like.kind == "regressor":  # fitted to arrays it need not say so
            preparation = replace(preparation, labels=None)
        return Pattern(preparation, None, like.provenance.get("index_base"))
    return Pattern(like.preparation, like.is_sparse, like.manifest["extra"].get("index_base"))


def check_choices(
    like: Preparation | None, scale: str, positive: Label | None, regression: bool, unlabelled: bool
) -> None:
    """Refuse contradictions about what is to be predicted, and how rows are prepared.

    Raises
    ------
    InputError
    """
    if regression and unlabelled:
        raise InputError("unlabelled rows have no targets: ask for regression or for unlabelled.")
    if positive is not None and (regression or unlabelled):
        asked = "regression" if regression else "unlabelled"
        raise InputError(f"positive chooses a label and {asked} rows have none: leave out one.")
    if like is None:
        return
    if scale != "none" or (positive is not None and like.labels != []):
        raise InputError("like brings its own scaling and labels: leave out scale and positive.")
    if regression and like.labels:
        raise InputError(
            "the store it shall be like has labels and no targets: leave out regression, or like."
        )


def row_range(rows: str | None) -> tuple[int, int | None]:
    """Parse "A:B" into the first row and one past the last (None: to the end)."""
    if rows is None:
        return 0, None
    match = re.fullmatch(r"(\d*):(\d*)", rows.strip())
    if match:
        first, stop = int(match[1] or 0), int(match[2]) if match[2] else None
        if stop is None or first < stop:
            return first, stop
    raise InputError(f"rows={rows!r} is no range: write A:B with A below B, rows counted from 0.")
