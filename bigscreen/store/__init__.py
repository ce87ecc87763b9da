"""Data on disk: datasets, how they were prepared, fitted models. The only room that knows zarr."""

from bigscreen.store.base import Rows
from bigscreen.store.dataset import Dataset
from bigscreen.store.memory import MemoryDataset, Mirrored
from bigscreen.store.moved import Moved, moved
from bigscreen.store.prepare import Preparation
from bigscreen.store.writer import DatasetWriter

__all__ = [
    "Dataset",
    "DatasetWriter",
    "MemoryDataset",
    "Mirrored",
    "Moved",
    "Preparation",
    "Rows",
    "moved",
]
