"""Ingest: from files or arrays to a dataset on disk, streaming, in bounded memory, resumable.

Two passes. `reading` checks the sources' rows and drops each into one of many buckets on disk, by a
hash of the row's number; `arranging` sorts one bucket after the other in memory, scales the rows and
writes the chunks. Everything in between lives in `<path>.ingest.wip` and is deleted at the end; a
journal there says what is done, so that a killed run goes on where it was.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bigscreen.errors import InputError
from bigscreen.store.arranging import Spilled, Survey, Transform, arrange, measure
from bigscreen.store.dataset import MANIFEST, Dataset
from bigscreen.store.journal import Journal
from bigscreen.store.labelling import known_codes, settle
from bigscreen.store.layout import row_grid
from bigscreen.store.order import Holdout
from bigscreen.store.prepare import Preparation
from bigscreen.store.readers import Column, Inputs, ReaderOptions
from bigscreen.store.reading import Reading, Request
from bigscreen.store.scaling import divisor
from bigscreen.store.spill import ENTRY
from bigscreen.store.wip import unfinished
from bigscreen.store.writer import DatasetWriter

DENSE_WIDTH = 256
DENSE_DENSITY = 0.25


@dataclass(frozen=True)
class Ingested:
    """What an ingest made.

    Attributes
    ----------
    store : Dataset
    holdout : Dataset or None
    notes : list of str
        What a person should know: unseen categories, a scaling without centring, and the like.
    """

    store: Dataset
    holdout: Dataset | None
    notes: list[str] = field(default_factory=list)
