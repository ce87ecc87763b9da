"""Writing a dataset: chunk by chunk, by any number of processes, whole or not at all."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_array, issparse

from bigscreen.data.dataset import FORMAT, MANIFEST, SCHEMA, Dataset
from bigscreen.data.folder import (
    remove_leftovers,
    scratch_folder,
    store_path,
    take_name,
    unfinished,
)
from bigscreen.data.layout import Layout, chunk_digest, sqnorms
from bigscreen.data.limits import read_json
from bigscreen.data.preparation import Preparation
from bigscreen.data.targets import as_features, as_stored, check_weights, describe, together
from bigscreen.data.zarr_arrays import Checksums, create_csr, create_groups, csr_folder, row_arrays
from bigscreen.errors import InputError
from bigscreen.files.output import replacing
from bigscreen.files.sealed import Damaged, sealed, unsealed

PLAN = "plan.json"
RECORDS = "chunks"
IN_MANIFEST = ("digest", "nnz", "crc32c")
"""What the manifest says of a chunk."""


class DatasetWriter:
    """Writes a dataset into `<path>.wip`; `finish` gives it its name.

    A chunk's record is written after its data, so after a death at any moment `done` tells the
    truth and the same writer goes on where it stopped. The writer may be pickled to other
    processes; each chunk must have one writer at a time.

    Parameters
    ----------
    path : path
        The dataset to make. If `<path>.wip` is there with the same plan, it is gone on with.
    layout : Layout
        Sizes, the grid, labels and types; see `Layout.of`.
    preparation : Preparation or None
    extra : dict, optional
        JSON values to keep in the manifest.
    compress : bool
        Compress X without loss (lz4 after a byte shuffle; a block that does not shrink stays raw).
    overwrite : bool
        Replace an existing dataset, when `finish` is called and not before.

    Raises
    ------
    InputError
        If the dataset exists already, or `<path>.wip` was begun with another plan.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        layout: Layout,
        preparation: Preparation | None,
        *,
        extra: dict[str, Any] | None = None,
        compress: bool = False,
        overwrite: bool = False,
    ) -> None:
        self.path = store_path(path)
        self.layout = layout
        self.preparation = preparation or Preparation.none()
        self.extra = extra or {}
        self.compress = compress
        self.overwrite = overwrite
        self._refuse_existing()
        self._begin()

    @property
    def n_chunks(self) -> int:
        return self.layout.n_chunks

    def chunk(self, k: int) -> tuple[int, int]:
        """First row and one past the last row of chunk `k`."""
        return self.layout.chunk(k)

    def write(
        self,
        chunk_index: int,
        X: ArrayLike | csr_array,
        y: ArrayLike | None,
        weight: ArrayLike | None = None,
        row_ids: ArrayLike | None = None,
    ) -> None:
        """Write one whole chunk; writing the same rows again changes nothing.

        Parameters
        ----------
        chunk_index : int
        X : array or sparse array of shape (rows, n_features)
            Rows `chunk(chunk_index)`; sparse exactly if the dataset is.
        y : array of shape (rows,) or None
            Label codes, -1 if unlabelled; or targets, NaN where there is none.
        weight : array of shape (rows,) or None
            Given exactly if the dataset has weights.
        row_ids : int array of shape (rows,) or None
            Source row numbers; None if the rows are stored in the order of the source.

        Raises
        ------
        InputError
            If a shape, a code, a target, a weight or a value does not fit; nothing is written.
        """
        start, stop = self.chunk(chunk_index)
        rows = stop - start
        ids = np.arange(start, stop) if row_ids is None else np.asarray(row_ids)
        if ids.shape != (rows,) or not np.issubdtype(ids.dtype, np.integer):
            raise InputError(f"chunk {chunk_index} needs {rows} integer row ids, got {ids.shape}")
        ids = np.ascontiguousarray(ids, dtype=np.int64)
        wide = self.layout.wide
        features = as_features(X, lambda row: f"source row {ids[row]}", wide).astype(
            self.layout.dtype, copy=False
        )
        if features.shape != (rows, self.layout.n_features):
            raise InputError(
                f"chunk {chunk_index} needs features of shape {(rows, self.layout.n_features)}, "
                f"got {features.shape}"
            )
        if issparse(features) != self.layout.is_sparse or (
            (weight is not None) != self.layout.has_weights
        ):
            raise InputError(
                f"chunk {chunk_index} must match the plan: sparse={self.layout.is_sparse}, "
                f"weights={self.layout.has_weights}"
            )
        stored = as_stored(y, rows, self.layout.labels)
        weights = check_weights(weight, rows)
        norms = sqnorms(features)
        record = {
            "digest": chunk_digest(features, stored, weights, ids, norms),
            "nnz": int(features.indptr[-1]) if isinstance(features, csr_array) else features.size,
            "max_sqnorm": float(norms.max()),
            **describe(stored, len(self.layout.labels or ())),
        }
        before = self._record(chunk_index)
        if before is not None and {k: v for k, v in before.items() if k in record} == record:
            return
        wip = self._wip_folder()
        file = self._record_file(chunk_index)
        file.unlink(missing_ok=True)
        values: dict[str, Any] = {
            "X": features,
            "y": stored,
            "weight": weights,
            "sqnorm": norms,
            "row_id": ids,
        }
        checksums: Checksums = {}
        if isinstance(features, csr_array):
            checksums |= self._write_csr(chunk_index, features)
        for name, array in row_arrays(wip, self.layout, self.compress).items():
            checksums[name] = array.write(start, values[name])
        with replacing(file) as stream:
            stream.write(sealed({**record, "place": chunk_index, "crc32c": checksums}))

    def done(self, chunk_index: int) -> bool:
        """Whether the chunk has been written whole."""
        self.chunk(chunk_index)
        return self._record(chunk_index) is not None

    def finish(self, profile: dict[str, Any] | None = None) -> Dataset:
        """Give the dataset its name, once every chunk is written.

        Parameters
        ----------
        profile : dict, optional
            JSON values: what the source's columns hold, to be kept beside the rows.

        Raises
        ------
        InputError
            If a chunk is not written yet, or the dataset has come to exist meanwhile.
        """
        wip = self._wip_folder()
        records = [self._record(k) for k in range(self.n_chunks)]
        open_chunks = [k for k, record in enumerate(records) if record is None]
        if open_chunks:
            raise InputError(
                f"{len(open_chunks)} of {self.n_chunks} chunks of {wip} are not written yet, the "
                f"first of them is chunk {open_chunks[0]}; write them before finishing"
            )
        written = [record for record in records if record is not None]
        digests = [record["digest"] for record in written]
        largest = max(record["max_sqnorm"] for record in written)
        summary = {"max_sqnorm": largest, **together(written)}
        manifest = {
            "format": FORMAT,
            "schema": SCHEMA,
            **self._plan(),
            "fingerprint": self.layout.fingerprint(digests, self.preparation.fingerprint, summary),
            **summary,
            **({} if profile is None else {"profile": profile}),
            "chunks": [{name: record[name] for name in IN_MANIFEST} for record in written],
        }
        self._refuse_existing()
        remove_leftovers(wip)
        with replacing(wip / MANIFEST) as stream:
            stream.write(sealed(manifest))
        Dataset.open(wip)  # checked before it takes the name
        take_name(wip, self.path)
        shutil.rmtree(self.path / RECORDS)
        (self.path / PLAN).unlink()
        return Dataset(self.path)

    def _plan(self) -> dict[str, Any]:
        return {
            "layout": self.layout.to_dict(),
            "preparation": self.preparation.to_dict(),
            "compressed": self.compress,
            "extra": self.extra,
        }

    def _begin(self) -> None:
        wip = unfinished(self.path)
        # Through JSON, so that the comparison sees what a reader will see.
        plan = json.loads(json.dumps(self._plan(), allow_nan=False))
        if not wip.exists():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Made aside and renamed: of two processes that begin at once, one wins whole.
            fresh = scratch_folder(self.path.parent)
            try:
                create_groups(fresh, self.layout)
                (fresh / RECORDS).mkdir()
                for array in row_arrays(fresh, self.layout, self.compress).values():
                    array.create()
                (fresh / PLAN).write_text(json.dumps(plan))
                fresh.rename(wip)
            except FileExistsError:
                pass
            except OSError:
                if not wip.exists():
                    raise
            finally:
                shutil.rmtree(fresh, ignore_errors=True)
        try:
            begun = read_json(wip / PLAN)
        except (OSError, ValueError) as error:
            raise InputError(
                f"{wip} is not an unfinished dataset that can be gone on with; delete it"
            ) from error
        if begun != plan:
            raise InputError(
                f"{wip} was begun with another source or other parameters; go on with those, or "
                "delete that folder to start over"
            )

    def _refuse_existing(self) -> None:
        if self.path.exists() and not self.overwrite:
            raise InputError(f"{self.path} exists already; choose another path or overwrite it")
        if self.overwrite and self.path.exists() and not (self.path / MANIFEST).exists():
            raise InputError(f"{self.path} is not a bigscreen dataset, so it is not overwritten")

    def _wip_folder(self) -> Path:
        """The folder to write in; a late writer must not bring a finished or deleted one back."""
        wip = unfinished(self.path)
        if not (wip / PLAN).exists():
            raise InputError(f"{wip} is gone: the dataset was finished or given up meanwhile")
        return wip

    def _record_file(self, k: int) -> Path:
        return unfinished(self.path) / RECORDS / f"{k:06d}.json"

    def _record(self, k: int) -> dict[str, Any] | None:
        """What is recorded of a chunk that is whole; None if it is to be written (again)."""
        try:
            record = unsealed(self._record_file(k).read_bytes())
        except (FileNotFoundError, Damaged):
            return None
        return record if record.get("place") == k else None

    def _write_csr(self, k: int, X: csr_array) -> Checksums:
        final = csr_folder(unfinished(self.path), k)
        final.parent.mkdir(exist_ok=True)
        fresh = scratch_folder(final.parent)
        checksums = create_csr(fresh / "X", X, self.compress)
        shutil.rmtree(final, ignore_errors=True)
        (fresh / "X").rename(final)
        fresh.rmdir()
        return checksums
