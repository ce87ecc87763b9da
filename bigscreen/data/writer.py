"""Write a dataset chunk by chunk, from any number of processes; it appears only when complete."""

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
    unfinished_path,
)
from bigscreen.data.layout import Layout, chunk_digest, sqnorms
from bigscreen.data.limits import read_json
from bigscreen.data.preparation import Preparation
from bigscreen.data.targets import (
    as_features,
    as_stored,
    check_weights,
    merge_summaries,
    summarise_outcomes,
)
from bigscreen.data.zarr_arrays import (
    Checksums,
    create_csr,
    create_groups,
    csr_folder,
    list_arrays_in_root,
    row_arrays,
)
from bigscreen.errors import InputError
from bigscreen.files.output import replacing
from bigscreen.files.sealed import Damaged, seal, unseal

PLAN = "plan.json"
"""File, in the folder of an unfinished dataset, with the arguments it was begun with."""
RECORDS = "chunks"
"""Folder, in the folder of an unfinished dataset, with a record of every written chunk."""
IN_MANIFEST = ("digest", "nnz", "crc32c")
"""Fields of a chunk's record that the manifest keeps."""


class DatasetWriter:
    """Writes a dataset into `<path>.wip`, which `finish` renames to `<path>`.

    A chunk's record is written after its data, so `is_written` is correct even after a crash, and a
    new writer with the same plan resumes. The writer may be pickled to other processes; at any
    time each chunk must have at most one writer.

    Parameters
    ----------
    path : path
        The dataset to write. If `<path>.wip` exists with the same plan, writing resumes there.
    layout : Layout
        Sizes, the grid, labels and types; see `Layout.of`.
    preparation : Preparation or None
    extra : dict, optional
        JSON values to keep in the manifest.
    compress : bool
        Compress X losslessly (byte shuffle, then lz4; a block that does not shrink stays raw).
    overwrite : bool
        Replace an existing dataset, at the call of `finish`.

    Raises
    ------
    InputError
        If the dataset exists already, or `<path>.wip` has another plan.
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
        """Begin `<path>.wip`, or resume it if its plan is the same."""
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
        """Number of chunks to write."""
        return self.layout.n_chunks

    def chunk(self, k: int) -> tuple[int, int]:
        """Return the first row of chunk `k` and one past its last row."""
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
            Features of the rows `chunk(chunk_index)`; sparse if and only if the dataset is.
        y : array of shape (rows,) or None
            Label codes, -1 if unlabelled; or targets, NaN for a row without a target, (rows,
            targets) if there are several.
        weight : array of shape (rows,) or None
            Weights of the rows; None if and only if the dataset has no weights.
        row_ids : int array of shape (rows,) or None
            Source row numbers; None if the rows are stored in the order of the source.

        Raises
        ------
        InputError
            If a shape, code, target, weight or value is not valid; nothing is written then.
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
        stored = as_stored(y, rows, self.layout.labels, self.layout.n_targets)
        weights = check_weights(weight, rows)
        norms = sqnorms(features)
        record = {
            "digest": chunk_digest(features, stored, weights, ids, norms),
            "nnz": int(features.indptr[-1]) if isinstance(features, csr_array) else features.size,
            "max_sqnorm": float(norms.max()),
            **summarise_outcomes(stored, len(self.layout.labels or ())),
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
            stream.write(seal({**record, "place": chunk_index, "crc32c": checksums}))

    def is_written(self, chunk_index: int) -> bool:
        """Whether chunk number `chunk_index` has been written completely."""
        self.chunk(chunk_index)
        return self._record(chunk_index) is not None

    def finish(self, profile: dict[str, Any] | None = None) -> Dataset:
        """Write the manifest, rename `<path>.wip` to `<path>` and open the dataset.

        Parameters
        ----------
        profile : dict, optional
            JSON values for the manifest: statistics of the source's columns.

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
        summary = {"max_sqnorm": largest, **merge_summaries(written)}
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
        list_arrays_in_root(wip)
        with replacing(wip / MANIFEST) as stream:
            stream.write(seal(manifest))
        Dataset.open(wip)  # check the dataset before it gets its name
        take_name(wip, self.path)
        shutil.rmtree(self.path / RECORDS)
        (self.path / PLAN).unlink()
        return Dataset(self.path)

    def _plan(self) -> dict[str, Any]:
        """Return the arguments, as JSON values, that must be equal for a dataset to be resumed."""
        return {
            "layout": self.layout.to_dict(),
            "preparation": self.preparation.to_dict(),
            "compressed": self.compress,
            "extra": self.extra,
        }

    def _begin(self) -> None:
        """Create `<path>.wip` with its groups, arrays and plan, unless it exists already.

        Raises
        ------
        InputError
            If it exists with another plan, or its plan cannot be read.
        """
        wip = unfinished_path(self.path)
        # Through JSON and back, to compare it with a plan read from a file.
        plan = json.loads(json.dumps(self._plan(), allow_nan=False))
        if not wip.exists():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Built under another name and renamed: if two processes begin at once, one succeeds.
            fresh = scratch_folder(self.path.parent)
            try:
                create_groups(fresh, self.layout)
                for array in row_arrays(fresh, self.layout, self.compress).values():
                    array.create()
                (fresh / RECORDS).mkdir()
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
        """Raise InputError if the path exists, unless it is a dataset that may be overwritten."""
        if self.path.exists() and not self.overwrite:
            raise InputError(f"{self.path} exists already; choose another path or overwrite it")
        if self.overwrite and self.path.exists() and not (self.path / MANIFEST).exists():
            raise InputError(f"{self.path} is not a bigscreen dataset, so it is not overwritten")

    def _wip_folder(self) -> Path:
        """Return the folder to write in; InputError if it was finished or deleted meanwhile.

        A late writer must not recreate it.
        """
        wip = unfinished_path(self.path)
        if not (wip / PLAN).exists():
            raise InputError(f"{wip} is gone: the dataset was finished or given up meanwhile")
        return wip

    def _record_file(self, k: int) -> Path:
        """Return the path of the record of chunk `k` in the unfinished dataset."""
        return unfinished_path(self.path) / RECORDS / f"{k:06d}.json"

    def _record(self, k: int) -> dict[str, Any] | None:
        """Read the record of a complete chunk; None if the chunk must be written (again)."""
        try:
            record = unseal(self._record_file(k).read_bytes())
        except (FileNotFoundError, Damaged):
            return None
        return record if record.get("place") == k else None

    def _write_csr(self, k: int, X: csr_array) -> Checksums:
        """Write the features of chunk `k`, renamed into place when complete; return checksums."""
        final = csr_folder(unfinished_path(self.path), k)
        final.parent.mkdir(exist_ok=True)
        fresh = scratch_folder(final.parent)
        checksums = create_csr(fresh / "X", X, self.compress)
        shutil.rmtree(final, ignore_errors=True)
        (fresh / "X").rename(final)
        fresh.rmdir()
        return checksums
